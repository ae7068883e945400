"""The page of the demo: the corpus, the pipelines, the results, two explained examples, and where to go next."""

from __future__ import annotations

import io
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
from matplotlib.axes import Axes
from scipy.stats import ttest_rel

from pyterrier_graph.demo.measures import MEASURE, MEASURES, Results, as_text, per_query
from pyterrier_graph.demo.systems import (
    BM25,
    DENSE,
    DRAWN,
    GNN,
    HGAT,
    LGRE,
    MAXSIM,
    NETWORK,
    PAIR,
    PASSAGES,
    RERANKED,
    RIVALS,
    TRAINED,
    UNTRAINED,
    Data,
    Systems,
)
from pyterrier_graph.evaluation.significance import values_of
from pyterrier_graph.graphs.relations import OWN, RELEVANT
from pyterrier_graph.html import in_words, schematic
from pyterrier_graph.show import plots
from pyterrier_graph.show.explain import Explanation, explain

SITE = "https://pypi.org/project/pyterrier-graph/"
LEVEL = 0.05
CANDIDATES = 12  # passages that may become an example
STYLE = """
body { max-width: 1000px; margin: 2em auto; padding: 0 1em; font: 15px/1.5 system-ui, sans-serif; color: #222; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
svg { max-width: 100%; height: auto; }
table.numbers { border-collapse: collapse; }
table.numbers td, table.numbers th { padding: 2px 12px 2px 0; text-align: left; }
.columns { display: flex; flex-wrap: wrap; } .half { width: 50%; min-width: 300px; }
pre { background: #f5f5f5; padding: 8px; overflow-x: auto; } .scroll { overflow-x: auto; }
""".strip()
PAPERS = {
    "HGAT": (
        "Albarede et al. 2023",
        "passages and the sections, neighbors and references of their document",
        "weights of relations are trained, layers are not",
    ),
    "LGRe": (
        "Dong and Niu 2021",
        "the words of a query and a document",
        "trained from an encoder of sentences",
    ),
    "GNN-encoder": ("Liu et al. 2022", "passages and past queries", "trained"),
    "PAIR": (
        "Ren et al. 2021",
        "no graph: a dense encoder learns from passages, too",
        "its second stage, for queries: passages keep their vectors, and there is no teacher",
    ),
}
NEXT = {
    "your own documents": "ptg.GraphIndex(folder).index(docs), then index.search(question)",
    "a folder of files": "python -m pyterrier_graph search FOLDER QUESTION",
    "each paper, step by step": "notebooks/3_hgat.ipynb to notebooks/6_pair_and_denoising.ipynb",
    "the tables of the papers": "python -m experiments.papers",
    "more collections": "docs/results.md",
}


class Example(NamedTuple):
    """A relevant passage that a model moved up, and why."""

    query: str
    docno: str
    model: str
    start: str
    before: int  # rank, from 1
    after: int
    explanation: Explanation
    neighbor: pd.Series  # the source that adds most to the score, besides the passage itself


def write_page(
    path: Path,
    data: Data,
    systems: Systems,
    runs: Mapping[str, pd.DataFrame],
    tables: Results,
) -> None:
    """Writes the page, which needs no network."""
    values = per_query(runs, data.test.topics, data.test.qrels, MEASURES[0])
    examples = [
        example(data, systems, runs, HGAT, MAXSIM),
        example(data, systems, runs, GNN, DENSE),
    ]
    explained = [one for one in examples if one is not None]
    document = explained[0].docno.rpartition("%p")[0] if explained else data.docs[0]["docno"]
    sections = {
        "The corpus and its graph": corpus(data, document),
        "The pipelines": pipelines(systems),
        "Results": results(values, tables),
        "What training adds": training(values, tables, systems),
        "Which neighbor moved which passage": "".join(map(shown, explained))
        or "<p>None was moved up.</p>",
        "The words that LGRe links": words(data, systems),
        "Where to go next": next_steps(),
    }
    body = "".join(f"<h2>{title}</h2>{content}" for title, content in sections.items())
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    path.write_text(
        f"<!doctype html><html lang='en'><head>{head}<title>pyterrier_graph: the demo</title>"
        f"<style>{STYLE}</style></head><body><h1>Graphs over passages, next to their rivals</h1>{body}</body></html>",
        encoding="utf-8",
    )


