"""The demo: BM25, dense retrieval and rerankers, with and without a graph, compared on text that needs no download.

``python -m pyterrier_graph demo`` searches nearly half of the docstrings of numpy. A query is the description of an
object in the "See Also" list of another object; the task is to find the object's own docstring, which has other words.
The demo prints one table.
"""

import argparse
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from ir_measures import RR, nDCG

from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.gnn_encoder.encoder import GNNEncoder
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graph_mean.graph_mean import GraphMean
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.hetero_graph import documents_of
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.hgat.reranker import HGATReranker
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.hybrid import Hybrid
from pyterrier_graph.search.retrievers import BM25Retriever
from pyterrier_graph.search.versions import ENCODED

TITLED = "all-MiniLM, titles in the text"
CORPUS = "irds:pyterrier-graph/numpydoc/numpy"
OTHERS = 5  # of the docstrings that no query of the demo looks for, every fifth is searched, too
BM25 = "BM25"
MEASURES = (nDCG @ 10, RR @ 10)
PASSAGE_TOKENS = 96
DIMENSIONS = (
    128  # of a token vector: its principal directions, as late-interaction models have them
)
RERANKED = 10  # documents whose passages are reranked
VALIDATED = 30  # queries of rerankers

SIGNIFICANCE = f"+ and -: better and worse than {BM25} (paired t-test, Holm-corrected, p < 0.05)."


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

    docs: list[dict[str, Any]]  # with docno, title, text and their structure
    index: GraphIndex
    query_graph: QueryPassageGraph  # the training queries and the passages that answer them
    train: Queries
    dev: Queries  # by which weights are chosen
    test: Queries


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the demo from the command line and returns its table."""
    parser = argparse.ArgumentParser(prog="python -m pyterrier_graph demo", description=__doc__)
    parser.add_argument(
        "--output", default="pyterrier_graph-demo", help="folder for indexes and the table"
    )
    options = parser.parse_args(arguments)
    for library in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    start = time.perf_counter()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    data = prepare(output)
    table = compare(build_systems(data, output), data.test)
    table.to_csv(output / "results.csv", index=False)
    minutes = (time.perf_counter() - start) / 60
    print(table.to_string(index=False))
    print(SIGNIFICANCE)
    print(f"{minutes:.1f} minutes. The table is in {output / 'results.csv'}.")
    return table


def prepare(output: Path) -> Data:
    """Reads the corpus and its queries, and makes the index and the graph of queries, or finds them in ``output``."""

    def queries(*parts: str) -> Queries:
        datasets = [pt.get_dataset(f"{CORPUS}/{part}") for part in parts]
        frames = [[d.get_topics() for d in datasets], [d.get_qrels() for d in datasets]]
        return Queries(
            *(pd.concat(found, ignore_index=True).astype({"qid": str}) for found in frames)
        )

    train = queries(
        "train", "dev", "test"
    )  # summary lines of all objects; the reported queries are not among them
    dev, test = queries("see-also/dev"), queries("see-also/test")
    wanted = {*dev.document_qrels["docno"], *test.document_qrels["docno"]}
    docs = [*pt.get_dataset(CORPUS).get_corpus_iter(verbose=False)]
    docs = [
        doc for number, doc in enumerate(docs) if doc["docno"] in wanted or number % OTHERS == 0
    ]
    qrels = train.qrels[np.isin(documents_of(train.qrels["docno"]), [doc["docno"] for doc in docs])]
    train = Queries(train.topics[train.topics["qid"].isin(qrels["qid"])], qrels)
    index = GraphIndex(output / "index", encoder=DualEncoder(max_passage_tokens=PASSAGE_TOKENS))
    if not index.built():
        index.index(docs, answered=(train.topics, train.qrels))
    query_graph = QueryPassageGraph(output / "queries")
    if not query_graph.built():
        query_graph.build(train.topics, index.graph, qrels=train.qrels)
    return Data(docs, index, query_graph, train, dev, test)


def build_systems(data: Data, output: Path) -> dict[str, pt.Transformer]:
    """Makes, tunes and trains all systems, which rank documents."""
    graph, dev = data.index.graph, data.dev
    encoder: Any = data.index.encoder
    texts = {doc["docno"]: f"{doc['title']}\n{doc['text']}" for doc in data.docs}
    answered = (
        data.train.topics.merge(data.train.document_qrels, on="qid")
        .groupby("docno")["query"]
        .agg("\n".join)
    )
    with_queries = {docno: f"{text}\n{answered.get(docno, '')}" for docno, text in texts.items()}

    def bm25(name: str, rows: dict[str, str]) -> BM25Retriever:
        return BM25Retriever(
            BM25Index.build(fresh(output / f"{name}.bm25"), rows.values()), [*rows]
        )

    lexical, answering = bm25("documents", texts), bm25("answering", with_queries)
    systems: dict[str, pt.Transformer] = {
        BM25: lexical,
        "BM25, answered queries in the text": answering,
    }
    fold, first = pt.text.max_passage(), lexical % RERANKED >> graph.passages()
    token_encoder = reduced_encoder(graph)
    tokens = TokenStore(output / "tokens")  # with titles in the text, which is best for all of them
    if not tokens.built():
        tokens.build(graph, token_encoder, titles=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # what follows are many small products, for which threads wait for one another

    train, judged = data.train, dev.document_qrels
    rerankers: dict[str, Any] = {"MaxSim": GraphMaxSim(graph, token_encoder, {}, tokens=tokens)}
    rerankers["GraphMaxSim"] = GraphMaxSim(graph, token_encoder, tokens=tokens)
    rerankers["HGAT"] = HGATReranker(graph, token_encoder, tokens=tokens)
    for reranker in (rerankers["GraphMaxSim"], rerankers["HGAT"]):
        pipeline: Any = first >> reranker
        pipeline.fit(train.topics, train.qrels, dev.topics.head(VALIDATED), judged)
    torch.set_num_threads(threads)

    mean = GraphMean(graph, encoder, query_graph=data.query_graph)
    configs = [GNNEncoderConfig(edges=edges) for edges in (False, True)]
    gnns = [
        GNNEncoder(graph, encoder, config=config, query_graph=data.query_graph)
        for config in configs
    ]
    without, gnn = (model.fit(train.topics, train.qrels, dev.topics, judged) for model in gnns)
    with_titles = base_vectors(
        data.index.path / ENCODED, graph, encoder, titles=True
    )  # the index has encoded them
    found = encoder.query_encoder() >> with_titles.flex.np_retriever(
        num_results=1000, drop_query_vec=True
    )
    systems[TITLED] = found >> fold

    def indexed(name: str, retriever: Any) -> None:
        index = retriever.index(fresh(output / f"{name.replace(' ', '-')}.flex"))
        systems[name] = index.retriever(num_results=1000) >> fold

    indexed("all-MiniLM", GraphMean(graph, encoder, {}))
    indexed("GraphMean", mean)
    systems["Hybrid: BM25, GraphMean"] = Hybrid(lexical, systems["GraphMean"])
    systems["Hybrid: BM25 with answered queries, titles in the text"] = Hybrid(
        answering, systems[TITLED]
    )
    systems["GraphIndex"] = data.index.hybrid(per="document")
    indexed("GNNEncoder without edges", without)
    indexed("GNNEncoder", gnn)
    for name, reranker in rerankers.items():
        systems[f"BM25 >> {name}"] = first >> reranker >> fold
    return systems


def reduced_encoder(graph: DocumentGraph) -> TokenEncoder:
    """The token vectors of all-MiniLM-L6-v2, reduced to the length that late-interaction models have."""
    encoder = TokenEncoder(max_passage_tokens=PASSAGE_TOKENS, dtype="auto")
    return encoder.reduced(graph.texts(graph.passage_nodes[::8]), DIMENSIONS)


def fresh(path: Path) -> Path:
    """A path without the results of an earlier run, which are deleted."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def compare(systems: dict[str, pt.Transformer], test: Queries) -> pd.DataFrame:
    """One experiment over documents: measures with the significance against BM25 as a mark, and time per query."""
    measured = pt.Experiment(
        [system % 100 for system in systems.values()],
        test.topics,
        test.document_qrels,
        [*MEASURES, "mrt"],
        names=[*systems],
        baseline=[*systems].index(BM25),
        correction="holm",
        verbose=True,
    )
    table = pd.DataFrame({"system": measured["name"]})
    for measure in map(str, MEASURES):
        better = measured[measure] > measured[measure].iloc[0]
        mark = better.map({True: "+", False: "-"}).where(
            measured[f"{measure} reject"].fillna(False).astype(bool), " "
        )
        table[measure] = measured[measure].map("{:.3f}".format) + mark
    return table.assign(**{"ms per query": measured["mrt"].map("{:.1f}".format)})
