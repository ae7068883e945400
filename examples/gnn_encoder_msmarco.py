"""The GNN-encoder of Liu et al. 2022 on MSMARCO, through ``ir_datasets``, with the controls that the papers lack.

    python examples/gnn_encoder_msmarco.py --model CHECKPOINT --output msmarco

compares the main systems. ``CHECKPOINT`` is any encoder, by name or folder, or a saved ``DualEncoder``; ``--systems
dual-encoder papers-gnn gnn-encoder-re-training joint-training`` are the systems of Tables 1, 2 and 5. Ablations and
curves are as in ``gnn_encoder_nq.py``. Vectors, graphs and runs in the folder are taken when they are there.

``numpydoc`` in the first place, or another ``--dataset``, takes the collection's place.
"""

from __future__ import annotations

import logging

from experiments.fused_retrieval import main

MSMARCO = "irds:msmarco-passage"
COLLECTION = ["--dataset", MSMARCO, "--train", f"{MSMARCO}/train/judged", "--test", f"{MSMARCO}/dev/small"]

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main([*COLLECTION, "--measures", "RR@10", "R@50", "nDCG@10"])
