"""The folders and files of a GraphIndex.

::

    tables/         the tables of documents (their records) and passages (with context; searched by BM25)
    encoder/        the encoder, unless it is a checkpoint
    encoded/        the encoder's own vectors, so that unchanged texts are not encoded again
    v3/             of version 3: the graph, the answered queries, the vectors with context
    pt_meta.json    names the present version, its tables and settings
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyterrier_graph.storage.artifact import META

TABLES, ENCODER, ENCODED = "tables", "encoder", "encoded"  # folders of all versions
DOCUMENTS, PASSAGES = "documents", "passages"  # tables
GRAPH, QUERIES, VECTORS, LINES = (
    "graph",
    "queries",
    "vectors.flex",
    "lines.npy",
)  # in the folder of a version
TOPICS, QRELS = "topics.json", "qrels.json"
BM25 = "bm25."  # and the engine: the index of PISA or Terrier
VERSION = re.compile(r"v\d+")
HINT = "latest_version_hint.json"  # of Lance: the only one of its files that changes


def table_of(meta: Mapping[str, Any], kind: str) -> tuple[str, int | None]:
    """The name and version of a table; a new name and None if there is none. Names are also parts of paths."""
    name, version = meta["tables"].get(kind, (f"{kind}-{meta['number']}", None))
    if not re.fullmatch(rf"{kind}-\d+", str(name)):
        raise ValueError(f"{META} is damaged: {name!r} is not the name of a table")
    return name, version
