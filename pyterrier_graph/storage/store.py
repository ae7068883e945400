"""Artifacts in an object store, such as Amazon S3: each machine has a copy of the version that it reads.

::

    s3://bucket/corpus/pt_meta.json             the present version: the sizes, digests and keys of its files
    s3://bucket/corpus/files/<base>/<SHA-256>   contents of files, which never change

A change works on the copy. It then uploads new files, with the digest of the version that it started from in their
keys, and replaces ``pt_meta.json`` if that version is still the present one, by a conditional put. This is the
transaction: of several machines that start from one version, one succeeds. Files of the others have keys that no later
version can have, so each change deletes files that neither its version nor the one before needs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import obstore
import pyterrier as pt
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from pyterrier_graph.storage.artifact import (
    DIGESTS,
    LOCK,
    META,
    SIZES,
    file_sha256,
    locked,
    meta_text,
)

URL = re.compile(r"(s3|gs|az):/+(.+)", re.DOTALL)  # a Path has only one of the slashes
KEYS, FILES, ENCODED = "keys", "files", "encoded/"
EMPTY: dict[str, Any] = {SIZES: {}, DIGESTS: {}, KEYS: {}}
AT_ONCE, ATTEMPTS = 8, 3  # files; attempts of a transfer that breaks


class ObjectStore:
    """An artifact in an object store, such as ``s3://bucket/corpus``, and its copy below ``PYTERRIER_HOME``.

    obstore transfers files, repeats requests that fail, and reads credentials from variables of the environment, or
    from where the provider's tools have them. No path or artifact contains them.
    """

    def __init__(self, url: str) -> None:
        if "@" in url or "?" in url:  # not shown
            advice = "set variables of the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise ValueError(
                f"the path of an object store must not contain credentials or options: {advice}"
            )
        self.url = URL.sub(r"\1://\2", url.rstrip("/"))
        self.folder = Path(
            pt.io.pyterrier_home(), "stores", hashlib.sha256(self.url.encode()).hexdigest()[:16]
        )
        self._store: Any = obstore.store.from_url(self.url)
        self._held = False  # whether this object changes the artifact
        self._present: str = ""  # pt_meta.json
        self._condition: Any = None  # for replacing it

    @classmethod
    def at(cls, path: Any) -> ObjectStore | None:
        """The object store of a path; None if it is the path of a folder."""
        return (
            path if isinstance(path, cls) else cls(str(path)) if URL.fullmatch(str(path)) else None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)

    # --- reading

    def fetch(self) -> None:
        """Updates the copy to the present version, unless another process is changing the copy."""
        if not self._held:
            copied = (self.folder / META).is_file()
            with suppress(BlockingIOError), locked(self.folder, None if copied else lambda: None):
                self._pull()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Updates the copy to the present version, and lets only this process change it in the block."""
        with locked(self.folder):
            self._pull()
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def _pull(self) -> None:
        copied, last, text = self.folder / META, EMPTY, self._read()
        with suppress(
            OSError, ValueError
        ):  # none, or damaged: then all files are compared with their digests
            last = json.loads(copied.read_bytes())
        while text and text != meta_text(last):
            try:
                self._download(json.loads(text), last)
                with pt.io.finalized_open(str(copied), "b") as out:
                    out.write(text.encode())
                return
            except FileNotFoundError as error:
                before, text = text, self._read()
                if text == before:  # else it has been replaced twice meanwhile
                    raise ValueError(f"{self.url!r} is damaged: {error}") from None
        if not text:
            copied.unlink(missing_ok=True)

    def _read(self) -> str:
        """The present ``pt_meta.json``; empty if there is none."""

        def read() -> tuple[str, Any]:
            try:
                found = obstore.get(self._store, META)
                tags = {name: tag for name in ("e_tag", "version") if (tag := found.meta.get(name))}
                return bytes(found.bytes()).decode(), tags
            except FileNotFoundError:
                next(iter(obstore.list(self._store)), None)  # an error if there is no such bucket
                return "", "create"

        self._present, self._condition = self._call(read)
        return self._present

    def _download(self, meta: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        """Copies the files of a version that this machine lacks; removes those that neither it nor the last needs."""

        def copy(name: str) -> None:
            file, digest = self.folder / name, meta[DIGESTS][name]
            if not file.resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(f"{META!r} names a file outside of the artifact: {name!r}")
            if file.is_file() and file.stat().st_size == meta[SIZES][name]:
                if last[DIGESTS].get(name) == digest or file_sha256(file) == digest:
                    return
            file.parent.mkdir(parents=True, exist_ok=True)
            self._get(name, meta, file)

        _each(copy, meta[SIZES])
        kept = {
            LOCK,
            META,
            *meta[SIZES],
            *(name for name in last[SIZES] if not name.startswith(ENCODED)),
        }
        for file in [*self.folder.rglob("*")]:
            name = file.relative_to(self.folder).as_posix()
            own = (
                name.startswith(ENCODED) and name not in last[SIZES]
            )  # what this machine encoded may be needed again
            if file.is_file() and name not in kept and not own:
                file.unlink()

    def _get(self, name: str, meta: Mapping[str, Any], file: Path) -> None:
        key = meta.get(KEYS, {}).get(name, name)  # a folder that was uploaded as it is has no keys

        def get() -> None:
            digest = hashlib.sha256()
            with pt.io.finalized_open(str(file), "b") as out:
                for chunk in obstore.get(self._store, key).stream():
                    digest.update(chunk)
                    out.write(chunk)
                if digest.hexdigest() != meta[DIGESTS][name]:
                    raise ValueError(
                        f"{self.url!r} is damaged: {name!r} has another content than when it was written"
                    )

        self._call(get)

    def verify(self) -> None:
        """Reads all files of the present version in the store. Raises ValueError if one is missing or damaged."""
        meta = json.loads(self._read() or "{}")
        try:
            with TemporaryDirectory() as folder:
                _each(lambda name: self._get(name, meta, Path(folder, "read")), meta.get(SIZES, ()))
        except FileNotFoundError as error:
            raise ValueError(f"{self.url!r} is damaged: {error}") from None

    # --- writing

    def publish(self, meta: dict[str, Any]) -> None:
        """Adds the keys of all files to the metadata of a new version, uploads it, and makes it the present one.

        Raises BlockingIOError if another machine has changed the artifact meanwhile.
        """
        base, condition = self._present, self._condition
        former = EMPTY | json.loads(base or "{}")
        meta["base"] = hashlib.sha256(base.encode()).hexdigest()
        new = {
            name: f"{FILES}/{meta['base'][:16]}/{digest}" for name, digest in meta[DIGESTS].items()
        }
        same = [
            name for name, digest in former[DIGESTS].items() if meta[DIGESTS].get(name) == digest
        ]
        meta[KEYS] = new | {name: former[KEYS].get(name, name) for name in same}
        there = self._call(
            lambda: {found["path"] for part in obstore.list(self._store, FILES) for found in part}
        )
        missing = {
            key: name for name, key in meta[KEYS].items() if key == new[name] and key not in there
        }
        _each(
            lambda key: self._call(obstore.put, self._store, key, self.folder / missing[key]),
            missing,
        )
        try:
            self._call(obstore.put, self._store, META, meta_text(meta).encode(), mode=condition)
        except OSError:
            if self._read() != meta_text(meta):  # else only the answer was lost
                raise
        if old := there - {*meta[KEYS].values(), *former[KEYS].values()}:
            self._call(obstore.delete, self._store, sorted(old))

    def _call(self, function: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Calls the library, again if connections break; its errors become Python's."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return function(*given, **options)
            except (AlreadyExistsError, PreconditionError):
                advice = "this change has had no effect, repeat the call"
                raise BlockingIOError(
                    f"{self.url!r} was changed by another machine: {advice}"
                ) from None
            except BaseError as error:
                if not left:
                    first = re.sub(
                        r"//[^/@\s]*@", "//", str(error).partition("\n")[0]
                    )  # without credentials
                    advice = "are the endpoint and the credentials set in the environment?"
                    raise ConnectionError(f"{self.url!r}: {first}; {advice}") from None


def _each(function: Callable[[str], Any], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        deque(threads.map(function, names), maxlen=0)