def picture(axes: Axes) -> str:
    """The figure of some axes as SVG."""
    figure: Any = axes.figure
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    plt.close(figure)
    text = file.getvalue()
    return f'<div class="scroll">{text[text.index("<svg") :]}</div>'


def numbers(frame: pd.DataFrame) -> str:
    """A frame as a table."""
    return f'<div class="scroll">{frame.to_html(classes="numbers", border=0)}</div>'


# --- sections


def corpus(data: Data, document: str) -> str:
    """Sizes, the graph of one document, and the number of edges."""
    graph, queries = data.index.graph, data.index.version.queries
    nodes = graph.passage_nodes
    counts = {in_words(name): len(graph.neighbors(nodes, name)[1]) for name in graph.relations}
    if queries is not None:
        answered = queries.edges_of_passages(np.arange(len(nodes)), RELEVANT)
        counts["past query that it answers"] = len(answered.indices)
    edges = pd.Series(counts, name="edges from passages")
    axes = plots.document_graph(graph, document, most=14)
    query = data.test.topics["query"].iloc[0]
    sizes = (
        f"{len(data.train.topics)} queries are past queries and train the models, {len(data.dev.topics)} validate, "
        f"{len(data.test.topics)} test."
    )
    return (
        f"<p>{len(graph):,} docstrings of numpy, each cut after {PASSAGES} passages: {len(nodes):,} passages. A query "
        f"is the summary line of an object, such as “{escape(query)}”, which no docstring contains. Relevant are the "
        f"passages of the object, most of all its description. {sizes}</p>{picture(axes)}"
        f"{numbers(edges[edges > 0].to_frame())}"
    )


def pipelines(systems: Systems) -> str:
    """The schematic of each pipeline."""
    # without links to PyTerrier's documentation, which it would look up in the network
    with patch.object(pt.documentation, "url_for_class", lambda _: None):
        parts = [
            f"<h3>{escape(name)}</h3>{schematic(pipeline)}"
            for name, pipeline in systems.pipelines.items()
        ]
    papers = pd.DataFrame(PAPERS, index=["paper", "graph of", "here"]).T
    return numbers(papers) + "".join(parts)


def results(values: pd.DataFrame, tables: Results) -> str:
    """Means with intervals, gains per query, and the tables."""
    table = tables.passages
    axes = plots.results(values, MEASURE, names=[*table.index], baseline=BM25)
    return (
        f"{picture(axes[0])}<p>Left, the mean and its 95% interval; right, a point per query.</p>"
        f"<pre>{escape(as_text(table))}</pre><p>Documents, each with the score of its best passage:</p>"
        f"<pre>{escape(as_text(tables.documents))}</pre><p>+ and -: better and worse than {BM25} (paired t-test, "
        f"Holm-corrected, p &lt; {LEVEL}). Times include encoding the query.</p>"
    )


def training(values: pd.DataFrame, tables: Results, systems: Systems) -> str:
    """Each model and its rival, in sentences that follow from the numbers; the curves of training."""
    table, easy = values_of(values, MEASURE), values_of(tables.drawn, str(MEASURES[1]))
    pairs = {**RIVALS, NETWORK: DENSE}.items()
    texts = [difference(table, name, rival) for name, rival in pairs]
    texts.append(difference(table, GNN, NETWORK))
    logs = {name: systems.models[name].training_log for name in (HGAT, PAIR, NETWORK, GNN)}
    curves = [
        picture(plots.training_curves(log, title=name)[0]) for name, log in logs.items() if log
    ]
    texts.append(
        "No docstring answers two of these queries, so a passage that has answered one is not what the next one looks "
        "for. GraphMean, GNNEncoder and GraphIndex take that from the past queries; BM25 with past queries in its text "
        "is misled by them. Where passages answer again and again, the differences are smaller: see docs/results.md."
    )
    texts.append(
        "All queries are of one kind, with one seed: what training gains here says nothing about other queries."
    )
    items = "".join(f"<li>{text}</li>" for text in texts)
    columns = "".join(f'<div class="half">{curve}</div>' for curve in curves)
    return f'<ul>{items}</ul><div class="columns">{columns}</div>{easy_task(tables.drawn, easy, systems)}'


