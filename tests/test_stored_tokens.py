"""Token vectors that rerankers keep in memory: encoded once, shared by models with equal encoders."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.encoders import token_store
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import GraphTokens
from pyterrier_graph.graphs.hetero_graph import HeteroGraph

SMALL = ptg.HGATConfig(layers=1, heads=2)


class Counting(TokenEncoder):
    """An encoder that notes which passages it encodes."""

    def __init__(self, max_passage_tokens: int = 24) -> None:
        options = {"max_passage_tokens": max_passage_tokens, "max_query_tokens": 12}
        super().__init__(tiny.checkpoint(), device="cpu", **options)
        self.encoded: list[str] = []

    def encode_passages(self, texts):  # type: ignore[no-untyped-def]
        self.encoded += texts
        return super().encode_passages(texts)


@pytest.fixture(autouse=True)
def no_vectors_of_other_tests() -> None:
    token_store._shared_matrices.cache_clear()


def run_of(graph: HeteroGraph) -> pd.DataFrame:
    passages = pd.DataFrame({"docno": graph.ids_of(graph.passage_nodes)})
    return passages.merge(tiny.topics(2), how="cross")


def test_each_text_is_encoded_once() -> None:
    graph, encoder, equal, shorter = tiny.graph(), Counting(), Counting(), Counting(5)
    run = run_of(graph)

    def scores(with_encoder: TokenEncoder) -> list[pd.Series]:
        hgat = ptg.HGATReranker(graph, with_encoder, config=SMALL)
        return [model(run)["score"] for model in (ptg.GraphMaxSim(graph, with_encoder), hgat)]

    first = scores(encoder)
    texts = {*graph.texts(graph.passage_nodes)}
    assert len(encoder.encoded) == len({*encoder.encoded}) > len(texts)  # titles, too
    np.testing.assert_array_equal(scores(equal), first)
    assert not equal.encoded
    scores(shorter)
    assert shorter.encoded


def test_workers_encode_what_they_need() -> None:
    graph, encoder = tiny.graph(), Counting()
    tokens = GraphTokens(graph, encoder, titles=False)
    expected = tokens.states(graph.passage_nodes).values
    encoder.encoded.clear()
    copied = pickle.loads(pickle.dumps(tokens))
    np.testing.assert_array_equal(copied.states(graph.passage_nodes).values, expected)
    assert copied.encoder.encoded and not encoder.encoded
