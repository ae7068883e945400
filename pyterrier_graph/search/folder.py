"""Makes a GraphIndex of the files of a folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyterrier_graph.encoders.names import DEFAULT, checkpoint_state
from pyterrier_graph.search.files import FolderFiles
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.lexical import Lexical

CACHE = ".pyterrier_graph"


def open_folder(
    folder: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] = DEFAULT,
    lexical: Lexical = "bm25s",
    verbose: bool = True,
) -> GraphIndex:
    """Makes a folder searchable: Markdown, HTML, plain text, notebooks and office files.

    ::

        docs = ptg.open_folder("docs")
        docs.search("how do I install it")

    The first call reads all files. A later call reads them again only if a file was added, removed, or has another size
    or time, and encodes only new texts. Files are recognized by the endings of their names. Hidden files and symbolic
    links are ignored. ``.docx``, ``.pptx``, ``.pdf`` and ``.ipynb`` need the extra ``[office]``. Repeating a killed
    call continues it. The index is in ``.pyterrier_graph`` in the folder.

    Args:
        folder: The folder, which is searched recursively.
        encoder: The name of a checkpoint. By default the one that needs no network.
        lexical: The engine of BM25: ``'bm25s'``, ``'pisa'``, or ``'terrier'`` (which needs Java).
        verbose: Whether to show progress.

    Returns:
        The index of the files. ``index.meta["source"]`` is the report of the reader, including the ``broken`` files.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the folder has no readable file, or no text.
        BlockingIOError: If another process is making the index.
    """
    files = FolderFiles(Path(folder), verbose=verbose)
    cache = Path(folder, CACHE)
    cache.mkdir(exist_ok=True)
    (cache / ".gitignore").write_text("*\n", encoding="utf-8")
    options = f"{checkpoint_state(encoder)} {lexical}"
    digest = hashlib.sha256(options.encode()).hexdigest()
    path = cache / digest[:16]
    index = GraphIndex(path, encoder=encoder, lexical=lexical, verbose=verbose)
    if index.built():
        source = index.meta["source"]
        if source["state"] == files.state():
            return index
    return index.index(files, overwrite=True)