def easy_task(values: pd.DataFrame, table: pd.DataFrame, systems: Systems) -> str:
    """What LGRe learns: to find a passage among others that are drawn at random."""
    options = systems.models[LGRE].training
    axes = plots.results(
        values, str(MEASURES[1]), names=[UNTRAINED, TRAINED, BM25], baseline=UNTRAINED
    )
    texts = [difference(table, TRAINED, UNTRAINED), difference(table, TRAINED, BM25)]
    items = "".join(f"<li>{text}</li>" for text in texts)
    return (
        f"<h3>What LGRe learns</h3><p>LGRe needs a cross-encoder, or thousands of queries. Neither can be had without "
        f"a download, so it starts at three layers of an encoder of sentences that have never seen a query beside a "
        f"passage, and learns from {options.pairs_per_epoch} pairs. Its task here is an easy one: to find a passage "
        f"among {DRAWN - 1} others drawn at random ({MEASURES[1]}, {table.shape[1]} test queries). Above it reorders "
        f"BM25's best {RERANKED}, which all look alike.</p><ul>{items}</ul>{picture(axes[0])}"
    )


def difference(table: pd.DataFrame, name: str, rival: str) -> str:
    """How a system compares with another one."""
    own, other = table.loc[name], table.loc[rival]
    change = own.mean() - other.mean()
    equal = (own == other).all()
    pvalue = 1.0 if equal else ttest_rel(own, other).pvalue
    verdict = "better" if change > 0 else "worse"
    if pvalue >= LEVEL:
        verdict = "not significant"
    return (
        f"<b>{escape(name)}</b> has {own.mean():.3f}, {escape(rival)} {other.mean():.3f}: {change:+.3f}, "
        f"{verdict} (p {pvalue:.2g}).{' Validation kept the start.' if equal else ''}"
    )


def example(
    data: Data, systems: Systems, runs: Mapping[str, pd.DataFrame], name: str, start: str
) -> Example | None:
    """The relevant passage that a model moves up most, among those that a neighbor contributes to."""
    qrels = data.test.qrels
    best = qrels.loc[qrels["label"] == qrels["label"].max(), ["qid", "docno"]]
    moved = best.merge(data.test.topics, on="qid")
    for side, run in (("before", runs[start]), ("after", runs[name])):
        ranks = run.set_index(["qid", "docno"])["rank"].rename(side)
        moved = moved.join(ranks, on=["qid", "docno"], how="inner")
    gain = 1 / (moved["after"] + 1) - 1 / (moved["before"] + 1)
    moved = moved.assign(gain=gain).sort_values("gain", ascending=False, kind="stable")
    for row in moved[moved["gain"] > 0].head(CANDIDATES).itertuples():
        explanation = explain(systems.models[name], row.query, row.docno, graph=data.index.graph)
        neighbors = explanation.frame[explanation.frame["relation"] != OWN]
        if neighbors["score"].max() > 0:
            neighbor = neighbors.loc[neighbors["score"].idxmax()]
            ranks = row.before + 1, row.after + 1
            return Example(row.query, row.docno, name, start, *ranks, explanation, neighbor)
    return None


def shown(one: Example) -> str:
    """An example as a sentence and its explanation."""
    text = " ".join(str(one.neighbor["text"]).split())[:160]
    return (
        f"<h3>{escape(one.model)}: {escape(one.docno)}</h3><p>“{escape(one.query)}”: the relevant passage is at rank "
        f"{one.before} of {escape(one.start)} and at rank {one.after} of {escape(one.model)}. Besides its own text, "
        f"most of its score ({one.neighbor['score']:+.3f}) comes from: "
        f"<i>{escape(in_words(str(one.neighbor['relation'])))}</i>, “{escape(text)}”.</p>{one.explanation.html}"
    )


def words(data: Data, systems: Systems) -> str:
    """The word graph of the first test query and its best passage."""
    first = data.test.topics.iloc[0]
    relevant = data.test.qrels[data.test.qrels["qid"] == first["qid"]]
    docno = relevant.sort_values("label", ascending=False)["docno"].iloc[0]
    graph = data.index.graph
    text = graph.texts(graph.nodes_of([docno]))[0]
    linked = systems.models[LGRE].word_graph(first["query"], text)
    axes = plots.word_graph(linked, title=f"{first['query']} → {docno}", most=20)
    return f"<p>How much a word (row) takes from another one (column).</p>{picture(axes)}"


def next_steps() -> str:
    """Links and commands."""
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td><code>{escape(how)}</code></td></tr>"
        for what, how in NEXT.items()
    )
    return f'<table class="numbers">{rows}</table><p><a href="{SITE}">{SITE}</a></p>'
