"""Serves a GraphIndex from Qdrant: ``pip install 'pyterrier_graph[qdrant]'``."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self
from uuid import NAMESPACE_URL, uuid5
from zlib import crc32

import numpy as np
from qdrant_client import QdrantClient, models

from pyterrier_graph.search.bm25 import K1, B, query_terms, term_counts
from pyterrier_graph.search.engines.base import Engine, EngineHits

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

LENGTH = 100  # words of an average passage


class QdrantEngine(Engine):
    """A collection of Qdrant with a vector per passage, and its terms as a sparse vector, for BM25.

    ``QdrantEngine(index, QdrantClient("http://server:6333"), "corpus").upload().hybrid()``
    """

    def __init__(self, index: GraphIndex, client: QdrantClient, collection: str) -> None:
        super().__init__(index)
        self.client = client
        self.collection = collection

    def upload(self, since: int | None = None) -> Self:
        """Uploads all passages, in place of what is there, or only what has changed since a version of the index."""
        if since is None:
            self.client.delete_collection(self.collection)
            self._create_collection()
        else:
            ids: list[Any] = [_point_id(docno) for docno in self.index.deleted_since(since)]
            if ids:
                self.client.delete(self.collection, ids, wait=True)
        points = map(_point, self.index.rows(since))
        self.client.upload_points(self.collection, points, wait=True)
        return self

    def _create_collection(self) -> None:
        """Creates a collection of dense vectors and of sparse vectors, whose terms Qdrant weights by IDF."""
        files = self.index.contextual.files
        (meta,) = files.payload(return_docnos=False, return_dvecs=False)
        dense = models.VectorParams(size=meta["vec_size"], distance=models.Distance.DOT)
        terms = models.SparseVectorParams(modifier=models.Modifier.IDF)
        self.client.create_collection(
            self.collection, {"dense": dense}, sparse_vectors_config={"terms": terms}
        )

    def find_vector(self, vector: np.ndarray, num_results: int) -> EngineHits:
        """The passages with the highest inner products."""
        return self._find(vector.tolist(), "dense", num_results)

    def find_words(self, query: str, num_results: int) -> EngineHits:
        """The passages with the highest BM25 scores."""
        terms = {_term_number(term) for term in query_terms(query)}
        vector = models.SparseVector(indices=sorted(terms), values=[1.0] * len(terms))
        return self._find(vector, "terms", num_results)

    def _find(self, query: Any, using: str, limit: int) -> EngineHits:
        response: Any = self.client.query_points(self.collection, query, using=using, limit=limit)
        return [(hit.payload["docno"], hit.score, hit.payload["text"]) for hit in response.points]


def _point(row: dict[str, Any]) -> models.PointStruct:
    """The point of a passage."""
    return models.PointStruct(
        id=_point_id(row["docno"]),
        vector={"dense": row["vector"].tolist(), "terms": _sparse_vector(row["context"])},
        payload={"docno": row["docno"], "text": row["text"]},
    )


def _point_id(docno: str) -> str:
    return str(uuid5(NAMESPACE_URL, docno))


def _term_number(term: str) -> int:
    return crc32(term.encode())


def _sparse_vector(context: str) -> models.SparseVector:
    """The BM25 weights of a passage's terms, without the inverse document frequency, which Qdrant applies."""
    counts = term_counts(context)
    norm = K1 * (1 - B + B * counts.total() / LENGTH)
    weights: defaultdict[int, float] = defaultdict(float)  # two terms may have the same number
    for term, count in counts.items():
        weights[_term_number(term)] += count / (count + norm)
    return models.SparseVector(indices=[*weights], values=[*weights.values()])
