"""HGAT on CLEF-IP 2013, as in Albarede et al. 2023: every model is trained and tested ten times.

    python -m experiments.clef_ip_2013 --output OUTPUT

The collection is licensed: without it, this says where to get it and where to put it. The table is the paper's
Table 4 or, with ``--variants BASE`` and several ``--negatives``, its Table 3. Table 7 has the rows BM25 and, with
``--colbert``, ColBERT. ``lambdas.csv`` is Table 5, ``relations.csv`` Table 6, ``boxplots.svg`` Fig. 4. The run of each
training is written when it is complete, so an interrupted experiment continues with the next one.

Unlike in the paper, the encoder is ColBERTv2, which was distilled; BM25 is PISA's (``--first-stage terrier`` is the
paper's); and a patent has no bibliography.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bm25s
import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import Stemmer
from ir_measures import AP, R
from ir_measures.measures import Measure
from matplotlib.figure import Figure
from scipy.stats import mannwhitneyu

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Queries
from experiments.harness.command import add_options
from experiments.harness.first_stage import bm25
from experiments.harness.results import claim, slug, write
from pyterrier_graph.clef_ip import (
    AbstractTerms,
    ClaimsQuery,
    DocumentCutoff,
    DocumentFrequencies,
    NotOwnFamily,
    SharedCodes,
)
from pyterrier_graph.evaluation.measures import MAPD, PRECD, PRES, on_documents
from pyterrier_graph.hgat.equations import Variant
from pyterrier_graph.hgat.negatives import Strategy

DATASET = "irds:clef-ip/2013/claims-to-passages/{}/en"
MEASURES: dict[str, Measure] = {
    "PRES@100": on_documents(PRES @ 100),
    "Recall@100": on_documents(R @ 100),
    "MAP@100": on_documents(AP @ 100),
    "MAP(D)": MAPD,
    "PREC(D)": PRECD,
}
LETTERS = "ijklmnopqrstuvwxyzabcdefgh"  # the paper's begin with i
SIGNIFICANT = 0.05
COLBERT = "ColBERT, fine-tuned"
# starts as plain MaxSim, and only the encoder learns
WITHOUT_GRAPH = ptg.HGATConfig("BASE", relations=(), matches={}, init="identity")
# in the order of Table 4, whose letters begin with i
VARIANTS: tuple[Variant, ...] = (
    *("BASE", "NO", "LB", "NS", "NO_LB"),
    *("LB_NS", "NO_NS", "NO_LB_NS"),
)
STRATEGIES = ("random", "same_doc", "relevant_docs", "shared_codes", "mixed")


class Bench(NamedTuple):
    """The data that all models share.

    Attributes:
        graph: The graph of the collection.
        training: Training topics with the passages judged for them, and the judgments.
        candidates: The documents found for the test topics.
        qrels: Judgments of the test topics.
    """

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
        level=("subclass", "of shared IPC codes", ["subclass", "group"]),
        first_stage=("pisa", "what BM25 runs on", ["pisa", "terrier"]),
    )
    add_options(
        command,
        "models",
        variants=([*VARIANTS], "of HGAT", VARIANTS),
        encoder=("colbert-ir/colbertv2.0", "a name or a folder"),
        colbert=(False, "fine-tune the encoder without a graph as well"),
        passage_tokens=(180, "tokens of a passage that are encoded"),
        query_tokens=(120, "tokens of the claims that are encoded; ColBERT fills up shorter ones"),
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
    options = command_line().parse_args(arguments)
    output = options.output
    try:
        bench = prepare(options)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
    claim(output, options, ("variants", "negatives", "runs", "colbert"))
    systems: list[tuple[str, int, Callable[[], pt.Transformer]]] = [
        ("BM25", 0, PassageBM25),
        ("MaxSim", 0, lambda: ptg.GraphMaxSim(bench.graph, encoder(options), {})),
    ]
    for variant, negatives in itertools.product(options.variants, options.negatives):
        config = ptg.HGATConfig.paper(variant)
        name = config.name if negatives == "mixed" else f"{config.name} {negatives}"
        make = functools.partial(train, bench, options, name, config, negatives)
        systems += [(name, seed, functools.partial(make, seed)) for seed in range(options.runs)]
    if options.colbert:
        make = functools.partial(train, bench, options, COLBERT, WITHOUT_GRAPH, "mixed")
        systems += [(COLBERT, seed, functools.partial(make, seed)) for seed in range(options.runs)]
    rows = [measured(bench, options, *system) for system in systems]
    values = pd.DataFrame(rows)
    values.to_csv(output / "values.csv", index=False)
    table = table_of(values)
    table.to_csv(output / "table.csv", index=False)
    print(table.to_string(index=False))
    draw(values, output)
    tabulate_scalars(output)
    return table


def measured(
    bench: Bench,
    options: argparse.Namespace,
    model: str,
    seed: int,
    make: Callable[[], pt.Transformer],
) -> dict[str, Any]:
    """The measures of one training of a model, whose run is made if it is not stored."""
    file = options.output / "runs" / f"{slug(model)}-{seed}.csv"
    if not file.exists():
        pipeline = bench.graph.passages() >> make() >> DocumentCutoff(passages=options.passages)
        # topic by topic: the token vectors of the passages of a thousand patents fit into memory once
        topics = bench.candidates.groupby("qid", sort=False)
        topics = pt.tqdm(topics, desc=f"{model}, {seed}", unit="topic")
        run = pd.concat([pipeline(documents) for _, documents in topics])
        write(run[["qid", "docno", "score"]], file)
    run = pd.read_csv(file, dtype={"qid": str})
    run = pt.model.to_ir_measures(pt.model.add_ranks(run))
    qrels = pt.model.to_ir_measures(bench.qrels)
    values = ir_measures.calc_aggregate(MEASURES.values(), qrels, run)
    return {"model": model, "seed": seed} | {name: values[MEASURES[name]] for name in MEASURES}


class PassageBM25(pt.Transformer):
    """Ranks the passages of each document by BM25, and the documents as before.

    Document frequencies are those of the passages that are ranked.
    """

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Ranks the passages of one topic."""
        pt.validate.result_frame(inp, extra_columns=["query", "text"], context=self)
        if not len(inp):
            return inp
        stem = Stemmer.Stemmer("english")
        tokenize = functools.partial(bm25s.tokenize, stemmer=stem, show_progress=False)
        index = bm25s.BM25(k1=1.2, b=0.75)
        index.index(tokenize(inp["text"].tolist()), show_progress=False)
        words = tokenize([inp["query"].iloc[0]], return_ids=False)[0]
        order = np.lexsort((-index.get_scores(words), -inp["score"]))
        score = np.empty(len(inp))
        score[order] = -np.arange(len(inp))
        return pt.model.add_ranks(inp.assign(score=score))


