r"""A cross-encoder that is trained here, for experiments on machines that can download none.

    python -m experiments.base_models medquad=PATH numpydoc trec-car=PATH --pairs 30000 --output OUTPUT

It starts at a sentence encoder and learns from the training queries of all collections: each relevant passage against
passages that BM25 and the dual-encoder find, other passages of the same document, and as many passages at random. It
begins with random ones alone: on hard negatives, the loss stayed for hundreds of steps where it is by chance. Splits
are those of the collections, so no test query or test page is in the training. The weights that are best on dev queries
of all collections are kept, in ``OUTPUT/cross-encoder``, which ``--checkpoint`` or ``--teacher`` of other experiments
takes. ``--checkpoint`` of this one continues a training, for instance with longer passages. With ``--unseen`` it can be
a teacher that knows no more than its student: it learns from no question about the pages of the student's sample.

A call that was killed continues when it is repeated. ``python -m experiments.text_rerankers COLLECTION --split
--checkpoint OUTPUT/cross-encoder --systems off-the-shelf`` evaluates the model.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg
from experiments.collections import COLLECTIONS, open_collection
from experiments.harness.checkpoints import trained_cross_encoder
from experiments.harness.collection import Queries, joined
from experiments.harness.command import Named, add_options, parse_counts, show_progress
from experiments.harness.first_stage import bm25
from experiments.harness.results import claim, write
from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.graphs.hetero_graph import documents_of
from pyterrier_graph.lgre.cross_encoder import CHECKPOINT

NEGATIVES = ("bm25", "dual-encoder", "document", "random")
PASSAGE_TOKENS = 128  # of the dual-encoder
WHOLE = ("cranfield", "cacm", "vaswani")  # collections of abstracts, each of which is one passage

logger = logging.getLogger(__name__)


class Examples(NamedTuple):
    """Queries with documents (``qid, query, docno, text, rank``), and judgments for them."""

    run: pd.DataFrame
    qrels: pd.DataFrame


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = f"{', '.join(COLLECTIONS)}; those in a folder as NAME=FOLDER"
    command.add_argument(
        "collections", nargs="+", type=collection_name, help=f"with training queries: {named}"
    )
    command.add_argument(
        "--output", type=Path, required=True, help="folder for indexes, the model, runs and tables"
    )
    add_options(
        command,
        "examples",
        passages=(0, "size of the sample of MedQuAD; 0: all of it"),
        negatives=(
            [*NEGATIVES],
            "found by a first stage, of the same document, or at random",
            NEGATIVES,
        ),
        per_query=(
            6,
            "negatives of a query from each of them; at random as many as from all others",
        ),
        train_queries=(int, "training queries of each collection, drawn at random (all)"),
        dev_queries=(30, "validation queries of each collection, drawn at random"),
        dev_candidates=(15, "passages of each that are reranked"),
        unseen=(
            int,
            "size of a sample of MedQuAD: no question of its pages is for training or validation (none)",
        ),
    )
    add_options(
        command,
        "training",
        encoder=(DEFAULT, "where it starts, and the dual-encoder"),
        checkpoint=(str, "a cross-encoder, at which it starts instead"),
        pairs=(30_000, "pairs of a relevant and another passage"),
        random_pairs=(5000, "before these, pairs with random passages alone"),
        random_tokens=(48, "tokens of query and passage in these"),
        against=(4, "passages that a relevant one is compared with at once"),
        loss=("listwise", "of the ranking", ["listwise", "pointwise", "hinge", "softmax"]),
        batch=(8, "relevant passages at a time"),
        learning_rate=(1e-3, "of the head, at its highest"),
        encoder_learning_rate=(1e-4, "of the encoder, at its highest"),
        warmup=(0.05, "share of the steps in which the rates rise; afterwards they fall to 0"),
        evaluations=(10, "validations"),
        patience=(4, "validations without improvement after which training ends"),
        max_tokens=(128, "tokens of query and passage"),
        seed=(0, "of pairs, head and dropout"),
    )
    return command


def collection_name(text: str) -> str:
    """A collection, with its folder if it needs one, from the command line."""
    name, path = Named.parse(text)
    if path is None and not name.startswith("numpydoc"):
        raise argparse.ArgumentTypeError(f"{name} needs the folder that it is in: {name}=FOLDER")
    return text


def main(arguments: Sequence[str] | None = None) -> ptg.CrossEncoderReranker:
    """Trains the model, unless it is there, and returns it."""
    show_progress()
    command = command_line()
    options = parse_counts(command, arguments)
    for name, path in map(Named.parse, options.collections):
        if path and not path.exists():
            command.error(f"{name}: {str(path)!r} does not exist")
    return run(options)


def run(options: argparse.Namespace) -> ptg.CrossEncoderReranker:
    """The trained cross-encoder, from its folder if it is there; see :func:`command_line`."""
    claim(options.output, options, ())
    folder = options.output / CHECKPOINT
    if not folder.exists():
        places = [Place(name, options) for name in options.collections]
        start = (
            trained_cross_encoder(options.checkpoint, "--checkpoint")
            if options.checkpoint
            else options.encoder
        )
        if options.random_pairs and not options.checkpoint:
            begun = options.output / "begun"
            if not begun.exists():
                lengths = {
                    "negatives": ["random"],
                    "pairs": options.random_pairs,
                    "max_tokens": options.random_tokens,
                }
                train(
                    start,
                    places,
                    argparse.Namespace(**vars(options) | lengths | {"evaluations": 1}),
                    begun,
                )
            start = str(begun / CHECKPOINT)
        train(start, places, options, folder)
    return ptg.CrossEncoderReranker.load(folder)


def train(start: str, places: Sequence[Place], options: argparse.Namespace, folder: Path) -> None:
    """Trains a cross-encoder, and saves it in a folder; the log and checkpoints are next to it."""
    training = ptg.CrossEncoderTraining(
        epochs=1,
        batch_size=options.batch,
        learning_rate=options.learning_rate,
        encoder_learning_rate=options.encoder_learning_rate,
        pairs_per_epoch=options.pairs,
        negatives=options.against,
        ranking=options.loss,
        evaluations=options.evaluations,
        patience=options.patience,
        validation_candidates=None,
        seed=options.seed,
        output_dir=f"{folder}.checkpoints",
        arguments={"lr_scheduler_type": "linear", "warmup_steps": options.warmup},
    )
    model = ptg.CrossEncoderReranker(start, training=training, max_tokens=options.max_tokens)
    data, dev = (
        together(part) for part in zip(*(examples(place, options) for place in places), strict=True)
    )
    logger.info(
        "%s: %d training queries, %d passages",
        folder.name,
        data.run["qid"].nunique(),
        len(data.run),
    )
    model.fit(*data, *dev).save(folder)
    pd.DataFrame(model.training_log).to_csv(f"{folder}.csv", index=False)


class Place:
    """A collection of passages, with its first stages.

    Args:
        named: Name and folder of the collection.
        options: See :func:`command_line`.
    """

    def __init__(self, named: str, options: argparse.Namespace) -> None:
        self.name, path = Named.parse(named)
        self.options, self.folder = options, options.output / "collections" / self.name
        opened = partial(argparse.Namespace, collection=self.name, path=path)
        everything = open_collection(opened(passages=options.passages or None))
        whole = self.name in WHOLE or not everything.structured  # what is judged are passages
        self.collection = everything.whole() if whole else everything
        self.passages = self.collection.passages()
        self.unseen: set[str] = set()
        if self.name == "medquad" and options.unseen:
            sample = open_collection(opened(passages=options.unseen))
            self.unseen = {record["docno"] for record in sample.documents()}

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each passage."""
        return {record["docno"]: record["text"] for record in self.passages.documents()}

    def seen(self, queries: Queries) -> Queries:
        """The queries to which no document of the unseen sample is relevant."""
        documents = documents_of(queries.qrels["docno"])
        return queries.without(queries.among(queries.qrels["qid"][documents.isin(self.unseen)]))

    def first_stage(self, name: str) -> pt.Transformer:
        """``qid, query`` to passages."""
        if name == "bm25":
            return bm25(self.passages, self.folder / "pisa")
        graph = self.collection.graph(self.folder / "documents")
        index = base_vectors(self.folder / "vectors", graph, self.encoder).flex
        return self.encoder.query_encoder() >> index.np_retriever(
            num_results=1000, drop_query_vec=True
        )

    @cached_property
    def encoder(self) -> ptg.DualEncoder:
        """The dual-encoder."""
        return ptg.DualEncoder(
            self.options.encoder,
            max_query_tokens=32,
            max_passage_tokens=PASSAGE_TOKENS,
            verbose=False,
        )

    def with_texts(self, run: pd.DataFrame) -> pd.DataFrame:
        """A run with a column ``text``."""
        return run.assign(text=run["docno"].map(self.texts))


