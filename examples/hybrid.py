"""A dense index that knows titles, next to an existing lexical index. Nothing is trained or tuned.

    python examples/hybrid.py INDEX irds:vaswani [FOLDER]

INDEX is the folder of a Terrier index (which needs Java) or of a PISA index of the dataset's documents. Their graph and
the index of their passages are written to FOLDER; with the same FOLDER, the next call finds them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyterrier as pt
from ir_measures import RR, R, nDCG

import pyterrier_graph as ptg


def lexical(index: str) -> pt.Transformer:
    """BM25 on an index of Terrier or PISA."""
    if Path(index, "data.properties").exists():
        retrieve = pt.terrier.Retriever(pt.IndexFactory.of(index), wmodel="BM25")
        return pt.rewrite.tokenise() >> retrieve >> pt.rewrite.reset()
    from pyterrier_pisa import PisaIndex

    return PisaIndex(index).bm25(verbose=False)


def dense(dataset: Any, folder: Path) -> pt.Transformer:
    """Queries in, documents out: each has the score of its best passage."""
    graph = ptg.DocumentGraph(folder / "graph")
    if not graph.built():
        graph.index(dataset.get_corpus_iter())
    if (folder / "index.flex").exists():
        index = ptg.ContextualIndex(folder / "index.flex", graph)
    else:
        index = ptg.GraphMean(graph, dtype="auto").index(folder / "index.flex")
    return index.retriever() >> pt.text.max_passage()


def main(index: str, name: str, folder: str = "hybrid") -> None:
    """Compares both indexes, and the hybrid of them, on the queries of a dataset."""
    dataset = pt.get_dataset(name)
    bm25, vectors = lexical(index), dense(dataset, Path(folder))
    systems = {"BM25": bm25, "GraphMean": vectors, "Hybrid": ptg.Hybrid(bm25, vectors)}
    options: dict[str, Any] = {"names": [*systems], "baseline": 0, "correction": "holm"}
    measures = [nDCG @ 10, RR @ 10, R @ 100]
    print(
        pt.Experiment(
            [*systems.values()], dataset.get_topics(), dataset.get_qrels(), measures, **options
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:4])
