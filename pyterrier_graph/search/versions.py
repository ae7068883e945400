"""The versions of a GraphIndex on disk, and what reads them.

::

    pt_meta.json    names the current version and holds the settings that were fitted; replaced atomically
    v3/             the current version, whose files never change
        documents   the records of the documents, one JSON object per line
        graph/      the document graph
        queries/    the answered queries, if there are any
        vectors.flex/  the contextual vectors of the passages
        bm25/       the index of the BM25 engine
    v2/             the version before, for processes that have it open
    encoded/        the encoder's own vectors, so that unchanged texts are not encoded again
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature
from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import encoder_of
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.fitting import default_settings
from pyterrier_graph.search.lexical import Lexical
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import (
    DIGESTS,
    META,
    SIZES,
    BuiltArtifact,
    kind_of,
    read_meta,
    verify,
    write_file,
)
from pyterrier_graph.training.grid_search import Tuning

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

ENCODED = "encoded"
GRAPH = "graph"
QUERIES = "queries"
VECTORS = "vectors.flex"
BM25 = "bm25"
LINES = "lines.npy"
CHANGED = "changed.npy"
DELETED = "deleted.json"
TOPICS = "topics.json"
QRELS = "qrels.json"
KIND = {"type": "graph_index_version", "format": "folder", "package_hint": "pyterrier_graph"}
ROWS_AT_ONCE = 4096

Answered = tuple[pd.DataFrame, pd.DataFrame]  # topics and judgments


@dataclass
class Version:
    """One version of an index. Files are opened on first use.

    Attributes:
        path: Folder of the index.
        number: Number of the version.
        verbose: Whether to show progress.
    """

    path: Path
    number: int
    verbose: bool = True

    @property
    def folder(self) -> Path:
        """The folder of the version; raises ValueError if later changes have removed it."""
        folder = self.path / f"v{self.number}"
        if not folder.is_dir():
            message = (
                "was changed several times, or removed, after it had been opened: open it again"
            )
            raise ValueError(f"{str(self.path)!r} {message}")
        return folder

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the version was made: encoder, engine of BM25, words per passage."""
        return read_meta(self.folder, KIND)

    @cached_property
    def graph(self) -> DocumentGraph:
        """The document graph."""
        graph = DocumentGraph(self.folder / GRAPH, verbose=self.verbose)
        graph.vectors_folder = self.path / ENCODED
        return graph

    @cached_property
    def flex(self) -> Flex:
        """The ids and vectors of the passages."""
        return Flex(self.folder / VECTORS)

    @cached_property
    def queries(self) -> QueryPassageGraph | None:
        """The graph of the answered queries."""
        path = self.folder / QUERIES
        if not path.is_dir():
            return None
        return QueryPassageGraph(path, verbose=False)

    @property
    def answered(self) -> Answered | None:
        """The answered queries: topics and judgments."""
        folder = self.folder
        if not (folder / TOPICS).is_file():
            return None
        topics = pd.read_json(folder / TOPICS, orient="split", dtype=False)
        qrels = pd.read_json(folder / QRELS, orient="split", dtype=False)
        return topics, qrels

    @cached_property
    def bm25(self) -> BM25Index:
        """The BM25 index. With an engine other than bm25s, only its path is used."""
        return BM25Index(self.folder / BM25)

    @cached_property
    def lines(self) -> np.ndarray | None:
        """The line where each passage begins, if the documents are files."""
        file = self.folder / LINES
        return np.load(file) if file.is_file() else None

    @cached_property
    def changed(self) -> np.ndarray:
        """Version in which the text, context or vector of each passage last changed, shape (passages,)."""
        return np.load(self.folder / CHANGED)

    @cached_property
    def deleted(self) -> dict[str, int]:
        """Version that removed each deleted passage, by docno."""
        file = self.folder / DELETED
        return json.loads(file.read_text(encoding="utf-8"))


def contexts(
    graph: DocumentGraph, queries: QueryPassageGraph | None, passages: np.ndarray
) -> Iterator[str]:
    """Yields the text of each passage, preceded by its titles and followed by the queries that it answers."""
    for block in blocks(len(passages), ROWS_AT_ONCE):
        batch = passages[block]
        texts = graph.texts(graph.passage_nodes[batch], titles=True)
        if queries is not None:
            answered = queries.edges_of_passages(batch, RELEVANT)
            query_texts = queries.texts(answered.indices)
            for row, query in zip(answered.row_index, query_texts, strict=True):
                texts[row] += f"\n{query}"
        yield from texts


