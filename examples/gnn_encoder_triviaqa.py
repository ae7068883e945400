"""The GNN-encoder of Liu et al. 2022 on TriviaQA, through ``ir_datasets``, with the controls that they lack.

    python examples/gnn_encoder_triviaqa.py --model CHECKPOINT --output triviaqa

``CHECKPOINT`` is any encoder, by name or folder, or a saved ``DualEncoder``. Ablations, curves, and what is counted are
as in ``gnn_encoder_nq.py``.

``numpydoc`` in the first place, or another ``--dataset``, takes the collection's place.
"""

from __future__ import annotations

import logging

from experiments.fused_retrieval import main

QUESTIONS = "irds:dpr-w100/trivia-qa"
COLLECTION = ["--dataset", "irds:dpr-w100", "--train", f"{QUESTIONS}/train", "--test", f"{QUESTIONS}/dev"]

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main([*COLLECTION, "--measures", "Success@5", "Success@20", "Success@100", "RR@10"])
