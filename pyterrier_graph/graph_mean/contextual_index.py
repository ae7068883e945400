r"""The index of contextual vectors: how it is written, opened and searched, and the weights of a query.

How much each relation counts for a query depends on what the query finds; no judgments are needed:

.. math::

    w_r(q) = c_r \operatorname{clip}\left(\frac{d_r(q) - low}{high - low}, 0, 1\right), \qquad
    d_r(q) = \max_p \cos(q, \hat m_{r,p}) - \max_p \cos(q, x_p)

with the largest weight :math:`c_r` of relation r, the passages p of a sample of the index, and the directions
:math:`\hat m_{r,p}` of their sources of r.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
from safetensors.numpy import load_file, save

from pyterrier_graph.checks import (
    Found,
    Retrieves,
    Shown,
    View,
    WithSignature,
    check_count,
    check_frame,
    check_type,
    check_weights,
)
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.openvino_encoder import load_encoder
from pyterrier_graph.encoders.stored_vectors import (
    FLEX,
    FLOAT,
    HINT,
    VECTORS,
    VectorsOf,
    Windows,
    checked_vectors,
    encoder_name,
)
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import OWN, QUERY_RELATIONS
from pyterrier_graph.storage.arrays import DOCNOS, Flex, blocks, ids_of, numbers_of, read_array
from pyterrier_graph.storage.artifact import (
    META,
    OwnArtifact,
    atomic_folder,
    file_sha256,
    kind_of,
    read_meta,
)
from pyterrier_graph.storage.shards import ShardWriter

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.encoders.checkpoints import DType
    from pyterrier_graph.graph_mean.equations import SideBySide
    from pyterrier_graph.graph_mean.graph_mean import ContextualEncoder
    from pyterrier_graph.graph_mean.neighbors import NeighborSampler
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

SAMPLE = "sample.safetensors"
WINDOWS, WINDOW_OFFSETS = "windows.f4", "windows.i8"  # the further windows of long passages
SAMPLED = 16_384  # passages, evenly over the index, which a query is compared with
READ = ("_weights", "_windows", "_codes")
PASSAGES = "passages"
CODES = "codes.faiss"
LARGE = 1_000_000  # passages from which on an index has codes
PASSAGES_AT_ONCE, QUERIES_AT_ONCE, SCORES_AT_ONCE = 4096, 256, 1 << 26
# differences of similarities up to which a relation does not count, and from which on it counts fully
RAMP, QUERY_RAMP = (-0.3, -0.1), (-0.15, 0.15)

Sample = dict[str, np.ndarray]


class ContextualIndex(Shown, WithSignature, OwnArtifact, pt.Transformer):
    """An index that ``GraphMean.index`` or ``GNNEncoder.index`` has written. In a pipeline it is its retriever.

    ::

        index = ptg.ContextualIndex("corpus.flex", graph)
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    Args:
        path: Folder of the index.
        graph: The document graph, which has the texts of the passages; None for passages without texts.
        encoder: Encodes queries: the name of a checkpoint, a bi-encoder, or the GraphMean or GNNEncoder that wrote the
            index. By default the checkpoint that the index was written with. In an index with weights per query, the
            ``largest_weights`` of a GraphMean take the place of those that the index was written with.

    Attributes:
        encoder: The bi-encoder that encodes queries.

    Raises:
        FileNotFoundError: If there is no index at the path.
        ValueError: If the index is not contextual, is damaged, or was made with another encoder, with other relations
            or of another graph.
    """

    ARTIFACT_TYPE = "contextual_index"  # with weights per query; else it is an ordinary FlexIndex
    ARTIFACT_FORMAT = "flex"
    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    schematic = {
        "label": "ContextualIndex",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        graph: HeteroGraph | None = None,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder | None = None,
    ) -> None:
        check_type(
            "path", path, (str, os.PathLike), "the folder of an index that index(path) has written"
        )
        check_type(
            "graph",
            graph,
            (HeteroGraph, NoneType),
            "a DocumentGraph, such as ptg.DocumentGraph(path)",
        )
        super().__init__(Path(path).absolute())
        self.graph = graph
        if not os.path.isfile(self.path / META):
            raise FileNotFoundError(f"no index at {str(path)!r:.200}")
        self._files = Flex(self.path)
        about = contextual_meta(self._files)
        identity = about["identity"]
        self._model: str = identity.get("model", "GraphMean")
        encoder = identity["encoder"].rpartition("@")[0] or DEFAULT if encoder is None else encoder
        tuned: Mapping[str, float] = getattr(encoder, "largest_weights", {})
        model: Any = encoder if hasattr(encoder, "largest_weights") else None
        self.encoder: BiEncoder = encoder_of(encoder if model is None else model.encoder)
        if identity["encoder"] != (name := encoder_name(self.encoder)):
            raise ValueError(f"{self!r} needs encoder={identity['encoder']}, got {name}")
        self._largest_weights: Mapping[str, float] | None = None
        if "weights" in about["queries"]:
            weights = {name: about["queries"]["weights"][name] for name in identity["relations"]}
            if tuned and [*tuned] != [*weights]:
                raise ValueError(
                    f"{self!r} has the relations {', '.join(weights)}, the model has {', '.join(tuned)}"
                )
            self._largest_weights = tuned or weights
        if graph is not None and identity.get("graph", graph.fingerprint()) != graph.fingerprint():
            raise ValueError(
                f"{self!r} was made of another graph than {graph!r}: index(path) again"
            )

    def __repr__(self) -> str:
        return f"ContextualIndex({str(self.path)!r})"

    def __str__(self) -> str:
        return self._model if self._largest_weights is not None else "vectors with context"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in READ
        }  # workers read these files

    @property
    def flex(self) -> FlexIndex:
        """The ``FlexIndex`` at the path."""
        return self._files.flex

    @cached_property
    def _weights(self) -> QueryWeights | None:
        if self._largest_weights is None:
            return None
        if not (self.path / SAMPLE).is_file():
            raise FileNotFoundError(f"{self!r} was removed after it had been opened: open it again")
        sample = load_file(self.path / SAMPLE)
        names = (PASSAGES, *self._largest_weights)
        return QueryWeights({name: sample[name] for name in names}, self._largest_weights)

    @cached_property
    def _windows(self) -> Windows | None:
        """The further windows of long passages, with context; they count where they are better than the first one."""
        if not (self.path / WINDOWS).is_file():
            return None
        (about,) = self._files.payload(return_docnos=False, return_dvecs=False)
        vectors = np.memmap(self.path / WINDOWS, FLOAT, "r").reshape(-1, about["vec_size"])
        return Windows(read_array(self.path, "windows"), vectors)

    def __len__(self) -> int:
        """Number of passages."""
        return int(self._files.payload(False, False)[0]["doc_count"])

    @cached_property
    def _codes(self) -> Any:
        """Finds candidates in a large index by their codes; else None."""
        if not (self.path / CODES).is_file():
            return None
        from pyterrier_graph.graph_mean.codes import read_codes

        return read_codes(self.path / CODES)

    def _search(
        self, queries: np.ndarray, num_results: int, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores, of the best window, and numbers of the best passages for some queries; shape (queries, results)."""
        vectors, _ = self._files.payload(return_docnos=False)
        if exact or self._codes is None:
            return nearest(queries, vectors, num_results, self._scores)
        found = min(num_results, len(self))
        best = (
            np.empty((len(queries), found), np.float32),
            np.empty((len(queries), found), np.int64),
        )
        offsets = None if self._windows is None else self._windows.offsets
        for row, passages in enumerate(self._codes(queries, found, offsets)):
            (scores,) = self._scores(queries[[row]], vectors[passages], passages)
            top = _largest(scores, found)
            best[0][row], best[1][row] = scores[top], passages[top]
        return best

    def _scores(self, queries: np.ndarray, vectors: np.ndarray, passages: np.ndarray) -> np.ndarray:
        """Scores, of the best window, of some passages, by number, with these first windows; (queries, passages)."""
        scores = queries @ vectors.T
        if self._windows is not None:
            position, further = self._windows.of(passages)  # the former in ascending order
            first = np.flatnonzero(np.diff(position, prepend=-1))
            if len(first):
                of_windows = np.maximum.reduceat(
                    queries @ further.T, first, axis=1
                )  # (queries, long passages)
                long = position[first]
                scores[:, long] = np.maximum(scores[:, long], of_windows)
        return scores

    def _sums(self, vector: np.ndarray, docnos: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """The names of the parts of scores, and their values, shape (passages, parts)."""
        ids, vectors, _ = self._files.payload()
        names = [OWN, *([] if self._weights is None else self._weights.weights)]
        numbers = numbers_of(ids, docnos)
        products = np.asarray(vectors[numbers], np.float32) * vector
        if self._windows is not None:
            position, further = self._windows.of(numbers)
            rows = np.concatenate(
                [products, further * vector]
            )  # (passages + further windows, width)
            order = np.argsort(rows.sum(1), kind="stable")
            products[np.r_[: len(numbers), position][order]] = rows[
                order
            ]  # the last one, which is the best, stays
        return names, products.reshape(len(docnos), len(names), -1).sum(2)

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains the score of a passage by its own text and its relations.

        Args:
            query: The query.
            docno: The passage.
            graph: The graph that has the texts; by default the graph of the index.

        Returns:
            A row per part of the score, of which an index with fixed weights has one only: ``relation`` (``'own'`` for
            the passage itself), ``source`` (ids of the nodes), ``text`` (their texts, one per line), ``weight`` (of the
            relation for this query; NaN for the passage itself), ``score``. The scores add up.

        Raises:
            ValueError: If there is no graph.
            KeyError: If the passage is not in the graph.
        """
        graph = self.graph if graph is None else graph
        if graph is None:
            raise ValueError(
                f"{self!r} has no graph, which has the texts: explain(..., graph=graph)"
            )
        node = graph.nodes_of([docno])
        weights = (
            {}
            if self._weights is None
            else self.query_weights(pd.DataFrame({"qid": ["1"], "query": [query]}))
        )
        names, (scores,) = self._sums(query_vector(self.query_encoder(), query), [docno])
        rows = []
        for name, score in zip(names, scores.tolist(), strict=True):
            if name == OWN:
                nodes = node
            elif name in QUERY_RELATIONS:  # queries are not in the graph of the passages
                nodes = node[:0]
            else:
                nodes = graph.neighbors(node, name)[1]
            weight = float(weights[name].iloc[0]) if name in weights else float("nan")
            rows.append(
                (name, " ".join(graph.ids_of(nodes)), "\n".join(graph.texts(nodes)), weight, score)
            )
        return pd.DataFrame(rows, columns=["relation", "source", "text", "weight", "score"])

    def retriever(self, num_results: int = 1000, *, exact: bool = False) -> pt.Transformer:
        """Finds passages; ``index.query_encoder() >> index.flex.*`` has other searches.

        All vectors are compared with a query. In an index of a million passages or more, FAISS compares short codes of
        them, and exact scores are computed for the best 2,000, or ten per result. Of a long passage the best window
        counts here, the first one in other searches.

        Columns in: ``qid, query``; with ``query_vec`` of :meth:`query_encoder`, queries are not encoded again. Columns
        out: ``qid, query, docno, score, rank``, with a graph also ``text``.

        Args:
            num_results: Passages per query.
            exact: Whether all vectors are compared in a large index, too.
        """
        found = ContextualRetriever(self, num_results, exact=exact)
        return found._with(_texts_of=self.graph, _fields=["text"])

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries for this index: adds ``query_vec`` to ``qid, query``.

        It precedes other searches of :attr:`flex`: ``index.query_encoder() >> index.flex.torch_retriever()``. The
        encoder's own query encoder does not add the weights per query of an index that has them.
        """
        encode = self.encoder.query_encoder()
        return encode if self._weights is None else encode >> self._weights

    def _encoded(self, queries: list[str]) -> np.ndarray:
        """Vectors of queries for this index, shape (queries, width)."""
        vectors = np.asarray(self.encoder.encode_queries(queries), dtype=np.float32)
        return vectors if self._weights is None else self._weights.widened(vectors)

    def query_weights(self, topics: pd.DataFrame) -> pd.DataFrame:
        """How much each relation counts for some queries, where an index has weights per query.

        Args:
            topics: ``qid, query``.

        Returns:
            The topics with a column of weights per relation.

        Raises:
            ValueError: If the weights are the same for all queries: they are then part of the vectors.
        """
        topics = check_frame(topics, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        if self._weights is None:
            raise ValueError(
                f"{self!r} has no weights per query: it was not made with weights='auto'"
            )
        vectors = np.asarray(
            self.encoder.encode_queries(topics["query"].tolist()), dtype=np.float32
        )
        return pd.concat([topics.reset_index(drop=True), self._weights.weights_of(vectors)], axis=1)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages as :meth:`retriever` does."""
        return self.retriever().transform(inp)

    def _view(self) -> View:
        sizes = {"passages": len(self), "encoder": repr(self.encoder), "texts": repr(self.graph)}
        return View(sizes, title=repr(self))


class ContextualRetriever(Retrieves, pt.Transformer):
    """The retriever of an index, which :meth:`ContextualIndex.retriever` returns."""

    _replaced = Retrieves._replaced | {"query_vec"}
    schematic = {"label": "retriever", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self, index: ContextualIndex, num_results: int = 1000, *, exact: bool = False
    ) -> None:
        check_count("num_results", num_results)
        check_type("exact", exact, bool, "True or False")
        self.index = index
        self.num_results = num_results
        self.exact = exact

    def __repr__(self) -> str:
        given = [str(self.num_results)] * (self.num_results != 1000) + ["exact=True"] * self.exact
        return f"{self.index!r}.retriever({', '.join(given)})"

    def __str__(self) -> str:
        return str(self.index)

    def _found(self, topics: pd.DataFrame) -> Found:
        given = (
            topics["query_vec"]
            if "query_vec" in topics
            else self.index._encoded(topics["query"].tolist())
        )
        docnos, about = self.index._files.payload(return_dvecs=False)
        try:
            vectors = np.array([*given], dtype=np.float32).reshape(-1, about["vec_size"])
        except (OverflowError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self}: a query_vec must be {about['vec_size']} numbers: {error}"
            ) from error
        scores, passages = self.index._search(vectors, self.num_results, self.exact)
        row = np.repeat(np.arange(len(scores)), scores.shape[1])
        ids = np.array(ids_of(docnos, passages.ravel()), dtype=object)
        return Found(row, ids, scores.ravel(), {})


def write_index(
    base_index: Flex | FlexIndex,
    index: Flex | FlexIndex,
    vectors_of: VectorsOf,
    *,
    identity: dict[str, Any],
    width: int | None = None,
    chunk_size: int = 16_384,
    verbose: bool = True,
    weights: QueryWeights | None = None,
    windows_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
) -> Any:
    """Writes an ordinary ``FlexIndex`` with the passages of another one, and other vectors, chunk by chunk.

    Until the index is complete there is nothing at its path; the same call continues after the last whole chunk. Memory
    grows with the chunks, not with the index. ``vectors_of`` computes the vectors of passages by their numbers, which
    ascend, ``width`` dimensions each. ``windows_of`` returns, per further window of some passages, the position of its
    passage, and its vector. ``identity`` has digests of all that the vectors depend on.
    """
    base = base_index.index_path
    docnos, about = base_index.payload(return_dvecs=False)
    count, dimension = about["doc_count"], width or about["vec_size"]
    digest = file_sha256(base / DOCNOS)
    contextual = {"identity": identity, "docnos_sha256": digest, "queries": {}}
    sample = None
    if weights is not None:
        contextual["queries"] = {"weights": weights.weights}
        sample = save(
            {name: vectors.astype(np.float16) for name, vectors in weights.sample.items()}
        )
    kind = HINT | FLEX if weights is None else kind_of(ContextualIndex)
    meta = kind | {"doc_count": count, "vec_size": dimension, "contextual": contextual}

    def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
        found = {VECTORS: checked_vectors(vectors_of(numbers), numbers, dimension)}
        if windows_of is not None:
            position, windows = windows_of(numbers)
            found[WINDOWS] = checked_vectors(windows, numbers[position], dimension)
            found[WINDOW_OFFSETS] = np.bincount(position, minlength=len(numbers))
        return found

    inputs = identity | contextual["queries"] | {"docnos_sha256": digest, "vec_size": dimension}
    inputs["sample"] = sample and hashlib.sha256(sample).hexdigest()
    names = [VECTORS] if windows_of is None else [VECTORS, WINDOWS]
    progress: dict[str, Any] = {"desc": "indexing", "unit": "passage", "delay": 1}
    with atomic_folder(index.index_path, meta) as folder:
        shards = ShardWriter(folder.parent, count, chunk_size, inputs)
        shutil.copyfile(base / DOCNOS, folder / DOCNOS)
        if sample is not None:
            (folder / SAMPLE).write_bytes(sample)
        shards.compute(rows, disable=not verbose, **progress)
        lengths = [] if windows_of is None else [WINDOW_OFFSETS]
        shards.concatenate(folder, names, lengths=lengths)
        if count >= LARGE:
            from pyterrier_graph.graph_mean.codes import write_codes

            files = [folder / name for name in names if (folder / name).stat().st_size]
            arrays = [np.memmap(file, FLOAT, "r").reshape(-1, dimension) for file in files]
            write_codes(folder / CODES, arrays)
    return index


def contextual_meta(index: Flex | FlexIndex) -> dict[str, Any]:
    """The origin of a contextual index: ``'identity'``, ``'docnos_sha256'`` and ``'queries'``.

    Raises:
        ValueError: If the index is damaged, or not contextual.
    """
    if "contextual" not in json.loads((index.index_path / META).read_text(encoding="utf-8")):
        raise ValueError(f"{index!r} is not a contextual index")
    return read_meta(index.index_path)["contextual"]


def query_vector(query_encoder: pt.Transformer, query: str) -> np.ndarray:
    """The vector of a query, float32 of shape (width,)."""
    encoded = query_encoder.transform(pd.DataFrame({"qid": ["1"], "query": [query]}))
    return np.asarray(encoded["query_vec"].iloc[0], dtype=np.float32)


def encoder_of(encoder: Any, *, device: str | None = None, dtype: DType = "auto") -> BiEncoder:
    """Returns the bi-encoder, or loads it by its name; raises TypeError if it is neither."""
    if isinstance(encoder, (str, os.PathLike)):
        return load_encoder(os.fspath(encoder), device=device, dtype=dtype)
    if (
        isinstance(encoder, type)
        or not hasattr(encoder, "encode_queries")
        or not hasattr(encoder, "encode_docs")
    ):
        check_type(
            "encoder",
            encoder,
            str,
            "the name of a checkpoint, or a bi-encoder such as ptg.DualEncoder(name)",
        )
    return encoder


class QueryWeights(WithSignature, pt.Transformer):
    """Turns the vector q of a query into ``[q; w_1 q; w_2 q; ...]``, with a weight per relation.

    A query that matches some title better than any passage asks for the subject of the title, so titles count. A query
    that matches passages much better than all titles asks for a detail, so titles count little. Up to 16,384 passages,
    evenly over the index, and their sources are compared with the query: see the equation of this module. ``(low,
    high)`` is (-0.3, -0.1) for relations of documents, (-0.15, 0.15) for relations of queries.

    ``sample`` has vectors of length 1: ``'passages'``, and the sources of each relation by name, shape (number, d)
    each; ``weights`` are c_r, in the order of the blocks. Columns: ``query_vec``, shape (d,) in, (d * (1 + relations),)
    out.
    """

    schematic = {"label": "QueryWeights", "help_url": None}

    def __init__(self, sample: Sample, weights: Mapping[str, float]) -> None:
        self.weights = check_weights(weights)
        self.sample = {name: vectors.astype(np.float32) for name, vectors in sample.items()}

    def __repr__(self) -> str:
        return f"QueryWeights({self.weights})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Widens the vectors of queries."""
        inp = check_frame(inp, self)
        pt.validate.columns(inp, includes=["query_vec"], context=self)
        if not len(inp):
            return inp
        return inp.assign(
            query_vec=[*self.widened(np.stack(inp["query_vec"].to_numpy()).astype(np.float32))]
        )

    def widened(self, queries: np.ndarray) -> np.ndarray:
        """The vectors of queries with a block per relation, shape (queries, d * (1 + relations))."""
        weights = self._weights_of(queries).astype(np.float32)
        return np.concatenate([queries, *(queries * weight[:, None] for weight in weights)], axis=1)

    def weights_of(self, queries: np.ndarray) -> pd.DataFrame:
        """The weights of some queries, from their vectors of shape (queries, d): a column per relation."""
        return pd.DataFrame(self._weights_of(queries).T, columns=[*self.weights])

    def _weights_of(self, queries: np.ndarray) -> np.ndarray:
        """Shape (relations, queries)."""
        weights = np.empty((len(self.weights), len(queries)))
        for part in blocks(len(queries), QUERIES_AT_ONCE):
            vectors = queries[part]
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            best = _best(vectors, self.sample[PASSAGES])
            for row, (name, largest) in zip(weights, self.weights.items(), strict=True):
                low, high = QUERY_RAMP if name in QUERY_RELATIONS else RAMP
                difference = _best(vectors, self.sample[name]) - best
                row[part] = largest * np.clip((difference - low) / (high - low), 0, 1)
        return weights


def draw_sample(
    sampler: NeighborSampler, network: SideBySide, query_graph: QueryPassageGraph | None = None
) -> Sample:
    """Vectors of some passages, evenly over the index, and of their sources: see :class:`QueryWeights`.

    The vectors have length 1 and half precision. A query graph with a mask may be given.
    """
    from torch.nn.functional import normalize

    numbers = np.unique(
        np.linspace(0, len(sampler) - 1, min(len(sampler), SAMPLED)).astype(np.int64)
    )
    parts: dict[str, list[np.ndarray]] = {PASSAGES: [], **{name: [] for name in network.relations}}
    for part in blocks(len(numbers), PASSAGES_AT_ONCE):
        batch = sampler.sample(numbers[part], query_graph)
        own = normalize(batch.passages, dim=1)
        for name, vectors in {PASSAGES: own, **network.directions(batch)}.items():
            parts[name].append(vectors.half().numpy())
    empty = np.empty((0, network.dimension), np.float16)
    sample = {name: np.concatenate([empty, *vectors]) for name, vectors in parts.items()}
    return {
        name: vectors if name == PASSAGES else np.unique(vectors, axis=0)
        for name, vectors in sample.items()
    }


def _best(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The highest similarity of each query; -1 where there is nothing to compare with."""
    return (queries @ vectors.T).max(1, initial=-1.0)


def nearest(
    queries: np.ndarray,
    vectors: np.ndarray,
    num_results: int,
    scores_of: Callable[
        [np.ndarray, np.ndarray, np.ndarray], np.ndarray
    ] = lambda some, part, numbers: some @ part.T,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and numbers of the passages with the highest scores for each query, shape (queries, results)."""
    found = min(num_results, len(vectors))
    best = np.empty((len(queries), found), np.float32), np.empty((len(queries), found), np.int64)
    for some in blocks(len(queries), max(1, SCORES_AT_ONCE // max(1, len(vectors)))):
        scores = np.empty((len(some), len(vectors)), np.float32)
        for part in blocks(len(vectors), PASSAGES_AT_ONCE):
            rows = slice(part[0], part[-1] + 1)
            scores[:, rows] = scores_of(queries[some], vectors[rows], part)
        for row, values in zip(some, scores, strict=True):
            best[1][row] = top = _largest(values, found)
            best[0][row] = values[top]
    return best


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the largest values, in descending order; equal ones ascend. There are at least so many."""
    if not count:
        return np.empty(0, np.int64)
    blocks = np.maximum.reduceat(
        values, np.arange(0, len(values), 64)
    )  # as many blocks have a value as large
    least = np.partition(blocks if len(blocks) >= count else values, -count)[-count]
    near = np.flatnonzero(values >= least)
    return near[np.argsort(-values[near], kind="stable")[:count]]
