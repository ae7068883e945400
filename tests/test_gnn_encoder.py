"""GNNEncoder and MeanQueries: from a dual-encoder's index to a fused one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import torch
from pyterrier_dr import FlexIndex
from tiny import WORDS, checkpoint

from pyterrier_graph.dense.dual_encoder import DualEncoder
from pyterrier_graph.dense.gnn_encoder import GNNEncoder
from pyterrier_graph.dense.masked_graph import GNNEncoderTraining, LossQueries
from pyterrier_graph.dense.mean_queries import MeanQueries
from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig, TypedGNNEncoderConfig

COUNT = 24
TINY = 16


def words(number: int) -> str:
    return f"{WORDS[number % 12]} {WORDS[(number * 5 + number // 12) % 12]} {WORDS[(number * 7 + 3) % 12]}"


def document(number: int) -> StructuredDocument:
    nodes = (Node("section", WORDS[number % 12], -1), *(Node("passage", words(4 * number + n), 0) for n in range(4)))
    return StructuredDocument(f"d{number}", nodes)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """24 passages of 6 documents, two queries for each passage."""
    folder = tmp_path_factory.mktemp("gnn")
    encoder = DualEncoder(checkpoint(), device="cpu", max_query_length=12, max_passage_length=24)
    documents = MemoryGraph.from_documents([document(number) for number in range(6)])
    docnos = [str(name) for name in documents.ids_of(documents.passage_nodes)]
    texts = dict(zip(docnos, documents.texts(documents.passage_nodes), strict=True))
    index = FlexIndex(str(folder / "base.flex"), verbose=False)
    (encoder.doc_encoder() >> index).index({"docno": name, "text": text} for name, text in texts.items())
    rows = [(f"q{n}", " ".join(words(n % COUNT).split()[: 1 + n // COUNT])) for n in range(2 * COUNT)]
    topics = pd.DataFrame(rows, columns=["qid", "query"])
    qrels = pd.DataFrame({"qid": topics["qid"], "docno": [docnos[n % COUNT] for n in range(2 * COUNT)], "label": 1})
    retriever = encoder.query_encoder() >> index.np_retriever()
    graph = QueryPassageGraph(folder / "graph").build(topics[:40], retriever, index, k=5, qrels=qrels, verbose=False)
    load = pt.apply.generic(lambda frame: frame.assign(text=frame["docno"].map(texts)))
    return SimpleNamespace(**locals())


def gnn(small: SimpleNamespace, network: object = None, **options: object) -> GNNEncoder:
    training = GNNEncoderTraining(epochs=3, batch_size=8, masked=0.2, negatives=2)
    options = {"training": training, "device": "cpu"} | options
    return GNNEncoder(small.encoder, small.index, small.graph, network, **options)


@pytest.mark.parametrize("network", [None, GNNEncoderConfig(TINY), GNNEncoderConfig(TINY, layers=1, heads=2)])
def test_from_a_dual_encoder_to_a_fused_index(small: SimpleNamespace, tmp_path: Path, network: object) -> None:
    model = gnn(small, network)
    before = [parameter.clone() for parameter in model.network.parameters()]
    model.fit(small.topics, small.qrels, small.topics[40:], small.qrels)
    assert (
        any(not torch.equal(a, b) for a, b in zip(before, model.network.parameters(), strict=True)) or network is None
    )
    assert [entry for entry in model.training_log if "loss" in entry]
    fused = model.fuse(small.index, FlexIndex(str(tmp_path / "fused.flex"), verbose=False), passages_at_once=7)
    vectors = fused.payload(return_docnos=False)[0]
    np.testing.assert_allclose(vectors, model.vectors(small.docnos), atol=1e-5)
    assert not np.allclose(vectors, small.index.payload(return_docnos=False)[0], atol=1e-3)
    found = (model.query_encoder() >> fused.np_retriever(num_results=3))(small.topics[:2])
    assert len(found) == 6
    loaded = GNNEncoder.load(
        model.save(tmp_path / "model").path, encoder=small.encoder, index=small.index, queries=small.graph
    )
    np.testing.assert_array_equal(loaded.vectors(small.docnos), model.vectors(small.docnos))
