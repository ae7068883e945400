"""The index of contextual vectors: an ordinary ``FlexIndex``, how it is written, opened and searched."""

from __future__ import annotations

import copy
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
    encoder_name,
)
from pyterrier_graph.graph_mean.nearest import (
    nearest,
    nearest_by_codes,
    read_codes,
    write_codes,
)
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import OWN
from pyterrier_graph.storage.arrays import DOCNOS, blocks, ids_of, known_numbers_of
from pyterrier_graph.storage.artifact import atomic_folder, read_meta, verify

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

CODES = "codes.faiss"
LARGE = 1_000_000  # passages from which on an index has codes
PASSAGES_AT_ONCE = 16_384  # whose vectors are computed together
# columns of topics that results lack
REPLACED = {"query_vec", "docno", "docid", "score", "rank", "text"}
EXPLANATION = ["relation", "source", "text", "weight", "score"]  # columns


class ContextualIndex(WithSignature):
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
        self.path = Path(path).absolute()
        self.graph = graph
        self.files = Flex(self.path)
        meta = read_meta(self.path)
        if "contextual" not in meta:
            raise ValueError(f"{str(path)!r} is not a contextual index")
        identity = meta["contextual"]["identity"]
        self.model_name: str = identity["model"]
        self.model = encoder if hasattr(encoder, "vectorizer") else None
        if self.model is not None:
            encoder = self.model.encoder
        if encoder is None:
            checkpoint, _, _ = identity["encoder"].rpartition("@")
            encoder = checkpoint or DEFAULT
        self.encoder = encoder_of(encoder)
        name = encoder_name(self.encoder)
        if name != identity["encoder"]:
            raise ValueError(f"{self!r} needs encoder={identity['encoder']}, got {name}")
        if graph is not None and identity["graph"] != graph.fingerprint():
            raise ValueError(
                f"{self!r} was made of another graph than {graph!r}: index(path) again"
            )

    def __repr__(self) -> str:
        return f"ContextualIndex({str(self.path)!r})"

    def __str__(self) -> str:
        return self.model_name

    def __len__(self) -> int:
        """Number of passages."""
        (about,) = self.files.payload(return_docnos=False, return_dvecs=False)
        return int(about["doc_count"])

    @property
    def flex(self) -> FlexIndex:
        """The ``FlexIndex`` at the path."""
        return self.files.flex

    @cached_property
    def codes(self) -> Any:
        """The codes of the vectors of a large index, a FAISS index; None in a small one."""
        file = self.path / CODES
        return read_codes(file) if file.is_file() else None

    def verify(self) -> Self:
        """Compares all files with their digests; raises ValueError if one is damaged."""
        verify(self.path)
        return self

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries for this index: adds ``query_vec`` to ``qid, query``."""
        return self.encoder.query_encoder()

    def retriever(self, num_results: int = 1000, *, exact: bool = False) -> pt.Transformer:
        """Finds passages: see :class:`ContextualRetriever` for the columns.

        A query is compared with all vectors. In an index of a million passages or more, it is compared with the codes
        of a quarter of them instead, and exact scores are computed for the best 5,000, or ten per result.

        Args:
            num_results: Passages per query.
            exact: Whether to compare a query with all vectors, even in a large index.
        """
        return ContextualRetriever(self, num_results, exact=exact)

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains the score of a passage by its own text and its neighbors: see :meth:`GraphMean.explain`.

        An index that was opened without the model that wrote it has sums only: a row with the whole score.

        Raises:
            KeyError: If the passage is not in the index.
        """
        graph = graph or self.graph
        if self.model is not None:
            return self.model.explain(query, docno, graph=graph)
        docnos, vectors, _ = self.files.payload()
        (passage,) = known_numbers_of(docnos, [docno])
        (query_vector,) = self.encoder.encode_queries([query])
        score = float(vectors[passage] @ query_vector)
        row = own_row(docno, graph, score)
        return pd.DataFrame([row], columns=EXPLANATION)


