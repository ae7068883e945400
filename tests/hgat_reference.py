"""Albarede et al. 2023, Eq. 1-8, word by word: one node, one neighbor, one edge at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.graphs.relations import SELF, inverse
from pyterrier_graph.hgat.equations import HGAT, HGATLayer


class EdgeGraph:
    """Any typed edges, as the models see a graph: node i points to j, that is, i aggregates from j."""

    def __init__(self, num_nodes: int, edges: dict[str, list[tuple[int, int]]]) -> None:
        self.num_nodes = num_nodes
        self.edges: dict[str, set[tuple[int, int]]] = {}
        for relation, pairs in edges.items():
            self.edges.setdefault(relation, set()).update(pairs)
            self.edges.setdefault(inverse(relation), set()).update((j, i) for i, j in pairs)
        self.relations = tuple(sorted(self.edges))

    def neighbors(self, nodes: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
        found = [
            (row, j)
            for row, node in enumerate(nodes)
            for i, j in sorted(self.edges[relation])
            if i == node
        ]
        pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def multi_head(layer: HGATLayer, relation: str, h_i: Tensor, h_j: Tensor) -> Tensor:
    """MultiHead_r(h_i, h_j, h_j), by PyTorch's own module where there is one."""
    if not len(h_j):
        return torch.zeros_like(h_i)
    attention = layer.attention[relation]
    if isinstance(attention, torch.nn.MultiheadAttention):
        message = attention(h_i[None], h_j[None], h_j[None], need_weights=False)[0][0]
    else:
        parts = zip(
            (h_i, h_j, h_j),
            attention.in_proj_weight.chunk(3),
            attention.in_proj_bias.chunk(3),
            strict=True,
        )
        each = zip(*((x @ w.T + b).chunk(layer.config.heads, 1) for x, w, b in parts), strict=True)
        heads = [torch.softmax(q @ k.T / q.shape[1] ** 0.5, 1) @ v for q, k, v in each]
        message = torch.cat(heads, 1) @ attention.out_proj.weight.T + attention.out_proj.bias
    if relation == SELF and layer.residual:
        message = message + h_i  # init='identity'
    return message


def softmax_of(layer: HGATLayer, relation: str, among: list[str], length: int) -> Tensor:
    """softmax(W_r) over the relation types, for each position."""
    exponentials = {r: torch.exp(layer.weight[r][:length]) for r in among}
    return (exponentials[relation] / sum(exponentials.values()))[:, None]


def new_state(layer: HGATLayer, graph: EdgeGraph, h: list[Tensor], i: int, tgt: int) -> Tensor:
    """h'_i while the representation of tgt is computed."""
    config = layer.config
    others = [relation for relation in layer.weight if relation != SELF]
    among = others if config.lambda_ else [*others, SELF]
    context = torch.zeros_like(h[i])
    for r in others:
        count = 0
        summed = torch.zeros_like(context)
        for j in range(graph.num_nodes):
            if (i, j) not in graph.edges[r] or not len(h[j]):
                continue
            if config.no_out and j == tgt and i != tgt:
                continue  # Eq. 2, 7
            summed = summed + multi_head(layer, r, h[i], h[j])
            count += 1
        if config.aggregation == "mean" and count:
            summed = summed / count
        context = context + softmax_of(layer, r, among, len(context)) * summed
    if config.no_self and i == tgt:
        return context  # Eq. 8
    content = multi_head(layer, SELF, h[i], h[i])
    if config.lambda_:
        return (1 - layer.lambda_) * content + layer.lambda_ * context  # Eq. 3, 7
    return context + softmax_of(layer, SELF, among, len(context)) * content  # Eq. 1, 2


def in_context(model: HGAT, graph: EdgeGraph, texts: list[Tensor], tgt: int) -> Tensor:
    """The representation of one target: all nodes, layer by layer, of which the last one needs the target only."""
    h, last = list(texts), len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        h = [
            new_state(layer, graph, h, i, tgt)
            if len(h[i]) and (number < last or i == tgt)
            else h[i]
            for i in range(graph.num_nodes)
        ]
    return h[tgt]


def similarity(query: Tensor, passage: Tensor) -> Tensor:
    """Eq. 6, of unit vectors."""
    total = torch.zeros(())
    for e_q in query:
        best = None
        for e_p in passage:
            cosine = torch.dot(e_q, e_p)
            best = cosine if best is None else torch.maximum(best, cosine)
        total = total + (best if best is not None else 0.0)
    return total


def matched(
    model: HGAT, graph: EdgeGraph, texts: list[Tensor], query: Tensor, tgt: int, represented: Tensor
) -> Tensor:
    """Each query token takes the best of the passage and its neighbors, with weights that depend on the token."""
    matches, total = model.matches, torch.zeros(())
    for q in query:
        found = [similarity(q[None], represented)]
        for number, relation in enumerate(matches.relations):
            weight = (matches.weights[number] + torch.dot(matches.by_token[number], q)).clamp(min=0)
            near = [texts[j] for i, j in graph.edges[relation] if i == tgt and len(texts[j])]
            if near and weight > 0:
                found.append(
                    weight * torch.stack([similarity(q[None], text) for text in near]).max()
                )
        total = (
            total
            + torch.exp(torch.dot(matches.importance, q).clamp(-3, 3)) * torch.stack(found).max()
        )
    return total


def relevance(
    model: HGAT, graph: EdgeGraph, texts: list[Tensor], query: Tensor, tgt: int
) -> Tensor:
    """Eq. 4 or 5, or the sum of NeighborMatches."""
    represented = functional.normalize(in_context(model, graph, texts, tgt), dim=1)
    if model.matches is not None:
        return matched(model, graph, texts, query, tgt, represented)
    context = similarity(query, represented)
    if model.config.framework == "standard":
        return context
    return (1 - model.alpha) * similarity(query, texts[tgt]) + model.alpha * context
