"""The corpus, the queries and the systems of the demo."""

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from transformers import AutoModel, AutoTokenizer

from pyterrier_graph.checks import QualityWarning
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
from pyterrier_graph.graphs.memory_graph import Ids
from pyterrier_graph.hgat.reranker import HGATReranker
from pyterrier_graph.lgre.reranker import LGReReranker
from pyterrier_graph.lgre.training import LGReTraining
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.pair.mining import HardNegativeMiner
from pyterrier_graph.pair.training import DualEncoderTraining
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.hybrid import Hybrid
from pyterrier_graph.search.retrievers import BM25Retriever
from pyterrier_graph.search.versions import ENCODED

CORPUS = "irds:pyterrier-graph/numpydoc/numpy"
LEFT_OUT = ("numpy.char.", "numpy.ma.", "numpy.matrix.", "numpy.polynomial.")  # repeat others
PASSAGES = 2  # of each docstring
PASSAGE_TOKENS, PAIR_TOKENS = 96, 48
DIMENSIONS = 128  # of a token vector, as late-interaction models have
FOUND, RERANKED = 10, 5  # documents whose passages HGAT reranks; passages that LGRe reranks
DRAWN = 10  # passages per query that LGRe learns from: a relevant one, and others drawn at random
LGRE_LAYERS = 3  # of the encoder's six
LGRE_TEST = 50  # queries that test LGRe on drawn passages

BM25, DENSE, MAXSIM, GRAPH_MAXSIM = "BM25", "dense", "BM25 >> MaxSim", "BM25 >> GraphMaxSim"
HGAT, LGRE, PAIR, MEAN = "BM25 >> HGAT", "BM25 >> LGRe", "PAIR", "GraphMean"
NETWORK, GNN, RIVAL, INDEX = "network without edges", "GNNEncoder", "BM25 + dense", "GraphIndex"
UNTRAINED, TRAINED = "LGRe before training", "LGRe"  # on passages drawn at random
# what each trained model is compared with: the same without training, or without a graph
RIVALS = {HGAT: GRAPH_MAXSIM, GNN: MEAN, PAIR: DENSE, LGRE: BM25, INDEX: RIVAL}


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
    documents: Any = None  # BM25 over documents
    drawn: dict[str, pd.DataFrame] = field(default_factory=dict)  # runs on passages drawn at random


def prepare(output: Path) -> Data:
    """Reads the corpus and its queries, and makes the index, or finds it in ``output``."""
    corpus = pt.get_dataset(CORPUS).get_corpus_iter(verbose=False)
    docs = [beginning(doc) for doc in corpus if not doc["docno"].startswith(LEFT_OUT)]
    train, dev, test = (queries(split, docs) for split in ("train", "dev", "test"))
    index = GraphIndex(output / "index", encoder=DualEncoder(max_passage_tokens=PASSAGE_TOKENS))
    if not index.built():
        index.index(docs, answered=(train.topics, train.qrels))
    return Data(docs, index, train, dev, test)


def beginning(doc: Mapping[str, Any]) -> dict[str, Any]:
    """A document that ends with its second passage."""
    passages = [number for number, node in enumerate(doc["nodes"]) if node.kind == PASSAGE]
    end = passages[:PASSAGES][-1] + 1 if passages else len(doc["nodes"])
    nodes = doc["nodes"][:end]
    links = [link for link in doc["links"] if link.source < end and link.target < end]
    references = [reference for reference in doc["references"] if reference.source < end]
    text = "\n\n".join(node.text for node in nodes if node.kind == PASSAGE)
    new = {"text": text, "nodes": nodes, "links": links, "references": references}
    return {**doc, **new}


def queries(split: str, docs: Sequence[Mapping[str, Any]]) -> Queries:
    """The queries of a split of the dataset whose answers are in the corpus."""
    dataset = pt.get_dataset(f"{CORPUS}/{split}")
    topics, qrels = dataset.get_topics(), dataset.get_qrels()
    ids = [
        f"{doc['docno']}%p{number}"
        for doc in docs
        for number in range(sum(node.kind == PASSAGE for node in doc["nodes"]))
    ]
    qrels = qrels[qrels["docno"].isin(ids)].reset_index(drop=True)
    topics = topics[topics["qid"].isin(qrels["qid"])].reset_index(drop=True)
    return Queries(topics, qrels)


def build_systems(data: Data, output: Path) -> Systems:
    """Makes and trains all systems."""
    systems = Systems()
    add_rerankers(systems, data, output)
    add_lgre(systems, data, output)
    add_retrievers(systems, data, output)
    order = (BM25, MAXSIM, GRAPH_MAXSIM, HGAT, LGRE, DENSE, PAIR, MEAN, NETWORK, GNN, RIVAL, INDEX)
    systems.pipelines = {name: systems.pipelines[name] for name in order}
    return systems


def add_rerankers(systems: Systems, data: Data, output: Path) -> None:
    """BM25, MaxSim, GraphMaxSim and HGAT."""
    graph, train, dev = data.index.graph, data.train, data.dev
    documents = {doc["docno"]: f"{doc['title']}\n{doc['text']}" for doc in data.docs}
    systems.documents = lexical(output / "documents.bm25", documents)
    systems.pipelines[BM25] = lexical(output / "passages.bm25", titled(graph))
    find = systems.documents % FOUND >> graph.passages()

    encoder = reduced_encoder(graph)
    tokens = TokenStore(output / "tokens", verbose=False)
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
    systems.models |= models


