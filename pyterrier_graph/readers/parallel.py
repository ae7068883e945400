"""Calls of a function, in processes; the results come in the order of the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

Item = TypeVar("Item")
Out = TypeVar("Out")

FEW = 200  # items; fewer take less time than processes need to start


def in_order(
    function: Callable[[Item], Out], items: Sequence[Item], workers: int | None, lost: Callable[[Item], Out]
) -> Iterator[Out]:
    """Yields ``function(item)`` for each item.

    Args:
        function: What is called; other processes can import it.
        items: Its arguments.
        workers: Number of processes. 1 is this process; None are all cores, or this process for a few items.
        lost: What stands for the result of an item with which its process dies.
    """
    import joblib
    from joblib.externals.loky.process_executor import BrokenProcessPool

    workers = workers or (joblib.cpu_count() if len(items) >= FEW else 1)
    if workers == 1:
        yield from map(function, items)
        return
    call = joblib.delayed(function)
    done = 0
    while done < len(items):
        try:
            with closing(
                joblib.Parallel(workers, backend="loky", return_as="generator")(map(call, items[done:]))
            ) as results:
                for result in results:
                    done += 1
                    yield result
        except BrokenProcessPool:  # one of the next items; this one is tried alone
            try:
                (result,) = joblib.Parallel(2, backend="loky")([call(items[done])])
            except BrokenProcessPool:
                result = lost(items[done])
            done += 1
            yield result
