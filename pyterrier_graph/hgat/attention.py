"""Attention along the edges of a graph: which node states an HGAT computes, and from which others.

In the No out and No self variants, the state of a node depends on the target that it is computed for (Albarede et al.
2023, Sect. 3.3: j != tgt). A state is therefore identified by a node and a target. Only nodes near a target have a
state that depends on it; the states of all other nodes are computed once for all targets.

Scaled dot-product attention is computed between token matrices of unequal lengths. The attention of one edge is
independent of all others: the softmax is over the tokens of one neighbor, and the results are summed over the
neighbors. The tokens of the nodes are in the last dimension, because a softmax along short rows is slow on CPUs
(``scaled_dot_product_attention`` takes two to three times as long for passages of 40 tokens).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.graphs.relations import SELF, inverse_path

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

ALL_TARGETS = -1
PADDED_TOKENS_AT_ONCE = 2_048


class Edges(NamedTuple):
    """Edges from nodes to the neighbors that they attend to."""

    nodes: Tensor  # the nodes that have neighbors, distinct and ascending
    neighbors: Tensor  # the nodes that they attend to, likewise
    pairs: Tensor  # the edges: positions in ``nodes`` and in ``neighbors``, shape (2, edges)

    @classmethod
    def of(cls, node: np.ndarray, neighbor: np.ndarray) -> Edges:
        """Numbers the ends of distinct edges."""
        nodes, node = np.unique(node, return_inverse=True)
        neighbors, neighbor = np.unique(neighbor, return_inverse=True)
        return cls(*map(torch.from_numpy, (nodes, neighbors, np.stack([node, neighbor]))))

    def sum(self, values: Tensor) -> Tensor:
        """Per node the sum over its neighbors' values, float32; shapes (neighbors,) and (nodes,)."""
        total = torch.zeros(len(self.nodes), device=values.device)
        return total.index_add_(0, self.pairs[0], values.float()[self.pairs[1]])


def attend_along_edges(
    queries: TokenStates,
    keys: TokenStates,
    values: TokenStates,
    edges: Edges,
    *,
    heads: int,
    dropout: float = 0.0,
) -> Tensor:
    """Each node's tokens attend to the tokens of each of its neighbors; returns the sums over the neighbors, float32.

    ``queries`` are projected states of ``edges.nodes``; ``keys`` and ``values`` those of ``edges.neighbors``.
    """
    pairs = edges.pairs[
        :, (queries.lengths[edges.pairs[0]] > 0) & (keys.lengths[edges.pairs[1]] > 0)
    ]
    longest = torch.maximum(queries.lengths[pairs[0]], keys.lengths[pairs[1]])
    parts = []
    for some in _batches(longest):
        query_rows, query_mask = _padded_rows(queries, pairs[0, some])
        key_rows, key_mask = _padded_rows(keys, pairs[1, some])
        q, k, v = (
            queries.values[query_rows],
            keys.values[key_rows],
            values.values[key_rows],
        )  # (pairs, tokens, d)
        parts.append(
            (query_rows[query_mask], _attend(q, k, v, key_mask, heads, dropout)[query_mask].float())
        )
    total = torch.zeros_like(queries.values, dtype=torch.float32)
    if not parts:
        return total
    rows, sums = (torch.cat(part) for part in zip(*parts, strict=True))
    return total.index_add_(0, rows, sums)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int, dropout: float) -> Tensor:
    """Attention in a batch of matrices of shape (tokens, d); the mask, shape (batch, tokens), marks the keys."""
    q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
    weights = _weights(
        k @ (q * q.shape[-1] ** -0.5).transpose(2, 3), mask[:, None, :, None], dropout
    )
    return (v.transpose(2, 3) @ weights).permute(0, 3, 1, 2).flatten(2)


