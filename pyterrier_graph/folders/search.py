"""From a folder to answers: reads its files, builds what is missing, and searches."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import META
from pyterrier_graph.checks import check_count, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.folders import cache as caches
from pyterrier_graph.folders.file_store import Changes, FileStore
from pyterrier_graph.folders.lexical import Lexical, bm25, choose
from pyterrier_graph.folders.places import PassagePlaces
from pyterrier_graph.folders.reading import find_files
from pyterrier_graph.folders.reasons import reasons
from pyterrier_graph.folders.snippets import check_question, content_stems, snippet
from pyterrier_graph.folders.stored_files import StoredFiles
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.retrieve.contextual_index import ContextualIndex, encoder_of
from pyterrier_graph.retrieve.graph_mean import GraphMean
from pyterrier_graph.retrieve.hybrid import Hybrid
from pyterrier_graph.retrieve.index_identity import encoder_name

LINES = "lines.npy"


@dataclass(frozen=True, repr=False, eq=False)
class FolderSearch:
    """A folder that can be searched; :func:`open_folder` makes it.

    Attributes:
        folder: The folder.
        cache: Where its graph and indexes are.
        graph: The graph of its documents; ``graph.summary()["source"]`` is the report of the reader.
        index: The dense index of its passages.
        pipeline: Finds passages. Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank, text,
            title, file, line``.
        lexical: What BM25 runs on, or ``'none'``.
        changes: What has changed since the call before.
        hybrid: The pipeline's :class:`~pyterrier_graph.Hybrid`; None without BM25.
    """

    folder: Path
    cache: Path
    graph: DocumentGraph
    index: ContextualIndex
    pipeline: pt.Transformer
    lexical: Lexical
    changes: Changes
    hybrid: Hybrid | None

    def __repr__(self) -> str:
        return f"<folder {str(self.folder)!r}: {len(self.graph):,} documents, {len(self.index):,} passages>"

    def _repr_html_(self) -> str:
        from pyterrier_graph.plots.html import schematic, value

        sizes = {
            "documents": len(self.graph),
            "passages": len(self.index),
            "not read": len(self.broken),
            "read by the last call": self.changes.read,
            "encoder": self.index.encoder,
            "BM25": self.lexical,
        }
        calls = ['folder.search("your question")', "folder.pipeline >> ptg.GraphMaxSim(folder.graph)"]
        return value(f"folder {str(self.folder)!r}", sizes, calls=calls, picture=schematic(self.pipeline))

    @property
    def broken(self) -> dict[str, str]:
        """The files that cannot be read, with the reasons."""
        return self.graph.meta["source"]["broken"]

    def search(self, question: str, num_results: int = 10) -> pd.DataFrame:
        """Finds the best passages.

        Returns:
            A row per passage, the best first: ``title``, ``file``, ``line``, ``snippet`` (the part of the passage with
            the most words of the question), ``why``, ``score``, ``docno``, ``text``. ``why`` has what the words (BM25)
            and the meaning (vectors) add to the score, and what the passage and its title add to the similarity of
            vectors, with the title's weight for this question.

        Raises:
            ValueError: If the question has no word.
        """
        check_question(question)
        check_count("num_results", num_results)
        found = (self.pipeline % num_results).search(question).reset_index(drop=True)
        wanted = content_stems(question)
        found["snippet"] = [snippet(text, wanted) for text in found["text"]]
        found["why"] = reasons(found, question, self.index, self.hybrid)
        return found[["title", "file", "line", "snippet", "why", "score", "docno", "text"]]


def open_folder(
    folder: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] = DEFAULT,
    lexical: Lexical = "auto",
    cache: str | os.PathLike[str] | None = None,
    num_results: int = 100,
    workers: int | None = None,
    device: str | None = None,
    dtype: DType = "auto",
    verbose: bool = True,
) -> FolderSearch:
    """Makes a folder searchable: Markdown, HTML, reStructuredText, articles as JATS XML, and plain text.

    ::

        docs = ptg.open_folder("docs")
        docs.search("how do I install it")

    The first call reads all files, and encodes their passages. Later calls read files only if their size or time has
    changed, and encode passages only if their text is new. Files are known by how their names end; hidden files and
    symbolic links are left out. A call that was killed continues when it is repeated. If two processes open the same
    folder, the second one waits for the first.

    The ranking is a :class:`~pyterrier_graph.Hybrid` of BM25 and a :class:`~pyterrier_graph.GraphMean` with a weight of
    titles per question; without BM25 it is the GraphMean alone.

    Args:
        folder: The folder; it is searched with all folders inside.
        encoder: The name of a checkpoint. By default the one that needs no network.
        lexical: What BM25 runs on: ``'pisa'``, ``'terrier'`` (which needs Java), ``'none'``; ``'auto'`` is PISA where
            it is installed, else none.
        cache: Folder of the graph and the indexes. By default ``.pyterrier_graph`` in the folder, or a folder in
            PyTerrier's home if the folder cannot be written.
        num_results: Passages per query of the pipeline.
        workers: Number of processes that read. By default as many as there are cores, but one for fewer than 200 files.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding, see :mod:`~pyterrier_graph.encoders.devices`.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no such folder.
        NotADirectoryError: If it is a file.
        ValueError: If the folder has no file that can be read, or no text.
        ImportError: If PISA is asked for and is not installed.
    """
    check_type("folder", folder, (str, os.PathLike), "the path of a folder")
    check_count("num_results", num_results)
    kind, path = choose(lexical), Path(folder)
    found = find_files(path)
    place = caches.place_of(path) if cache is None else Path(cache)
    with caches.locked(place):
        with FileStore(place / caches.FILES) as store:
            changes = store.update(found, workers=workers, verbose=verbose)
            state = place / changes.digest[:16]
            graph = _graph(state, StoredFiles(found, store), verbose=verbose)
        bi_encoder = encoder_of(encoder, device=device, dtype=dtype)
        name = hashlib.sha256(encoder_name(bi_encoder).encode()).hexdigest()[:16]
        index_path = state / f"{name}.flex"
        if not (index_path / META).is_file():
            mean = GraphMean(graph, bi_encoder, folder=place / caches.VECTORS, dtype=dtype, verbose=verbose)
            mean.index(index_path)
        index = ContextualIndex(index_path, graph, bi_encoder)
        pipeline, hybrid = index.retriever(num_results), None
        if kind != "none":
            words = bm25(graph, kind, state, num_results, verbose=verbose)
            pipeline = hybrid = Hybrid(words, pipeline, num_results=num_results)
        pipeline = pipeline >> PassagePlaces(graph, np.load(state / LINES, mmap_mode="r"))
        caches.remove_old(place, state)
    return FolderSearch(path, place, graph, index, pipeline, kind, changes, hybrid)


def _graph(state: Path, files: StoredFiles, *, verbose: bool) -> DocumentGraph:
    """The graph of the files, with the lines of its passages beside it."""
    graph, lines = DocumentGraph(state / caches.GRAPH), state / LINES
    if graph.built() and lines.is_file():
        return graph
    shutil.rmtree(state, ignore_errors=True)
    graph.index(files, verbose=verbose)
    with pt.io.finalized_open(str(lines), "b") as out:
        np.save(out, np.array(files.lines, dtype=np.int32))
    return graph
