"""The data that the folds of a collection share: its graph, the encoder's vectors of its passages, and BM25."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyterrier as pt
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Record
from experiments.harness.first_stage import bm25
from experiments.harness.late_chunking import LateChunking
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.pair.dual_encoder import NETWORK
from pyterrier_graph.search.versions import ENCODED

WHOLE = ("cranfield", "vaswani")  # collections of abstracts, each of which is one passage
POOLED = ("cranfield", "cacm", "vaswani")
NO_LIMIT = 1_000_000
QUERY_TOKENS = 128


class Corpus:
    """A collection, with what all its folds share; each part is made when it is needed, and kept in a folder.

    Args:
        name: Name of the collection on the command line.
        collection: The collection.
        output: Folder.
        options: Of the command line: the encoder, its lengths, and what BM25 runs on.
    """

    def __init__(
        self, name: str, collection: Collection, output: Path, options: argparse.Namespace
    ) -> None:
        self.name, self.collection, self.output, self.engine = (
            name,
            collection,
            output,
            options.first_stage,
        )
        self.cross_encoder, self.masked = options.cross_encoder, options.masked
        self._encoder, self.max_tokens = options.encoder, options.max_tokens
        self.vectors = output / "vectors"
        self.passage_words = NO_LIMIT if name in WHOLE else 120
        self.graph = collection.graph(output / "documents", passage_words=self.passage_words)

    @property
    def pooled(self) -> bool:
        """Whether the judgments are pooled, and name documents that are less or not relevant.

        Those of CACM and Vaswani name relevant documents only, all with the same grade: in any order of the judged
        documents nothing is wrong.
        """
        return self.name in POOLED and self.collection.all_queries.qrels["label"].nunique() > 1

    @property
    def family(self) -> str:
        """Collections with the same documents are never "elsewhere" for one another."""
        return self.name.partition("-")[0]

    @property
    def titled(self) -> bool:
        """Whether passages have titles."""
        return TITLE in self.graph.relations and len(self.graph.edges(TITLE).indices) > 0

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The dual-encoder."""
        return SentenceEncoder(self._checkpoint, verbose=False, **self._lengths)

    @property
    def _checkpoint(self) -> str | Path:
        saved = Path(self._encoder) / NETWORK
        return saved if saved.exists() else self._encoder

    @property
    def _lengths(self) -> dict[str, Any]:
        # nothing of a query is cut: those of CACM have up to a hundred words
        return {
            "max_passage_tokens": self.max_tokens,
            "max_query_tokens": min(QUERY_TOKENS, self.max_tokens),
        }

    @cached_property
    def untitled_index(self) -> FlexIndex:
        """The vectors of the texts of passages alone."""
        return base_vectors(self.vectors, self.graph, self.encoder).flex

    @cached_property
    def titled_index(self) -> FlexIndex:
        """The vectors of passages with the titles of their sections in front."""
        return base_vectors(self.vectors, self.graph, self.encoder, titles=True).flex

    @cached_property
    def late_index(self) -> FlexIndex:
        """The vectors of passages that the encoder reads with their documents; a dot follows each id."""
        index = FlexIndex(self.output / "late.flex", verbose=False)
        if not index.built():
            # not the ids: FlexIndex takes those that end with numbers, and the %p in them, for format strings
            docnos = (f"{docno}." for docno in self.graph.ids_of(self.graph.passage_nodes))
            vectors = zip(docnos, LateChunking(self.encoder, self.graph).encode(), strict=True)
            index.index({"docno": docno, "doc_vec": vector} for docno, vector in vectors)
        return index

    def titled_bm25(self, titles: int = 1) -> pt.Transformer:
        """BM25 over passages with their titles, so many times."""
        return self.bm25_over("titles", self.output / f"titles-{titles}.{self.engine}", {}, titles)

    @cached_property
    def bm25(self) -> pt.Transformer:
        """BM25 over the texts of passages."""
        return self.bm25_over("passages", self.output / self.engine)

    def bm25_over(
        self, name: str, path: Path, context: dict[str, str] | None = None, titles: int = 1
    ) -> pt.Transformer:
        """BM25 over passages, with their titles, so many times, and further texts by docno where there is a context."""

        def records() -> Iterator[Record]:
            for record in self.graph.get_corpus_iter():
                title, more = (
                    ("", "")
                    if context is None
                    else (record["title"], context.get(record["docno"], ""))
                )
                yield record | {
                    "title": "\n".join([title] * titles),
                    "text": f"{record['text']}\n{more}",
                }

        return bm25(Collection(f"{self.name}, {name}", records, {}), path, self.engine)

    @cached_property
    def graph_index(self) -> ptg.GraphIndex:
        """All of it in one index, which has no answered queries yet."""
        index = ptg.GraphIndex(self.output / "index", encoder=self.encoder)
        if not index.built():
            self.vectors.mkdir(parents=True, exist_ok=True)
            shutil.copytree(
                self.vectors, index.path / ENCODED, dirs_exist_ok=True
            )  # texts are not encoded twice
            index.index(self.collection.get_corpus_iter(), passage_words=self.passage_words)
        return index

    @cached_property
    def maxsim(self) -> ptg.GraphMaxSim:
        """GraphMaxSim over stored token vectors."""
        encoder = ptg.TokenEncoder(self._checkpoint, dtype="auto", **self._lengths)
        store = ptg.TokenStore(self.output / "tokens")
        if not store.built():
            store.build(self.graph, encoder)
        return ptg.GraphMaxSim(self.graph, encoder, tokens=store, verbose=False)
