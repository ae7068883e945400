"""The demo: the models of the papers next to their rivals, on text that needs no download, and a page that shows them.

``python -m pyterrier_graph demo`` searches the beginnings of numpy's docstrings. A query is the summary line of an
object, which its docstring lacks; the task is to rank the passages of the docstring, its description first. Summary
lines of other objects are past queries, and train the models. The demo prints two tables and writes ``report.html``.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyterrier as pt
from ir_measures import RR, nDCG

from pyterrier_graph.demo.page import write_page
from pyterrier_graph.demo.systems import (
    BM25,
    DRAWN,
    GRAPH_MAXSIM,
    HGAT,
    LGRE_TEST,
    MAXSIM,
    Data,
    Queries,
    build_systems,
    prepare,
    report,
)
from pyterrier_graph.evaluation.significance import summarize, values_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demo from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pyterrier_graph demo", description=__doc__)
    parser.add_argument("--output", default="pyterrier_graph-demo", help="folder of all results")
    output = Path(parser.parse_args(arguments).output)
    start = time.perf_counter()
    run(prepare(output), output)
    minutes = (time.perf_counter() - start) / 60
    print(f"{minutes:.1f} minutes. Open {output / 'report.html'}.")


def run(data: Data, output: Path) -> None:
    """Trains and compares all systems. Prints the tables and writes ``results.csv`` and ``report.html``."""
    systems = build_systems(data, output)
    test = data.test
    runs = {}
    times = {}  # milliseconds per query
    for name, pipeline in systems.pipelines.items():
        report(f"ranking by {name}")
        start = time.perf_counter()
        runs[name] = pipeline(test.topics)
        seconds = time.perf_counter() - start
        times[name] = 1000 * seconds / len(test.topics)
    documents = {BM25: systems.documents(test.topics)}
    for name in (MAXSIM, GRAPH_MAXSIM, HGAT):
        documents[name] = pt.text.max_passage()(runs[name])

    values = per_query(runs, test)
    values.to_csv(output / "results.csv", index=False)
    table = summarize(values, BM25).loc[[*runs]]
    table["ms per query"] = pd.Series(times).round(1)
    document_queries = Queries(test.topics, test.document_qrels)
    document_values = per_query(documents, document_queries)
    document_table = summarize(document_values, BM25).loc[[*documents]]
    easy_queries = Queries(test.topics.head(LGRE_TEST), test.qrels)
    easy_values = values_of(per_query(systems.drawn, easy_queries), "RR@10")
    easy_table = easy_values.mean(axis=1).round(3).to_frame("RR@10")

    print(f"Passages, {len(test.topics)} queries:\n{table.to_string()}")
    print(f"\nDocuments, by their best passage:\n{document_table.to_string()}")
    print(f"+ and -: better and worse than {BM25} (paired t-test, Holm-corrected, p < 0.05).")
    print(f"\n{DRAWN} passages drawn at random, one of them relevant, {LGRE_TEST} queries:")
    print(easy_table.to_string())
    tables = [table, document_table, easy_table]
    write_page(output / "report.html", data, systems, runs, values, tables)


def per_query(runs: Mapping[str, pd.DataFrame], queries: Queries) -> pd.DataFrame:
    """``name, qid, measure, value`` of each system."""
    measures = [nDCG @ 10, RR @ 10]
    names = [*runs]
    return pt.Experiment([*runs.values()], *queries, measures, names=names, perquery=True)