def prepare(options: argparse.Namespace) -> Bench:
    """Makes, or finds in the output folder, graph, document frequencies and index; retrieves documents.

    Raises:
        FileNotFoundError: If a part of the collection is missing; the message says where to get it.
    """
    patents, output = pt.get_dataset("irds:clef-ip"), options.output
    train_set, test_set = (pt.get_dataset(DATASET.format(split)) for split in ("train", "test"))
    train_topics, test_topics = train_set.get_topics(), test_set.get_topics()
    graph = ptg.DocumentGraph(output / "graph")
    if not graph.built():
        graph.index(patents.get_corpus_iter())
    frequencies = DocumentFrequencies(output / "frequencies")
    if not frequencies.built():
        frequencies.index(patents.get_corpus_iter())
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
    return Bench(graph, (judged, qrels), retrieve(test_topics), test_qrels)


def encoder(options: argparse.Namespace) -> ptg.TokenEncoder:
    """A new encoder."""
    lengths = {
        "max_passage_tokens": options.passage_tokens,
        "max_query_tokens": options.query_tokens,
        "expanded_query_tokens": options.query_tokens,
    }
    return ptg.TokenEncoder(options.encoder, **lengths)


def train(
    bench: Bench,
    options: argparse.Namespace,
    name: str,
    config: ptg.HGATConfig,
    negatives: Strategy,
    seed: int,
) -> ptg.HGATReranker:
    """Trains a model, and stores its scalars. Nothing stops training early: the paper has no validation topics."""
    training = ptg.HGATTraining.paper(
        negatives=negatives,
        repeats=options.repeats,
        epochs=options.epochs,
        encoder_learning_rate=options.encoder_learning_rate or None,
        frozen_encoder_layers=options.frozen_layers,
        seed=seed,
    )
    if config is WITHOUT_GRAPH:
        training = dataclasses.replace(training, learning_rate=0.0)
    config = dataclasses.replace(config, seed=seed)
    reranker = ptg.HGATReranker(bench.graph, encoder(options), config=config, training=training)
    reranker.fit(*bench.training)
    if config.relations != ():
        scalars = scalars_of(reranker).assign(model=name, seed=seed)
        write(scalars, options.output / "scalars" / f"{slug(name)}-{seed}.csv")
    return reranker


def scalars_of(reranker: ptg.HGATReranker) -> pd.DataFrame:
    """The importance of each relation per layer, lambda per layer, and alpha: ``scalar, layer, value``."""
    network, rows = reranker.network, []
    for number, layer in enumerate(network.layers, start=1):
        rows += [(relation, number, value) for relation, value in layer.importance().items()]
        if layer.lambda_ is not None:
            rows.append(("lambda", number, layer.lambda_.item()))
    if network.alpha is not None:
        rows.append(("alpha", 0, network.alpha.item()))
    return pd.DataFrame(rows, columns=["scalar", "layer", "value"])


def tabulate_scalars(output: Path) -> None:
    """Writes Tables 5 (lambda and alpha) and 6 (relations) from the scalars of all trainings."""
    files = sorted((output / "scalars").glob("*.csv"))
    if not files:
        return
    scalars = pd.concat([pd.read_csv(file) for file in files])
    of_content = scalars["scalar"].isin(["lambda", "alpha"])
    keys = ["scalar", "layer"]
    for name, rows in (("lambdas", scalars[of_content]), ("relations", scalars[~of_content])):
        table = rows.pivot_table("value", keys, "model", ["mean", "std"], sort=False, dropna=False)
        table.dropna(how="all").to_csv(output / f"{name}.csv")


def draw(values: pd.DataFrame, output: Path) -> None:
    """Draws a box per model and measure from the models that were trained several times (Fig. 4)."""
    repeated = values[values["model"].duplicated(keep=False)]
    if not len(repeated):
        return
    figure = Figure(figsize=(4 * len(MEASURES), 4), layout="constrained")
    for measure, ax in zip(MEASURES, figure.subplots(1, len(MEASURES)), strict=True):
        boxes = repeated.groupby("model", sort=False)[measure].agg(list)
        ax.boxplot(boxes.tolist(), tick_labels=boxes.index.tolist(), whis=(0, 100))
        ax.set_title(measure)
        ax.tick_params(axis="x", labelrotation=90)
    figure.savefig(output / "boxplots.svg")


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
