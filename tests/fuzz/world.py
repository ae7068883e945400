"""Small objects of every kind that the targets share; each is made when it is first used."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import tiny
from pyterrier_dr import FlexIndex
from sentence_transformers import SentenceTransformer
from test_dual_encoder import dual, miner
from test_gnn_encoder import QUICK, features
from test_hgat_reranker import hgat
from test_lgre_reranker import cross_encoder, lgre

import pyterrier_graph as ptg
from pyterrier_graph.patents import DocumentFrequencies

SentenceTransformer._create_model_card = lambda *_, **__: None  # type: ignore[method-assign]  # takes long

TEXTS = tiny.run().assign(text=lambda run: "alpha " + run["docno"].str[1], title="beta")
JUDGED_TEXTS = tiny.qrels()
ONE = {"epochs": 1, "batch_size": 64}


@cache
def folder() -> Path:
    """Where artifacts are."""
    return Path(tempfile.mkdtemp(prefix="world-"))


@cache
def graph() -> ptg.DocumentGraph:
    """A graph on disk."""
    return ptg.DocumentGraph(folder() / "graph").index(tiny.documents(), verbose=False)


@cache
def own_ids() -> Any:
    """A graph whose passages have ids of their own."""
    from pyterrier_graph.documents import Node, StructuredDocument
    from pyterrier_graph.graphs import MemoryGraph

    nodes = (Node("section", "alpha", -1), Node("passage", "beta", 0), Node("passage", "gamma", 0))
    return MemoryGraph.from_documents(
        [StructuredDocument(f"d{n}", nodes, passage_ids=(f"x{n}", f"y{n}"), codes=("A01B",)) for n in range(6)]
    )


@cache
def encoder() -> Any:
    """A bi-encoder."""
    from test_dual_encoder import checkpoint

    from pyterrier_graph.retrieve.dual_encoder import DualEncoder

    return DualEncoder(checkpoint(), device="cpu", max_query_tokens=12, max_passage_tokens=24, verbose=False)


@cache
def flex() -> FlexIndex:
    """The passages' vectors."""
    index = FlexIndex(str(folder() / "base.flex"), verbose=False)
    nodes = graph().passage_nodes
    records = zip(graph().ids_of(nodes), graph().texts(nodes), strict=True)
    (encoder().doc_encoder() >> index).index({"docno": docno, "text": text} for docno, text in records)
    return index


@cache
def query_graph() -> ptg.QueryPassageGraph:
    """Queries with their passages."""
    retriever = encoder().query_encoder() >> flex().np_retriever()
    made = ptg.QueryPassageGraph(folder() / "queries")
    made = made.build(tiny.topics(), flex(), retriever, k=3, qrels=tiny.qrels(), verbose=False)
    return made.add_edge_features(features, pt.apply.generic(lambda run: run.assign(text="alpha")), verbose=False)


@cache
def tokens() -> ptg.TokenStore:
    """Token vectors of the graph."""
    return ptg.TokenStore(folder() / "tokens").build(graph(), tiny.encoder(), verbose=False)


@cache
def contextual() -> ptg.ContextualIndex:
    """A contextual index with weights per query."""
    model = ptg.GraphMean(graph(), encoder(), vectors=flex(), device="cpu", verbose=False)
    return model.index(folder() / "contextual.flex")


@cache
def frequencies() -> DocumentFrequencies:
    """Document frequencies."""
    corpus = [{"docno": "1", "language": "EN", "text": "The laser of the cutter"}]
    return DocumentFrequencies(folder() / "frequencies").index(corpus, verbose=False)


@cache
def reranker(name: str) -> Any:
    """A small reranker by name."""
    makers: dict[str, Any] = {
        "maxsim": lambda: ptg.GraphMaxSim(graph(), tiny.encoder(), {"title": 1.0, "order": 0.5}, verbose=False),
        "maxsim-all": lambda: ptg.GraphMaxSim(
            graph(),
            tiny.encoder(),
            {"title": 1.0},
            tokens=tokens(),
            token_weights="idf",
            skip_tokens=True,
            first_stage=0.5,
            verbose=False,
        ),
        "maxsim-candidates": lambda: ptg.GraphMaxSim(None, tiny.encoder(), {"title": 1.0}, verbose=False),
        "hgat": lambda: hgat(graph(), training=ONE),
        "hgat-candidates": lambda: hgat(None, training=ONE | {"negatives": "candidates"}),
        "lgre": lambda: lgre(training=ONE),
        "cross-encoder": lambda: ptg.CrossEncoderReranker(
            cross_encoder(),
            training=ptg.CrossEncoderTraining(**ONE, pairs_per_epoch=8),
            max_tokens=64,
            device="cpu",
            verbose=False,
        ),
        "dual": lambda: dual(training=ONE),
        "evidence": lambda: ptg.DocumentEvidence(),
        "evidence-own-ids": lambda: ptg.DocumentEvidence(graph=own_ids()),
        "gnn": lambda: ptg.GNNEncoder(
            None,
            encoder(),
            query_graph=query_graph(),
            vectors=flex(),
            weights={"relevant": 0.5},
            training=ptg.GNNEncoderTraining(**QUICK | ONE),
            device="cpu",
            verbose=False,
        ),
        "mean": lambda: ptg.GraphMean(
            None, encoder(), "auto", query_graph=query_graph(), vectors=flex(), device="cpu", verbose=False
        ),
        "mining": lambda: miner(teacher=pt.apply.doc_score(lambda row: 0.05 + 0.9 * (row["docno"][0] == "d"))),
    }
    return makers[name]()


def candidates() -> pd.DataFrame:
    """A run with a graph for each query."""
    return ptg.CandidateGraph(verbose=False)(TEXTS[TEXTS["qid"].isin(["t0", "t1"])])


def patents() -> pd.DataFrame:
    """Topics and results of the search for prior art."""
    topic = {
        "qid": "t1",
        "query": "A cutter with the laser",
        "text": "A cutter with the laser.",
        "abstract": "The cutter has the laser.",
        "language": "EN",
        "document": "EP-1000001-A1",
        "family": ("WO-2000000001-A1",),
        "codes": ("A01B", "A01B1/00"),
    }
    rows = [topic | {"docno": f"d{n}", "score": 5.0 - n, "rank": n} for n in range(4)]
    return pd.DataFrame(rows)


def vectors(count: int = 4) -> pd.DataFrame:
    """Queries with vectors."""
    return tiny.topics(count).assign(query_vec=[*np.eye(count, 16, dtype=np.float32)])
