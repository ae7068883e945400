"""Scaled dot-product attention along the edges of a graph, between token matrices of unequal lengths.

The attention of one edge is independent of all others: the softmax is over the tokens of one neighbor, and the results
are summed over the neighbors. Where nodes have the same neighbors, the tokens of these neighbors are one below the
other, and the product of attention weights and values sums over the neighbors, too. The tokens of the nodes are in the
last dimension, because a softmax along short rows is slow on CPUs (``scaled_dot_product_attention`` takes two to three
times as long for passages of 40 tokens).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.graphs.csr import ranges
from pyterrier_graph.models.edge_blocks import Block, EdgeBlocks

PADDED_TOKENS_AT_ONCE = 2_048
# of a block: tokens of its nodes and of their neighbors, so that their scores stay in the cache of a CPU
QUERIES_AT_ONCE = 128
KEYS_AT_ONCE = 768


def attend_along_edges(
    queries: TokenStates, keys: TokenStates, values: TokenStates, edges: EdgeBlocks, *, heads: int, dropout: float = 0.0
) -> Tensor:
    """Each node's tokens attend to the tokens of each of its neighbors; returns the sums over the neighbors, float32.

    Args:
        queries: Projected states of ``edges.nodes``.
        keys: Projected states of ``edges.neighbors``.
        values: Likewise, of the same lengths as ``keys``.
        edges: Which nodes attend to which neighbors.
        heads: Number of attention heads, which divides d.
        dropout: Probability of dropping an attention weight.
    """
    pairs = edges.pairs[:, (queries.lengths[edges.pairs[0]] > 0) & (keys.lengths[edges.pairs[1]] > 0)]
    longest = torch.maximum(queries.lengths[pairs[0]], keys.lengths[pairs[1]])
    parts = [_pairs(queries, keys, values, pairs[:, some], heads, dropout) for some in _batches(longest)]
    parts += [_block(queries, keys, values, block, heads, dropout) for block in edges.blocks]
    total = torch.zeros_like(queries.values, dtype=torch.float32)
    if not parts:
        return total
    rows, sums = (torch.cat(part) for part in zip(*parts, strict=True))
    return total.index_add_(0, rows, sums)


def attend_to_each(
    queries: Tensor, keys: TokenStates, values: TokenStates, *, heads: int, dropout: float = 0.0
) -> Tensor:
    """The same queries, shape (n, d), attend to the tokens of each node: (nodes, n, d), float32; 0 for an empty one."""
    total = queries.new_zeros(len(keys), *queries.shape, dtype=torch.float32)
    filled = keys.lengths.nonzero()[:, 0]
    for some in _batches(keys.lengths[filled]):
        rows, mask = _padded_rows(keys, filled[some])
        attended = _attend(queries[None], keys.values[rows], values.values[rows], mask, heads, dropout)
        total.index_copy_(0, filled[some], attended.float())
    return total


def _pairs(
    queries: TokenStates, keys: TokenStates, values: TokenStates, pairs: Tensor, heads: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention along single edges: rows of the queries, and what is to be added to them."""
    query_rows, query_mask = _padded_rows(queries, pairs[0])
    key_rows, key_mask = _padded_rows(keys, pairs[1])
    attended = _attend(
        queries.values[query_rows], keys.values[key_rows], values.values[key_rows], key_mask, heads, dropout
    )
    return query_rows[query_mask], attended[query_mask].float()


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int, dropout: float) -> Tensor:
    """Attention in a batch of matrices of shape (tokens, d); the mask, shape (batch, tokens), says what is a key."""
    q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
    weights = _weights(k @ _scaled(q).transpose(2, 3), mask[:, None, :, None], dropout)
    return (v.transpose(2, 3) @ weights).permute(0, 3, 1, 2).flatten(2)


def _block(
    queries: TokenStates, keys: TokenStates, values: TokenStates, block: Block, heads: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention of some nodes to the same neighbors: rows of the queries, and what is to be added to them."""
    bounds, rows = ranges(queries.offsets[block.nodes], queries.lengths[block.nodes])
    node = torch.repeat_interleave(bounds.diff())
    filled = keys.lengths[block.neighbors] > 0
    neighbors, allowed = block.neighbors[filled], block.allowed[filled]
    q = _scaled(queries.values[rows].unflatten(1, (heads, -1))).permute(1, 2, 0)  # (heads, d_h, queries)
    parts = [part.contiguous() for part in q.split(QUERIES_AT_ONCE, dim=2)]
    nodes = node.split(QUERIES_AT_ONCE)
    sums = [torch.zeros_like(part, dtype=torch.float32) for part in parts]
    for some in _batches(keys.lengths[neighbors], KEYS_AT_ONCE):
        key_rows, mask = _padded_rows(keys, neighbors[some])
        tokens = key_rows.shape  # (neighbors, tokens)
        k, v = (
            states.values[key_rows.flatten()].unflatten(1, (heads, -1)).transpose(0, 1).contiguous()
            for states in (keys, values)
        )
        for number, part in enumerate(parts):
            weights = _weights((k @ part).unflatten(1, tokens), mask[None, :, :, None], dropout)
            if not block.complete:
                edge = allowed[some][:, nodes[number]]
                weights = weights if edge.all() else weights * edge[None, :, None, :]
            sums[number] = sums[number] + v.transpose(1, 2) @ weights.flatten(1, 2)
    return rows, torch.cat(sums, dim=2).permute(2, 0, 1).flatten(1)


def _scaled(queries: Tensor) -> Tensor:
    return queries * queries.shape[-1] ** -0.5


def _weights(scores: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Softmax over the keys, the last dimension but one; padding gets no attention."""
    if not mask.all():
        scores = scores.masked_fill_(~mask, -torch.inf)
    weights = scores.softmax(-2)
    return functional.dropout(weights, dropout) if dropout else weights


def _batches(lengths: Tensor, tokens: int = PADDED_TOKENS_AT_ONCE) -> Iterator[Tensor]:
    """Groups positions of similar lengths, so that little is padded."""
    if not len(lengths):
        return
    order = torch.argsort(lengths, stable=True)
    spent = lengths[order].cumsum(0) // tokens
    sizes = torch.unique_consecutive(spent, return_counts=True)[1]
    yield from order.split(sizes.tolist())


def _padded_rows(states: TokenStates, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``states.values`` for some nodes, padded with row 0, and which are no padding; shape (nodes, longest)."""
    lengths = states.lengths[nodes]
    column = torch.arange(int(lengths.max()), device=lengths.device)
    mask = column < lengths[:, None]
    return torch.where(mask, states.offsets[nodes][:, None] + column, 0), mask
