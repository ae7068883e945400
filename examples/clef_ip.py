"""Prior-art search on CLEF-IP 2013 with HGAT (Albarede et al. 2023): claims in, passages of earlier patents out.

    python examples/clef_ip.py [FOLDER]

The collection is licensed: without it, this says where to get it and where to put it.
Ten trainings of each model and the paper's tables: ``python -m experiments.clef_ip_2013``.
"""

from __future__ import annotations

import sys
from typing import Any

import pyterrier as pt
from ir_measures import AP, R

import pyterrier_graph as ptg
from pyterrier_graph import clef_ip
from pyterrier_graph.evaluation.measures import MAPD, PRECD, PRES, on_documents

TASK = "irds:clef-ip/2013/claims-to-passages"
MEASURES = [on_documents(PRES @ 100), on_documents(R @ 100), on_documents(AP @ 100), MAPD, PRECD]


def main(folder: str = "clef-ip", documents: int = 1000) -> None:
    """Finds documents by the best words of the abstract, filters them, and ranks their passages by the claims."""
    patents, train, test = (
        pt.get_dataset(name) for name in ("irds:clef-ip", f"{TASK}/train/en", f"{TASK}/test/en")
    )
    graph = ptg.DocumentGraph(f"{folder}/graph")
    if not graph.built():
        graph.index(patents.get_corpus_iter())
    frequencies = clef_ip.DocumentFrequencies(f"{folder}/frequencies")
    if not frequencies.built():
        frequencies.index(patents.get_corpus_iter())
    index = pt.terrier.TerrierIndex(f"{folder}/terrier")
    if not index.built():
        index.indexer(meta={"docno": 20}).index(graph.get_corpus_iter("documents"))
    bm25 = pt.rewrite.tokenise() >> index.bm25() % documents >> pt.rewrite.reset()
    found = (
        clef_ip.ClaimsQuery() >> clef_ip.AbstractTerms(frequencies) >> bm25 >> pt.rewrite.reset()
    )
    passages = found >> clef_ip.NotOwnFamily() >> clef_ip.SharedCodes(graph) >> graph.passages()
    hgat = ptg.HGATReranker(graph)
    (passages >> hgat).fit(train.get_topics(), train.get_qrels())
    systems = [passages, passages >> ptg.GraphMaxSim(graph), passages >> hgat]
    systems = [system >> clef_ip.DocumentCutoff(100) for system in systems]
    options: Any = {
        "names": ["BM25", "GraphMaxSim", "HGAT"],
        "batch_size": 10,
        "plan": "tree",
        "verbose": False,
    }
    print(pt.Experiment(systems, test.get_topics(), test.get_qrels(), MEASURES, **options))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "clef-ip")
