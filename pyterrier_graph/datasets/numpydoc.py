"""The embedded corpus: docstrings of installed scientific packages as structured documents, with queries.

The ir_datasets ids are ``pyterrier-graph/numpydoc/numpy`` (numpy alone) and ``pyterrier-graph/numpydoc/all`` (numpy,
scipy, pandas, scikit-learn and networkx), each with ``/train``, ``/dev``, ``/test``, ``/see-also/dev`` and
``/see-also/test``. They need nothing but these packages and numpydoc, which the extra ``[demo]`` installs.

**Documents:** one for every documented public object. Its root section is the object; the description lies directly
under it, then come the sections of the docstring with their passages. Internal links lead from a passage to the
parameter, section or bibliographic reference that it mentions, external references to the objects of "See Also".

**Queries:** the summary lines, each with all documents that share it, split into train, dev and test by a hash of the
first one's name, so that an object stays in its split when its package changes. The ``see-also`` sets hold what the
"See Also" lists of *other* objects say about an object: paraphrases of the summary lines of all splits, which can be
training queries beside them; they have a division of their own, by the object as well.
No document holds a query: summary lines and "See Also" sections are left out, and verbatim copies wherever they stand.

**Relevance,** of passages: 2 for the description and the notes of a relevant document, 1 for its other passages.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQrel, GenericQuery
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS, Docstore
from ir_datasets.util import apply_sub_slice

from pyterrier_graph.datasets.docstring_corpus import DocstringCorpus, DocstringQuery, build_corpus, sha256
from pyterrier_graph.documents import PASSAGE, Link, Node, Reference, StructuredDocument, passage_id

DATASET_ID = "pyterrier-graph/numpydoc"
PACKAGES = {"numpy": ("numpy",), "all": ("numpy", "scipy", "pandas", "sklearn", "networkx")}
SPLITS = {"train": 0.7, "dev": 0.1, "test": 0.2}
SEE_ALSO_SPLITS = {"dev": 0.25, "test": 0.75}
GRADES = {2: "description or notes of a relevant document", 1: "another passage of a relevant document"}

_logger = logging.getLogger(__name__)


class NumpydocDoc(NamedTuple):
    """A docstring as ir_datasets hands it out.

    Attributes:
        doc_id: The object's public qualified name.
        title: The same.
        text: The passages, with blank lines between them.
        nodes: This field and those after it: see :class:`pyterrier_graph.documents.StructuredDocument`.
    """

    doc_id: str
    title: str
    text: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    references: tuple[Reference, ...]
    codes: tuple[str, ...]

    def default_text(self) -> str:
        """Title and text."""
        return f"{self.title} {self.text}"


def dataset_names() -> list[str]:
    """The names that follow ``pyterrier-graph/numpydoc/`` in the ir_datasets ids."""
    parts = ["", *(f"/{split}" for split in SPLITS), *(f"/see-also/{split}" for split in SEE_ALSO_SPLITS)]
    return [name + part for name in PACKAGES for part in parts]


def dataset(name: str) -> Dataset:
    """An ir_datasets dataset; reading the packages waits until documents, queries or qrels are asked for.

    Args:
        name: One of :func:`dataset_names`.

    Raises:
        KeyError: If there is no dataset of that name.
    """
    if name not in dataset_names():
        raise KeyError(f"there is no dataset {DATASET_ID}/{name}, the names are {', '.join(dataset_names())}")
    corpus, _, split = name.partition("/")
    if not split:
        return Dataset(_docs(corpus))
    queries = _Queries(corpus, split)
    return Dataset(_docs(corpus), queries, _Qrels(corpus, queries))


@functools.cache
def load_corpus(name: str) -> DocstringCorpus:
    """The corpus ``'numpy'`` or ``'all'``, made once in a process; its ``counts`` say what was folded and left out.

    Raises:
        KeyError: If there is no corpus of that name.
        ModuleNotFoundError: If one of the packages that it is made from, or numpydoc, is not installed.
    """
    if name not in PACKAGES:
        raise KeyError(f"there is no corpus {name!r}, only {', '.join(map(repr, PACKAGES))}")
    try:
        corpus = build_corpus(PACKAGES[name])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{DATASET_ID}/{name} is made by the package numpydoc from the sources of {', '.join(PACKAGES[name])}; "
            f"{error.name!r} is not installed: pip install 'pyterrier_graph[demo]'",
            name=error.name,
        ) from error
    _logger.info("%s/%s: %s", DATASET_ID, name, corpus.counts)
    return corpus


def split_of(name: str, splits: Mapping[str, float], salt: str = "") -> str:
    """The split that an object belongs to, by the SHA-256 of its name alone.

    Args:
        name: The object's name.
        splits: The names of the splits with their shares, which add up to 1.
        salt: Put before the name, for another division of the same names.
    """
    place = int.from_bytes(sha256(salt + name)[:8], "big") / 2**64
    bounds = itertools.accumulate(splits.values())
    return next((split for split, bound in zip(splits, bounds, strict=True) if place < bound), [*splits][-1])


def _record(document: StructuredDocument) -> NumpydocDoc:
    return NumpydocDoc(
        document.docno,
        document.title,
        "\n\n".join(document.passages()),
        document.nodes,
        document.links,
        document.references,
        document.codes,
    )


class _DocsIter:
    """Iterates over documents; a slice of it iterates over that part of them."""

    def __init__(self, documents: Sequence[StructuredDocument], part: slice) -> None:
        self._documents = documents
        self._part = part
        self._records = map(_record, itertools.islice(documents, part.start, part.stop, part.step))

    def __iter__(self) -> Iterator[NumpydocDoc]:
        return self

    def __next__(self) -> NumpydocDoc:
        return next(self._records)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _DocsIter(self._documents, apply_sub_slice(self._part, key))
        return _record(self._documents[self._part][key])


class _Docstore(Docstore):
    def __init__(self, documents: Mapping[str, StructuredDocument], options: Any) -> None:
        super().__init__(NumpydocDoc, options=options)
        self._documents = documents

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[NumpydocDoc]:
        return (_record(self._documents[doc_id]) for doc_id in doc_ids if doc_id in self._documents)


class _Docs(BaseDocs):
    def __init__(self, name: str) -> None:
        self._name = name

    def docs_iter(self) -> _DocsIter:
        documents = list(load_corpus(self._name).documents.values())
        return _DocsIter(documents, slice(0, len(documents), 1))

    def docs_store(self, options: Any = DEFAULT_DOCSTORE_OPTIONS) -> Docstore:
        return _Docstore(load_corpus(self._name).documents, options)

    def docs_count(self) -> int:
        return len(load_corpus(self._name).documents)

    def docs_cls(self) -> type[NumpydocDoc]:
        return NumpydocDoc

    def docs_namespace(self) -> str:
        return f"{DATASET_ID}/{self._name}"

    def docs_lang(self) -> str:
        return "en"


@functools.cache
def _docs(name: str) -> _Docs:
    return _Docs(name)  # one for all splits: ir_datasets tells by it that they share their documents


class _Queries(BaseQueries):
    def __init__(self, name: str, split: str) -> None:
        self._name = name
        self._kind, _, self._split = split.rpartition("/")

    def with_relevant(self) -> Iterator[DocstringQuery]:
        corpus = load_corpus(self._name)
        queries, splits = (corpus.see_also, SEE_ALSO_SPLITS) if self._kind else (corpus.summaries, SPLITS)
        return (query for query in queries if split_of(query.relevant[0], splits, self._kind) == self._split)

    def queries_iter(self) -> Iterator[GenericQuery]:
        return (GenericQuery(query.query_id, query.text) for query in self.with_relevant())

    def queries_namespace(self) -> str:
        return f"{DATASET_ID}/{self._name}"

    def queries_lang(self) -> str:
        return "en"


class _Qrels(BaseQrels):
    def __init__(self, name: str, queries: _Queries) -> None:
        self._name = name
        self._queries = queries

    def qrels_iter(self) -> Iterator[GenericQrel]:
        documents = load_corpus(self._name).documents
        for query in self._queries.with_relevant():
            for docno in query.relevant:
                for number, grade in enumerate(_grades(documents[docno])):
                    yield GenericQrel(query.query_id, passage_id(docno, number), grade)

    def qrels_defs(self) -> dict[int, str]:
        return GRADES


def _grades(document: StructuredDocument) -> Iterator[int]:
    for node in document.nodes:
        if node.kind == PASSAGE:
            yield 2 if node.parent == document.root or document.nodes[node.parent].text == "Notes" else 1
