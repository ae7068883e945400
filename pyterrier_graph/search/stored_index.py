"""The base of GraphIndex: an index that is open at one version, and the pipelines that search it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_choice, check_count, check_training
from pyterrier_graph.encoders.names import checkpoint_name
from pyterrier_graph.encoders.stored_vectors import TITLED, encoder_name
from pyterrier_graph.graph_mean.contextual_index import (
    ContextualIndex,
    ContextualRetriever,
    encoder_of,
    nearest,
)
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.search import layout
from pyterrier_graph.search.document_evidence import Evidence
from pyterrier_graph.search.fitting import evidence_of
from pyterrier_graph.search.hybrid import Fusion
from pyterrier_graph.search.lexical import bm25
from pyterrier_graph.search.tables import FullText
from pyterrier_graph.storage.artifact import BuiltArtifact, locked
from pyterrier_graph.storage.store import ObjectStore
from pyterrier_graph.training.grid_search import Tuning

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graph_mean.graph_mean import ContextualEncoder

Lexical = Literal["lance", "pisa", "terrier"]

SAMPLE, MEANINGLESS, WORDS = (
    2000,
    64,
    6,
)  # passages; questions of random words from them, and words of each


class StoredIndex(WithSignature, BuiltArtifact):
    """An index at the version that was the last one when it was opened; arguments as for GraphIndex."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder | None = None,
        lexical: Lexical | pt.Transformer | None = None,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        self.store = ObjectStore.at(path)
        super().__init__(path if self.store is None else self.store.folder)
        self._locked = partial(locked, self.path) if self.store is None else self.store.locked
        if self.store is not None:
            self.store.fetch()
        self.training: Tuning = check_training(training, Tuning)
        if lexical is not None and not isinstance(lexical, pt.Transformer):
            check_choice("lexical, unless it is a pipeline,", lexical, get_args(Lexical))
        if isinstance(encoder, (str, os.PathLike)):
            self.encoder: Any = os.fspath(encoder)
        else:
            self.encoder = (
                encoder if encoder is None or is_contextual(encoder) else encoder_of(encoder)
            )
        self.lexical = lexical
        self.verbose = verbose
        if self.built() and isinstance(lexical, str) and lexical != self.meta["lexical"]:
            raise ValueError(
                f"{self!r} was made with lexical={self.meta['lexical']!r}, got {lexical!r}"
            )
        if self.built() and self.encoder is not None:
            about = self.meta["encoder"]
            named = (
                isinstance(self.encoder, str)
                and checkpoint_name(self.encoder) == about["checkpoint"]
            )
            if not named and about["name"] != (found := encoder_name(bi_encoder(self._encoder))):
                raise ValueError(f"{self!r} was made with encoder={about['name']}, got {found}")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.path) if self.store is None else self.store.url!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("encoder", "lexical", "training", "verbose")
        }
        place: Any = self.path if self.store is None else self.store
        return partial(type(self), place, **options), ()

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._contextual)

    def _reopened(self) -> Self:
        """This object at the last version; an encoder that was loaded stays."""
        loaded = {name: value for name, value in self.__dict__.items() if name == "_encoder"}
        self.__dict__ = self.__reduce__()[0]().__dict__ | loaded
        return self

    def verify(self) -> Self:
        """Compares all files with their digests, as all artifacts do; in an object store both it and this copy."""
        if self.store is not None:
            self.store.verify()
        return super().verify()

    # --- files of the version

    @property
    def _folder(self) -> Path:
        folder = self._open(
            lambda path: path / f"v{int(self.meta['number'])}"
        )  # ValueError if the index was removed
        if not folder.is_dir():
            raise ValueError(
                f"{self!r} was changed several times after it had been opened: open it again"
            )
        return folder

    @cached_property
    def graph(self) -> DocumentGraph:
        """The graph of the documents, for models: ``ptg.GraphMaxSim(index.graph)``."""
        graph = DocumentGraph(self._folder / layout.GRAPH, verbose=self.verbose)
        graph.vectors_folder = self.path / layout.ENCODED
        return graph

    @cached_property
    def _queries(self) -> QueryPassageGraph | None:
        path = self._folder / layout.QUERIES
        return QueryPassageGraph(path, verbose=False) if path.exists() else None

    @cached_property
    def _lines(self) -> np.ndarray | None:
        """The line of each passage, where the documents are files."""
        path = self._folder / layout.LINES
        return np.load(path) if path.is_file() else None

    @property
    def _answered(self) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        if not self.built() or not (self._folder / layout.TOPICS).is_file():
            return None
        topics = pd.read_json(self._folder / layout.TOPICS, orient="split", dtype=False)
        return topics, pd.read_json(self._folder / layout.QRELS, orient="split", dtype=False)

    # --- the encoder

    @cached_property
    def _encoder(self) -> BiEncoder | ContextualEncoder:
        """The encoder that was given, or the one of the index; it is loaded once."""
        if self.encoder is not None and not isinstance(self.encoder, str):
            return self.encoder
        about: Any = self.meta["encoder"] if self.built() else {"checkpoint": None}
        if checkpoint := self.encoder or about["checkpoint"]:
            return encoder_of(checkpoint)
        if not (self.path / layout.ENCODER).is_dir():
            raise ValueError(f"{about['name']} is not part of {self!r}: give encoder=")
        return pt.Artifact.load(str(self.path / layout.ENCODER))

    def _model(
        self,
        graph: DocumentGraph,
        queries: QueryPassageGraph | None,
        about: Mapping[str, Any],
        *,
        verbose: bool,
    ) -> ContextualEncoder:
        """The model that computes the vectors of a graph, for an index with this ``pt_meta.json``."""
        options: dict[str, Any] = {
            "query_graph": queries,
            "folder": self.path / layout.ENCODED,
            "verbose": verbose,
        }
        if not is_contextual(encoder := self._encoder):
            from pyterrier_graph.graph_mean.graph_mean import GraphMean

            model = GraphMean(graph, encoder, **options)
            model.titled = about.get("titled", TITLED)
            return model
        return type(encoder).load(
            self.path / layout.ENCODER, graph=graph, encoder=encoder.encoder, **options
        )

    # --- pipelines

    @cached_property
    def _contextual(self) -> ContextualIndex:
        """The index of the vectors."""
        folder = self._folder
        try:
            index = ContextualIndex(folder / layout.VECTORS, self.graph, self._encoder)
        except FileNotFoundError:
            assert self._folder  # ValueError if it was removed meanwhile
            raise
        if index._weights is not None:
            index._weights.weights |= self.meta["settings"].get("largest_weights", {})
        return index

    @cached_property
    def _full_text(self) -> FullText:
        name, version = layout.table_of(self.meta, layout.PASSAGES)
        return FullText(self.path / layout.TABLES, name, version or 0, label="BM25 with context")

    def _parts(
        self, num_results: int, exact: bool = False
    ) -> tuple[pt.Transformer, pt.Transformer]:
        """The lexical and the dense pipeline, without texts."""
        check_count("num_results", num_results)
        dense = ContextualRetriever(self._contextual, num_results, exact=exact)
        engine = self.meta["lexical"]
        if engine is None and not isinstance(self.lexical, pt.Transformer):
            raise ValueError(f"{self!r} was made with a pipeline as lexical=: give it again")
        return self._lexical(engine, self._folder, self._full_text, num_results), dense

    def _lexical(
        self, engine: Any, folder: Path, full_text: FullText, num_results: int
    ) -> pt.Transformer:
        """The pipeline that finds passages by words, in the files of an engine."""
        if isinstance(self.lexical, pt.Transformer):
            return self.lexical % num_results
        check_choice("lexical", engine, get_args(Lexical))
        if engine != "lance":
            return bm25([], engine, folder / f"{layout.BM25}{engine}", num_results)
        return full_text._with(num_results=num_results)

    def _fusion(self, num_results: int, exact: bool = False) -> Fusion:
        alpha = self.meta["settings"]["alpha"]
        return Fusion(*self._parts(num_results, exact), alpha=alpha, num_results=num_results)

    @property
    def _evidence(self) -> Evidence | None:
        """Adds evidence of documents and neighbors to the scores, if its weights are not 0."""
        weights = self.meta["settings"]["evidence"]
        return evidence_of(self.graph, weights) if any(weights.values()) else None

    def _similarities(self, questions: list[str]) -> np.ndarray:
        """Per question the similarity of the passage, without context, that is most similar to it."""
        queries = np.asarray(bi_encoder(self._encoder).encode_queries(questions), np.float32)
        _, vectors, _ = self._contextual._files.payload()
        return nearest(queries, vectors[:, : queries.shape[1]], 1)[0][:, 0]

    @cached_property
    def _unrelated(self) -> float:
        """The median of the best similarities of questions without meaning: words drawn from the passages."""
        random = np.random.default_rng(0)
        texts = self.graph.texts(np.sort(random.permutation(self.graph.passage_nodes)[:SAMPLE]))
        words = sorted({*re.findall(r"[^\W\d_]{3,}", " ".join(texts))} or {"?"})
        questions = [" ".join(drawn) for drawn in random.choice(words, (MEANINGLESS, WORDS))]
        return float(np.median(self._similarities(questions)))


def bi_encoder(encoder: BiEncoder | ContextualEncoder) -> BiEncoder:
    """The bi-encoder of a GraphMean or GNNEncoder; others as they are."""
    return encoder.encoder if is_contextual(encoder) else encoder


def is_contextual(encoder: Any) -> TypeGuard[ContextualEncoder]:
    """Whether an encoder is a GraphMean or GNNEncoder."""
    return hasattr(encoder, "largest_weights")
