"""Attention along the edges of a graph, and the plan of the node states that an HGAT computes.

In the No out and No self variants, the state of a node depends on the target passage that it is computed for (Albarede
et al. 2023, Sect. 3.3: j != tgt). So a node and a target identify a state. Only states near a target depend on it; all
other states are computed once for all targets.

Scaled dot-product attention works on token matrices of unequal lengths. Each edge has its own softmax, over the tokens
of one neighbor; the results are summed over the neighbors. The tokens of the nodes are in the last dimension, because a
softmax along short rows is slow on CPUs (``scaled_dot_product_attention`` takes two to three times as long for passages
of 40 tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.graphs.csr import CSR, ranges
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import SELF, inverse_path

PADDED_TOKENS_AT_ONCE = 2_048
PAIRS_AT_ONCE = 65_536  # of tokens, which a layer of PyTorch Geometric compares


class Edges(NamedTuple):
    """Edges of one relation: which nodes attend to which neighbors, by position in two lists of nodes."""

    nodes: Tensor  # nodes that have neighbors, distinct and ascending, shape (nodes,)
    neighbors: Tensor  # nodes that they attend to, distinct and ascending, shape (neighbors,)
    pairs: Tensor  # positions in ``nodes`` and in ``neighbors``, shape (2, edges)

    @classmethod
    def of(cls, node: np.ndarray, neighbor: np.ndarray) -> Edges:
        """The edges between numbered nodes, each edge once."""
        nodes, node_position = np.unique(node, return_inverse=True)
        neighbors, neighbor_position = np.unique(neighbor, return_inverse=True)
        pairs = np.stack([node_position, neighbor_position])  # (2, edges)
        return cls(
            nodes=torch.from_numpy(nodes),
            neighbors=torch.from_numpy(neighbors),
            pairs=torch.from_numpy(pairs),
        )

    def with_tokens(self, targets: TokenStates, sources: TokenStates) -> Tensor:
        """The pairs whose ends both have tokens, shape (2, edges); states of ``nodes`` and of ``neighbors``."""
        node, neighbor = self.pairs
        node_has_tokens = targets.lengths[node] > 0
        neighbor_has_tokens = sources.lengths[neighbor] > 0
        both_have_tokens = node_has_tokens & neighbor_has_tokens  # (edges,)
        return self.pairs[:, both_have_tokens]


def attend_along_edges(
    queries: TokenStates,
    keys: TokenStates,
    values: TokenStates,
    edges: Edges,
    *,
    heads: int,
    dropout: float = 0.0,
) -> Tensor:
    """The tokens of each node attend to the tokens of each neighbor; returns the sums over the neighbors, float32.

    ``queries`` are projected states of ``edges.nodes``; ``keys`` and ``values`` are projected states of
    ``edges.neighbors``. The result has the shape of ``queries.values``: (tokens of all nodes, d).
    """
    node, neighbor = edges.with_tokens(queries, keys)
    query_lengths = queries.lengths[node]  # (edges,)
    key_lengths = keys.lengths[neighbor]
    longest = torch.maximum(query_lengths, key_lengths)
    total = torch.zeros_like(queries.values, dtype=torch.float32)
    for batch in _batches(longest, PADDED_TOKENS_AT_ONCE):
        query_rows, query_mask = _padded_rows(queries, node[batch])  # (edges, query tokens)
        key_rows, key_mask = _padded_rows(keys, neighbor[batch])  # (edges, key tokens)
        q = queries.values[query_rows]  # (edges, query tokens, d)
        k = keys.values[key_rows]  # (edges, key tokens, d)
        v = values.values[key_rows]
        attended = _attend(q, k, v, key_mask, heads, dropout)  # (edges, query tokens, d)
        rows = query_rows[query_mask]  # (tokens of these nodes,)
        messages = attended[query_mask].float()  # (tokens of these nodes, d)
        total.index_add_(0, rows, messages)
    return total


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int, dropout: float) -> Tensor:
    """Attention between matrices of shape (batch, tokens, d); ``mask`` marks real keys, shape (batch, key tokens)."""
    q = _split_heads(q, heads)  # (batch, heads, query tokens, d / heads)
    k = _split_heads(k, heads)  # (batch, heads, key tokens, d / heads)
    v = _split_heads(v, heads)
    scale = q.shape[-1] ** -0.5
    q = q * scale
    scores = k @ q.transpose(2, 3)  # (batch, heads, key tokens, query tokens)
    padding = ~mask[:, None, :, None]
    scores = scores.masked_fill_(padding, -torch.inf)
    weights = scores.softmax(-2)  # over the keys
    weights = functional.dropout(weights, dropout)
    attended = v.transpose(2, 3) @ weights  # (batch, heads, d / heads, query tokens)
    attended = attended.permute(0, 3, 1, 2)
    return attended.flatten(2)  # (batch, query tokens, d)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, d) to (batch, heads, tokens, d / heads)."""
    x = x.unflatten(2, (heads, -1))
    return x.transpose(1, 2)


