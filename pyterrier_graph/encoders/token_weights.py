"""What a token of a query counts: the inverse document frequency of its word piece."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyterrier as pt

from pyterrier_graph.artifacts import META, read_meta, writing
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.vector_files import blocks
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.graphs.array_files import ArrayFiles, read_array
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.warning_categories import SpeedWarning

PASSAGES_AT_ONCE = 1024
COUNTS = "document_frequencies"
KIND = {"type": "token_frequencies", "format": "int64", "format_version": 1}

IdsOf = Callable[[np.ndarray], CSR]


class Frequencies(NamedTuple):
    """In how many passages of a graph each word piece is."""

    counts: np.ndarray  # passages per word piece, shape (word pieces,)
    passages: int  # all passages

    def idf(self, query: np.ndarray, wordless: np.ndarray) -> np.ndarray:
        """Weights of a query's tokens: the inverse document frequency, divided by its mean over the query's words.

        The frequency is that of BM25, ``log(1 + (N - n + 0.5) / (n + 0.5))`` (Robertson and Zaragoza 2009, with 1 added
        so that no weight is negative). A token that stands for no word has weight 1, the mean.

        Args:
            query: Numbers of the query's word pieces, shape (query tokens,).
            wordless: Which word pieces stand for no word, shape (word pieces,).
        """
        count = self.counts[query]
        idf = np.log1p((self.passages - count + 0.5) / (count + 0.5))
        words = ~wordless[query]
        return np.where(words, idf / idf[words].mean(), 1.0) if words.any() else np.ones(len(query))


def count_passages(ids: CSR, vocabulary: int) -> np.ndarray:
    """Per word piece the number of rows that have it, shape (vocabulary,), int64."""
    rows = np.repeat(np.arange(len(ids)), np.diff(ids.indptr))
    return np.bincount(np.unique(rows * vocabulary + ids.indices) % vocabulary, minlength=vocabulary)


def passage_frequencies(
    graph: HeteroGraph, encoder: TokenEncoder, ids_of: IdsOf, *, titles: bool = False, verbose: bool = True
) -> Frequencies:
    """Counts in how many of a graph's passages each word piece of an encoder is.

    For a graph on disk the counts are kept in ``<graph path>.frequencies``, so that they are computed once per encoder.

    Args:
        graph: The graph.
        encoder: The encoder whose word pieces are counted; a word piece beyond its passage length does not count.
        ids_of: Returns the word pieces of some nodes.
        titles: Whether ``ids_of`` puts the titles of sections before passages.
        verbose: Whether to show progress.

    Warns:
        UserWarning: If the counts cannot be written beside the graph.
    """
    nodes, vocabulary = graph.passage_nodes, len(encoder.network.tokenizer)

    def counted() -> np.ndarray:
        counts = np.zeros(vocabulary, dtype=np.int64)
        with pt.tqdm(total=len(nodes), desc="word pieces", unit="passage", delay=1, disable=not verbose) as bar:
            for numbers in blocks(len(nodes), PASSAGES_AT_ONCE):
                counts += count_passages(ids_of(nodes[numbers]), vocabulary)
                bar.update(len(numbers))
        return counts

    place = getattr(graph, "path", None)
    if place is None:
        return Frequencies(counted(), len(nodes))
    identity = {"encoder": encoder.fingerprint(), "graph": graph.fingerprint(), "titles": titles}
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    path, meta = Path(f"{place}.frequencies", digest), KIND | {"identity": identity}
    if (path / META).is_file():
        read_meta(path, meta)
        return Frequencies(read_array(path, COUNTS), len(nodes))
    counts = counted()
    try:
        with writing(path, dict(meta)) as folder, ArrayFiles() as files:
            files.append(folder, COUNTS, counts)
    except OSError as error:
        if not (path / META).is_file():  # no other process has written them meanwhile
            warnings.warn(
                f"frequencies of word pieces are not kept, and counted anew next time: {error}; "
                "let the program write in the folder beside the graph",
                SpeedWarning,
                stacklevel=2,
            )
    return Frequencies(counts, len(nodes))
