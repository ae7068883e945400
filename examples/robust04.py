"""LGRe on Robust04, as in Dong and Niu 2021.

The collection (TREC disks 4 and 5) is licensed: ``ir_datasets`` says where to get it and where to put it. Then

    python examples/robust04.py --adapt irds:msmarco-passage/train --output robust04

prints Table 2. ``--words full bipartite bipartite+neighbor`` gives Table 3, ``--distances none point pair triangle``
Table 4, ``--within-groups`` Table 5; ``--dataset irds:vaswani`` does the same on another collection.
"""

from __future__ import annotations

from experiments.text_reranking import main

DEFAULTS = ["--dataset", "irds:disks45/nocr/trec-robust-2004", "--candidates", "150", "--output", "robust04"]

if __name__ == "__main__":
    main(DEFAULTS)