def is_contextual(encoder: Any) -> bool:
    """Whether an encoder is a GraphMean or a GNNEncoder; their modules are not imported for that."""
    return hasattr(encoder, "vectors_of")


class VersionedIndex(WithSignature, BuiltArtifact):
    """The base of GraphIndex: its arguments, its current version and its encoder, for readers and the builder."""

    ARTIFACT_TYPE = "graph_index"
    ARTIFACT_FORMAT = "versions"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder | None = None,
        lexical: Lexical | pt.Transformer | None = None,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(path, verbose=verbose)
        engines = get_args(Lexical)
        if isinstance(lexical, str) and lexical not in engines:
            raise ValueError(f"lexical must be a pipeline or one of {engines}, got {lexical!r}")
        if isinstance(encoder, os.PathLike):
            encoder = os.fspath(encoder)
        self.encoder: Any = encoder
        self.lexical = lexical
        self.training = training or Tuning()
        self.reopen()

    def _check_options(self) -> None:
        """Raises ValueError if the index at the path was made with other options."""
        lexical = self.meta["lexical"]
        if isinstance(self.lexical, str) and self.lexical != lexical:
            raise ValueError(f"{self!r} was made with lexical={lexical!r}, got {self.lexical!r}")
        stored = self.meta["encoder"]
        encoder = self.encoder
        if isinstance(encoder, str) and checkpoint_name(encoder) == stored["checkpoint"]:
            return
        if encoder is not None and encoder_name(self.bi_encoder) != stored["name"]:
            raise ValueError(f"{self!r} was made with encoder={stored['name']}")

    def __reduce__(self) -> tuple[Any, ...]:
        constructor = partial(
            type(self),
            encoder=self.encoder,
            lexical=self.lexical,
            training=self.training,
            verbose=self.verbose,
        )
        return constructor, (self.path,)

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the index was made: ``version``, ``settings``, ``encoder``, ``lexical``, ``source`` (a report).

        ``fitted`` has the settings that judged queries have set.
        """
        current = read_meta(self.path, kind_of(self))
        try:
            version_meta = Version(self.path, current["version"]).meta
        except (OSError, ValueError):
            if read_meta(self.path, kind_of(self)) == current:
                raise
            return self.meta  # two changes have removed the version in the meantime
        defaults = default_settings(version_meta["mean_cosine"])
        fitted = current["settings"]
        return {
            **version_meta,
            "version": current["version"],
            "fitted": fitted,
            "settings": {**defaults, **fitted},
        }

    @cached_property
    def version(self) -> Version:
        """The version that is open. Raises as :func:`read_meta` does if there is none."""
        number = self.meta["version"]
        return Version(self.path, number, self.verbose)

    def reopen(self) -> Self:
        """Opens the current version, if there is one. An encoder that is already loaded is kept."""
        for name in ("meta", "version", "contextual"):
            vars(self).pop(name, None)
        if self.built():
            self._check_options()
        return self

    def publish(self, number: int, settings: Mapping[str, Any]) -> None:
        """Makes version ``number`` the current one, by atomically replacing ``pt_meta.json``."""
        meta = kind_of(self)
        meta["version"] = number
        meta["settings"] = dict(settings)
        meta[SIZES] = {}  # the sizes and digests are in the version's own file
        meta[DIGESTS] = {}
        content = json.dumps(meta, indent=1)
        write_file(self.path / META, content.encode())

    def verify(self) -> Self:
        """Compares the files of the version with their digests; ValueError names damaged files."""
        verify(self.version.folder)
        return self

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """The files of the current version, for ``to_hf`` and others."""
        packed = {META, self.version.folder.name, ENCODED}
        for file in self.path.rglob("*"):
            name = file.relative_to(self.path)
            if file.is_file() and name.parts[0] in packed:
                yield name.as_posix(), str(file)

    @cached_property
    def bi_encoder(self) -> BiEncoder:
        """The bi-encoder of ``encoder``, or by default the checkpoint of the index. It is loaded once."""
        if is_contextual(self.encoder):
            return self.encoder.encoder
        if self.encoder is not None:
            return encoder_of(self.encoder)
        if not self.built():
            return encoder_of(DEFAULT)
        stored = self.meta["encoder"]
        if stored["checkpoint"] is None:
            raise ValueError(f"{self!r} was made with {stored['name']}: give it again as encoder=")
        return encoder_of(stored["checkpoint"])
