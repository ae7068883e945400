"""Artifacts on disk: written completely or not at all, and checked with digests.

An artifact is a folder with a ``pt_meta.json``, which lists its kind and the size and SHA-256 of every file. While an
artifact is written, everything is in hidden siblings::

    .NAME.lock           held by the process that writes
    .NAME.new/shards/    finished shards of long work (see storage.shards)
    .NAME.new/files/     becomes NAME by a rename
    .NAME.new/former/    the artifact that is being replaced

Opening an artifact compares the sizes of all files; :func:`verify` compares their digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import pyterrier as pt

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

META = "pt_meta.json"
LOCK = "lock"
SHARDS = "shards"
SIZES = "files"  # entries of pt_meta.json
DIGESTS = "file_sha256"
# on which a model's results depend
PACKAGES = ("pyterrier_graph", "pyterrier", "torch", "transformers", "sentence-transformers")


# --- writing


@contextmanager
def atomic_folder(
    path: str | os.PathLike[str], meta: dict[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """Provides an empty folder that becomes the artifact at ``path`` when the block ends without an error.

    A process that is killed leaves the former artifact or the new one. Long work keeps shards beside the files::

        with atomic_folder(path, meta) as folder:
            shards = ShardWriter(folder.parent, rows, rows_per_shard, identity)

    Args:
        path: The artifact's folder, which must not exist, or be empty.
        meta: The contents of ``pt_meta.json``, which the block may complete; sizes and digests are added.
        overwrite: Whether to replace an artifact that exists at ``path``.

    Raises:
        BlockingIOError: If another process is writing the same artifact.
        FileExistsError: If there is something at ``path``, and ``overwrite`` is False.
    """
    target = Path(path).absolute()
    with workspace(target) as working:
        files = working / "files"
        former = working / "former"
        _restore(target, files, former)
        if not overwrite:
            check_vacant(target)
        files.mkdir()
        try:
            yield files
            write_meta(files, meta)
            if overwrite and target.exists():
                target.rename(former)
            files.replace(target)
        except BaseException:
            _restore(target, files, former)
            raise


def _restore(target: Path, files: Path, former: Path) -> None:
    """Restores the former artifact if there is no new one, and removes unfinished files."""
    if former.exists() and not target.exists():  # stopped between the two renames
        former.rename(target)
    shutil.rmtree(files, ignore_errors=True)
    shutil.rmtree(former, ignore_errors=True)


@contextmanager
def workspace(path: Path) -> Iterator[Path]:
    """Provides the folder ``.NAME.new`` beside ``path``, in which one process at a time works.

    The folder is deleted when the block ends without an error. After an error it stays if it contains shards or
    complete artifacts, so that a repeated call continues. Raises BlockingIOError if another process is at work there.
    """
    path = path.absolute()
    folder = path.with_name(f".{path.name}.new")
    with locked(path.with_name(f".{path.name}.lock")):
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        except BaseException:
            has_shards = any(folder.rglob("*.safetensors"))
            has_artifacts = any(folder.rglob(META))
            if not has_shards and not has_artifacts:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lets one process at a time run the block. The lock ``file`` and its folder are created.

    Raises BlockingIOError if another process has the lock. The operating system releases the lock of a process that
    dies.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        problem = f"another process is at work and holds {str(file)!r}"
        advice = "wait until it is done, or end it and repeat the call"
        raise BlockingIOError(f"{problem}: {advice}") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not delete open files
            file.unlink()  # before the release: afterwards, another process may have the lock
        lock.release()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Writes ``pt_meta.json`` with the sizes and digests of all files.

    Of an artifact inside the folder, only its ``pt_meta.json`` is listed, which lists the other files.
    """
    files = [*_listed_files(folder)]
    sizes = {}
    digests = {}
    for file in files:
        name = file.relative_to(folder).as_posix()
        sizes[name] = file.stat().st_size
        digests[name] = file_sha256(file)
    meta[SIZES] = sizes
    meta[DIGESTS] = digests
    content = json.dumps(meta, indent=1)
    about = folder / META
    about.write_text(content, encoding="utf-8", newline="\n")
    mode = about.stat().st_mode & 0o777
    for file in files:
        file.chmod(mode)  # safetensors creates files that only their owner may read


