r"""Training of an HGAT (Albarede et al. 2023, Sect. 5.2.3).

``transformers.Trainer`` runs this loop over triples in batches::

    for <q, p+, p-> in draw_triples(...):                    # negatives: NegativeSampler
        s+, s- = hgat.score(q, p+), hgat.score(q, p-)        # Eq. 4 or 5, over Eq. 1 to 3, 7 and 8
        loss = cross_entropy([s+, s-], 0)                    # TripleModel.forward
        Adam(network: 1e-3, encoder above its first six layers: 3e-6).step()

with the pairwise softmax cross-entropy

.. math::

    L(q, p^+, p^-) = -\log \frac{e^{s(q, p^+)}}{e^{s(q, p^+)} + e^{s(q, p^-)}}

Before that, the weights of direct matches (:class:`~pyterrier_graph.hgat.equations.NeighborMatches`), which are not in
the paper, learn from all candidates of a query at once, with the softmax cross-entropy over their scores
(:class:`MatchModel`). The best matches, which they are applied to, do not change during this training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import pydantic
import torch
from accelerate.utils import send_to_device
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.checks import query_texts
from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.token_encoder import TokenEncoder, TokenStates
from pyterrier_graph.graph_maxsim.graph_reranker import graph_of
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.hgat.attention import Propagation
from pyterrier_graph.hgat.equations import HGAT, NeighborMatches
from pyterrier_graph.hgat.negatives import NegativeSampler, Strategy
from pyterrier_graph.training.trainer import HeadOptions, train
from pyterrier_graph.training.validation import JudgedRun

MAX_SCALE = 30.0  # maximum of a query's scaled MaxSim, before the factor that is learned


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class HGATTraining(HeadOptions):
    """Options of ``HGATReranker.fit()``.

    The defaults suit a few hundred queries with the default :class:`~pyterrier_graph.HGATConfig`; training takes
    minutes on two cores. By default the encoder does not learn, so that stored token vectors can be used.

    Attributes:
        epochs: Passes over the triples; with 0 the layers are not trained. The default is 0 if the network has direct
            matches (the default) and the encoder does not learn, else 2.
        negatives: How p- is drawn: see :class:`~pyterrier_graph.hgat.negatives.NegativeSampler`.
        repeats: Number of negatives drawn for each pair of a query and a relevant passage.
        max_triples: Maximum number of triples, and of queries for the weights of direct matches, drawn at random; None
            keeps all.
        match_epochs: Maximum number of passes over the training queries for the weights of direct matches. Training
            stops after three passes without improvement. With 0 these weights are not trained.
        match_learning_rate: Learning rate of the weights of direct matches.
        scalar_learning_rate: Learning rate of the relation weights W, lambda and alpha. At ``learning_rate`` (None),
            these scalars need thousands of steps.
        frozen_encoder_layers: Number of first encoder layers that do not learn; above 0, embeddings do not either.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.HeadOptions`.
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

        The learning rate is 1e-3, and 3e-6 for the encoder above its first six layers; ``mixed`` negatives are drawn
        1000 times, and the 3.5 million triples are read once. The paper does not report the batch size; it is 32 here.
        """
        published: dict[str, Any] = {
            "epochs": 1,
            "batch_size": 32,
            "patience": 3,
            "learning_rate": 1e-3,
            "encoder_learning_rate": 3e-6,
            "frozen_encoder_layers": 6,
            "negatives": "mixed",
            "repeats": 1000,
            "max_triples": None,
            "scalar_learning_rate": None,
        }
        return cls(**published | options)


def draw_triples(
    training: JudgedRun, options: HGATTraining
) -> tuple[list[str], list[HeteroGraph], np.ndarray]:
    """Draws triples from judged passages of the document graph, or of each query's candidate graph.

    Returns:
        The texts of the queries, the graphs, and the triples: positions of graph and query, and nodes of p+ and p-;
        shape (triples, 4).
    """
    run = training.rows
    if training.graph is not None:
        sources = [(training.graph, training.passage_qrels(), run)]
    elif options.negatives == "candidates":
        sources = [*_learnable(training)]
    else:
        advice = "use HGATTraining(negatives='candidates')"
        raise ValueError(
            f"without a document graph, negatives are each query's own passages: {advice}"
        )
    if not sources:
        raise ValueError(
            "no training query has both a relevant passage among its own and one that is judged lower"
        )
    texts, codes = query_texts(run), None
    if "codes" in run.columns:
        codes = run.drop_duplicates("qid").set_index("qid")["codes"].to_dict()
    draws = []
    for number, (graph, qrels, candidates) in enumerate(sources):
        sampler = NegativeSampler(
            graph,
            qrels,
            options.negatives,
            candidates=candidates,
            codes=codes,
            seed=options.seed + number,
        )
        for _ in range(options.repeats):
            query, positive, negative = sampler.sample().T  # each (triples of this graph,)
            query = texts.index.get_indexer(sampler.qids[query])
            draws.append(np.column_stack([np.full_like(query, number), query, positive, negative]))
    triples = np.concatenate(draws)
    if options.max_triples is not None and options.max_triples < len(triples):
        random = np.random.default_rng(options.seed)
        triples = random.choice(triples, options.max_triples, replace=False)
    return texts.tolist(), [graph for graph, *_ in sources], triples


def _learnable(training: JudgedRun) -> Iterator[tuple[HeteroGraph, pd.DataFrame, pd.DataFrame]]:
    """Graph, judgments and candidates of each query whose candidates are not all equally relevant."""
    run = training.rows.assign(label=training.labels)
    for rows in run.groupby("qid", sort=False).indices.values():
        candidates = run.iloc[rows].drop_duplicates("docno")
        if candidates["label"].max() > max(candidates["label"].min(), 0):
            yield graph_of(candidates), candidates, candidates


Graphs = Sequence[tuple[HeteroGraph, Any]]
"""Graphs with the TokenStore or GraphTokens of their nodes."""


@dataclass(frozen=True)
class TripleBatch:
    """Triples of a batch that share a graph. Queries and inputs are token vectors, or texts if the encoder learns."""

    queries: TokenStates | list[str]
    inputs: TokenStates | list[str]  # of the nodes of the propagation
    propagation: Propagation
    triples: Tensor  # query, p+ and p- (positions in the propagation's targets), shape (triples, 3)


class TripleCollator:
    """Makes batches of triples: plans the states that their passages need, and collects the inputs.

    Without ``encoder``, batches have texts, because the encoder learns.
    """

    def __init__(
        self, hgat: HGAT, graphs: Graphs, queries: Sequence[str], encoder: TokenEncoder | None
    ) -> None:
        self.hgat, self.graphs, self.queries = hgat, graphs, queries
        self.encoded = None if encoder is None else encoder.encode_queries(queries).to("cpu")

    def __call__(self, triples: Sequence[np.ndarray]) -> dict[str, list[TripleBatch]]:
        """Returns the arguments of :meth:`TripleModel.forward`."""
        batch = np.stack(triples)  # (triples, 4)
        graphs = dict.fromkeys(batch[:, 0])
        return {"groups": [self._group(graph, batch[batch[:, 0] == graph]) for graph in graphs]}

    def _group(self, number: int, rows: np.ndarray) -> TripleBatch:
        graph, tokens = self.graphs[number]
        queries, query = np.unique(rows[:, 1], return_inverse=True)
        passages, passage = np.unique(rows[:, 2:], return_inverse=True)
        propagation = self.hgat.plan(graph, passages, complete=True)
        triples = torch.from_numpy(np.column_stack([query, passage.reshape(-1, 2)]))
        if self.encoded is None:
            texts = [self.queries[query] for query in queries]
            return TripleBatch(texts, tokens.texts(propagation.nodes), propagation, triples)
        encoded = self.encoded.select(torch.from_numpy(queries))
        return TripleBatch(encoded, tokens.states(propagation.nodes), propagation, triples)


class TripleModel(nn.Module):
    """An HGAT, and an encoder that learns, with the loss on triples."""

    def __init__(self, hgat: HGAT, encoder: TokenEncoder | None = None) -> None:
        super().__init__()
        self.hgat, self.encoder = hgat, encoder
        self.network = encoder.network if encoder is not None else None

    def forward(self, groups: list[TripleBatch]) -> dict[str, Tensor]:
        """Mean pairwise softmax cross-entropy over the scores of p+ and p-."""
        scores = torch.cat([self._scores(group) for group in groups])  # (triples, 2)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return {"loss": functional.cross_entropy(scores.float(), first)}

    def _encoded(self, group: TripleBatch, device: torch.device) -> tuple[TokenStates, TokenStates]:
        queries, inputs = cast(Any, group.queries), cast(Any, group.inputs)
        if self.encoder is None:
            return queries.to(device), inputs.to(device)
        return self.encoder.forward_queries(queries), self.encoder.forward_passages(inputs)

    def _scores(self, group: TripleBatch) -> Tensor:
        device = next(self.hgat.parameters()).device
        queries, inputs = self._encoded(group, device)
        propagation = send_to_device(group.propagation, device)
        in_context, content = self.hgat(inputs, propagation), inputs.select(propagation.inputs)
        matches, scores = self.hgat.matches, []
        for query, *passages in group.triples.tolist():
            pair, vectors = torch.tensor(passages, device=device), queries[query]
            neighbors = None
            if matches is not None:
                neighbors = matches.maxima(vectors, inputs, propagation)[pair]
            states = content.select(pair), in_context.select(pair)
            scores.append(self.hgat.score(vectors, *states, neighbors))  # (2,)
        return torch.stack(scores)


class Candidates(NamedTuple):
    """The best matches of one query's candidates: what the weights of direct matches learn from."""

    rows: np.ndarray  # positions of the candidates in the run
    query: Tensor  # (query tokens, d)
    own: Tensor  # (candidates, query tokens)
    neighbors: Tensor  # (candidates, relations, query tokens)


class MatchModel(nn.Module):
    """The weights of direct matches, with their loss on all candidates of a query."""

    def __init__(self, matches: NeighborMatches) -> None:
        super().__init__()
        self.matches, self.scale = matches, nn.Parameter(torch.zeros(()))

    def forward(self, lists: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        """Softmax cross-entropy over the scores of candidates, averaged over relevant ones, then over queries.

        Each list has ``query``, ``own`` and ``neighbors`` of :class:`Candidates`, and a mask of relevant candidates.
        """
        losses = []
        for query, own, neighbors, relevant in lists:
            scale = MAX_SCALE / len(query) * self.scale.exp()
            scores = self.matches(query, own, neighbors) * scale
            losses.append(-scores.log_softmax(0)[relevant].mean())
        return {"loss": torch.stack(losses).mean()}


def train_matches(
    matches: NeighborMatches,
    lists: Sequence[tuple[Tensor, ...]],
    options: HGATTraining,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains the weights of direct matches in place; ``lists`` are the input of :class:`MatchModel`."""
    folder = options.output_dir and f"{options.output_dir}/matches"
    options = replace(options, epochs=options.match_epochs, patience=3, output_dir=folder)
    model = MatchModel(matches)
    rates = [([*model.parameters()], options.match_learning_rate)]
    collate = lambda batch: {"lists": batch}  # noqa: E731
    return train(model, cast(Dataset, lists), collate, options, rates=rates, **arguments)


def train_on_triples(
    hgat: HGAT,
    encoder: TokenEncoder,
    graphs: Graphs,
    queries: Sequence[str],
    triples: np.ndarray,
    options: HGATTraining,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains an HGAT in place, and the encoder if ``options.encoder_learning_rate`` is set.

    :func:`draw_triples` returns ``queries`` and ``triples``. :func:`pyterrier_graph.training.trainer.train` describes
    further arguments and the log.
    """
    scalars = hgat.scalars()
    ids = {id(scalar) for scalar in scalars}
    matrices = [w for layer in hgat.layers for w in layer.parameters() if id(w) not in ids]
    scalar_rate = options.scalar_learning_rate
    rates = [
        (matrices, options.learning_rate),
        (scalars, options.learning_rate if scalar_rate is None else scalar_rate),
    ]
    if options.encoder_learning_rate is None:
        model = TripleModel(hgat)
        collator = TripleCollator(hgat, graphs, queries, encoder)
    else:
        learning = [p for p in encoder.network.parameters() if p.requires_grad]
        rates.append((learning, options.encoder_learning_rate))
        model = TripleModel(hgat, encoder)
        collator = TripleCollator(hgat, graphs, queries, None)
    return train(model, cast(Dataset, triples), collator, options, rates=rates, **arguments)


def copy_to_train(encoder: TokenEncoder, frozen: int) -> TokenEncoder:
    """Copies an encoder to train it above its first ``frozen`` layers; with 0, its embeddings learn as well."""
    copied = copy.copy(encoder)
    copied.network = copy.deepcopy(encoder.network).requires_grad_(True)
    if not frozen:
        return copied
    modules = [*copied.network.named_modules()]
    lists = [module for _, module in modules if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=len, default=())
    if frozen >= len(layers):
        raise ValueError(
            f"encoder_learning_rate has no effect: the encoder has {len(layers)} layers, and frozen_encoder_layers="
            f"{frozen} freezes all of them. Use HGATTraining(frozen_encoder_layers=...) with less than {len(layers)}"
        )
    embeddings = [module for name, module in modules if name.rpartition(".")[2] == "embeddings"]
    for module in [*embeddings, *layers[:frozen]]:
        module.requires_grad_(False)
    return copied