def _weights(scores: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Softmax over the keys, the last dimension but one; padding gets no attention."""
    if not mask.all():
        scores = scores.masked_fill_(~mask, -torch.inf)
    weights = scores.softmax(-2)
    return functional.dropout(weights, dropout) if dropout else weights


def _batches(lengths: Tensor) -> Iterator[Tensor]:
    """Groups positions of similar lengths, so that little is padded."""
    if not len(lengths):
        return
    order = torch.argsort(lengths, stable=True)
    spent = lengths[order].cumsum(0) // PADDED_TOKENS_AT_ONCE
    sizes = torch.unique_consecutive(spent, return_counts=True)[1]
    yield from order.split(sizes.tolist())


def _padded_rows(states: TokenStates, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``states.values`` for some nodes, padded with row 0, and which are real; shape (nodes, longest)."""
    lengths = states.lengths[nodes]
    column = torch.arange(int(lengths.max()), device=lengths.device)
    mask = column < lengths[:, None]
    return torch.where(mask, states.offsets[nodes][:, None] + column, 0), mask


# --- which states are computed


class Hop(NamedTuple):
    """The work of one layer: new states are computed from the states of the layer before."""

    previous: Tensor  # for each new state the earlier state of the same node, shape (states,)
    edges: dict[
        str, Edges
    ]  # per relation and SELF: new states, and the earlier ones that they attend to
    without_self: Tensor  # whether a new state is that of a target that does not attend to itself (Eq. 8), (states,)


class Propagation(NamedTuple):
    """The work of all layers for a set of targets; ``accelerate.utils.send_to_device`` moves it to a device."""

    nodes: np.ndarray  # nodes whose encoded texts are the input of the first layer, shape (inputs,)
    hops: tuple[Hop, ...]  # the layers, first to last
    targets: Tensor  # for each given target its state after the last layer, shape (targets,)
    inputs: Tensor  # for each given target its position in ``nodes``, shape (targets,)
    # per relation whose tokens are matched directly: positions in the distinct targets, and of neighbors in ``nodes``
    matches: tuple[tuple[Tensor, Tensor], ...] = ()


def plan_propagation(
    graph: HeteroGraph,
    targets: np.ndarray,
    relations: Sequence[str],
    layers: int,
    *,
    no_out: bool,
    no_self: bool,
) -> Propagation:
    """Works backwards from the targets, which are node numbers, to the encoded texts; relations are without SELF."""
    unique, position = np.unique(np.asarray(targets, dtype=np.int64), return_inverse=True)
    target_dependent = no_out or no_self
    node, target = (
        unique,
        np.arange(len(unique)) if target_dependent else np.full(len(unique), ALL_TARGETS),
    )
    states = _States(graph, unique, relations, layers if target_dependent else 0)
    hops: list[Hop] = []
    for layer in range(layers, 0, -1):
        # What the states of the layer before depend on: the message of the target is missing (No out), or the state
        # of the target differs (No self). The difference spreads by one hop per layer.
        radius = (layer - 1 if no_out else layer - 2) if layer > 1 and target_dependent else -1
        target_node = np.where(target == ALL_TARGETS, -1, unique[target])
        needed, rows = [states.number(node, target, radius)], []
        for relation in relations:
            row, neighbor = graph.neighbors(node, relation)
            if no_out:  # Eq. 2: j != tgt
                allowed = neighbor != target_node[row]
                row, neighbor = row[allowed], neighbor[allowed]
            rows.append(row)
            needed.append(states.number(neighbor, target[row], radius))
        numbers, index = np.unique(np.concatenate(needed), return_inverse=True)
        previous, *sources = np.split(index, np.cumsum([len(part) for part in needed])[:-1])
        without_self = (node == target_node) & no_self
        with_self = np.flatnonzero(~without_self)
        pairs = [
            (SELF, with_self, previous[with_self]),
            *zip(relations, rows, sources, strict=True),
        ]
        edges = {name: Edges.of(row, source) for name, row, source in pairs if len(row)}
        hops.append(Hop(torch.from_numpy(previous), edges, torch.from_numpy(without_self)))
        node, target = numbers % graph.num_nodes, numbers // graph.num_nodes - 1
    inputs = np.searchsorted(node, unique)[position]
    return Propagation(
        node, tuple(reversed(hops)), torch.from_numpy(position), torch.from_numpy(inputs)
    )


class _States:
    """Numbers the states (node, target), and decides which of them depend on the target. ``targets`` ascend."""

    def __init__(
        self, graph: HeteroGraph, targets: np.ndarray, relations: Sequence[str], hops: int
    ) -> None:
        self.num_nodes = graph.num_nodes
        front = np.arange(len(targets)) * self.num_nodes + targets
        self.within = [
            front
        ]  # by distance: the sorted keys of nodes that a message of the target can reach
        for _ in range(1, hops):
            target, node = np.divmod(front, self.num_nodes)
            reached = [self.within[-1]]
            for relation in relations:
                # the nodes that aggregate from a node are its neighbors by the inverse relation
                row, neighbor = graph.neighbors(node, inverse_path(relation))
                reached.append(target[row] * self.num_nodes + neighbor)
            self.within.append(np.unique(np.concatenate(reached)))
            front = np.setdiff1d(self.within[-1], self.within[-2], assume_unique=True)

    def number(self, node: np.ndarray, target: np.ndarray, radius: int) -> np.ndarray:
        """The number of the state of each node for its target (a position in the targets, or ``ALL_TARGETS``).

        It is the same for all targets that are more than ``radius`` hops away; with -1, for all targets.
        """
        if radius < 0 or not len(node):
            return node.astype(np.int64)
        within = self.within[radius]
        key = target * self.num_nodes + node
        found = within[np.minimum(np.searchsorted(within, key), len(within) - 1)] == key
        return np.where(found & (target != ALL_TARGETS), key + self.num_nodes, node)
