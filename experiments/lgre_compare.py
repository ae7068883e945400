"""LGRe against the cross-encoder on small collections.

``python -m experiments.lgre_compare vaswani PATH --seeds 0 1 2 --output FOLDER``, or ``cranfield``, or ``medquad``. Both
start at the packaged MiniLM after it was trained on numpydoc; what one collection's run made of it serves the others
with ``--checkpoint FOLDER/adapted-.../cross-encoder --adapt ''``. The defaults are such that a seed takes about a
quarter of an hour on one core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.collection import TextCollection, passages_of
from experiments.cranfield import read_cranfield
from experiments.medquad import read_medquad
from experiments.text_reranking import parser, run
from experiments.vaswani import read_vaswani
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve

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


READERS: dict[str, Callable[[Path], TextCollection]] = {
    "vaswani": read_vaswani,
    "cranfield": read_cranfield,
    "medquad": lambda path: passages_of(read_medquad(path, passages=PASSAGES)),
}
MORE: dict[str, dict[str, Any]] = {
    "vaswani": {},
    "cranfield": {"max_length": 96, "queries": 60, "candidates": 20, "folds": 3},
    "medquad": {"max_length": 128, "queries": 75, "candidates": 20, "folds": 3},
}


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, writes ``per_query.csv`` and ``results.csv``, and returns the latter."""
    command = parser()
    command.prog, command.description = "python -m experiments.lgre_compare", __doc__
    command.add_argument("collection", choices=[*READERS])
    command.add_argument("path", type=Path, help="folder of the collection")
    name = command.parse_args(arguments).collection
    command.set_defaults(checkpoint=resolve(DEFAULT), **DEFAULTS | MORE[name])
    options = command.parse_args(arguments)
    return run(READERS[name](options.path), options)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
