"""The main job, end to end: BM25, a document graph, rerankers that listen to it, and one table.

``python -m pyterrier_graph demo`` runs it on the docstrings of installed packages.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from ir_measures import AP, RR, R, nDCG
from ir_measures.measures import Measure

from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.rerank.document_evidence import DocumentEvidence
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.training.options import HGATTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyterrier_graph.models.hgat import Variant

logger = logging.getLogger(__name__)
Reranker = TypeVar("Reranker", GraphMaxSim, HGATReranker)

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, R @ 100, AP @ 100)
DEFAULT_VARIANTS = ("NO_LB", "NO_LB_NS")
LENGTH = 96  # word pieces of a passage that are encoded
SAMPLE = 400  # passages whose tokens the encoder's projection is made from

# What a passage listens to, in one hop: its titles, the passages beside it, and those of its section and of the section
# around that one, where the description stands.
AROUND = (
    "structural",
    "structural/structural",
    "order",
    "order_i",
    "structural/structural_i",
    "structural/structural/structural_i",
)

# What a thousand triples suffice for (docs/results.md, "Why HGAT needs help"); the paper's is the class's default.
HGAT_SHAPE: dict[str, Any] = {"layers": 1, "heads": 4, "dropout": 0.0, "init": "identity", "slots": 32}
TRAINING: dict[str, Any] = {
    "negatives": "candidates",
    "epochs": 2,
    "batch_size": 16,
    "scalar_learning_rate": 0.03,
    "patience": None,
}


class Corpus(Protocol):
    """What documents are read from."""

    def get_corpus_iter(self, *, verbose: bool) -> Iterable[dict[str, Any]]:
        """Documents with ``docno``, ``title`` and ``text``."""


@dataclass(frozen=True)
class Split:
    """Queries, their judgments, and the passages that the first stage finds."""

    topics: pd.DataFrame
    qrels: pd.DataFrame
    candidates: pd.DataFrame


@dataclass(frozen=True)
class Bench:
    """What all systems share.

    Attributes:
        graph: The document graph.
        first_stage: Queries in, passages of the best documents out.
        encoder: The token encoder.
        tokens: Token vectors of the nodes.
        titled_tokens: Likewise, with their titles put before the passages.
        train: Training split.
        dev: Development split.
        test: Test split.
    """

    graph: DocumentGraph
    first_stage: pt.Transformer
    encoder: TokenEncoder
    tokens: TokenStore
    titled_tokens: TokenStore
    train: Split
    dev: Split
    test: Split


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the demo from the command line and returns its table."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for chatty in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    bench = prepare(output, options.size, options.first_stage, options.documents)
    # From here on there are many small products, for which several threads mostly wait for one another.
    torch.set_num_threads(1)
    systems, graph_maxsim, trained = build_systems(bench, output, options.variants, options.seed, options.triples)
    table = compare(bench.test, systems)
    table.to_csv(output / "results.csv", index=False)
    for reranker in trained:
        check_saved(reranker, output / reranker.config.name, bench)
    draw(output, bench, graph_maxsim, trained)
    print(table.to_string(index=False))
    print(f"\nTable, models and pictures: {output}")
    return table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(prog="python -m pyterrier_graph demo", description=main.__doc__)
    command.add_argument("--size", choices=["numpy", "all"], default="numpy", help="numpy, or five packages")
    command.add_argument("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    command.add_argument("--documents", type=int, default=20, help="documents whose passages are reranked")
    command.add_argument(
        "--variants",
        nargs="+",
        default=list(DEFAULT_VARIANTS),
        metavar="VARIANT",
        help="of HGAT: NO_LB, BASE, ...",
    )
    command.add_argument("--triples", type=int, default=1000, help="training triples per HGAT")
    command.add_argument("--seed", type=int, default=0, help="seed of initial weights, sampling and order")
    command.add_argument("--output", default="pyterrier_graph-demo", help="folder for results, models and pictures")
    return command


def prepare(output: Path, size: str, first_stage: str, documents: int) -> Bench:
    """The demo's data."""
    dataset = f"irds:pyterrier-graph/numpydoc/{size}"
    parts = [pt.get_dataset(f"{dataset}/{name}") for name in ("train", "dev", "test")]
    judged = [(part.get_topics(), part.get_qrels()) for part in parts]
    return make_bench(pt.get_dataset(dataset), judged, output, first_stage, documents, prefix=f"{size}.")


