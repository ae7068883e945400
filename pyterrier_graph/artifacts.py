"""Artifacts on disk: written completely or not at all, and checked when they are opened."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Self

import pyterrier as pt

from pyterrier_graph.checks import check_type
from pyterrier_graph.integrity import (
    DIGESTS,
    META,
    SIZES,
    check_files,
    file_sha256,
    meta_text,
    open_meta,
    verify,
    verify_download,
)
from pyterrier_graph.warning_categories import DataWarning

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from huggingface_hub import RepoCard
    from torch import nn

CARD = "README.md"
NO_DIGESTS = "no digests, since an older version has written it: only the sizes of its files were compared"
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
def writing(path: str | os.PathLike[str], meta: dict[str, Any], *, overwrite: bool = False) -> Iterator[Path]:
    """Provides a temporary folder, which becomes the artifact when the block ends without an error.

    ``meta``, the contents of ``pt_meta.json``, may be completed inside the block. It is written last, with the size and
    the digest of every file, so that an incomplete folder is never read as an artifact. What killed processes have left
    of the same artifact is removed.

    Args:
        path: Path of the artifact.
        meta: The contents of ``pt_meta.json``.
        overwrite: Whether an artifact that is there already is replaced, when the new one is complete.

    Raises:
        FileExistsError: If there is a file, or a folder with files, at ``path``, or another process is writing there.
    """
    target = Path(path).absolute()
    if target.parent.is_dir():
        _recover(target)
    if not overwrite:
        check_vacant(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target) as folder:
        yield folder
        complete(folder, meta)
        if overwrite and target.exists():
            target.rename(folder.with_suffix(".old"))
            folder.rename(target)
        else:
            check_vacant(target)
            os.replace(folder, target)
    sync(target.parent)


def _recover(target: Path) -> None:
    """Removes what killed processes have left of an artifact; FileExistsError if a living one is writing it."""
    from filelock import FileLock, Timeout

    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.lock")
    for file in [file for file in target.parent.iterdir() if pattern.fullmatch(file.name)]:
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            message = f"another process is writing {str(target)!r}: wait until it is done, or choose another path"
            raise FileExistsError(message) from error
        _end(target, file, lock)


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` with a lock, by which other processes know that this one is alive."""
    from filelock import FileLock

    folder = target.with_name(f".{target.name}.{os.urandom(4).hex()}.new")
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=10)
        folder.mkdir()
        yield folder
    finally:
        _end(target, folder.with_suffix(".lock"), lock)


def _end(target: Path, file: Path, lock: BaseFileLock) -> None:
    """Removes a temporary folder, and then its lock, so that a folder without a lock is never left.

    What was to be replaced gets its place back if nothing has taken it.
    """
    new, old = file.with_suffix(".new"), file.with_suffix(".old")
    if old.exists() and not target.exists():
        old.rename(target)
    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)
    lock.release()
    if not new.exists() and not old.exists():
        file.unlink(missing_ok=True)


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
    meta[SIZES] = {name: file.stat().st_size for name, file in names.items()}
    meta[DIGESTS] = {name: known.get(name) or file_sha256(file) for name, file in names.items()}
    (folder / META).write_text(meta_text(meta), encoding="utf-8", newline="\n")
    mode = (folder / META).stat().st_mode & 0o777
    for file in [*files, folder / META]:
        file.chmod(mode)  # safetensors creates files that only their creator may read
        sync(file)
    for place in [*{file.parent for file in files}, folder]:
        sync(place)


def replace_file(path: Path, meta: dict[str, Any], name: str, content: bytes | None = None) -> None:
    """Adds a file to an artifact, or replaces one; without ``content`` it lies there, and only ``meta`` changes.

    At every moment the artifact can be read.
    """
    file, mode = path / name, (path / META).stat().st_mode & 0o777

    def put(target: Path, content: bytes) -> None:
        with pt.io.finalized_open(str(target), "b") as out:
            out.write(content)
        target.chmod(mode)

    if content is not None:
        others = {part: {key: meta[part][key] for key in meta[part] if key != name} for part in _listed(meta)}
        put(path / META, meta_text(meta | others).encode())
        put(file, content)
    meta[SIZES][name] = file.stat().st_size
    if DIGESTS in meta:
        meta[DIGESTS][name] = file_sha256(file)
    put(path / META, meta_text(meta).encode())


def _listed(meta: Mapping[str, Any]) -> list[str]:
    return [part for part in (SIZES, DIGESTS) if part in meta]


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

    It is compared with its digest, and so are all files of up to 1 MiB; of larger files sizes are compared. An artifact
    that was downloaded is verified completely when it is opened first.

    Raises FileNotFoundError if there is no artifact, and ValueError if the artifact has another kind or version, or is
    damaged.
    """
    while True:
        place = folder_id(path)
        try:
            meta = open_meta(path, expected)
            check_files(path, meta)
            verify_download(path, meta)
        except (OSError, ValueError):
            if folder_id(path) == place:
                raise
        if folder_id(path) == place:
            return meta  # else another process has replaced the artifact meanwhile


class OwnArtifact(pt.Artifact):
    """Base class of the package's artifacts: Hugging Face and Zenodo show an artifact's card, if it has one."""

    ARTIFACT_TYPE: str
    ARTIFACT_FORMAT: str
    ARTIFACT_PACKAGE_HINT = "pyterrier_graph"
    FORMAT_VERSION = 1
    GIVEN: tuple[str, ...] = ()  # arguments that are not stored with the artifact, and have to be given to load it

    def verify(self, *, verbose: bool = True) -> Self:
        """Reads all files of the artifact and compares them with the digests that were stored when they were written.

        Opening an artifact compares files of up to 1 MiB; ``python -m pyterrier_graph verify PATH`` does this, too.

        Args:
            verbose: Whether to show progress.

        Raises:
            FileNotFoundError: If there is no artifact at the path.
            ValueError: If the artifact is damaged; names each damaged file. Or if it was never saved.

        Warns:
            UserWarning: If the artifact has no digests, since an older version has written it.
        """
        if self.path is pt.Artifact.NO_PATH:
            raise ValueError(f"{self!r} has no folder: save it first")
        if not verify(Path(str(self.path)), verbose=verbose):
            warnings.warn(f"{str(self.path)!r} has {NO_DIGESTS}", DataWarning, stacklevel=2)
        return self

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
    _folder_id: tuple[int, int] | None = None

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
        self._folder_id = folder_id(self.path)
        return read_meta(self.path, kind_of(self))

    def check_in_place(self) -> None:
        """Raises ValueError if the folder is not that whose ``pt_meta.json`` was read."""
        if folder_id(self.path) != self._folder_id:
            raise ValueError(f"{self!r} was replaced or removed after it had been opened: open it again")


def folder_id(path: Path) -> tuple[int, int] | None:
    """Two numbers that tell a folder from another one that takes its place; None where there is nothing."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino
