"""Ren et al. 2021, Eq. 1 and 3-6, word by word: one query, one passage, one dimension at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def s(one: Tensor, other: Tensor) -> Tensor:
    """Eq. 1."""
    return sum((a * b for a, b in zip(one, other, strict=True)), torch.zeros((), dtype=one.dtype))


def negative_log_likelihood(right: Tensor, wrong: list[Tensor]) -> Tensor:
    return -torch.log(
        torch.exp(right) / (torch.exp(right) + sum(torch.exp(score) for score in wrong))
    )


def mean(losses: list[Tensor]) -> Tensor:
    return sum(losses, torch.zeros((), dtype=losses[0].dtype)) / len(losses)


def others(vectors: Tensor, i: int) -> list[Tensor]:
    return [vector for j, vector in enumerate(vectors) if j != i]


def query_centric(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Eq. 3; the easy negatives of a query are the others' positives."""
    losses = []
    for i, (q, p) in enumerate(zip(queries, positives, strict=True)):
        losses.append(
            negative_log_likelihood(s(q, p), [s(q, n) for n in [*others(positives, i), *negatives]])
        )
    return mean(losses)


def passage_centric(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Eq. 5, as in the authors' code with the other queries and the hard negatives."""
    losses = []
    for i, (q, p) in enumerate(zip(queries, positives, strict=True)):
        wrong = [*others(queries, i), *negatives]
        losses.append(negative_log_likelihood(s(p, q), [s(p, n) for n in wrong]))
    return mean(losses)


def combined(queries: Tensor, positives: Tensor, negatives: Tensor, alpha: float) -> Tensor:
    """Eq. 6."""
    query = query_centric(queries, positives, negatives)
    return (1 - alpha) * query + alpha * passage_centric(queries, positives, negatives)
