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
# summed shares
SPLITS = {"train": 0.7, "dev": 0.8, "test": 1.0}
SEE_ALSO_SPLITS = {"dev": 0.25, "test": 1.0}
GRADES = {
    2: "description or notes of a relevant document",
    1: "another passage of a relevant document",
}


class NumpydocDoc(NamedTuple):
    """A docstring as a document of ir_datasets.

    ``doc_id`` and ``title`` are the object's public qualified name, ``text`` has the passages, with blank lines between
    them. For the other fields see :class:`~pyterrier_graph.StructuredDocument`.
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


@functools.cache
def datasets() -> dict[str, Dataset]:
    """Returns the datasets by their ir_datasets ids. The packages are read when documents or queries are needed."""
    made = {}
    for corpus in PACKAGES:
        # one object for all splits: so ir_datasets knows that they share their documents
        docs = _docs(corpus)
        made[f"{DATASET_ID}/{corpus}"] = Dataset(docs)
        see_also = [f"see-also/{split}" for split in SEE_ALSO_SPLITS]
        for split in [*SPLITS, *see_also]:
            queries = Queries(functools.partial(_queries, corpus, split), "en")
            qrels = Qrels(functools.partial(_qrels, corpus, split), GRADES)
            made[f"{DATASET_ID}/{corpus}/{split}"] = Dataset(docs, queries, qrels)
    return made


@functools.cache
def load_corpus(name: str) -> DocstringCorpus:
    """Returns the corpus ``'numpy'`` or ``'all'``, which is made once per process."""
    return build_corpus(PACKAGES[name])


def split_of(name: str, splits: Mapping[str, float], salt: str = "") -> str:
    """Returns the split of an object, computed from the SHA-256 of its name only. Another ``salt`` gives other splits.

    ``splits`` are the names of the splits with their shares, summed up to each split: the last one is 1.
    """
    digest = hashlib.sha256((salt + name).encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return next(split for split, bound in splits.items() if position < bound)


@functools.cache
def _records(name: str) -> dict[str, NumpydocDoc]:
    records = {}
    for docno, document in load_corpus(name).documents.items():
        records[docno] = NumpydocDoc(
            docno,
            document.title,
            "\n\n".join(document.passages()),
            document.nodes,
            document.links,
            document.references,
            document.codes,
        )
    return records


def _docs(corpus: str) -> Docs:
    records = functools.partial(_records, corpus)
    return Docs(
        NumpydocDoc,
        documents=lambda: iter(records().values()),
        lookup=lambda: records().__getitem__,
        count=lambda: len(records()),
        language="en",
    )


def _split(corpus: str, split: str) -> Iterator[DocstringQuery]:
    """Yields the queries of a split with their relevant documents."""
    docstrings = load_corpus(corpus)
    salt, _, name = split.rpartition("/")
    queries = docstrings.summaries
    splits = SPLITS
    if salt:
        queries = docstrings.see_also
        splits = SEE_ALSO_SPLITS
    for query in queries:
        if split_of(query.relevant[0], splits, salt) == name:
            yield query


def _queries(corpus: str, split: str) -> Iterator[GenericQuery]:
    for query in _split(corpus, split):
        yield GenericQuery(query.query_id, query.text)


def _qrels(corpus: str, split: str) -> Iterator[GenericQrel]:
    documents = load_corpus(corpus).documents
    for query in _split(corpus, split):
        for docno in query.relevant:
            for number, grade in enumerate(_grades(documents[docno])):
                yield GenericQrel(query.query_id, passage_id(docno, number), grade)


def _grades(document: StructuredDocument) -> Iterator[int]:
    for node in document.nodes:
        if node.kind == PASSAGE:
            is_notes = document.nodes[node.parent].text == "Notes"
            is_in_root = node.parent == 0
            yield 2 if is_notes or is_in_root else 1
