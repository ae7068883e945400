"""The demo: BM25, dense retrieval and rerankers, with and without a graph, compared on text that needs no download.

``python -m pyterrier_graph demo`` searches the docstrings of numpy. A query is what the "See Also" list of another
object says of an object; the object's docstring is to be found, in other words. The demo prints one table and writes
``report.html``, a page that needs no network.
"""

import argparse
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import torch
from ir_measures import RR, nDCG
from pyterrier_dr import FlexIndex

from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.rerank.document_evidence import DocumentEvidence
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder
from pyterrier_graph.retrieve.graph_mean import GraphMean
from pyterrier_graph.retrieve.hybrid import Hybrid
from pyterrier_graph.training.validation import documents_of

BM25 = "BM25"
MEASURES = (nDCG @ 10, RR @ 10)
PASSAGE_TOKENS = 96
DIMENSIONS = 128  # of a token vector: its principal directions, as late-interaction models have them
SAMPLE = 400  # passages from which these directions are computed
RERANKED = 20  # documents whose passages are reranked

NEXT = """import pyterrier as pt
import pyterrier_graph as ptg

# your documents: docno, title and text, or with sections and references
graph = ptg.DocumentGraph("corpus.graph").index(documents)
# a dense index of their passages, and your own pipeline beside it
index = ptg.GraphMean(graph).index("corpus.flex")
hybrid = ptg.Hybrid(bm25, index.retriever() >> pt.text.max_passage())
# or a reranker behind your own pipeline
reranked = bm25 % 100 >> graph.passages() >> ptg.GraphMaxSim(graph) >> pt.text.max_passage()
"""


@dataclass(frozen=True)
class Queries:
    """Queries, the passages that answer them, and the documents that these are of."""

    topics: pd.DataFrame
    qrels: pd.DataFrame

    @property
    def document_qrels(self) -> pd.DataFrame:
        """Judgments of documents: a document has the highest label of its passages."""
        documents = self.qrels.assign(docno=documents_of(self.qrels["docno"]))
        return documents.groupby(["qid", "docno"], as_index=False)["label"].max()


