"""LGRe against the cross-encoder on small collections.

``python -m benchmarks.lgre_compare vaswani PATH --seeds 0 1 2 --output FOLDER``, or ``cranfield``, or ``medquad``. Both
start at the packaged MiniLM after it was trained on numpydoc. The defaults are such that a seed on Vaswani takes about
a quarter of an hour on one core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.collection import SPLITS, TextCollection
from benchmarks.cranfield import read_cranfield
from benchmarks.medquad import read_medquad
from benchmarks.vaswani import read_vaswani
from pyterrier_graph.documents import StructuredDocument, passage_id
from pyterrier_graph.text_reranking import parser, run
from pyterrier_graph.tokens.packaged import packaged_minilm

PASSAGES = 4000
DEFAULTS: dict[str, Any] = {
    "systems": ["start", "cross-encoder", "lgre"],
    "adapt": "irds:pyterrier-graph/numpydoc/all/train",
    "adapt_pairs": 2000,
    "adapt_candidates": 30,
    "adapt_learning_rate": 5e-5,
    "layers": ["1"],
    "init": ["identity"],
    "candidates": 30,
    "max_length": 96,
    "pairs": 128,
    "batch": 16,
    "epochs": 2,
    "learning_rate": 1e-3,
    "encoder_learning_rate": 3e-5,
}


def passages_of_medquad(path: Path) -> TextCollection:
    """A sample of MedQuAD's passages, and the questions of all splits."""
    medquad = read_medquad(path, passages=PASSAGES)
    documents = [
        {"docno": passage_id(record["docno"], number), "title": "", "text": text}
        for record in medquad.records
        for number, text in enumerate(StructuredDocument.from_record(record).passages())
    ]
    topics, qrels = (pd.concat(map(get, SPLITS), ignore_index=True) for get in (medquad.get_topics, medquad.get_qrels))
    return TextCollection(medquad.name, documents, topics, qrels)


READERS: dict[str, Callable[[Path], TextCollection]] = {
    "vaswani": read_vaswani,
    "cranfield": read_cranfield,
    "medquad": passages_of_medquad,
}
MORE: dict[str, dict[str, Any]] = {
    "vaswani": {},
    "cranfield": {"max_length": 192},
    "medquad": {"max_length": 192, "queries": 100},
}


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, writes ``per_query.csv`` and ``results.csv``, and returns the latter."""
    command = parser()
    command.prog, command.description = "python -m benchmarks.lgre_compare", __doc__
    command.add_argument("collection", choices=[*READERS])
    command.add_argument("path", type=Path, help="folder of the collection")
    name = command.parse_args(arguments).collection
    command.set_defaults(checkpoint=packaged_minilm(), **DEFAULTS | MORE[name])
    options = command.parse_args(arguments)
    return run(READERS[name](options.path), options)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
