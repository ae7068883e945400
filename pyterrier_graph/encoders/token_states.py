"""Token matrices of many nodes, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenStates:
    """The token matrices ``h_i`` of several nodes, one below the other.

    Texts differ in length by an order of magnitude (a title, a paragraph), so padding would multiply the work.

    Attributes:
        values: Token vectors, shape (tokens, d).
        offsets: Node i owns rows ``offsets[i]:offsets[i + 1]``; shape (nodes + 1,), int64.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def pack(cls, matrices: Sequence[Tensor], empty: Tensor) -> TokenStates:
        """Packs matrices of shape (tokens_i, d); ``empty``, of shape (0, d), is what packing nothing gives."""
        lengths = torch.tensor([len(matrix) for matrix in matrices], dtype=torch.long, device=empty.device)
        return cls(torch.cat([empty, *matrices]), offsets_of(lengths))

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
    def owner(self) -> Tensor:
        """The node that each token belongs to, shape (tokens,)."""
        return torch.repeat_interleave(self.lengths)

    @property
    def position(self) -> Tensor:
        """The position of each token in its node, shape (tokens,)."""
        return torch.arange(len(self.values), device=self.values.device) - self.offsets[:-1][self.owner]

    def select(self, nodes: Tensor) -> TokenStates:
        """The matrices of some nodes, in the order given; a node may be asked for several times."""
        offsets, rows = ranges(self.offsets[nodes], self.lengths[nodes])
        return TokenStates(self.values[rows], offsets)

    def append(self, rows: Tensor) -> TokenStates:
        """The same rows, of shape (n, d), after those of every node."""
        added = len(rows)
        offsets = self.offsets + added * torch.arange(len(self.offsets), device=self.offsets.device)
        values = self.values.new_zeros(len(self.values) + added * len(self), self.values.shape[1])
        own = torch.arange(len(self.values), device=self.values.device) + added * self.owner
        new = (offsets[1:, None] - added + torch.arange(added, device=offsets.device)).flatten()
        values = values.index_put((own,), self.values).index_put((new,), rows.to(values.dtype).repeat(len(self), 1))
        return TokenStates(values, offsets)

    def with_values(self, values: Tensor) -> TokenStates:
        """Other vectors for the same tokens."""
        return TokenStates(values, self.offsets)

    def to(self, *args: Any, **kwargs: Any) -> TokenStates:
        """As ``Tensor.to``; a dtype applies to the vectors alone."""
        values = self.values.to(*args, **kwargs)
        return TokenStates(values, self.offsets.to(values.device))


def offsets_of(lengths: Tensor) -> Tensor:
    """Cumulative sum with a leading zero, shape (n + 1,)."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def ranges(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenates ``start, start + 1, ... start + length - 1`` of several ranges.

    Returns:
        Offsets of the ranges, shape (n + 1,), and the numbers, shape (lengths.sum(),).
    """
    offsets = offsets_of(lengths)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    return offsets, torch.arange(len(shift), device=starts.device) + shift
