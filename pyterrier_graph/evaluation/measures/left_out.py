"""The value of a topic that is left out of means."""

from __future__ import annotations

import math


class LeftOut(float):
    """NaN that sums and means ignore: the value of a measure for a topic without relevant documents.

    ir_measures and PyTerrier add up the values of all topics and divide by the number of topics. A sum of LeftOut
    values counts the topics that it ignores, and a division subtracts their number from the divisor.

    Args:
        total: Sum of the other values.
        topics: Number of ignored values.
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
