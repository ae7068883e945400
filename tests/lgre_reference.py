"""Dong and Niu 2021, Eq. 3-15, word by word: one pair, one layer, one token pair at a time, without padding.

Eq. 1 and 2 stand for the encoder ("Eq. 1-2 describe BERT"): E_l are its hidden states.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyterrier_graph.lgre.equations import LGRe, LGReConfig
from pyterrier_graph.lgre.losses import LGReLoss

EPSILON = -1e4


def dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


def sides(segments: list[int]) -> list[str]:
    """'q', 'd' or '-' for each of [CLS], the query, [SEP] (or two), the document, [SEP]."""
    names = [
        {0: "q", 1: "d"}.get(segment, "-") for segment in segments
    ]  # Eq. 4, 5: i from 1, j from m + 2
    return [*names[:-1], "d"]  # Eq. 4, 5: j up to m + n + 2


def linked(i: int, j: int, side: list[str], config: LGReConfig) -> bool:
    """M(i, j)."""
    if config.word_graph == "full":
        return True
    i, j = min(i, j), max(i, j)  # the lower triangle is the upper one's mirror image
    if side[i] == "q" and side[j] == "d":
        return True  # Eq. 4, 5, first line
    if i == j:
        return True  # Eq. 4, second line
    if config.word_graph == "bipartite+neighbor":
        return side[i] == side[j] == "d" and j - i <= config.radius  # Eq. 5, second line
    return False


def softmax(row: list[Tensor]) -> list[Tensor]:
    largest = max(row)
    exponentials = [torch.exp(x - largest) for x in row]
    return [x / sum(exponentials) for x in exponentials]


def adjacency(model: LGRe, layer: int, e: Tensor, side: list[str]) -> list[list[Tensor]]:
    """Eq. 3 of one layer."""
    projected = [e_i @ model.projection[layer] + model.projection_bias[layer][0] for e_i in e]
    rows = []
    for i in range(len(e)):
        row = []
        for j in range(len(e)):
            masked = 0 if linked(i, j, side, model.config) else EPSILON
            row.append(dot(projected[i], projected[j]) / math.sqrt(e.shape[1]) + masked)
        rows.append(softmax(row))
    return rows


def refined(model: LGRe, e: Tensor, a: list[list[Tensor]]) -> list[Tensor]:
    """Eq. 6 and 7."""
    h = list(e)
    size = e.shape[1]
    for _ in range(model.config.steps):
        new = []
        for i in range(len(h)):
            aggregated = sum(a[i][j] * h[j] for j in range(len(h)))
            own, neighbors = model.gates.weight[:, :size], model.gates.weight[:, size:]
            z = torch.sigmoid(
                own[:size] @ h[i] + neighbors[:size] @ aggregated + model.gates.bias[:size]
            )
            r = torch.sigmoid(
                own[size:] @ h[i] + neighbors[size:] @ aggregated + model.gates.bias[size:]
            )
            own, neighbors = model.candidate.weight[:, :size], model.candidate.weight[:, size:]
            c = torch.tanh(own @ (r * h[i]) + neighbors @ aggregated + model.candidate.bias)
            new.append(z * c + (1 - z) * h[i])
        h = new
    return h


def graph_vector(model: LGRe, h: list[Tensor]) -> Tensor:
    """Eq. 8 and the first half of Eq. 9."""
    words = []
    for h_i in h:
        attention = model.attention.weight[0] @ h_i + model.attention.bias[0]
        features = model.features.weight @ h_i + model.features.bias
        words.append(torch.sigmoid(attention) * torch.tanh(features))
    summed = sum(words) / len(words)
    return summed + torch.stack(
        [torch.stack([word[k] for word in words]).max() for k in range(len(words[0]))]
    )


def score(model: LGRe, input_ids: Tensor, segments: list[int]) -> dict[str, object]:
    """f of one pair, and what it is made of."""
    encoded = model.encoder(input_ids=input_ids[None], output_hidden_states=True)
    side = sides(segments)
    f = model.combination_bias[0]
    scores, vectors, graphs = [], [], []
    for number, layer in enumerate(model.layers):
        e = encoded.hidden_states[layer][0]
        a = adjacency(model, number, e, side)
        vectors.append(torch.cat([graph_vector(model, refined(model, e, a)), e[0]]))  # Eq. 9
        scores.append(dot(model.score[number], vectors[-1]) + model.score_bias[number])  # Eq. 10
        f = f + model.combination[0, number] * scores[-1]  # Eq. 11
        graphs.append(torch.stack([torch.stack(row) for row in a]))
    if model.config.init == "identity":
        f = f + encoded.logits[0, 0]
    last = encoded.hidden_states[-1][0]
    return {"f": f, "s": scores, "h": vectors, "A": graphs, "E": last, "segments": segments}


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return dot(x, y) / (dot(x, x).sqrt() * dot(y, y).sqrt())


def query_document_cosine(pair: dict) -> Tensor:
    query = [e for e, segment in zip(pair["E"], pair["segments"], strict=True) if segment == 0]
    document = [e for e, segment in zip(pair["E"], pair["segments"], strict=True) if segment == 1]
    return sum(cosine(e_q, e_d) for e_q in query for e_d in document) / (len(query) * len(document))


def loss_of_query(loss: LGReLoss, pairs: list[dict], y: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """L_rank, C_point and C_pair of one query; the distances are 0 unless they are part of the loss."""
    positive = [pair for pair, label in zip(pairs, y, strict=True) if label]
    negative = [pair for pair, label in zip(pairs, y, strict=True) if not label]
    rank = point = pair_distance = torch.zeros((), dtype=torch.float64)
    for d in positive:
        for other in negative:
            if loss.ranking == "hinge":
                rank = rank + max(torch.zeros(()), 1 - d["f"] + other["f"])  # Eq. 15
            else:
                p = softmax([d["f"], other["f"]])
                rank = rank + 1 - p[0] + p[1]
            cosines = cosine(d["E"][0], other["E"][0]) + cosine(
                d["h"][-1], other["h"][-1]
            )  # Eq. 12
            pair_distance = pair_distance + (2 + cosines) / 2
    for pair, label in zip(pairs, y, strict=True):
        point = point + 1 + (1 - 2 * label) * query_document_cosine(pair)  # Eq. 13
    number = max(1, len(positive) * len(negative))
    return rank / number, point / len(pairs), pair_distance / number


def total_loss(loss: LGReLoss, queries: list[tuple[list[dict], list[int]]]) -> Tensor:
    """Eq. 14 and the sum of both tasks, averaged over queries (those with pairs, where a term needs pairs)."""
    parts = [loss_of_query(loss, pairs, y) for pairs, y in queries]
    paired = [part for part, (_, y) in zip(parts, queries, strict=True) if 0 < sum(y) < len(y)]
    rank = sum(part[0] for part in paired) / len(paired)
    point = sum(part[1] for part in parts) / len(parts)
    pair = sum(part[2] for part in paired) / len(paired)
    total = rank
    for distance, kinds in ((point, ("point", "triangle")), (pair, ("pair", "triangle"))):
        if loss.distance in kinds:
            total = total + loss.weight * distance
    return total
