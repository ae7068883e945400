"""The corpus, the queries and the systems of the demo."""

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
from transformers import AutoModel, AutoTokenizer

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.documents.document import PASSAGE, passage_id
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
INDEXES = "indexes"  # folder of all indexes and models in the output
LEFT_OUT = ("numpy.char.", "numpy.ma.", "numpy.matrix.", "numpy.polynomial.")  # repeat others
PASSAGES = 2  # of each docstring
PASSAGE_TOKENS = 96
PAIR_TOKENS = 48
DIMENSIONS = 128  # of a token vector, as late-interaction models have
HGAT_DOCUMENTS = 10  # whose passages HGAT reranks
LGRE_PASSAGES = 5  # that LGRe reranks
DRAWN = 10  # passages per query that LGRe learns from: a relevant one, and the rest drawn at random
LGRE_LAYERS = 3  # of the encoder's six
LGRE_TEST = 50  # queries that test LGRe on drawn passages

# names of systems
BM25 = "BM25"
DENSE = "dense"
MAXSIM = "BM25 >> MaxSim"
GRAPH_MAXSIM = "BM25 >> GraphMaxSim"
HGAT = "BM25 >> HGAT"
LGRE = "BM25 >> LGRe"
PAIR = "PAIR"
MEAN = "GraphMean"
NETWORK = "network without edges"
GNN = "GNNEncoder"
RIVAL = "BM25 + dense"
INDEX = "GraphIndex"
# and on passages drawn at random
UNTRAINED = "LGRe before training"
TRAINED = "LGRe"


class Queries(NamedTuple):
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

    documents: pt.Transformer  # BM25 over documents
    pipelines: dict[str, pt.Transformer]
    models: dict[str, Any] = field(default_factory=dict)
    drawn: dict[str, pd.DataFrame] = field(default_factory=dict)  # runs on passages drawn at random


def prepare(output: Path) -> Data:
    """Reads the corpus and its queries, and makes the index in ``output``; results of an earlier run are deleted."""
    shutil.rmtree(output / INDEXES, ignore_errors=True)
    corpus = pt.get_dataset(CORPUS).get_corpus_iter(verbose=False)
    docs = [beginning(doc) for doc in corpus if not doc["docno"].startswith(LEFT_OUT)]
    train = queries("train", docs)
    dev = queries("dev", docs)
    test = queries("test", docs)
    encoder = DualEncoder(max_passage_tokens=PASSAGE_TOKENS)
    index = GraphIndex(output / INDEXES / "index", encoder=encoder)
    index = index.index(docs, answered=train)
    return Data(docs, index, train, dev, test)


def beginning(doc: Mapping[str, Any]) -> dict[str, Any]:
    """A document that ends with its second passage."""
    nodes = doc["nodes"]
    passages = [number for number, node in enumerate(nodes) if node.kind == PASSAGE]
    if passages:
        last = passages[:PASSAGES][-1]
        nodes = nodes[: last + 1]
    end = len(nodes)
    links = [link for link in doc["links"] if link.source < end and link.target < end]
    references = [reference for reference in doc["references"] if reference.source < end]
    text = "\n\n".join(node.text for node in nodes if node.kind == PASSAGE)
    return {**doc, "text": text, "nodes": nodes, "links": links, "references": references}


def queries(split: str, docs: Sequence[Mapping[str, Any]]) -> Queries:
    """The queries of a split of the dataset whose answers are in the corpus."""
    dataset = pt.get_dataset(f"{CORPUS}/{split}")
    topics = dataset.get_topics()
    qrels = dataset.get_qrels()
    passages = [passage_id(doc["docno"], number) for doc in docs for number in range(PASSAGES)]
    in_corpus = qrels["docno"].isin(passages)
    qrels = qrels[in_corpus].reset_index(drop=True)
    is_judged = topics["qid"].isin(qrels["qid"])
    topics = topics[is_judged].reset_index(drop=True)
    return Queries(topics, qrels)


def build_systems(data: Data, output: Path) -> Systems:
    """Makes and trains all systems."""
    folder = output / INDEXES
    documents = {doc["docno"]: f"{doc['title']}\n{doc['text']}" for doc in data.docs}
    document_bm25 = lexical(folder / "documents.bm25", documents)
    passages = titled(data.index.graph)
    passage_bm25 = lexical(folder / "passages.bm25", passages)
    systems = Systems(document_bm25, {BM25: passage_bm25})
    add_graph_rerankers(systems, data, folder)
    add_lgre(systems, data, folder)
    add_retrievers(systems, data, folder)
    return systems


def add_graph_rerankers(systems: Systems, data: Data, folder: Path) -> None:
    """MaxSim, GraphMaxSim and HGAT, over the passages of BM25's best documents."""
    graph = data.index.graph
    encoder = reduced_encoder(graph)
    tokens = TokenStore(folder / "tokens", verbose=False).build(graph, encoder, titles=True)
    systems.models |= {
        MAXSIM: GraphMaxSim(graph, encoder, {}, tokens=tokens, verbose=False),
        GRAPH_MAXSIM: GraphMaxSim(graph, encoder, tokens=tokens, verbose=False),
        HGAT: HGATReranker(graph, encoder, tokens=tokens, verbose=False),
    }
    first_stage = systems.documents % HGAT_DOCUMENTS >> graph.passages()
    for name in (MAXSIM, GRAPH_MAXSIM, HGAT):
        pipeline: Any = first_stage >> systems.models[name]
        if name != MAXSIM:
            report(f"training {name}")
            pipeline.fit(*data.train, *data.dev)
        systems.pipelines[name] = pipeline


