"""What the vectors of an index depend on: digests of encoders and graphs, and what an update may change."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of, dtype_name
from pyterrier_graph.encoders.vector_files import blocks

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

QUERIES_AT_ONCE = 4096
FIXED = ("network", "encoder", "relations", "vectors", "graph")


def without_bars(encoder: BiEncoder) -> BiEncoder:
    """An encoder with the same weights that shows no progress, for work that has a bar of its own."""
    encoder = copy.copy(encoder)
    encoder.verbose = False
    return encoder


def identity_of(index: FlexIndex) -> dict[str, Any]:
    """What the vectors of a contextual index depend on; raises ValueError for other indexes."""
    try:
        (meta,) = index.payload(return_dvecs=False, return_docnos=False)
        shape = meta["doc_count"], meta["vec_size"]
        about = meta.get("contextual")
    except (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{index!r} is damaged, or no index: {error!r}") from error
    if about is None:
        raise ValueError(f"{index!r} is not a contextual index")
    bytes_needed = 4 * shape[0] * shape[1] if all(isinstance(size, int) for size in shape) else -1
    vectors = index.index_path / "vecs.f4"
    if not vectors.is_file() or bytes_needed != vectors.stat().st_size:
        raise ValueError(f"{index!r} is damaged: its vectors are not {shape[0]!r} of {shape[1]!r} numbers each")
    if not isinstance(about, dict) or not isinstance(about.get("identity"), dict):
        raise ValueError(f"{index!r} is damaged: it does not say what its vectors depend on")
    return about["identity"]


def changed_passages(
    previous: FlexIndex, identity: dict[str, Any], graph: QueryPassageGraph | None, *, features: bool
) -> np.ndarray:
    """Numbers of the passages with edges to queries that were added to a graph since an index was written.

    All other passages have the vectors of the index: if anything else has changed, a ValueError says what.
    """
    before = identity_of(previous)
    if differing := [name for name in FIXED if before.get(name) != identity.get(name)]:
        raise ValueError(f"{previous!r} is of another {' and '.join(differing)}: index without previous=")
    if graph is None or "queries" not in before:
        raise ValueError("previous= is for added queries, but there is no graph of queries")
    old, types = before["queries"], [name for name in identity["relations"] if name in graph.edge_types]
    now = query_digests(graph, types, min(old, graph.num_queries), features=features)
    if differing := [name for name, digest in before["query_graph"].items() if now.get(name) != digest]:
        raise ValueError(
            f"{previous!r} was written with other {' and '.join(differing)} than those of the first {old} queries of "
            f"{graph!r}: index without previous="
        )
    new = np.arange(old, graph.num_queries)
    return np.unique(np.concatenate([graph.edges_of_queries(new, name).indices for name in types]))


def query_digests(
    graph: QueryPassageGraph, edge_types: Sequence[str], count: int, *, features: bool = False
) -> dict[str, str]:
    """Digests of a graph's first queries and their edges, which tell exactly whether another graph begins with them.

    There is a SHA-256 of ``'qids'``, ``'texts'``, and for each type ``'<type> edges'`` and ``'<type> features'``. Edges
    of masked queries are left out.
    """
    digests = {name: hashlib.sha256() for name in ("qids", "texts")}
    digests |= {f"{edge_type} edges": hashlib.sha256() for edge_type in edge_types}
    digests |= {f"{edge_type} features": hashlib.sha256() for edge_type in edge_types if features}
    for queries in blocks(count, QUERIES_AT_ONCE):
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


def _lines(texts: list[str]) -> bytes:
    return "".join(f"{encode_basestring_ascii(text)}\n" for text in texts).encode()  # as json.dumps, and faster


def encoder_name(encoder: BiEncoder) -> str:
    """The name that tells an encoder from others."""
    return getattr(encoder, "model_name", repr(encoder))


def dtype_entry(encoder: Any) -> dict[str, str]:
    """What ``pt_meta.json`` says of an encoder's precision; nothing of encoders of other packages."""
    if not hasattr(encoder, "max_passage_tokens"):  # no DualEncoder
        return {}
    return {"dtype": dtype_name(encoder.dtype, device_of(encoder.device))}


def vector_space(encoder: Any) -> str:
    """The name that tells an encoder from others, in whatever precision its vectors are computed."""
    if not hasattr(encoder, "max_passage_tokens"):  # no DualEncoder
        return encoder_name(encoder)
    about = [encoder.max_query_tokens, encoder.max_passage_tokens, encoder.similarity]
    about += ["late chunking"] * encoder.late_chunking
    return f"{checkpoint_name(encoder.encoder)}@{weights_sha256(encoder.network, before=repr(about))[:16]}"