def make_bench(
    corpus: Corpus,
    splits: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    output: Path,
    first_stage: str,
    documents: int,
    prefix: str = "",
) -> Bench:
    """Makes, or finds in ``output``, the index, the graph and the token vectors.

    Args:
        corpus: What is searched.
        splits: Topics and judgments for training, development and test.
        output: Folder of what is made.
        first_stage: ``'pisa'`` or ``'terrier'``.
        documents: Documents whose passages are reranked.
        prefix: What the names of the files begin with.
    """
    graph = DocumentGraph(output / f"{prefix}graph")
    if not graph.built():
        graph.index(corpus.get_corpus_iter(verbose=False))
    logger.info("graph: %s", graph.summary())
    bm25 = index_bm25(corpus, output / f"{prefix}{first_stage}", first_stage)
    passages = (bm25 % documents) >> graph.passages()
    encoder = encoder_for(graph, output / "encoder")
    stores = []
    for titles in (False, True):
        store = TokenStore(output / f"{prefix}{'titled.' if titles else ''}tokens")
        if not store.built():
            store.build(graph, encoder, titles=titles)
        stores.append(store)
    train, dev, test = (Split(topics, qrels, passages(topics)) for topics, qrels in splits)
    return Bench(graph, passages, encoder, stores[0], stores[1], train, dev, test)


def index_bm25(corpus: Corpus, path: Path, first_stage: str) -> pt.Transformer:
    """BM25 over whole documents, their titles included."""

    def documents() -> Iterator[dict[str, str]]:
        for document in corpus.get_corpus_iter(verbose=False):
            yield {"docno": document["docno"], "text": f"{document['title']}\n{document['text']}"}

    if first_stage == "terrier":
        index = pt.terrier.TerrierIndex(str(path.absolute()))
        if not index.built():
            index.indexer(meta={"docno": 100}).index(documents())
        return pt.rewrite.tokenise() >> index.bm25() >> pt.rewrite.reset()
    try:
        from pyterrier_pisa import PisaIndex
    except ImportError as error:
        raise SystemExit("PISA is not installed (it needs x86-64 Linux): add --first-stage terrier") from error
    # as Terrier stems and weights
    index = PisaIndex(str(path), stemmer="porter2")
    if not index.built():
        index.index(documents())
    return index.bm25(k1=1.2, b=0.75, num_results=1000, verbose=False)


def encoder_for(graph: DocumentGraph, path: Path) -> TokenEncoder:
    """all-MiniLM-L6-v2's token vectors, cut from 384 dimensions to the 128 that late-interaction models have."""
    if path.exists():
        return TokenEncoder(str(path), max_passage_tokens=LENGTH)
    sample = np.random.default_rng(0).choice(graph.passage_nodes, min(SAMPLE, len(graph.passage_nodes)), replace=False)
    whole = TokenEncoder(resolve(DEFAULT), max_passage_tokens=LENGTH)
    whole.name = "all-MiniLM-L6-v2"
    encoder = whole.reduced(graph.texts(sample), 128)
    encoder.network.save(str(path), create_model_card=False)
    return encoder


