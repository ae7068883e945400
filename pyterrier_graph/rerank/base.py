"""What rerankers over a graph have in common: frames in, frames out, and where graphs and token vectors come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import HeteroGraph


class QueryPassages(NamedTuple):
    """Passages of one graph to be scored for some queries.

    Attributes:
        graph: The graph.
        tokens: Where token vectors of its nodes come from: ``tokens.states(nodes)``.
        queries: Token vectors of the queries.
        query: Query of each row, shape (rows,).
        node: Passage of each row, shape (rows,).
        rows: Positions of the rows in the frame, shape (rows,).
    """

    graph: HeteroGraph
    tokens: TokenStore | FreshTokens
    queries: TokenStates
    query: np.ndarray
    node: np.ndarray
    rows: np.ndarray


class FreshTokens:
    """Token vectors that are encoded when they are asked for, each node once.

    Args:
        graph: The graph whose texts are encoded.
        encoder: The encoder.
        titles: Whether the titles of its sections are put before a passage, see :meth:`TokenStore.build`.
    """

    def __init__(self, graph: HeteroGraph, encoder: TokenEncoder, *, titles: bool = False) -> None:
        self.graph = graph
        self.encoder = encoder
        self.titles = titles
        self._known: dict[int, torch.Tensor] = {}

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """The token matrices of some nodes."""
        new = np.array([node for node in np.unique(nodes).tolist() if node not in self._known], dtype=np.int64)
        if len(new):
            encoded = self.encoder.encode_passages(self.texts(new))
            self._known.update((node, encoded[position]) for position, node in enumerate(new.tolist()))
        return TokenStates.pack([self._known[node] for node in nodes.tolist()], self.encoder.empty).to(device)

    def texts(self, nodes: np.ndarray) -> list[str]:
        """The texts that are encoded."""
        return self.graph.texts(nodes, titles=self.titles)


class GraphReranker(pt.Estimator):
    """Base of the rerankers: checks the input, hands over what is to be scored, sorts."""

    graph: HeteroGraph | None
    tokens: TokenStore | None
    encoder: TokenEncoder
    device: str | None
    verbose: bool

    def _fresh_tokens(self, graph: HeteroGraph) -> FreshTokens:
        """What explanations encode: the same texts as the stored vectors are of, if there are any."""
        return FreshTokens(graph, self.encoder, titles=self.tokens is not None and self.tokens.meta["titles"])

    @abstractmethod
    def _score(self, work: QueryPassages) -> np.ndarray:
        """Scores of the rows, shape (rows,)."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores passages anew.

        Args:
            inp: ``qid, query, docno``, where docno is a passage id (``docno%pN``) of the graph;
                without a graph of its own the reranker needs a ``graph`` column, as ``CandidateGraph`` makes it.

        Returns:
            The rows with new ``score`` and ``rank``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If a passage is not in the graph.
            ValueError: If a query is empty or not a text, or its graph is missing.
        """
        columns = ["query"] if self.graph is not None else ["query", "graph"]
        pt.validate.result_frame(inp, extra_columns=columns, context=self)
        scores = np.zeros(len(inp))
        for work in self._work(inp):
            scores[work.rows] = self._score(work)
        return ranked(inp, scores, self)

    def _work(self, inp: pd.DataFrame) -> Iterator[QueryPassages]:
        """The frame, a graph at a time: all of it, or query by query where each has a graph of its own."""
        if not len(inp):
            return
        texts = query_texts(inp)
        queries = self.encoder.encode_queries(texts.tolist())
        query = texts.index.get_indexer(inp["qid"])
        if self.graph is not None:
            tokens = self.tokens if self.tokens is not None else FreshTokens(self.graph, self.encoder)
            nodes = self.graph.nodes_of(inp["docno"].tolist())
            yield QueryPassages(self.graph, tokens, queries, query, nodes, np.arange(len(inp)))
            return
        groups = pt.tqdm(inp.groupby(query).indices.values(), desc=type(self).__name__, disable=not self.verbose)
        for rows in groups:
            part = inp.iloc[rows]
            graph = graph_of(part)
            nodes = graph.nodes_of(part["docno"].tolist())
            yield QueryPassages(graph, FreshTokens(graph, self.encoder), queries, query[rows], nodes, rows)


def ranked(run: pd.DataFrame, scores: np.ndarray, context: pt.Transformer) -> pd.DataFrame:
    """The rows of a run with new ``score`` and ``rank``.

    Raises:
        ValueError: If a score is not finite.
    """
    if not np.isfinite(scores).all():
        culprit = run.iloc[int(np.flatnonzero(~np.isfinite(scores))[0])]
        raise ValueError(
            f"{context!r} scores query {culprit['qid']!r}, passage {culprit['docno']!r} as not a number: "
            "the weights of its model or encoder are not finite"
        )
    return pt.model.add_ranks(run.drop(columns=["score", "rank"], errors="ignore").assign(score=scores))


def graph_of(rows: pd.DataFrame) -> HeteroGraph:
    """The graph of a query's rows.

    Raises:
        ValueError: If there is none.
    """
    graph = rows["graph"].iloc[0]
    if not isinstance(graph, HeteroGraph):
        raise ValueError(f"query {rows['qid'].iloc[0]!r} has no graph, but {graph!r}: put CandidateGraph() before")
    return graph


def check_tokens(tokens: TokenStore | None, encoder: TokenEncoder, graph: HeteroGraph | None) -> None:
    """Raises ValueError if there are stored tokens, but not of this encoder and this graph's nodes."""
    if tokens is None:
        return
    if graph is None:
        raise ValueError(f"{tokens!r} holds vectors of a graph's nodes: give the graph, too")
    tokens.check(encoder, graph)
