"""BM25 over the documents of a collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyterrier as pt

from experiments.harness.collection import Collection, text_of


def bm25(
    collection: Collection, path: Path, engine: str = "pisa", stemmer: str = "porter2"
) -> pt.Transformer:
    """BM25 over whole documents, titles included; the index is made unless it is there.

    Args:
        collection: Its documents are indexed.
        path: Folder of the index.
        engine: ``'pisa'`` or ``'terrier'``; both have the same parameters.
        stemmer: Of PISA: ``'porter2'`` or ``'krovetz'``. Terrier has Porter's.

    Returns:
        ``qid, query`` to the 1000 best documents.
    """

    def documents() -> Iterator[dict[str, str]]:
        for record in collection.get_corpus_iter():
            yield {"docno": record["docno"], "text": text_of(record)}

    if engine == "terrier":
        index = pt.terrier.TerrierIndex(str(path.absolute()))
        if not index.built():
            index.indexer(meta={"docno": 100}).index(documents())
        return pt.rewrite.tokenise() >> index.bm25() >> pt.rewrite.reset()
    try:
        from pyterrier_pisa import PisaIndex
    except ImportError as error:
        raise SystemExit(
            "PISA is not installed (it needs x86-64 Linux): add --first-stage terrier"
        ) from error
    index = PisaIndex(str(path), stemmer=stemmer)
    if not index.built():
        index.index(documents())
    return index.bm25(k1=1.2, b=0.75, num_results=1000, verbose=False)
