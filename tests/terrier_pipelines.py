"""Checks of pipelines with a graph behind Terrier: operators, rewriting, texts, learning, tuning, experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import AP, RR, nDCG
from terrier_stages import Setting

import pyterrier_graph as ptg

BM25_AP, TOLERANCE = 0.2965, 0.001  # Terrier 5 with its defaults on Vaswani
DOCUMENTS = 10  # of each query that are reranked

CHECKS: dict[str, Callable[[Setting], str | None]] = {}


def check(function: Callable[[Setting], str | None]) -> Callable[[Setting], str | None]:
    """Adds a check, whose name is that of its function. It returns what is worth telling, or raises."""
    CHECKS[function.__name__.replace("_", " ").strip()] = function
    return function


def is_ranking(found: pd.DataFrame, topics: pd.DataFrame) -> None:
    """Raises unless each query has documents with finite scores and ranks, and its own text."""
    assert {"qid", "query", "docno", "score", "rank"} <= {*found.columns}, [*found.columns]
    assert {*found["qid"]} == {*topics["qid"]}, "queries are missing"
    assert np.isfinite(found["score"]).all()
    assert not found.duplicated(["qid", "docno"]).any()
    queries = found.drop_duplicates("qid").set_index("qid")["query"]
    assert queries.to_dict() == topics.set_index("qid")["query"].to_dict(), "the query is not the original one"


# --- the first stage


@check
def bm25_effectiveness(at: Setting) -> str:
    topics = at.collection.topics
    value = at.evaluate(at.stage.bm25(num_results=1000), AP, topics)
    if at.stage.name == "terrier":
        assert abs(value - BM25_AP) <= TOLERANCE, f"AP is {value:.4f}, not {BM25_AP}"
    return f"AP {value:.4f} of {len(topics)} queries"


@check
def rerank_passages(at: Setting) -> str:
    pipeline = at.bm25 % DOCUMENTS >> at.rerank
    is_ranking(pipeline(at.topics), at.topics)
    values = [at.evaluate(one, nDCG @ 10) for one in (at.bm25 % DOCUMENTS, pipeline)]
    return "nDCG@10 {:.3f}, reranked {:.3f}".format(*values)


@check
def hybrid_with_a_dense_index(at: Setting) -> str:
    graph = ptg.DocumentGraph(at.folder / "small.graph").index(at.small.get_corpus_iter(), verbose=False)
    index = ptg.GraphMean(graph, weights={"order": 0.1}, verbose=False).index(at.folder / "documents.flex")
    hybrid = ptg.Hybrid(at.bm25, index.retriever() >> pt.text.max_passage())
    is_ranking(hybrid(at.topics), at.topics)
    return f"nDCG@10 {at.evaluate(hybrid, nDCG @ 10):.3f}"


@check
def retriever_over_passages(at: Setting) -> None:
    """A lexical index of the graph's passages, whose documents are then reranked."""
    stage = type(at.stage)(at.folder / "passages")
    stage.build({"docno": row["docno"], "text": row["text"]} for row in at.graph.get_corpus_iter(verbose=False))
    pipeline = stage.bm25(num_results=DOCUMENTS) >> ptg.GraphMaxSim(at.graph, verbose=False) >> pt.text.max_passage()
    is_ranking(pipeline(at.topics), at.topics)


# --- PyTerrier's operators


def operator(name: str, make: Callable[[Setting, Any, Any], Any], columns: Sequence[str] = ()) -> None:
    """Adds a check of an operator between the first stage and a pipeline with a graph."""

    def run(at: Setting) -> None:
        first = at.bm25 % DOCUMENTS
        found = make(at, first, first >> at.rerank)(at.topics)
        assert {*found["qid"]} == {*at.topics["qid"]} and {*columns} <= {*found.columns}
        if "score" in found:
            assert np.isfinite(found["score"]).all()

    CHECKS[f"operator {name}"] = run


operator(">>", lambda at, first, _: first >> (at.rerank % 5))
operator("%", lambda _, first, graph: graph % 3)
operator("+", lambda _, first, graph: first + graph)
operator("*", lambda _, first, graph: 0.5 * graph + first * 2.0)
operator("|", lambda _, first, graph: first | graph)
operator("&", lambda _, first, graph: first & graph)
operator("^", lambda at, first, graph: (graph % 3) ^ at.stage.second() % DOCUMENTS)
operator("**", lambda at, first, graph: first >> (at.rerank ** at.stage.scorer()), ["features"])


# --- rewriting


def rewritten(at: Setting, pipeline: pt.Transformer) -> str:
    """Reranks what a rewritten query finds, with the query that was asked."""
    found = (pipeline >> pt.rewrite.reset())(at.topics)
    is_ranking(found, at.topics)
    reranked = pipeline % DOCUMENTS >> pt.rewrite.reset() >> at.rerank
    is_ranking(reranked(at.topics), at.topics)
    return f"nDCG@10 {at.evaluate(reranked, nDCG @ 10):.3f}"


