"""GNN-encoders against the rule and the control, on collections that need no model hub.

``python -m experiments.gnn_compare numpydoc``: docstrings, cut into passages of about 120 words; documents are ranked by
their best passage. Passages listen to the summary lines of all objects; the descriptions that other objects' "See Also"
lists give are for training (half of both see-also sets, by object), and for validation and test (the other halves).
``python -m experiments.gnn_compare medquad PATH``, ``trec-car PATH``: split by page, so that no passage that a test
query looks for has a training query; with ``--channels structural order order_i`` passages listen to their titles and
neighbors. ``vaswani PATH``, ``cranfield PATH``: three fifths of the queries are listened to; ``--folds 0 1 2 3 4`` has
all of them tested, a fifth at a time.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from experiments.collection import SPLITS, Collection, TextCollection, fraction
from experiments.cranfield import read_cranfield
from experiments.dense_retrieval import Queries, among, divided
from experiments.fused_retrieval import Task, parser, run, run_folds
from experiments.medquad import read_medquad
from experiments.trec_car import read_trec_car
from experiments.vaswani import read_vaswani
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve

NUMPYDOC = "irds:pyterrier-graph/numpydoc"
STRUCTURED = {"medquad": read_medquad, "trec-car": read_trec_car}
FLAT = {"vaswani": read_vaswani, "cranfield": read_cranfield}


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the comparison; see :func:`experiments.fused_retrieval.run` for what it writes."""
    command = parser()
    command.prog, command.description = "python -m experiments.gnn_compare", __doc__
    command.add_argument("collection", choices=["numpydoc", "numpydoc-numpy", *STRUCTURED, *FLAT])
    command.add_argument("path", type=Path, nargs="?", help="folder of the collection")
    command.add_argument("--passages", type=int, default=17_500, help="size of the sample of MedQuAD (%(default)s)")
    command.set_defaults(model=resolve(DEFAULT), max_length=160)
    options = command.parse_args(arguments)
    name = options.collection
    if options.folds and name not in FLAT:
        command.error(f"--folds is for {' and '.join(FLAT)}: the others have test queries")
    if name.startswith("numpydoc"):
        options.passage_words = options.passage_words or 120
        task = numpydoc("numpy" if name.endswith("numpy") else "all")
    elif name in STRUCTURED:
        size = {"passages": options.passages} if name == "medquad" else {}
        task = structured(STRUCTURED[name](options.path, **size))
        options.passage_words = options.passage_words or 120
    else:
        read = FLAT[name](options.path)
        if options.folds:
            return run_folds(lambda fold: flat(read, fold), options)
        task = flat(read)
    return run(task, options)


def numpydoc(size: str) -> Task:
    """Docstrings whose summary lines are listened to."""
    dataset = f"{NUMPYDOC}/{size}"

    def queries(*names: str) -> Queries:
        parts = [pt.get_dataset(f"{dataset}/{name}") for name in names]
        topics, qrels = (
            pd.concat(frames) for frames in ([p.get_topics() for p in parts], [p.get_qrels() for p in parts])
        )
        # passages are cut anew, and documents are what is ranked
        qrels = qrels.assign(docno=qrels["docno"].str.replace(r"%p\d+$", "", regex=True), label=1)
        return Queries(topics.reset_index(drop=True), qrels.drop_duplicates(["qid", "docno"]).reset_index(drop=True))

    def documents() -> Any:
        for record in pt.get_dataset(dataset).get_corpus_iter(verbose=False):
            yield {name: record[name] for name in ("docno", "title", "text")}

    def halves(others: Queries) -> list[Queries]:
        first = others.qrels.groupby("qid")["docno"].min()
        half = others.topics["qid"].map(lambda qid: fraction(first[qid], "loss") < 0.5)
        return [among(others, others.topics[part].reset_index(drop=True)) for part in (half, ~half)]

    (some, dev), (more, test) = halves(queries("see-also/dev")), halves(queries("see-also/test"))
    extra = Queries(*(pd.concat(frames, ignore_index=True) for frames in zip(some, more, strict=True)))
    return Task(documents, queries(*SPLITS), extra, dev, test)


def structured(collection: Collection) -> Task:
    """Pages with sections."""
    train, dev, test = (Queries(collection.get_topics(name), collection.get_qrels(name)) for name in SPLITS)
    return Task(lambda: collection.get_corpus_iter(verbose=False), train, None, dev, test)


def flat(collection: TextCollection, fold: int = 0) -> Task:
    """Texts that are passages."""
    train, dev, test = divided(collection.get_topics(), collection.get_qrels(), fold=fold)
    return Task(lambda: collection.get_corpus_iter(verbose=False), train, None, dev, test, collection.texts)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
