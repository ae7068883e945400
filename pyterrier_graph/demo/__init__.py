"""The demo: the models of the papers next to their rivals, on text that needs no download, and a page that shows them.

``python -m pyterrier_graph demo`` searches the beginnings of numpy's docstrings. A query is the summary line of an
object, which its docstring lacks; the task is to rank the passages of the docstring, its description first. Summary
lines of other objects are past queries, and train the models. The demo prints two tables and writes ``report.html``.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyterrier as pt
from ir_measures import RR

from pyterrier_graph.demo.measures import Results, as_text, compare, per_query
from pyterrier_graph.demo.page import write_page
from pyterrier_graph.demo.systems import (
    BM25,
    DRAWN,
    GRAPH_MAXSIM,
    HGAT,
    LGRE_TEST,
    MAXSIM,
    Data,
    build_systems,
    prepare,
    report,
)
from pyterrier_graph.evaluation.significance import values_of


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the demo from the command line and returns its table."""
    parser = argparse.ArgumentParser(prog="python -m pyterrier_graph demo", description=__doc__)
    parser.add_argument("--output", default="pyterrier_graph-demo", help="folder of all results")
    options = parser.parse_args(arguments)
    for library in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    start = time.perf_counter()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    data = prepare(output)
    table = run(data, output)
    minutes = (time.perf_counter() - start) / 60
    print(f"{minutes:.1f} minutes. Open {output / 'report.html'}.")
    return table


def run(data: Data, output: Path) -> pd.DataFrame:
    """Trains and compares all systems. Prints the tables and writes ``results.csv`` and ``report.html``."""
    systems = build_systems(data, output)
    test, qrels = data.test.topics, data.test.qrels
    runs, times = {}, {}
    for name, pipeline in systems.pipelines.items():
        report(f"ranking by {name}")
        start = time.perf_counter()
        runs[name] = pipeline(test)
        times[name] = 1000 * (time.perf_counter() - start) / len(test)
    table = compare(runs, test, qrels).assign(**{"ms per query": pd.Series(times)})
    best = {name: pt.text.max_passage()(runs[name]) for name in (MAXSIM, GRAPH_MAXSIM, HGAT)}
    folded = {BM25: systems.documents(test)} | best
    documents = compare(folded, test, data.test.document_qrels)
    easy = per_query(systems.drawn, test.head(LGRE_TEST), qrels, RR @ 10)
    table.to_csv(output / "results.csv", index_label="system")
    print(f"Passages, {len(test)} queries:\n{as_text(table)}")
    print(f"\nDocuments, by their best passage:\n{as_text(documents)}")
    print(f"+ and -: better and worse than {BM25} (paired t-test, Holm-corrected, p < 0.05).")
    means = values_of(easy, "RR@10").mean(axis=1)[[*systems.drawn]].rename("RR@10")
    print(f"\n{DRAWN} passages drawn at random, one of them relevant, {LGRE_TEST} queries:")
    print(means.map("{:.3f}".format).to_string())
    write_page(output / "report.html", data, systems, runs, Results(table, documents, easy))
    return table
