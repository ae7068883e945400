"""Late interaction against loops, and against sentence-transformers' own."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.graph_maxsim.graph_reranker import (
    graph_maxima,
    maxsim,
    neighbor_maxima,
    token_maxima,
)

DIMENSION = 4
INFINITY = float("inf")
SEEDS = st.integers(0, 10_000)


def vectors(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, DIMENSION, generator=generator), dim=1)


def passages_of(lengths: list[int], seed: int) -> TokenStates:
    return TokenStates.pack(
        [vectors(length, seed + place + 1) for place, length in enumerate(lengths)],
        torch.zeros(0, DIMENSION),
    )


@given(st.integers(1, 4), st.lists(st.integers(0, 4), max_size=5), SEEDS)
def test_maxima_by_loops(query_tokens: int, lengths: list[int], seed: int) -> None:
    query, passages = vectors(query_tokens, seed), passages_of(lengths, seed)
    slow = torch.tensor(
        [
            [max((float(q @ p) for p in passages[node]), default=0.0) for q in query]
            for node in range(len(passages))
        ]
    ).reshape(len(passages), query_tokens)
    torch.testing.assert_close(token_maxima(query, passages), slow, atol=1e-6, rtol=0)
    torch.testing.assert_close(maxsim(query, passages), slow.sum(1), atol=1e-5, rtol=0)


@given(st.data(), SEEDS)
def test_neighbor_maxima_by_loops(data: st.DataObject, seed: int) -> None:
    nodes, count, tokens = data.draw(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
    )
    edge = st.tuples(st.integers(0, count - 1), st.integers(0, nodes - 1))
    edges = data.draw(st.lists(edge, max_size=8))
    maxima = torch.randn(nodes, tokens, generator=torch.Generator().manual_seed(seed))
    targets, neighbors = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    slow = [
        [
            max((float(maxima[j, q]) for i, j in edges if i == target), default=-INFINITY)
            for q in range(tokens)
        ]
        for target in range(count)
    ]
    lengths = torch.ones(nodes, dtype=torch.long)
    fast = neighbor_maxima(maxima, lengths, [(targets, neighbors)], count)
    torch.testing.assert_close(fast[:, 0], torch.tensor(slow))


@given(st.data(), SEEDS)
def test_graph_maxima_by_loops(data: st.DataObject, seed: int) -> None:
    passages, relations, tokens = data.draw(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
    )
    columns = data.draw(
        st.sampled_from([1, tokens])
    )  # a weight per relation, or also per query token
    size = relations * columns
    drawn = data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=size, max_size=size))
    weights = torch.tensor(drawn).reshape(relations, columns)
    generator = torch.Generator().manual_seed(seed)
    own = torch.rand(passages, tokens, generator=generator) * 2 - 1
    context = torch.rand(passages, relations, tokens, generator=generator) * 2 - 1
    context[torch.rand(passages, relations, generator=generator) < 0.3] = -INFINITY
    slow = []
    for passage in range(passages):
        score = 0.0
        for q in range(tokens):
            matches = [float(own[passage, q])]
            for relation, row in enumerate(weights.expand(relations, tokens).tolist()):
                weight, there = row[q], float(context[passage, relation, q])
                if weight and there != -INFINITY:
                    matches.append(weight * there)
            score += max(matches)
        slow.append(score)
    fast = graph_maxima(own, context, weights).sum(-1)
    torch.testing.assert_close(fast, torch.tensor(slow).reshape(passages), atol=1e-6, rtol=0)


def test_gradients_go_to_the_tokens_that_matched() -> None:
    query = torch.eye(DIMENSION)[:2].requires_grad_()
    values = torch.tensor([[0.9, 0.1, 0, 0], [0.2, 0.8, 0, 0], [0.1, 0.1, 0.9, 0]]).requires_grad_()
    passages = TokenStates(values, torch.tensor([0, 2, 2, 3]))
    assert torch.autograd.gradcheck(
        lambda q, v: maxsim(q, passages.with_values(v)),
        (query.double().detach().requires_grad_(), values.double().detach().requires_grad_()),
    )
    maxsim(query, passages)[0].backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(query.grad, values[:2].detach())
