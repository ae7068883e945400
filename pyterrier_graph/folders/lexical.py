"""BM25 over passages and their titles, by what is installed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyterrier as pt

from pyterrier_graph.checks import check_choice
from pyterrier_graph.graphs.document_graph import DocumentGraph

Lexical = Literal["auto", "pisa", "terrier", "none"]


def choose(lexical: Lexical) -> Lexical:
    """What BM25 runs on: PISA if it is installed, otherwise nothing, unless it is asked for.

    Raises:
        ValueError: If there is no such choice.
        ImportError: If PISA is asked for and is not installed.
    """
    check_choice("lexical", lexical, get_args(Lexical))
    if lexical not in ("auto", "pisa"):
        return lexical
    if find_spec("pyterrier_pisa") is not None:
        return "pisa"
    if lexical == "pisa":
        raise ImportError("PISA is not installed: pip install pyterrier-pisa (for x86-64 Linux)")
    return "none"


def bm25(graph: DocumentGraph, lexical: Lexical, folder: Path, num_results: int, *, verbose: bool) -> pt.Transformer:
    """BM25 over the passages of a graph; their index is built if it is not in the folder."""
    path = folder / f"bm25.{lexical}"
    if not path.exists():
        unfinished = path.with_suffix(f"{path.suffix}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        passages = graph.get_corpus_iter(verbose=verbose)
        if lexical == "pisa":
            with _silence():
                _pisa(unfinished).index(passages)
                _pisa_bm25(unfinished, 1).search("bm25")  # the first search builds the index of BM25's scores
        else:
            length = max(map(len, graph.docnos_of(np.arange(len(graph))))) + 20
            records = ({"docno": row["docno"], "text": f"{row['title']} {row['text']}"} for row in passages)
            pt.terrier.TerrierIndex(str(unfinished.absolute())).indexer(meta={"docno": length}).index(records)
        unfinished.rename(path)
    if lexical == "pisa":
        return _pisa_bm25(path, num_results)
    index = pt.terrier.TerrierIndex(str(path.absolute()))
    return pt.rewrite.tokenise() >> index.bm25(num_results=num_results) >> pt.rewrite.reset()


def _pisa(path: Path) -> Any:
    from pyterrier_pisa import PisaIndex

    return PisaIndex(str(path), text_field=["title", "text"], stemmer="porter2")


def _pisa_bm25(path: Path, num_results: int) -> pt.Transformer:
    return _pisa(path).bm25(k1=1.2, b=0.75, num_results=num_results, verbose=False)


@contextmanager
def _silence() -> Iterator[None]:
    """A block in which nothing is printed, not even by PISA, which does not print by Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as restored, open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            before = os.dup(stream)
            restored.callback(os.close, before)
            restored.callback(os.dup2, before, stream)
            os.dup2(nowhere.fileno(), stream)
        yield
