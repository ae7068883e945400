"""Whether an artifact's files are those that were written: sizes, digests, and no links that lead out of its folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyterrier as pt

META = "pt_meta.json"
SIZES, DIGESTS, OWN_DIGEST = "files", "file_sha256", "meta_sha256"
SMALL = 1 << 20  # bytes; files up to this size are compared with their digests whenever an artifact is opened
MAX_META = 1 << 28
CHUNK = 1 << 20
OTHER_CONTENT = "has another content than when it was written"


def meta_text(meta: Mapping[str, Any]) -> str:
    """The text of ``pt_meta.json``, which ends with a digest of all that stands before."""
    about = {name: value for name, value in meta.items() if name != OWN_DIGEST}
    digest = hashlib.sha256(json.dumps(about, indent=1).encode()).hexdigest()
    return json.dumps(about | {OWN_DIGEST: digest}, indent=1)


def file_sha256(file: Path, progress: Callable[[int], Any] = lambda size: None) -> str:
    """SHA-256 of a file; ``progress`` is told how many bytes have been read, each time that some were."""
    total = hashlib.sha256()
    with open(file, "rb") as stream:
        while part := stream.read(CHUNK):
            total.update(part)
            progress(len(part))
    return total.hexdigest()


class _Meta(dict[str, Any]):
    """The contents of a ``pt_meta.json``; an entry that it lacks is an error that says so."""

    def __init__(self, entries: Mapping[str, Any], *, file: Path) -> None:
        super().__init__(entries)
        self.file = file

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{str(self.file)!r} is damaged: it lacks {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def open_meta(path: Path, expected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The contents of an artifact's ``pt_meta.json``, compared with their digest (which older artifacts do not have).

    Raises FileNotFoundError if there is no such file, and ValueError if it is damaged or lacks an ``expected`` field.
    """
    file = path / META
    if not file.is_file():
        raise FileNotFoundError(f"no artifact at {str(path)!r} (there is no {META})")
    try:
        if file.stat().st_size > MAX_META:
            raise ValueError(f"it has more than {MAX_META:,} bytes")
        text = file.read_bytes().decode("utf-8")
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error
    found = {key: meta.get(key) for key in expected or {}} if isinstance(meta, dict) else {}
    if found != (expected or {}):
        raise ValueError(f"{str(path)!r} holds {found}, but {expected} is needed")
    if not isinstance(meta, dict) or not isinstance(meta.get(SIZES), dict):
        raise ValueError(f"{str(file)!r} is damaged: it does not list the artifact's files")
    if (OWN_DIGEST in meta or DIGESTS in meta) and meta_text(meta) != text:
        raise ValueError(f"{str(file)!r} is damaged: it {OTHER_CONTENT}")
    return _Meta(meta, file=file)


def check_files(path: Path, meta: Mapping[str, Any]) -> None:
    """Raises ValueError unless all files have the sizes, and small ones the contents, with which they were written."""
    for problem in _problems(path, meta, SMALL):
        raise ValueError(f"{str(path)!r} is damaged: {problem}")


def verify(path: Path, *, verbose: bool = True) -> bool:
    """Reads all files of an artifact, and those of artifacts and checkpoints inside, and compares them with digests.

    Args:
        path: Folder of the artifact.
        verbose: Whether to show progress.

    Returns:
        Whether the artifact has digests. One of an older version has none; only the sizes of its files are compared.

    Raises:
        FileNotFoundError: If there is no artifact.
        ValueError: If it is damaged; names each damaged file.
    """
    meta = open_meta(path)
    sizes = [size for size in meta[SIZES].values() if isinstance(size, int)]
    bar = {"desc": f"verifying {path.name}", "unit": "B", "unit_scale": True, "delay": 1, "disable": not verbose}
    with pt.tqdm(total=sum(sizes), **bar) as progress:
        problems = [*_problems(path, meta, None, progress.update)]
    if problems:
        raise ValueError(f"{str(path)!r} is damaged: {'; '.join(problems)}")
    return DIGESTS in meta


def artifacts_in(path: Path) -> list[Path]:
    """The folder itself if it is an artifact, else the artifacts inside it; those inside artifacts are part of them."""
    if (path / META).is_file():
        return [path]
    inside = sorted(part for part in path.iterdir() if part.is_dir() and not part.is_symlink()) if path.is_dir() else []
    return [found for part in inside for found in artifacts_in(part)]


def verify_download(path: Path, meta: Mapping[str, Any]) -> None:
    """Verifies an artifact that PyTerrier has downloaded, once: the note of its origin, beside it, says so afterwards.

    Raises ValueError as :func:`verify` does.
    """
    note = Path(f"{path}.json")
    try:
        origin = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(origin, dict) or not origin.keys() & {"url", "path"}:
        return
    if origin.get("verified") == meta.get(OWN_DIGEST):
        return
    try:
        verify(path)
    except ValueError as error:
        raise ValueError(f"{error}. Delete {str(path)!r} and {str(note)!r} to download it again") from error
    try:
        with pt.io.finalized_open(str(note), "b") as out:
            out.write(json.dumps(origin | {"verified": meta[OWN_DIGEST]}).encode())
    except OSError:  # the folder cannot be written: it is verified again next time
        return


def _problems(
    path: Path, meta: Mapping[str, Any], limit: int | None, progress: Callable[[int], Any] = lambda size: None
) -> Iterator[str]:
    """What is wrong with the files of an artifact; contents are compared up to a size, or all of them."""
    links = {file.relative_to(path).as_posix() for file in _links(path)}
    yield from (f"{name!r} is a symbolic link, and an artifact must have none" for name in sorted(links))
    digests = meta.get(DIGESTS)
    if digests is not None and (not isinstance(digests, dict) or digests.keys() != meta[SIZES].keys()):
        yield f"{META!r} has digests of other files than it lists"
        return
    for name, size in meta[SIZES].items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            yield f"{META!r} names a file outside of the artifact: {name!r}"
            continue
        actual = file.stat().st_size if file.is_file() else None
        if actual is None or actual != size:
            yield f"{name!r} should have {size} bytes, has {actual}"
        elif digests is not None and (limit is None or actual <= limit):
            try:
                right = file_sha256(file, progress) == digests[name]
            except OSError as error:
                yield f"{name!r} cannot be read: {error}"
            else:
                if not right:
                    yield f"{name!r} {OTHER_CONTENT}"


def _links(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif entry.is_dir():
                yield from _links(Path(entry.path))