def examples(place: Place, options: argparse.Namespace) -> tuple[Examples, Examples]:
    """Training and validation examples of a collection; what was found for training queries is kept in a file."""
    splits = place.collection.split(dev_queries=options.dev_queries)
    train, dev = (
        place.seen(splits["train"]).sample(options.train_queries),
        place.seen(splits["dev"]),
    )
    file = place.folder / f"{'-'.join(options.negatives)}.csv.gz"
    if not file.exists():
        write(mined(place, train, options), file)
    found = pd.read_csv(file, dtype={"qid": str, "docno": str}).merge(train.topics, on="qid")
    candidates = (place.first_stage("bm25") % options.dev_candidates)(dev.topics)
    return tuple(  # type: ignore[return-value]
        renamed(place.name, Examples(place.with_texts(run), qrels))
        for run, qrels in ((found, train.qrels), (candidates, dev.qrels))
    )


def renamed(name: str, examples: Examples) -> Examples:
    """Examples whose ids differ from those of other collections."""
    run, qrels = (
        f.assign(qid=f"{name}:" + f["qid"], docno=f"{name}:" + f["docno"]) for f in examples
    )
    return Examples(run[["qid", "query", "docno", "text", "rank"]], qrels)


def together(parts: Sequence[Examples]) -> Examples:
    """The examples of several collections."""
    return Examples(*joined([Queries(*part) for part in parts]))


