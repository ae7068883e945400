"""Documents, queries and judgments of ir_datasets, made of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQrel, GenericQuery
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS, Docstore
from more_itertools import islice_extended

Lookup = Callable[[str], Any]  # a document by its id; raises KeyError


class LookedUpDocs(Docstore):
    """Looks documents up by their ids with a function, which raises KeyError for ids to skip."""

    def __init__(self, document: Lookup, doc_cls: type, options: Any) -> None:
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


class Docs(BaseDocs):
    """Documents of a class: an iterator, a look-up by id, their number if known, and their language."""

    def __init__(
        self,
        kind: type,
        documents: Callable[[], Iterator[Any]],
        lookup: Callable[[], Lookup],
        count: Callable[[], int | None] = lambda: None,
        language: str | None = None,
    ) -> None:
        self._kind = kind
        self._documents = documents
        self._lookup = lookup
        self.docs_count = count
        self.docs_cls = lambda: kind
        self.docs_lang = lambda: language

    def docs_iter(self) -> islice_extended:
        """Iterates over all documents, or over a slice such as ``docs_iter()[10:20]``."""
        return islice_extended(self._documents())

    def docs_store(self, options: Any = DEFAULT_DOCSTORE_OPTIONS) -> LookedUpDocs:
        """Looks documents up."""
        return LookedUpDocs(self._lookup(), self._kind, options)


class Queries(BaseQueries):
    """Queries of a class in a language."""

    def __init__(
        self, queries: Callable[[], Iterator[Any]], language: str, kind: type = GenericQuery
    ) -> None:
        self.queries_iter = queries
        self.queries_lang = lambda: language
        self.queries_cls = lambda: kind


class Qrels(BaseQrels):
    """Judgments of a class with the meaning of their grades."""

    def __init__(
        self, qrels: Callable[[], Iterator[Any]], grades: dict[int, str], kind: type = GenericQrel
    ) -> None:
        self.qrels_iter = qrels
        self.qrels_defs = lambda: grades
        self.qrels_cls = lambda: kind