def layer_along_edges(
    layer: nn.Module, targets: TokenStates, sources: TokenStates, edges: Edges
) -> Tensor:
    """As :func:`attend_along_edges`, by a bipartite layer, whose nodes are tokens; shape (tokens of all nodes, d).

    Each token of a node is connected with all tokens of one neighbor, edge by edge, so that any softmax is over the
    tokens of this neighbor. ``targets`` are states of ``edges.nodes``, ``sources`` of ``edges.neighbors``.
    """
    node, neighbor = edges.with_tokens(targets, sources)
    pairs = targets.lengths[node] * sources.lengths[neighbor]  # of tokens, (edges,)
    total = torch.zeros_like(targets.values, dtype=torch.float32)
    for batch in _batches(pairs, PAIRS_AT_ONCE):
        nodes = node[batch]
        first_row = targets.offsets[nodes]
        lengths = targets.lengths[nodes]
        _, rows = ranges(first_row, lengths)  # (target tokens,)
        edge = torch.repeat_interleave(lengths)  # of each target token
        keys = sources.select(neighbor[batch])
        key_rows = torch.arange(len(keys.values), device=rows.device)
        keys_of_edge = CSR(keys.offsets, key_rows)
        target, source = keys_of_edge.select(edge)  # (token pairs,) each
        edge_index = torch.stack([source, target])
        target_values = targets.values[rows]  # (target tokens, d)
        out = layer((keys.values, target_values), edge_index)
        total.index_add_(0, rows, out.float())
    return total


def _batches(lengths: Tensor, at_once: int) -> tuple[Tensor, ...]:
    """Groups positions by length, to keep padding short; about ``at_once`` per group."""
    order = torch.argsort(lengths, stable=True)
    total = lengths[order].cumsum(0)
    group = total // at_once  # (positions,)
    _, sizes = torch.unique_consecutive(group, return_counts=True)
    return order.split(sizes.tolist())