def build_systems(
    bench: Bench,
    folder: Path,
    variants: list[Variant],
    seed: int,
    triples: int,
    around: tuple[str, ...] = AROUND,
) -> tuple[dict[str, pt.Transformer], GraphMaxSim, list[HGATReranker]]:
    """Tunes and trains everything that is compared.

    What the HGATs make of every passage is computed once and stored in ``folder``: they rerank by looking it up.

    Returns:
        The systems by name, and those of the graph models in them whose nodes are the bare passages.
    """
    graph, encoder, bm25 = bench.graph, bench.encoder, bench.first_stage
    weights = dict.fromkeys(around, 1.0)

    def fitted(reranker: Reranker) -> Reranker:
        logger.info("fitting %r", reranker)
        train, dev = bench.train, bench.dev
        return reranker.fit(train.candidates, train.qrels, dev.candidates, dev.qrels)

    systems: dict[str, pt.Transformer] = {"BM25": bm25}

    def add(name: str, reranker: pt.Transformer, evidence: bool = False) -> None:
        systems[f"BM25 >> {name}"] = bm25 >> reranker
        if evidence:
            document = DocumentEvidence().fit(reranker(bench.dev.candidates), bench.dev.qrels)
            systems[f"BM25 >> {name} + document"] = bm25 >> reranker >> document

    add("MaxSim", GraphMaxSim(graph, encoder, {}, tokens=bench.tokens), evidence=True)
    add("MaxSim, titles in text", GraphMaxSim(graph, encoder, {}, tokens=bench.titled_tokens), evidence=True)
    graph_maxsim = fitted(GraphMaxSim(graph, encoder, weights, tokens=bench.tokens, verbose=True))
    titled = fitted(GraphMaxSim(graph, encoder, weights, tokens=bench.titled_tokens, verbose=True))
    add("GraphMaxSim", graph_maxsim, evidence=True)
    add("GraphMaxSim, titles in text", titled, evidence=True)
    training = HGATTraining(**TRAINING, max_triples=triples, seed=seed)
    trained = []
    for variant in variants:
        for tokens, suffix in ((bench.tokens, ""), (bench.titled_tokens, ", titles in text")):
            if suffix and variant != variants[0]:
                continue
            hgat = HGATReranker(
                graph,
                encoder,
                variant,
                **HGAT_SHAPE,
                relations=around,
                tokens=tokens,
                training=training,
                seed=seed,
                verbose=True,
            )
            fitted(hgat)
            store = folder / f"{hgat.config.name}{'.titled' if suffix else ''}.tokens"
            shutil.rmtree(store, ignore_errors=True)
            hgat.contextualized = hgat.contextualize(store)
            add(f"{hgat.config.name}{suffix}", hgat, evidence=variant == variants[0])
            if not suffix:
                trained.append(hgat)
    return systems, graph_maxsim, trained


def compare(test: Split, systems: dict[str, pt.Transformer]) -> pd.DataFrame:
    """One experiment: quality, time per query, and significance against MaxSim, corrected after Holm."""
    return pt.Experiment(
        list(systems.values()),
        test.topics,
        test.qrels,
        [*MEASURES, "mrt"],
        names=list(systems),
        baseline=list(systems).index("BM25 >> MaxSim"),
        correction="holm",
        verbose=True,
        round=4,
    )


def check_saved(reranker: HGATReranker, path: Path, bench: Bench) -> None:
    """Saves a model, loads it, and makes sure that it scores as before."""
    shutil.rmtree(path, ignore_errors=True)
    reranker.save(path)
    computed = reranker.apply_attributes(contextualized=None)  # not looked up, but computed anew
    loaded = HGATReranker.load(path, graph=bench.graph, tokens=bench.tokens)
    some = bench.test.candidates[bench.test.candidates["qid"].isin(bench.test.topics["qid"][:3])]
    if not np.array_equal(computed.transform(some)["score"], loaded.transform(some)["score"]):
        raise RuntimeError(f"the model in {path} does not score as the one that was saved")


def draw(output: Path, bench: Bench, graph_maxsim: GraphMaxSim, trained: list[HGATReranker]) -> None:
    """Draws one document's graph, and where the score of one result came from."""
    import matplotlib.pyplot as plt

    from pyterrier_graph import plots

    # of the first queries' best passages, the one to whose score its sampler contribute most
    some = bench.test.candidates[bench.test.candidates["qid"].isin(bench.test.topics["qid"][:20])]
    alone = GraphMaxSim(bench.graph, bench.encoder, {}, tokens=bench.tokens).transform(some)
    found = graph_maxsim.transform(some)
    best = found.assign(gain=found["score"] - alone["score"])[found["rank"] < 3]
    query = best.loc[best["gain"].idxmax()]
    docno = query["docno"]
    title = f"{query['query']}  →  {docno}"

    def save(ax: Axes, name: str) -> None:
        plt.sca(ax)
        plt.savefig(output / f"{name}.png", dpi=120)

    save(plots.document_graph(bench.graph, docno.rpartition("%p")[0]), "document_graph")
    save(plots.token_matches(graph_maxsim.explain(query["query"], docno), title=title), "graph_maxsim_score")
    for reranker in trained:
        name = reranker.config.name
        save(plots.contributions(reranker.explain(query["query"], docno), title=title), f"{name}_score")
        save(plots.relation_weights(reranker.relation_weights()), f"{name}_relations")
    plt.close("all")
