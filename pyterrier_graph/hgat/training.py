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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pydantic
import torch
from accelerate.utils import send_to_device
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.checks import query_texts
from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.token_encoder import TokenEncoder, TokenStates
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.hgat.attention import Propagation
from pyterrier_graph.hgat.equations import HGAT, NeighborMatches
from pyterrier_graph.hgat.negatives import NegativeSampler, Strategy
from pyterrier_graph.training.model import Log, Run
from pyterrier_graph.training.trainer import HeadOptions, train
from pyterrier_graph.training.validation import JudgedRun

MATCH_EPOCHS = 10  # maximum passes over the training queries for the weights of direct matches
MATCH_PATIENCE = 3
MATCH_LEARNING_RATE = 0.01
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
        scalar_learning_rate: Learning rate of the relation weights W, lambda and alpha. At ``learning_rate``, these
            scalars need thousands of steps.
        frozen_encoder_layers: Number of first encoder layers that do not learn; above 0, embeddings do not either.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.HeadOptions`.
    """

    epochs: NonNegativeInt | None = None  # type: ignore[assignment]
    batch_size: PositiveInt = 16
    patience: PositiveInt | None = None
    negatives: Strategy = "candidates"
    repeats: PositiveInt = 1
    max_triples: PositiveInt | None = 1000
    scalar_learning_rate: NonNegativeFloat = 0.03
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
            "scalar_learning_rate": 1e-3,
        }
        return cls(**published | options)


def draw_triples(training: JudgedRun, options: HGATTraining) -> tuple[list[str], np.ndarray]:
    """Draws triples from judged passages of the document graph.

    Returns:
        The texts of the queries, and the triples: positions of queries, and nodes of p+ and p-; shape (triples, 3).
    """
    run = training.rows
    graph = training.graph
    if graph is None:
        raise ValueError(
            "layers are trained on a document graph: give graph=, or use HGATTraining(epochs=0)"
        )
    texts = query_texts(run)
    codes = None
    if "codes" in run.columns:
        queries = run.drop_duplicates("qid").set_index("qid")
        codes = queries["codes"].to_dict()
    sampler = NegativeSampler(
        graph,
        training.passage_qrels(),
        options.negatives,
        candidates=run,
        codes=codes,
        seed=options.seed,
    )
    samples = [sampler.sample() for _ in range(options.repeats)]
    triples = np.concatenate(samples)  # (triples, 3)
    qids = sampler.qids[triples[:, 0]]
    triples[:, 0] = texts.index.get_indexer(qids)
    if options.max_triples is not None and options.max_triples < len(triples):
        random = np.random.default_rng(options.seed)
        triples = random.choice(triples, options.max_triples, replace=False)
    return texts.tolist(), triples


@dataclass(frozen=True)
class TripleBatch:
    """Triples of a batch. Queries and inputs are token vectors, or texts if the encoder learns."""

    queries: Any  # TokenStates | list[str]
    inputs: Any  # of the nodes of the propagation
    propagation: Propagation
    triples: Tensor  # query, p+ and p- (positions in the propagation's targets), shape (triples, 3)


def collate_triples(
    hgat: HGAT,
    graph: HeteroGraph,
    tokens: Any,
    queries: TokenStates | list[str],
    triples: Sequence[np.ndarray],
) -> dict[str, TripleBatch]:
    """Plans the states that the passages of a batch need, and collects the inputs of :meth:`TripleModel.forward`.

    ``tokens`` are a TokenStore or GraphTokens. If ``queries`` are strings, the encoder learns.
    """
    rows = np.stack(triples)  # (triples, 3)
    used, query = np.unique(rows[:, 0], return_inverse=True)
    passages, passage = np.unique(rows[:, 1:], return_inverse=True)
    plan = hgat.plan(graph, passages)
    pairs = passage.reshape(-1, 2)  # p+ and p-
    numbers = np.column_stack([query, pairs])  # (triples, 3)
    if isinstance(queries, TokenStates):
        batch_queries: Any = queries.select(torch.from_numpy(used))
        inputs = tokens.states(plan.nodes)
    else:
        batch_queries = [queries[number] for number in used]
        inputs = tokens.texts(plan.nodes)
    batch = TripleBatch(batch_queries, inputs, plan, torch.from_numpy(numbers))
    return {"batch": batch}


class TripleModel(nn.Module):
    """An HGAT, and an encoder that learns, with the loss on triples."""

    def __init__(self, hgat: HGAT, encoder: TokenEncoder | None = None) -> None:
        super().__init__()
        self.hgat = hgat
        self.encoder = encoder
        self.network = encoder.network if encoder is not None else None

    def forward(self, batch: TripleBatch) -> dict[str, Tensor]:
        """Mean pairwise softmax cross-entropy over the scores of p+ and p-."""
        scores = self._scores(batch)  # (triples, 2)
        first = scores.new_zeros(len(scores), dtype=torch.long)
        loss = functional.cross_entropy(scores.float(), first)
        return {"loss": loss}

    def _scores(self, batch: TripleBatch) -> Tensor:
        device = next(self.hgat.parameters()).device
        if self.encoder is None:
            queries = batch.queries.to(device)
            inputs = batch.inputs.to(device)
        else:
            queries = self.encoder.forward_queries(batch.queries)
            inputs = self.encoder.forward_passages(batch.inputs)
        propagation = send_to_device(batch.propagation, device)
        in_context = self.hgat(inputs, propagation)
        content = inputs.select(propagation.targets)
        scores = []
        for query, *passages in batch.triples.tolist():
            pair = torch.tensor(passages, device=device)
            vectors = queries[query]  # (query tokens, d)
            pair_content = content.select(pair)
            pair_context = in_context.select(pair)
            own = self.hgat.own_matches(vectors, pair_content, pair_context)  # (2, query tokens)
            neighbors = None
            if self.hgat.matches is not None:
                maxima = self.hgat.matches.maxima(vectors, inputs, propagation)
                neighbors = maxima[pair]  # (2, relations, query tokens)
            scores.append(self.hgat.score(vectors, own, neighbors))  # (2,)
        return torch.stack(scores)


class MatchModel(nn.Module):
    """The weights of direct matches, with their loss on all candidates of a query."""

    def __init__(self, matches: NeighborMatches) -> None:
        super().__init__()
        self.matches = matches
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, lists: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        """Softmax cross-entropy over the scores of candidates, averaged over relevant ones, then over queries.

        Each list has the arguments of :meth:`~pyterrier_graph.hgat.equations.NeighborMatches.forward`, and a mask of
        relevant candidates.
        """
        losses = []
        for query, own, neighbors, relevant in lists:
            scale = MAX_SCALE / len(query) * self.scale.exp()
            scores = self.matches(query, own, neighbors) * scale  # (candidates,)
            log_probabilities = scores.log_softmax(0)
            losses.append(-log_probabilities[relevant].mean())
        return {"loss": torch.stack(losses).mean()}


def train_matches(
    matches: NeighborMatches,
    lists: Sequence[tuple[Tensor, ...]],
    options: HGATTraining,
    run: Run,
) -> Log:
    """Trains the weights of direct matches in place; ``lists`` are the input of :class:`MatchModel`."""
    folder = None if options.output_dir is None else f"{options.output_dir}/matches"
    options = replace(options, epochs=MATCH_EPOCHS, patience=MATCH_PATIENCE, output_dir=folder)
    model = MatchModel(matches)
    weights = list(model.parameters())
    rates = [(weights, MATCH_LEARNING_RATE)]
    return train(model, lists, lambda batch: {"lists": batch}, options, run, rates=rates)


def train_on_triples(
    hgat: HGAT,
    encoder: TokenEncoder | None,
    collate: Callable[[list[Any]], Any],
    triples: np.ndarray,
    options: HGATTraining,
    run: Run,
) -> Log:
    """Trains an HGAT in place, and the encoder if there is one; not the weights of direct matches."""
    matrices = []
    scalars = []
    for name, weights in hgat.named_parameters():
        if ".attention." in name:
            matrices.append(weights)
        elif not name.startswith("matches."):  # W, lambda and alpha
            scalars.append(weights)
    rates = [(matrices, options.learning_rate), (scalars, options.scalar_learning_rate)]
    if encoder is not None and options.encoder_learning_rate is not None:
        learning = [weights for weights in encoder.network.parameters() if weights.requires_grad]
        rates.append((learning, options.encoder_learning_rate))
    model = TripleModel(hgat, encoder)
    return train(model, triples, collate, options, run, rates=rates)


def copy_to_train(encoder: TokenEncoder, frozen: int) -> TokenEncoder:
    """Copies an encoder to train it above its first ``frozen`` layers; with 0, its embeddings learn as well."""
    copied = copy.copy(encoder)
    copied.network = copy.deepcopy(encoder.network)
    copied.network.requires_grad_(True)
    if not frozen:
        return copied
    modules = copied.network.modules()
    lists = [module for module in modules if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=len)
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    for name, module in copied.network.named_modules():
        if name.endswith("embeddings"):
            module.requires_grad_(False)
    return copied