def _padded_rows(states: TokenStates, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``states.values`` for each node, padded with row 0, and a mask of real rows; both (nodes, longest)."""
    lengths = states.lengths[nodes]
    column = torch.arange(int(lengths.max()), device=lengths.device)
    mask = column < lengths[:, None]
    first_row = states.offsets[nodes]
    rows = first_row[:, None] + column
    return torch.where(mask, rows, 0), mask


# --- which states are computed


class Hop(NamedTuple):
    """One layer of a plan: new states are computed from the states of the layer before."""

    previous: Tensor  # the earlier state of each new state's node, shape (states,)
    # by relation, and SELF: from new states to the earlier states that they attend to
    edges: dict[str, Edges]
    without_self: Tensor  # whether a target does not attend to itself (Eq. 8), shape (states,)


class Propagation(NamedTuple):
    """A plan: which states every layer computes for some targets. ``accelerate.utils.send_to_device`` moves it."""

    nodes: np.ndarray  # nodes whose encoded texts are the input of the first layer, shape (inputs,)
    hops: tuple[Hop, ...]  # the layers, first to last, which ends with the states of the targets
    targets: Tensor  # position of each target in ``nodes``, shape (targets,)
    # edges of each relation that is matched directly: from targets to positions in ``nodes``
    matches: tuple[tuple[Tensor, Tensor], ...]


def plan_propagation(
    graph: HeteroGraph,
    targets: np.ndarray,
    relations: Sequence[str],
    layers: int,
    *,
    no_out: bool,
    no_self: bool,
    matches: Sequence[str] = (),
) -> Propagation:
    """Plans the states of all layers, backwards from the targets to the texts that have to be encoded.

    For two layers, the target 1 of passages 0 - 1 - 2 - 3 along ``order`` and ``order_i``, and i <- j where the state
    of i attends to the earlier state of j::

        texts to encode         states of layer 1         states of layer 2

              0 ----.
              1 ----+--- hops[0] --->  0 ----.
              2 ----+    0 <- 0 1      1 ----+--- hops[1] --->  1, the target
              3 ----'    1 <- 0 1 2    2 ----'    1 <- 0 1 2
                         2 <- 1 2 3

    With No out (``j != tgt``), no other node reads the target: hops[0] is 0 <- 0, 1 <- 0 1 2, 2 <- 2 3. Then passages 0
    and 2 have other states for another target, and the plan has a state for each pair of a node and a nearby target.

    Args:
        graph: The graph.
        targets: Node numbers, distinct and ascending.
        relations: The relations, without SELF.
        layers: Number of layers.
        no_out: Whether no node aggregates from the target (Eq. 2).
        no_self: Whether the target does not attend to itself (Eq. 8).
        matches: Relations whose neighbors are matched directly.
    """
    states = _States(graph, targets, relations, layers, no_out, no_self)
    node = targets
    target = np.arange(len(targets))
    hops: list[Hop] = []
    for layer in reversed(range(layers)):
        hop, node, target = states.hop(node, target, layer)
        hops.insert(0, hop)
    target_position = np.searchsorted(node, targets)
    edges = [graph.neighbors(targets, relation) for relation in matches]
    neighbors = [neighbor for _, neighbor in edges]
    # the neighbors come after the texts that the layers read
    nodes = np.concatenate([node, *neighbors])
    nodes = pd.Index(nodes).unique()
    matched = []
    for row, neighbor in edges:
        neighbor_position = nodes.get_indexer(neighbor)
        pairs = torch.from_numpy(row), torch.from_numpy(neighbor_position)
        matched.append(pairs)
    return Propagation(
        nodes=np.array(nodes),
        hops=tuple(hops),
        targets=torch.from_numpy(target_position),
        matches=tuple(matched),
    )


@dataclass
class _States:
    """Numbers states (node, target), and knows which of them depend on the target. ``targets`` ascend.

    State ``node`` is the same for all targets; state ``(target + 1) * nodes + node`` belongs to one target.
    """

    graph: HeteroGraph
    targets: np.ndarray
    relations: Sequence[str]
    layers: int
    no_out: bool
    no_self: bool

    def __post_init__(self) -> None:
        self.num_nodes = self.graph.num_nodes
        # by layer: keys (target, node) of the states that depend on the target. Encoded texts (layer 0) do not. Then
        # the message of the target is missing (No out), or its state differs (No self), one hop further in each layer.
        self.dependent = [np.empty(0, dtype=np.int64)] * self.layers
        if self.no_out or self.no_self:
            target = np.arange(len(self.targets))
            keys = target * self.num_nodes + self.targets
            for layer in range(1, self.layers):
                if self.no_out or layer > 1:
                    keys = self._one_hop_further(keys)
                self.dependent[layer] = keys

    def _one_hop_further(self, keys: np.ndarray) -> np.ndarray:
        """Adds the keys of the nodes that aggregate from the nodes of ``keys``, for the same targets."""
        target, node = np.divmod(keys, self.num_nodes)
        reached = [keys]
        for relation in self.relations:
            # the nodes that aggregate from a node are its neighbors by the inverse relation
            row, neighbor = self.graph.neighbors(node, inverse_path(relation))
            reached.append(target[row] * self.num_nodes + neighbor)
        keys = np.concatenate(reached)
        return np.unique(keys)

    def hop(
        self, node: np.ndarray, target: np.ndarray, layer: int
    ) -> tuple[Hop, np.ndarray, np.ndarray]:
        """Plans how states are computed from the states of ``layer``; also returns the nodes and targets of the latter.

        A target is a position in ``targets``; -1 marks a state that is the same for all of them.
        """
        is_target = (target >= 0) & (node == self.targets[target])  # (states,)
        without_self = is_target & self.no_self
        row = np.flatnonzero(~without_self)
        edges = {SELF: (row, node[row])}
        for relation in self.relations:
            edges[relation] = self._neighbors(node, target, relation)
        own = self._number(node, target, layer)  # (states,)
        read = {}
        for relation, (row, neighbor) in edges.items():
            read[relation] = self._number(neighbor, target[row], layer)  # (edges,)
        numbers = np.unique(np.concatenate([own, *read.values()]))
        hop_edges = {}
        for relation, (row, _) in edges.items():
            if len(row):
                position = np.searchsorted(numbers, read[relation])
                hop_edges[relation] = Edges.of(row, position)
        previous = np.searchsorted(numbers, own)
        hop = Hop(torch.from_numpy(previous), hop_edges, torch.from_numpy(without_self))
        target_number, node = np.divmod(numbers, self.num_nodes)
        return hop, node, target_number - 1

    def _neighbors(
        self, node: np.ndarray, target: np.ndarray, relation: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Edges along a relation: rows of the states, and the neighbors that they aggregate from; (edges,) each."""
        row, neighbor = self.graph.neighbors(node, relation)
        if not self.no_out:
            return row, neighbor
        own_target = target[row]
        is_shared = own_target < 0
        is_other = neighbor != self.targets[own_target]  # Eq. 2: j != tgt
        allowed = is_shared | is_other
        return row[allowed], neighbor[allowed]

    def _number(self, node: np.ndarray, target: np.ndarray, layer: int) -> np.ndarray:
        """The number of each node's state in ``layer`` for its target."""
        key = target * self.num_nodes + node
        depends_on_target = np.isin(key, self.dependent[layer])
        return np.where(depends_on_target, key + self.num_nodes, node)
