"""The page of the demo: the papers, the corpus, the results, trainings, and explained examples."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import ttest_rel

from pyterrier_graph.demo.systems import (
    BM25,
    DENSE,
    DRAWN,
    GNN,
    GRAPH_MAXSIM,
    HGAT,
    INDEX,
    LGRE,
    MAXSIM,
    MEAN,
    NETWORK,
    PAIR,
    RIVAL,
    Data,
    Systems,
)
from pyterrier_graph.evaluation.significance import values_of
from pyterrier_graph.html import in_words
from pyterrier_graph.show import plots
from pyterrier_graph.show.explain import explain

MEASURE = "nDCG@10"
PAPERS = pd.DataFrame(
    {
        "HGAT (Albarede et al. 2023)": [
            "passages and the sections, neighbors and references of their document",
            "weights of relations are trained, layers are not",
        ],
        "LGRe (Dong and Niu 2021)": [
            "the words of a query and a document",
            "trained on passages drawn at random, from an encoder of sentences",
        ],
        "GNN-encoder (Liu et al. 2022)": ["passages and past queries", "trained"],
        "PAIR (Ren et al. 2021)": [
            "no graph: a dense encoder learns from passages, too",
            "its second stage, for queries: passages keep their vectors, and there is no teacher",
        ],
    },
    index=["graph of", "in this demo"],
).T
# the same without training, without a graph, or without past queries
COMPARED = [
    (HGAT, GRAPH_MAXSIM),
    (LGRE, BM25),
    (PAIR, DENSE),
    (GNN, MEAN),
    (GNN, NETWORK),
    (INDEX, RIVAL),
]
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pyterrier_graph: the demo</title>
<style>body { max-width: 1000px; margin: auto; font-family: sans-serif; } svg { max-width: 100%; }</style></head>
<body><h1>Graphs over passages, next to their rivals</h1>
"""


def write_page(
    path: Path,
    data: Data,
    systems: Systems,
    runs: Mapping[str, pd.DataFrame],
    values: pd.DataFrame,
    tables: Sequence[pd.DataFrame],
) -> None:
    """Writes the page, which needs no network. ``values`` are the measures per query of all ``runs``."""
    curves = []
    for name in (HGAT, PAIR, NETWORK, GNN):
        losses, _ = plots.training_curves({name: systems.models[name]})
        curves.append(picture(losses))
    means, _ = plots.results(values, MEASURE, names=[*runs], baseline=BM25)
    sections = [
        "<h2>The papers</h2>",
        PAPERS.style.to_html(),
        "<h2>The corpus and its graph</h2>",
        corpus(data),
        "<h2>Results</h2>",
        *[table.to_html() for table in tables],
        f"<p>Of passages, of documents by their best passage, and of {DRAWN} passages drawn at random, one of them "
        f"relevant. + and -: better and worse than {BM25} (paired t-test, Holm-corrected, p &lt; 0.05). Times include "
        "encoding the query.</p>",
        picture(means),
        "<h2>What training adds</h2>",
        comparisons(values).to_html(index=False, float_format="{:.2g}".format),
        *curves,
        "<h2>Which neighbor moved which passage</h2>",
        example(data, systems.models[HGAT], runs[MAXSIM], runs[HGAT]),
        example(data, systems.models[GNN], runs[DENSE], runs[GNN]),
        "<h2>The words that LGRe links</h2>",
        words(data, systems.models[LGRE]),
    ]
    path.write_text("\n".join([PAGE, *sections, "</body></html>"]), encoding="utf-8")


def picture(axes: Axes) -> str:
    """The figure of some axes as SVG."""
    figure: Any = axes.figure
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    plt.close(figure)
    text = file.getvalue()
    return text[text.index("<svg") :]


def corpus(data: Data) -> str:
    """The queries, the number of edges, and the graph of one document."""
    graph = data.index.graph
    edges = {in_words(name): len(graph.edges(name).indices) for name in graph.relations}
    table = pd.Series(edges, name="edges").to_frame()
    docno, _, _ = best_passage(data).rpartition("%p")
    drawing = plots.document_graph(graph, docno, most=14)
    return (
        f"<p>{len(graph):,} docstrings of numpy, each cut after its second passage. A query is the summary line of an "
        f"object, which no docstring contains: {len(data.train.topics)} are past queries and train the models, "
        f"{len(data.dev.topics)} validate, {len(data.test.topics)} test.</p>{table.to_html()}"
        f"{picture(drawing)}"
    )


def best_passage(data: Data) -> str:
    """The most relevant passage of the first test query."""
    qrels = data.test.qrels
    first = data.test.topics["qid"].iloc[0]
    relevant = qrels[qrels["qid"] == first]
    return relevant.loc[relevant["label"].idxmax(), "docno"]


def comparisons(values: pd.DataFrame) -> pd.DataFrame:
    """The difference of each system to its rival, with the p-value of a paired t-test."""
    by_query = values_of(values, MEASURE)  # (systems, queries)
    rows = []
    for name, rival in COMPARED:
        own = by_query.loc[name]
        other = by_query.loc[rival]
        difference = own.mean() - other.mean()
        rows.append((name, rival, difference, ttest_rel(own, other).pvalue))
    return pd.DataFrame(rows, columns=["system", "rival", f"difference of {MEASURE}", "p"])


def example(data: Data, model: Any, before: pd.DataFrame, after: pd.DataFrame) -> str:
    """The explanation of the relevant passage that a model moves up most."""
    qrels = data.test.qrels
    relevant = qrels[qrels["label"] == qrels["label"].max()]
    keys = ["qid", "query", "docno"]
    both = before.merge(after, on=keys, suffixes=("_before", "_after"))
    both = both.merge(relevant, on=["qid", "docno"])
    rank_before = both["rank_before"] + 1
    rank_after = both["rank_after"] + 1
    gain = 1 / rank_after - 1 / rank_before  # of the reciprocal rank
    row = gain.idxmax()
    moved = both.loc[row]
    explanation = explain(model, moved["query"], moved["docno"])
    ranks = f"at rank {rank_before[row]} before, at rank {rank_after[row]} after"
    return f"<p>The relevant passage is {ranks}.</p>{explanation.html}"


def words(data: Data, lgre: Any) -> str:
    """The word graph of the first test query and its best passage."""
    graph = data.index.graph
    query = data.test.topics["query"].iloc[0]
    node = graph.nodes_of([best_passage(data)])
    (text,) = graph.texts(node)
    learned = lgre.word_graph(query, text)
    return picture(plots.word_graph(learned, most=20))