@dataclass(frozen=True)
class Data:
    """What the systems of the demo share."""

    corpus: Any  # documents with docno, title, text and their structure
    graph: DocumentGraph
    query_graph: QueryPassageGraph  # the training queries and the passages that answer them
    train: Queries
    dev: Queries  # by which weights are chosen
    test: Queries


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the demo from the command line and returns its table."""
    options = parser().parse_args(arguments)
    for library in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    start = time.perf_counter()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    data = prepare(output, options.size)
    systems, models = build_systems(data, output, first_stage=options.first_stage, full=options.full, seed=options.seed)
    table = compare(systems, data.test)
    table.to_csv(output / "results.csv", index=False)
    minutes = (time.perf_counter() - start) / 60
    write_report(output / "report.html", data, models, table, " ".join([parser().prog, *(arguments or [])]), minutes)
    print(table.to_string(index=False))
    print(f"+ and -: better and worse than {BM25} (paired t-test, Holm-corrected, p < 0.05)")
    print(f"{minutes:.1f} minutes. Open {output / 'report.html'} in a browser.")
    return table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m pyterrier_graph demo", description=__doc__)
    made.add_argument("--full", action="store_true", help="more systems: titles in text and graph, documents")
    made.add_argument("--size", choices=["numpy", "all"], default="numpy", help="numpy alone, or five packages")
    made.add_argument("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    made.add_argument("--seed", type=int, default=0, help="seed of initial weights, sampling and order")
    made.add_argument("--output", default="pyterrier_graph-demo", help="folder for indexes, models and the report")
    return made


def prepare(output: Path, size: str) -> Data:
    """Reads the corpus and its queries, and makes both graphs, or finds them in ``output``."""
    name = f"irds:pyterrier-graph/numpydoc/{size}"

    def queries(*parts: str) -> Queries:
        datasets = [pt.get_dataset(f"{name}/{part}") for part in parts]
        frames = [[d.get_topics() for d in datasets], [d.get_qrels() for d in datasets]]
        return Queries(*(pd.concat(found, ignore_index=True).astype({"qid": str}) for found in frames))

    corpus = pt.get_dataset(name)
    graph = DocumentGraph(output / f"{size}.graph")
    if not graph.built():
        graph.index(corpus.get_corpus_iter(verbose=False))
    train = queries("train", "dev", "test")  # summary lines of all objects; the reported queries are not among them
    query_graph = QueryPassageGraph(output / f"{size}.queries")
    if not query_graph.built():
        query_graph.build(train.topics, graph, qrels=train.qrels)
    return Data(corpus, graph, query_graph, train, queries("see-also/dev"), queries("see-also/test"))


def build_systems(
    data: Data, output: Path, *, first_stage: str = "pisa", full: bool = False, seed: int = 0
) -> tuple[dict[str, pt.Transformer], dict[str, Any]]:
    """Makes, tunes and trains all systems.

    Returns:
        The systems by name, each of which ranks documents; and by name the graph models and the hybrid among them.
    """
    graph, dev = data.graph, data.dev
    texts = {doc["docno"]: f"{doc['title']}\n{doc['text']}" for doc in data.corpus.get_corpus_iter(verbose=False)}
    bm25 = index_bm25(texts, output / f"{first_stage}.index", first_stage)
    answered = data.train.topics.merge(data.train.document_qrels, on="qid").groupby("docno")["query"].agg("\n".join)
    with_queries = {docno: f"{text}\n{answered.get(docno, '')}" for docno, text in texts.items()}
    answering = index_bm25(with_queries, output / f"{first_stage}.queries.index", first_stage)
    systems: dict[str, pt.Transformer] = {BM25: bm25, "BM25, answered queries in the text": answering}
    fold, first = pt.text.max_passage(), bm25 % RERANKED >> graph.passages()
    token_encoder = reduced_encoder(graph)
    tokens = store_of(graph, token_encoder, output / "tokens")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what follows are many small products, for which threads wait for one another

    def fitted(reranker: Any) -> Any:
        (first >> reranker).fit(data.train.topics.head(300), data.train.qrels, dev.topics, dev.qrels)
        return reranker

    graph_maxsim = fitted(GraphMaxSim(graph, token_encoder, tokens=tokens))
    hgat = fitted(HGATReranker(graph, token_encoder, tokens=tokens, seed=seed))
    hgat.contextualized = hgat.contextualize(fresh(output / "hgat.tokens"))
    rerankers = {"MaxSim": GraphMaxSim(graph, token_encoder, {}, tokens=tokens)}
    torch.set_num_threads(threads)
    titled = store_of(graph, token_encoder, output / "titled.tokens", titles=True)
    rerankers["MaxSim, titles in the text"] = GraphMaxSim(graph, token_encoder, {}, tokens=titled)
    rerankers |= {"GraphMaxSim": graph_maxsim, "HGAT": hgat}
    if full:
        rerankers["GraphMaxSim, titles in the text"] = fitted(GraphMaxSim(graph, token_encoder, tokens=titled))
        evidence = DocumentEvidence().fit((first >> graph_maxsim)(dev.topics), dev.qrels)
        rerankers["GraphMaxSim + document"] = graph_maxsim >> evidence

    encoder = DualEncoder(max_passage_tokens=PASSAGE_TOKENS, dtype="auto")
    mean = GraphMean(graph, encoder, query_graph=data.query_graph)
    known = (data.train.topics, data.train.qrels, dev.topics, dev.qrels)
    options: Any = {"query_graph": data.query_graph, "weights": mean.config.weights, "seed": seed}
    without, gnn = (GNNEncoder(graph, encoder, edges=edges, **options).fit(*known) for edges in (False, True))
    with_titles = FlexIndex(str(fresh(output / "titled.flex")))
    text = pt.apply.text(lambda passage: f"{passage['title']}: {passage['text']}")
    (text >> encoder.doc_encoder() >> with_titles).index(graph.get_corpus_iter(verbose=False))
    found = encoder.query_encoder() >> with_titles.np_retriever(num_results=1000, drop_query_vec=True)
    systems["all-MiniLM, titles in the text"] = found >> fold

    def indexed(name: str, retriever: Any) -> None:
        index = retriever.index(fresh(output / f"{name.replace(' ', '-')}.flex"))
        systems[name] = index.retriever(num_results=1000) >> fold

    indexed("all-MiniLM", GraphMean(graph, encoder, {}))
    indexed("GraphMean", mean)
    systems["Hybrid: BM25, GraphMean"] = Hybrid(bm25, systems["GraphMean"])
    systems["Hybrid: BM25 with answered queries, GraphMean"] = Hybrid(answering, systems["GraphMean"])
    indexed("GNNEncoder without edges", without)
    indexed("GNNEncoder", gnn)
    for name, reranker in rerankers.items():
        systems[f"BM25 >> {name}"] = first >> reranker >> fold
    models = {"GraphMaxSim": graph_maxsim, "HGAT": hgat, "GraphMean": mean, "GNNEncoder": gnn}
    return systems, models | {"Hybrid": systems["Hybrid: BM25, GraphMean"]}


def index_bm25(texts: dict[str, str], path: Path, first_stage: str) -> pt.Transformer:
    """BM25 over documents.

    Raises:
        SystemExit: If PISA is asked for and is not installed.
    """
    records = ({"docno": docno, "text": text} for docno, text in texts.items())
    if first_stage == "terrier":
        index = pt.terrier.TerrierIndex(str(path.absolute()))
        if not index.built():
            index.indexer(meta={"docno": 100}).index(records)
        return pt.rewrite.tokenise() >> index.bm25() >> pt.rewrite.reset()
    try:
        from pyterrier_pisa import PisaIndex
    except ImportError as error:
        raise SystemExit("PISA is not installed (it needs x86-64 Linux): add --first-stage terrier") from error
    index = PisaIndex(str(path), text_field=["text"], stemmer="porter2")  # stems and weights as Terrier does
    if not index.built():
        index.index(records)
    return index.bm25(k1=1.2, b=0.75, num_results=1000, verbose=False)


def reduced_encoder(graph: DocumentGraph) -> TokenEncoder:
    """The token vectors of all-MiniLM-L6-v2, reduced to the length that late-interaction models have."""
    count = len(graph.passage_nodes)
    sample = graph.passage_nodes[:: max(1, count // SAMPLE)]
    encoder = TokenEncoder(max_passage_tokens=PASSAGE_TOKENS, dtype="auto")
    return encoder.reduced(graph.texts(sample), DIMENSIONS)


def store_of(graph: DocumentGraph, encoder: TokenEncoder, path: Path, *, titles: bool = False) -> TokenStore:
    """The token vectors of the graph's texts, encoded once."""
    store = TokenStore(path)
    return store if store.built() else store.build(graph, encoder, titles=titles)


