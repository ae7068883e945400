"""The index of contextual vectors: an ordinary ``FlexIndex``, how it is written, opened and searched."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, positions
from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.openvino_encoder import load_encoder
from pyterrier_graph.encoders.stored_vectors import (
    FLEX,
    FLOAT,
    VECTORS,
    checked_vectors,
    encoder_name,
)
from pyterrier_graph.graph_mean.nearest import best_of_candidates, nearest, read_codes, write_codes
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import OWN
from pyterrier_graph.html import HtmlCard, HtmlDisplay
from pyterrier_graph.storage.arrays import DOCNOS, blocks, ids_of
from pyterrier_graph.storage.artifact import META, atomic_folder, read_meta, verify

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.encoders.checkpoints import DType

CODES = "codes.faiss"
LARGE = 1_000_000  # passages from which on an index has codes
# columns of topics that results lack
REPLACED = {"query_vec", "docno", "docid", "score", "rank", "text"}


class ContextualIndex(HtmlDisplay, WithSignature):
    """Opens an index that ``GraphMean.index`` or ``GNNEncoder.index`` has written, for search with texts.

    The index itself is an ordinary ``FlexIndex``, :attr:`flex`, which any dense retriever can search::

        index = ptg.ContextualIndex("corpus.flex", graph)
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)
        exact = index.query_encoder() >> index.flex.torch_retriever()

    Args:
        path: Folder of the index.
        graph: The document graph, which has the texts of the passages; None for passages without texts.
        encoder: Encodes queries: the name of a checkpoint, a bi-encoder, or the GraphMean or GNNEncoder that wrote the
            index, which can also explain scores. By default the checkpoint that the index was written with.

    Attributes:
        encoder: The bi-encoder that encodes queries.

    Raises:
        FileNotFoundError: If there is no index at the path.
        ValueError: If the index is not contextual, is damaged, or was made with another encoder or of another graph.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        graph: HeteroGraph | None = None,
        encoder: Any = None,
    ) -> None:
        self.path, self.graph = Path(path).absolute(), graph
        if not os.path.isfile(self.path / META):
            raise FileNotFoundError(f"no index at {str(path)!r:.200}")
        self.files = Flex(self.path)
        identity = contextual_meta(self.path)["identity"]
        self.model_name: str = identity["model"]
        self.model = encoder if hasattr(encoder, "vectorizer") else None
        if encoder is None:
            encoder = identity["encoder"].rpartition("@")[0] or DEFAULT
        self.encoder = encoder_of(encoder if self.model is None else self.model.encoder)
        if identity["encoder"] != (name := encoder_name(self.encoder)):
            raise ValueError(f"{self!r} needs encoder={identity['encoder']}, got {name}")
        if graph is not None and "graph" in identity:
            if identity["graph"] != graph.fingerprint():
                raise ValueError(
                    f"{self!r} was made of another graph than {graph!r}: index(path) again"
                )

    def __repr__(self) -> str:
        return f"ContextualIndex({str(self.path)!r})"

    def __str__(self) -> str:
        return self.model_name

    def __len__(self) -> int:
        """Number of passages."""
        return int(self.files.payload(False, False)[0]["doc_count"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "codes"}

    def _view(self) -> HtmlCard:
        sizes = {
            "passages": len(self),
            "encoder": repr(self.encoder),
            "texts": repr(self.graph),
        }
        return HtmlCard(sizes, title=repr(self))

    @property
    def flex(self) -> FlexIndex:
        """The ``FlexIndex`` at the path."""
        return self.files.flex

    @cached_property
    def codes(self) -> Any:
        """Finds candidates in a large index; None in a small one."""
        if not (self.path / CODES).is_file():
            return None
        return read_codes(self.path / CODES)

    def verify(self) -> Self:
        """Compares all files with their digests; raises ValueError if one is damaged."""
        verify(self.path)
        return self

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries for this index: adds ``query_vec`` to ``qid, query``."""
        return self.encoder.query_encoder()

    def retriever(self, num_results: int = 1000, *, exact: bool = False) -> pt.Transformer:
        """Finds passages; the columns are those of :class:`ContextualRetriever`.

        A query is compared with all vectors. In an index of a million passages or more, it is compared with the codes
        of a quarter of them instead, and exact scores are computed for the best 5,000, or ten per result.

        Args:
            num_results: Passages per query.
            exact: Whether to compare a query with all vectors of a large index, too.
        """
        return ContextualRetriever(self, num_results, exact=exact)

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains the score of a passage by its own text and its neighbors: see :meth:`GraphMean.explain`.

        An index that was opened without the model that wrote it has sums only: a row with the whole score.

        Raises:
            KeyError: If the passage is not in the graph.
        """
        graph = self.graph if graph is None else graph
        if self.model is not None:
            return self.model.explain(query, docno, graph=graph)
        docnos, vectors, _ = self.files.payload()
        (query_vector,) = self.encoder.encode_queries([query])
        row = {
            "relation": OWN,
            "source": docno,
            "text": "" if graph is None else graph.texts(graph.nodes_of([docno]))[0],
            "weight": np.nan,
            "score": float(vectors[docnos.inv[docno]] @ query_vector),
        }
        return pd.DataFrame([row])


class ContextualRetriever(WithSignature, pt.Transformer):
    """The retriever of a :class:`ContextualIndex`.

    Columns in: ``qid, query``; with a column ``query_vec``, queries are not encoded again. Columns out: ``qid, query,
    docno, score, rank``, and ``text`` if the index has a graph.

    Args:
        index: The index.
        num_results: Passages per query.
        exact: Whether to compare a query with all vectors of a large index, too.
        texts: Whether results have texts.
    """

    schematic = {"label": "retriever", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self,
        index: ContextualIndex,
        num_results: int = 1000,
        *,
        exact: bool = False,
        texts: bool = True,
    ) -> None:
        self.index, self.num_results = index, num_results
        self.exact, self.texts = exact, texts

    def __repr__(self) -> str:
        return f"{self.index!r}.retriever({self.num_results}, exact={self.exact})"

    def __str__(self) -> str:
        return str(self.index)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        topics = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        hits = self.hits(topics)
        lookup, _ = self.index.files.payload(return_dvecs=False)
        docnos = ids_of(lookup, hits.passage)
        columns = {"docno": pd.array(docnos, dtype="str"), "score": hits.score}
        graph = self.index.graph
        if self.texts and graph is not None:
            texts = graph.texts(graph.nodes_of(docnos))
            columns["text"] = pd.array(texts, dtype="str")
        return ranking(topics, hits.query, columns)

    def hits(self, topics: pd.DataFrame) -> Hits:
        """The passages, by number."""
        scores, passages = self._nearest(self._vectors(topics))  # (queries, results) each
        query = np.repeat(np.arange(len(topics)), scores.shape[1])
        return Hits(query, passages.ravel(), scores.ravel())

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Finds no more passages than a cutoff behind it keeps."""
        other = copy.copy(self)
        other.num_results = min(k, self.num_results)
        return other

    def _nearest(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the best passages for vectors of queries, shape (queries, results) each."""
        vectors, _ = self.index.files.payload(return_docnos=False)
        codes = None if self.exact else self.index.codes
        if codes is None:
            return nearest(queries, vectors, self.num_results)
        return best_of_candidates(queries, vectors, codes, self.num_results)

    def _vectors(self, topics: pd.DataFrame) -> np.ndarray:
        """Vectors of queries, shape (queries, d)."""
        if "query_vec" not in topics:
            vectors = self.index.encoder.encode_queries(topics["query"].tolist())
            return np.asarray(vectors, dtype=np.float32)
        dimension = self.index.files.payload(False, False)[0]["vec_size"]
        return np.array([*topics["query_vec"]], np.float32).reshape(-1, dimension)


class Hits(NamedTuple):
    """Passages that were found for queries, the best of each query first; arrays of shape (results,)."""

    query: np.ndarray  # number of the query, ascending
    passage: np.ndarray  # number of the passage
    score: np.ndarray


def ranking(topics: pd.DataFrame, query: np.ndarray, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A ranking with columns of results, and those of their topics; ``query`` is the number of a result's topic."""
    names = [name for name in topics if name not in REPLACED]
    about = {name: topics[name].array.take(query) for name in names}
    return pd.DataFrame(about | dict(columns) | {"rank": positions(query)})


def write_index(
    base: Flex | FlexIndex,
    path: Path,
    vectors_of: Callable[[np.ndarray], np.ndarray],
    *,
    identity: dict[str, Any],
    chunk_size: int = 16_384,
    verbose: bool = True,
) -> None:
    """Writes a ``FlexIndex`` that has the passages of ``base`` and new vectors, computed chunk by chunk.

    Until the index is complete there is nothing at its path.

    Args:
        base: The index of the encoder's own vectors.
        path: Folder of the new index.
        vectors_of: Computes vectors of passages, shape (passages, d), by their numbers, which ascend.
        identity: Digests of everything that the vectors depend on.
        chunk_size: Passages per chunk. Memory grows with it.
        verbose: Whether to show progress.
    """
    (about,) = base.payload(return_docnos=False, return_dvecs=False)
    count, dimension = about["doc_count"], about["vec_size"]
    meta: dict[str, Any] = FLEX | {"doc_count": count, "vec_size": dimension}
    meta["contextual"] = {"identity": identity}
    progress = {"desc": "indexing", "unit": "passage", "delay": 1, "disable": not verbose}
    with atomic_folder(path, meta) as folder, pt.tqdm(total=count, **progress) as bar:
        shutil.copyfile(base.index_path / DOCNOS, folder / DOCNOS)
        with open(folder / VECTORS, "wb") as out:
            for numbers in blocks(count, chunk_size):
                vectors = checked_vectors(vectors_of(numbers), len(numbers), dimension)
                vectors.tofile(out)
                bar.update(len(numbers))
        if count >= LARGE:
            vectors = np.memmap(folder / VECTORS, FLOAT, "r").reshape(-1, dimension)
            write_codes(folder / CODES, vectors)


def contextual_meta(path: Path) -> dict[str, Any]:
    """The origin of a contextual index: ``'identity'``; ValueError if it has none."""
    if "contextual" not in json.loads((path / META).read_text(encoding="utf-8")):
        raise ValueError(f"{str(path)!r} is not a contextual index")
    return read_meta(path)["contextual"]


def encoder_of(encoder: Any, *, device: str | None = None, dtype: DType = "auto") -> BiEncoder:
    """The given bi-encoder, or the one of that name; raises TypeError for anything else."""
    if isinstance(encoder, (str, os.PathLike)):
        return load_encoder(os.fspath(encoder), device=device, dtype=dtype)
    methods = ("encode_queries", "encode_docs")
    if not all(hasattr(encoder, name) for name in methods):
        raise TypeError(
            "encoder must be the name of a checkpoint, or a bi-encoder such as "
            f"ptg.DualEncoder(name), got {encoder!r:.60}"
        )
    return encoder