class Retriever(WithSignature, pt.Transformer):
    """Base of transformers that find at most ``num_results`` results per query."""

    num_results: int

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Finds no more results than a cutoff behind it keeps; what they are does not change."""
        retriever = copy.copy(self)
        retriever.num_results = min(k, self.num_results)
        return retriever


class ContextualRetriever(Retriever):
    """The retriever of a :class:`ContextualIndex`.

    Columns in: ``qid, query``; with a column ``query_vec``, queries are not encoded again. Columns out: ``qid, query,
    docno, score, rank``, and ``text`` if the index has a graph.

    Args:
        index: The index.
        num_results: Passages per query.
        exact: Whether to compare a query with all vectors, even in a large index.
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
        self.index = index
        self.num_results = num_results
        self.exact = exact
        self.texts = texts

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
            nodes = graph.passage_nodes[hits.passage]
            texts = graph.texts(nodes)
            columns["text"] = pd.array(texts, dtype="str")
        return ranking(topics, hits.query, columns)

    def hits(self, topics: pd.DataFrame) -> Hits:
        """The passages, by number."""
        vectors, _ = self.index.files.payload(return_docnos=False)
        if "query_vec" in topics:
            encoded = topics["query_vec"].tolist()
        else:
            encoded = self.index.encoder.encode_queries(topics["query"].tolist())
        dimension = vectors.shape[1]
        queries = np.array(encoded, np.float32).reshape(-1, dimension)  # also without queries
        codes = None if self.exact else self.index.codes
        if codes is None:
            scores, passages = nearest(queries, vectors, self.num_results)  # (queries, results)
        else:
            scores, passages = nearest_by_codes(queries, vectors, codes, self.num_results)
        num_queries, num_results = scores.shape
        query = np.repeat(np.arange(num_queries), num_results)
        return Hits(query, passages.ravel(), scores.ravel())


class Hits(NamedTuple):
    """Passages that were found for queries, the best of each query first; arrays of shape (results,)."""

    query: np.ndarray  # number of the query, ascending
    passage: np.ndarray  # number of the passage
    score: np.ndarray


def ranking(topics: pd.DataFrame, query: np.ndarray, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A ranking with the columns of results and of their topics; ``query`` has the number of each result's topic."""
    data: dict[str, Any] = {}
    for name in topics:
        if name not in REPLACED:
            data[name] = topics[name].array.take(query)
    data.update(columns)
    data["rank"] = positions(query)
    return pd.DataFrame(data)


def write_index(
    base: Flex | FlexIndex,
    path: Path,
    vectors_of: Callable[[np.ndarray], np.ndarray],
    *,
    identity: dict[str, Any],
    verbose: bool = True,
) -> None:
    """Writes a ``FlexIndex`` that has the passages of ``base`` and new vectors, computed chunk by chunk.

    Until the index is complete there is nothing at its path.

    Args:
        base: The index of the encoder's own vectors.
        path: Folder of the new index.
        vectors_of: Computes vectors of passages, shape (passages, d), by their numbers, which ascend.
        identity: Digests of everything that the vectors depend on.
        verbose: Whether to show progress.
    """
    (about,) = base.payload(return_docnos=False, return_dvecs=False)
    count = about["doc_count"]
    dimension = about["vec_size"]
    meta = {
        **FLEX,
        "doc_count": count,
        "vec_size": dimension,
        "contextual": {"identity": identity},
    }
    progress = {"desc": "indexing", "unit": "passage", "delay": 1, "disable": not verbose}
    with atomic_folder(path, meta) as folder, pt.tqdm(total=count, **progress) as bar:
        shutil.copyfile(base.index_path / DOCNOS, folder / DOCNOS)
        with open(folder / VECTORS, "wb") as out:
            for numbers in blocks(count, PASSAGES_AT_ONCE):
                vectors = np.asarray(vectors_of(numbers), FLOAT)
                vectors.tofile(out)
                bar.update(len(numbers))
        if count >= LARGE:
            written = np.memmap(folder / VECTORS, FLOAT, "r")
            write_codes(folder / CODES, written.reshape(-1, dimension))


def own_row(docno: str, graph: Any, score: float) -> tuple[Any, ...]:
    """The row of an explanation that has the passage itself; its text is in a graph, if there is one."""
    text = ""
    if graph is not None:
        node = graph.nodes_of([docno])
        (text,) = graph.texts(node)
    return OWN, docno, text, np.nan, score


def encoder_of(encoder: Any, **hardware: Any) -> BiEncoder:
    """Returns a bi-encoder; loads the one of a given name on a ``device`` and with a ``dtype``."""
    if isinstance(encoder, (str, os.PathLike)):
        return load_encoder(os.fspath(encoder), **hardware)
    return encoder
