"""Artifacts in an object store, such as Amazon S3, of which each machine has a copy of the version that it reads.

::

    s3://bucket/corpus/pt_meta.json             the present version: the sizes, digests and keys of its files
    s3://bucket/corpus/files/<base>/<SHA-256>   contents of files, which never change

A change works on the copy. Then it uploads the files that are new, with the digest of the version that it started from
in their keys, and replaces ``pt_meta.json`` on the condition that it is still the one of that version. This is the
transaction: of several machines that start from one version, one succeeds. The others' files have keys that no later
version can have, so each change deletes what it has found and neither the version before it nor its own needs.

``obstore`` transfers files, repeats requests that fail, and takes credentials from where the store's other tools take
them, such as ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``. They are not part of paths or of artifacts.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyterrier as pt

from pyterrier_graph.storage.artifact import DIGESTS, LOCK, META, OTHER_CONTENT, SIZES, file_sha256, locked, meta_text

URL = re.compile(r"(s3|gs|az):/+(.+)", re.DOTALL)  # a Path has only one of the slashes
KEYS, BASE = "keys", "base"  # in pt_meta.json: the keys of files, and the digest of the version before
FILES = "files"
AT_ONCE = 8  # files
ATTEMPTS = 5  # to read a file whose transfer breaks


class ObjectStore(os.PathLike[str]):
    """An artifact in an object store, and the folder of this machine that has a copy of it.

    Args:
        url: Its place, such as ``s3://bucket/corpus``.

    Attributes:
        folder: The copy; ``PYTERRIER_HOME`` sets where copies are.

    Raises:
        ImportError: If obstore is not installed.
        ValueError: If the place has credentials in it.
    """

    def __init__(self, url: str) -> None:
        if "@" in url or "?" in url:  # do not show them
            raise ValueError(
                "the path of an object store must not contain credentials or options: set environment variables, such "
                "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.url = URL.sub(r"\1://\2", url.rstrip("/"))
        self.folder = Path(pt.io.pyterrier_home(), "stores", hashlib.sha256(self.url.encode()).hexdigest()[:16])
        try:
            self._api: Any = importlib.import_module("obstore")
        except ImportError as error:
            raise ImportError(f"{self.url} needs obstore: pip install 'pyterrier-graph[store]'") from error
        self._store = self._api.store.from_url(self.url)
        self._held = False  # whether this object changes the artifact
        self._present: tuple[str, Any] = "", "create"  # pt_meta.json, and the condition for replacing it

    @classmethod
    def at(cls, path: Any) -> ObjectStore | None:
        """The object store of a path; None if it is the path of a folder."""
        found = isinstance(path, (str, os.PathLike)) and URL.fullmatch(os.fspath(path))
        return path if isinstance(path, cls) else cls(os.fspath(path)) if found else None

    def __fspath__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)

    # --- reading

    def fetch(self) -> None:
        """Makes the copy that of the present version. While another process changes it, it stays as it is."""
        if self._held:
            return
        try:
            with locked(self.folder):
                self._pull()
        except BlockingIOError:
            if not (self.folder / META).is_file():
                with locked(self.folder, waiting=lambda: None):
                    self._pull()

    def _pull(self) -> None:
        copied, before = self.folder / META, None
        while True:
            text, self._present = self._read()
            if not text:
                copied.unlink(missing_ok=True)
                return
            if copied.is_file() and copied.read_text("utf-8") == text:
                return
            try:
                self._download(json.loads(text))
                break
            except FileNotFoundError as error:  # the version has been replaced twice meanwhile
                if text == before:
                    raise ValueError(f"{self.url!r} is damaged: {error}") from None
                before = text
        with pt.io.finalized_open(str(copied), "b") as out:
            out.write(text.encode())

    def _read(self) -> tuple[str, tuple[str, Any]]:
        """The present ``pt_meta.json``, and what a change has to know of it; an empty text if there is none."""
        with self._errors():
            try:
                found = self._api.get(self._store, META)
            except FileNotFoundError:
                next(iter(self._api.list(self._store)), None)  # an error if there is no such bucket
                return "", ("", "create")
            text = bytes(found.bytes()).decode()
        about = json.loads(text)
        if meta_text(about) != text:
            raise ValueError(f"{self.url!r} is damaged: {META} {OTHER_CONTENT}")
        return text, (text, {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name]})

    def _download(self, meta: Mapping[str, Any]) -> None:
        """Copies the files that this machine does not have, and deletes those that neither this nor the last needs."""
        copied, root = self.folder / META, self.folder.resolve()
        last = json.loads(copied.read_text("utf-8")) if copied.is_file() else {SIZES: {}, DIGESTS: {}}

        def copy(name: str) -> None:
            file, digest = self.folder / name, meta[DIGESTS][name]
            if not file.resolve().is_relative_to(root):
                raise ValueError(f"{META!r} names a file outside of the artifact: {name!r}")
            if file.is_file() and file.stat().st_size == meta[SIZES][name]:
                if last[DIGESTS].get(name) == digest or file_sha256(file) == digest:
                    return
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f"{file.name}.part")
            self._get(name, meta, lambda: open(part, "wb"))
            part.replace(file)

        self._each(copy, meta[SIZES])
        kept = {LOCK, META, *meta[SIZES], *last[SIZES]}
        for file in [*self.folder.rglob("*")]:
            if file.is_file() and file.relative_to(self.folder).as_posix() not in kept:
                file.unlink()

    def _get(self, name: str, meta: Mapping[str, Any], opened: Callable[[], Any] = nullcontext) -> None:
        """Reads a file and compares it with its digest; writes it to where it is opened for writing."""
        for attempt in range(ATTEMPTS):
            try:
                with self._errors(), opened() as out:
                    digest = hashlib.sha256()
                    for chunk in self._api.get(self._store, meta[KEYS][name]).stream():
                        digest.update(chunk)
                        if out is not None:
                            out.write(chunk)
                break
            except ConnectionError:
                if attempt == ATTEMPTS - 1:
                    raise
        if digest.hexdigest() != meta[DIGESTS][name]:
            raise ValueError(f"{self.url!r} is damaged: {name!r} {OTHER_CONTENT}")

    def verify(self) -> None:
        """Reads all files of the present version in the store. Raises ValueError if one is missing or damaged."""
        text, _ = self._read()
        meta = json.loads(text or '{"files": {}}')
        try:
            self._each(lambda name: self._get(name, meta), meta[SIZES])
        except FileNotFoundError as error:
            raise ValueError(f"{self.url!r} is damaged: {error}") from None

    # --- writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which this process alone changes the copy, which is that of the present version."""
        with locked(self.folder):
            self._pull()
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def plan(self, meta: dict[str, Any]) -> None:
        """Adds the keys of all files to the metadata of a new version: those of unchanged files stay."""
        former = json.loads(self._present[0] or "{}")
        digests, keys = former.get(DIGESTS, {}), former.get(KEYS, {})
        meta[BASE] = hashlib.sha256(self._present[0].encode()).hexdigest()
        new = f"{FILES}/{meta[BASE][:16]}"
        meta[KEYS] = {
            name: keys[name] if digests.get(name) == digest else f"{new}/{digest}"
            for name, digest in meta[DIGESTS].items()
        }

    def publish(self, meta: Mapping[str, Any]) -> None:
        """Uploads the files of a new version, and makes it the present one.

        Raises:
            BlockingIOError: If another machine has changed the artifact meanwhile.
        """
        base, condition = self._present
        text = meta_text(meta)
        with self._errors():
            there = {found["path"] for part in self._api.list(self._store, FILES) for found in part}
        missing = {key: name for name, key in meta[KEYS].items() if key not in there}
        self._each(lambda key: self._put(key, self.folder / missing[key]), missing)
        try:
            self._put(META, text.encode(), condition)
        except (ConnectionError, BlockingIOError):
            if self._read()[0] != text:  # else only the answer was lost
                raise
        needed = {*meta[KEYS].values(), *json.loads(base or "{}").get(KEYS, {}).values()}
        if old := sorted(there - needed):
            with self._errors():
                self._api.delete(self._store, old)

    def _put(self, key: str, content: bytes | Path, condition: Any = None) -> None:
        with self._errors():
            self._api.put(self._store, key, content, mode=condition)

    def _each(self, function: Callable[[str], None], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            calls = [threads.submit(function, name) for name in names]
            try:
                for call in calls:
                    call.result()
            finally:
                threads.shutdown(cancel_futures=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the library as Python's, without what follows their first line, and without credentials."""
        kinds = self._api.exceptions
        try:
            yield
        except (kinds.AlreadyExistsError, kinds.PreconditionError):
            message = f"{self.url!r} was changed by another machine: this change has had no effect, repeat the call"
            raise BlockingIOError(message) from None
        except (kinds.BaseError, FileNotFoundError, PermissionError) as error:
            text = re.sub(r"//[^/@\s]*@", "//", str(error).partition("\n")[0])
            kind = next((kind for kind in (FileNotFoundError, PermissionError) if isinstance(error, kind)), None)
            raise (kind or ConnectionError)(f"{self.url!r}: {text}") from None
