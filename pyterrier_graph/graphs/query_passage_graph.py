"""The graph of training queries and passages: built in memory, stored, and memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import WithSignature, check_frame, query_texts
from pyterrier_graph.graphs.builder import append_rows
from pyterrier_graph.graphs.csr import CSR, offsets
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.judgments import passage_qrels
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, inverse
from pyterrier_graph.html import HtmlCard, HtmlDisplay
from pyterrier_graph.storage.arrays import (
    DOCNOS,
    ArrayWriter,
    StoredGraph,
    array_file,
    check_unique,
    ids_of,
    known_numbers_of,
    read_array,
    write_ids,
)
from pyterrier_graph.storage.artifact import (
    atomic_folder,
    content_sha256,
    file_sha256,
    frame_sha256,
    kind_of,
    pipeline_identity,
    read_meta,
)
from pyterrier_graph.storage.shards import ShardWriter, Workers

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex

BATCH = 256  # queries to retrieve for, edges to encode, or passages whose ids are read, at once
QIDS = "qids.npids"
FEATURES = "features"

PairEncoder = Callable[[list[str], list[str]], Any]


class QueryPassageGraph(HtmlDisplay, WithSignature, StoredGraph):
    """The bipartite graph of training queries and a corpus's passages, stored and memory-mapped (GNN-encoder).

    ::

        graph = QueryPassageGraph("train.graph").build(topics, index, retriever, qrels=qrels)
        edges = graph.without(loss_queries).edges_of_passages(passages, "relevant")

    Edges have a type: ``'retrieved'``, with the score of the retriever, or ``'relevant'``, with the label as score.
    Queries are in the order of the topics, and passages in the order of the index or document graph that they come
    from. The edges of a type are numbered from 0, by query, then by passage.

    Args:
        path: Folder of the graph; it may not exist yet, see :meth:`build`. Nothing is read before it is needed.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "query_passage_graph"
    ARTIFACT_FORMAT = "csr"
    FORMAT_VERSION = 3

    _masked: np.ndarray | None = None  # a boolean per query
    _dropped: np.ndarray | None = None  # pairs without edges: query * num_passages + passage

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments, state = super().__reduce__()
        view = {"_masked": self._masked, "_dropped": self._dropped}
        return kind, arguments, state | view

    def _view(self) -> HtmlCard:
        if not self.built():
            return HtmlCard({"queries": "not built yet"})
        sizes = {"queries": self.num_queries, "passages": self.num_passages}
        for edge_type, count in self.num_edges.items():
            sizes[f"{edge_type} edges"] = count
        return HtmlCard(sizes)

    # --- building

    def build(
        self,
        topics: pd.DataFrame,
        passages: HeteroGraph | FlexIndex | Lookup | Iterable[str],
        retriever: pt.Transformer | None = None,
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Builds the graph from judgments, and by retrieving the best passages of each query.

        The graph appears under its path when it is complete. If building is interrupted, a call with the same topics,
        passages and ``repr(retriever)`` continues. Memory holds the queries and all edges.

        Args:
            topics: The queries: ``qid, query``, and other columns that the retriever needs.
            passages: The corpus: a document graph (its passages), an index of passages, or docnos in an index's order.
            retriever: Finds passages for queries: ``qid, query`` to ``qid, docno, score``. Without a retriever, there
                are no ``'retrieved'`` edges.
            k: Number of passages per query; the retriever's best ``k`` are stored.
            qrels: Judgments ``qid, docno, label`` of passages, or with a document graph of documents for all their
                passages. Labels above 0 become ``'relevant'`` edges. Judgments of unknown passages are ignored with a
                warning.
            workers: Number of processes that retrieve, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            FileExistsError: If something exists at the path.
            KeyError: If a retrieved docno is not in the corpus, or no judged docno is.
            ValueError: If a query has no text, or two passages have the same id.
        """
        topics = _checked_topics(topics)
        meta = kind_of(self)
        with atomic_folder(self.path, meta) as folder:
            docnos_file = folder / DOCNOS
            _write_docnos(docnos_file, passages, verbose=self.verbose)
            edges: dict[str, CSR] = {}
            with Lookup(docnos_file) as docnos:
                num_passages = len(docnos)
                if qrels is not None:
                    edges[RELEVANT] = _judged(topics["qid"], qrels, docnos, passages)
            if retriever is not None:
                inputs = meta | {
                    "docnos_sha256": file_sha256(docnos_file),
                    "topics_sha256": frame_sha256(topics),
                    "retriever": pipeline_identity(retriever),
                    "k": k,
                }
                shards = ShardWriter(folder.parent, len(topics), BATCH, inputs)
                progress = {"workers": workers, "disable": not self.verbose}
                retrieved = _retrieved(shards, topics, retriever % k, docnos_file, progress)
                edges = {RETRIEVED: retrieved} | edges
            _write(folder, topics, edges, num_passages)
            meta |= {"queries": len(topics), "passages": num_passages, "k": k}
            meta["edges"] = {name: len(rows.indices) for name, rows in edges.items()}
        return self

    def add_edge_features(
        self, encode: PairEncoder, texts: pt.Transformer, *, edge_type: str = RETRIEVED
    ) -> Self:
        """Stores a vector for each edge, such as a cross-encoder's state of [CLS] for its query and passage.

        After an interruption, a second call with the same encoder continues where the first one stopped.

        Args:
            encode: Takes a list of queries and one of as many passages, and returns vectors, shape (pairs, d). The same
                pair must always get the same vector.
            texts: Adds a column ``text`` to a frame with ``docno``, as ``pt.text.get_text(dataset)`` does.
            edge_type: The type of the edges.

        Raises:
            FileExistsError: If these edges have features already.
            KeyError: If there is no such type of edges.
        """
        name = array_file(self.path, FEATURES).name

        def encoded(edges: np.ndarray) -> dict[str, np.ndarray]:
            queries, passages = self._ends(edges, edge_type)
            docnos = self.docnos_of(passages)
            loaded = texts.transform(pd.DataFrame({"docno": docnos}))
            passage_texts = loaded["text"].tolist()
            vectors = encode(self.texts(queries), passage_texts)  # (edges, d)
            return {name: np.asarray(vectors).astype("<f2")}

        meta: dict[str, Any] = {"type": "edge_features", "format": "float16"}
        inputs = {"graph": content_sha256(self.meta)}
        with atomic_folder(self._features_folder(edge_type), meta) as folder:
            shards = ShardWriter(folder.parent, self.num_edges[edge_type], BATCH, inputs)
            shards.compute(
                encoded, desc="edge features", unit="edge", delay=1, disable=not self.verbose
            )
            shards.concatenate(folder, [name])
            first_shard = next(shards.read())
            meta["dimension"] = first_shard[name].shape[1]
        return self

    def fingerprint(self) -> str:
        """A digest of queries, passages, edges, scores, edge features, and the mask. Digests of files are stored."""
        features = {}
        for edge_type in self.edge_types:
            folder = self._features_folder(edge_type)
            if folder.is_dir():
                features[edge_type] = content_sha256(read_meta(folder))
        stored = json.dumps([content_sha256(self.meta), features])
        digest = sha256(stored.encode())
        for mask in (self._masked, self._dropped):
            digest.update(b"none" if mask is None else mask.tobytes())
        return digest.hexdigest()

    # --- reading

    @property
    def num_queries(self) -> int:
        """Number of queries, including masked ones, because masking does not renumber queries."""
        return self.meta["queries"]

    @property
    def num_passages(self) -> int:
        """Number of passages, including passages without edges."""
        return self.meta["passages"]

    @property
    def num_edges(self) -> dict[str, int]:
        """Number of edges per type, including masked queries."""
        return self.meta["edges"]

    @property
    def edge_types(self) -> tuple[str, ...]:
        """``'retrieved'``, ``'relevant'``, or both."""
        return tuple(self.meta["edges"])

    @cached_property
    def qids(self) -> Lookup:
        """Qids by query number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return Lookup(self.folder / QIDS)

    def qids_of(self, queries: np.ndarray) -> list[str]:
        """Qids by query number."""
        return ids_of(self.qids, np.asarray(queries, dtype=np.int64))

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos by passage number."""
        return ids_of(self.docnos, np.asarray(passages, dtype=np.int64))

    def texts(self, queries: np.ndarray) -> list[str]:
        """Texts of queries, by number."""
        return self._texts(np.asarray(queries, dtype=np.int64))

    def without(self, queries: np.ndarray) -> Self:
        """A view of the graph without the edges of some queries; queries that are masked already stay masked.

        A view costs a boolean per query. ``qids.inv`` has the numbers of qids.
        """
        masked = np.zeros(self.num_queries, dtype=bool)
        if self._masked is not None:
            masked |= self._masked
        masked[queries] = True
        return self._view_with(_masked=masked)

    def without_edges(self, queries: np.ndarray, passages: np.ndarray) -> Self:
        """A view of the graph without the edges, of all types, between ``queries[i]`` and ``passages[i]``."""
        queries = np.asarray(queries, np.int64)
        pairs = self._pairs(queries, passages)
        return self._view_with(_dropped=np.unique(pairs))

    def _view_with(self, **attributes: Any) -> Self:
        view = type(self)(self.path)
        vars(view).update(vars(self), **attributes)  # the view shares the mapped arrays
        return view

    def edges_of_queries(self, queries: np.ndarray, edge_type: str = RETRIEVED) -> CSR:
        """The passages of queries, whose numbers may repeat; a masked query has none.

        Returns:
            A row per query: passage numbers, which ascend, with ``scores`` (float32) and ``edges``, the number of the
            edge among all of its type: the row of its features.
        """
        rows = self._rows(edge_type)
        row, edges = rows.positions(queries)
        passages = rows.indices[edges].astype(np.int64)
        visible = self._visible(queries[row], passages)
        lengths = np.bincount(row, minlength=len(queries))
        all_edges = self._with_scores(lengths, passages, edges, edge_type)
        return all_edges.filter(visible)

    def edges_of_passages(self, passages: np.ndarray, edge_type: str = RETRIEVED) -> CSR:
        """The queries of passages, without masked ones: query numbers, with data as in :meth:`edges_of_queries`."""
        back = inverse(edge_type)
        rows = self._rows(back)
        row, positions = rows.positions(passages)
        queries = rows.indices[positions].astype(np.int64)
        edges = self._array(f"{back}.edges")[positions].astype(np.int64)
        visible = self._visible(queries, passages[row])
        lengths = np.bincount(row, minlength=len(passages))
        all_edges = self._with_scores(lengths, queries, edges, edge_type)
        return all_edges.filter(visible)

    def _with_scores(
        self, lengths: np.ndarray, elements: np.ndarray, edges: np.ndarray, edge_type: str
    ) -> CSR:
        """Rows of elements, with the number and the score of each edge."""
        scores = self._array(f"{edge_type}.scores")[edges]
        data = {"scores": scores, "edges": edges}
        return CSR(offsets(lengths), elements, data)

    def edge_features(self, edge_type: str = RETRIEVED) -> np.ndarray:
        """Vectors of edges, by number: shape (edges, d), float16, memory-mapped.

        Raises FileNotFoundError if there are none.
        """
        folder = self._features_folder(edge_type)
        dimension = read_meta(folder)["dimension"]
        return read_array(folder, FEATURES).reshape(-1, dimension)

    def _features_folder(self, edge_type: str) -> Path:
        """The folder of the features of edges, an artifact inside the graph."""
        return self.path / f"{edge_type}.{FEATURES}"

    def _ends(self, edges: np.ndarray, edge_type: str) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the queries and of the passages that edges join."""
        rows = self._rows(edge_type)
        queries = np.searchsorted(rows.indptr, edges, side="right") - 1
        passages = rows.indices[edges].astype(np.int64)
        return queries, passages

    def _rows(self, direction: str) -> CSR:
        """The stored rows of queries (of an edge type), or of passages (of its inverse)."""
        indptr = self._array(f"{direction}.indptr")
        indices = self._array(f"{direction}.indices")
        return CSR(indptr, indices)

    def _visible(self, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
        """Whether this view has the edge between each query and passage, shape (edges,)."""
        visible = np.ones(len(queries), dtype=bool)
        if self._masked is not None:
            visible &= ~self._masked[queries]
        if self._dropped is not None:
            pairs = self._pairs(queries, passages)
            visible &= ~np.isin(pairs, self._dropped)
        return visible

    def _pairs(self, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
        """Each pair of a query and a passage as one number, shape (pairs,)."""
        return queries * self.num_passages + passages


def _checked_topics(topics: pd.DataFrame) -> pd.DataFrame:
    """The queries, each once, with string ids; raises ValueError if a query has no text."""
    topics = check_frame(topics, "topics")
    topics = topics.astype({"qid": str}).drop_duplicates("qid")
    query_texts(topics)  # raises ValueError
    return topics.reset_index(drop=True)


def _judged(qids: pd.Series, qrels: pd.DataFrame, docnos: Lookup, passages: Any) -> CSR:
    """Relevant passages of each query, from judgments ``qid, docno, label`` with labels above 0."""
    qrels = check_frame(qrels, "qrels", numbers=("label",))
    qrels = qrels.astype({"qid": str, "docno": str})
    is_relevant = qrels["label"] > 0
    is_topic = qrels["qid"].isin(qids)
    relevant = qrels[is_relevant & is_topic]
    corpus = passages if isinstance(passages, HeteroGraph) else docnos
    relevant = passage_qrels(relevant, corpus)
    rows = relevant.rename(columns={"label": "score"})
    return _edges(qids, rows, docnos)


def _retrieved(
    shards: ShardWriter,
    topics: pd.DataFrame,
    retriever: pt.Transformer,
    docnos_file: Path,
    progress: Mapping[str, Any],
) -> CSR:
    """The passages of each query, retrieved for ``BATCH`` queries at a time."""
    pipeline = retriever.compile()

    def edges_of(queries: pd.DataFrame) -> dict[str, np.ndarray]:
        results = pipeline.transform(queries)
        results = check_frame(results, pipeline, numbers=("score",))
        with Lookup(docnos_file) as docnos:
            edges = _edges(queries["qid"], results, docnos)
        scores = edges.data["scores"]
        return {"lengths": edges.lengths, "indices": edges.indices, "scores": scores}

    def read(numbers: np.ndarray) -> pd.DataFrame:
        return topics.iloc[numbers].reset_index(drop=True)

    shards.compute(edges_of, read=read, desc="retrieving", unit="query", delay=1, **progress)
    batches = list(shards.read())
    lengths = np.concatenate([batch["lengths"] for batch in batches])
    indices = np.concatenate([batch["indices"] for batch in batches])
    scores = np.concatenate([batch["scores"] for batch in batches])
    return CSR(offsets(lengths), indices, {"scores": scores})


def _edges(qids: pd.Series, rows: pd.DataFrame, docnos: Lookup) -> CSR:
    """Passages of each query with their scores, from rows ``qid, docno, score``; other queries are left out."""
    types = {"qid": str, "docno": str, "score": np.float32}
    rows = rows[list(types)].astype(types)
    rows["query"] = pd.Index(qids).get_indexer(rows["qid"])
    rows["passage"] = known_numbers_of(docnos, rows["docno"].tolist())
    rows = rows[rows["query"] >= 0]
    rows = rows.drop_duplicates(["query", "passage"])
    rows = rows.sort_values(["query", "passage"])
    query = rows["query"].to_numpy()
    passage = rows["passage"].to_numpy()
    scores = rows["score"].to_numpy()
    return CSR.group(query, passage, len(qids), scores=scores)


def _write(folder: Path, topics: pd.DataFrame, edges: Mapping[str, CSR], num_passages: int) -> None:
    """Writes the queries, and the edges of each type by query and by passage."""
    write_ids(folder / QIDS, topics["qid"])
    with ArrayWriter(folder) as arrays:
        arrays.append_texts(topics["query"].tolist())
        for name, forward in edges.items():
            numbers = np.arange(len(forward.indices))
            back = CSR.group(forward.indices, forward.row_index, num_passages, edges=numbers)
            append_rows(arrays, name, forward)
            append_rows(arrays, inverse(name), back)


def _write_docnos(file: Path, passages: Any, *, verbose: bool) -> None:
    """Writes the ids of passages, in order."""
    if isinstance(passages, HeteroGraph):
        passages.write_passage_ids(file)
        return
    docnos = passages.docnos() if hasattr(passages, "docnos") else passages
    bar = pt.tqdm(docnos, desc="reading docnos", unit="passage", delay=1, disable=not verbose)
    write_ids(file, bar)
    check_unique(file)
