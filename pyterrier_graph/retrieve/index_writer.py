"""Writes indexes of vectors: a corpus's own vectors, and contextual ones made from them; and tells what they are of."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.artifacts import CARD, META, read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, VectorsOf, checked_vectors, unfinished, write_vectors
from pyterrier_graph.graphs.builder import DOCNOS
from pyterrier_graph.graphs.csr import checked
from pyterrier_graph.graphs.ids import ids_of, writing_ids

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

PASSAGES_AT_ONCE = 1024
QUERIES_AT_ONCE = 4096
FLEX = {"type": "dense_index", "format": "flex", "package_hint": "pyterrier_dr"}


def write_index(
    base_index: FlexIndex,
    index: FlexIndex,
    vectors_of: VectorsOf,
    *,
    identity: dict[str, Any],
    previous: tuple[FlexIndex, np.ndarray] | None = None,
    chunk_size: int = 16_384,
    verbose: bool = True,
) -> FlexIndex:
    """Writes an ordinary ``FlexIndex`` with the passages of another one, and other vectors, chunk by chunk.

    Until the index is complete there is nothing at its path. Unfinished work lies in ``<path>.unfinished``; the same
    call continues after the last whole chunk.

    Args:
        base_index: The index that has the passages.
        index: Where to write; nothing may be there yet.
        vectors_of: Numbers of passages in the base index, int64 and ascending, to their vectors, floating point of
            shape (passages, d), where d is the base index's. Called with one chunk after the other, or, with
            ``previous``, with those passages of a chunk that changed.
        identity: Digests of all that the vectors depend on, for JSON. :func:`identity_of` returns it.
        previous: A contextual index of the same passages, and the numbers of those whose vectors have changed. All
            others are copied from it.
        chunk_size: Passages per chunk. Memory grows with it, not with the index.
        verbose: Whether to show progress.

    Returns:
        ``index``.

    Raises:
        FileExistsError: If something lies at the index's path.
        FileNotFoundError: If there is no base index.
        IndexError: If there is no passage with a number that ``previous`` comes with.
        ValueError: If vectors are of another shape or not finite, ``previous`` is of other passages or not contextual,
            or the unfinished work is of something else.
    """
    base = base_index.index_path
    docnos, about = base_index.payload(return_dvecs=False)
    count, dimension = shape = about["doc_count"], about["vec_size"]
    kind = {name: about[name] for name in ("type", "format", "doc_count", "vec_size")}
    digest = file_sha256(base / DOCNOS)
    contextual: dict[str, Any] = {"identity": identity, "docnos_sha256": digest}

    def new(numbers: np.ndarray) -> np.ndarray:
        return checked_vectors(
            vectors_of(numbers), numbers, dimension, lambda number: f"passage {ids_of(docnos, np.array([number]))[0]!r}"
        )

    chunk = new
    if previous is not None:
        old, numbers = previous
        contextual["previous"] = {"identity": identity_of(old)}
        read_meta(old.index_path, kind)
        if file_sha256(old.index_path / DOCNOS) != digest:
            raise ValueError(f"{old!r} has other docnos than {base_index!r}: nothing can be copied from it")
        if np.asarray(numbers).dtype.kind not in "iu":
            raise ValueError(f"changed passages are given by number, got {np.asarray(numbers).dtype}")
        changed = np.zeros(count, dtype=bool)
        changed[checked(numbers, count)] = True
        contextual["previous"] |= {
            "copied": int(count - changed.sum()),
            "changed_sha256": hashlib.sha256(np.packbits(changed).tobytes()).hexdigest(),
        }

        def chunk(numbers: np.ndarray) -> np.ndarray:
            here = changed[numbers]
            # not mapped: pages that were read would count as memory until another process needs it
            vectors = np.fromfile(
                old.index_path / VECTORS,
                FLOAT,
                count=len(numbers) * dimension,
                offset=int(numbers[0]) * dimension * FLOAT.itemsize,
            ).reshape(-1, dimension)
            if here.any():
                vectors[here] = new(numbers[here])
            return vectors

    files = {DOCNOS: (base / DOCNOS).stat().st_size, VECTORS: count * dimension * FLOAT.itemsize}
    meta = kind | {"package_hint": FLEX["package_hint"], "contextual": contextual, "files": files}
    with unfinished(index.index_path, meta) as (folder, out):
        shutil.copyfile(base / DOCNOS, folder / DOCNOS)
        progress = {"desc": "indexing", "unit": "passage", "disable": not verbose}
        write_vectors(out, shape, chunk, at_once=chunk_size, progress=progress)
    return index


def write_base_index(
    path: Path, graph: HeteroGraph, encoder: BiEncoder, identity: dict[str, Any], *, verbose: bool = True
) -> None:
    """Writes the ``FlexIndex`` of a document graph's passages, batch by batch; the same call continues it.

    Args:
        path: Where to write; nothing is done if the index is there.
        graph: Its passages are encoded, in the order of ``graph.passage_nodes``.
        encoder: Encodes them.
        identity: What tells these vectors from others, for JSON.
        verbose: Whether to show progress.

    Raises:
        ValueError: If vectors are of another shape or not finite, or the unfinished work is of something else.
    """
    if (path / META).is_file():
        return
    nodes = graph.passage_nodes
    dimension = int(np.asarray(encoder.encode_docs(graph.texts(nodes[:1]))).shape[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {VECTORS: len(nodes) * dimension * FLOAT.itemsize}
    meta = FLEX | {"doc_count": len(nodes), "vec_size": dimension, "base": identity, "files": files}

    def encoded(numbers: np.ndarray) -> np.ndarray:
        vectors = encoder.encode_docs(graph.texts(nodes[numbers]))
        return checked_vectors(vectors, numbers, dimension, lambda number: f"passage {graph.ids_of(nodes[[number]])[0]}")

    with unfinished(path, meta) as (folder, out):
        with writing_ids(folder / DOCNOS) as ids:
            for start in range(0, len(nodes), QUERIES_AT_ONCE):
                for docno in graph.ids_of(nodes[start : start + QUERIES_AT_ONCE]):
                    ids.add(docno)
        progress = {"desc": "encoding passages", "unit": "passage", "disable": not verbose}
        write_vectors(out, (len(nodes), dimension), encoded, at_once=PASSAGES_AT_ONCE, progress=progress)


def identity_of(index: FlexIndex) -> dict[str, Any]:
    """What the vectors of a contextual index depend on, as :func:`write_index` was told.

    Raises:
        ValueError: If the index is not contextual.
    """
    (meta,) = index.payload(return_dvecs=False, return_docnos=False)
    if "contextual" not in meta:
        raise ValueError(f"{index!r} is not a contextual index")
    return meta["contextual"]["identity"]


def query_digests(
    graph: QueryPassageGraph, edge_types: Sequence[str], count: int, *, features: bool = False
) -> dict[str, str]:
    """Digests of a graph's first queries and their edges, which tell exactly whether another graph begins with them.

    Args:
        graph: The graph; edges of masked queries are left out.
        edge_types: The types of edges that count.
        count: Number of queries.
        features: Whether the features of the edges count, too.

    Returns:
        SHA-256 by ``'qids'``, ``'texts'``, and per type ``'<type> edges'`` and ``'<type> features'``.
    """
    digests = {name: hashlib.sha256() for name in ("qids", "texts")}
    digests |= {f"{edge_type} edges": hashlib.sha256() for edge_type in edge_types}
    digests |= {f"{edge_type} features": hashlib.sha256() for edge_type in edge_types if features}
    for start in range(0, count, QUERIES_AT_ONCE):
        queries = np.arange(start, min(start + QUERIES_AT_ONCE, count))
        digests["qids"].update(_lines(graph.qids_of(queries)))
        digests["texts"].update(_lines(graph.texts(queries)))
        for edge_type in edge_types:
            edges = graph.edges_of_queries(queries, edge_type)
            pairs = np.stack([queries[edges.row_index], edges.indices], axis=1)
            digests[f"{edge_type} edges"].update(pairs.astype("<i8").tobytes())
            if features:
                rows = graph.edge_features(edge_type)[edges.data["edges"]]
                digests[f"{edge_type} features"].update(rows.tobytes())
    return {name: digest.hexdigest() for name, digest in digests.items()}


def graph_sha256(graph: HeteroGraph) -> str:
    """SHA-256 of all texts and relations of a document graph; ``fingerprint`` reads some of the texts only."""
    path = getattr(graph, "path", None)
    return _memory_sha256(graph) if path is None else _folder_sha256(path, (path / META).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _folder_sha256(path: Path, _modified: int) -> str:
    files = sorted(file for file in path.iterdir() if file.is_file() and file.name not in (META, CARD))
    return hashlib.sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


@lru_cache(maxsize=8)
def _memory_sha256(graph: HeteroGraph) -> str:
    nodes = np.arange(graph.num_nodes)
    digest = hashlib.sha256(_lines(graph.ids_of(nodes)) + _lines(graph.texts(nodes)))
    for relation in graph.relations:
        for array in (graph.adjacency(relation).indptr, graph.adjacency(relation).indices):
            digest.update(relation.encode() + array.astype("<i8").tobytes())
    return digest.hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _lines(texts: list[str]) -> bytes:
    return "".join(json.dumps(text) + "\n" for text in texts).encode()
