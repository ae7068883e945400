"""The corpus, the queries and the systems of the demo."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import PASSAGE
from pyterrier_graph.encoders.names import DEFAULT, resolve
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.gnn_encoder.encoder import GNNEncoder
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graph_mean.graph_mean import GraphMean
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.judgments import documents_of
from pyterrier_graph.hgat.reranker import HGATReranker
from pyterrier_graph.lgre.reranker import LGReReranker
from pyterrier_graph.lgre.training import LGReTraining
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.hybrid import Hybrid
from pyterrier_graph.search.retrievers import BM25Retriever
from pyterrier_graph.search.versions import ENCODED

CORPUS = "irds:pyterrier-graph/numpydoc/numpy"
LEFT_OUT = ("numpy.ma.", "numpy.polynomial.")  # whose docstrings repeat one another
PASSAGES = 3  # of each docstring
PASSAGE_TOKENS, PAIR_TOKENS = 96, 64
DIMENSIONS = 128  # of a token vector, as late-interaction models have
FOUND, RERANKED = 10, 10  # documents whose passages HGAT reranks; passages that LGRe reranks
DEV_QUERIES = 30  # of LGRe

BM25, DENSE, MAXSIM, GRAPH_MAXSIM = "BM25", "dense", "BM25 >> MaxSim", "BM25 >> GraphMaxSim"
HGAT, LGRE, MEAN, NETWORK = "BM25 >> HGAT", "BM25 >> LGRe", "GraphMean", "network without edges"
GNN, RIVAL, INDEX = "GNNEncoder", "BM25 + dense", "GraphIndex"
# what each trained model is compared with: the same without training, or without a graph
RIVALS = {HGAT: GRAPH_MAXSIM, GNN: MEAN, LGRE: BM25, INDEX: RIVAL}


@dataclass(frozen=True)
class Queries:
    """Queries, and judgments of passages."""

    topics: pd.DataFrame
    qrels: pd.DataFrame

    @property
    def document_qrels(self) -> pd.DataFrame:
        """Judgments of documents: a document has the highest label of its passages."""
        documents = self.qrels.assign(docno=documents_of(self.qrels["docno"]))
        return documents.groupby(["qid", "docno"], as_index=False)["label"].max()


@dataclass(frozen=True)
class Data:
    """The data that all systems share."""

    docs: list[dict[str, Any]]
    index: GraphIndex  # with the training queries as past queries
    train: Queries
    dev: Queries
    test: Queries


@dataclass
class Systems:
    """The systems by name, which rank passages, and the models that were trained."""

    pipelines: dict[str, pt.Transformer] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    cards: dict[str, pt.Transformer] = field(default_factory=dict)  # pipelines that rank documents


def prepare(output: Path) -> Data:
    """Reads the corpus and its queries, and makes the index, or finds it in ``output``."""
    docs = [
        beginning(doc)
        for doc in pt.get_dataset(CORPUS).get_corpus_iter(verbose=False)
        if not doc["docno"].startswith(LEFT_OUT)
    ]
    train, dev, test = (queries(part, docs) for part in ("train", "dev", "test"))
    index = GraphIndex(output / "index", encoder=DualEncoder(max_passage_tokens=PASSAGE_TOKENS))
    if not index.built():
        index.index(docs, answered=(train.topics, train.qrels))
    return Data(docs, index, train, dev, test)


def beginning(doc: Mapping[str, Any]) -> dict[str, Any]:
    """A document that ends with its third passage."""
    passages = [number for number, node in enumerate(doc["nodes"]) if node.kind == PASSAGE]
    end = passages[:PASSAGES][-1] + 1 if passages else len(doc["nodes"])
    nodes = doc["nodes"][:end]
    links = [link for link in doc["links"] if link.source < end and link.target < end]
    references = [reference for reference in doc["references"] if reference.source < end]
    text = "\n\n".join(node.text for node in nodes if node.kind == PASSAGE)
    new = {"text": text, "nodes": nodes, "links": links, "references": references}
    return {**doc, **new}


def queries(part: str, docs: Sequence[Mapping[str, Any]]) -> Queries:
    """The queries of a part of the data set whose answers are in the corpus."""
    dataset = pt.get_dataset(f"{CORPUS}/{part}")
    topics, qrels = dataset.get_topics(), dataset.get_qrels()
    ids = [
        f"{doc['docno']}%p{number}"
        for doc in docs
        for number in range(sum(node.kind == PASSAGE for node in doc["nodes"]))
    ]
    qrels = qrels[qrels["docno"].isin(ids)].reset_index(drop=True)
    return Queries(topics[topics["qid"].isin(qrels["qid"])].reset_index(drop=True), qrels)


def build_systems(data: Data, output: Path) -> Systems:
    """Makes and trains all systems."""
    systems = Systems()
    add_rerankers(systems, data, output)
    add_retrievers(systems, data, output)
    order = (BM25, MAXSIM, GRAPH_MAXSIM, HGAT, LGRE, DENSE, MEAN, NETWORK, GNN, RIVAL, INDEX)
    systems.pipelines = {name: systems.pipelines[name] for name in order}
    return systems


def add_rerankers(systems: Systems, data: Data, output: Path) -> None:
    """BM25, MaxSim, GraphMaxSim, HGAT and LGRe."""
    graph, train, dev = data.index.graph, data.train, data.dev
    documents = {doc["docno"]: f"{doc['title']}\n{doc['text']}" for doc in data.docs}
    nodes = graph.passage_nodes
    passages = dict(zip(graph.ids_of(nodes), graph.texts(nodes, titles=True), strict=True))
    bm25 = lexical(output / "passages.bm25", passages)
    find = lexical(output / "documents.bm25", documents) % FOUND >> graph.passages()
    systems.pipelines[BM25] = bm25
    systems.cards[BM25] = lexical(output / "documents.bm25", documents)

    encoder = reduced_encoder(graph)
    tokens = TokenStore(output / "tokens")
    if not tokens.built():
        tokens.build(graph, encoder, titles=True)
    shared: dict[str, Any] = {"tokens": tokens, "verbose": False}
    models: dict[str, Any] = {
        MAXSIM: GraphMaxSim(graph, encoder, {}, **shared),
        GRAPH_MAXSIM: GraphMaxSim(graph, encoder, **shared),
        HGAT: HGATReranker(graph, encoder, **shared),
    }
    for name, model in models.items():
        pipeline: Any = find >> model
        if name != MAXSIM:
            report(f"training {name}")
            pipeline.fit(train.topics, train.qrels, dev.topics, dev.qrels)
        systems.pipelines[name] = pipeline
        systems.cards[name] = pipeline >> pt.text.max_passage()

    training = LGReTraining(learning_rate=1e-3, encoder_learning_rate=1e-4)
    models[LGRE] = LGReReranker(
        cross_encoder(), training=training, max_tokens=PAIR_TOKENS, verbose=False
    )
    pipeline = bm25 % RERANKED >> graph.text_loader() >> models[LGRE]
    report(f"training {LGRE}")
    pipeline.fit(train.topics, train.qrels, dev.topics.head(DEV_QUERIES), dev.qrels)
    systems.pipelines[LGRE] = pipeline
    systems.models |= models


def add_retrievers(systems: Systems, data: Data, output: Path) -> None:
    """The dense retriever, GraphMean, GNNEncoder with and without edges, and the hybrids."""
    index, train, dev = data.index, data.train, data.dev
    assert index.version is not None
    shared: dict[str, Any] = {"query_graph": index.version.queries, "folder": index.path / ENCODED}
    shared["verbose"] = False
    encoder: Any = index.bi_encoder
    encoder.verbose = False
    vectors = base_vectors(shared["folder"], index.graph, encoder, titles=True)
    dense = encoder.query_encoder() >> vectors.flex.np_retriever(drop_query_vec=True)
    systems.pipelines[DENSE] = dense
    models: dict[str, Any] = {
        MEAN: GraphMean(index.graph, encoder, **shared),
        NETWORK: GNNEncoder(index.graph, encoder, config=GNNEncoderConfig(edges=False), **shared),
        GNN: GNNEncoder(index.graph, encoder, **shared),
    }
    for name, model in models.items():
        if name != MEAN:
            report(f"training {name}")
            model.fit(train.topics, train.qrels, dev.topics, dev.qrels)
        path = fresh(output / f"{name.replace(' ', '-')}.flex")
        systems.pipelines[name] = model.index(path).retriever(1000)
    systems.pipelines[RIVAL] = Hybrid(index.bm25(), dense)
    systems.pipelines[INDEX] = index.hybrid()
    systems.models |= models


def report(step: str) -> None:
    """Says what takes time now."""
    print(f"{time.strftime('%X')} {step}", flush=True)


def lexical(path: Path, texts: Mapping[str, str]) -> BM25Retriever:
    """BM25 over texts by id."""
    return BM25Retriever(BM25Index.build(fresh(path), texts.values()), [*texts])


def cross_encoder() -> str:
    """The checkpoint that LGRe starts at: an encoder of sentences, since no cross-encoder is installed."""
    return resolve(DEFAULT)


def reduced_encoder(graph: DocumentGraph) -> TokenEncoder:
    """The token vectors of all-MiniLM-L6-v2, reduced to the length that late-interaction models have."""
    encoder = TokenEncoder(max_passage_tokens=PASSAGE_TOKENS, dtype="auto")
    return encoder.reduced(graph.texts(graph.passage_nodes[::8]), DIMENSIONS)


def fresh(path: Path) -> Path:
    """A path without the results of an earlier run, which are deleted."""
    shutil.rmtree(path, ignore_errors=True)
    return path
