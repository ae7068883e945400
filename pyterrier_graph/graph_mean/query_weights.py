r"""The weights of relations for a query.

How much each relation counts for a query depends on what the query finds; no judgments are needed:

.. math::

    w_r(q) = c_r \operatorname{clip}\left(\frac{d_r(q) - low}{high - low}, 0, 1\right), \qquad
    d_r(q) = \max_p \cos(q, \hat m_{r,p}) - \max_p \cos(q, x_p)

with the largest weight :math:`c_r` of relation r, the passages p of a sample of the index, and the directions
:math:`\hat m_{r,p}` of their sources of r.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, check_weights
from pyterrier_graph.graphs.relations import QUERY_RELATIONS
from pyterrier_graph.storage.arrays import blocks

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.equations import SideBySide
    from pyterrier_graph.graph_mean.neighbors import NeighborSampler

SAMPLED = 16_384  # passages, evenly over the index, which a query is compared with
PASSAGES = "passages"
PASSAGES_AT_ONCE, QUERIES_AT_ONCE = 4096, 256
# differences of similarities up to which a relation does not count, and from which on it counts fully
RAMP, QUERY_RAMP = (-0.3, -0.1), (-0.15, 0.15)

Sample = dict[str, np.ndarray]


class QueryWeights(WithSignature, pt.Transformer):
    """Turns the vector q of a query into ``[q; w_1 q; w_2 q; ...]``, with a weight per relation.

    A query that matches some title better than any passage asks for the subject of the title, so titles count. A query
    that matches passages much better than all titles asks for a detail, so titles count little. Up to 16,384 passages,
    evenly over the index, and their sources are compared with the query: see the equation of this module. ``(low,
    high)`` is (-0.3, -0.1) for relations of documents, (-0.15, 0.15) for relations of queries.

    ``sample`` has vectors of length 1: ``'passages'``, and the sources of each relation by name, shape (number, d)
    each; ``weights`` are c_r, in the order of the blocks. Columns: ``query_vec``, shape (d,) in, (d * (1 + relations),)
    out.
    """

    schematic = {"label": "QueryWeights", "help_url": None}

    def __init__(self, sample: Sample, weights: Mapping[str, float]) -> None:
        self.weights = check_weights(weights)
        self.sample = {name: vectors.astype(np.float32) for name, vectors in sample.items()}

    def __repr__(self) -> str:
        return f"QueryWeights({self.weights})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Widens the vectors of queries."""
        inp = check_frame(inp, self)
        pt.validate.columns(inp, includes=["query_vec"], context=self)
        if not len(inp):
            return inp
        return inp.assign(query_vec=[*self.widened(np.stack(inp["query_vec"].to_numpy()).astype(np.float32))])

    def widened(self, queries: np.ndarray) -> np.ndarray:
        """The vectors of queries with a block per relation, shape (queries, d * (1 + relations))."""
        weights = self._weights_of(queries).astype(np.float32)
        return np.concatenate([queries, *(queries * weight[:, None] for weight in weights)], axis=1)

    def weights_of(self, queries: np.ndarray) -> pd.DataFrame:
        """The weights of some queries, from their vectors of shape (queries, d): a column per relation."""
        return pd.DataFrame(self._weights_of(queries).T, columns=[*self.weights])

    def _weights_of(self, queries: np.ndarray) -> np.ndarray:
        """Shape (relations, queries)."""
        weights = np.empty((len(self.weights), len(queries)))
        for part in blocks(len(queries), QUERIES_AT_ONCE):
            vectors = queries[part]
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            best = _best(vectors, self.sample[PASSAGES])
            for row, (name, largest) in zip(weights, self.weights.items(), strict=True):
                low, high = QUERY_RAMP if name in QUERY_RELATIONS else RAMP
                difference = _best(vectors, self.sample[name]) - best
                row[part] = largest * np.clip((difference - low) / (high - low), 0, 1)
        return weights


def draw_sample(sampler: NeighborSampler, network: SideBySide) -> Sample:
    """Vectors of some passages, evenly over the index, and of their sources: see :class:`QueryWeights`.

    The vectors have length 1 and half precision.
    """
    from torch.nn.functional import normalize

    numbers = np.unique(np.linspace(0, len(sampler) - 1, min(len(sampler), SAMPLED)).astype(np.int64))
    parts: dict[str, list[np.ndarray]] = {PASSAGES: [], **{name: [] for name in network.relations}}
    for part in blocks(len(numbers), PASSAGES_AT_ONCE):
        batch = sampler.sample(numbers[part])
        own = normalize(batch.passages, dim=1)
        for name, vectors in {PASSAGES: own, **network.directions(batch)}.items():
            parts[name].append(vectors.half().numpy())
    empty = np.empty((0, network.dimension), np.float16)
    sample = {name: np.concatenate([empty, *vectors]) for name, vectors in parts.items()}
    return {name: vectors if name == PASSAGES else np.unique(vectors, axis=0) for name, vectors in sample.items()}


def _best(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The highest similarity of each query; -1 where there is nothing to compare with."""
    return (queries @ vectors.T).max(1, initial=-1.0)
