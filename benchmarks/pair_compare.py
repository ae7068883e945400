"""Dual-encoders trained step by step on MedQuAD.

``python -m benchmarks.pair_compare PATH --seeds 0 1 2 --output FOLDER``. The questions are divided by page; half of the
training questions lose their labels. The defaults are such that a seed takes about twenty minutes on one core. A better
teacher than MiniLM becomes is one that knows more: ``--teacher-model`` names a cross-encoder that it starts at.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.collection import SPLITS, passages_of
from benchmarks.medquad import read_medquad
from pyterrier_graph.dense_retrieval import Queries, parser, run, task
from pyterrier_graph.tokens.packaged import packaged_minilm

DEFAULTS: dict[str, Any] = {
    "train_queries": 300,
    "unlabelled_share": 0.5,
    "max_length": 96,
    "negatives": 1,
    "depth": 20,
    "epochs": 2,
    "batch": 32,
    "teacher_epochs": 2,
    "teacher_pairs": 512,
}


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the comparison; see :func:`pyterrier_graph.dense_retrieval.run` for what it writes."""
    command = parser()
    command.prog, command.description = "python -m benchmarks.pair_compare", __doc__
    command.add_argument("path", type=Path, help="folder of the collection")
    command.add_argument("--passages", type=int, default=2000, help="size of the sample (%(default)s)")
    command.set_defaults(model=packaged_minilm(), **DEFAULTS)
    options = command.parse_args(arguments)
    medquad = read_medquad(options.path, passages=options.passages)
    splits = [Queries(medquad.get_topics(name), medquad.get_qrels(name)) for name in SPLITS]
    return run(task(passages_of(medquad), splits, options), options)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