def fresh(path: Path) -> Path:
    """A path where nothing lies; what an earlier run of the demo wrote there is deleted."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def compare(systems: dict[str, pt.Transformer], test: Queries) -> pd.DataFrame:
    """One experiment over documents: measures with the significance against BM25 as a mark, and time per query."""
    measured = pt.Experiment(
        [*systems.values()],
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
        mark = better.map({True: "+", False: "-"}).where(measured[f"{measure} reject"].fillna(False).astype(bool), " ")
        table[measure] = measured[measure].map("{:.3f}".format) + mark
    return table.assign(**{"ms per query": measured["mrt"].map("{:.1f}".format)})


def explanations(models: dict[str, Any], query: str, docno: str) -> list[str]:
    """HTML that shows where each system's score of a passage comes from."""
    from pyterrier_graph.plots.explaining import explain

    shown = []
    for model in models.values():
        try:
            shown.append(explain(model, query, docno).html)
        except KeyError:  # the hybrid has not found it
            continue
    return shown


def write_report(
    path: Path, data: Data, models: dict[str, Any], table: pd.DataFrame, command: str, minutes: float
) -> None:
    """Writes the page: what was run, the table, pictures, and what to try next."""
    from pyterrier_graph import __version__, plots
    from pyterrier_graph.plots import report

    summary = data.graph.summary()
    about = {
        "command": command,
        "time": f"{minutes:.1f} minutes",
        "version": f"pyterrier_graph {__version__}, torch {torch.__version__}",
        "corpus": f"{summary['documents']:,} docstrings, {summary['passages']:,} passages",
        "queries": f"{len(data.test.topics)} for the test, {len(data.dev.topics)} to choose weights, "
        f"{len(data.train.topics)} with answers that the graph knows",
    }
    shown = pd.DataFrame(
        {
            "name": table["system"],
            "nDCG@10": table["nDCG@10"].str.rstrip("+- ").astype(float),
            "mrt": table["ms per query"].astype(float),
        }
    )
    described = (__doc__ or "").split("\n\n")[1].replace("``", "")
    query = data.test.topics.iloc[0]
    docno = data.test.qrels.loc[data.test.qrels["qid"] == query["qid"], "docno"].iloc[0]
    pictures = [
        report.picture(plots.effectiveness_latency(shown, "nDCG@10"), "Effectiveness against time per query."),
        report.picture(
            plots.document_graph(data.graph, docno.rpartition("%p")[0]),
            "The graph of one document: sections, passages, and their relations.",
        ),
    ]
    report.write_page(
        path,
        "pyterrier_graph: the demo",
        [
            report.section("What was run", report.text(described), report.facts(about)),
            report.section(
                "Result",
                report.table(table),
                report.text(
                    f"+ and -: better and worse than {BM25} (paired t-test, Holm-corrected, p < 0.05). "
                    "Every system ranks documents; a document has the score of its best passage."
                ),
            ),
            report.section("Pictures", *pictures),
            report.section("One query, one passage, five systems", *explanations(models, query["query"], docno)),
            report.section("What to try next", report.code(NEXT)),
        ],
    )
