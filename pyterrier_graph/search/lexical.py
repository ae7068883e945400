"""The engines of BM25: bm25s, PISA, Terrier, or a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.hybrid import DEPTH
from pyterrier_graph.search.retrievers import BM25Retriever, Within

Lexical = Literal["bm25s", "pisa", "terrier"]


def lexical_retriever(
    lexical: str | pt.Transformer,
    index: BM25Index,
    graph: DocumentGraph,
    docnos: Lookup,
    num_results: int,
    allowed: np.ndarray | None = None,
) -> pt.Transformer:
    """Returns a transformer that finds passages using an engine or a pipeline.

    Args:
        lexical: The engine or the pipeline.
        index: The index of bm25s; the other engines read its folder.
        graph: The graph of the passages.
        docnos: Their ids.
        num_results: Passages per query.
        allowed: Whether a passage may be found, shape (passages,); None for all.
    """
    if lexical == "bm25s":
        return BM25Retriever(index, docnos, num_results, allowed)
    if isinstance(lexical, str):
        lexical = bm25([], lexical, index.path, max(DEPTH, num_results))
    return (lexical if allowed is None else lexical >> Within(graph, allowed)) % num_results


def bm25(
    records: Iterable[dict[str, Any]],
    engine: str,
    path: Path,
    num_results: int = 1000,
    *,
    docno_length: int = 100,
) -> pt.Transformer:
    """BM25 over records with ``docno`` and ``text``, by ``'pisa'`` or ``'terrier'``; builds the index if there is none.

    Raises:
        ImportError: If PISA is asked for and is not installed.
    """
    if engine == "pisa" and not (find_spec("pyterrier_pisa") and find_spec("wurlitzer")):
        raise ImportError(
            "PISA is not installed: pip install pyterrier-pisa wurlitzer (for x86-64 Linux)"
        )
    if not path.exists() and engine == "pisa":
        from wurlitzer import pipes

        with pipes():  # PISA logs to the file descriptor, bypassing sys.stdout
            _pisa(path).index(records)
            _pisa_bm25(path, 1).search("bm25")  # the first search builds the index of BM25's scores
    elif not path.exists():
        index = pt.terrier.TerrierIndex(str(path.absolute()))
        index.indexer(meta={"docno": docno_length}).index(records)
    if engine == "pisa":
        return _pisa_bm25(path, num_results)
    index = pt.terrier.TerrierIndex(str(path.absolute()))
    return pt.rewrite.tokenise() >> index.bm25(num_results=num_results) >> pt.rewrite.reset()


def _pisa(path: Path) -> Any:
    from pyterrier_pisa import PisaIndex

    return PisaIndex(str(path), text_field="text", stemmer="porter2")


def _pisa_bm25(path: Path, num_results: int) -> pt.Transformer:
    return _pisa(path).bm25(k1=1.2, b=0.75, num_results=num_results, verbose=False)
