"""Liu et al. 2022, Eq. 2-10 and their first version's, word by word: one target, one edge, one head at a time.

A graph is a list of pairs (target, source); an edge's number is its place in the list.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyterrier_graph.gnn_encoder.equations import BipartiteAttention, PaperGNNEncoderNetwork
from pyterrier_graph.gnn_encoder.network import GNNEncoderNetwork

Edges = list[tuple[int, int]]


def dot(x: Tensor, y: Tensor) -> Tensor:
    return sum((a * b for a, b in zip(x, y, strict=True)), x.new_zeros(()))


def leaky_relu(x: Tensor) -> Tensor:
    return x if x >= 0 else 0.2 * x


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def gat(
    layer: BipartiteAttention,
    targets: Tensor,
    sources: Tensor,
    edges: Edges,
    features: Tensor | None = None,
) -> tuple[Tensor, list[dict[int | str, list[float]]]]:
    """Eq. 3-5: the sum of each target, and per target the weights of its edges, by number, and of ``'own'``."""
    d = targets.shape[1]
    size = d // layer.heads
    w_s = layer.source.weight
    w_t = w_s if layer.target is None else layer.target.weight
    rows, all_weights = [], []
    for i, h_i in enumerate(targets):
        # vector and edge features of each source
        neighbors: dict[int | str, tuple[Tensor, Tensor | None]] = {
            number: (sources[source], None if features is None else features[number])
            for number, (target, source) in enumerate(edges)
            if target == i
        }
        if layer.own:
            neighbors["own"] = h_i, None
        out, weights = [], {name: [] for name in neighbors}
        for head in range(layer.heads):
            part = slice(head * size, (head + 1) * size)
            e = {}
            for name, (h_j, h_ij) in neighbors.items():
                projected = [w_t @ h_i, w_s @ h_j]
                if layer.edge is not None and h_ij is not None:
                    projected.append(layer.edge.weight @ h_ij)
                e_ij = sum(
                    dot(a[head], x[part]) for a, x in zip(layer.attention, projected, strict=False)
                )
                e[name] = leaky_relu(e_ij)  # Eq. 3, 4
            largest = max(e.values(), default=0)
            total = sum(torch.exp(x - largest) for x in e.values())
            aggregated = targets.new_zeros(size)
            for name, (h_j, _) in neighbors.items():
                alpha = torch.exp(e[name] - largest) / total  # Eq. 4
                weights[name].append(alpha.item())
                aggregated = aggregated + alpha * (w_s @ h_j)[part]  # Eq. 5
            out.append(aggregated)
        rows.append(torch.cat(out))
        all_weights.append(weights)
    return torch.stack(rows) if rows else targets.new_zeros(0, d), all_weights


def mean(sources: list[Tensor], like: Tensor) -> Tensor:
    return sum(sources) / len(sources) if sources else torch.zeros_like(like)


def query_states(
    network: PaperGNNEncoderNetwork,
    queries: Tensor,
    passages: Tensor,
    edges: Edges,
    features: Tensor | None = None,
) -> Tensor:
    """Eq. 6 and 7."""
    config = network.config
    if config.average is not None or config.layers == 1:
        return queries
    aggregated, _ = gat(network.query_layer, queries, passages, edges, features)
    weight, bias = network.fusion.weight, network.fusion.bias
    rows = [
        weight @ torch.cat([h_tilde, h]) + bias
        for h_tilde, h in zip(aggregated, queries, strict=True)
    ]
    return torch.stack(rows) if rows else queries


def passage_states(
    network: PaperGNNEncoderNetwork,
    passages: Tensor,
    queries: Tensor,
    edges: Edges,
    features: Tensor | None = None,
) -> Tensor:
    """Eq. 8-10, or the ablation in their place."""
    config = network.config
    if config.average is not None:
        rows = [
            h + config.average * mean([queries[j] for t, j in edges if t == i], h)
            for i, h in enumerate(passages)
        ]
        return torch.stack(rows) if rows else passages
    aggregated, _ = gat(network.passage_layer, passages, queries, edges, features)
    rows = []
    for h_tilde, h in zip(aggregated, passages, strict=True):
        if config.gate == "filter":
            f = sigmoid(network.gate.weight @ torch.cat([h_tilde, h]) + network.gate.bias)
        else:
            f = config.gate
        rows.append(f * h_tilde + h)
    return torch.stack(rows) if rows else passages


def relation_terms(
    network: GNNEncoderNetwork,
    passages: Tensor,
    sources: dict[str, Tensor],
    edges: dict[str, Edges],
) -> list[tuple[Tensor, dict[str, Tensor], bool]]:
    """Per passage x + g_0 W_0 x, g_r GAT_r of each relation, and whether it has no relevant query."""
    messages = {
        name: gat(network.relation[name].attention, passages, sources[name], edges[name])[0]
        for name in edges
    }
    rows = []
    for i, x in enumerate(passages):
        own = x + 2 * sigmoid(network.own_gate.weight @ x + network.own_gate.bias) * (
            network.own.weight @ x
        )
        gated = {}
        for name in edges:
            relation, message = network.relation[name], messages[name][i]
            gate = 2 * sigmoid(relation.gate.weight @ torch.cat([message, x]) + relation.gate.bias)
            gated[name] = gate * message
        isolated = "relevant" in edges and i not in {target for target, _ in edges["relevant"]}
        rows.append((own, gated, isolated))
    return rows


def side_by_side_passage_states(
    network: GNNEncoderNetwork,
    passages: Tensor,
    sources: dict[str, Tensor],
    edges: dict[str, Edges],
) -> Tensor:
    """y = x + g_0 W_0 x, then (|y| - y.m) m of each relation, m = g_r GAT_r of length 1; beta y for isolated ones."""
    rows = []
    for own, gated, isolated in relation_terms(network, passages, sources, edges):
        blocks = [own]
        for name in network.relations:
            length = dot(gated[name], gated[name]).sqrt()
            direction = gated[name] / length if length > 0 else gated[name]
            added = (dot(own, own).sqrt() - dot(own, direction)) * direction
            blocks.append(network.isolated * own if isolated and name == "relevant" else added)
        rows.append(torch.cat(blocks))
    return torch.stack(rows) if rows else passages.new_zeros(0, network.width)


def graph_mean(passages: Tensor, queries: Tensor, edges: Edges, weight: float) -> Tensor:
    """Mean aggregation: normalize(x + weight * mean of its queries)."""
    rows = []
    for i, x in enumerate(passages):
        state = x + weight * mean([queries[j] for t, j in edges if t == i], x)
        rows.append(state / dot(state, state).sqrt())
    return torch.stack(rows)


def in_batch_loss(queries: Tensor, passages: Tensor, positives: list[int]) -> float:
    """The mean of Eq. 2 over queries, with all other passages of the batch as {p-}."""
    losses = []
    for q, positive in zip(queries, positives, strict=True):
        right = math.exp(dot(q, passages[positive]))
        wrong = sum(math.exp(dot(q, p)) for number, p in enumerate(passages) if number != positive)
        losses.append(-math.log(right / (right + wrong)))
    return sum(losses) / len(losses)


def preprint_loss(
    queries: list[Tensor], batch: list[int], states: Tensor, pairs: list[int]
) -> float:
    """Eq. 11 of 000, its mean: of each query whose positive (``pairs``) is in P_b; {p-} is P_b without it."""
    losses = []
    for q, positive in zip(queries, pairs, strict=True):
        if positive in batch:
            right = math.exp(dot(q, states[positive]))
            wrong = sum(math.exp(dot(q, states[p])) for p in batch if p != positive)
            losses.append(-math.log(right / (right + wrong)))
    return sum(losses) / len(losses) if losses else 0.0


def retraining_loss(
    queries: Tensor, states: dict[str, Tensor], examples: list[tuple[str, ...]]
) -> float:
    """Eq. 12 of 000 in Eq. 2: fixed h'_p by docno; an example is a positive and its hard negatives, of one query."""
    batch = {docno for example in examples for docno in example}
    losses = []
    for q, (positive, *_) in zip(queries, examples, strict=True):
        similarity = {docno: dot(q, states[docno]).item() for docno in batch}  # Eq. 12
        total = sum(math.exp(value) for value in similarity.values())
        losses.append(-math.log(math.exp(similarity[positive]) / total))  # Eq. 2
    return sum(losses) / len(losses)
