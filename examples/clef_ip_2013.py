"""HGAT on CLEF-IP 2013, as in Albarede et al. 2023: every model is trained and tested ten times.

The collection is licensed: without it, this says where to get it and where to put it. Then

    python examples/clef_ip_2013.py --output clef-ip

builds a graph and an index, trains, and prints the paper's Table 4, or, given several ``--negatives``, its Table 3.
The run of each training is written in the task's format when it is complete: killed, the experiment goes on with the
next. The measures are those of these files.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import ir_measures
import pandas as pd
import pyterrier as pt
from ir_measures import AP, R
from ir_measures.measures import Measure
from scipy.stats import mannwhitneyu

from pyterrier_graph.datasets.clef_ip import Archive
from pyterrier_graph.datasets.clef_ip.collection import archive
from pyterrier_graph.demo import index_bm25
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.evaluation.measures import MAPD, PRECD, PRES, on_documents
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.models.hgat import HGATConfig, Variant
from pyterrier_graph.patents import (
    AbstractTerms,
    ClaimsQuery,
    DocumentCutoff,
    DocumentFrequencies,
    NotOwnFamily,
    SharedCodes,
    read_official_run,
    write_official_run,
)
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.training.negatives import Strategy
from pyterrier_graph.training.options import HGATTraining

DATASET = "irds:clef-ip/2013/claims-to-passages/{}/{}"
MEASURES: dict[str, Measure] = {
    "PRES@100": on_documents(PRES @ 100),
    "Recall@100": on_documents(R @ 100),
    "MAP@100": on_documents(AP @ 100),
    "MAP(D)": MAPD,
    "PREC(D)": PRECD,
}
WITHIN_DOCUMENTS = ("MAP(D)", "PREC(D)")
LETTERS = "ijklmnopqrstuvwxyzabcdefgh"  # the paper's begin with i
SIGNIFICANT = 0.05
STRATEGIES = ("random", "same_doc", "relevant_docs", "shared_codes", "mixed")
MORE_OF_THE_SAME = ("variants", "negatives", "runs", "output", "workers")  # these change no run that there is


@dataclass(frozen=True)
class Bench:
    """What all models share.

    Attributes:
        patents: The collection.
        graph: Its graph.
        encoder: Makes a new encoder, as it comes.
        training: HGATTraining topics with the passages judged for them, and the judgments.
        candidates: The documents found for the test topics.
        qrels: Judgments of the test topics.
    """

    patents: Archive
    graph: DocumentGraph
    encoder: Callable[[], TokenEncoder]
    training: tuple[pd.DataFrame, pd.DataFrame]
    candidates: pd.DataFrame
    qrels: pd.DataFrame


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the experiment from the command line and returns its table."""
    options = parser().parse_args(arguments)
    output = Path(options.output)
    try:
        bench = prepare(options, output)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
    claim(output / "options.json", options)
    cutoff = DocumentCutoff(passages=options.passages)
    values = []

    def evaluate(model: str, seed: int, make: Callable[[], pt.Transformer]) -> None:
        file = output / "runs" / f"{model.replace(' ', '-')}-{seed}.txt"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            pipeline = bench.graph.passages() >> make() >> cutoff
            # topic by topic: token vectors of all passages of a thousand patents fit into memory once
            found = pt.tqdm(bench.candidates.groupby("qid", sort=False), desc=f"{model}, {seed}", unit="topic")
            write_official_run(pd.concat([pipeline(documents) for _, documents in found]), file, bench.patents)
        run = pt.model.to_ir_measures(read_official_run(file, bench.patents))
        measured = ir_measures.calc_aggregate(MEASURES.values(), pt.model.to_ir_measures(bench.qrels), run)
        values.append({"model": model, "seed": seed} | {name: measured[MEASURES[name]] for name in MEASURES})

    evaluate("BM25", 0, pt.Transformer.identity)
    values[0] |= dict.fromkeys(WITHIN_DOCUMENTS, float("nan"))  # it does not rank the passages of a document
    evaluate("MaxSim", 0, lambda: GraphMaxSim(bench.graph, bench.encoder(), {}))
    for variant, negatives in itertools.product(options.variants, options.negatives):
        for seed in range(options.runs):
            make = functools.partial(train, bench, variant, negatives, seed, options)
            evaluate(model_name(variant, negatives), seed, make)
    frame = pd.DataFrame(values)
    frame.to_csv(output / "values.csv", index=False)
    table = table_of(frame)
    table.to_csv(output / "table.csv", index=False)
    print(table.to_string(index=False))
    return table


