"""HGAT on CLEF-IP 2013, as in Albarede et al. 2023: every model is trained and tested ten times.

    python -m experiments.clef_ip_2013 --output OUTPUT

The collection is licensed: without it, this says where to get it and where to put it. The table is the paper's Table 4,
or, with several ``--negatives``, its Table 3. The run of each training is written in the task's format when it is
complete, so that an interrupted experiment continues with the next one. The measures are those of these files.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import ir_measures
import pandas as pd
import pyterrier as pt
from ir_measures import AP, R
from ir_measures.measures import Measure
from scipy.stats import mannwhitneyu

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Queries
from experiments.harness.command import add_options, parse_counts
from experiments.harness.first_stage import bm25
from experiments.harness.results import claim, slug
from pyterrier_graph.clef_ip import (
    AbstractTerms,
    Archive,
    ClaimsQuery,
    DocumentCutoff,
    DocumentFrequencies,
    NotOwnFamily,
    SharedCodes,
)
from pyterrier_graph.clef_ip.files import archive
from pyterrier_graph.evaluation.measures import MAPD, PRECD, PRES, on_documents
from pyterrier_graph.hgat.equations import Variant
from pyterrier_graph.hgat.negatives import Strategy

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


class Bench(NamedTuple):
    """The data that all models share.

    Attributes:
        patents: The collection.
        graph: Its graph.
        training: Training topics with the passages judged for them, and the judgments.
        candidates: The documents found for the test topics.
        qrels: Judgments of the test topics.
    """

    patents: Archive
    graph: ptg.DocumentGraph
    training: tuple[pd.DataFrame, pd.DataFrame]
    candidates: pd.DataFrame
    qrels: pd.DataFrame


def command_line() -> argparse.ArgumentParser:
    """The command line; the defaults are the paper's, where it says."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--output", type=Path, required=True, help="folder for graph, index and runs"
    )
    add_options(
        command,
        "candidates",
        depth=(1000, "documents that BM25 finds for a topic"),
        queries=(int, "test topics, drawn at random (all)"),
        passages=(
            int,
            "passages of a document that are handed in (all); MAP(D) and PREC(D) depend on it",
        ),
        language=("en", "of the topics", ["en", "de", "fr"]),
        level=("subclass", "of shared IPC codes", ["subclass", "group"]),
        first_stage=("pisa", "what BM25 runs on", ["pisa", "terrier"]),
        workers=(1, "processes that read the collection"),
    )
    add_options(
        command,
        "models",
        variants=([*get_args(Variant)], "of HGAT", get_args(Variant)),
        encoder=("colbert-ir/colbertv2.0", "a name or a folder"),
        passage_tokens=(180, "tokens of a passage that are encoded"),
        query_tokens=(120, "tokens of the claims that are encoded"),
    )
    add_options(
        command,
        "training",
        runs=(10, "how often each model is trained, with seeds 0, 1, ..."),
        negatives=(["mixed"], "of triples", STRATEGIES),
        repeats=(1000, "negatives per relevant passage and epoch"),
        epochs=(1, "epochs; the paper does not say"),
        encoder_learning_rate=(3e-6, "0 leaves the encoder as it is"),
        frozen_layers=(6, "layers of the encoder that do not learn"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the experiment, and returns its table."""
    options = parse_counts(command_line(), arguments)
    output = options.output
    try:
        bench = prepare(options)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
    claim(output, options, ("variants", "negatives", "runs", "workers"))
    cutoff = DocumentCutoff(passages=options.passages)
    values = []

    def evaluate(model: str, seed: int, make: Callable[[], pt.Transformer]) -> None:
        file = output / "runs" / f"{slug(model)}-{seed}.csv"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            pipeline = bench.graph.passages() >> make() >> cutoff
            # topic by topic: the token vectors of all passages of a thousand patents fit into memory once
            found = pt.tqdm(
                bench.candidates.groupby("qid", sort=False), desc=f"{model}, {seed}", unit="topic"
            )
            run = pd.concat([pipeline(documents) for _, documents in found])[
                ["qid", "docno", "score"]
            ]
            with pt.io.finalized_open(str(file), "b") as out:
                out.write(run.to_csv(index=False).encode())
        run = pd.read_csv(file, dtype={"qid": str}, float_precision="round_trip")
        run = pt.model.to_ir_measures(pt.model.add_ranks(run))
        measured = ir_measures.calc_aggregate(
            MEASURES.values(), pt.model.to_ir_measures(bench.qrels), run
        )
        values.append(
            {"model": model, "seed": seed} | {name: measured[MEASURES[name]] for name in MEASURES}
        )

    evaluate("BM25", 0, pt.Transformer.identity)
    values[0] |= dict.fromkeys(
        WITHIN_DOCUMENTS, float("nan")
    )  # it does not rank the passages of a document
    evaluate("MaxSim", 0, lambda: ptg.GraphMaxSim(bench.graph, encoder(options), {}))
    for variant, negatives, seed in itertools.product(
        options.variants, options.negatives, range(options.runs)
    ):
        make = functools.partial(train, bench, variant, negatives, seed, options)
        evaluate(model_name(variant, negatives), seed, make)
    frame = pd.DataFrame(values)
    frame.to_csv(output / "values.csv", index=False)
    table = table_of(frame)
    table.to_csv(output / "table.csv", index=False)
    print(table.to_string(index=False))
    return table


def prepare(options: argparse.Namespace) -> Bench:
    """Makes, or finds in the output folder, graph, document frequencies and index; retrieves documents.

    Raises:
        FileNotFoundError: If a part of the collection is missing; the message says where to get it.
    """
    patents, output = archive(), options.output
    train_set, test_set = (
        pt.get_dataset(DATASET.format(split, options.language)) for split in ("train", "test")
    )
    train_topics, test_topics = train_set.get_topics(), test_set.get_topics()

    def records() -> Iterator[dict[str, Any]]:
        return (patent.to_record() for patent in patents.patents(workers=options.workers))

    graph = ptg.DocumentGraph(output / "graph")
    if not graph.built():
        graph.index(records())
    frequencies = DocumentFrequencies(output / "frequencies")
    if not frequencies.built():
        frequencies.index(records())
    # the documents as the graph has them, so that their files are not parsed again
    collection = Collection("CLEF-IP", lambda: graph.get_corpus_iter("documents"), {})
    claims = ClaimsQuery(options.query_tokens)
    retrieve = (
        claims
        >> AbstractTerms(frequencies)
        >> bm25(collection, output / options.first_stage, options.first_stage) % options.depth
        >> pt.rewrite.reset()
        >> NotOwnFamily()
        >> SharedCodes(graph, options.level)
    )
    qrels = train_set.get_qrels()
    judged = claims.transform(train_topics)[["qid", "query", "codes"]].merge(
        qrels[["qid", "docno"]], on="qid"
    )
    test_topics, test_qrels = Queries(test_topics, test_set.get_qrels()).sample(options.queries)
    return Bench(patents, graph, (judged, qrels), retrieve(test_topics), test_qrels)


def encoder(options: argparse.Namespace) -> ptg.TokenEncoder:
    """A new encoder."""
    lengths = {
        "max_passage_tokens": options.passage_tokens,
        "max_query_tokens": options.query_tokens,
    }
    return ptg.TokenEncoder(options.encoder, **lengths)


def train(
    bench: Bench, variant: Variant, negatives: Strategy, seed: int, options: argparse.Namespace
) -> ptg.HGATReranker:
    """Trains a model. Nothing stops training early: the paper has no validation topics."""
    training = ptg.HGATTraining.paper(
        negatives=negatives,
        repeats=options.repeats,
        epochs=options.epochs,
        encoder_learning_rate=options.encoder_learning_rate or None,
        frozen_encoder_layers=options.frozen_layers,
        seed=seed,
    )
    config = ptg.HGATConfig.paper(variant, seed=seed)
    reranker = ptg.HGATReranker(bench.graph, encoder(options), config=config, training=training)
    return reranker.fit(*bench.training)


def model_name(variant: Variant, negatives: Strategy) -> str:
    """The paper's name of a model, and the strategy unless it is the one that the paper settled on."""
    name = ptg.HGATConfig(variant).name
    return name if negatives == "mixed" else f"{name} {negatives}"


def table_of(values: pd.DataFrame) -> pd.DataFrame:
    """Means and standard deviations in percent, and which other models a model is significantly better than.

    Args:
        values: ``model``, ``seed``, and a column per measure.

    Returns:
        A row per model; one that was trained several times has a letter. ``52.2 ijk ± 0.8``: better than the models i,
        j and k by a two-sided Mann-Whitney U test over the trainings, p < 0.05.
    """
    by_model = dict([*values.groupby("model", sort=False)])
    letters = dict(
        zip((name for name, runs in by_model.items() if len(runs) > 1), LETTERS, strict=False)
    )
    rows = []
    for name, runs in by_model.items():
        row = {"": letters.get(name, ""), "model": name}
        for measure in values.columns[2:]:
            row[measure] = (
                "-" if runs[measure].isna().all() else f"{100 * runs[measure].mean():.1f}"
            )
            if name in letters:
                others = {letter: by_model[other][measure] for other, letter in letters.items()}
                over = "".join(
                    letter
                    for letter in others
                    if significantly_better(runs[measure], others[letter])
                )
                row[measure] += f" {over} ± {100 * runs[measure].std():.1f}".replace("  ", " ")
        rows.append(row)
    return pd.DataFrame(rows)


def significantly_better(values: pd.Series, others: pd.Series) -> bool:
    """Whether values are higher by a two-sided Mann-Whitney U test."""
    return values.mean() > others.mean() and mannwhitneyu(values, others).pvalue < SIGNIFICANT


if __name__ == "__main__":
    main()
