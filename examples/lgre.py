"""LGRe (Dong and Niu 2021) against a cross-encoder, cross-validated on Robust04 or another collection of ir_datasets.

    python examples/lgre.py [DATASET] [RUN]

Robust04 (TREC disks 4 and 5) and the Web Tracks of 2009 to 2012 (``irds:clueweb09/catb/trec-web-2009`` ...) are
licensed: ir_datasets says where to get them and where to put them. Other collections, such as ``irds:vaswani``, are
downloaded. RUN is a run in TREC's format to rerank, for collections that are too large to index here. Needs Java.
The tables of the paper: ``docs/papers/lgre.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyterrier as pt
from ir_measures import P, nDCG

import pyterrier_graph as ptg

ROBUST04 = "irds:disks45/nocr/trec-robust-2004"


def first_stage(dataset: Any, folder: Path, depth: int) -> pt.Transformer:
    """BM25 of Terrier, whose index is built if it does not exist."""
    index = pt.terrier.TerrierIndex(str(folder.absolute()))
    if not index.built():
        documents = dataset.irds_ref().docs_iter()
        texts = (
            {"docno": document.doc_id, "text": document.default_text()} for document in documents
        )
        index.indexer(meta={"docno": 50}).index(texts)
    return pt.rewrite.tokenise() >> index.bm25() % depth >> pt.rewrite.reset()


def with_texts(dataset: Any, run: Any) -> Any:
    """Adds ``text``: title and body without markup, whatever the collection calls its fields."""
    documents = dataset.irds_ref().docs_store().get_many({*run["docno"]})
    return run.assign(text=[documents[docno].default_text() for docno in run["docno"]])


def main(name: str = ROBUST04, run: str | None = None, output: str = "lgre") -> None:
    """Prints the table; complete folds are kept in ``output``, so that a second call continues."""
    dataset: Any = pt.get_dataset(name)
    topics = dataset.get_topics("title") if name == ROBUST04 else dataset.get_topics()
    qrels = dataset.get_qrels()
    if run is None:
        depth = 100 if "trec-web" in name else 150  # as in the paper
        candidates: Any = first_stage(dataset, Path(output, "index"), depth)(topics)
    else:
        candidates = pt.io.read_results(run).merge(topics[["qid", "query"]])
    candidates = with_texts(dataset, candidates)
    # the folds of Huston and Croft (2014), which the paper has
    published = [f"{ROBUST04}/fold{number}" for number in range(1, 6)]
    folds = (
        [{*pt.get_dataset(fold).get_topics()["qid"]} for fold in published]
        if name == ROBUST04
        else 5
    )
    rerankers = {
        "cross-encoder": lambda fold: ptg.CrossEncoderReranker("bert-base-uncased"),
        "LGRe": lambda fold: ptg.LGReReranker("bert-base-uncased", config=ptg.LGReConfig.paper()),
    }
    runs = [
        ptg.cross_validate(make, candidates, qrels, folds, output_dir=f"{output}/{system}")
        for system, make in rerankers.items()
    ]
    print(
        pt.Experiment(
            [candidates, *runs],
            topics,
            qrels,
            [P @ 20, nDCG @ 20],
            names=["first stage", *rerankers],
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