def parser() -> argparse.ArgumentParser:
    """The command line; the defaults are the paper's, where it says."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = functools.partial(command.add_argument, metavar="N", type=int)
    add("--runs", default=10, help="how often each model is trained, with seeds 0, 1, ... (%(default)s)")
    add("--documents", default=1000, help="documents that BM25 finds for a topic (%(default)s)")
    add("--passages", help="passages of a document that are handed in (all); MAP(D) and PREC(D) depend on it")
    add("--repeats", default=1000, help="negatives per relevant passage and epoch (%(default)s)")
    add("--epochs", default=1, help="epochs; the paper does not say (%(default)s)")
    add("--passage-tokens", default=180, help="tokens of a passage that are encoded (%(default)s)")
    add("--query-tokens", default=120, help="tokens of the claims that are encoded (%(default)s)")
    add("--workers", default=1, help="processes that read the collection (%(default)s)")
    choose = functools.partial(command.add_argument, nargs="+")
    choose("--variants", choices=get_args(Variant), default=[*get_args(Variant)], help="of HGAT (all eight)")
    choose("--negatives", choices=STRATEGIES, default=["mixed"], help="of triples (mixed)")
    command.add_argument("--language", choices=["en", "de", "fr"], default="en", help="of the topics (%(default)s)")
    command.add_argument("--level", choices=["subclass", "group"], default="subclass", help="of shared IPC codes")
    command.add_argument("--encoder", default="colbert-ir/colbertv2.0", help="a name or a folder (%(default)s)")
    command.add_argument(
        "--encoder-learning-rate", type=float, default=3e-6, help="0 leaves the encoder as it is (%(default)s)"
    )
    command.add_argument("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    command.add_argument("--output", default="clef-ip-2013", help="folder for graph, index and runs (%(default)s)")
    return command


def prepare(options: argparse.Namespace, output: Path) -> Bench:
    """Makes, or finds in ``output``, the graph, the document frequencies and the index; retrieves documents.

    Raises:
        FileNotFoundError: If a part of the collection is missing; the message says where to get it.
    """
    patents = archive()
    train_set, test_set = (pt.get_dataset(DATASET.format(split, options.language)) for split in ("train", "test"))
    train_topics, test_topics = train_set.get_topics(), test_set.get_topics()

    def records() -> Iterator[dict[str, Any]]:
        return (patent.to_record() for patent in patents.patents(workers=options.workers))

    graph = DocumentGraph(output / "graph")
    if not graph.built():
        graph.index(records())
    frequencies = DocumentFrequencies(output / "frequencies")
    if not frequencies.built():
        frequencies.index(records())
    bm25 = index_bm25(Documents(graph), output / options.first_stage, options.first_stage) % options.documents
    claims = ClaimsQuery(options.query_tokens)
    retrieve = (
        claims
        >> AbstractTerms(frequencies)
        >> bm25
        >> pt.rewrite.reset()
        >> NotOwnFamily()
        >> SharedCodes(graph, options.level)
    )
    qrels = train_set.get_qrels()
    judged = claims.transform(train_topics)[["qid", "query", "codes"]].merge(qrels[["qid", "docno"]], on="qid")
    lengths = {"max_passage_tokens": options.passage_tokens, "max_query_tokens": options.query_tokens}
    encoder = functools.partial(TokenEncoder, options.encoder, **lengths)
    return Bench(patents, graph, encoder, (judged, qrels), retrieve(test_topics), test_set.get_qrels())


class Documents:
    """What BM25 indexes: the documents as the graph has them, so that their files are not parsed again."""

    def __init__(self, graph: DocumentGraph) -> None:
        self.graph = graph

    def get_corpus_iter(self, *, verbose: bool) -> Iterator[dict[str, str]]:
        """Documents with ``docno``, ``title`` and ``text``."""
        return self.graph.get_corpus_iter("documents", verbose=verbose)


def train(bench: Bench, variant: Variant, negatives: Strategy, seed: int, options: argparse.Namespace) -> HGATReranker:
    """Trains a model. Nothing stops it early: the paper has no validation topics."""
    training = HGATTraining(
        negatives=negatives,
        repeats=options.repeats,
        epochs=options.epochs,
        encoder_learning_rate=options.encoder_learning_rate or None,
        seed=seed,
    )
    reranker = HGATReranker(bench.graph, bench.encoder(), variant, training=training, seed=seed, verbose=True)
    return reranker.fit(*bench.training)


def model_name(variant: Variant, negatives: Strategy) -> str:
    """The paper's name of a model, and the strategy unless it is the one that the paper settled on."""
    name = HGATConfig(dimension=1, relations=(), variant=variant, heads=1).name
    return name if negatives == "mixed" else f"{name} {negatives}"


def claim(note: Path, options: argparse.Namespace) -> None:
    """Notes what the runs in a folder were made with; ends the program if they were made with something else."""
    made_with = {name: value for name, value in vars(options).items() if name not in MORE_OF_THE_SAME}
    if note.exists() and json.loads(note.read_text("utf-8")) != made_with:
        raise SystemExit(f"{str(note.parent)!r} holds runs made with other options: choose another --output")
    note.write_text(json.dumps(made_with, indent=1), encoding="utf-8")


def table_of(values: pd.DataFrame) -> pd.DataFrame:
    """Means and standard deviations in percent, and which other models a model is significantly better than.

    Args:
        values: ``model``, ``seed``, and a column per measure.

    Returns:
        A row per model; one that was trained several times has a letter. ``52.2 ijk ± 0.8``: better than the models i,
        j and k by a two-sided Mann-Whitney U test over the trainings, p < 0.05.
    """
    by_model = dict([*values.groupby("model", sort=False)])
    letters = dict(zip((name for name, runs in by_model.items() if len(runs) > 1), LETTERS, strict=False))
    rows = []
    for name, runs in by_model.items():
        row = {"": letters.get(name, ""), "model": name}
        for measure in values.columns[2:]:
            row[measure] = "-" if runs[measure].isna().all() else f"{100 * runs[measure].mean():.1f}"
            if name in letters:
                others = {letter: by_model[other][measure] for other, letter in letters.items()}
                over = "".join(letter for letter in others if significantly_better(runs[measure], others[letter]))
                row[measure] += f" {over} ± {100 * runs[measure].std():.1f}".replace("  ", " ")
        rows.append(row)
    return pd.DataFrame(rows)


def significantly_better(values: pd.Series, others: pd.Series) -> bool:
    """Whether values are higher by a two-sided Mann-Whitney U test."""
    return values.mean() > others.mean() and mannwhitneyu(values, others).pvalue < SIGNIFICANT


if __name__ == "__main__":
    main()
