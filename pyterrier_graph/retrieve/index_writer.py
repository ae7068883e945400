"""Writes dense indexes: the encoder's own vectors of a graph's passages, and the contextual vectors of an index."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pyterrier_dr import FlexIndex

from pyterrier_graph.artifacts import META, file_sha256, read_meta
from pyterrier_graph.encoders.late_chunking import passages_in_documents
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, VectorsOf, blocks, checked_vectors
from pyterrier_graph.encoders.vector_reuse import DIGESTS, VectorReuse, complete, digests_of, read_digests
from pyterrier_graph.graphs.array_files import DOCNOS
from pyterrier_graph.graphs.csr import checked
from pyterrier_graph.graphs.ids import ids_of, writing_ids
from pyterrier_graph.ranges.workers import Workers
from pyterrier_graph.ranges.writer import unfinished
from pyterrier_graph.retrieve.index_identity import dtype_entry, encoder_name, identity_of, vector_space, without_bars

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph
    from pyterrier_graph.retrieve.dual_encoder import DualEncoder

PASSAGES_AT_ONCE = 1024
SAMPLE = 16  # passages that are encoded again to see whether an index is of the encoder
SIMILAR = 0.3  # vectors of different encoders have a cosine of about 0
FLEX = {"type": "dense_index", "format": "flex"}
HINT = {"package_hint": "pyterrier_dr"}


def write_index(
    base_index: FlexIndex,
    index: FlexIndex,
    vectors_of: VectorsOf,
    *,
    identity: dict[str, Any],
    width: int | None = None,
    previous: tuple[FlexIndex, np.ndarray] | None = None,
    chunk_size: int = 16_384,
    workers: Workers = 1,
    verbose: bool = True,
    queries: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> FlexIndex:
    """Writes an ordinary ``FlexIndex`` with the passages of another one, and other vectors, chunk by chunk.

    Until the index is complete there is nothing at its path; the same call continues after the last whole chunk. Memory
    grows with the chunks, not with the index.

    Args:
        base_index: The index that has the passages.
        index: Where to write; nothing may be there yet.
        vectors_of: Numbers of passages in the base index, which ascend, to their vectors.
        identity: Digests of all that the vectors depend on, for JSON. :func:`identity_of` returns it.
        width: Dimensions of the vectors; by default those of the base index.
        previous: A contextual index of the same passages, and the numbers of those whose vectors have changed. Only
            these are computed; all others are copied from it.
        chunk_size: Passages per chunk.
        workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
        verbose: Whether to show progress.
        queries: What the encoding of queries depends on, for JSON.
        files: Contents of further files, by name.
    """
    base = base_index.index_path
    docnos, about = base_index.payload(return_dvecs=False)
    count, dimension = about["doc_count"], width or about["vec_size"]
    kind = FLEX | {"doc_count": count, "vec_size": dimension}
    digest = file_sha256(base / DOCNOS)
    contextual: dict[str, Any] = {"identity": identity, "docnos_sha256": digest, "queries": dict(queries or {})}

    def name_of(number: int) -> str:
        return f"passage {ids_of(docnos, np.array([number]))[0]!r}"

    def new(numbers: np.ndarray) -> np.ndarray:
        return checked_vectors(vectors_of(numbers), numbers, dimension, name_of)

    chunk = new
    if previous is not None:
        old, numbers = previous
        contextual["previous"] = {"identity": identity_of(old)}
        read_meta(old.index_path, kind)
        if file_sha256(old.index_path / DOCNOS) != digest:
            raise ValueError(f"{old!r} has other docnos than {base_index!r}: nothing can be copied from it")
        changed = np.zeros(count, dtype=bool)
        changed[checked(numbers, count)] = True
        sha256 = hashlib.sha256(np.packbits(changed).tobytes()).hexdigest()
        contextual["previous"] |= {"copied": int(count - changed.sum()), "changed_sha256": sha256}

        def chunk(numbers: np.ndarray) -> np.ndarray:
            here = changed[numbers]
            # not mapped: pages that were read would count as memory until another process needs it
            size, offset = len(numbers) * dimension, int(numbers[0]) * dimension * FLOAT.itemsize
            vectors = np.fromfile(old.index_path / VECTORS, FLOAT, size, offset=offset).reshape(-1, dimension)
            if here.any():
                vectors[here] = new(numbers[here])
            return vectors

    meta = HINT | kind | {"contextual": contextual}
    contents = {name: hashlib.sha256(content).hexdigest() for name, content in (files or {}).items()}
    progress: dict[str, Any] = {"desc": "indexing", "unit": "passage", "delay": 1, "disable": not verbose}

    def write_files(folder: Path) -> None:
        shutil.copyfile(base / DOCNOS, folder / DOCNOS)
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)

    depends = meta | {"content": contents}
    with unfinished(index.index_path, meta, count, chunk_size, identity=depends) as writer:
        writer.prepare(write_files)
        writer.compute(lambda numbers: {VECTORS: chunk(numbers)}, VECTORS, workers=workers, **progress)
    return index


def base_vectors(
    folder: Path, graph: HeteroGraph, encoder: BiEncoder, *, workers: Workers = 1, verbose: bool = True
) -> FlexIndex:
    """The ``FlexIndex`` of a graph's passages, in the order of ``graph.passage_nodes``, by an encoder.

    It is written into a folder, beside those of other graphs and encoders, if it is not there. Texts that another index
    of the same encoder in this folder has are not encoded again: see
    :class:`~pyterrier_graph.encoders.vector_reuse.VectorReuse`. A call that was killed continues when it is repeated.
    Raises ValueError if vectors are of another shape or not finite.
    """
    identity = {"encoder": encoder_name(encoder), "graph": graph.fingerprint()}
    path = folder / f"passages-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]}.flex"
    index = FlexIndex(str(path), verbose=False)
    if (path / META).is_file():
        return index
    nodes, quiet = graph.passage_nodes, without_bars(encoder)
    dimension = int(np.asarray(encoder.encode_docs(graph.texts(nodes[:1]))).shape[1])
    about = {"doc_count": len(nodes), "vec_size": dimension, "base": identity | {"space": vector_space(encoder)}}
    about |= dtype_entry(encoder)
    progress: dict[str, Any] = {"desc": "encoding passages", "unit": "passage", "delay": 1, "disable": not verbose}

    def name_of(number: int) -> str:
        return f"passage {graph.ids_of(nodes[[number]])[0]!r}"

    def encoded(numbers: np.ndarray) -> np.ndarray:
        return checked_vectors(passage_vectors(graph, nodes[numbers], quiet), numbers, dimension, name_of)

    def rows_of(other: dict[str, Any]) -> int:
        fits = other.get("base", {}).get("encoder") == identity["encoder"] and other["vec_size"] == dimension
        return other["doc_count"] if fits else 0

    with unfinished(path, FLEX | HINT | about, len(nodes), PASSAGES_AT_ONCE) as writer:
        reuse = VectorReuse(writer.place / "reuse", dimension)

        def write_ids(files: Path) -> None:
            with writing_ids(files / DOCNOS) as ids, open(files / DIGESTS, "wb") as digests:
                for numbers in blocks(len(nodes), PASSAGES_AT_ONCE):
                    for docno in graph.ids_of(nodes[numbers]):
                        ids.add(docno)
                    digests.write(text_digests(graph, nodes[numbers], encoder).tobytes())
            reuse.find(reuse.folder, read_digests(files), complete(folder, "passages-*.flex"), rows_of)

        writer.prepare(write_ids)
        rows = lambda numbers: {VECTORS: reuse.vectors(numbers, encoded)}  # noqa: E731
        writer.compute(rows, VECTORS, workers=workers, **progress)
    return index


def passage_vectors(graph: HeteroGraph, nodes: np.ndarray, encoder: BiEncoder) -> np.ndarray:
    """Vectors of passages of a graph: in the context of their documents if the encoder has late chunking."""
    if getattr(encoder, "late_chunking", False):
        return cast("DualEncoder", encoder).encode_passages(graph, nodes)
    return encoder.encode_docs(graph.texts(nodes))


def text_digests(graph: HeteroGraph, nodes: np.ndarray, encoder: BiEncoder) -> np.ndarray:
    """Digests of what an encoder reads for the vectors of some passages, shape (passages, 2)."""
    if not getattr(encoder, "late_chunking", False):
        return digests_of(graph.texts(nodes))
    texts, documents, positions = passages_in_documents(graph, nodes)
    own = digests_of(texts)
    place = np.searchsorted(documents, positions, side="right") - 1
    bounds = zip(positions.tolist(), documents[place].tolist(), documents[place + 1].tolist(), strict=True)
    return digests_of(f"{position - start} ".encode() + own[start:end].tobytes() for position, start, end in bounds)


def check_vectors(index: FlexIndex, encoder: BiEncoder, graph: HeteroGraph | None, dimension: int) -> None:
    """Raises ValueError unless an index has the encoder's own vectors, of the dimension that the network is made for.

    Where there is a graph of the passages, some of them are encoded and compared.
    """
    docnos, vectors, meta = index.payload()
    if "contextual" in meta:
        raise ValueError(f"{index!r} is a contextual index: give the encoder's own vectors, or none")
    if vectors.shape[1] != dimension:
        raise ValueError(f"{index!r} has vectors of {vectors.shape[1]} dimensions, the network is made for {dimension}")
    other = "base" in meta and meta["base"]["space"] != vector_space(encoder)
    if not other and graph is not None and len(vectors):
        numbers = np.unique(np.linspace(0, len(vectors) - 1, SAMPLE).astype(np.int64))
        nodes = graph.nodes_of([str(docno) for docno in ids_of(docnos, numbers)])
        own = np.asarray(passage_vectors(graph, nodes, encoder), dtype=np.float32)
        other = own.shape[1] != dimension
        if not other:
            norms = np.linalg.norm(own, axis=1) * np.linalg.norm(vectors[numbers], axis=1)
            other = float(((own * vectors[numbers]).sum(axis=1) / np.maximum(norms, 1e-12)).mean()) < SIMILAR
    if other:
        raise ValueError(f"{index!r} has vectors of another encoder than {encoder!r}")
