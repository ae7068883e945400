r"""GraphMean: a passage aggregates the mean of its neighbors along each relation.

With the vector :math:`x_p` of passage p, its sources :math:`N_r(p)` along relation r, and the mean
:math:`m_{r,p} = \frac{1}{|N_r(p)|} \sum_{s \in N_r(p)} x_s` (0 without sources), there are two forms.

Fixed weights, :class:`FixedMean`: one vector of d dimensions, the "average" of Liu et al. 2022 with several relations.

.. math::

    h_p = \frac{z_p}{|z_p|}, \qquad z_p = x_p + \sum_r w_r m_{r,p}

A weight per query, :class:`SideBySide`: the passage, and what each relation adds to it, :math:`d (1 + |R|)` dimensions.

.. math::

    h_p = [x_p; a_{1,p}; a_{2,p}; \dots], \qquad
    a_{r,p} = \left(|x_p| - x_p \cdot \hat m_{r,p}\right) \hat m_{r,p}, \qquad
    \hat m_{r,p} = \frac{m_{r,p}}{|m_{r,p}|}

Here :math:`x_p` is the mean of two vectors: that of the passage's text alone, which counts a third, and that of its
text after the titles above it. A passage that no answered query is relevant to has :math:`a_{r,p} = \beta x_p` for this
relation, with :math:`\beta` of :func:`isolated_share`.

The inner product of :math:`h_p` and the query :math:`[q; w_1 q; w_2 q; \dots]` is
:math:`q \cdot (x_p + \sum_r w_r a_{r,p})`: one search has a weight :math:`w_r` per query and relation, which
:class:`~pyterrier_graph.graph_mean.contextual_index.QueryWeights` computes.

Edges are a :class:`~pyterrier_graph.graphs.csr.CSR` of tensors per relation: a row per passage, with the rows of its
sources as elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.checks import check_number
from pyterrier_graph.encoders.stored_vectors import TITLED
from pyterrier_graph.graph_mean.neighbors import NeighborBatch
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, TITLES


class Parts(NamedTuple):
    """The terms whose sum is the vector of one passage."""

    own: Tensor  # from the passage's own vector, shape (width,)
    sources: Mapping[str, Tensor]  # from each source, by relation, shape (edges, width)
    weights: Mapping[str, Tensor]  # attention to each source, by relation, shape (edges,)


class PassageNetwork(nn.Module, ABC):
    """Base of all functions from passages and their neighbors to contextual vectors, with or without parameters.

    An index is computed by :meth:`query_states` of all queries, and then by a call with the
    :class:`~pyterrier_graph.graph_mean.neighbors.NeighborBatch` of some passages at a time, as in training.
    """

    relations: tuple[str, ...]  # the keys of ``sources`` and ``edges``
    dimension: int  # d, of the vectors of passages and sources
    two_hops = (
        False  # whether queries aggregate from passages, before passages aggregate from queries
    )
    edge_features = False  # whether attention depends on features of the query graph's edges
    normalizes = False  # whether the contextual vectors have unit length, or nearly
    titled = (
        0.0  # the share of x_p that the encoder reads with the titles above the passage in front
    )

    @property
    def width(self) -> int:
        """Dimensions of the contextual vectors."""
        return self.dimension

    def forward(self, batch: NeighborBatch) -> Tensor:
        """Contextual vectors of the passages of a batch, shape (passages, width)."""
        return self.passage_states(batch.passages, self.sources(batch), batch.edges)

    def sources(self, batch: NeighborBatch) -> dict[str, Tensor]:
        """The sources of a batch by relation, queries after they have aggregated from passages."""
        sources = dict(batch.sources)
        if batch.second_hop is not None and batch.to_queries is not None:
            sources[RETRIEVED] = self.query_states(
                sources[RETRIEVED], batch.second_hop, batch.to_queries
            )
        return sources

    def query_states(self, queries: Tensor, passages: Tensor, edges: CSR) -> Tensor:
        """Queries after they have aggregated from passages, shape (queries, d); by default they stay unchanged."""
        return queries

    @abstractmethod
    def passage_states(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Tensor:
        """Contextual vectors, shape (passages, width), of passages, (passages, d), with their sources, (sources, d).

        A relation that is left out has no edges.
        """

    @abstractmethod
    def parts(self, batch: NeighborBatch) -> Parts:
        """The terms that add up to the contextual vector of the one passage of a batch."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """All that the contextual vectors depend on in addition to parameters, for JSON."""

    def scalars(self) -> list[nn.Parameter]:
        """The weights of relations, which ``tune`` sets and training leaves as they are."""
        return []


class Terms(NamedTuple):
    """The terms of z, shape (passages, d) each: they stay the same while the weights of relations are tuned."""

    own: Tensor
    messages: Mapping[str, Tensor]  # by relation
    isolated: (
        Tensor | None
    )  # passages without a relevant query; None where there are no relevant queries

    def total(self, weights: Mapping[str, Any]) -> Tensor:
        """``own + sum of weight * message``."""
        return sum(
            (weights[name] * message for name, message in self.messages.items()), start=self.own
        )

    def joined(self, weights: Mapping[str, Any], isolated_norm: float | Tensor) -> Tensor:
        """The sum, normalized; passages without a relevant query have the length ``isolated_norm``."""
        states = functional.normalize(self.total(weights), dim=1)
        return (
            states
            if self.isolated is None
            else torch.where(self.isolated[:, None], isolated_norm * states, states)
        )


class FixedMean(PassageNetwork):
    r"""``normalize(x + sum of w_r m_r)``: a passage and its neighbors in one vector, shape (passages, d).

    A passage that aggregates from relevant queries is more similar to all queries than a passage without any. So the
    vectors of passages without a relevant query, where there are relevant queries at all, may be longer than 1:
    ``isolated_norm``.
    """

    normalizes = True
    isolated_norm: Any

    def __init__(
        self, weights: Mapping[str, float], dimension: int, isolated_norm: float = 1.0
    ) -> None:
        super().__init__()
        check_number("isolated_norm", isolated_norm, 1e-6)
        self.factors: Mapping[str, Any] = dict(weights)  # w_r
        self.dimension, self.isolated_norm, self.relations = (
            dimension,
            isolated_norm,
            tuple(weights),
        )

    @property
    def weights(self) -> dict[str, float]:
        """w_r, by relation."""
        return dict(self.factors)

    def about(self) -> dict[str, Any]:
        """The weights, and ``isolated_norm``."""
        return {"mean": self.factors, "isolated_norm": self.isolated_norm}

    def passage_states(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Tensor:
        """``normalize(x + sum of w_r m_r)``."""
        return self.terms(passages, sources, edges).joined(self.factors, self.isolated_norm)

    def terms(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Terms:
        """X and m_r, which the weights are applied to."""
        means = {name: mean_of_sources(sources[name], rows) for name, rows in edges.items()}
        return Terms(passages, means, edges[RELEVANT].lengths == 0 if RELEVANT in edges else None)

    def shares(
        self, name: str, passages: Tensor, sources: Tensor, edges: CSR
    ) -> tuple[Tensor, Tensor]:
        """The weight of each source of a relation in its message, shape (edges,), and its term, shape (edges, d)."""
        weights = equal_shares(edges)
        return weights, weights[:, None] * sources[edges.indices]

    def parts(self, batch: NeighborBatch) -> Parts:
        """Each source counts ``w_r`` times its share of the message, scaled as the sum is."""
        terms = self.terms(batch.passages, batch.sources, batch.edges)
        scale = self(batch)[0].norm() / terms.total(self.factors)[0].norm().clamp(min=1e-12)
        sources, weights = {}, {}
        for name in terms.messages:
            weights[name], each = self.shares(
                name, batch.passages, batch.sources[name], batch.edges[name]
            )
            sources[name] = scale * self.factors[name] * each
        return Parts(scale * terms.own[0], sources, weights)


class SideBySide(FixedMean):
    r"""``[x; a_1; a_2; ...]``: a passage and what each relation adds to it, shape (passages, d * (1 + relations)).

    With ``a_r = (|x| - x.m_r) m_r``, m_r of length 1, a relation adds what the passage lacks: a passage that differs
    from its title gets the title in full, a passage that repeats its title gets nothing. Passages below the same title
    are then equally similar to that title, and differ by their own content.

    Where there are relevant queries, passages that have one are more similar to all queries. In their place, a passage
    without a relevant query gets ``isolated * x``.

    ``experiments/results/collections_left_out.md`` reports how the form was chosen.

    Args:
        weights: The relations, each with its largest weight. The weights are part of the queries, not of the vectors.
        dimension: d.
        isolated: Beta, see :func:`isolated_share`.
        share: The share of x that is read with the titles in front, if they are a relation.
    """

    isolated, share = 0.5, TITLED  # also of a subclass with another constructor

    def __init__(
        self,
        weights: Mapping[str, float],
        dimension: int,
        isolated: float = isolated,
        share: float = share,
    ) -> None:
        super().__init__(weights, dimension)
        check_number("titled", share, 0, 1)
        self.isolated, self.share = isolated, share

    @property
    def titled(self) -> float:  # type: ignore[override]
        """The share of x that is read with the titles in front."""
        return self.share if TITLES in self.relations else 0.0

    @property
    def width(self) -> int:
        """Dimensions of the contextual vectors: d times one more than there are relations."""
        return self.dimension * (1 + len(self.relations))

    def about(self) -> dict[str, Any]:
        """The relations and the constant; weights are not part of the vectors, and beta is part of the query graph."""
        return {"side by side": self.relations, "titled": self.titled}

    def passage_states(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Tensor:
        """``[x; a_1; a_2; ...]``, shape (passages, d * (1 + relations))."""
        own, messages, isolated = self.terms(passages, sources, edges)
        blocks = [own]
        for relation in self.relations:
            direction = functional.normalize(messages[relation], dim=1)
            lacking = own.norm(dim=1, keepdim=True) - (own * direction).sum(
                1, keepdim=True
            )  # (passages, 1)
            added = lacking * direction  # (passages, d)
            if relation == RELEVANT and isolated is not None:
                added = torch.where(isolated[:, None], self.isolated * own, added)
            blocks.append(added)
        return torch.cat(blocks, 1)

    def directions(self, batch: NeighborBatch) -> dict[str, Tensor]:
        """m_r, of length 1, of the passages that have sources of r, by relation."""
        means = {
            name: mean_of_sources(batch.sources[name], rows) for name, rows in batch.edges.items()
        }
        return {
            name: functional.normalize(mean[batch.edges[name].lengths > 0], dim=1)
            for name, mean in means.items()
        }

    def parts(self, batch: NeighborBatch) -> Parts:
        """Each source of a relation has the share of a_r that its term has of the message.

        A passage without a relevant query is its own source for this relation.
        """
        own, *added = self(batch)[0].split(self.dimension)
        shares, sources = {}, {}
        for number, (relation, total) in enumerate(zip(self.relations, added, strict=True), 1):
            rows = batch.edges[relation]
            if len(rows.indices):
                shares[relation], each = self.shares(
                    relation, batch.passages, batch.sources[relation], rows
                )
                each = each * total.norm() / each.sum(0).norm().clamp(min=1e-12)
            elif total.any():
                shares[relation], each = total.new_ones(1), total[None]  # (1, d)
            else:
                continue
            sources[relation] = self._placed(each, number)
        return Parts(self._placed(own[None], 0)[0], sources, shares)

    def _placed(self, vectors: Tensor, number: int) -> Tensor:
        """Vectors of shape (n, d) as one of the blocks of a contextual vector, shape (n, width)."""
        return functional.pad(
            vectors, (number * self.dimension, (len(self.relations) - number) * self.dimension)
        )


def isolated_share(queries: np.ndarray) -> float:
    r"""How likely a passage without answered queries is relevant, as a share of its and an answered passage's chance.

    .. math::
        \beta = \frac{\frac{1 - c}{1 - u}}{\frac{1 - c}{1 - u} + \frac{c}{u}}

    u is the share of passages that have answered a query, and c the chance that a passage which is relevant to another
    query is one of them. ``queries``, how many each passage has answered, estimate it: c is the share of their relevant
    passages that have answered more than one, with one more pair whose chance is u. Where no passage ever answers
    twice, beta is nearly 1; where those that have answered are often relevant again, it is low.
    """
    u, pairs = float((queries > 0).mean()), int(queries.sum())
    if not 0 < u < 1:
        return 1.0
    c = (int(queries[queries > 1].sum()) + u) / (pairs + 1)
    isolated, answered = (1 - c) / (1 - u), c / u
    return isolated / (isolated + answered)


def equal_shares(edges: CSR) -> Tensor:
    """1 divided by the number of sources of the same passage, by edge, shape (edges,)."""
    return (1 / edges.lengths.clamp(min=1).float())[edges.row_index]


def mean_of_sources(sources: Tensor, edges: CSR) -> Tensor:
    """Mean of the sources of each target, 0 for a target without any; shape (targets, d)."""
    share = 1 / edges.lengths.clamp(min=1).to(sources.dtype)
    return weighted_sum(share.index_select(0, edges.row_index), sources, edges)


def weighted_sum(weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
    """Weighted sum over the sources of each target, shape (targets, d): a sparse matrix times a dense one.

    Weights are in the order of ``edges.indices``, shape (edges,); vectors are those of the sources, shape (sources, d).
    """
    return functional.embedding_bag(
        edges.indices,
        vectors,
        edges.indptr,
        mode="sum",
        per_sample_weights=weights.contiguous(),
        include_last_offset=True,
    )
