"""GraphMaxSim: late interaction along a graph, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.checks import check_choice, check_number, check_type, check_weights
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.encoders.token_weights import Frequencies, passage_frequencies
from pyterrier_graph.graphs.relations import check_relations, follow
from pyterrier_graph.models.maxsim import best_of_neighbors, graph_maxsim, token_maxima
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.models.score_normalization import check_finite_scores, normalized
from pyterrier_graph.rerank.base import GraphReranker, Judged, QueryPassages, SearchTerms
from pyterrier_graph.training.grid_search import coordinate_search
from pyterrier_graph.training.validation import Validation

if TYPE_CHECKING:
    from pyterrier_graph.encoders.token_store import TokenStore
    from pyterrier_graph.graphs import HeteroGraph

TITLES_AND_NEIGHBORS = {"title": 1.0, "title/title": 1.0, "order": 0.5, "order_i": 0.5}
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class GraphMaxSim(GraphReranker):
    """Reranks passages by the best match of each query token in a passage or, with a weight, in its neighbors.

    .. cite:: khattab2020colbert
        :citation: Khattab and Zaharia. ColBERT: efficient and effective passage search via contextualized late
            interaction over BERT. SIGIR 2020.
        :link: https://doi.org/10.1145/3397271.3401075

    ``sum over query tokens of max(match in the passage, weight_r * best match in its neighbors of relation r, ...)``

    It needs a late-interaction checkpoint, such as ColBERT, whose token vectors are trained to be matched. The token
    vectors of an off-the-shelf sentence encoder, such as the default one, are not: with them GraphMaxSim was below BM25
    on a collection of research articles that it was not tuned on. Compare it with the first stage before you use it.

    There is no network, and stored token vectors of passages and titles are used as they are. :meth:`fit` learns one
    weight per relation: each in turn moves to a value in 0, 0.2, ... 1, as far as the queries support it by ``measure``
    (see :func:`~pyterrier_graph.training.grid_search.coordinate_search`). So few weights need few queries: the
    validation queries are used where there are any, else the training queries.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        weights: Weight per relation, or per path of relations (``'title/title'``: the title above the nearest title).
            ``{}`` is plain MaxSim. By default titles have weight 1, the passages before and after 0.5.
        tokens: Stored token vectors of the graph's nodes; without them texts are encoded when they are scored.
        titles: Whether passages are encoded with the titles of their sections in front. With ``tokens`` the store
            decides.
        token_weights: ``'idf'`` multiplies what each query token adds by the inverse document frequency of its word
            piece, divided by its mean over the query's words. It is counted over all passages of the graph, once: a
            ``DocumentGraph`` at ``path`` keeps the counts in ``<path>.frequencies``. Without a document graph it is
            counted over the passages in the graph of the query's candidates. None: all query tokens count alike.
        skip_tokens: Whether the special tokens around a query or passage, such as [CLS] and [SEP], and the punctuation
            of passages are left out. A ColBERT checkpoint leaves out the punctuation of passages by itself, as it was
            trained. Its [MASK] tokens are kept in any case, and a query of which nothing would be left keeps all.
        first_stage: The share of the score of the input, from 0 to 1: with a number above 0, the new score is
            ``(1 - first_stage) * GraphMaxSim + first_stage * score``, both scaled to 0 to 1 per query (min-max).
        measure: What :meth:`fit` maximizes.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding; see :mod:`~pyterrier_graph.encoders.devices`. A TokenEncoder that is given has
            its own.
        verbose: Whether to show progress.

    Columns in: ``qid, query, docno``; ``graph`` without a graph; ``score`` if ``first_stage`` is above 0.
    Columns out: those, with new ``score`` and ``rank``.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the graph does not have a relation, a weight is negative, ``tokens`` are of another encoder, or
            ``token_weights`` or ``first_stage`` is out of range.
    """

    schematic = {"label": "GraphMaxSim", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "graph_maxsim"
    WRITTEN = ("weights", "titles", "token_weights", "skip_tokens", "first_stage", "measure")
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"encoder", *WRITTEN}

    weights: Mapping[str, float]
    _counted: tuple[tuple[Any, ...], Frequencies] | None = None

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = DEFAULT,
        weights: Mapping[str, float] | None = None,
        *,
        tokens: TokenStore | None = None,
        titles: bool = False,
        token_weights: Literal["idf"] | None = None,
        skip_tokens: bool = False,
        first_stage: float = 0.0,
        measure: str = "nDCG@10",
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, tokens=tokens, titles=titles, device=device, dtype=dtype, verbose=verbose)
        self.weights = TITLES_AND_NEIGHBORS if weights is None else weights
        self.token_weights: Literal["idf"] | None = token_weights
        self.skip_tokens = skip_tokens
        self.first_stage = first_stage
        self.measure = measure

    def __repr__(self) -> str:
        weights = ", ".join(f"{relation!r}: {weight:g}" for relation, weight in self.weights.items())
        options = "".join(f", {name}={value!r}" for name, value in self._options().items())
        return f"GraphMaxSim({self.graph!r}, {self.encoder!r}, {{{weights}}}{options})"

    def _options(self) -> dict[str, Any]:
        """Those options of scoring that are in use."""
        names = ("token_weights", "skip_tokens", "first_stage")
        return {name: value for name in names if (value := getattr(self, name))}

    def _shown(self) -> tuple[dict[str, Any], list[str]]:
        given = "query, docno" if self.graph is not None else "query, docno, graph"
        calls = ["reranker.save(path)", f"plots.token_matches(reranker.explain({given}))"]
        options = {name.replace("_", " "): str(value) for name, value in self._options().items()}
        return {"weights": self.weights or "none: plain MaxSim"} | options, calls

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks weights, also when they are set later, as by ``pt.GridSearch``."""
        if name == "weights":
            value = check_weights(value)
            if self.graph is not None:
                check_relations(self.graph, value)
        elif name == "token_weights":
            check_choice(name, value, (None, "idf"))
        elif name == "skip_tokens":
            check_type(name, value, bool, "True or False")
        elif name == "first_stage":
            check_number(name, value, 0, 1)
        super().__setattr__(name, value)

    def _check_attributes(self) -> None:
        super()._check_attributes()
        self.weights = self.weights  # checks them

    def _needed(self) -> dict[str, str]:
        score = "first_stage adds the first stage's score: put a retriever before, or use first_stage=0."
        return super()._needed() | ({"score": score} if self.first_stage else {})

    def _scores(self, run: pd.DataFrame) -> np.ndarray:
        return self._with_first_stage(run, super()._scores(run))

    def _with_first_stage(self, run: pd.DataFrame, scores: np.ndarray) -> np.ndarray:
        if not self.first_stage:
            return scores
        check_finite_scores(run, "the first stage")
        run = run.reset_index(drop=True)
        own, first = (normalized(part, run["qid"]).to_numpy() for part in (pd.Series(scores), run["score"]))
        return (1 - self.first_stage) * own + self.first_stage * first

    def _searched_tokens(self) -> TokenStore:
        """The stored token vectors, for a :class:`~pyterrier_graph.LateInteractionIndex`."""
        if self.tokens is None:
            raise ValueError(f"{self!r} has no stored tokens to search: give it tokens=")
        if self.first_stage:
            raise ValueError(f"first_stage={self.first_stage:g} needs the scores of a first stage: use first_stage=0")
        return self.tokens

    def _search_terms(self, query: torch.Tensor, text: str) -> SearchTerms:
        """The tokens of a query that count."""
        assert self.graph is not None  # stored tokens are of a graph
        counted, token_weights = self._query_tokens(text, self._frequencies_of(self.graph))
        return SearchTerms(query[counted], self._searched_tokens(), self.weights, token_weights)

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        for match in self._matches(work):
            scores[match.rows] = match.score(self.weights)
        return scores

    def _matches(self, work: QueryPassages) -> Iterator[Matches]:
        """The best matches of each query."""
        ids_of, frequencies = self._ids_of(work.graph), self._frequencies_of(work.graph)
        by_query = pd.Series(work.query).groupby(work.query).indices
        bar = pt.tqdm(by_query.items(), desc="GraphMaxSim", unit="q", delay=1, leave=None, disable=not self.verbose)
        for query, rows in bar:
            passages = work.node[rows]
            edges = [follow(work.graph, passages, relation) for relation in self.weights]
            nodes, index = np.unique(np.concatenate([passages, *(n for _, n in edges)]), return_inverse=True)
            own_index, *neighbors = np.split(index, np.cumsum([len(passages), *(len(n) for _, n in edges)])[:-1])
            counted, token_weights = self._query_tokens(work.texts[query], frequencies)
            vectors = work.queries[query][counted]
            states = work.tokens.states(nodes, vectors.device)
            if self.skip_tokens:
                states = states.keep(torch.from_numpy(~self._skipped[ids_of(nodes).indices]).to(vectors.device))
            maxima = token_maxima(vectors, states)
            # a neighbor without tokens, such as a section without a title, is no match, not a match of 0
            found = maxima.masked_fill(states.lengths[:, None] == 0, -torch.inf)
            context = [
                best_of_neighbors(found, torch.from_numpy(row).to(found.device), torch.from_numpy(neighbor), len(rows))
                for (row, _), neighbor in zip(edges, neighbors, strict=True)
            ]
            own = maxima[torch.from_numpy(own_index)]
            yield Matches(rows, own, torch.stack([own.new_zeros(own.shape), *context], 1)[:, 1:], token_weights)

    @property
    def _skipped(self) -> np.ndarray:
        """Word pieces of passages that are left out; shape (word pieces,)."""
        return self.encoder.word_pieces.ends | self.encoder.word_pieces.punctuation

    def _query_tokens(self, text: str, frequencies: Frequencies | None) -> tuple[Any, torch.Tensor | None]:
        """Which tokens of a query count, as an index of its tokens, and their weights."""
        if not self.skip_tokens and frequencies is None:
            return slice(None), None
        ids, pieces = self.encoder.token_ids([text], query=True).indices, self.encoder.word_pieces
        ends = pieces.ends[ids]
        counted = np.flatnonzero(~ends) if self.skip_tokens and not ends.all() else np.arange(len(ids))
        if frequencies is None:
            return counted, None
        return counted, torch.from_numpy(frequencies.idf(ids[counted], pieces.wordless)).to(self.encoder.empty)

    def _frequencies_of(self, graph: HeteroGraph) -> Frequencies | None:
        """Document frequencies for the weights of query tokens; those of the reranker's own graph are kept."""
        if self.token_weights is None:
            return None
        source = graph, self.encoder, self._with_titles
        if self._counted is not None and all(one is other for one, other in zip(self._counted[0], source, strict=True)):
            return self._counted[1]
        options = {"titles": self._with_titles, "verbose": self.verbose and graph is self.graph}
        frequencies = passage_frequencies(graph, self.encoder, self._ids_of(graph), **options)
        if graph is self.graph:
            self._counted = source, frequencies
        return frequencies

    def _learn(self, training: Judged, validation: Judged | None) -> None:
        measure = Validation(*(validation or training), self.measure, self)
        works = [(work.rows, match) for work in self._work(measure.run) for match in self._matches(work)]

        def measured(weights: dict[str, float]) -> np.ndarray:
            scores = np.zeros(len(measure.run))
            for rows, match in works:
                scores[rows[match.rows]] = match.score(weights)
            return measure.per_query(self._with_first_stage(measure.run, scores))

        grid = [{relation: weight} for relation in self.weights for weight in GRID]
        self.weights = coordinate_search(self.weights, grid, measured, desc="GraphMaxSim.fit", verbose=self.verbose)

    def explain(self, query: str, docno: str, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Says where each query token found its match, and what it adds to the score.

        The score is the one without the share of the first stage.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph; by default the graph of the reranker.

        Returns:
            A row per query token that counts, with ``token``, ``weight`` (of the token), ``relation`` (``'SELF'`` for
            the passage), ``node`` (its id), ``match`` (the token matched), ``position`` (its place among the node's
            tokens), ``similarity`` (cosine), ``score`` (weighted: the part of the score).
        """
        graph, passage, tokens = self._explained(docno, graph)
        counted, token_weights = self._query_tokens(query, self._frequencies_of(graph))
        vectors = self.encoder.encode_queries([query])[0][counted]
        weight_of = np.ones(len(vectors)) if token_weights is None else token_weights.cpu().numpy()
        names = np.array(self.encoder.tokens(query, query=True), dtype=object)[counted]
        sources = [(name, weight, follow(graph, passage, name)[1]) for name, weight in self.weights.items() if weight]
        candidates = []
        for relation, weight, nodes in [(SELF, 1.0, passage), *sources]:
            for node in np.unique(nodes)[:, None]:
                found, ids = tokens.states(node, vectors.device), tokens.ids(node).indices
                places = np.arange(len(ids))
                if self.skip_tokens:
                    kept = ~self._skipped[ids]
                    found, ids = found.keep(torch.from_numpy(kept).to(vectors.device)), ids[kept]
                    places = places[kept]
                if not len(ids) and relation != SELF:
                    continue
                pieces = self.encoder.network.tokenizer.convert_ids_to_tokens(ids.tolist())
                values = found.values
                if not len(ids):  # a passage without text matches with 0
                    values, pieces, places = torch.zeros_like(vectors[:1]), [""], np.array([-1])
                similarity, position = (array.cpu().numpy() for array in (vectors @ values.T).max(1))
                matches = {
                    "place": np.arange(len(vectors)),
                    "token": names,
                    "weight": weight_of,
                    "relation": relation,
                    "node": graph.ids_of(node)[0],
                    "match": [pieces[p] for p in position],
                    "position": places[position],
                    "similarity": similarity,
                    "score": weight_of * weight * similarity,
                }
                candidates.append(pd.DataFrame(matches))
        best = pd.concat(candidates).sort_values("score", ascending=False, kind="stable").drop_duplicates("place")
        return best.sort_values("place").drop(columns="place").reset_index(drop=True)


class Matches(NamedTuple):
    """The best matches of one query's tokens in the passages of some rows."""

    rows: np.ndarray
    own: torch.Tensor  # in the passages themselves, shape (rows, query tokens)
    context: torch.Tensor  # in their neighbors, shape (rows, relations, query tokens)
    token_weights: torch.Tensor | None  # shape (query tokens,)

    def score(self, weights: Mapping[str, float]) -> np.ndarray:
        """The scores of the rows, given a weight per relation."""
        by_relation = torch.tensor([*weights.values()], device=self.own.device)
        return graph_maxsim(self.own, self.context, by_relation, self.token_weights).cpu().numpy()
