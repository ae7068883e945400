"""Artifacts on disk: written completely or not at all, and checked when they are opened."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

import pyterrier as pt

from pyterrier_graph.checks import check_type

if TYPE_CHECKING:
    from huggingface_hub import RepoCard
    from torch import nn

META = "pt_meta.json"
CARD = "README.md"
LOAD = 'pt.Artifact.load("folder"'  # a card's code for loading; the name of the hub or record replaces it there


def kind_of(artifact: OwnArtifact | type[OwnArtifact]) -> dict[str, Any]:
    """The fields of ``pt_meta.json`` that state an artifact's kind; a reader checks them."""
    return {
        "type": artifact.ARTIFACT_TYPE,
        "format": artifact.ARTIFACT_FORMAT,
        "format_version": artifact.FORMAT_VERSION,
        "package_hint": artifact.ARTIFACT_PACKAGE_HINT,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a model's results depend on."""
    import pyterrier_graph

    others = {name: version(name) for name in ("pyterrier", "torch", "transformers", "sentence-transformers")}
    return {"python": python_version(), "pyterrier_graph": pyterrier_graph.__version__} | others


def weights_sha256(module: nn.Module, before: str = "", after: str = "") -> str:
    """SHA-256 of a module's weights and their names, with one text before and one text after them."""
    import torch

    digest = hashlib.sha256(before.encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    digest.update(after.encode())
    return digest.hexdigest()


@contextmanager
def writing(path: str | os.PathLike[str], meta: dict[str, Any]) -> Iterator[Path]:
    """Provides a temporary folder, which becomes the artifact when the block ends without an error.

    ``meta``, the contents of ``pt_meta.json``, may be completed inside the block. It is written last, with the size of
    every file, so that an incomplete folder is never read as an artifact.

    Raises FileExistsError if there is a file, or a folder with files, at ``path``.
    """
    target = Path(path)
    check_vacant(target)
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    with pt.io.finalized_directory(str(target.absolute())) as folder:
        yield Path(folder)
        complete(Path(folder), meta)
    mode = (target / META).stat().st_mode & 0o777
    target.chmod(mode | (mode & 0o444) >> 2)  # PyTerrier creates folders that all users may write
    sync(target.absolute().parent)


def complete(folder: Path, meta: dict[str, Any], sha256: Mapping[str, str] | None = None) -> None:
    """Makes a folder with its files an artifact: writes ``pt_meta.json``, and syncs everything to the disk.

    Args:
        folder: The folder, which the caller renames afterwards (and syncs the folder around it, with :func:`sync`).
        meta: The contents of ``pt_meta.json``; ``files`` (sizes in bytes) and ``file_sha256`` of every file are added.
        sha256: Digests of files that the caller has computed already.
    """
    known = sha256 or {}
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / META)
    names = {file.relative_to(folder).as_posix(): file for file in files}
    meta["files"] = {name: file.stat().st_size for name, file in names.items()}
    meta["file_sha256"] = {name: known.get(name) or file_sha256(file) for name, file in names.items()}
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
    mode = (folder / META).stat().st_mode & 0o777
    for file in [*files, folder / META]:
        file.chmod(mode)  # safetensors creates files that only their creator may read
        sync(file)
    for place in [*{file.parent for file in files}, folder]:
        sync(place)


def file_sha256(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_vacant(path: Path) -> None:
    """Raises FileExistsError if there is a file, or a folder with files, at ``path``."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{str(path)!r} exists already: delete it, or choose another path")


def read_meta(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Reads the ``pt_meta.json`` of an artifact, which must have the ``expected`` fields.

    Raises FileNotFoundError if there is no artifact, and ValueError if the artifact has another kind or version, or if
    a file is missing or has another size than when it was written.
    """
    if not (path / META).is_file():
        raise FileNotFoundError(f"no artifact at {str(path)!r} (there is no {META})")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path / META)!r} is damaged: {error}") from error
    found = {key: meta.get(key) for key in expected} if isinstance(meta, dict) else {}
    if found != expected:
        raise ValueError(f"{str(path)!r} holds {found}, but {expected} is needed")
    if not isinstance(meta.get("files"), dict):
        raise ValueError(f"{str(path / META)!r} is damaged: it does not list the artifact's files")
    for name, size in meta["files"].items():
        file = (path / name).resolve()
        if not file.is_relative_to(path.resolve()):
            raise ValueError(f"{str(path / META)!r} names a file outside of the artifact: {name!r}")
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            raise ValueError(f"{str(path)!r} is damaged: {name!r} should have {size} bytes, has {actual}")
    return meta


class OwnArtifact(pt.Artifact):
    """Base class of the package's artifacts: Hugging Face and Zenodo show an artifact's card, if it has one."""

    ARTIFACT_TYPE: str
    ARTIFACT_FORMAT: str
    ARTIFACT_PACKAGE_HINT = "pyterrier_graph"
    FORMAT_VERSION = 1
    GIVEN: tuple[str, ...] = ()  # arguments that are not stored with the artifact, and have to be given to load it

    def _card(self, load: str) -> RepoCard | None:
        """The artifact's card with other code for loading."""
        from huggingface_hub import RepoCard

        file = Path(str(self.path), CARD)
        return RepoCard(file.read_text(encoding="utf-8").replace(LOAD, load)) if file.is_file() else None

    def _hf_readme(self, *, repo: str, branch: str | None = "main", **about: Any) -> str | None:
        place = repo if branch == "main" else f"{repo}@{branch}"
        card = self._card(f"pt.Artifact.from_hf({place!r}")
        if card is None:
            return super()._hf_readme(repo=repo, branch=branch, **about)
        card.data["pretty_name"] = about.get("pretty_name")
        return str(card)

    def _zenodo_metadata(self, *, zenodo_id: str, **options: Any) -> dict[str, Any]:
        about = super()._zenodo_metadata(zenodo_id=zenodo_id, **options)
        card = self._card(f"pt.Artifact.from_zenodo({str(zenodo_id)!r}")
        return about | ({"description": f"<pre>{escape(card.text)}</pre>"} if card else {})


class BuiltArtifact(OwnArtifact):
    """Base class of artifacts that are built at a path, which may not exist yet, and read from there."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_type("path", path, (str, os.PathLike), "the path of a folder")
        super().__init__(Path(path))

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes map the files again instead of receiving copies of them.
        return type(self), (self.path,)

    def built(self) -> bool:
        """Whether there is a complete artifact at this path."""
        try:
            return bool(self.meta)
        except (FileNotFoundError, ValueError):
            return False

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The contents of ``pt_meta.json``: sizes and origin. Raises as :func:`read_meta` does."""
        return read_meta(self.path, kind_of(self))
