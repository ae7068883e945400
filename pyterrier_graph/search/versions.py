"""The versions of a GraphIndex on disk.

::

    pt_meta.json    names the current version and holds the settings; replaced atomically
    v3/             the current version, whose files never change
        documents   the records of the documents, one JSON object per line
        graph/      the document graph
        queries/    the answered queries, if there are any
        vectors.flex/  the contextual vectors of the passages
        bm25/       the index of the BM25 engine
    v2/             the version before, for processes that have it open
    encoded/        the encoder's own vectors, so that unchanged texts are not encoded again
    encoder-1/      the encoder, unless the name of a checkpoint is enough
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.storage.artifact import read_meta

ENCODED = "encoded"
GRAPH, QUERIES, VECTORS, BM25 = "graph", "queries", "vectors.flex", "bm25"
LINES, CHANGED, DELETED = "lines.npy", "changed.npy", "deleted.json"
TOPICS, QRELS = "topics.json", "qrels.json"
VERSION = re.compile(r"v\d+")
KIND = {"type": "graph_index_version", "format": "folder", "package_hint": "pyterrier_graph"}

Answered = tuple[pd.DataFrame, pd.DataFrame]  # topics and judgments


class Version:
    """One version of an index. Files are opened on first use.

    Args:
        path: Folder of the index.
        number: Number of the version.
        verbose: Whether to show progress.
    """

    def __init__(self, path: Path, number: int, *, verbose: bool = True) -> None:
        self.path, self.number, self.verbose = path, number, verbose
        self.folder = path / f"v{number}"

    def __repr__(self) -> str:
        return f"Version({str(self.folder)!r})"

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the version was made: encoder, engine of BM25, words per passage."""
        return read_meta(self.folder, KIND)

    def opened(self) -> Path:
        """Returns the folder; raises ValueError if later changes have removed it."""
        if not self.folder.is_dir():
            raise ValueError(
                f"{str(self.path)!r} was changed several times, or removed, after it had been opened: "
                "open it again"
            )
        return self.folder

    @cached_property
    def graph(self) -> DocumentGraph:
        """The document graph."""
        graph = DocumentGraph(self.opened() / GRAPH, verbose=self.verbose)
        graph.vectors_folder = self.path / ENCODED
        return graph

    @cached_property
    def flex(self) -> Flex:
        """The ids and vectors of the passages."""
        return Flex(self.opened() / VECTORS)

    @cached_property
    def queries(self) -> QueryPassageGraph | None:
        """The graph of the answered queries."""
        path = self.opened() / QUERIES
        return QueryPassageGraph(path, verbose=False) if path.is_dir() else None

    @property
    def answered(self) -> Answered | None:
        """The answered queries: topics and judgments."""
        if not (self.opened() / TOPICS).is_file():
            return None
        topics, qrels = (
            pd.read_json(self.folder / name, orient="split", dtype=False)
            for name in (TOPICS, QRELS)
        )
        return topics, qrels

    @cached_property
    def bm25(self) -> BM25Index:
        """The BM25 index. With an engine other than bm25s, only its path is used."""
        return BM25Index(self.opened() / BM25)

    @cached_property
    def lines(self) -> np.ndarray | None:
        """The line where each passage begins, if the documents are files."""
        path = self.opened() / LINES
        return np.load(path) if path.is_file() else None

    @cached_property
    def changed(self) -> np.ndarray:
        """Version in which the text, context or vector of each passage last changed, shape (passages,)."""
        return np.load(self.opened() / CHANGED)

    @cached_property
    def deleted(self) -> dict[str, int]:
        """Version that removed each deleted passage, by docno."""
        return json.loads((self.opened() / DELETED).read_text(encoding="utf-8"))
