"""The encoder's own vectors of a graph's passages: made once, or checked where they are given."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyterrier_dr import FlexIndex

from pyterrier_graph.artifacts import META
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, checked_vectors, unfinished, write_vectors
from pyterrier_graph.graphs.builder import DOCNOS
from pyterrier_graph.graphs.ids import ids_of, writing_ids
from pyterrier_graph.retrieve.index_identity import encoder_name, vector_space

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

PASSAGES_AT_ONCE = 1024
SAMPLE = 16  # passages that are encoded again to see whether an index is of the encoder
SIMILAR = 0.3  # vectors of different encoders have a cosine of about 0
FLEX = {"type": "dense_index", "format": "flex", "package_hint": "pyterrier_dr"}


def base_vectors(folder: Path, graph: HeteroGraph, encoder: BiEncoder, *, verbose: bool = True) -> FlexIndex:
    """The ``FlexIndex`` of a graph's passages by an encoder; it is written, batch by batch, where it is not there.

    A call that was killed continues when it is repeated.

    Args:
        folder: Where it is kept, with those of other graphs and encoders.
        graph: Its passages are encoded, in the order of ``graph.passage_nodes``.
        encoder: Encodes them.
        verbose: Whether to show progress.

    Raises:
        ValueError: If vectors are of another shape or not finite.
    """
    identity = {"encoder": encoder_name(encoder), "graph": graph.fingerprint()}
    path = folder / f"passages-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]}.flex"
    index = FlexIndex(str(path), verbose=False)
    if (path / META).is_file():
        return index
    nodes = graph.passage_nodes
    dimension = int(np.asarray(encoder.encode_docs(graph.texts(nodes[:1]))).shape[1])
    about = {"doc_count": len(nodes), "vec_size": dimension, "base": identity | {"space": vector_space(encoder)}}

    def encoded(numbers: np.ndarray) -> np.ndarray:
        vectors = encoder.encode_docs(graph.texts(nodes[numbers]))
        return checked_vectors(
            vectors, numbers, dimension, lambda number: f"passage {graph.ids_of(nodes[[number]])[0]}"
        )

    with unfinished(path, FLEX | about | {"files": {VECTORS: len(nodes) * dimension * FLOAT.itemsize}}) as (part, out):
        (part / DOCNOS).unlink(missing_ok=True)  # the writer would append
        with writing_ids(part / DOCNOS) as ids:
            for start in range(0, len(nodes), PASSAGES_AT_ONCE):
                for docno in graph.ids_of(nodes[start : start + PASSAGES_AT_ONCE]):
                    ids.add(docno)
        progress = {"desc": "encoding passages", "unit": "passage", "disable": not verbose}
        write_vectors(out, (len(nodes), dimension), encoded, at_once=PASSAGES_AT_ONCE, progress=progress)
    return index


def check_vectors(index: FlexIndex, encoder: BiEncoder, graph: HeteroGraph | None, dimension: int) -> None:
    """Raises an error unless an index has the encoder's own vectors; some are compared where there is a graph.

    Args:
        index: The index.
        encoder: The encoder.
        graph: The graph of the passages, if there is one.
        dimension: d, which the network is made for.

    Raises:
        KeyError: If passages are not in the graph.
        ValueError: If the vectors are contextual, or of another encoder.
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
        own = np.asarray(encoder.encode_docs(graph.texts(nodes)), dtype=np.float32)
        other = own.shape[1] != dimension
        if not other:
            norms = np.linalg.norm(own, axis=1) * np.linalg.norm(vectors[numbers], axis=1)
            other = float(((own * vectors[numbers]).sum(axis=1) / np.maximum(norms, 1e-12)).mean()) < SIMILAR
    if other:
        raise ValueError(f"{index!r} has vectors of another encoder than {encoder!r}")
