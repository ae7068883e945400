"""Scaled dot-product attention along the edges of a graph, between token matrices of unequal lengths."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.encoders.token_states import TokenStates

PADDED_TOKENS_AT_ONCE = 2_048


def attend_along_edges(
    queries: TokenStates, keys: TokenStates, values: TokenStates, edges: Tensor, *, heads: int, dropout: float = 0.0
) -> Tensor:
    """Each query node's tokens attend to the tokens of each of its neighbors; returns the sums over the neighbors.

    The attention of one edge is independent of all others: the softmax is over the tokens of one neighbor.

    Args:
        queries: Projected states of the query nodes.
        keys: Projected states of the neighbors.
        values: Likewise, of the same lengths as ``keys``.
        edges: Query node and neighbor of each edge, shape (2, edges).
        heads: Number of attention heads, which divides d.
        dropout: Probability of dropping an attention weight.
    """
    total = torch.zeros_like(queries.values)
    for node, neighbor in _batches(edges, queries.lengths, keys.lengths):
        query_rows, query_mask = _padded_rows(queries, node)
        key_rows, key_mask = _padded_rows(keys, neighbor)
        padded = queries.values[query_rows], keys.values[key_rows], values.values[key_rows]  # (edges, tokens, d)
        q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in padded)
        mask = key_mask[:, None, None, :]  # padding gets no attention
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        attended = attended.transpose(1, 2).flatten(2)  # (edges, tokens, d)
        total = total.index_add(0, query_rows[query_mask], attended[query_mask].to(total.dtype))
    return total


def _batches(edges: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Iterator[Tensor]:
    """Groups edges of similar lengths, so that little is padded; edges with a node without tokens are left out."""
    edges = edges[:, (query_lengths[edges[0]] > 0) & (key_lengths[edges[1]] > 0)]
    if not edges.shape[1]:
        return
    longest = torch.maximum(query_lengths[edges[0]], key_lengths[edges[1]])
    order = torch.argsort(longest)
    spent = longest[order].cumsum(0) // PADDED_TOKENS_AT_ONCE
    sizes = torch.unique_consecutive(spent, return_counts=True)[1]
    yield from edges[:, order].split(sizes.tolist(), dim=1)


def _padded_rows(states: TokenStates, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``states.values`` for some nodes, padded with row 0, and which are no padding; shape (nodes, longest)."""
    lengths = states.lengths[nodes]
    column = torch.arange(int(lengths.max()), device=lengths.device)
    mask = column < lengths[:, None]
    return torch.where(mask, states.offsets[nodes][:, None] + column, 0), mask
