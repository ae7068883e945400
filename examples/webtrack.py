"""LGRe on the Web Tracks of TREC 2009 to 2012 (ClueWeb09, category B), as in Dong and Niu 2021.

The collection is licensed: ``ir_datasets`` says where to get it and where to put it. Fifty million pages take long to
index; a run that another system made is taken instead with ``--run FILE``. Then

    python examples/webtrack.py --run bm25.txt --adapt irds:msmarco-passage/train --output webtrack

prints Table 2; the other options are those of ``robust04.py``.
"""

from __future__ import annotations

from experiments.text_reranking import main

YEARS = [f"irds:clueweb09/catb/trec-web-{year}" for year in range(2009, 2013)]
DEFAULTS = ["--dataset", *YEARS, "--candidates", "100", "--output", "webtrack"]

if __name__ == "__main__":
    main(DEFAULTS)
