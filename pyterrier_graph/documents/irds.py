"""Parts of ir_datasets datasets that both collections share: an iterator over documents, and a look-up of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ir_datasets.indices.base import Docstore


class DocsIter:
    """An iterator over documents, of which ir_datasets and PyTerrier take slices, with bounds from the start."""

    def __init__(self, documents: Iterator[Any]) -> None:
        self._documents = documents

    def __iter__(self) -> Iterator[Any]:
        return self._documents

    def __next__(self) -> Any:
        return next(self._documents)

    def __getitem__(self, part: slice) -> DocsIter:
        return DocsIter(islice(self._documents, part.start, part.stop, part.step))


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
