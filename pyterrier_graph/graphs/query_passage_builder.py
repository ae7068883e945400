"""Writes a graph of queries and passages to disk, from topics, runs and judgments."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import check_frame, check_type, is_unicode
from pyterrier_graph.graphs.array_files import DOCNOS, ArrayFiles, TextWriter, array_file, read_array
from pyterrier_graph.graphs.consistency import Bounds, count_of, offsets_to
from pyterrier_graph.graphs.csr import CHUNK, CSR, offsets, write_compressed
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.ids import numbers_of, some, writing_ids
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, inverse
from pyterrier_graph.ranges.identity import frame_sha256, pipeline_name
from pyterrier_graph.ranges.workers import Workers, check_workers
from pyterrier_graph.ranges.writer import RangeWriter
from pyterrier_graph.warning_categories import DataWarning

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

BATCH = 1024  # queries, or documents whose passages are named, at once
PASSAGES = "a DocumentGraph, a FlexIndex, or docnos in the order of an index"
QIDS = "qids.npids"
MAX_EDGES = 1 << 32
NO_QUERIES = "a graph needs queries, there are none"


Frames = tuple[pd.DataFrame, pd.DataFrame | None]  # topics and results


class QueryBatch(NamedTuple):
    """Some queries, and per edge type a row for each query: passage numbers, which ascend, with ``scores``."""

    qids: list[str]
    texts: list[str]
    edges: Mapping[str, CSR]


class Judgments:
    """The relevant passages of queries: judgments ``qid, docno, label`` whose label is above 0."""

    def __init__(self, qrels: pd.DataFrame, docnos: Lookup) -> None:
        qrels = check_frame(qrels, "qrels", numbers=("label",))
        pt.validate.columns(qrels, includes=["qid", "docno", "label"])
        qrels = qrels.loc[qrels["label"] > 0, ["qid", "docno", "label"]].astype({"qid": str, "docno": str})
        self._frame = qrels.rename(columns={"label": "score"})
        self._in_graph = numbers_of(docnos, qrels["docno"].tolist()) >= 0
        if len(qrels) and not self._in_graph.any():
            raise ValueError(
                f"no passage of the qrels is in the graph, {qrels['docno'].iloc[0]!r} for example: "
                "are these judgments of documents, or of another corpus?"
            )
        query, qids = pd.factorize(qrels["qid"])
        self._qids = pd.Index(qids)
        self._rows = CSR.group(query, np.arange(len(qrels)), len(qids))
        self._found = 0
        self._unknown: list[str] = []

    def of(self, qids: Sequence[str]) -> pd.DataFrame:
        """The judgments of some queries, ``qid, docno, score``; passages that are not in the graph are left out."""
        query = self._qids.get_indexer(qids)
        rows = self._rows.select(query[query >= 0])[1]
        in_graph = self._in_graph[rows]
        self._unknown += self._frame["docno"].iloc[rows[~in_graph]].tolist()
        self._found += int(in_graph.sum())
        return self._frame.iloc[rows[in_graph]]

    def finish(self) -> None:
        """To be called when all queries have been asked for: warns of the passages that were left out."""
        if not self._found:
            raise ValueError("the qrels have no relevant passage of these queries: are the qids of another set?")
        if self._unknown:
            warnings.warn(
                f"{some(self._unknown, 'judged passage')} not in the graph: these judgments are ignored; "
                "are they of another corpus?",
                DataWarning,
                stacklevel=2,
            )


def query_batch(
    topics: pd.DataFrame, run: pd.DataFrame | None, judgments: Judgments | None, docnos: Lookup, k: int
) -> QueryBatch:
    """Queries ``qid, query`` with the edges that a run ``qid, docno, score`` and judgments make; all ids are text.

    Of the run, the best k passages of a query by score are kept; among equals those that come first.
    """
    for qid, text in zip(topics["qid"], topics["query"], strict=True):
        if not qid or "\0" in qid:
            raise ValueError(f"a qid must not be empty or contain NUL characters, got {qid!r}")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"query {qid!r} has no text: {text!r}")
    qids = pd.Index(topics["qid"])
    edges = {}
    if run is not None:
        edges[RETRIEVED] = _edges(qids, run, docnos, "results", k)
    if judgments is not None:
        edges[RELEVANT] = _edges(qids, judgments.of(topics["qid"]), docnos, "qrels")
    return QueryBatch(topics["qid"].tolist(), topics["query"].tolist(), edges)


def _edges(qids: pd.Index, rows: pd.DataFrame, docnos: Lookup, source: str, k: int | None = None) -> CSR:
    query = qids.get_indexer(rows["qid"])
    names = rows["docno"].to_numpy(dtype=object)
    with np.errstate(over="ignore"):
        scores = rows["score"].to_numpy(dtype=np.float64).astype(np.float32)

    def refuse(wrong: np.ndarray, message: str) -> None:
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(f"query {qids[query[row]]!r}, passage {names[row]!r} {message} in the {source}")

    refuse(np.flatnonzero(~np.isfinite(scores)), "has a score that is not a finite 32-bit number")
    if k is not None:
        best = np.lexsort((-scores, query))
        grouped = query[best]
        best = best[np.arange(len(best)) - np.searchsorted(grouped, grouped) < k]
        query, names, scores = query[best], names[best], scores[best]
    passage = numbers_of(docnos, names)
    if (passage < 0).any():
        unknown = [*dict.fromkeys(names[passage < 0])]
        raise KeyError(f"{some(unknown, 'docno')} of the {source} not among the passages: are they of another corpus?")
    order = np.lexsort((passage, query))
    refuse(order[1:][(np.diff(query[order]) == 0) & (np.diff(passage[order]) == 0)], "comes twice")
    return CSR.group(query[order], passage[order], len(qids), scores=scores[order])


def unwrapped(results: pd.DataFrame) -> pd.DataFrame:
    """Results with plain values; pyterrier_dr gives an array of one value where a query has a single result."""
    columns = results.columns.intersection(["docno", "docid", "score", "rank"])
    arrays = [name for name in columns if len(results) and isinstance(results[name].iloc[0], np.ndarray)]
    return results.assign(**{name: np.concatenate([*results[name]]) for name in arrays})


def checked_topics(topics: pd.DataFrame) -> pd.DataFrame:
    """Queries ``qid, query``, each of them once; ids are text."""
    topics = check_frame(topics, "topics", optional_texts=("query",))
    pt.validate.query_frame(topics, extra_columns=["query"])
    if not len(topics):
        raise ValueError(NO_QUERIES)
    topics = topics.astype({"qid": str}).reset_index(drop=True)
    twice = topics["qid"][topics["qid"].duplicated()]
    if len(twice):
        raise ValueError(f"query {twice.iloc[0]!r} comes twice: qids must be unique")
    return topics


def source_of(
    topics: pd.DataFrame, retriever: pt.Transformer | None, k: int, workers: Workers, batch_size: int
) -> Retrieval | Iterator[Frames]:
    """Queries whose passages are to be retrieved, or queries without results."""
    topics = checked_topics(topics)
    check_type("retriever", retriever, (pt.Transformer, type(None)), "a transformer that retrieves passages, or None")
    check_workers(workers)
    if retriever is not None:
        return Retrieval(topics, retriever, k, workers, batch_size)
    return ((topics.iloc[start : start + batch_size], None) for start in range(0, len(topics), batch_size))


def retrieve(topics: pd.DataFrame, retriever: pt.Transformer, k: int, docnos: Lookup) -> CSR:
    """The k best passages of each query."""
    pipeline = (retriever % k).compile()
    results = check_frame(unwrapped(pipeline.transform(topics)), pipeline, numbers=("score",))
    pt.validate.result_frame(results, extra_columns=["score"])
    results = results.astype({"qid": str, "docno": str})
    others = results["qid"][~results["qid"].isin(topics["qid"])]
    if len(others):
        raise ValueError(f"{retriever!r} gave results of query {others.iloc[0]!r}, which it was not asked for")
    return query_batch(topics, results, None, docnos, k).edges[RETRIEVED]


@dataclass(frozen=True)
class Retrieval:
    """What a retriever finds for queries, which is computed in ranges of queries.

    Attributes:
        topics: The queries, as :func:`checked_topics` returns them.
        retriever: Finds passages.
        k: Passages per query.
        workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
        batch_size: Queries in a range.
    """

    topics: pd.DataFrame
    retriever: pt.Transformer
    k: int
    workers: Workers
    batch_size: int

    def identity(self) -> dict[str, Any]:
        """What the results depend on, beside the passages."""
        return {"retriever": pipeline_name(self.retriever), "topics_sha256": frame_sha256(self.topics), "k": self.k}

    def batches(
        self, writer: RangeWriter, judgments: Judgments | None, docnos: Lookup, *, verbose: bool
    ) -> Iterator[QueryBatch]:
        """Retrieves what has not been retrieved, and yields all queries, with their judgments."""
        topics, retriever, k = self.topics, self.retriever, self.k
        ranges = map(writer.ranges.numbers, range(len(writer.ranges)))
        judged = [query_batch(topics.iloc[numbers], None, judgments, docnos, k) for numbers in ranges]
        if judgments is not None:
            judgments.finish()

        def found(numbers: np.ndarray) -> dict[str, np.ndarray]:
            edges = retrieve(topics.iloc[numbers].reset_index(drop=True), retriever, k, docnos)
            return {"lengths": edges.lengths, "indices": edges.indices, "scores": edges.data["scores"]}

        progress: dict[str, Any] = {"desc": "retrieving", "unit": "query", "delay": 1, "disable": not verbose}
        writer.compute(found, workers=self.workers, **progress)
        for batch, arrays in zip(judged, writer.read(), strict=True):
            edges = CSR(offsets(arrays["lengths"]), arrays["indices"], {"scores": arrays["scores"]})
            yield batch._replace(edges={RETRIEVED: edges, **batch.edges})


def batches(frames: Iterable[Frames], judgments: Judgments | None, docnos: Lookup, k: int) -> Iterator[QueryBatch]:
    """The queries of each pair of topics and results, with their judgments."""
    for topics, results in frames:
        yield query_batch(topics, results, judgments, docnos, k)
    if judgments is not None:
        judgments.finish()


def shown(batches: Iterable[QueryBatch], **bar: Any) -> Iterator[QueryBatch]:
    """The same batches, with a progress bar."""
    with pt.tqdm(**bar) as progress:
        for batch in batches:
            yield batch
            progress.update(len(batch.qids))


def from_frames(results: pd.DataFrame | Iterable[pd.DataFrame]) -> tuple[int | None, Iterator[Frames]]:
    """The number of queries, if known, and the queries of each frame of results, with it; one frame becomes several."""
    total = None
    if isinstance(results, pd.DataFrame):
        results = _checked_results(results)
        total = results["qid"].nunique()
        number = results.groupby("qid", sort=False).ngroup()
        results = (part for _, part in results.groupby(number // BATCH))
    frames = (_checked_results(part).astype({"qid": str, "docno": str}) for part in results)
    return total, ((part.groupby("qid", sort=False, as_index=False)["query"].first(), part) for part in frames)


def _checked_results(results: pd.DataFrame) -> pd.DataFrame:
    results = check_frame(results, "results", optional_texts=("query",), numbers=("score",))
    pt.validate.result_frame(results, extra_columns=["query", "score"])
    return results


def build(
    folder: Path, batches: Iterable[QueryBatch], edge_types: Sequence[str], num_passages: int
) -> tuple[int, dict[str, int]]:
    """Writes everything but the passages' ids, and returns the number of queries, and of edges per type.

    In memory there are a batch of queries, all qids, and a million edges while they are sorted by passage. Everything
    else is on disk.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="scratch-") as name:
        scratch = Path(name)
        with _Writer(folder, scratch, edge_types) as writer:
            for batch in batches:
                writer.add(batch)
            if not writer.qids:
                raise ValueError(NO_QUERIES)
        for edge_type in edge_types:
            _write_backward(folder, scratch, edge_type, num_passages)
        return len(writer.qids), writer.edges


