"""The cache of a folder: where it lies, who may write to it, and what is removed from it."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyterrier as pt

from pyterrier_graph.artifacts import META
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.ranges.writer import PLAN

NAME = ".pyterrier_graph"
FILES, LOCK, GRAPH, VECTORS = "files.sqlite", "lock", "graph", "vectors"
KEPT = 2  # states of a folder: the present one, and the one before, which another process may have opened

logger = logging.getLogger(__name__)


def place_of(folder: Path) -> Path:
    """The cache of a folder: in the folder, or among PyTerrier's files if the folder cannot be written."""
    if os.access(folder, os.W_OK):
        return folder / NAME
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Path(pt.io.pyterrier_home()) / "pyterrier_graph" / "folders" / name


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """A block that no two processes run at the same time for the same cache; the second one waits, and says so."""
    from filelock import FileLock, Timeout

    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / ".gitignore").exists():
        (cache / ".gitignore").write_text("*\n", encoding="utf-8")
    lock = FileLock(cache / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("Another process works in %s. This one waits until it is done.", cache)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def remove_old(cache: Path, present: Path) -> None:
    """Removes graphs and indexes of former states of the folder, and vectors that only these states need."""
    os.utime(present)
    states = [path for path in cache.iterdir() if re.fullmatch("[0-9a-f]{16}", path.name) and path.is_dir()]
    # the present one comes first, whatever the clock says
    states.sort(key=lambda path: (path == present, path.stat().st_mtime_ns), reverse=True)
    for state in states[KEPT:]:
        shutil.rmtree(state, ignore_errors=True)
    graphs = [DocumentGraph(state / GRAPH) for state in states[:KEPT]]
    needed = [graph.fingerprint() for graph in graphs if graph.built()]
    vectors = cache / VECTORS
    for path in vectors.iterdir() if vectors.is_dir() else ():
        about = next((path / name for name in (META, PLAN) if (path / name).is_file()), None)
        if about is None or not any(graph in about.read_text(encoding="utf-8") for graph in needed):
            shutil.rmtree(path, ignore_errors=True)
