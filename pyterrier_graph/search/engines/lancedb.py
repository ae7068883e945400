"""Serves a GraphIndex from LanceDB, also over an object store: ``pip install 'pyterrier_graph[lancedb]'``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS
from lancedb.query import MatchQuery

from pyterrier_graph.search.bm25 import words
from pyterrier_graph.search.engines.base import Engine, EngineHits

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

ROWS = 4096  # per batch
COLUMNS = ["docno", "text"]


class LanceDBEngine(Engine):
    """A table of LanceDB with the texts, contexts and vectors of passages.

    ``LanceDBEngine(index, "s3://bucket/corpus", "passages").upload().hybrid()``
    """

    def __init__(self, index: GraphIndex, uri: str, table: str) -> None:
        super().__init__(index)
        self.uri = uri
        self.name = table

    @property
    def table(self) -> Any:
        """The table as it is now; each process opens it."""
        return lancedb.connect(self.uri).open_table(self.name)

    def upload(self, since: int | None = None) -> Self:
        """Uploads all passages, in place of what is there, or only what has changed since a version of the index."""
        batches = _batches(self.index.rows(since))
        if since is None:
            database = lancedb.connect(self.uri)
            table = database.create_table(self.name, next(batches), mode="overwrite")
            for batch in batches:
                table.add(batch)
        else:
            table = self.table
            for docno in self.index.deleted_since(since):
                escaped = docno.replace("'", "''")
                table.delete(f"docno = '{escaped}'")
            for batch in batches:
                merge = table.merge_insert("docno")
                merge.when_matched_update_all().when_not_matched_insert_all().execute(batch)
        table.create_index("context", config=FTS(language="English", stem=True), replace=True)
        return self

    def find_vector(self, vector: np.ndarray, num_results: int) -> EngineHits:
        """The passages with the highest inner products."""
        search = self.table.search(vector, vector_column_name="vector")
        search = search.distance_type("dot").limit(num_results)
        rows = search.select([*COLUMNS, "_distance"]).to_list()
        return [(row["docno"], 1 - row["_distance"], row["text"]) for row in rows]

    def find_words(self, query: str, num_results: int) -> EngineHits:
        """The passages with the highest BM25 scores."""
        match_query: Any = MatchQuery  # mypy does not know that its options have defaults
        match = match_query(separated_words(query), "context")
        search = self.table.search(match, query_type="fts").limit(num_results)
        rows = search.select([*COLUMNS, "_score"]).to_list()
        return [(row["docno"], row["_score"], row["text"]) for row in rows]


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.Table]:
    """Yields tables of rows. Contexts become words with spaces between them, for the engine's tokenizer."""
    while batch := [*islice(rows, ROWS)]:
        columns = {name: pa.array([row[name] for row in batch]) for name in COLUMNS}
        columns["context"] = pa.array([separated_words(row["context"]) for row in batch])
        vectors = np.stack([row["vector"] for row in batch])  # (rows, d)
        width = vectors.shape[1]
        columns["vector"] = pa.FixedSizeListArray.from_arrays(vectors.ravel(), width)
        yield pa.table(columns)


def separated_words(text: str) -> str:
    """The words of a text with spaces between them, also in Chinese."""
    return " ".join(words(text))
