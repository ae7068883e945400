"""How much each relation counts for a query, from what the query finds: no judgments are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pyterrier_graph.checks import WithSignature, check_frame, check_weights
from pyterrier_graph.encoders.vector_files import blocks
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED

if TYPE_CHECKING:
    from pyterrier_graph.models.side_by_side import SideBySideNetwork
    from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler

SAMPLE = "sample.safetensors"
SAMPLED = 16_384  # passages, evenly over the index, that tell how well a query matches them and their sources
PASSAGES = "passages"
PASSAGES_AT_ONCE, QUERIES_AT_ONCE = 4096, 256
# differences of similarities up to which a relation does not count, and from which on it counts fully
RAMP, QUERY_RAMP = (-0.3, -0.1), (-0.15, 0.15)

Sample = dict[str, np.ndarray]


class QueryWeights(WithSignature, pt.Transformer):
    """Turns the vector q of a query into ``[q; w_1 q; w_2 q; ...]``, with a weight per relation.

    A query that matches some title better than any passage asks for what the title names, so titles count. A query that
    matches passages much better than all titles asks for a detail, so titles count little. The weight of relation r is
    ``c_r * clip((d - low) / (high - low), 0, 1)``, where d is the best cosine of the query and any source of r, minus
    the best cosine of the query and any passage. Up to 16,384 passages, evenly over the index, and their sources are
    compared. ``(low, high)`` is (-0.3, -0.1) for relations of documents, (-0.15, 0.15) for relations of queries.

    Columns in: ``query_vec``, shape (d,). Columns out: ``query_vec``, shape (d * (1 + relations),).

    Args:
        sample: Vectors of length 1: ``'passages'``, and the sources of each relation by name, shape (number, d) each.
        weights: c_r, the largest weight of each relation, in the order of the blocks.
    """

    def __init__(self, sample: Sample, weights: Mapping[str, float]) -> None:
        self.weights = check_weights(weights)
        self.sample = {name: vectors.astype(np.float32) for name, vectors in sample.items()}

    def __repr__(self) -> str:
        return f"QueryWeights({self.weights})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Widens the vectors of queries."""
        inp = check_frame(inp, self, vectors={"query_vec": self.sample[PASSAGES].shape[1]})
        pt.validate.columns(inp, includes=["query_vec"], context=self)
        if not len(inp):
            return inp
        queries = np.stack(inp["query_vec"].to_numpy()).astype(np.float32)
        weights = self.weights_of(queries)
        wide = [queries, *(queries * weights[name].to_numpy(np.float32)[:, None] for name in self.weights)]
        return inp.assign(query_vec=[*np.concatenate(wide, 1)])

    def weights_of(self, queries: np.ndarray) -> pd.DataFrame:
        """The weights of some queries, from their vectors of shape (queries, d): a column per relation."""
        parts = []
        for part in blocks(len(queries), QUERIES_AT_ONCE):
            vectors = queries[part]
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            best = _best(vectors, self.sample[PASSAGES])
            row = {name: c * _ramp(name, _best(vectors, self.sample[name]) - best) for name, c in self.weights.items()}
            parts.append(pd.DataFrame(row, index=part))
        return pd.concat(parts) if parts else pd.DataFrame(columns=[*self.weights], dtype=float)


def draw_sample(sampler: NeighborSampler, network: SideBySideNetwork) -> Sample:
    """Vectors of some passages, evenly over the index, and of what their relations lead to: see :class:`QueryWeights`.

    The vectors have length 1 and half precision.
    """
    numbers = np.unique(np.linspace(0, len(sampler) - 1, min(len(sampler), SAMPLED)).astype(np.int64))
    parts: dict[str, list[np.ndarray]] = {PASSAGES: [], **{name: [] for name in network.relations}}
    for part in blocks(len(numbers), PASSAGES_AT_ONCE):
        batch = sampler.sample(numbers[part])
        own = torch.nn.functional.normalize(batch.passages, dim=1)
        for name, vectors in {PASSAGES: own, **network.directions(batch)}.items():
            parts[name].append(vectors.half().numpy())
    empty = np.empty((0, network.dimension), np.float16)
    sample = {name: np.concatenate([empty, *vectors]) for name, vectors in parts.items()}
    return {name: vectors if name == PASSAGES else np.unique(vectors, axis=0) for name, vectors in sample.items()}


def read_sample(folder: Path, relations: Iterable[str]) -> Sample:
    """Reads the sample of an index with some relations; ValueError if the file is missing or damaged."""
    try:
        sample = load_file(folder / SAMPLE)
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"{str(folder / SAMPLE)!r} is missing or damaged: {error}") from error
    if {*sample} != {PASSAGES, *relations} or len({vectors.shape[1:] for vectors in sample.values()}) != 1:
        raise ValueError(f"{str(folder / SAMPLE)!r} is damaged: it has vectors of {', '.join(sample)}")
    return sample


def _best(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The highest similarity of each query; -1 where there is nothing to compare with."""
    return (queries @ vectors.T).max(1, initial=-1.0)


def _ramp(relation: str, differences: np.ndarray) -> np.ndarray:
    low, high = QUERY_RAMP if relation in (RELEVANT, RETRIEVED) else RAMP
    return np.clip((differences - low) / (high - low), 0, 1)
