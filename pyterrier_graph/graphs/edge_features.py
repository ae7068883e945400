"""Vectors of a graph's edges, made by reading a query and a passage together: long work that can be interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import file_sha256, read_meta, replace_file
from pyterrier_graph.graphs.array_files import array_file

if TYPE_CHECKING:
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

COMPARED = 8  # edges that are encoded again before interrupted work goes on

PairEncoder = Callable[[list[str], list[str]], Any]


def write_edge_features(
    graph: QueryPassageGraph,
    edge_type: str,
    encode: PairEncoder,
    texts: pt.Transformer,
    *,
    batch_size: int,
    verbose: bool,
) -> None:
    """Writes a vector for each edge of a type into a graph's folder, ``batch_size`` edges at a time.

    Blocks are appended to a file, which is part of the graph once ``pt_meta.json`` names it. What the file holds before
    is what an interrupted run has done.
    """
    file, total = array_file(graph.path, f"{edge_type}.features"), graph.num_edges[edge_type]
    done, dimension = 0, None
    if file.exists() and file.stat().st_size:
        first = _encoded(graph, edge_type, encode, texts, np.arange(min(COMPARED, total)))
        dimension = first.shape[1]
        done = min(total, _resumable(file, first))
    with (
        open(file, "ab") as out,
        pt.tqdm(total=total, initial=done, desc="edge features", unit="edge", disable=not verbose) as progress,
    ):
        out.truncate(done * 2 * (dimension or 0))
        for start in range(done, total, batch_size):
            edges = np.arange(start, min(start + batch_size, total))
            block = _encoded(graph, edge_type, encode, texts, edges)
            dimension = dimension or block.shape[1]
            if block.shape[1] != dimension:
                raise ValueError(f"the encoder gave vectors of {dimension} dimensions first, now of {block.shape[1]}")
            out.write(block.tobytes())
            out.flush()
            os.fsync(out.fileno())
            progress.update(len(edges))
    meta = read_meta(graph.path, {})
    meta.setdefault("features", {})[edge_type] = {"dimension": dimension, "sha256": file_sha256(file)}
    replace_file(graph.path, meta, file.name)


def _encoded(
    graph: QueryPassageGraph, edge_type: str, encode: PairEncoder, texts: pt.Transformer, edges: np.ndarray
) -> np.ndarray:
    """Vectors of edges as they are stored, shape (edges, dimension), float16."""
    queries, passages = graph.ends(edges, edge_type)
    docnos = graph.docnos_of(passages)
    vectors = np.asarray(encode(graph.texts(queries), texts_of_passages(texts, docnos)))
    if vectors.ndim != 2 or len(vectors) != len(edges) or not vectors.size:
        shape = f"({len(edges)}, d)"
        raise ValueError(f"{len(edges)} pairs need vectors of shape {shape}, the encoder gave {vectors.shape}")
    with np.errstate(over="ignore"):
        stored = vectors.astype("<f2")
    wrong = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(wrong):
        pair = f"query {graph.qids_of(queries[wrong[:1]])[0]!r}, passage {docnos[wrong[0]]!r}"
        raise ValueError(f"{pair}: the encoder gave a vector that is not finite in 16 bits")
    return stored


def texts_of_passages(texts: pt.Transformer, docnos: list[str]) -> list[str]:
    """Texts of passages, which may repeat, by a transformer that adds ``text`` to ``docno``; each is loaded once."""
    loaded = texts.transform(pd.DataFrame({"docno": [*dict.fromkeys(docnos)]}))
    pt.validate.document_frame(loaded, extra_columns=["text"], context=texts)
    text = dict(zip(loaded["docno"], loaded["text"], strict=True))
    missing = [docno for docno in docnos if not isinstance(text.get(docno), str)]
    if missing:
        raise ValueError(f"{texts!r} has no text of passage {missing[0]!r}")
    return [text[docno] for docno in docnos]


def _resumable(file: Path, first: np.ndarray) -> int:
    """How many rows an interrupted run has written, if its first ones are those that are made now."""
    width = first.shape[1]
    done = file.stat().st_size // (2 * width)
    kept = np.fromfile(file, "<f2", count=min(done, len(first)) * width).reshape(-1, width).astype(np.float32)
    made = first[: len(kept)].astype(np.float32)
    # not equal to the bit: how pairs are put into batches changes the last digits
    if not np.allclose(kept, made, rtol=0.02, atol=0.02 * np.abs(made).max(initial=0)):
        raise ValueError(f"{str(file)!r} was begun with another encoder or other texts: delete it to begin anew")
    return done
