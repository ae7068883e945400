"""The base of GraphIndex: its current version, its encoder and its engine of BM25, for readers and the builder."""

from __future__ import annotations

import copy
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar, get_args

import pyterrier as pt

from pyterrier_graph.checks import QualityWarning, WithSignature, check_training
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import encoder_of
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.search.fitting import default_settings
from pyterrier_graph.search.lexical import Lexical
from pyterrier_graph.search.versions import ENCODED, Version
from pyterrier_graph.storage.artifact import (
    DIGESTS,
    META,
    SIZES,
    BuiltArtifact,
    file_sha256,
    kind_of,
    meta_text,
    read_meta,
    write_file,
)
from pyterrier_graph.training.grid_search import Tuning

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

T = TypeVar("T")


class VersionedIndex(WithSignature, BuiltArtifact):
    """A folder of versions; the arguments are those of :class:`~pyterrier_graph.GraphIndex`."""

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
        self.training: Tuning = check_training(training, Tuning)
        if isinstance(lexical, str) and lexical not in get_args(Lexical):
            raise ValueError(
                f"lexical must be a pipeline or one of {get_args(Lexical)}, got {lexical!r}"
            )
        self.lexical = lexical
        self.encoder: Any = encoder
        if isinstance(encoder, (str, os.PathLike)):
            self.encoder = os.fspath(encoder)
        elif encoder is not None and not is_contextual(encoder):
            self.encoder = encoder_of(encoder)
        if self.built():
            self._check_options()

    def _check_options(self) -> None:
        """Raises ValueError if the index at the path was made with other options."""
        made = self.meta["lexical"]
        if isinstance(self.lexical, str) and self.lexical != made:
            raise ValueError(f"{self!r} was made with lexical={made!r}, got {self.lexical!r}")
        about = self.meta["encoder"]
        if self.encoder is None or (
            isinstance(self.encoder, str) and checkpoint_name(self.encoder) == about["checkpoint"]
        ):
            return
        if about["name"] != (name := encoder_name(self.bi_encoder)):
            raise ValueError(f"{self!r} was made with encoder={about['name']}, got {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"encoder": self.encoder, "lexical": self.lexical, "training": self.training}
        return partial(type(self), self.path, **options, verbose=self.verbose), ()

    # --- versions

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the index was made: ``version``, ``settings``, ``encoder``, ``lexical``, ``source`` (a report)."""

        def read() -> dict[str, Any]:
            current = self.stored()
            made = Version(self.path, current["version"]).meta
            settings = default_settings(made["mean_cosine"]) | current["settings"]
            return made | {"version": current["version"], "settings": settings}

        return self._while_unchanged(read)

    def stored(self) -> dict[str, Any]:
        """The content of ``pt_meta.json``: the number of the current version, and the settings that were fitted."""
        return read_meta(self.path, kind_of(self))

    def _while_unchanged(self, read: Callable[[], T]) -> T:
        """Calls ``read``, and calls it again if it failed because the index changed in the meantime."""
        while True:
            before = _content(self.path / META)
            try:
                return read()
            except (OSError, ValueError):
                if _content(self.path / META) == before:
                    raise

    @cached_property
    def version(self) -> Version:
        """The version that is open. Raises as :func:`read_meta` does if there is none."""
        return Version(self.path, self.meta["version"], verbose=self.verbose)

    def reopen(self) -> Self:
        """Opens the current version. An encoder that is already loaded is kept."""
        for name in ("meta", "version", "contextual"):
            vars(self).pop(name, None)
        return self

    def verify(self) -> Self:
        """Compares all files with their digests; ValueError names damaged files."""
        return self._while_unchanged(super().verify)

    def publish(self, number: int, settings: Mapping[str, Any]) -> None:
        """Makes version ``number`` the current one, by atomically replacing ``pt_meta.json``."""
        name = f"v{number}/{META}"
        file = self.path / name
        files = {SIZES: {name: file.stat().st_size}, DIGESTS: {name: file_sha256(file)}}
        meta = kind_of(self) | {"version": number, "settings": dict(settings)} | files
        write_file(self.path / META, meta_text(meta).encode())

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """The files of the current version, for ``to_hf`` and others."""
        current = self.version.opened().name
        packed = {META, current, ENCODED, self.meta["encoder"].get("folder")}
        for file in self.path.rglob("*"):
            name = file.relative_to(self.path)
            if file.is_file() and name.parts[0] in packed:
                yield name.as_posix(), str(file)

    # --- the encoder and the engine of BM25

    @cached_property
    def loaded_encoder(self) -> BiEncoder | ContextualEncoder:
        """The encoder that was given, or the encoder of the index; it is loaded once."""
        if self.encoder is not None and not isinstance(self.encoder, str):
            return self.encoder
        about: Any = self.meta["encoder"] if self.built() else {"checkpoint": DEFAULT}
        if checkpoint := self.encoder or about["checkpoint"]:
            return encoder_of(checkpoint)
        if "folder" not in about:
            raise ValueError(f"{about['name']} is not part of {self!r}: give encoder=")
        return pt.Artifact.load(str(self.path / about["folder"]))

    @property
    def bi_encoder(self) -> BiEncoder:
        """The bi-encoder of passages and queries. For a GraphMean or GNNEncoder, the bi-encoder inside it."""
        encoder = self.loaded_encoder
        return encoder.encoder if is_contextual(encoder) else encoder

    def save_encoder(self, number: int) -> dict[str, Any]:
        """Saves an encoder that can be saved, unless the name of a checkpoint is enough; returns its description."""
        from pyterrier_graph.training.model import LearnedModel

        encoder = self.encoder or DEFAULT
        name = checkpoint_name(encoder) if isinstance(encoder, str) else None
        about = {"checkpoint": name, "name": encoder_name(self.bi_encoder)}
        if isinstance(encoder, LearnedModel):
            folder = self.path / f"encoder-{number}"
            about["folder"] = folder.name
            shutil.rmtree(folder, ignore_errors=True)
            copy.copy(encoder).save(folder)  # a copy, since saving changes its path
        return about

    def model(
        self, graph: DocumentGraph, queries: QueryPassageGraph | None, about: Mapping[str, Any]
    ) -> ContextualEncoder:
        """The model that computes the vectors of a graph, for a version with this ``pt_meta.json``."""
        from pyterrier_graph.graph_mean.graph_mean import GraphMean

        encoder = self.loaded_encoder
        options: dict[str, Any] = {
            "query_graph": queries,
            "folder": self.path / ENCODED,
            "verbose": self.verbose,
        }
        if not is_contextual(encoder):
            with warnings.catch_warnings():  # the builder warns of missing titles
                warnings.simplefilter("ignore", QualityWarning)
                return GraphMean(graph, encoder, **options)
        saved = self.path / about["encoder"]["folder"]
        return type(encoder).load(saved, graph=graph, encoder=encoder.encoder, **options)

    def engine(self, about: Mapping[str, Any]) -> str | None:
        """The engine of BM25 for a version with this ``pt_meta.json``; None for a pipeline."""
        if isinstance(self.lexical, pt.Transformer):
            return None
        return self.lexical or about.get("lexical") or "bm25s"


def is_contextual(encoder: Any) -> TypeGuard[ContextualEncoder]:
    """Whether an encoder is a GraphMean or GNNEncoder."""
    return hasattr(encoder, "vectors_of")


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
