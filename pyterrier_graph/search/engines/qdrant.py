"""Serves a GraphIndex from Qdrant: ``pip install 'pyterrier_graph[qdrant]'``."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Self
from uuid import NAMESPACE_URL, uuid5
from zlib import crc32

import numpy as np
from qdrant_client import QdrantClient, models

from pyterrier_graph.search.bm25 import K1, B, query_terms, stem, words
from pyterrier_graph.search.engines.base import Engine, Hits

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

LENGTH = 100  # words of an average passage


class QdrantEngine(Engine):
    """A collection of Qdrant with a vector per passage, and its terms as a sparse vector, for BM25.

    ``QdrantEngine(index, QdrantClient("http://server:6333"), "corpus").upload().hybrid()``
    """

    def __init__(self, index: GraphIndex, client: QdrantClient, collection: str) -> None:
        super().__init__(index)
        self.client, self.collection = client, collection

    def upload(self, since: int | None = None) -> Self:
        """Uploads the passages: all, or those that have changed after a version of the index."""
        if not self.client.collection_exists(self.collection):
            self._create_collection()
        elif since is not None:
            docnos = self.index.deleted_since(since)
            if docnos:
                self.client.delete(self.collection, [*map(_point_id, docnos)], wait=True)
        points = map(_point, self.index.rows(since))
        self.client.upload_points(self.collection, points, wait=True)
        return self

    def _create_collection(self) -> None:
        """Creates a collection of dense vectors and of sparse vectors, whose terms Qdrant weights by IDF."""
        meta, *_ = self.index.contextual.files.payload(False, False)
        dense = models.VectorParams(size=meta["vec_size"], distance=models.Distance.DOT)
        terms = models.SparseVectorParams(modifier=models.Modifier.IDF)
        self.client.create_collection(
            self.collection, {"dense": dense}, sparse_vectors_config={"terms": terms}
        )

    def find_vector(self, vector: np.ndarray, num_results: int) -> Hits:
        """The passages with the highest inner products."""
        return self._find(vector.tolist(), "dense", num_results)

    def find_words(self, query: str, num_results: int) -> Hits:
        """The passages with the highest BM25 scores."""
        indices = sorted({crc32(term.encode()) for term in query_terms(query)})
        vector = models.SparseVector(indices=indices, values=[1.0] * len(indices))
        return self._find(vector, "terms", num_results)

    def _find(self, query: list[float] | models.SparseVector, using: str, limit: int) -> Hits:
        response = self.client.query_points(self.collection, query, using=using, limit=limit)
        hits: Hits = []
        for point in response.points:
            payload = point.payload or {}
            hits.append((payload["docno"], point.score, payload["text"]))
        return hits


def _point(row: dict[str, Any]) -> models.PointStruct:
    """The point of a passage."""
    terms = Counter(map(stem, words(row["context"])))
    return models.PointStruct(
        id=_point_id(row["docno"]),
        vector={"dense": row["vector"].tolist(), "terms": _sparse(terms)},
        payload={"docno": row["docno"], "text": row["text"]},
    )


def _point_id(docno: str) -> str:
    return str(uuid5(NAMESPACE_URL, docno))


def _sparse(counts: Counter[str]) -> models.SparseVector:
    """The BM25 weights of a passage's terms, without the inverse document frequency, which Qdrant applies."""
    norm = K1 * (1 - B + B * counts.total() / LENGTH)
    weights: defaultdict[int, float] = defaultdict(float)
    for term, count in counts.items():
        weights[crc32(term.encode())] += count / (count + norm)
    return models.SparseVector(indices=[*weights], values=[*weights.values()])
