r"""Late interaction along a graph: MaxSim, and the common part of the rerankers, their input and token vectors.

MaxSim (Albarede et al. 2023, Eq. 6; Khattab and Zaharia 2020) of a query and a passage is

.. math::

    \text{maxsim}(q, p) = \sum_{t \in q} \max_{j \in p} q_t \cdot p_j \qquad (6)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.checks import check_frame, progress, query_texts
from pyterrier_graph.encoders.checkpoints import DType, full_precision
from pyterrier_graph.encoders.token_encoder import LENGTHS, TokenEncoder, TokenStates, open_encoder
from pyterrier_graph.encoders.token_store import GraphTokens, TokenStore
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import OWN
from pyterrier_graph.training.model import Reranker

TOKENS_AT_ONCE = 1024  # that are compared with a query


def token_maxima(query: Tensor, passages: TokenStates) -> Tensor:
    """For each token of a query the best cosine similarity to any token of each passage; 0 if a passage has none.

    All vectors have unit length. Shapes: (query tokens, d) of the query, (passages, query tokens) of the result.
    """
    # half precision, in which scores would tie, becomes single precision in parts that fit into a processor's cache
    with full_precision(query):
        chunks = passages.values.split(TOKENS_AT_ONCE)
        products = [query @ chunk.to(query.dtype).T for chunk in chunks]
    similarities = torch.cat(products, dim=1)  # (query tokens, tokens)
    if similarities.device.type == "cpu":  # a third of the time, but not on every device
        bounds = passages.offsets.expand(len(query), -1).contiguous()
        maxima = torch.segment_reduce(
            similarities, "max", offsets=bounds, axis=1, initial=-torch.inf
        )
    else:
        maxima = similarities.new_full((len(query), len(passages)), -torch.inf)
        passage = passages.row_index.expand_as(similarities)  # of each token
        maxima = maxima.scatter_reduce(1, passage, similarities, "amax")
    has_tokens = passages.lengths > 0
    maxima = torch.where(has_tokens, maxima, 0.0)  # (query tokens, passages)
    return maxima.T


def normalized(states: TokenStates) -> TokenStates:
    """Token vectors scaled to unit length, so that the dot product of Eq. 6 is a cosine; 0 stays 0."""
    values = functional.normalize(states.values, dim=-1)
    return states.with_values(values)


def neighbor_maxima(
    maxima: Tensor, lengths: Tensor, edges: Sequence[tuple[Tensor, Tensor]], count: int
) -> Tensor:
    """Per target and relation the best match among its neighbors, shape (targets, relations, query tokens).

    It is minus infinity without any. A neighbor without tokens, such as a section without a title, does not match,
    instead of matching with 0.

    Args:
        maxima: :func:`token_maxima` of some nodes, shape (nodes, query tokens).
        lengths: Numbers of tokens of these nodes, shape (nodes,).
        edges: For each relation, targets and rows of their neighbors in ``maxima``, shape (edges,) each.
        count: Number of targets.
    """
    query_tokens = maxima.shape[1]
    is_empty = lengths == 0
    matches = maxima.masked_fill(is_empty[:, None], -torch.inf)
    none = maxima.new_full((count, query_tokens), -torch.inf)
    best = [maxima.new_empty(count, 0, query_tokens)]  # there may be no relations
    for target, neighbor in edges:
        rows = target[:, None].expand(-1, query_tokens)
        maximum = none.scatter_reduce(0, rows, matches[neighbor], "amax")
        best.append(maximum[:, None])  # (targets, 1, query tokens)
    return torch.cat(best, dim=1)


def weighted_matches(own: Tensor, context: Tensor, weights: Tensor) -> Tensor:
    """The matches that a query token chooses from, shape (..., 1 + relations, query tokens).

    Args:
        own: Best matches in the passages themselves, shape (..., query tokens).
        context: Best matches per relation, shape (..., relations, query tokens); minus infinity where there is none.
        weights: Weight per relation, at least 0, shape (relations, 1), or also per query token, shape (relations, query
            tokens). Weight 0 switches a relation off.
    """
    off = (weights == 0) | context.isneginf()
    # filled before multiplying, too: infinity would make the gradient of the weight NaN
    weighted = context.masked_fill(off, 0.0) * weights
    weighted = weighted.masked_fill(off, -torch.inf)
    return torch.cat([own.unsqueeze(-2), weighted], dim=-2)


def graph_maxima(own: Tensor, context: Tensor, weights: Tensor) -> Tensor:
    r"""Late interaction along a graph: each query token takes its best match in the passage or its neighborhood.

    .. math::

        s(q, p) = \sum_{t \in q} \max\Big(\max_{j \in p} q_t \cdot p_j,\
            w_1 \max_{n \in \mathcal N_1(p),\, j \in n} q_t \cdot n_j,\ w_2 \ldots\Big)

    For the arguments see :func:`weighted_matches`. Returns the terms of the sum, shape (..., query tokens).
    """
    return weighted_matches(own, context, weights).amax(-2)


class QueryPassages(NamedTuple):
    """Passages of one graph that are scored for some queries; arrays have one entry per row of a run."""

    graph: HeteroGraph
    tokens: TokenStore | GraphTokens
    queries: TokenStates
    query: np.ndarray  # number of the query
    node: np.ndarray  # the passage
    rows: np.ndarray  # position of the row in the run


class QueryMatches(NamedTuple):
    """The best matches of the tokens of one query."""

    rows: np.ndarray  # positions of the passages in the run, shape (passages,)
    query: Tensor  # token vectors of the query, shape (query tokens, d)
    own: Tensor  # in the passages themselves, shape (passages, query tokens)
    context: Tensor  # in their neighbors, shape (passages, relations, query tokens)


def best_matches(
    work: QueryPassages,
    query: Tensor,
    passages: np.ndarray,
    relations: Iterable[str],
    *,
    own: bool = True,
) -> tuple[Tensor, Tensor]:
    """The best matches of a query's tokens in passages, and in their neighbors, as :func:`graph_maxima` needs them.

    ``query`` has shape (query tokens, d); the results have shapes (passages, query tokens), without rows unless
    ``own``, and (passages, relations, query tokens).
    """
    edges = [work.graph.neighbors(passages, relation) for relation in relations]
    neighbors = [neighbor for _, neighbor in edges]
    own_passages = passages if own else passages[:0]
    nodes = np.concatenate([own_passages, *neighbors])
    nodes = np.unique(nodes)
    states = work.tokens.states(nodes, query.device, torch.float16)
    maxima = token_maxima(query, states)  # (nodes, query tokens)

    def rows_of(numbers: np.ndarray) -> Tensor:
        rows = np.searchsorted(nodes, numbers)
        return torch.from_numpy(rows).to(query.device)

    pairs = []
    for target, neighbor in edges:
        targets = torch.from_numpy(target).to(query.device)
        pairs.append((targets, rows_of(neighbor)))
    context = neighbor_maxima(maxima, states.lengths, pairs, len(passages))
    return maxima[rows_of(own_passages)], context


def rows_of_each(values: np.ndarray) -> list[np.ndarray]:
    """The rows of each value of an array, by ascending values."""
    order = np.argsort(values, kind="stable")
    last = np.flatnonzero(np.diff(values[order]))  # row of each value but the largest
    return np.split(order, last + 1)


class GraphReranker(Reranker):
    """Base of the rerankers that compare token vectors along a graph. A saved model contains its encoder.

    For the arguments see :class:`~pyterrier_graph.graph_maxsim.reranker.GraphMaxSim`.
    """

    KEEP_WEIGHTS = frozenset({"graph", "tokens", "training", "device", "dtype", "verbose"})

    _keep_tokens = True  # not while the encoder changes

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: Any,
        tokens: TokenStore | None,
        titles: bool,
        device: str | None,
        dtype: DType,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.graph = graph
        self.device = device
        self.dtype = dtype
        self.tokens = tokens
        self.titles = titles
        self.verbose = verbose
        self.encoder: TokenEncoder = open_encoder(encoder, device, dtype)

    @abstractmethod
    def _matches_of(self, work: QueryPassages) -> Iterator[QueryMatches]:
        """Returns the matches of each query."""

    @abstractmethod
    def _score(self, matches: QueryMatches) -> Tensor:
        """Returns the scores of the passages of a query, shape (passages,)."""

    @abstractmethod
    def _match_weights(self, query: Tensor) -> tuple[Sequence[str], Tensor, Tensor]:
        """Returns the relations whose neighbors are matched, their weights, and the importance of query tokens.

        Shapes (relations, query tokens) and (query tokens,).
        """

    def _check(self) -> None:
        super()._check()
        if self.tokens is None:
            return
        if self.graph is None:
            raise ValueError(
                f"{self.tokens!r} holds vectors of a graph's nodes: give the graph, too"
            )
        self.tokens.check(self.encoder, self.graph)

    @property
    def _with_titles(self) -> bool:
        """Whether titles are encoded in front of passages: as in the stored tokens, if there are any."""
        return self.titles if self.tokens is None else self.tokens.meta["titles"]

    def _tokens_of(self, graph: HeteroGraph) -> TokenStore | GraphTokens:
        if self.tokens is not None:
            return self.tokens
        return GraphTokens(
            graph,
            self.encoder,
            titles=self.titles,
            shared=self._keep_tokens,
            verbose=self.verbose,
        )

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self)
        needed = ["query"] if self.graph is not None else ["query", "graph"]  # by CandidateGraph
        pt.validate.result_frame(run, extra_columns=needed, context=self)
        return run

    def _scores(self, run: pd.DataFrame) -> np.ndarray:
        return self._scores_of(self._matches(run), len(run))

    def _scores_of(self, matches: Iterable[QueryMatches], rows: int) -> np.ndarray:
        """The scores of all rows of a run, shape (rows,)."""
        scores = np.zeros(rows)
        for of_query in matches:
            score = self._score(of_query)  # (passages,)
            scores[of_query.rows] = score.cpu().numpy()
        return scores

    def _matches(self, run: pd.DataFrame) -> Iterator[QueryMatches]:
        """The matches of each query of a run."""
        for work in self._work(run):
            yield from self._matches_of(work)

    def _work(self, run: pd.DataFrame) -> Iterator[QueryPassages]:
        """The run by graph: all of it, or query by query if each has its own graph."""
        if not len(run):
            return
        texts = query_texts(run)
        queries = self.encoder.encode_queries(texts.tolist())
        query = texts.index.get_indexer(run["qid"])
        if self.graph is None:
            groups = rows_of_each(query)
        else:
            groups = [np.arange(len(run))]
        for rows in progress(groups, len(groups), "query", verbose=self.verbose):
            batch = run.iloc[rows]
            graph = batch["graph"].iloc[0] if self.graph is None else self.graph
            nodes = graph.nodes_of(batch["docno"].tolist())
            tokens = self._tokens_of(graph)
            yield QueryPassages(graph, tokens, queries, query[rows], nodes, rows)

    @torch.inference_mode()
    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains a score: each query token adds the match of one source, the passage or one of its neighbors.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph; by default the graph of the reranker.

        Returns:
            A row per source: ``relation`` (``'own'`` for the passage), ``source`` (id of the node), ``text``,
            ``weight`` (of the relation; its mean over the query tokens that the source matches best), and ``score``,
            the sum of these matches. The scores add up to the score of the passage.
        """
        graph = self.graph if graph is None else graph
        assert graph is not None
        passage = graph.nodes_of([docno])
        row = np.zeros(1, dtype=np.int64)
        queries = self.encoder.encode_queries([query])
        tokens = self._tokens_of(graph)
        work = QueryPassages(graph, tokens, queries, row, passage, row)
        (matches,) = self._matches_of(work)
        relations, weights, importance = self._match_weights(matches.query)
        sources = [passage]
        for relation in relations:
            _, neighbors = graph.neighbors(passage, relation)
            sources.append(neighbors)
        counts = [len(group) for group in sources]
        nodes = np.concatenate(sources)  # the passage, then its neighbors; (sources,)
        maxima = _neighbor_matches(tokens, nodes[1:], matches.query)  # (neighbors, query tokens)
        own_weight = torch.ones_like(importance)
        weights = torch.cat([own_weight[None], weights])
        repeats = torch.tensor(counts, device=weights.device)
        weights = weights.repeat_interleave(repeats, dim=0)  # (sources, query tokens)
        terms = weighted_matches(matches.own[0], maxima, weights[1:])  # (sources, query tokens)
        score, best = (terms * importance).max(0)  # (query tokens,) each
        best_weight = weights.gather(0, best[None])[0]  # (query tokens,)
        source = best.cpu().numpy()
        source_nodes = nodes[source]
        source_relations = np.repeat([OWN, *relations], counts)
        by_token = pd.DataFrame(
            {
                "relation": source_relations[source],
                "source": graph.ids_of(source_nodes),
                "text": graph.texts(source_nodes),
                "weight": best_weight.cpu().numpy(),
                "score": score.cpu().numpy(),
            }
        )
        by_source = by_token.groupby(["relation", "source", "text"], sort=False, as_index=False)
        return by_source.agg({"weight": "mean", "score": "sum"})

    def _write(self, folder: Path) -> dict[str, Any]:
        self.encoder.network.save(str(folder / "encoder"), create_model_card=False)
        encoder: Any = {name: getattr(self.encoder, name) for name in LENGTHS}
        encoder["name"] = self.encoder.name
        return {"encoder": encoder}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model with the saved encoder, or with an equal one among the options."""
        saved = about["encoder"]
        hardware = {"device": options.get("device"), "dtype": options.get("dtype", "auto")}
        if "encoder" in options:
            encoder = open_encoder(options["encoder"], **hardware)
        else:
            lengths = {name: saved[name] for name in LENGTHS}
            encoder = TokenEncoder(str(folder / "encoder"), **hardware, **lengths)
            encoder.name = saved["name"]
        options["encoder"] = encoder
        return cls(**options)

    def _digest(self) -> str:
        return self.encoder.fingerprint()


def _neighbor_matches(
    tokens: TokenStore | GraphTokens, neighbors: np.ndarray, query: Tensor
) -> Tensor:
    """Best matches of a query's tokens in each neighbor, shape (neighbors, query tokens); minus infinity if empty."""
    states = tokens.states(neighbors, query.device, torch.float16)
    maxima = token_maxima(query, states)
    is_empty = states.lengths == 0
    return maxima.masked_fill(is_empty[:, None], -torch.inf)