def add_lgre(systems: Systems, data: Data, folder: Path) -> None:
    """LGRe, trained on passages drawn at random, which are easier to tell apart than BM25's best ones."""
    bm25: Any = systems.pipelines[BM25]
    texts = titled(data.index.graph)
    loader = pt.apply.text(lambda row: texts[row["docno"]])
    training = LGReTraining(
        epochs=1,
        pairs_per_epoch=384,
        learning_rate=1e-3,
        encoder_learning_rate=2e-4,
    )
    start = shallow_encoder(folder / "lgre-start")
    model = LGReReranker(start, training=training, max_tokens=PAIR_TOKENS, verbose=False)
    topics = data.test.topics.head(LGRE_TEST)
    test: Any = loader(drawn(data, Queries(topics, data.test.qrels)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QualityWarning)  # it is not trained yet
        systems.drawn[UNTRAINED] = model(test)
    report(f"training {LGRE}")
    model.fit(loader(drawn(data, data.train)), data.train.qrels)
    systems.drawn[TRAINED] = model(test)
    scores = bm25(topics)[["qid", "docno", "score"]]
    scored = test.merge(scores, how="left", on=["qid", "docno"])
    systems.drawn[BM25] = scored.fillna({"score": 0.0})
    systems.pipelines[LGRE] = bm25 % LGRE_PASSAGES >> loader >> model
    systems.models[LGRE] = model


def drawn(data: Data, queries: Queries) -> pd.DataFrame:
    """A passage with the highest label for each query, and passages drawn at random: ``qid, query, docno``."""
    graph = data.index.graph
    random = np.random.default_rng(0)
    by_label = queries.qrels.sort_values("label", kind="stable")
    best = by_label.drop_duplicates("qid", keep="last")
    count = min(DRAWN, len(graph.passage_nodes)) - 1
    samples = []  # ids of passages, for each query
    for _ in best["qid"]:
        nodes = random.choice(graph.passage_nodes, count, replace=False)
        samples.append(graph.ids_of(nodes))
    sampled = best[["qid"]].assign(docno=samples).explode("docno")
    rows = pd.concat([best[["qid", "docno"]], sampled])
    rows = rows.drop_duplicates()
    return rows.merge(queries.topics, on="qid")


def add_retrievers(systems: Systems, data: Data, folder: Path) -> None:
    """The dense retriever, PAIR, GraphMean, GNNEncoder with and without edges, and the hybrids."""
    index = data.index
    encoder: Any = index.bi_encoder
    encoder.verbose = False
    encoded = index.path / ENCODED
    vectors = base_vectors(encoded, index.graph, encoder, titles=True).flex
    search = vectors.np_retriever(drop_query_vec=True)
    dense = encoder.query_encoder() >> search
    report(f"training {PAIR}")
    pair = trained_pair(data, systems.pipelines[BM25], encoder, vectors)
    systems.models[PAIR] = pair
    systems.pipelines[DENSE] = dense
    systems.pipelines[PAIR] = pair.query_encoder() >> search

    shared: dict[str, Any] = {
        "query_graph": index.version.queries,
        "folder": encoded,
        "verbose": False,
    }
    without_edges = GNNEncoderConfig(edges=False)
    models: dict[str, Any] = {
        MEAN: GraphMean(index.graph, encoder, **shared),
        NETWORK: GNNEncoder(index.graph, encoder, config=without_edges, **shared),
        GNN: GNNEncoder(index.graph, encoder, **shared),
    }
    for name, model in models.items():
        if name != MEAN:
            report(f"training {name}")
            model.fit(*data.train, *data.dev)
        systems.models[name] = model
        contextual_index = model.index(folder / f"{name}.flex")
        systems.pipelines[name] = contextual_index.retriever(100)
    systems.pipelines[RIVAL] = Hybrid(index.bm25(), dense)
    systems.pipelines[INDEX] = index.hybrid()


def trained_pair(data: Data, bm25: Any, encoder: DualEncoder, vectors: Any) -> DualEncoder:
    """The second stage of PAIR, for queries only: the vectors of passages stay, so that none is encoded again."""
    miner = HardNegativeMiner(bm25, data.index.graph.text_loader(), verbose=False)
    examples = miner.labeled(*data.train)
    training = DualEncoderTraining(epochs=1, batch_size=16, learning_rate=1e-4)
    model = encoder.apply_attributes(training=training)
    return model.fit_query_encoder(vectors, examples, *data.dev)


def titled(graph: DocumentGraph) -> dict[str, str]:
    """The text of each passage by its id, with its titles in front."""
    nodes = graph.passage_nodes
    ids = graph.ids_of(nodes)
    texts = graph.texts(nodes, titles=True)
    return dict(zip(ids, texts, strict=True))


def report(step: str) -> None:
    """Says what takes time now."""
    print(f"{time.strftime('%X')} {step}", flush=True)


def lexical(path: Path, texts: Mapping[str, str]) -> BM25Retriever:
    """BM25 over texts by id."""
    index = BM25Index.build(path, texts.values())
    return BM25Retriever(index, Ids([*texts]))


def shallow_encoder(path: Path) -> str:
    """The first layers of all-MiniLM-L6-v2: no cross-encoder is installed, and fewer layers learn faster."""
    name = resolve(DEFAULT)
    network = AutoModel.from_pretrained(name, num_hidden_layers=LGRE_LAYERS)
    network.save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.save_pretrained(path)
    return str(path)


def reduced_encoder(graph: DocumentGraph) -> TokenEncoder:
    """The token vectors of all-MiniLM-L6-v2, reduced to the length that late-interaction models have."""
    encoder = TokenEncoder(max_passage_tokens=PASSAGE_TOKENS)
    sample = graph.texts(graph.passage_nodes[::16])
    return encoder.reduced(sample, DIMENSIONS)