class _Writer(ExitStack):
    """Writes queries, and their edges by query; edges are numbered in the order in which they are added."""

    def __init__(self, folder: Path, scratch: Path, edge_types: Sequence[str]) -> None:
        super().__init__()
        self.folder, self.scratch = folder, scratch
        self.qids: set[str] = set()
        self.edges = dict.fromkeys(edge_types, 0)
        self._arrays = self.enter_context(ArrayFiles())
        self._texts = self.enter_context(TextWriter(folder))
        self._ids = self.enter_context(writing_ids(folder / QIDS))
        for edge_type in edge_types:
            self._arrays.append(folder, f"{edge_type}.indptr", np.zeros(1))

    def add(self, batch: QueryBatch) -> None:
        """Adds queries after those before."""
        first = len(self.qids)
        for qid in batch.qids:
            if qid in self.qids:
                raise ValueError(f"query {qid!r} comes twice: qids must be unique, and a query's rows come together")
            self.qids.add(qid)
            self._ids.add(qid)
        self._texts.extend(batch.texts)
        for edge_type, before in self.edges.items():
            edges = batch.edges.get(edge_type)
            if edges is None:
                no_edges = np.empty(0, dtype=np.int64)
                edges = CSR.group(no_edges, no_edges, len(batch.qids), scores=no_edges)
            after = before + len(edges.indices)
            if after > MAX_EDGES:
                raise ValueError(f"a graph can have {MAX_EDGES:,} edges of a type at most")
            arrays = {"indptr": before + edges.indptr[1:], "indices": edges.indices, "scores": edges.data["scores"]}
            for name, values in arrays.items():
                self._arrays.append(self.folder, f"{edge_type}.{name}", values)
            numbered = np.stack([edges.indices, np.arange(before, after)], axis=1)
            self._arrays.append(self.scratch, f"{edge_type}.pairs", numbered)
            self._arrays.append(self.scratch, f"{inverse(edge_type)}.indices", first + edges.row_index)
            self.edges[edge_type] = after


