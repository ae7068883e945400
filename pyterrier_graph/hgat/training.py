r"""Training of an HGAT (Albarede et al. 2023, Sect. 5.2.3).

The loop over triples, which ``transformers.Trainer`` runs in batches, is this::

    for <q, p+, p-> in draw_triples(...):                    # negatives: NegativeSampler
        s+, s- = hgat.score(q, p+), hgat.score(q, p-)        # Eq. 4 or 5, over Eq. 1 to 3, 7 and 8
        loss = cross_entropy([s+, s-], 0)                    # TripleModel.forward
        Adam(network: 1e-3, encoder above its first six layers: 3e-6).step()

with the pairwise softmax cross-entropy

.. math::

    L(q, p^+, p^-) = -\log \frac{e^{s(q, p^+)}}{e^{s(q, p^+)} + e^{s(q, p^-)}}

Before that, the weights of direct matches (:class:`~pyterrier_graph.hgat.equations.NeighborMatches`), which are not in
the paper, learn from all candidates of a query at once, with the softmax cross-entropy over their scores
(:class:`MatchModel`). What they are computed from, the best matches, stays the same meanwhile.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import pydantic
import torch
from accelerate.utils import send_to_device
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.checks import DataWarning, query_texts
from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.token_encoder import TokenEncoder, TokenStates
from pyterrier_graph.graph_maxsim.graph_reranker import graph_of
from pyterrier_graph.graphs.csr import CSR, offsets
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, judged_ids, passage_qrels
from pyterrier_graph.hgat.attention import Propagation
from pyterrier_graph.hgat.equations import HGAT, NeighborMatches
from pyterrier_graph.training.trainer import L2SP, StartOptions, train

logger = logging.getLogger(__name__)

Strategy = Literal["random", "same_doc", "relevant_docs", "shared_codes", "mixed", "candidates"]
ATTEMPTS = 20
MIXED_ATTEMPTS = 200
MIXED_RELEVANT_DOCS = 0.4  # and 0.6 of shared_codes
LONGEST = 30.0  # MaxSim of a query is scaled to at most this, times a factor that is learned


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class HGATTraining(StartOptions):
    """Options of ``HGATReranker.fit()``.

    The defaults suit some hundred queries with the default :class:`~pyterrier_graph.HGATConfig`; training takes minutes
    on two cores. By default the encoder does not learn, so that stored token vectors can be used.

    Attributes:
        epochs: Passes over the triples. With 0 the layers are not trained; None is 0 if the network has direct matches,
            as by default, and the encoder does not learn; else 2.
        negatives: How p- is drawn: see :class:`NegativeSampler`.
        repeats: How often a negative is drawn for each pair of a query and a relevant passage.
        max_triples: At most so many triples are used, drawn at random; None takes all. So many queries, at most, are
            used for the weights of direct matches.
        match_epochs: Passes over the training queries for the weights of direct matches, at most: training stops after
            three without improvement. With 0 these weights are not trained.
        match_learning_rate: Learning rate of these weights.
        scalar_learning_rate: Of the relation weights W, lambda and alpha; None takes ``learning_rate``. At the rate of
            the matrices these scalars need thousands of steps.
        frozen_encoder_layers: If the encoder learns, so many of its first layers, and its embeddings, do not.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.StartOptions`.
    """

    epochs: NonNegativeInt | None = None  # type: ignore[assignment]
    batch_size: PositiveInt = 16
    patience: PositiveInt | None = None
    negatives: Strategy = "candidates"
    repeats: PositiveInt = 1
    max_triples: PositiveInt | None = 1000
    match_epochs: NonNegativeInt = 10
    match_learning_rate: NonNegativeFloat = 0.01
    scalar_learning_rate: NonNegativeFloat | None = 0.03
    frozen_encoder_layers: NonNegativeInt = 0

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """The publication's options (Albarede et al. 2023, Sect. 5.2.3).

        One learning rate of 1e-3, one of 3e-6 for the encoder above its first six layers, ``mixed`` negatives drawn
        1000 times. The 3.5 million triples are read once; the paper does not report the batch size: here 32.
        """
        published: dict[str, Any] = {
            "learning_rate": 1e-3,
            "encoder_learning_rate": 3e-6,
            "frozen_encoder_layers": 6,
        }
        published |= {
            "negatives": "mixed",
            "repeats": 1000,
            "max_triples": None,
            "scalar_learning_rate": None,
        }
        published |= {"l2_sp": 0.0}
        return cls(**published | {"epochs": 1, "batch_size": 32, "patience": 3} | options)


class NegativeSampler:
    """Draws a negative for each pair of a query and a relevant passage.

    A negative is a passage that is judged lower than p+ for the query; a passage without a judgment has label 0.
    With binary judgments this is the paper's "non-relevant".

    * ``random``: from the corpus.
    * ``same_doc``: from the document of p+.
    * ``relevant_docs``: from the documents that have a passage relevant to the query.
    * ``shared_codes``: from the documents that share a code with the patent that the query was made from (``codes``, by
      qid), as in the paper; where queries have no codes, with one of the query's relevant documents. Each of these
      documents is drawn with the same probability, then one of its passages.
    * ``mixed``: ``relevant_docs`` with probability 0.4, ``shared_codes`` with 0.6 (never, with a warning, if there are
      no codes). A pair for which one of them finds nothing gets a negative by the other.
    * ``candidates``: from the passages that the first stage ranked for the query. Not in the paper.

    Raises ValueError if no passage is judged as relevant, and KeyError if a judged passage is not in the graph.
    """

    def __init__(
        self,
        graph: HeteroGraph,
        qrels: pd.DataFrame,
        strategy: Strategy,
        *,
        candidates: pd.DataFrame | None = None,
        codes: Mapping[str, Collection[str]] | None = None,
        seed: int = 0,
    ) -> None:
        if not (qrels["label"] > 0).any():
            raise ValueError("no training query has a relevant passage (label > 0)")
        self.graph, self.strategy = graph, strategy
        self.random = np.random.default_rng(seed)
        self.qids = np.unique(qrels["qid"].astype(str))
        query = np.searchsorted(self.qids, qrels["qid"].astype(str))
        pair = query * graph.num_nodes + graph.nodes_of(qrels["docno"].tolist())
        order = np.argsort(pair, kind="stable")
        self._judged, self._label = pair[order], qrels["label"].to_numpy()[order]
        relevant = self._label > 0
        self._query, self._positive = np.divmod(self._judged[relevant], graph.num_nodes)
        self._positive_label = self._label[relevant]
        if strategy == "candidates":
            assert candidates is not None
            candidates = candidates[candidates["qid"].isin(self.qids)]
            row = np.searchsorted(self.qids, candidates["qid"].astype(str))
            self._candidates = CSR.group(
                row, graph.nodes_of(candidates["docno"].tolist()), len(self.qids)
            )
        self._passages = graph._document_passages
        self._relevant_documents = CSR.distinct(
            self._query, graph.document[self._positive], len(self.qids)
        )
        if strategy in ("shared_codes", "mixed"):
            self._codes = self._numbers_of(codes)
            # in front of each pair of a query and a code: the number of documents of all codes before
            self._before = offsets(graph._code_documents.lengths[self._codes.indices])
            if strategy == "mixed" and not self._before[-1]:
                warnings.warn(
                    "negatives='mixed' draws from documents that share a code, but no training query or relevant "
                    "document has a code: all negatives are drawn by 'relevant_docs'",
                    DataWarning,
                    stacklevel=2,
                )

    def sample(self) -> np.ndarray:
        """Draws one negative for every pair of a query and a relevant passage.

        Pairs without a negative are left out and counted in the log. If no pair has one, ValueError is raised.

        Returns:
            Position of the query in ``qids``, node of p+, and node of p-; shape (triples, 3), int64.
        """
        negative = np.full(len(self._query), -1)
        if self.strategy == "mixed":
            # Each pair keeps its strategy when a draw is rejected; else the pairs would drift to the larger pool.
            by_document = self.random.random(len(negative)) < MIXED_RELEVANT_DOCS
            for chosen in (
                by_document,
                ~by_document,
            ):  # the second round is for pairs that the first found nothing for
                for strategy, pairs in (
                    ("relevant_docs", chosen),
                    ("shared_codes", ~chosen & bool(self._before[-1])),
                ):
                    self._fill(
                        negative, np.flatnonzero(pairs & (negative < 0)), strategy, MIXED_ATTEMPTS
                    )
        else:
            self._fill(negative, np.arange(len(negative)), self.strategy, ATTEMPTS)
        found = negative >= 0
        if not found.any():
            advice = (
                ""
                if self.strategy == "candidates"
                else "; negatives='candidates' draws from the run's passages"
            )
            raise ValueError(
                f"negatives={self.strategy!r} finds no passage that is judged lower than a relevant one{advice}"
            )
        if not found.all():
            logger.info(
                "%d of %d pairs have no negative by %r", (~found).sum(), len(found), self.strategy
            )
        return np.column_stack([self._query, self._positive, negative])[found]

    def _fill(self, negative: np.ndarray, pairs: np.ndarray, strategy: str, attempts: int) -> None:
        """Writes a negative for each of these pairs into an array, where some attempt finds one."""
        for _ in range(attempts):
            if not len(pairs):
                break
            drawn = self._draw(strategy, pairs)
            found = (drawn >= 0) & (
                self._label_of(self._query[pairs], drawn) < self._positive_label[pairs]
            )
            negative[pairs[found]] = drawn[found]
            pairs = pairs[~found]

    def _draw(self, strategy: str, pairs: np.ndarray) -> np.ndarray:
        """A passage per pair by one strategy, -1 where there is none."""
        query, graph, random = self._query[pairs], self.graph, self.random
        if strategy == "random":
            return random.choice(graph.passage_nodes, len(pairs))
        if strategy == "candidates":
            return self._candidates.draw(query, random)
        if strategy == "same_doc":
            document = graph.document[self._positive[pairs]]
        elif strategy == "relevant_docs":
            document = self._relevant_documents.draw(query, random)
        else:
            document = self._sharing_code(query)
        return self._passages.draw(document, random)

    def _sharing_code(self, query: np.ndarray) -> np.ndarray:
        """Per query a document that has one of its codes, -1 where there is none.

        A document is drawn from the lists of all the query's codes, and accepted if the list is that of its first code.
        Documents with several of the codes are thus as likely as others, and no union of the lists is made.
        """
        codes, listed = self._codes, self.graph._code_documents
        start, end = self._before[codes.indptr[query]], self._before[codes.indptr[query + 1]]
        drawn = np.full(len(query), -1)
        rows = np.flatnonzero(start < end)
        while len(rows):
            place = self.random.integers(start[rows], end[rows])
            pair = np.searchsorted(self._before, place, side="right") - 1
            code = codes.indices[pair]
            document = listed.indices[listed.indptr[code] + place - self._before[pair]].astype(
                np.int64
            )
            position, other = self.graph._codes_of(document)
            before = (other < code[position]) & np.isin(
                self._key(query[rows][position], other), self._code_keys
            )
            accepted = np.bincount(position[before], minlength=len(rows)) == 0
            drawn[rows[accepted]] = document[accepted]
            rows = rows[~accepted]
        return drawn

    def _key(self, query: np.ndarray, code: np.ndarray) -> np.ndarray:
        return query * len(self.graph._code_names) + code

    def _numbers_of(self, codes: Mapping[str, Collection[str]] | None) -> CSR:
        """Per query the numbers of its codes in the graph, or of the codes of its relevant documents."""
        if codes is None:
            position, number = self.graph._codes_of(self._relevant_documents.indices)
            row = self._relevant_documents.row_index[position]
        else:
            number_of = {code: number for number, code in enumerate(self.graph._code_names)}
            given = [
                (row, code) for row, qid in enumerate(self.qids) for code in codes.get(qid, ())
            ]
            pairs = [(row, number_of[code]) for row, code in given if code in number_of]
            row, number = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        found = CSR.distinct(row, number, len(self.qids))
        self._code_keys = self._key(found.row_index, found.indices)
        return found

    def _label_of(self, query: np.ndarray, node: np.ndarray) -> np.ndarray:
        key = query * self.graph.num_nodes + node
        position = np.minimum(np.searchsorted(self._judged, key), len(self._judged) - 1)
        return np.where(self._judged[position] == key, self._label[position], 0)


Graphs = Sequence[tuple[HeteroGraph, Any]]
"""Graphs, each with a TokenStore or GraphTokens of its nodes."""


def draw_triples(
    run: pd.DataFrame, qrels: pd.DataFrame, graph: HeteroGraph | None, options: HGATTraining
) -> tuple[list[str], list[HeteroGraph], np.ndarray]:
    """Draws triples according to the options, from ``qid, query, docno`` (and ``graph`` if there is no document graph).

    Returns the texts of the queries, the graphs, and the triples, of shape (triples, 4): position of the graph,
    position of the query, node of p+, node of p-.
    """
    texts = query_texts(run)
    qrels = qrels[qrels["qid"].isin(texts.index)]
    if graph is not None:
        sources = [(graph, passage_qrels(qrels, graph) if len(qrels) else qrels, run)]
    elif options.negatives == "candidates":
        sources = list(_learnable(run, qrels))
    else:
        advice = "use HGATTraining(negatives='candidates')"
        raise ValueError(
            f"without a document graph, negatives are each query's own passages: {advice}"
        )
    if not sources:
        raise ValueError(
            "no training query has both a relevant passage among its own and one that is judged lower"
        )
    codes = (
        run.drop_duplicates("qid").set_index("qid")["codes"].to_dict()
        if "codes" in run.columns
        else None
    )
    drawn = []
    for number, (source, labels, candidates) in enumerate(sources):
        given = {"candidates": candidates, "codes": codes, "seed": options.seed + number}
        sampler = NegativeSampler(source, labels, options.negatives, **given)
        for _ in range(options.repeats):
            query, positive, negative = sampler.sample().T  # each of shape (triples of this graph,)
            graphs = np.full(len(query), number)
            drawn.append(
                np.column_stack(
                    [graphs, texts.index.get_indexer(sampler.qids[query]), positive, negative]
                )
            )
    triples = np.concatenate(drawn)
    if options.max_triples is not None and options.max_triples < len(triples):
        triples = np.random.default_rng(options.seed).choice(
            triples, options.max_triples, replace=False
        )
    return texts.tolist(), [source for source, *_ in sources], triples


def labels_of(run: pd.DataFrame, qrels: pd.DataFrame) -> np.ndarray:
    """The judgment of each row of a run, of its passage or its document; 0 where there is none; shape (rows,)."""
    labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
    pairs = pd.MultiIndex.from_arrays([run["qid"], judged_ids(run["docno"], qrels)])
    return labels.reindex(pairs, fill_value=0).to_numpy()


def _learnable(
    run: pd.DataFrame, qrels: pd.DataFrame
) -> Iterator[tuple[HeteroGraph, pd.DataFrame, pd.DataFrame]]:
    """Graph, judgments and passages of each query whose own passages are not all equally relevant."""
    run = run.assign(label=labels_of(run, qrels))
    for rows in run.groupby("qid", sort=False).indices.values():
        passages = run.iloc[rows].drop_duplicates("docno")
        if passages["label"].max() > max(passages["label"].min(), 0):
            yield graph_of(passages), passages, passages


@dataclass(frozen=True)
class Group:
    """The triples of a batch that are from one graph."""

    queries: TokenStates | list[str]  # token vectors, or texts if the encoder learns, too
    inputs: TokenStates | list[str]  # the same for the nodes of the propagation
    propagation: Propagation
    triples: (
        Tensor  # query, p+ and p- (positions in the targets of the propagation), shape (triples, 3)
    )


class TripleCollator:
    """Makes batches of triples: plans the states that their passages need, and collects the inputs.

    Without an encoder, which then learns, too, batches have texts.
    """

    def __init__(
        self, hgat: HGAT, graphs: Graphs, queries: Sequence[str], encoder: TokenEncoder | None
    ) -> None:
        self.hgat, self.graphs, self.queries = hgat, graphs, queries
        self.encoded = None if encoder is None else encoder.encode_queries(queries).to("cpu")

    def __call__(self, triples: Sequence[np.ndarray]) -> dict[str, list[Group]]:
        """Returns the arguments of :meth:`TripleModel.forward`."""
        rows = np.stack(triples)  # (triples, 4)
        return {
            "groups": [
                self._group(number, rows[rows[:, 0] == number])
                for number in dict.fromkeys(rows[:, 0])
            ]
        }

    def _group(self, number: int, rows: np.ndarray) -> Group:
        graph, tokens = self.graphs[number]
        queries, query = np.unique(rows[:, 1], return_inverse=True)
        passages, passage = np.unique(rows[:, 2:], return_inverse=True)
        propagation = self.hgat.plan(graph, passages, complete=True)
        triples = torch.from_numpy(np.column_stack([query, passage.reshape(-1, 2)]))
        if self.encoded is None:
            return Group(
                [self.queries[q] for q in queries],
                tokens.texts(propagation.nodes),
                propagation,
                triples,
            )
        encoded = self.encoded.select(torch.from_numpy(queries))
        return Group(encoded, tokens.states(propagation.nodes), propagation, triples)


class TripleModel(nn.Module):
    """An HGAT with its loss on triples, its penalty, and with the encoder if the encoder learns, too."""

    def __init__(
        self, hgat: HGAT, encoder: TokenEncoder | None = None, *, l2_sp: float | None = 0.0
    ) -> None:
        super().__init__()
        self.hgat, self.encoder, self.penalty = hgat, encoder, L2SP(hgat, l2_sp)
        self.network = encoder.network if encoder is not None else None

    def forward(self, groups: list[Group]) -> dict[str, Tensor]:
        """Pairwise softmax cross-entropy over the scores of p+ and p-, averaged over the triples, with the penalty."""
        scores = torch.cat([self._scores(group) for group in groups])  # (triples, 2)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return {"loss": functional.cross_entropy(scores.float(), first) + self.penalty(self.hgat)}

    def _scores(self, group: Group) -> Tensor:
        device = next(self.hgat.parameters()).device
        given: tuple[Any, Any] = (group.queries, group.inputs)
        if self.encoder is not None:
            queries, inputs = (
                self.encoder.forward_queries(given[0]),
                self.encoder.forward_passages(given[1]),
            )
        else:
            queries, inputs = (states.to(device) for states in given)
        propagation = send_to_device(group.propagation, device)
        in_context, content = self.hgat(inputs, propagation), inputs.select(propagation.inputs)
        matches, scores = self.hgat.matches, []
        for query, *passages in group.triples.tolist():
            pair, vectors = torch.tensor(passages, device=device), queries[query]
            neighbors = (
                None if matches is None else matches.maxima(vectors, inputs, propagation)[pair]
            )
            scores.append(
                self.hgat.score(vectors, content.select(pair), in_context.select(pair), neighbors)
            )  # (2,)
        return torch.stack(scores)


class Candidates(NamedTuple):
    """The candidates of one query, by their best matches."""

    rows: np.ndarray  # their positions in the run
    query: Tensor  # (query tokens, d)
    own: Tensor  # (candidates, query tokens)
    neighbors: Tensor  # (candidates, relations, query tokens)


class MatchModel(nn.Module):
    """The weights of direct matches, with their loss on all candidates of a query."""

    def __init__(self, matches: NeighborMatches) -> None:
        super().__init__()
        self.matches, self.scale = matches, nn.Parameter(torch.zeros(()))

    def forward(self, lists: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        """Softmax cross-entropy over the scores of the candidates, averaged over the relevant ones, then the queries.

        A list has the query, its own and its neighbors' matches as in :class:`Candidates`, and which are relevant.
        """
        losses = []
        for query, own, neighbors, relevant in lists:
            scores = self.matches(query, own, neighbors) * (LONGEST / len(query) * self.scale.exp())
            losses.append(-scores.log_softmax(0)[relevant].mean())
        return {"loss": torch.stack(losses).mean()}


def train_matches(
    matches: NeighborMatches,
    lists: Sequence[tuple[Tensor, ...]],
    options: HGATTraining,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains the weights of direct matches in place; for the lists see :class:`MatchModel`, else train_on_triples."""
    folder = options.output_dir and f"{options.output_dir}/matches"
    options = replace(options, epochs=options.match_epochs, patience=3, output_dir=folder)
    model = MatchModel(matches)
    rates = [([*model.parameters()], options.match_learning_rate)]
    return train(
        model, cast(Dataset, lists), lambda some: {"lists": some}, options, rates=rates, **arguments
    )


def train_on_triples(
    hgat: HGAT,
    encoder: TokenEncoder,
    graphs: Graphs,
    queries: Sequence[str],
    triples: np.ndarray,
    options: HGATTraining,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains an HGAT in place, and the encoder where ``options.encoder_learning_rate`` is given.

    ``queries`` and ``triples`` are those of :func:`draw_triples`. Further arguments, and the log that is returned, are
    those of :func:`pyterrier_graph.training.trainer.train`.
    """
    scalars = hgat.scalars()
    others = [
        weight
        for layer in hgat.layers
        for weight in layer.parameters()
        if all(weight is not s for s in scalars)
    ]
    scalar_rate = (
        options.learning_rate
        if options.scalar_learning_rate is None
        else options.scalar_learning_rate
    )
    rates = [(others, options.learning_rate), (scalars, scalar_rate)]
    learned = options.encoder_learning_rate is not None
    if options.encoder_learning_rate is not None:
        trained = [p for p in encoder.network.parameters() if p.requires_grad]
        rates.append((trained, options.encoder_learning_rate))
    model = TripleModel(
        hgat, encoder if learned else None, l2_sp=options.l2_sp if arguments["tied"] else 0.0
    )
    collator = TripleCollator(hgat, graphs, queries, None if learned else encoder)
    return train(model, cast(Dataset, triples), collator, options, rates=rates, **arguments)


def copy_to_train(encoder: TokenEncoder, frozen: int) -> TokenEncoder:
    """Copies an encoder to train it above its first layers; with ``frozen`` 0, its embeddings learn, too."""
    copied = copy.copy(encoder)
    copied.network = copy.deepcopy(encoder.network).requires_grad_(True)
    if not frozen:
        return copied
    modules = [*copied.network.named_modules()]
    layers = max(
        (module for _, module in modules if isinstance(module, nn.ModuleList)), key=len, default=()
    )
    if frozen >= len(layers):
        raise ValueError(
            f"encoder_learning_rate has no effect: the encoder has {len(layers)} layers, and frozen_encoder_layers="
            f"{frozen} freezes all of them. Use HGATTraining(frozen_encoder_layers=...) with less than {len(layers)}"
        )
    for module in [
        *(module for name, module in modules if name.rpartition(".")[2] == "embeddings"),
        *layers[:frozen],
    ]:
        module.requires_grad_(False)
    return copied
