"""Artifacts on disk: written completely or not at all, compared with their digests, and shared.

An artifact is a folder with a ``pt_meta.json``, which states its kind and the size and SHA-256 of every file, and ends
with a digest of itself. Opening an artifact compares all sizes, and the digests of files of up to 1 MiB; :func:`verify`
compares all digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

import pyterrier as pt

from pyterrier_graph.checks import check_type

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

META, CARD, LOCK, SHARDS = "pt_meta.json", "README.md", "lock", "shards"
NEW_META = f"{META}.new"  # before it takes the place of the former one
SIZES, DIGESTS, OWN_DIGEST = "files", "file_sha256", "meta_sha256"
SMALL = (
    1 << 20
)  # bytes; files up to this size are compared with their digests whenever an artifact is opened
OTHER_CONTENT = "has another content than when it was written"
Opened = TypeVar("Opened")
_sha256_of: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], str]] = (
    WeakKeyDictionary()
)  # with the weights' state
LOAD = (
    'pt.Artifact.load("folder"'  # a card's code for loading; the name of the hub replaces it there
)


def kind_of(artifact: OwnArtifact | type[OwnArtifact]) -> dict[str, Any]:
    """The fields of ``pt_meta.json`` that state an artifact's kind."""
    return {
        "type": artifact.ARTIFACT_TYPE,
        "format": artifact.ARTIFACT_FORMAT,
        "format_version": artifact.FORMAT_VERSION,
        "package_hint": artifact.ARTIFACT_PACKAGE_HINT,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a model's results depend on."""
    import pyterrier_graph

    others = {
        name: version(name)
        for name in ("pyterrier", "torch", "transformers", "sentence-transformers")
    }
    return {"python": python_version(), "pyterrier_graph": pyterrier_graph.__version__} | others


# --- fingerprints: digests by which equal files and equal work are recognized


def as_json(about: Mapping[str, Any]) -> str:
    """JSON with sorted names: the same text for equal contents."""
    return json.dumps(about, indent=1, sort_keys=True, allow_nan=False)


def json_sha256(about: Mapping[str, Any]) -> str:
    """SHA-256 of a description that JSON can express."""
    return hashlib.sha256(as_json(about).encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_sha256(folder: Path) -> str:
    """SHA-256 of the names and contents of the files in a folder."""
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        total.update(file.name.encode() + bytes.fromhex(file_sha256(file)))
    return total.hexdigest()


def frame_sha256(frame: pd.DataFrame) -> str:
    """SHA-256 of the columns and values of a frame, in their order; values may be arrays."""
    digest = hashlib.sha256()
    for name, values in frame.items():
        digest.update(f"{name!r}\n".encode())
        for value in values:
            digest.update(value.tobytes() if hasattr(value, "tobytes") else f"{value!r}\n".encode())
    return digest.hexdigest()


def weights_sha256(module: nn.Module, before: str = "", after: str = "") -> str:
    """SHA-256 of the names and weights of a module, preceded and followed by a string.

    The digest is computed again after a change. Fused optimizers change weights without increasing their version, so
    up to 64 numbers of each weight are compared, too.
    """
    import torch

    weights = dict(sorted(module.state_dict().items()))
    places = [(w.data_ptr(), w.is_inference() or w._version) for w in weights.values()]
    numbers = [w.flatten()[:: w.numel() // 64 + 1].cpu().double() for w in weights.values()]
    state = before, after, places, torch.cat([torch.empty(0), *numbers]).numpy().tobytes()
    known = _sha256_of.get(module)
    if known is None or known[0] != state:
        digest = hashlib.sha256(before.encode())
        for name, weight in weights.items():
            digest.update(name.encode())
            digest.update(weight.cpu().flatten().view(torch.uint8).numpy().data)
        digest.update(after.encode())
        known = _sha256_of[module] = state, digest.hexdigest()
    return known[1]


def pipeline_identity(pipeline: Any) -> str:
    """The ``repr`` of a pipeline without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(pipeline))


def claim(note: Path, identity: Mapping[str, Any], other: str, *, begun: bool) -> None:
    """Notes in a file all that the work in its folder depends on.

    Raises ValueError, which names ``other``, if work has ``begun`` there that depends on something else.
    """
    identity = json.loads(json.dumps(identity, default=str))
    if not begun:
        note.parent.mkdir(parents=True, exist_ok=True)
        with pt.io.finalized_open(str(note), "b") as out:  # completely or not at all
            out.write(json.dumps(identity, indent=1).encode())
        return
    before = json.loads(note.read_text("utf-8")) if note.exists() else {}
    if differing := sorted(
        name for name in {*before, *identity} if before.get(name) != identity.get(name)
    ):
        found = f"{other} (other: {', '.join(differing)})"
        raise ValueError(
            f"{str(note.parent)!r} holds {found}: choose another output_dir, or delete it"
        )


@contextmanager
def locked(folder: Path, waiting: Callable[[], Any] | None = None) -> Iterator[None]:
    """A block that one process at a time runs for a folder, which is made, and removed if only the lock is left in it.

    The operating system releases the lock of a process that dies. If another process has the lock, ``waiting`` is
    called, and the block waits; without ``waiting`` BlockingIOError is raised.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        if waiting is None:
            advice = "wait until it is done, or end it and repeat the call"
            raise BlockingIOError(
                f"another process is at work in {str(folder)!r}: {advice}"
            ) from None
        waiting()
        lock.acquire()
    except OSError as error:
        file = next((place for place in (folder, *folder.parents) if os.path.isfile(place)), None)
        advice = "choose another path, or folder=, where vectors are not to be next to the graph"
        why = (
            f"{error.strerror}: {advice}"
            if file is None
            else f"{str(file)!r} is a file: choose another path"
        )
        raise OSError(error.errno, why, str(folder)) from error
    try:
        yield
    finally:
        _remove_unused(
            folder
        )  # before the release: a process that has opened the file then makes a new one
        lock.release()
        if os.name == "nt":  # where an open file cannot be deleted
            _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    if folder.exists() and not {entry.name for entry in folder.iterdir()} - {LOCK}:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def workspace(path: Path) -> Iterator[Path]:
    """Provides the hidden folder ``.NAME.new`` beside ``path``, in which one process at a time works.

    The folder is deleted when the block ends without an error. After an error it stays if it contains shards or
    complete artifacts, so that a repeated call continues. Raises BlockingIOError if another process is at work there.
    """
    folder = path.absolute().with_name(f".{path.name}.new")
    with locked(folder):
        try:
            yield folder
        except BaseException:
            if not any(any(folder.rglob(name)) for name in ("*.safetensors", META)):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(
    path: str | os.PathLike[str], meta: dict[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """Provides an empty folder that becomes the artifact at ``path`` when the block ends without an error.

    Files are written to a hidden folder beside ``path``, which is renamed at the end. A process that is killed leaves
    the former artifact or the new one. Long work keeps finished shards beside the files::

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
    with workspace(target) as place:
        files, former = place / "files", place / "former"

        def restore() -> None:
            if former.exists() and not target.exists():  # stopped between the two renames
                former.rename(target)
            for folder in (files, former):
                shutil.rmtree(folder, ignore_errors=True)

        restore()
        if not overwrite:
            if os.path.isfile(target / META):  # complete: shards are left from a killed cleanup
                shutil.rmtree(place / SHARDS, ignore_errors=True)
            check_vacant(target)
        files.mkdir()
        try:
            yield files
            write_meta(files, meta)
            if overwrite and target.exists():
                target.rename(former)
            else:
                check_vacant(target)
            files.replace(target)
        except BaseException:
            restore()
            raise
        sync(target.parent)


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Writes ``pt_meta.json`` with the sizes and digests of all files in a folder, and waits until all are on the disk.

    Of an artifact inside the folder only its ``pt_meta.json`` is listed, which lists its files.
    """
    files = {file.relative_to(folder).as_posix(): file for file in _own_files(folder)}
    meta[SIZES] = {name: file.stat().st_size for name, file in files.items()}
    meta[DIGESTS] = {name: file_sha256(file) for name, file in files.items()}
    about = folder / META
    about.write_text(meta_text(meta), encoding="utf-8", newline="\n")
    mode = about.stat().st_mode & 0o777
    for file in (*files.values(), about):
        file.chmod(mode)  # safetensors creates files that only their owner may read
        sync(file)
    for inner in {parent for file in (*files.values(), about) for parent in file.parents}:
        if inner.is_relative_to(folder):
            sync(inner)


def _own_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.iterdir()):
        if not file.is_dir():
            yield file
        elif _has_digests(file):
            yield file / META
        else:
            yield from _own_files(file)


def _has_digests(folder: Path) -> bool:
    """Whether a folder is an artifact of this package, with a list of digests."""
    file = folder / META
    return file.is_file() and DIGESTS in json.loads(file.read_text(encoding="utf-8"))


def write_file(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all, and waits until it is on the disk."""
    with pt.io.finalized_open(str(path), "b") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    sync(path.parent)


def check_identity(note: Path, identity: Mapping[str, Any], work: str, *, begun: bool) -> None:
    """Writes to a file what the work in its folder depends on, or compares it where work has begun.

    Raises ValueError, which names ``work`` and the differences, if the work depends on something else.
    """
    identity = json.loads(json.dumps(identity, default=str))
    if not begun:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_file(note, json.dumps(identity, indent=1, sort_keys=True).encode())
        return
    before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    differences = [
        f"{name} was {reprlib.repr(before.get(name))}, is {reprlib.repr(identity.get(name))}"
        for name in sorted(before.keys() | identity.keys())
        if before.get(name) != identity.get(name)
    ]
    if differences:
        advice = "delete it to start again, or choose another folder"
        raise ValueError(f"{str(note.parent)!r} holds {work} ({'; '.join(differences)}): {advice}")


def content_sha256(meta: Mapping[str, Any]) -> str:
    """A digest of an artifact's files, from the digests in its ``pt_meta.json``."""
    return json_sha256(meta[DIGESTS])


@contextmanager
def writing(
    path: str | os.PathLike[str], meta: dict[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """Provides a temporary folder, which becomes the artifact when the block ends without an error.

    Files that a killed process has left of the same artifact are removed, and an artifact that it was about to replace
    gets its place back. ``meta`` becomes ``pt_meta.json`` and may be completed inside the block. It is written last, so
    that an incomplete folder is never read as an artifact. With ``overwrite`` the new artifact replaces a former one;
    else FileExistsError is raised. BlockingIOError: another process is writing there.
    """
    target = Path(path).absolute()
    place = target.with_name(f".{target.name}.new")
    files, replaced = place / "files", place / "replaced"

    def restore() -> None:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        for folder in (files, replaced):
            shutil.rmtree(folder, ignore_errors=True)

    with locked(place):
        try:
            restore()
            if not overwrite:
                check_vacant(target)
            files.mkdir()
            yield files
            complete(files, meta)
            if overwrite and target.exists():
                target.rename(replaced)
            else:
                check_vacant(target)
            files.replace(target)
        finally:
            restore()
    sync(target.parent)


def complete(
    folder: Path,
    meta: dict[str, Any],
    sha256: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
    publish: Callable[[dict[str, Any]], None] | None = None,
    kept: Container[str] = (),
) -> None:
    """Makes a folder with its files an artifact: syncs everything to the disk, and writes ``pt_meta.json`` at the end.

    Sizes and digests of the files, by default all in the folder, are added to ``meta``; ``sha256`` has known digests.
    ``publish`` may extend the metadata before they are written. What is ``kept`` is on the disk already. A caller that
    renames the folder afterwards has to :func:`sync` the folder around it.
    """
    known = sha256 or {}
    new = folder / NEW_META
    files = sorted({*(folder.rglob("*") if files is None else files)} - {folder / META, new})
    names = {file.relative_to(folder).as_posix(): file for file in files if file.is_file()}
    meta[SIZES] = {name: file.stat().st_size for name, file in names.items()}
    meta[DIGESTS] = {name: known.get(name) or file_sha256(file) for name, file in names.items()}
    if publish is not None:
        publish(meta)
    new.write_text(meta_text(meta), encoding="utf-8", newline="\n")
    mode = new.stat().st_mode & 0o777
    written = [*(file for name, file in names.items() if name not in kept), new]
    for file in written:
        file.chmod(mode)  # safetensors creates files that only their creator may read
        sync(file)
    for place in {
        parent for file in written for parent in file.parents if folder in parent.parents
    }:
        sync(place)
    new.replace(folder / META)
    sync(folder)


def replace_file(path: Path, meta: dict[str, Any], name: str, content: bytes | None = None) -> None:
    """Adds a file to an artifact, or replaces one; without ``content``, the file is there and only ``meta`` changes.

    The artifact can be read at every moment: the file is not listed while it changes.
    """
    file = path / name
    mode = (path / META).stat().st_mode & 0o777

    def put(target: Path, content: bytes) -> None:
        with pt.io.finalized_open(str(target), "b") as out:
            out.write(content)
        target.chmod(mode)

    if content is not None:
        others = {
            part: {key: meta[part][key] for key in meta[part] if key != name}
            for part in (SIZES, DIGESTS)
        }
        put(path / META, meta_text(meta | others).encode())
        put(file, content)
    meta[SIZES][name], meta[DIGESTS][name] = file.stat().st_size, file_sha256(file)
    put(path / META, meta_text(meta).encode())


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
    if os.path.exists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{str(path)!r} exists already: delete it, or choose another path")


def meta_text(meta: Mapping[str, Any]) -> str:
    """The text of ``pt_meta.json``, which ends with the digest of its other entries."""
    about = {name: value for name, value in meta.items() if name != OWN_DIGEST}
    digest = hashlib.sha256(json.dumps(about, indent=1).encode()).hexdigest()
    return json.dumps(about | {OWN_DIGEST: digest}, indent=1)


def read_meta(path: Path, expected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Opens an artifact: reads its ``pt_meta.json``, and compares sizes of files, and digests of small ones.

    Raises FileNotFoundError if there is no artifact, ValueError if it is damaged, or lacks the ``expected`` fields,
    such as those of :func:`kind_of`.
    """
    return _read_meta(path, expected or {})[0]


def _read_meta(
    path: Path, expected: Mapping[str, Any], limit: float = SMALL
) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """As :func:`read_meta`, with the id of the folder; digests are compared up to a size."""
    opened = folder_id(path), _version(path)
    meta = _open_meta(path, expected)
    try:
        problems = [*_problems(path, meta, limit)]
    except FileNotFoundError as error:
        problems = [str(error)]
    if opened != (
        folder_id(path),
        _version(path),
    ):  # another artifact or version has taken its place meanwhile
        return _read_meta(path, expected, limit)
    if problems:
        raise ValueError(f"{str(path)!r} is damaged: {'; '.join(problems)}")
    return meta, opened[0]


def _open_meta(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    file = path / META
    if not os.path.isfile(
        file
    ):  # in Python before 3.14, is_file() raises an error if the name is too long
        raise FileNotFoundError(f"no artifact at {str(path)!r} (there is no {META})")
    try:
        text = file.read_bytes().decode("utf-8")
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error
    found = {key: meta.get(key) for key in expected} if isinstance(meta, dict) else expected
    if found != expected:
        raise ValueError(f"{str(path)!r} holds {found}, but {expected} is needed")
    if not isinstance(meta, dict) or meta_text(meta) != text:
        raise ValueError(f"{str(file)!r} is damaged: it {OTHER_CONTENT}")
    return meta


def verify(path: Path) -> None:
    """Reads all files of an artifact and of those inside, and compares them with digests; ValueError if one differs."""
    _read_meta(path, {}, math.inf)


def _problems(path: Path, meta: Mapping[str, Any], limit: float) -> Iterator[str]:
    """The differences between an artifact's files and its meta; contents are compared up to a size."""
    root = path.resolve()
    for folder, folders, names in os.walk(
        path
    ):  # unlike rglob, it passes over folders that are removed meanwhile
        for file in (Path(folder, name) for name in (*folders, *names)):
            if file.is_symlink():
                yield f"{file.relative_to(path).as_posix()!r} is a symbolic link, which an artifact must not contain"
    for name, size in meta[SIZES].items():
        file = path / name
        if not file.resolve().is_relative_to(root):
            yield f"{META!r} names a file outside of the artifact: {name!r}"
            continue
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            yield f"{name!r} should have {size} bytes, has {actual}"
        elif size <= limit and file_sha256(file) != meta[DIGESTS][name]:
            yield f"{name!r} {OTHER_CONTENT}"


def folder_id(path: Path) -> tuple[int, int] | None:
    """Two numbers that distinguish a folder from another one that takes its place; None where there is nothing."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _version(path: Path) -> int | None:
    """When the ``pt_meta.json`` of an artifact was written; None where there is none."""
    try:
        return (path / META).stat().st_mtime_ns
    except OSError:
        return None


class OwnArtifact(pt.Artifact):
    """Base class of the package's artifacts: Hugging Face shows an artifact's card, if it has one."""

    ARTIFACT_TYPE: str
    ARTIFACT_FORMAT: str
    ARTIFACT_PACKAGE_HINT = "pyterrier_graph"
    FORMAT_VERSION = 1
    GIVEN: tuple[
        str, ...
    ] = ()  # arguments that are not stored with the artifact, and have to be given to load it

    def verify(self) -> Self:
        """Compares all files with their digests (opening an artifact compares small ones); ValueError names damages."""
        if self.path is pt.Artifact.NO_PATH:
            raise ValueError(f"{self!r} has no folder: save it first")
        verify(Path(str(self.path)))
        return self

    def _hf_readme(self, *, repo: str, branch: str | None = "main", **about: Any) -> str | None:
        file = Path(str(self.path), CARD)
        if not file.is_file():
            return super()._hf_readme(repo=repo, branch=branch, **about)
        place = repo if branch == "main" else f"{repo}@{branch}"
        return file.read_text(encoding="utf-8").replace(LOAD, f"pt.Artifact.from_hf({place!r}")


class BuiltArtifact(OwnArtifact):
    """Base class of artifacts that are built at a path, which may not exist yet, and read from there."""

    path: Path
    _folder_id: tuple[int, int] | None = None

    def __init__(self, path: str | os.PathLike[str], *, verbose: bool = True) -> None:
        check_type("path", path, (str, os.PathLike), "the path of a folder")
        if "://" in os.fspath(path):  # which may contain credentials: it is not shown
            raise ValueError(
                f"the path of a {type(self).__name__} is a folder: only a GraphIndex may be in an object store"
            )
        super().__init__(
            Path(path).absolute()
        )  # files are opened when they are needed, perhaps from another folder
        self.verbose = verbose

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes map the files again instead of receiving copies of them.
        return type(self), (self.path,), {"verbose": self.verbose}

    def built(self) -> bool:
        """Whether there is a complete artifact at this path."""
        try:
            return bool(self.meta)
        except (FileNotFoundError, ValueError):
            return False

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The contents of ``pt_meta.json``: sizes and origin. Raises as :func:`read_meta` does."""
        meta, self._folder_id = _read_meta(self.path, kind_of(self))
        return meta

    def _open(self, open_in: Callable[[Path], Opened]) -> Opened:
        """Opens files that have been compared with ``pt_meta.json``; ValueError if another artifact has their place."""
        assert self.meta
        try:
            return open_in(self.path)
        finally:  # also if it fails: the files may be those of another artifact
            if folder_id(self.path) != self._folder_id:
                raise ValueError(
                    f"{self!r} was replaced or removed after it had been opened: open it again"
                )