def _listed_files(folder: Path) -> Iterator[Path]:
    """Yields the files that ``pt_meta.json`` lists."""
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            yield entry
        elif _lists_files(entry / META):
            yield entry / META
        else:
            yield from _listed_files(entry)


def _lists_files(meta: Path) -> bool:
    """Whether a ``pt_meta.json`` has digests; those of other packages have none."""
    if not meta.is_file():
        return False
    return DIGESTS in json.loads(meta.read_bytes())


def write_file(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all."""
    with pt.io.finalized_open(str(path), "b") as out:
        out.write(content)


def check_vacant(path: Path) -> None:
    """Raises FileExistsError if there is a file, or a folder with files, at ``path``."""
    has_files = path.is_dir() and any(path.iterdir())
    if has_files or path.is_file():
        raise FileExistsError(f"{str(path)!r} exists already: delete it, or choose another path")


def check_identity(note: Path, identity: Mapping[str, Any], work: str, *, begun: bool) -> None:
    """Writes everything that the work in a folder depends on to the file ``note``; compares it if work has ``begun``.

    Raises ValueError, which names ``work`` and the differences, if the work depends on something else.
    """
    content = json.dumps(identity, indent=1, default=str)
    if not begun:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_file(note, content.encode())
        return
    identity = json.loads(content)
    former: dict[str, Any] = {}
    if note.exists():
        former = json.loads(note.read_text(encoding="utf-8"))
    differences = []
    for name in sorted(former.keys() | identity.keys()):
        was = former.get(name)
        now = identity.get(name)
        if was != now:
            differences.append(f"{name} was {reprlib.repr(was)}, is {reprlib.repr(now)}")
    if differences:
        holds = f"{str(note.parent)!r} holds {work} ({'; '.join(differences)})"
        raise ValueError(f"{holds}: delete it to start again, or choose another folder")


# --- opening


def read_meta(path: Path, expected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Opens an artifact: reads its ``pt_meta.json``, and compares the sizes of files.

    Args:
        path: The artifact's folder.
        expected: Entries that ``pt_meta.json`` must have, such as :func:`kind_of`.

    Raises:
        FileNotFoundError: If there is no artifact.
        ValueError: If the artifact is damaged, or of another kind.
    """
    meta = json.loads((path / META).read_bytes())
    expected = expected or {}
    actual = {name: meta.get(name) for name in expected}
    if actual != expected:
        raise ValueError(f"{str(path)!r} holds {actual}, but {expected} is needed")
    problems = [*_problems(path, meta)]
    if problems:
        raise ValueError(f"{str(path)!r} is damaged: {'; '.join(problems)}")
    return meta


def verify(path: Path) -> None:
    """Compares the files of an artifact, and of artifacts inside, with their digests; ValueError if some differ."""
    for file in [path / META, *path.rglob(f"*/{META}")]:
        folder = file.parent
        digests = read_meta(folder).get(DIGESTS, {})  # other packages have none
        changed = []
        for name, digest in digests.items():
            if file_sha256(folder / name) != digest:
                changed.append(name)
        if changed:
            raise ValueError(f"{str(folder)!r} is damaged: the contents of {changed} have changed")


def _problems(path: Path, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yields symbolic links, and differences between the sizes of files and ``meta``."""
    # os.walk skips folders that are being removed; Path.rglob raises FileNotFoundError
    for folder, subfolders, files in os.walk(path):
        for name in [*subfolders, *files]:
            if Path(folder, name).is_symlink():
                yield f"{name!r} is a symbolic link, which an artifact must not contain"
    sizes = meta.get(SIZES, {})  # other packages list no files
    for name, size in sizes.items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            yield f"{META!r} names a file outside of the artifact: {name!r}"
            continue
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            yield f"{name!r} should have {size} bytes, has {actual}"


# --- digests, which identify equal files and equal work


def json_sha256(value: Mapping[str, Any]) -> str:
    """SHA-256 of a dictionary that JSON can represent; the order of its keys does not matter."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_sha256(meta: Mapping[str, Any]) -> str:
    """SHA-256 of an artifact's files, computed from the digests in its ``pt_meta.json``."""
    return json_sha256(meta[DIGESTS])


def frame_sha256(frame: pd.DataFrame) -> str:
    """SHA-256 of the columns and values of a frame, in their order; values may be arrays."""
    from pandas.util import hash_pandas_object

    columns = f"{[*frame]}".encode()
    rows = hash_pandas_object(frame, index=False).to_numpy()
    return hashlib.sha256(columns + rows.tobytes()).hexdigest()


_weights_digests: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()


def weights_sha256(module: nn.Module, before: str = "", after: str = "") -> str:
    """SHA-256 of the names and weights of a module, between the strings ``before`` and ``after``.

    Weights are read again only after a change. Torch counts changes, except those that fused optimizers make; these
    change the last number of each weight.
    """
    import torch

    changes = []
    last_numbers = []
    for weight in module.parameters():
        if weight.numel():
            changes.append(0 if weight.is_inference() else weight._version)
            last_number = weight.detach().flatten()[-1]
            last_numbers.append(last_number.item())
    state = changes, last_numbers
    known_state, digest = _weights_digests.get(module, (None, ""))
    if known_state != state:
        sha256 = hashlib.sha256()
        for name, weight in sorted(module.state_dict().items()):
            sha256.update(name.encode())
            content = weight.cpu().flatten().view(torch.uint8)
            sha256.update(content.numpy().data)
        digest = sha256.hexdigest()
        _weights_digests[module] = state, digest
    return hashlib.sha256(f"{before}{digest}{after}".encode()).hexdigest()


def pipeline_identity(pipeline: Any) -> str:
    """The ``repr`` of a pipeline without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(pipeline))


def versions() -> dict[str, str]:
    """Versions of Python and of :data:`PACKAGES`."""
    packages = {name: version(name) for name in PACKAGES}
    return {"python": python_version(), **packages}


# --- base classes


class OwnArtifact(pt.Artifact):
    """Base class of the package's artifacts."""

    ARTIFACT_TYPE: str
    ARTIFACT_FORMAT: str
    ARTIFACT_PACKAGE_HINT = "pyterrier_graph"
    FORMAT_VERSION = 1

    def verify(self) -> Self:
        """Compares all files with their digests; raises ValueError if the artifact is damaged.

        Opening an artifact compares only the sizes of its files.
        """
        verify(Path(str(self.path)))
        return self


def kind_of(artifact: OwnArtifact | type[OwnArtifact]) -> dict[str, Any]:
    """The entries of ``pt_meta.json`` that state an artifact's kind."""
    return {
        "type": artifact.ARTIFACT_TYPE,
        "format": artifact.ARTIFACT_FORMAT,
        "format_version": artifact.FORMAT_VERSION,
        "package_hint": artifact.ARTIFACT_PACKAGE_HINT,
    }


class BuiltArtifact(OwnArtifact):
    """Base class of artifacts that are built at a path, which need not exist yet, and read from there."""

    path: Path

    def __init__(self, path: str | os.PathLike[str], *, verbose: bool = True) -> None:
        super().__init__(Path(path).absolute())  # files are opened later, perhaps from elsewhere
        self.verbose = verbose

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # worker processes map the files again instead of receiving copies
        return type(self), (self.path,), {"verbose": self.verbose}

    def built(self) -> bool:
        """Whether there is a complete artifact at this path."""
        try:
            return bool(self.meta)
        except (OSError, ValueError):
            return False

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The contents of ``pt_meta.json``: sizes and origin. Raises as :func:`read_meta` does."""
        return read_meta(self.path, kind_of(self))

    @property
    def folder(self) -> Path:
        """The folder of the files, whose sizes have been compared."""
        _ = self.meta
        return self.path
