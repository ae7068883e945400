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

from pyterrier_graph.checks import check_frame, progress, query_texts
from pyterrier_graph.encoders.checkpoints import DType, full_precision
from pyterrier_graph.encoders.token_encoder import LENGTHS, TokenEncoder, TokenStates, open_encoder
from pyterrier_graph.encoders.token_store import GraphTokens, TokenStore
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
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
        maxima = maxima.scatter_reduce(
            1, passages.row_index.expand_as(similarities), similarities, "amax"
        )
    return torch.where(passages.lengths > 0, maxima, 0.0).T


def maxsim(query: Tensor, passages: TokenStates) -> Tensor:
    """The sum of the maxima over the tokens of the query (Eq. 6); shape (passages,)."""
    return token_maxima(query, passages).sum(1)


def normalized(states: TokenStates, *, linear: bool = False) -> TokenStates:
    """Token vectors scaled to unit length, so that the dot product of Eq. 6 is a cosine; 0 stays 0.

    With ``linear``, gradients take the lengths for constants.
    """
    lengths = states.values.norm(dim=-1, keepdim=True)
    if linear:
        lengths = lengths.detach()
    return states.with_values(states.values / lengths.clamp(min=1e-12))


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
    best = maxima.new_full((count * len(edges), query_tokens), -torch.inf)
    matches = maxima.masked_fill(lengths[:, None] == 0, -torch.inf)
    if edges:
        # number each pair of a target and a relation
        pairs = [target * len(edges) + number for number, (target, _) in enumerate(edges)]
        neighbors = torch.cat([neighbor for _, neighbor in edges])
        rows = torch.cat(pairs)[:, None].expand(-1, query_tokens)
        best = best.scatter_reduce(0, rows, matches[neighbors], "amax")
    return best.view(count, len(edges), query_tokens)


def graph_maxima(own: Tensor, context: Tensor, weights: Tensor) -> Tensor:
    r"""Late interaction along a graph: each query token takes its best match in the passage or its neighborhood.

    .. math::

        s(q, p) = \sum_{t \in q} \max\Big(\max_{j \in p} q_t \cdot p_j,\
            w_1 \max_{n \in \mathcal N_1(p),\, j \in n} q_t \cdot n_j,\ w_2 \ldots\Big)

    Args:
        own: Best matches in the passages themselves, shape (..., query tokens).
        context: Best matches per relation, shape (..., relations, query tokens); minus infinity where there is none.
        weights: Weight per relation, at least 0, shape (relations, 1), or also per query token, shape (relations, query
            tokens). Weight 0 switches a relation off.

    Returns:
        The terms of the sum, shape (..., query tokens).
    """
    off = (weights == 0) | context.isneginf()
    # (..., relations, query tokens); filled before multiplying, too: infinity would make the gradient of the weight NaN
    weighted = context.masked_fill(off, 0.0) * weights
    weighted = weighted.masked_fill(off, -torch.inf)
    return torch.cat([own.unsqueeze(-2), weighted], dim=-2).amax(-2)


class QueryPassages(NamedTuple):
    """Passages of one graph that are scored for some queries; arrays have one entry per row of a run."""

    graph: HeteroGraph
    tokens: TokenStore | GraphTokens
    queries: TokenStates
    query: np.ndarray  # number of the query
    node: np.ndarray  # the passage
    rows: np.ndarray  # position of the row in the run
    matches: dict[bytes, Tensor]  # best direct matches of an HGAT, by the rows of a query


