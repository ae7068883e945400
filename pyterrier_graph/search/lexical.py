"""The engines of BM25: bm25s, PISA, Terrier, or a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.search.bm25 import K1, B, BM25Index
from pyterrier_graph.search.hybrid import DEPTH
from pyterrier_graph.search.retrievers import BM25Retriever

Lexical = Literal["bm25s", "pisa", "terrier"]


def lexical_retriever(
    lexical: str | pt.Transformer, index: BM25Index, docnos: Lookup, num_results: int
) -> pt.Transformer:
    """Returns a transformer that finds passages using an engine or a pipeline.

    Args:
        lexical: The engine or the pipeline.
        index: The index of bm25s; the other engines read its folder.
        docnos: The ids of its passages.
        num_results: Passages per query.
    """
    if lexical == "bm25s":
        return BM25Retriever(index, docnos, num_results)
    if isinstance(lexical, str):
        depth = max(DEPTH, num_results)
        lexical = open_engine(lexical, index.path, depth)
    return lexical % num_results


def build_engine(
    records: Iterable[dict[str, Any]], engine: str, path: Path, docno_length: int
) -> None:
    """Indexes records with ``docno`` and ``text``, using ``'pisa'`` (the extra ``[pisa]``) or ``'terrier'``.

    Docnos have at most ``docno_length`` characters.
    """
    if engine == "pisa":
        from wurlitzer import pipes

        with pipes():  # PISA's C++ code prints its log
            _pisa(path).index(records)
            _pisa_bm25(path, 1).search("bm25")  # the first search builds the index of BM25's scores
    else:
        indexer = _terrier(path).indexer(meta={"docno": docno_length})
        indexer.index(records)


def open_engine(engine: str, path: Path, num_results: int) -> pt.Transformer:
    """BM25 over an index that :func:`build_engine` has written."""
    if engine == "pisa":
        return _pisa_bm25(path, num_results)
    bm25 = _terrier(path).bm25(num_results=num_results)
    return pt.rewrite.tokenise() >> bm25 >> pt.rewrite.reset()


def _terrier(path: Path) -> Any:
    return pt.terrier.TerrierIndex(str(path.absolute()))


def _pisa(path: Path) -> Any:
    from pyterrier_pisa import PisaIndex

    return PisaIndex(str(path), text_field="text", stemmer="porter2")


def _pisa_bm25(path: Path, num_results: int) -> pt.Transformer:
    return _pisa(path).bm25(k1=K1, b=B, num_results=num_results, verbose=False)
