"""Adds a graph reranker to a Terrier index that is there already: nothing is indexed, encoded or trained beforehand.

BM25's documents are cut into passages in the pipeline, and the graph of a query's candidates is built there as well:

    python examples/existing_terrier_pipeline.py path/to/index irds:vaswani

It needs Java (Terrier) and, for the encoder's name to be found, a network or a folder with the encoder.
"""

from __future__ import annotations

import argparse
from typing import Any

import pyterrier as pt
from ir_measures import RR, nDCG

import pyterrier_graph as ptg

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def rerank(bm25: pt.Transformer, texts: Any, encoder: str = ENCODER, depth: int = 100) -> pt.Transformer:
    """Puts the graph reranker behind a first stage.

    Args:
        bm25: The pipeline that is there: queries in, a ranking of documents out.
        texts: What has the documents' texts: a dataset, or an index that stores them.
        encoder: A late-interaction model or any encoder, by its Hugging Face name or its folder.
        depth: How many of the documents are reranked.

    Returns:
        The pipeline: queries in, documents ranked by their best passage out.
    """
    return (
        bm25 % depth
        >> pt.text.get_text(texts, ["text"])
        # a stride of half the length, since words after the last whole window are left out
        >> pt.text.sliding(text_attr="text", length=120, stride=60, prepend_attr=None)
        >> ptg.CandidateGraph()
        >> ptg.GraphMaxSim(encoder=encoder)
        >> pt.text.max_passage()
    )


def main() -> None:
    """Compares the pipeline with BM25 on a dataset's topics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", help="the folder of the Terrier index")
    parser.add_argument("dataset", help="the dataset that was indexed, such as irds:vaswani")
    parser.add_argument("--topics", help="which of the topics' fields is the query, where there are several")
    parser.add_argument("--stored-text", action="store_true", help="take texts from the index, not from the dataset")
    parser.add_argument("--encoder", default=ENCODER, help="a Hugging Face name or a folder (default: %(default)s)")
    arguments = parser.parse_args()

    index = pt.IndexFactory.of(arguments.index)
    dataset = pt.get_dataset(arguments.dataset)
    bm25 = pt.terrier.Retriever(index, wmodel="BM25", num_results=100)
    pipeline = rerank(bm25, index if arguments.stored_text else dataset, arguments.encoder)
    results = pt.Experiment(
        [bm25, pipeline],
        dataset.get_topics(arguments.topics),
        dataset.get_qrels(),
        [nDCG @ 10, RR @ 10],
        names=["BM25", "BM25 >> GraphMaxSim"],
        baseline=0,
        verbose=True,
    )
    print(results.to_string(index=False))


if __name__ == "__main__":
    main()