def add_lgre(systems: Systems, data: Data, output: Path) -> None:
    """LGRe, trained on passages drawn at random, which are easier to tell apart than BM25's best ones."""
    texts = titled(data.index.graph)
    loader = pt.apply.text(lambda row: texts[row["docno"]])
    training = LGReTraining(
        epochs=1,
        pairs_per_epoch=384,
        learning_rate=1e-3,
        encoder_learning_rate=2e-4,
    )
    model = LGReReranker(
        shallow_encoder(output / "lgre-start"),
        training=training,
        max_tokens=PAIR_TOKENS,
        verbose=False,
    )
    test = loader(drawn(data, Queries(data.test.topics.head(LGRE_TEST), data.test.qrels)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QualityWarning)  # it is not trained yet
        systems.drawn[UNTRAINED] = model(test)
    report(f"training {LGRE}")
    model.fit(loader(drawn(data, data.train)), data.train.qrels)
    systems.drawn[TRAINED] = model(test)
    systems.drawn[BM25] = scored_by(systems.pipelines[BM25], test)
    systems.pipelines[LGRE] = systems.pipelines[BM25] % RERANKED >> loader >> model
    systems.models[LGRE] = model


def drawn(data: Data, queries: Queries) -> pd.DataFrame:
    """A passage with the highest label for each query, and others drawn at random: ``qid, query, docno``."""
    graph = data.index.graph
    random = np.random.default_rng(0)
    best = queries.qrels.sort_values("label", kind="stable").drop_duplicates("qid", keep="last")
    count = min(DRAWN, len(graph.passage_nodes)) - 1
    others = [
        graph.ids_of(random.choice(graph.passage_nodes, count, replace=False)) for _ in best["qid"]
    ]
    others = best[["qid"]].assign(docno=others).explode("docno")
    rows = pd.concat([best[["qid", "docno"]], others]).drop_duplicates()
    return rows.merge(queries.topics, on="qid")


def scored_by(retriever: Any, run: pd.DataFrame) -> pd.DataFrame:
    """A run with the scores of a retriever; passages that it does not find have 0."""
    topics = run[["qid", "query"]].drop_duplicates()
    scores = retriever(topics)[["qid", "docno", "score"]]
    scored = run[["qid", "query", "docno"]].merge(scores, how="left", on=["qid", "docno"])
    return pt.model.add_ranks(scored.fillna({"score": 0.0}))


def add_retrievers(systems: Systems, data: Data, output: Path) -> None:
    """The dense retriever, PAIR, GraphMean, GNNEncoder with and without edges, and the hybrids."""
    index, train, dev = data.index, data.train, data.dev
    shared: dict[str, Any] = {
        "query_graph": index.version.queries,
        "folder": index.path / ENCODED,
        "verbose": False,
    }
    encoder: Any = index.bi_encoder
    encoder.verbose = False
    vectors = base_vectors(shared["folder"], index.graph, encoder, titles=True).flex
    search = vectors.np_retriever(drop_query_vec=True)
    systems.pipelines[DENSE] = dense = encoder.query_encoder() >> search
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
        systems.pipelines[name] = model.index(path).retriever(100)
    report(f"training {PAIR}")
    models[PAIR] = pair(data, systems.pipelines[BM25], encoder, vectors)
    systems.pipelines[PAIR] = models[PAIR].query_encoder() >> search
    systems.pipelines[RIVAL] = Hybrid(index.bm25(), dense)
    systems.pipelines[INDEX] = index.hybrid()
    systems.models |= models


def pair(data: Data, bm25: pt.Transformer, encoder: DualEncoder, vectors: Any) -> DualEncoder:
    """The second stage of PAIR, for queries only: the vectors of passages stay, so that none is encoded again."""
    miner = HardNegativeMiner(bm25, data.index.graph.text_loader(), verbose=False)
    examples = miner.labeled(data.train.topics, data.train.qrels)
    training = DualEncoderTraining(epochs=1, batch_size=16, learning_rate=1e-4)
    model = encoder.apply_attributes(training=training)
    return model.fit_query_encoder(vectors, examples, data.dev.topics, data.dev.qrels)


def titled(graph: DocumentGraph) -> dict[str, str]:
    """The text of each passage by its id, with its titles in front."""
    nodes = graph.passage_nodes
    return dict(zip(graph.ids_of(nodes), graph.texts(nodes, titles=True), strict=True))


def report(step: str) -> None:
    """Says what takes time now."""
    print(f"{time.strftime('%X')} {step}", flush=True)


def lexical(path: Path, texts: Mapping[str, str]) -> BM25Retriever:
    """BM25 over texts by id."""
    return BM25Retriever(BM25Index.build(fresh(path), texts.values()), Ids([*texts]))


def shallow_encoder(path: Path) -> str:
    """The first layers of all-MiniLM-L6-v2: no cross-encoder is installed, and fewer layers learn faster."""
    name = resolve(DEFAULT)
    AutoModel.from_pretrained(name, num_hidden_layers=LGRE_LAYERS).save_pretrained(path)
    AutoTokenizer.from_pretrained(name).save_pretrained(path)
    return str(path)


def reduced_encoder(graph: DocumentGraph) -> TokenEncoder:
    """The token vectors of all-MiniLM-L6-v2, reduced to the length that late-interaction models have."""
    encoder = TokenEncoder(max_passage_tokens=PASSAGE_TOKENS, dtype="auto")
    return encoder.reduced(graph.texts(graph.passage_nodes[::16]), DIMENSIONS)


def fresh(path: Path) -> Path:
    """A path without the results of an earlier run, which are deleted."""
    shutil.rmtree(path, ignore_errors=True)
    return path
