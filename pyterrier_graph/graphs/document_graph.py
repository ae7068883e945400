"""The graph of a corpus, on disk."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.artifacts import META, kind_of, writing
from pyterrier_graph.checks import WithSignature, check_count
from pyterrier_graph.documents import StructuredDocument
from pyterrier_graph.graphs.array_files import StoredGraph, TextReader, array_file
from pyterrier_graph.graphs.builder import CODES, PASSAGES, build
from pyterrier_graph.graphs.consistency import Bounds, count_of, offsets_to
from pyterrier_graph.graphs.context import Kind, records
from pyterrier_graph.graphs.convert import write_corpus_graph
from pyterrier_graph.graphs.extraction import NODE_TYPES
from pyterrier_graph.graphs.fold import Fold
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.ids import ids_of, numbers_of
from pyterrier_graph.graphs.passage_rows import DocumentOf, check_rows, documents_of_rows
from pyterrier_graph.graphs.passages import GraphTextLoader, Passages
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.readers.records import read_record

DOCUMENTS = "documents: records with 'docno' and 'text', or dataset.get_corpus_iter()"
SIZES = ("documents", "nodes", "passages", "codes")
NODE_ARRAYS = ("node_type", "parent", "document", "roots", "node_offsets", "passage_offsets", "passage_nodes")
NEXT_CALLS = (
    "bm25 >> graph.passages() >> reranker",
    "bm25 >> graph.passages() >> pt.text.get_text(graph)",
)


class DocumentGraph(WithSignature, StoredGraph, HeteroGraph):
    """The graph of a corpus: the sections and passages of its documents and their relations, stored and memory-mapped.

    ::

        graph = DocumentGraph("corpus.graph").index(dataset.get_corpus_iter())
        pipeline = bm25 % 100 >> graph.passages() >> reranker

    Relations and their directions are those of :class:`~pyterrier_graph.graphs.HeteroGraph`.

    Args:
        path: Folder of the graph; it may not exist yet, see :meth:`index`. Nothing is read before it is needed.
    """

    ARTIFACT_TYPE = "passage_graph"
    ARTIFACT_FORMAT = "csr"
    FORMAT_VERSION = 2  # 2: the relation title, and a digest of the files
    NUM_DOCNOS = "documents"

    def __repr__(self) -> str:
        return f"DocumentGraph({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from pyterrier_graph.plots.graph_html import graph_html
        from pyterrier_graph.plots.html import value

        try:
            assert self.meta
            return graph_html(self, repr(self), NEXT_CALLS)
        except FileNotFoundError:
            return value(repr(self), {"documents": "not built yet"}, calls=["graph.index(dataset.get_corpus_iter())"])
        except (OSError, ValueError) as error:
            return value(repr(self), {"not readable": error})

    def index(
        self,
        corpus_iter: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        *,
        document: str | DocumentOf | None = None,
        order: str | None = None,
        passage_words: int = 120,
        read: Callable[[Any], Mapping[str, Any] | StructuredDocument] | None = None,
        overwrite: bool = False,
        verbose: bool = True,
    ) -> Self:
        """Builds the graph.

        Documents are read once; only their docnos stay in memory. References may lead to later documents. References to
        documents or passages that are not in the corpus are left out, and counted in ``unresolved``. The graph appears
        under its path when it is complete: if building fails or is killed, there is no graph, or the one from before.

        Args:
            corpus_iter: Structured documents, or records (or a DataFrame of them) as
                :func:`~pyterrier_graph.read_record` reads them: with ``docno`` and ``nodes`` (``links``,
                ``references``, ``codes``), or with ``docno`` and ``text`` (``title``), which is split into passages, or
                with sections, paragraphs or headings as the datasets of ir_datasets have them.
            document: For a corpus of passages, what document a row belongs to: the name of a field, or a function of
                the row. See :func:`~pyterrier_graph.graphs.passage_rows.documents_of_rows`: passages keep their
                docnos, and the rows of a document must follow one another.
            order: The field that orders the passages of a document, such as ``'position'``; by default the order of the
                rows.
            passage_words: Words per passage of documents whose texts are split.
            read: A function for documents in a format of your own. It gets what ``corpus_iter`` yields, and returns a
                structured document or a record, such as one with ``docno``, ``title`` and ``sections``.
            overwrite: Whether a graph that is at this path already is replaced.
            verbose: Whether to show progress.

        Raises:
            FileExistsError: If there is a graph at its path and ``overwrite`` is False, or something else.
            TypeError: If ``corpus_iter`` are no documents, or ``read`` is no function.
            ValueError: If a document is not as it should be, a docno comes twice, or there is no document.
        """
        check_count("passage_words", passage_words)
        check_rows(document, order)
        if not (read is None or callable(read)):
            raise TypeError(f"read must be a function of what corpus_iter yields, got {read!r:.60}")
        if isinstance(corpus_iter, pd.DataFrame):
            corpus_iter = corpus_iter.astype(object).where(corpus_iter.notna(), None).to_dict("records")
        if isinstance(corpus_iter, str | Mapping) or not isinstance(corpus_iter, Iterable):
            raise TypeError(f"corpus_iter must be {DOCUMENTS}, got {corpus_iter!r:.60}")
        replaced = self._has_graph()
        if replaced and not overwrite:
            message = f"exists already: {self!r} opens it, index(..., overwrite=True) replaces it"
            raise FileExistsError(f"{str(self.path)!r} {message}")
        meta = kind_of(self)
        with writing(self.path, meta, overwrite=replaced) as folder:
            rows = corpus_iter if read is None else map(read, corpus_iter)
            documents = (
                (_structured(record, passage_words) for record in rows)
                if document is None
                else documents_of_rows(rows, document, order)
            )
            meta |= build(folder, documents, verbose=verbose)
            if report := getattr(corpus_iter, "report", None):
                meta["source"] = report
        self.__dict__ = type(self)(self.path).__dict__  # without what it has read of a graph that was there before
        return self

    def fingerprint(self) -> str:
        """A digest of the graph's files; it was computed when they were written."""
        return self.meta["sha256"]

    @cached_property
    def relations(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of all relations, see :attr:`HeteroGraph.relations`."""
        return tuple(self.meta["relations"])

    @cached_property
    def unresolved(self) -> dict[str, int]:  # type: ignore[override]
        """Per relation the number of references to documents or passages that are not in the graph."""
        return self.meta["unresolved"]

    @cached_property
    def code_names(self) -> list[str]:  # type: ignore[override]
        """Names of the documents' codes, by number."""
        names = json.loads(self._open(lambda folder: (folder / CODES).read_text(encoding="utf-8")))
        if not isinstance(names, list) or len(names) != self.meta["codes"]:
            raise ValueError(f"{str(self.path / CODES)!r} is damaged: it should have {self.meta['codes']} names")
        return names

    def summary(self) -> dict[str, Any]:
        """Numbers as those of any graph, and under ``source`` the report of the reader whose documents were indexed."""
        return super().summary() | ({"source": self.meta["source"]} if "source" in self.meta else {})

    def passages(self, *, titles: bool = False) -> Passages:
        """A transformer from documents to their passages: :class:`~pyterrier_graph.graphs.passages.Passages`."""
        return Passages(self, titles=titles)

    def fold(self, relation: str = "structural") -> Fold:
        """A transformer from passages to sections or documents: :class:`~pyterrier_graph.graphs.fold.Fold`."""
        return Fold(self, relation)

    def text_loader(
        self, fields: Sequence[str] | str | Literal["*"] = "*", *, verbose: bool = False
    ) -> GraphTextLoader:
        """What ``pt.text.get_text(graph)`` uses: a :class:`~pyterrier_graph.graphs.passages.GraphTextLoader`."""
        return GraphTextLoader(self, fields, verbose=verbose)

    def get_corpus_iter(
        self,
        kind: Kind = "passages",
        *,
        context: Sequence[str] | str = (),
        query_graph: QueryPassageGraph | None = None,
        fields: bool = False,
        max_context: int = 100,
        verbose: bool = True,
    ) -> Iterator[dict[str, str]]:
        """Records that any index can be built from, with the texts of neighbors as asked for.

        ::

            bm25.index(graph.get_corpus_iter(context=("title", "relevant"), query_graph=query_graph))

        Without ``context``, records have ``docno``, ``title`` and ``text``. For passages, docnos are passage ids, and
        the title is that of all their sections. For documents, texts are all titles and passages but the title.

        With ``context``, records have ``docno`` and ``text``: the texts of the neighbors, then the text of the passage
        or document, each distinct text once, on lines of their own. A passage without neighbors has its own text only.
        The neighbors of a document are those of its nodes. A title or passage of the document itself that is among them
        moves to the context, so no text is there twice.

        With ``fields=True``, ``text`` has the own text only, and each relation of the context has a field, for indexes
        that weight fields (in Terrier ``text_attrs=["text", "title", "relevant"], fields=True`` and BM25F).

        Args:
            kind: ``'passages'`` or ``'documents'``: what a record is.
            context: Relations of this graph, or paths of them (``'title'``, ``'order'``, ``'title/title'``), and
                relations of the query graph (``'relevant'``, ``'retrieved'``), whose queries are a passage's context.
                The relation ``'title'`` leads to the nearest title.
            query_graph: The graph of training queries, for 'relevant' and 'retrieved'. Masked queries are left out.
            fields: Whether the context of each relation has its own field.
            max_context: Texts per record and relation at most: the first in document order; of queries, those with the
                highest labels or scores.
            verbose: Whether to show progress.

        Raises:
            ValueError: If a relation is not in the graphs, needs a query graph, or the query graph has other passages.
        """
        rows = records(self, kind, context, query_graph, fields, max_context)
        total = len(self.passage_nodes) if kind == "passages" else len(self)
        return iter(pt.tqdm(rows, desc=kind, unit=kind[:-1], total=total, delay=1, disable=not verbose))

    corpus_graph = write_corpus_graph

    def _bounds(self, name: str) -> Bounds:
        documents, nodes, passages, codes = (count_of(self.meta, key) for key in SIZES)
        relation, _, part = name.rpartition(".")
        if part in NODE_ARRAYS:
            return {
                "node_type": Bounds(nodes, 0, len(NODE_TYPES) - 1),
                "parent": Bounds(nodes, -1, nodes - 1, tree=True),
                "document": Bounds(nodes, 0, documents - 1, rising=True),
                "roots": Bounds(documents, 0, nodes - 1, distinct=True),
                "node_offsets": offsets_to(nodes, documents),
                "passage_offsets": offsets_to(passages, documents),
                "passage_nodes": Bounds(passages, 0, nodes - 1, distinct=True),
            }[part]
        ends = {"document_codes": (documents, codes), "code_documents": (codes, documents)}
        rows, columns = ends.get(relation, (nodes, nodes))
        edges = array_file(self.path, f"{relation}.indices").stat().st_size // 4
        if relation not in ends:
            edges = count_of(self.meta["edges"], relation)
        return offsets_to(edges, rows) if part == "indptr" else Bounds(edges, 0, columns - 1)

    def _has_graph(self) -> bool:
        """Whether there is a graph at this path, of whatever version."""
        try:
            return json.loads((self.path / META).read_text(encoding="utf-8"))["type"] == self.ARTIFACT_TYPE
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @cached_property
    def _text_reader(self) -> TextReader:
        return self._open(lambda folder: TextReader(folder, count_of(self.meta, "nodes")))

    def _texts(self, nodes: np.ndarray) -> list[str]:
        return self._text_reader.read(nodes)

    @cached_property
    def own_ids(self) -> bool:  # type: ignore[override]
        """Whether passages have ids of their own, instead of ``docno%pN``."""
        return self.meta.get("own_ids", False)

    @cached_property
    def _passages(self) -> Lookup:
        return self._ids(PASSAGES, "passages")

    def _passage_numbers(self, identifiers: list[str]) -> np.ndarray:
        return numbers_of(self._passages, identifiers)

    def _passage_ids(self, numbers: np.ndarray) -> list[str]:
        return ids_of(self._passages, numbers)

    def _documents(self, docnos: list[str]) -> np.ndarray:
        return numbers_of(self.docnos, docnos)

    def _docnos(self, documents: np.ndarray) -> list[str]:
        return ids_of(self.docnos, documents)


def _structured(record: Mapping[str, Any] | StructuredDocument, passage_words: int) -> StructuredDocument:
    if isinstance(record, StructuredDocument):
        return record
    if not isinstance(record, Mapping):
        raise ValueError(f"a corpus consists of records with 'docno', or structured documents, not of {record!r:.80}")
    return read_record(record, passage_words=passage_words)