def best_matches(
    work: QueryPassages,
    vectors: Tensor,
    passages: np.ndarray,
    relations: Iterable[str],
    *,
    own: bool = True,
) -> tuple[Tensor, Tensor]:
    """The best matches of a query's tokens in passages, and in their neighbors, as :func:`graph_maxima` needs them.

    ``vectors`` has shape (query tokens, d); the results have shapes (passages, query tokens), without rows unless
    ``own``, and (passages, relations, query tokens).
    """
    edges = [work.graph.neighbors(passages, relation) for relation in relations]
    groups = [passages if own else passages[:0]]
    groups += [neighbor for _, neighbor in edges]
    nodes, rows = np.unique(np.concatenate(groups), return_inverse=True)
    index = torch.from_numpy(rows).to(vectors.device)
    own_rows, *neighbors = index.split([*map(len, groups)])
    states = work.tokens.states(nodes, vectors.device, torch.float16)
    maxima = token_maxima(vectors, states)  # (nodes, query tokens)
    targets = [torch.from_numpy(target).to(vectors.device) for target, _ in edges]
    pairs = [*zip(targets, neighbors, strict=True)]
    return maxima[own_rows], neighbor_maxima(maxima, states.lengths, pairs, len(passages))


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
        *,
        tokens: TokenStore | None,
        titles: bool,
        device: str | None,
        dtype: DType,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.graph = graph
        self.device = device
        self.dtype: DType = dtype
        self.tokens = tokens
        self.titles = titles
        self.verbose = verbose
        self.encoder: TokenEncoder = open_encoder(encoder, device, dtype)

    @abstractmethod
    def _score(self, work: QueryPassages) -> np.ndarray:
        """Returns the scores of the rows, shape (rows,)."""

    def _check(self) -> None:
        super()._check()
        if self.graph is not None and not isinstance(self.graph, HeteroGraph):
            raise TypeError(
                f"graph must be a DocumentGraph, such as ptg.DocumentGraph(path), got {self.graph!r:.60}"
            )
        if self.tokens is None:
            return
        if self.graph is None:
            raise ValueError(
                f"{self.tokens!r} holds vectors of a graph's nodes: give the graph, too"
            )
        self.tokens.check(self.encoder, self.graph)

    def _explained(
        self, docno: str, graph: HeteroGraph | None
    ) -> tuple[HeteroGraph, np.ndarray, GraphTokens]:
        """Returns the graph of a passage whose score is explained, its node, and the token vectors."""
        graph = self.graph if graph is None else graph
        if graph is None:
            raise ValueError(
                "explain needs the graph that the passage is in: explain(query, docno, graph=graph)"
            )
        return graph, graph.nodes_of([docno]), self._graph_tokens(graph)

    @property
    def _with_titles(self) -> bool:
        """Whether passages are encoded with their titles; stored vectors decide, where there are any."""
        return self.titles if self.tokens is None else self.tokens.meta["titles"]

    def _tokens_of(self, graph: HeteroGraph) -> TokenStore | GraphTokens:
        return self._graph_tokens(graph) if self.tokens is None else self.tokens

    def _graph_tokens(self, graph: HeteroGraph) -> GraphTokens:
        return GraphTokens(
            graph,
            self.encoder,
            titles=self._with_titles,
            shared=self._keep_tokens,
            verbose=self.verbose,
        )

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self)
        needed = ["query"] if self.graph is not None else ["query", "graph"]  # by CandidateGraph
        pt.validate.result_frame(run, extra_columns=needed, context=self)
        return run

    def _scores(
        self, run: pd.DataFrame, works: Iterable[QueryPassages] | None = None
    ) -> np.ndarray:
        scores = np.zeros(len(run))
        for work in self._work(run) if works is None else works:
            scores[work.rows] = self._score(work)
        return scores

    def _work(self, run: pd.DataFrame) -> Iterator[QueryPassages]:
        """The frame by graph: all of it, or query by query if each has its own graph."""
        if not len(run):
            return
        texts = query_texts(run)
        queries = self.encoder.encode_queries(texts.tolist())
        query = texts.index.get_indexer(run["qid"])
        if self.graph is None:  # a graph per query
            groups = [*run.groupby(query).indices.values()]
        else:
            groups = [np.arange(len(run))]
        for rows in progress(groups, len(groups), "query", verbose=self.verbose):
            batch = run.iloc[rows]
            graph = batch["graph"].iloc[0] if self.graph is None else self.graph
            nodes = graph.nodes_of(batch["docno"].tolist())
            tokens = self._tokens_of(graph)
            yield QueryPassages(graph, tokens, queries, query[rows], nodes, rows, {})

    def _write(self, folder: Path) -> dict[str, Any]:
        self.encoder.network.save(str(folder / "encoder"), create_model_card=False)
        encoder: Any = {name: getattr(self.encoder, name) for name in LENGTHS}
        encoder |= {"name": self.encoder.name, "sha256": self.encoder.fingerprint()}
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
        if encoder.fingerprint() != saved["sha256"]:
            raise ValueError(
                f"the model was saved with {saved['name']!r}; {encoder!r} has other weights or lengths"
            )
        return cls(**options | {"encoder": encoder})

    def _digest(self) -> str:
        return self.encoder.fingerprint()
