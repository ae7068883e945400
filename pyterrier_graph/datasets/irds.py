"""What both collections need to be ir_datasets datasets: an iterator over documents, and a look-up of documents."""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ir_datasets.indices.base import Docstore


def check_name(name: str, names: Iterable[str]) -> None:
    """Raises KeyError unless there is a dataset of that name."""
    if name not in names:
        raise KeyError(f"there is no dataset {name!r}; there are {', '.join(names)}")


class DocsIter:
    """An iterator over documents, which can be sliced before it is used.

    ``read`` starts reading all documents, in a fixed order, of which ``part`` are yielded. Without the ``count`` of the
    documents, bounds that count from the end or are fractions are an error.
    """

    def __init__(self, read: Callable[[], Iterable[Any]], count: int | None = None, part: range | None = None) -> None:
        self._read = read
        self._count = count
        self._part = range(sys.maxsize if count is None else count) if part is None else part
        self._documents = itertools.islice(read(), self._part.start, self._part.stop, self._part.step)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._documents)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            bounds = slice(self._bound(key.start), self._bound(key.stop), key.step)
            return DocsIter(self._read, self._count, self._part[bounds])
        place = self._part[self._bound(key)]
        for document in itertools.islice(self._read(), place, place + 1):
            return document
        raise IndexError(f"there is no document at position {key}")

    def _bound(self, bound: Any) -> Any:
        if self._count is None and bound is not None and (bound < 0 or isinstance(bound, float)):
            raise ValueError(f"the number of documents is not known, so {bound} is no position: count from the start")
        return math.floor(bound * len(self._part)) if isinstance(bound, float) else bound


class LookedUpDocs(Docstore):
    """Looks documents up by their ids. The function ``document`` raises KeyError for ids that are passed over."""

    def __init__(self, document: Callable[[str], Any], doc_cls: type, options: Any) -> None:
        super().__init__(doc_cls, options=options)
        self._document = document

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[Any]:
        """Yields the documents, in the order of the ids."""
        for doc_id in doc_ids:
            try:
                document = self._document(doc_id)
            except KeyError:
                continue
            yield document
