"""A value that means pass over."""

from __future__ import annotations

import math


class LeftOut(float):
    """The value of a measure for a topic where it has none: not a number, but sums and means pass over it.

    ir_measures and PyTerrier want a value of every measure for every topic of a call, add them up, and divide by the
    number of topics. So a sum keeps count of what it passed over, and its quotient makes up for it.

    Args:
        total: Sum of the other values.
        topics: How many values were passed over.
    """

    total: float
    topics: int

    def __new__(cls, total: float = 0.0, topics: int = 1) -> LeftOut:
        """See the class."""
        self = super().__new__(cls, math.nan)
        self.total, self.topics = total, topics
        return self

    def __add__(self, other: float) -> LeftOut:
        if isinstance(other, LeftOut):
            return LeftOut(self.total + other.total, self.topics + other.topics)
        return LeftOut(self.total + other, self.topics)

    __radd__ = __add__

    def __truediv__(self, count: float) -> float:
        return self.total / (count - self.topics) if count != self.topics else math.nan
