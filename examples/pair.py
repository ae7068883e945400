"""Training dual-encoders as in Ren et al. 2021 (PAIR): hard negatives, denoising, pseudo labels, two stages.

On MSMARCO, or with ``nq`` on Natural Questions, through ``ir_datasets``:

    python examples/pair.py msmarco --unlabeled questions.txt --output pair

prints Table 2; ``--systems`` with the variants of PAIR gives Table 3, ``--thresholds 0.9/0.1 0.8/0.2`` Table 5. Any
other dataset does as well, ``--dataset irds:vaswani`` for one; ``numpydoc`` needs no download.
"""

from __future__ import annotations

import logging
import sys

from experiments.dense_retrieval import main

NUMPYDOC = "irds:pyterrier-graph/numpydoc/numpy"
QUESTIONS = "irds:dpr-w100/natural-questions"
COLLECTIONS = {
    "msmarco": {
        "dataset": "irds:msmarco-passage",
        "train": "irds:msmarco-passage/train/judged",
        "test": "irds:msmarco-passage/dev/small",
    },
    "nq": {"dataset": "irds:dpr-w100", "train": f"{QUESTIONS}/train", "test": f"{QUESTIONS}/dev"},
    "numpydoc": {"dataset": NUMPYDOC} | {split: f"{NUMPYDOC}/{split}" for split in ("train", "dev", "test")},
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COLLECTIONS:
        chosen = [part for option, value in COLLECTIONS[name].items() for part in (f"--{option}", value)]
        main(chosen, arguments)
    else:
        main((), [name, *arguments])
