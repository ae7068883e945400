r"""The GNN-encoder of Liu et al. 2022 on Natural Questions, through ``ir_datasets``, with the controls that they lack.

    python examples/gnn_encoder_nq.py --model CHECKPOINT --output nq

compares the main systems. ``CHECKPOINT`` is any encoder, by name or folder, or a saved ``DualEncoder``. The ablations
(Table 4 of the preprint, Table 3 of the paper, whose edges have features of a cross-encoder):

    python examples/gnn_encoder_nq.py --model CHECKPOINT --output nq --seeds 0 1 2 --systems dual-encoder \
        papers-gnn papers-gnn-without-mask papers-gnn-without-gate papers-gnn-one-layer papers-gnn-one-w-000 \
        gnn-encoder-re-training joint-training
    python examples/gnn_encoder_nq.py --model CHECKPOINT --output nq-features --cross-encoder CROSS_ENCODER \
        --systems dual-encoder papers-gnn papers-gnn-without-edge-features joint-training

Plain means in place of the network (Fig. 4 of the preprint) are ``--systems rule --channels retrieved``, in another
folder. What edges per query and the masked share do (Fig. 5 and 6 there, Fig. 3 and 4 of the paper):

    python examples/gnn_encoder_nq.py --model CHECKPOINT --output nq --seeds 0 1 2 --k 5 10 25 50
    python examples/gnn_encoder_nq.py --model CHECKPOINT --output nq --seeds 0 1 2 --masked 0.01 0.05 0.2 0.5

and ``plots.measure_curve(pd.read_csv("nq/per_query.csv"), "Success@20", x="k")`` draws it. Vectors, graphs and runs in
the folder are taken when they are there; tables are those of the last call.

Questions of ``dev`` are reported, since ``ir_datasets`` has no others with judgments. Success@k counts judged passages
alone; the papers look for the answer in whatever was found.

``numpydoc`` in the first place, or another ``--dataset``, takes the collection's place.
"""

from __future__ import annotations

import logging

from experiments.fused_retrieval import main

QUESTIONS = "irds:dpr-w100/natural-questions"
COLLECTION = ["--dataset", "irds:dpr-w100", "--train", f"{QUESTIONS}/train", "--test", f"{QUESTIONS}/dev"]

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main([*COLLECTION, "--measures", "Success@5", "Success@20", "Success@100", "RR@10"])
