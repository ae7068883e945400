"""What the rerankers over a graph have in common: input and output, training data, graphs and token vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.checks import check_frame, check_type
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.token_encoder import TokenEncoder, open_encoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.training.triples import graph_of

TITLES_CHECKED = 8  # rows of a run whose texts are compared with the graph's
LENGTHS = ("max_passage_tokens", "max_query_tokens")

Judged = tuple[pd.DataFrame, pd.DataFrame | None]  # a run and its judgments


class QueryPassages(NamedTuple):
    """Passages of one graph that are scored for some queries; arrays have one entry per row of a run."""

    graph: HeteroGraph
    tokens: TokenStore | FreshTokens
    queries: TokenStates
    texts: list[str]  # of the queries
    query: np.ndarray  # number of the query
    node: np.ndarray  # the passage
    rows: np.ndarray  # position of the row in the run


class SearchTerms(NamedTuple):
    """What the nearest stored token vectors are looked for by."""

    vectors: torch.Tensor  # of the query's tokens that count, shape (query tokens, d)
    tokens: TokenStore  # what is searched
    weights: Mapping[str, float]  # of the relations along which passages have the matches of their neighbors
    token_weights: torch.Tensor | None = None  # shape (query tokens,)


class FreshTokens:
    """Token vectors of nodes that are not stored: each node is encoded once, when its vectors are needed."""

    def __init__(self, graph: HeteroGraph, encoder: TokenEncoder, *, titles: bool) -> None:
        self.graph = graph
        self.encoder = encoder
        self.titles = titles
        self._encoded: dict[int, torch.Tensor] = {}

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """The token vectors of some nodes."""
        new = np.array([node for node in np.unique(nodes).tolist() if node not in self._encoded], dtype=np.int64)
        if len(new):
            encoded = self.encoder.encode_passages(self.texts(new))
            self._encoded.update((node, encoded[position]) for position, node in enumerate(new.tolist()))
        return TokenStates.pack([self._encoded[node] for node in nodes.tolist()], self.encoder.empty).to(device)

    def ids(self, nodes: np.ndarray) -> CSR:
        """The numbers of the word pieces that the token vectors of some nodes stand for."""
        return self.encoder.token_ids(self.texts(nodes))

    def texts(self, nodes: np.ndarray) -> list[str]:
        """The texts that are encoded."""
        return self.graph.texts(nodes, titles=self.titles)


class GraphReranker(LearnedModel):
    """Base of the rerankers with token vectors. A saved model has its encoder with it.

    For the arguments see :class:`~pyterrier_graph.rerank.graph_maxsim.GraphMaxSim`.
    """

    ARTIFACT_TYPE = "reranker"
    GIVEN = ("graph",)
    KEEP_WEIGHTS = frozenset({"graph", "tokens", "titles", "device", "dtype", "verbose"})

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
        GraphReranker._check_attributes(self)

    @abstractmethod
    def _score(self, work: QueryPassages) -> np.ndarray:
        """Scores of the rows, shape (rows,)."""

    @abstractmethod
    def _learn(self, training: Judged, validation: Judged | None) -> None:
        """Does the work of :meth:`fit`, which has checked the columns of the runs."""

    @abstractmethod
    def _search_terms(self, query: torch.Tensor, text: str) -> SearchTerms:
        """What a query is searched by in an index of token vectors.

        Args:
            query: The query's token vectors, as encoded, shape (query tokens, d).
            text: The query.
        """

    @abstractmethod
    def _searched_tokens(self) -> TokenStore:
        """The stored token vectors that can be searched; a ValueError says what is missing."""

    @abstractmethod
    def _shown(self) -> tuple[dict[str, Any], list[str]]:
        """What a notebook shows of the model: rows of a table, and code to call next."""

    def _check_attributes(self) -> None:
        if self.graph is not None:
            check_type("graph", self.graph, HeteroGraph, "a DocumentGraph: ptg.DocumentGraph(path).index(docs)")
        if self.tokens is None:
            return
        check_type("tokens", self.tokens, TokenStore, "a TokenStore: ptg.TokenStore(path).build(graph, encoder)")
        if self.graph is None:
            raise ValueError(f"{self.tokens!r} holds vectors of a graph's nodes: give the graph, too")
        self.tokens.check(self.encoder, self.graph)
        if self.titles and not self.tokens.meta["titles"]:
            raise ValueError(f"titles=True, but {self.tokens!r} was built without: build it with titles=True")

    @property
    def _with_titles(self) -> bool:
        """Whether passages are encoded with their titles; stored vectors decide, where there are any."""
        return self.titles if self.tokens is None else self.tokens.meta["titles"]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.model_html import parameters, reranker_html, training_calls, training_sizes

        inputs: dict[str, Any] = {
            "encoder": f"{self.encoder.name}, {self.encoder.dimension} dimensions",
            "graph": "of each query's candidates" if self.graph is None else repr(self.graph),
            "tokens": "not stored" if self.tokens is None else repr(self.tokens),
        }
        sizes, calls = self._shown()
        if self.network is not None:
            inputs |= {"parameters": parameters(self.network)} | training_sizes(self)
        explain = "ptg.explain(reranker, query, docno" + (")" if self.graph is not None else ", graph=graph)")
        return reranker_html(self, sizes | inputs, [*training_calls(self), *calls, explain])

    def _explained(self, docno: str, graph: HeteroGraph | None) -> tuple[HeteroGraph, np.ndarray, FreshTokens]:
        """The graph of a passage whose score is explained, its node, and the token vectors."""
        graph = graph if graph is not None else self.graph
        if graph is None:
            raise ValueError("explain needs the graph that the passage is in")
        return graph, graph.nodes_of([docno]), FreshTokens(graph, self.encoder, titles=self._with_titles)

    def _ids_of(self, graph: HeteroGraph) -> Callable[[np.ndarray], CSR]:
        """Returns the word pieces of nodes: stored ones, or those of their texts."""
        if self.tokens is not None and self.tokens.has_ids:
            return self.tokens.ids
        return FreshTokens(graph, self.encoder, titles=self._with_titles).ids

    def _tokens_of(self, graph: HeteroGraph) -> TokenStore | FreshTokens:
        return FreshTokens(graph, self.encoder, titles=self.titles) if self.tokens is None else self.tokens

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores passages: adds ``score`` and ``rank``, with a warning if scores are worse than they could be.

        Args:
            inp: ``qid, query, docno``, where docno is a passage id (``docno%pN``) of the graph;
                without a graph of its own the reranker needs a ``graph`` column, as ``CandidateGraph`` makes it.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If a passage is not in the graph.
            TypeError: If the graph of a query is missing.
            ValueError: If a query is empty or not a text.
        """
        inp = self._checked(inp)
        scores = self._scores(inp)
        if len(inp):
            self._warn_if_random()
            self._warn_about(inp)
        return ranked(inp, scores, self)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Learns from judged queries; the description of the class says what is learned and how.

        Where no passage is judged, judgments of documents count for all their passages, and in validation a document
        has the score of its best passage.

        Args:
            topics_or_res_tr: Training queries with their passages, as for :meth:`transform`.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages or documents.
            topics_or_res_va: Validation queries with their passages: what is best on them is kept.
            qrels_va: Judgments for them.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If no query is judged, there is nothing to learn, or ``training.output_dir`` holds another
                training.
        """
        topics_or_res_tr = self._checked(topics_or_res_tr)
        validation = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            topics_or_res_va = self._checked(topics_or_res_va)
            validation = topics_or_res_va, qrels_va
        self._start_fit()
        self._learn((topics_or_res_tr, qrels_tr), validation)
        return self

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self, numbers={"score"} & self._needed().keys())
        try:
            pt.validate.result_frame(run, extra_columns=[*self._needed()], context=self)
        except pt.validate.InputValidationError as error:
            missing = [advice for name, advice in self._needed().items() if name in error.modes[0].missing_columns]
            error.args = (" ".join([error.args[0], *filter(None, missing)]),)
            raise
        return run

    def _needed(self) -> dict[str, str]:
        """Columns that are needed besides ``qid`` and ``docno``, each with what to do if it is missing."""
        graph = {"graph": "There is no graph: put CandidateGraph() before, or give graph=."}
        return {"query": ""} | (graph if self.graph is None else {})

    def _scores(self, run: pd.DataFrame) -> np.ndarray:
        scores = np.zeros(len(run))
        for work in self._work(run):
            scores[work.rows] = self._score(work)
        return scores

    def _warn_about(self, run: pd.DataFrame) -> None:
        """Warns of what makes the scores of a run worse, or slower to compute, than they could be."""
        if self.graph is None or self._with_titles or "text" not in run.columns:
            return
        some = run.head(TITLES_CHECKED)
        nodes = self.graph.nodes_of(some["docno"].tolist())
        texts = zip(some["text"], self.graph.texts(nodes), self.graph.texts(nodes, titles=True), strict=True)
        if any(isinstance(text, str) and text == titled != bare for text, bare, titled in texts):
            self._warn_once(
                "titles",
                f"the texts of the run begin with titles, but {type(self).__name__} encodes the passages of the graph "
                "without: use titles=True (stored tokens: TokenStore(path).build(graph, encoder, titles=True))",
            )

    def _work(self, run: pd.DataFrame) -> Iterator[QueryPassages]:
        """The frame, a graph at a time: all of it, or query by query where each has a graph of its own."""
        if not len(run):
            return
        texts = query_texts(run)
        queries = self.encoder.encode_queries(texts.tolist())
        query = texts.index.get_indexer(run["qid"])
        single = self.graph is not None
        groups = [np.arange(len(run))] if single else run.groupby(query).indices.values()
        hidden = single or not self.verbose
        for rows in pt.tqdm(groups, desc=type(self).__name__, unit="q", delay=1, leave=None, disable=hidden):
            part = run.iloc[rows]
            graph = self.graph if self.graph is not None else graph_of(part)
            nodes = graph.nodes_of(part["docno"].tolist())
            yield QueryPassages(graph, self._tokens_of(graph), queries, texts.tolist(), query[rows], nodes, rows)

    def _write(self, folder: Path) -> dict[str, Any]:
        self.encoder.network.save(str(folder / "encoder"), create_model_card=False)
        about = {"name": self.encoder.name, "sha256": self.encoder.fingerprint()}
        return {"encoder": about | {name: getattr(self.encoder, name) for name in LENGTHS}}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model with the saved encoder, or with an equal one among the options."""
        saved, device, dtype = about["encoder"], options.get("device"), options.get("dtype", "auto")
        if "encoder" in options:
            encoder = open_encoder(options["encoder"], device, dtype)
        else:
            lengths = {name: saved[name] for name in LENGTHS}
            encoder = TokenEncoder(str(folder / "encoder"), device=device, dtype=dtype, **lengths)
            encoder.name = saved["name"]
        if encoder.fingerprint() != saved["sha256"]:
            raise ValueError(f"the model was saved with {saved['name']!r}; {encoder!r} has other weights or lengths")
        return cls(**options | {"encoder": encoder})

    def _digest(self) -> str:
        return self.encoder.fingerprint()


def ranked(run: pd.DataFrame, scores: np.ndarray, context: pt.Transformer) -> pd.DataFrame:
    """The rows of a run with new ``score`` and ``rank``; a score that is not finite is a ValueError."""
    if not np.isfinite(scores).all():
        row = run.iloc[int(np.flatnonzero(~np.isfinite(scores))[0])]
        raise ValueError(
            f"{context!r} scores query {row['qid']!r}, passage {row['docno']!r} as not a number: "
            "the weights of its model or encoder are not finite"
        )
    return pt.model.add_ranks(run.drop(columns=["score", "rank"], errors="ignore").assign(score=scores))