def _write_backward(folder: Path, scratch: Path, edge_type: str, num_passages: int) -> None:
    """Writes the edges of a type by passage."""
    name = inverse(edge_type)
    indptr, edges = (array_file(folder, f"{name}.{part}") for part in ("indptr", "edges"))
    write_compressed(read_array(scratch, f"{edge_type}.pairs").reshape(-1, 2), num_passages, indptr, edges, scratch)
    queries = read_array(scratch, f"{name}.indices")
    numbers = read_array(folder, f"{name}.edges")
    with ArrayFiles() as arrays:
        for start in range(0, len(numbers) or 1, CHUNK):
            arrays.append(folder, f"{name}.indices", queries[numbers[start : start + CHUNK]])


def write_docnos(path: Path, docnos: Iterable[str], *, verbose: bool) -> int:
    """Writes the ids of passages, and returns their number."""
    count = 0
    with writing_ids(path) as ids:
        for docno in pt.tqdm(docnos, desc="reading docnos", unit="passage", delay=1, disable=not verbose):
            if not isinstance(docno, str) or not docno or "\0" in docno or not is_unicode(docno):
                raise ValueError(f"a docno must be a Unicode text, not empty, without NUL characters, got {docno!r}")
            ids.add(docno)
            count += 1
        if not count:
            raise ValueError("a graph needs passages, there are none")
    with Lookup(path) as lookup:
        for start in range(0, count, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, count))
            names = lookup.fwd[numbers]
            twice = np.flatnonzero(lookup.inv[names] != numbers)
            if len(twice):
                raise ValueError(f"passage {str(names[twice[0]])!r} comes twice: docnos must be unique")
    return count