@check
def rewrite_RM3(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, at.bm25 >> pt.rewrite.RM3(at.stage.index) >> at.bm25)


@check
def rewrite_Bo1(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, at.bm25 >> pt.rewrite.Bo1QueryExpansion(at.stage.index) >> at.bm25)


@check
def rewrite_SDM(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, pt.rewrite.SDM() >> at.bm25)


@check
def reset_restores_the_query(at: Setting) -> None:
    """Also without Terrier: any rewriting, its retrieval, and the original query for the graph."""

    def longer(row: Any) -> str:
        return f"{row['query']} system"

    is_ranking((pt.apply.query(longer) >> at.bm25 % DOCUMENTS >> pt.rewrite.reset() >> at.rerank)(at.topics), at.topics)


# --- texts


@check
def text_get_text_sliding_max_passage(at: Setting) -> None:
    passages: Any = (at.bm25 % DOCUMENTS >> at.texts >> at.windows)(at.topics)
    assert passages["docno"].str.contains("%p").all()
    is_ranking((at.bm25 % DOCUMENTS >> at.texts >> at.windows >> pt.text.max_passage())(at.topics), at.topics)


@check
def text_of_the_graph(at: Setting) -> None:
    found: Any = (at.bm25 % DOCUMENTS >> at.graph.passages() >> pt.text.get_text(at.graph, ["text"]))(at.topics)
    assert found["text"].str.len().gt(0).all()


@check
def text_snippets(at: Setting) -> None:
    found: Any = (at.bm25 % 3 >> at.texts >> pt.text.snippets(at.windows, num_psgs=1))(at.topics.head(2))
    assert found["summary"].str.len().gt(0).all()
    assert all(summary in text for summary, text in zip(found["summary"], found["text"], strict=True))


@check
def text_scorer(at: Setting) -> None:
    """Passages that Terrier scores beside the graph's scores."""
    at.terrier()
    windows = pt.text.sliding(text_attr="text", length=40, stride=20, prepend_attr=None)
    scorer = windows >> pt.text.scorer(body_attr="text", wmodel="BM25", background_index=at.stage.index)
    is_ranking((at.bm25 % DOCUMENTS >> at.texts >> scorer >> pt.text.max_passage())(at.topics), at.topics)


# --- learning, tuning, experiments


@check
def features_of_the_index(at: Setting) -> None:
    """Terrier's own features, and those of ``**``, in one learned pipeline."""
    at.terrier()
    terrier = pt.terrier.FeaturesRetriever(at.stage.index, ["WMODEL:TF_IDF", "WMODEL:DPH"], wmodel="BM25")
    found: Any = (terrier % DOCUMENTS)(at.topics)
    assert {len(features) for features in found["features"]} == {2}
    learned(
        at,
        at.bm25 % DOCUMENTS >> (at.rerank ** at.stage.scorer() ** pt.terrier.Retriever(at.stage.index, wmodel="DPH")),
    )


@check
def learning_to_rank(at: Setting) -> None:
    learned(at, at.bm25 % DOCUMENTS >> (at.rerank ** at.stage.scorer()))


def learned(at: Setting, features: pt.Transformer) -> None:
    """Trains a forest on features."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(n_estimators=10, random_state=0)
    pipeline: Any = features >> pt.ltr.apply_learned_model(model)
    pipeline.fit(at.topics, at.qrels)
    is_ranking(pipeline(at.topics), at.topics)


@check
def grid_search_over_weights(at: Setting) -> str:
    maxsim = ptg.GraphMaxSim(at.graph, verbose=False)
    pipeline = at.bm25 % DOCUMENTS >> at.graph.passages() >> maxsim >> pt.text.max_passage()
    parameters: Any = {maxsim: {"weights": [{}, {"order": 0.5, "order_i": 0.5}]}}
    options: Any = {"verbose": False, "return_type": "best_setting"}
    value, found = pt.GridSearch(pipeline, parameters, at.topics, at.qrels, "map", **options)
    assert found[0][0] is maxsim and found[0][2] in parameters[maxsim]["weights"]
    return f"weights {found[0][2]}, map {value:.3f}"


@check
def experiment_as_a_tree(at: Setting) -> None:
    """Systems that share their first steps have the same values as one by one."""
    first = at.bm25 % DOCUMENTS
    systems = [first, first >> at.rerank, first >> at.texts >> at.windows >> pt.text.max_passage()]
    measures, names = [nDCG @ 10, RR @ 10, AP], ["BM25", "graph", "windows"]
    options: Any = {"names": names, "filter_by_qrels": True}
    one_by_one, tree = (
        pt.Experiment(systems, at.topics, at.qrels, measures, plan=plan, **options) for plan in ("linear", "tree")
    )
    pd.testing.assert_frame_equal(one_by_one, tree)
