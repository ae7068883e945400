"""The files of a folder as a GraphIndex."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

import pyterrier as pt

from pyterrier_graph.checks import check_type
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_state
from pyterrier_graph.search.files import FolderFiles
from pyterrier_graph.search.graph_index import GraphIndex, Lexical
from pyterrier_graph.search.versions import ENCODED
from pyterrier_graph.storage.artifact import locked

CACHE = ".pyterrier_graph"

logger = logging.getLogger(__name__)


def open_folder(
    folder: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] = DEFAULT,
    lexical: Lexical = "bm25s",
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    verbose: bool = True,
) -> GraphIndex:
    """Makes a folder searchable: Markdown, HTML, reStructuredText, notebooks, plain text, and office files.

    ::

        docs = ptg.open_folder("docs")
        docs.search("how do I install it")

    The first call reads all files. A later call reads them again only if a file is new, was removed, or has another
    size or time; it encodes only new texts. Files are
    recognized by the endings of their names; hidden files and symbolic links are left out. ``.docx``, ``.pptx``,
    ``.pdf`` and ``.ipynb`` need the extra ``[office]``. A call that was killed continues when it is repeated. If two
    processes open the same folder, the second one waits for the first.

    Args:
        folder: The folder; it is searched with all folders inside.
        encoder: The name of a checkpoint. By default the one that needs no network.
        lexical: The engine of BM25: ``'bm25s'``, ``'pisa'``, or ``'terrier'`` (which needs Java).
        cache: Folder of the index. By default ``.pyterrier_graph`` in the folder, or a folder in PyTerrier's home if
            the folder cannot be written.
        workers: Number of processes that read. By default as many as there are cores, but one for fewer than 200 files.
        verbose: Whether to show progress.

    Returns:
        The index of the files. ``index.meta["source"]`` is the report of the reader, with the files that are
        ``broken``.

    Raises:
        FileNotFoundError: If the folder does not exist.
        NotADirectoryError: If it is a file.
        ValueError: If the folder has no file that can be read, or no text.
    """
    check_type("folder", folder, (str, os.PathLike), "the path of a folder")
    path = Path(folder)
    files = FolderFiles(path, workers=workers, verbose=verbose)
    place = _place_of(path) if cache is None else Path(cache)
    with locked(
        place,
        lambda: logger.warning(
            "Another process works in %s. This one waits until it is done.", place
        ),
    ):
        (place / ".gitignore").write_text("*\n", encoding="utf-8")
        name = hashlib.sha256(f"{checkpoint_state(encoder)} {lexical}".encode()).hexdigest()[:16]
        index = GraphIndex(place / name, lexical=lexical, verbose=verbose)
        if index.built() and index.meta["source"]["state"] == files.state():
            return index
        if index.path.exists() and not index.built():  # damaged, or of a call that was killed
            for entry in index.path.iterdir():
                if entry.name != ENCODED:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        index = GraphIndex(place / name, encoder=encoder, lexical=lexical, verbose=verbose)
        return index.index(files, overwrite=True)


def _place_of(folder: Path) -> Path:
    """Path of a folder's cache: in the folder, or among PyTerrier's files if the folder cannot be written."""
    if os.access(folder, os.W_OK):
        return folder / CACHE
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Path(pt.io.pyterrier_home()) / "pyterrier_graph" / "folders" / name
