"""A corpus that needs no download: docstrings of installed scientific packages, with queries and judgments.

The ir_datasets ids are ``pyterrier-graph/numpydoc/numpy`` (numpy alone) and ``pyterrier-graph/numpydoc/all`` (numpy,
scipy, pandas, scikit-learn and networkx), each with ``/train``, ``/dev``, ``/test``, ``/see-also/dev`` and
``/see-also/test``. The extra ``[demo]`` installs these packages and numpydoc.

**Documents:** Each documented public object is a document. Its root section is the object. The description lies
directly under the root; the sections of the docstring with their passages follow. Internal links lead from a passage
to the parameter, section or bibliographic reference that the passage mentions. External references lead to the objects
of "See Also".

**Queries:** The summary lines are queries. All documents that share a summary line are relevant to it. A hash of the
first document's name decides whether a query is in train, dev or test, so that an object stays in its split when its
package changes. The queries of the ``see-also`` sets are descriptions of an object in "See Also" sections of *other*
objects: paraphrases of the summary lines of all splits, which can be their training queries. A second hash divides
these sets into dev and test.
No document contains a query: summary lines, "See Also" sections and verbatim copies of queries are removed.

**Judgments** are of passages: 2 for the description and the notes of a relevant document, 1 for its other passages.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import GenericQrel, GenericQuery

from pyterrier_graph.datasets.docstring_corpus import DocstringCorpus, DocstringQuery, build_corpus
from pyterrier_graph.documents.document import (
    PASSAGE,
    Link,
    Node,
    Reference,
    StructuredDocument,
    passage_id,
)
from pyterrier_graph.documents.irds import Docs, Qrels, Queries

DATASET_ID = "pyterrier-graph/numpydoc"
PACKAGES = {"numpy": ("numpy",), "all": ("numpy", "scipy", "pandas", "sklearn", "networkx")}
SPLITS = {"train": 0.7, "dev": 0.1, "test": 0.2}
SEE_ALSO_SPLITS = {"dev": 0.25, "test": 0.75}
GRADES = {
    2: "description or notes of a relevant document",
    1: "another passage of a relevant document",
}


class NumpydocDoc(NamedTuple):
    """A docstring as a document of ir_datasets.

    ``doc_id`` and ``title`` are the object's public qualified name, ``text`` has the passages, with blank lines between
    them. The other fields are those of :class:`~pyterrier_graph.StructuredDocument`.
    """

    doc_id: str
    title: str
    text: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    references: tuple[Reference, ...]
    codes: tuple[str, ...]

    def default_text(self) -> str:
        """Returns title and text."""
        return f"{self.title} {self.text}"


def dataset_names() -> list[str]:
    """Returns the names that follow ``pyterrier-graph/numpydoc/`` in the ids of ir_datasets."""
    names = []
    for corpus in PACKAGES:
        names.append(corpus)
        names += [f"{corpus}/{split}" for split in SPLITS]
        names += [f"{corpus}/see-also/{split}" for split in SEE_ALSO_SPLITS]
    return names


def dataset(name: str) -> Dataset:
    """Returns a dataset by its name. The packages are read when documents or queries are first needed."""
    if name not in dataset_names():
        raise KeyError(
            f"there is no dataset {DATASET_ID}/{name}; the names are {', '.join(dataset_names())}"
        )
    corpus, _, split = name.partition("/")
    if not split:
        return Dataset(_docs(corpus))
    queries = Queries(
        lambda: (GenericQuery(query.query_id, query.text) for query in _queries(corpus, split)),
        "en",
    )
    return Dataset(_docs(corpus), queries, Qrels(lambda: _qrels(corpus, split), GRADES))


@functools.cache
def load_corpus(name: str) -> DocstringCorpus:
    """Returns the corpus ``'numpy'`` or ``'all'``, which is made once per process."""
    try:
        return build_corpus(PACKAGES[name])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{DATASET_ID}/{name} needs the packages numpydoc, {', '.join(PACKAGES[name])}; "
            f"{error.name!r} is not installed: pip install 'pyterrier_graph[demo]'",
            name=error.name,
        ) from error


def split_of(name: str, splits: Mapping[str, float], salt: str = "") -> str:
    """Returns the split of an object, computed from the SHA-256 of its name only. Another ``salt`` gives other splits.

    ``splits`` are the names of the splits with their shares, which add up to 1.
    """
    digest = hashlib.sha256((salt + name).encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    bounds = itertools.accumulate(splits.values())
    for split, bound in zip(splits, bounds, strict=True):
        if position < bound:
            return split
    return [*splits][-1]  # of shares that are rounded


@functools.cache
def _records(name: str) -> dict[str, NumpydocDoc]:
    return {
        document.docno: NumpydocDoc(
            document.docno,
            document.title,
            "\n\n".join(document.passages()),
            document.nodes,
            document.links,
            document.references,
            document.codes,
        )
        for document in load_corpus(name).documents.values()
    }


@functools.cache  # one object for all splits: so ir_datasets knows that they share their documents
def _docs(name: str) -> Docs:
    records = functools.partial(_records, name)
    documents, lookup = lambda: iter(records().values()), lambda: records().__getitem__
    return Docs(NumpydocDoc, documents, lookup, lambda: len(records()), "en")


def _queries(name: str, split: str) -> Iterator[DocstringQuery]:
    """Returns the queries of a split with their relevant documents."""
    corpus = load_corpus(name)
    salt, _, split = split.rpartition("/")
    queries, splits = (corpus.see_also, SEE_ALSO_SPLITS) if salt else (corpus.summaries, SPLITS)
    return (query for query in queries if split_of(query.relevant[0], splits, salt) == split)


def _qrels(name: str, split: str) -> Iterator[GenericQrel]:
    documents = load_corpus(name).documents
    for query in _queries(name, split):
        for docno in query.relevant:
            for number, grade in enumerate(_grades(documents[docno])):
                yield GenericQrel(query.query_id, passage_id(docno, number), grade)


def _grades(document: StructuredDocument) -> Iterator[int]:
    for node in document.nodes:
        if node.kind == PASSAGE:
            is_notes = document.nodes[node.parent].text == "Notes"
            is_in_root = node.parent == 0
            yield 2 if is_notes or is_in_root else 1
