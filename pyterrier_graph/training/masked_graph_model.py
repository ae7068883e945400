"""Batches and losses of masked graph training, in the form that the trainer needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.models.gnn_encoder import in_batch_loss
from pyterrier_graph.models.neighbor_batch import NeighborBatch
from pyterrier_graph.models.passage_network import PassageNetwork
from pyterrier_graph.training.dual import prompts_of, scale_of
from pyterrier_graph.training.masked_graph import LossQueries

if TYPE_CHECKING:
    from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler

PassageTexts = Callable[[list[str]], list[str]]


class Texts(NamedTuple):
    """Texts of a batch: of the queries that give the loss, of the passages, and of the passages' queries."""

    queries: list[str]
    passages: list[str]
    sources: list[str]


@dataclass(frozen=True)
class Batch:
    """The input of a training step."""

    queries: Tensor  # vectors of the queries that give the loss, shape (queries, d)
    positives: Tensor  # row of each query's positive among the passages of the neighborhood, shape (queries,)
    neighborhood: NeighborBatch  # all positives and negatives with their neighbors
    texts: Texts | None  # None if the encoder does not learn


class BatchCollator:
    """Makes batches of loss queries; with ``passage_texts``, texts by docno, for training the encoder, too."""

    def __init__(self, queries: LossQueries, passage_texts: PassageTexts | None = None) -> None:
        self.queries, self.passage_texts = queries, passage_texts

    def __call__(self, rows: Sequence[int]) -> dict[str, Batch]:
        """The batch of some queries."""
        loss, where = self.queries, np.asarray(rows)
        passages, positives = loss.passages(where)
        neighborhood = loss.sampler.sample(passages, loss.query_graph)
        texts = None
        if self.passage_texts is not None:
            texts = texts_of(loss.sampler, self.passage_texts, passages, neighborhood.queries)
            texts = texts._replace(queries=[loss.texts[row] for row in rows])
        return {"batch": Batch(loss.vectors[where], positives, neighborhood, texts)}


def texts_of(sampler: NeighborSampler, passage_texts: PassageTexts, passages: np.ndarray, queries: np.ndarray) -> Texts:
    """Texts of passages and of queries of the query graph, by number."""
    graph = sampler.query_graph
    sources = graph.texts(queries) if graph is not None and len(queries) else []
    return Texts([], passage_texts(sampler.docnos_of(passages)), sources)


class MaskedGraphModel(nn.Module):
    """A network, with the dual-encoder where it learns, too; ``scale=None`` is the factor that suits the network.

    With ``l2_sp`` the loss has the penalty ``l2_sp / 2 * |w - w0|^2`` (Li et al. 2018), w being the network's weights,
    and w0 these weights as they are now.
    """

    def __init__(
        self,
        network: PassageNetwork,
        scale: float | None = None,
        encoder: SentenceTransformer | None = None,
        *,
        l2_sp: float = 0.0,
    ) -> None:
        super().__init__()
        self.network, self.encoder, self.l2_sp = network, encoder, l2_sp
        self.scale = scale_of(scale, network.normalizes)
        weights = [*network.parameters()] if l2_sp else []
        for number, weight in enumerate(weights):
            self.register_buffer(f"first_{number}", weight.detach().clone(), persistent=False)

    def _penalty(self) -> Tensor | float:
        weights = self.network.parameters() if self.l2_sp else ()
        distances = (
            (weight - self.get_buffer(f"first_{number}")).square().sum() for number, weight in enumerate(weights)
        )
        return self.l2_sp / 2 * sum(distances, start=0.0)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. 12 (Eq. 11 of 000), with the penalty: ``{'loss': ...}``."""
        device = next(self.parameters()).device
        queries, neighborhood = batch.queries.to(device), batch.neighborhood.to(device)
        if self.encoder is not None and batch.texts is not None:
            queries = encoded(self.encoder, batch.texts.queries, "query")
            passages = encoded(self.encoder, batch.texts.passages, "document")
            sources = encoded(self.encoder, batch.texts.sources, "query") if batch.texts.sources else None
            neighborhood = renewed(neighborhood, passages, sources)
        if self.network.normalizes:
            queries = functional.normalize(queries, dim=1)
        states = self.network(neighborhood)
        loss = in_batch_loss(queries, states, batch.positives.to(device), scale=self.scale)
        return {"loss": loss + self._penalty()}


def renewed(neighborhood: NeighborBatch, passages: Tensor, queries: Tensor | None) -> NeighborBatch:
    """A neighborhood with the present vectors, of its passages and queries, by an encoder that learns.

    The vectors of the second hop (Eq. 6; 001, Sect. 3.4), and of the sources of document relations, stay cached ones.
    """
    fresh = {name: queries for name in (RETRIEVED, RELEVANT) if queries is not None and name in neighborhood.sources}
    return replace(neighborhood, passages=passages, sources={**neighborhood.sources, **fresh})


def encoded(encoder: SentenceTransformer, texts: list[str], task: Literal["query", "document"]) -> Tensor:
    """Vectors that gradients go through, shape (texts, d)."""
    prompt = prompts_of(encoder)[task == "document"] or None
    features = batch_to_device(encoder.preprocess(texts, prompt=prompt, task=task), encoder.device)
    return encoder(features, task=task)["sentence_embedding"]