@contextmanager
def docnos_of(
    passages: HeteroGraph | FlexIndex | Lookup | Iterable[str] | QueryPassageGraph, *, verbose: bool
) -> Iterator[tuple[Path, int]]:
    """A file with the ids of passages, and their number."""
    if hasattr(passages, "edges_of_queries"):  # a QueryPassageGraph
        stored: Any = passages
        yield stored.path / DOCNOS, stored.num_passages
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, DOCNOS)
        yield file, write_docnos(file, names_of(cast(Any, passages)), verbose=verbose)


def names_of(passages: HeteroGraph | FlexIndex | Lookup | Iterable[str]) -> Iterable[str]:
    """Docnos of passages, in order."""
    if isinstance(passages, HeteroGraph):
        nodes = passages.passage_nodes
        parts = (nodes[start : start + BATCH] for start in range(0, len(nodes), BATCH))
        return chain.from_iterable(map(passages.ids_of, parts))
    docnos: Any = passages.docnos() if hasattr(passages, "docnos") else passages
    if isinstance(docnos, str | os.PathLike | pd.DataFrame):
        raise TypeError(f"passages must be {PASSAGES}, got {str(docnos)[:60]!r} ({type(docnos).__name__})")
    check_type("passages", docnos, Iterable, PASSAGES)
    return docnos


def bounds_of(meta: Mapping[str, Any], name: str) -> Bounds:
    """What the entries of a graph's array may be."""
    queries, passages = count_of(meta, "queries"), count_of(meta, "passages")
    relation, _, part = name.rpartition(".")
    forward = relation in meta["edges"]
    edges = count_of(meta["edges"], relation if forward else inverse(relation))
    rows, columns = (queries, passages) if forward else (passages, queries)
    dimension = meta.get("features", {}).get(relation, {}).get("dimension", 0)
    return {
        "indptr": offsets_to(edges, rows),
        "indices": Bounds(edges, 0, columns - 1),
        "edges": Bounds(edges, 0, edges - 1),
        "scores": Bounds(edges),
        "features": Bounds(edges * dimension),
    }[part]
