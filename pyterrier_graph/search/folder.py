"""Makes a GraphIndex of the files of a folder."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

import pyterrier as pt

from pyterrier_graph.encoders.names import DEFAULT, checkpoint_state
from pyterrier_graph.search.files import FolderFiles
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.lexical import Lexical
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

    The first call reads all files. A later call reads them again only if a file was added, removed, or has another size
    or time, and encodes only new texts. Files are recognized by the endings of their names. Hidden files and symbolic
    links are ignored. ``.docx``, ``.pptx``, ``.pdf`` and ``.ipynb`` need the extra ``[office]``. Repeating a killed
    call continues it. If two processes open the same folder, the second one waits for the first.

    Args:
        folder: The folder, which is searched recursively.
        encoder: The name of a checkpoint. By default the one that needs no network.
        lexical: The engine of BM25: ``'bm25s'``, ``'pisa'``, or ``'terrier'`` (which needs Java).
        cache: Folder of the index. By default ``.pyterrier_graph`` in the folder, or a folder in PyTerrier's home if
            the folder cannot be written.
        workers: Number of processes. By default one per core, but a single one for fewer than 200 files.
        verbose: Whether to show progress.

    Returns:
        The index of the files. ``index.meta["source"]`` is the report of the reader, including the ``broken`` files.

    Raises:
        FileNotFoundError: If the folder does not exist.
        NotADirectoryError: If it is a file.
        ValueError: If the folder has no readable file, or no text.
    """
    path = Path(folder)
    files = FolderFiles(path, workers=workers, verbose=verbose)
    root = _cache_of(path) if cache is None else Path(cache)
    with locked(
        root,
        lambda: logger.warning(
            "Another process works in %s. This one waits until it is done.", root
        ),
    ):
        (root / ".gitignore").write_text("*\n", encoding="utf-8")
        name = hashlib.sha256(f"{checkpoint_state(encoder)} {lexical}".encode()).hexdigest()[:16]
        index = GraphIndex(root / name, lexical=lexical, verbose=verbose)
        if index.built() and index.meta["source"]["state"] == files.state():
            return index
        if index.path.exists() and not index.built():  # damaged, or of a call that was killed
            for entry in index.path.iterdir():
                if entry.name != ENCODED:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        index = GraphIndex(root / name, encoder=encoder, lexical=lexical, verbose=verbose)
        return index.index(files, overwrite=True)


def _cache_of(folder: Path) -> Path:
    """Returns the path of the cache: in the folder, or in PyTerrier's home if the folder is not writable."""
    if os.access(folder, os.W_OK):
        return folder / CACHE
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Path(pt.io.pyterrier_home()) / "pyterrier_graph" / "folders" / name
