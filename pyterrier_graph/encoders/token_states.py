"""Token vectors of many nodes, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyterrier_graph.graphs.csr import offsets, ranges


@dataclass(frozen=True)
class TokenStates:
    """The token matrices ``h_i`` of several nodes, one below the other.

    Attributes:
        values: Token vectors, shape (tokens, d).
        offsets: The tokens of node i are the rows ``offsets[i]:offsets[i + 1]``; shape (nodes + 1,), int64.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def pack(cls, matrices: Sequence[Tensor], empty: Tensor) -> TokenStates:
        """Packs matrices of shape (tokens_i, d). The result for no matrices is ``empty``, of shape (0, d)."""
        lengths = torch.tensor([len(matrix) for matrix in matrices], dtype=torch.long, device=empty.device)
        return cls(torch.cat([empty, *matrices]), offsets(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, node: int) -> Tensor:
        """The matrix of one node, shape (tokens_i, d)."""
        return self.values[int(self.offsets[node]) : int(self.offsets[node + 1])]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens per node, shape (nodes,)."""
        return self.offsets.diff()

    @property
    def row_index(self) -> Tensor:
        """The node of each token, shape (tokens,)."""
        return torch.repeat_interleave(self.lengths)

    @property
    def position(self) -> Tensor:
        """The position of each token in its node, shape (tokens,)."""
        return torch.arange(len(self.values), device=self.values.device) - self.offsets[:-1][self.row_index]

    def select(self, nodes: Tensor) -> TokenStates:
        """The matrices of some nodes, in the order given; a node may be given several times."""
        bounds, rows = ranges(self.offsets[nodes], self.lengths[nodes])
        return TokenStates(self.values[rows], bounds)

    def keep(self, tokens: Tensor) -> TokenStates:
        """The token vectors that are marked, bool of shape (tokens,); a node may lose all of its own."""
        lengths = torch.bincount(self.row_index[tokens], minlength=len(self))
        return TokenStates(self.values[tokens], offsets(lengths))

    def append(self, rows: Tensor) -> TokenStates:
        """The same rows, of shape (n, d), after those of every node, or other rows for each, of shape (nodes, n, d)."""
        added = rows.shape[-2]
        bounds = self.offsets + added * torch.arange(len(self.offsets), device=self.offsets.device)
        new = (bounds[1:, None] - added + torch.arange(added, device=bounds.device)).flatten()
        own = torch.arange(len(self.values), device=self.values.device) + added * self.row_index
        values = self.values.new_empty(len(self.values) + added * len(self), self.values.shape[1])
        values.index_copy_(0, own, self.values)
        values.index_copy_(0, new, rows.to(values.dtype).expand(len(self), -1, -1).flatten(0, 1))
        return TokenStates(values, bounds)

    def with_values(self, values: Tensor) -> TokenStates:
        """Other vectors for the same tokens."""
        return TokenStates(values, self.offsets)

    def to(self, *args: Any, **kwargs: Any) -> TokenStates:
        """As ``Tensor.to``; a dtype is only for the vectors."""
        values = self.values.to(*args, **kwargs)
        return TokenStates(values, self.offsets.to(values.device))
