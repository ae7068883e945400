"""A graph reranker on top of an existing index: nothing is indexed, encoded or trained in advance.

    python examples/existing_index.py INDEX irds:vaswani

INDEX is the folder of a Terrier index (which needs Java) or of a PISA index. The candidates of each query are split
into passages, whose graph is built on the fly, and documents are ranked by their best passage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyterrier as pt
from ir_measures import RR, nDCG

import pyterrier_graph as ptg


def rerank(
    first_stage: pt.Transformer, texts: Any, encoder: str = "all-MiniLM-L6-v2"
) -> pt.Transformer:
    """Queries in, documents out.

    Args:
        first_stage: The existing pipeline: queries in, a ranking of documents out.
        texts: A dataset with the texts of the documents, or an index that stores them.
        encoder: Name or folder of a late-interaction model or any other encoder.
    """
    return (
        first_stage
        >> pt.text.get_text(texts, ["text"])
        # the stride is half of the length, since the last window may end before the text does
        >> pt.text.sliding(text_attr="text", length=120, stride=60, prepend_attr=None)
        >> ptg.CandidateGraph()
        >> ptg.GraphMaxSim(encoder=encoder)
        >> pt.text.max_passage()
    )


def main(index: str, name: str) -> None:
    """Compares the pipeline with BM25 on the queries of a dataset."""
    dataset = pt.get_dataset(name)
    if Path(index, "data.properties").exists():
        bm25 = pt.terrier.Retriever(pt.IndexFactory.of(index), wmodel="BM25")
    else:
        from pyterrier_pisa import PisaIndex

        bm25 = PisaIndex(index).bm25()
    systems = [bm25 % 100, rerank(bm25 % 100, dataset)]
    options: Any = {
        "names": ["BM25", "BM25 >> GraphMaxSim"],
        "baseline": 0,
        "plan": "tree",
        "verbose": False,
    }
    print(
        pt.Experiment(
            systems, dataset.get_topics(), dataset.get_qrels(), [nDCG @ 10, RR @ 10], **options
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