def mined(place: Place, train: Queries, options: argparse.Namespace) -> pd.DataFrame:
    """The relevant passages of the training queries and, from each source, some others: ``qid, docno, rank``.

    Passages with the text of a relevant one are left out: in some collections the same text stands in several places.
    """
    relevant = train.qrels[train.qrels["label"] > 0].groupby("qid")["docno"].agg(list).to_dict()
    sources: list[dict[str, list[str]]] = []
    hard = [name for name in options.negatives if name != "random"]
    for name in hard:
        if name == "document":
            sources.append(dict(same_document(place, relevant, options.seed)))
        else:
            found = (place.first_stage(name) % (5 * options.per_query))(train.topics)
            sources.append(found.sort_values("rank").groupby("qid")["docno"].agg(list).to_dict())
    random, everything = np.random.default_rng(options.seed), [*place.texts]
    at_random = options.per_query * max(1, len(hard)) if "random" in options.negatives else 0
    rows = []
    for qid, positives in relevant.items():
        chosen, taken = [*positives], {place.texts[docno] for docno in positives}
        for source in sources:
            others = [docno for docno in source.get(qid, ()) if place.texts[docno] not in taken][
                : options.per_query
            ]
            taken.update(place.texts[docno] for docno in others)
            chosen += others
        drawn = [everything[number] for number in random.integers(len(everything), size=at_random)]
        chosen += [docno for docno in dict.fromkeys(drawn) if place.texts[docno] not in taken]
        rows += [(qid, docno, rank) for rank, docno in enumerate(chosen)]
    return pd.DataFrame(rows, columns=["qid", "docno", "rank"])


def same_document(
    place: Place, relevant: dict[str, list[str]], seed: int
) -> Iterator[tuple[str, list[str]]]:
    """The passages of the documents of relevant passages, by query, in random order."""
    documents: defaultdict[str, list[str]] = defaultdict(list)
    for docno in place.texts:
        documents[split_passage_id(docno)[0]].append(docno)
    for qid, docnos in relevant.items():
        names = dict.fromkeys(split_passage_id(docno)[0] for docno in docnos)
        passages = pd.Series([docno for name in names for docno in documents[name]], dtype=str)
        yield qid, passages.sample(frac=1, random_state=seed).tolist()


if __name__ == "__main__":
    main()
