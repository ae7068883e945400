"""Late interaction: MaxSim (Albarede et al. 2023, Eq. 6; Khattab and Zaharia 2020) and its extension along a graph."""

import torch
from torch import Tensor

from pyterrier_graph.encoders.devices import full_precision
from pyterrier_graph.encoders.token_states import TokenStates


def token_maxima(query: Tensor, passages: TokenStates) -> Tensor:
    """For each token of a query the best cosine similarity to any token of each passage; 0 if a passage has none.

    All vectors have unit length. Shapes: (query tokens, d) of the query, (passages, query tokens) of the result.
    """
    with full_precision(query):  # in half precision, scores would tie
        similarities = passages.values @ query.T  # (tokens, query tokens)
    maxima = similarities.new_full((len(passages), len(query)), -torch.inf)
    passage = passages.row_index[:, None].expand_as(similarities)
    maxima = maxima.scatter_reduce(0, passage, similarities, "amax")
    return torch.where(passages.lengths[:, None] > 0, maxima, 0.0)


def maxsim(query: Tensor, passages: TokenStates) -> Tensor:
    """The sum of the maxima over the tokens of the query (Eq. 6); shape (passages,)."""
    return token_maxima(query, passages).sum(1)


def normalized(states: TokenStates, *, linear: bool = False) -> TokenStates:
    """Token vectors scaled to unit length, so that the dot product of Eq. 6 is a cosine; 0 stays 0.

    With ``linear``, gradients take the lengths for constants.
    """
    lengths = (states.values.detach() if linear else states.values).norm(dim=-1, keepdim=True)
    return states.with_values(states.values / lengths.clamp(min=1e-12))


def best_of_neighbors(maxima: Tensor, targets: Tensor, neighbors: Tensor, count: int) -> Tensor:
    """The best match among the neighbors of each target, shape (targets, query tokens); minus infinity without any.

    Edge e leads from ``targets[e]`` to row ``neighbors[e]`` of ``maxima``: :func:`token_maxima`, (nodes, query tokens).
    """
    best = maxima.new_full((count, maxima.shape[1]), -torch.inf)
    return best.scatter_reduce(0, targets[:, None].expand(-1, maxima.shape[1]), maxima[neighbors], "amax")


def graph_maxsim(own: Tensor, context: Tensor, weights: Tensor, token_weights: Tensor | None = None) -> Tensor:
    """Late interaction along a graph: each query token takes its best match in the passage or its neighborhood.

    ``sum over query tokens t of u_t * max(own, weight_1 * context_1, weight_2 * context_2, ...)``

    Args:
        own: Best matches in the passages themselves, shape (..., query tokens).
        context: Best matches per relation, shape (..., relations, query tokens); minus infinity where there is none.
        weights: Weight per relation, at least 0; shape (relations,). Weight 0 switches a relation off.
        token_weights: The weights u of the query's tokens, shape (query tokens,); None is 1 for all.
    """
    off = (weights == 0)[:, None] | context.isneginf()
    # filled before multiplying, too: infinity would make the gradient of the weight NaN
    weighted = (context.masked_fill(off, 0.0) * weights[:, None]).masked_fill(off, -torch.inf)
    best = torch.cat([own.unsqueeze(-2), weighted], dim=-2).amax(-2)
    return (best if token_weights is None else best * token_weights).sum(-1)
