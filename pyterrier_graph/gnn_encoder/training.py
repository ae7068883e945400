"""Masked graph training (Algorithm 1 of Liu et al. 2022): its options, its queries, its batches and its loss.

The relevant passage of a query in the graph aggregates from that query, so that the query finds it too easily. So in
each epoch some queries are taken out of the graph, and of the graph's queries only these give the loss. Queries that
are not in the graph always give the loss.

======= ============================================================== ================================================
Line    Algorithm 1 (001, Appendix A)                                  Here
======= ============================================================== ================================================
1, 2    cached embeddings, top-k passages of each query, edge features ``QueryPassageGraph``, ``NeighborSampler``
3 to 5  for each epoch: split Q into Q_g and Q_t; graph G of Q_g and P :meth:`MaskedGraph.draw`
6, 7    for each batch Q_b of Q_t: its positives and hard negatives    :meth:`MaskedGraph.__call__`
8, 9    h~_q (Eq. 6) of queries with edges to P_b; h'_p (Eq. 7 to 10)  :meth:`MaskedGraphModel.forward`
10      loss (Eq. 11, 12)                                              :func:`~.equations.in_batch_loss`
11      update parameters                                              ``training.trainer.train``
======= ============================================================== ================================================
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import pydantic
import torch
from accelerate import PartialState
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.configuration import STRICT, OpenShare
from pyterrier_graph.encoders.sentence_encoder import prompts_of, scale_of
from pyterrier_graph.gnn_encoder.equations import in_batch_loss
from pyterrier_graph.graph_mean.contextual_index import QueryWeights, draw_sample, nearest
from pyterrier_graph.graph_mean.equations import PassageNetwork, SideBySide
from pyterrier_graph.graph_mean.neighbors import NeighborBatch, NeighborSampler
from pyterrier_graph.graph_mean.tuning import PassageValidation, passages_of
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import QUERY_RELATIONS, RELEVANT, RETRIEVED
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.storage.arrays import numbers_of
from pyterrier_graph.training.trainer import L2SP, StartOptions
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_graph.gnn_encoder.encoder import GNNEncoder

PARTS = 5  # in which training queries are taken out of the graph that their weights depend on
RETRIEVED_PER_QUERY = 25  # for hard negatives, if there is no graph, which stores this number


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class GNNEncoderTraining(StartOptions):
    """Options of ``GNNEncoder.fit()``; the defaults train the network alone, in minutes for hundreds of queries.

    Attributes:
        epochs: Passes over the masked queries; each has few steps.
        learning_rate: Of the matrices of the network. The weights of relations stay, and
            :meth:`~pyterrier_graph.GNNEncoder.tune` sets them: how much a relation counts differs most between
            collections, and training them gained nothing. A relation that starts with 0 stays without effect.
        encoder_learning_rate: Of the dual-encoder. None leaves it unchanged (000); 001 trains both.
        masked: Share of the graph's queries that are taken out, and give the loss, in each epoch. Both papers have 5 %,
            of which hundreds of queries make one step. None masks none, and all give the loss: "w/o mask".
        negatives: Hard negatives per query, drawn from the passages that were retrieved for it.
        scale: Factor of similarities: None is 1, as in the papers, or 20 where vectors have unit length.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.StartOptions`.
    """

    epochs: PositiveInt = 40
    batch_size: PositiveInt = 128
    learning_rate: NonNegativeFloat = 1e-3
    masked: OpenShare | None = 0.3
    negatives: NonNegativeInt = 4
    scale: NonNegativeFloat | None = None
    patience: PositiveInt | None = 5

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The setting of 001, Sect. 4.3, on each of four GPUs; ``changes`` replace options."""
        paper: dict[str, Any] = {
            "epochs": 5,
            "batch_size": 1024,
            "negatives": 1,
            "scale": 1.0,
            "patience": None,
        }
        paper |= {
            "learning_rate": 5e-5,
            "encoder_learning_rate": 2e-6,
            "masked": 0.05,
            "l2_sp": 0.0,
        }
        return cls(**paper | changes)


@dataclass(frozen=True)
class LossQueries:
    """The training queries, with the passages that they learn from."""

    texts: list[str]
    vectors: Tensor  # by the encoder, shape (queries, d)
    weights: Tensor  # of the relations for each query, shape (queries, relations); no column if all have the same
    number: np.ndarray  # of each query in the query graph, -1 for queries outside of it
    positives: (
        CSR  # for each query its relevant passages; no row for a query that cannot give a loss
    )
    negatives: CSR  # for each query its hard negatives

    def fingerprint(self) -> str:
        """A digest of the queries, their vectors, positives and negatives."""
        digest = hashlib.sha256(json.dumps(self.texts).encode())
        rows = (self.positives, self.negatives)
        vectors = self.vectors.numpy(), self.weights.numpy()
        for array in (
            *vectors,
            self.number,
            *(part for of in rows for part in (of.indptr, of.indices)),
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def loss_queries(
    model: GNNEncoder, topics: pd.DataFrame, qrels: pd.DataFrame, options: GNNEncoderTraining
) -> LossQueries:
    """The training queries that have a relevant passage; the arguments are those of ``GNNEncoder.fit``.

    Hard negatives are the passages that were retrieved for the query. Where documents are judged, of which most
    passages do not answer, the positive of a query is the most similar passage.
    """
    topics = checked_topics(topics, model)
    with PartialState(cpu=model._device.type == "cpu").main_process_first():
        sampler = model._sampler()
        sampler.encode()
    qrels = checked_qrels(qrels, model)
    relevant, by_document = passages_of(sampler, qrels[qrels["qid"].isin(topics["qid"])])
    topics = topics[topics["qid"].isin(relevant["qid"])].reset_index(drop=True)
    texts, qids = topics["query"].tolist(), topics["qid"].tolist()
    graph = sampler.query_graph
    number = np.full(len(qids), -1) if graph is None else numbers_of(graph.qids, qids)
    vectors = torch.from_numpy(np.asarray(sampler.encoder.encode_queries(texts), dtype=np.float32))
    row = pd.Series(np.arange(len(qids)), index=qids)

    positives = CSR.group(
        row.loc[relevant["qid"]].to_numpy(),
        sampler.numbers_of(relevant["docno"].tolist()),
        len(row),
    )
    negatives = _retrieved(sampler, vectors, number, positives, outside=bool(options.negatives))
    if by_document:
        positives = _best(sampler, vectors, positives)
    positives = _answerable(sampler, number, positives)
    return LossQueries(
        texts, vectors, _weights(model, sampler, vectors, number), number, positives, negatives
    )


def _weights(
    model: GNNEncoder, sampler: NeighborSampler, vectors: Tensor, number: np.ndarray
) -> Tensor:
    """The weights of relations for each query, by the graph without it and a fifth of the other queries.

    In the graph a query is its own best match among the queries that passages aggregate from.
    """
    network, graph = model.network, sampler.query_graph
    if not isinstance(network, SideBySide):
        return torch.empty(len(vectors), 0)
    weights = torch.empty(len(vectors), len(network.relations))
    for rows in np.array_split(
        np.random.default_rng(model.training.seed).permutation(len(vectors)), PARTS
    ):
        without = None if graph is None else graph.without(number[rows][number[rows] >= 0])
        found = QueryWeights(draw_sample(sampler, network, without), model.largest_weights)
        weights[rows] = torch.tensor(found.weights_of(vectors[rows].numpy()).to_numpy(np.float32))
    return weights


def _retrieved(
    sampler: NeighborSampler, vectors: Tensor, number: np.ndarray, relevant: CSR, *, outside: bool
) -> CSR:
    """For each query the passages retrieved for it, without the relevant ones; by the graph where it has them.

    For queries outside of the graph they are searched for if they are needed.
    """
    graph, row, passage = sampler.query_graph, np.empty(0, np.int64), np.empty(0, np.int64)
    stored = (number >= 0) & (graph is not None and RETRIEVED in graph.edge_types)
    inside, others = np.flatnonzero(stored), np.flatnonzero(~stored)
    if graph is not None and len(inside):
        edges = graph.edges_of_queries(number[inside])
        row, passage = inside[edges.row_index], edges.indices
    if outside and len(others):
        depth = RETRIEVED_PER_QUERY if graph is None else graph.meta["k"]
        found = nearest(vectors[others].numpy(), sampler.index.payload()[1], depth)[1]
        row, passage = np.append(row, np.repeat(others, found.shape[1])), np.append(passage, found)
    count = len(sampler)
    kept = ~np.isin(row * count + passage, relevant.row_index * count + relevant.indices)
    return CSR.group(row[kept], passage[kept], len(number))


def _best(sampler: NeighborSampler, vectors: Tensor, positives: CSR) -> CSR:
    """For each query the one of its positives that is most similar to it."""
    row, passages = positives.row_index, positives.indices
    scores = np.einsum("nd,nd->n", vectors.numpy()[row], sampler.vectors[passages])
    order = np.lexsort((-scores, row))
    first = order[np.unique(row[order], return_index=True)[1]]
    return CSR.group(row[first], passages[first], len(positives))


def _answerable(sampler: NeighborSampler, number: np.ndarray, positives: CSR) -> CSR:
    """The positives of queries of the graph that are relevant to another query, too, and those of all other queries.

    Otherwise, where passages aggregate from relevant queries, a masked query teaches that a passage with a relevant
    query is wrong, since its own positive has lost its only one. If none is left, all of them give the loss.
    """
    graph = sampler.query_graph
    if graph is None or RELEVANT not in sampler.query_relations:
        return positives
    queries = graph.edges_of_passages(positives.indices, RELEVANT)
    own = number[positives.row_index]
    others = queries.indices != own[queries.row_index]
    answerable = np.bincount(queries.row_index[others], minlength=len(own)) > 0
    usable = positives.filter(answerable | (own < 0))
    if len(usable.indices):
        return usable
    warnings.warn(
        "no training query has a positive that is relevant to another query: all of them give the loss, which may "
        "teach that passages with relevant queries are wrong; training queries that are not in the graph would help",
        QualityWarning,
        stacklevel=4,
    )
    return positives


class Texts(NamedTuple):
    """Texts of a batch: of the queries that give the loss, of the passages, and of the passages' queries."""

    queries: list[str]
    passages: list[str]
    sources: list[str]


@dataclass(frozen=True)
class Batch:
    """The input of a training step."""

    queries: Tensor  # vectors of the queries that give the loss, shape (queries, d)
    weights: Tensor  # their weights of relations, shape (queries, relations)
    positives: Tensor  # row of each query's positive among the passages of the neighborhood, shape (queries,)
    neighborhood: NeighborBatch  # all positives and negatives with their neighbors
    texts: Texts | None  # None if the encoder does not learn


class MaskedGraph(Dataset):
    """Lines 3 to 7 of Algorithm 1: the queries of each epoch, the graph without them, and the batches.

    Attributes:
        query_graph: The graph of the present epoch, without the masked queries.
        positives: The positive of each query in this epoch, shape (queries,); -1 where there is none.
        negatives: Its hard negatives, shape (queries, negatives); -1 where there are none.
    """

    def __init__(
        self, queries: LossQueries, sampler: NeighborSampler, options: GNNEncoderTraining
    ) -> None:
        self.queries, self.sampler, self.options = queries, sampler, options
        usable = np.flatnonzero(queries.positives.lengths > 0)
        in_graph = queries.number[usable] >= 0
        self._masked, self._always = usable[in_graph], usable[~in_graph]
        self._count = len(self._masked)
        if options.masked is not None and sampler.query_graph is not None:
            self._count = min(
                self._count, max(1, round(options.masked * sampler.query_graph.num_queries))
            )
        self.draw(0)

    def __len__(self) -> int:
        return self._count + len(self._always)

    def __getitem__(self, position: int) -> int:
        return int(self._rows[position])

    def draw(self, epoch: int) -> None:
        """Lines 3 to 5: draws Q_t, and their positives and negatives, and takes Q_t out of the graph."""
        random = np.random.default_rng((self.options.seed, epoch))
        drawn = random.permutation(self._masked)[: self._count]
        self._rows = np.concatenate([drawn, self._always])  # Q_t
        graph, out = self.sampler.query_graph, self.queries.number[drawn]
        self.query_graph = (
            graph if graph is None or self.options.masked is None else graph.without(out)
        )
        self.positives = _drawn(self.queries.positives, 1, random)[:, 0]
        self.negatives = _drawn(self.queries.negatives, self.options.negatives, random)

    def __call__(self, rows: Sequence[int]) -> dict[str, Batch]:
        """Lines 6 and 7: the batch of some queries, with their positives and negatives, each passage once."""
        where = np.asarray(rows)
        positives, negatives = self.positives[where], self.negatives[where]
        passages = np.unique(
            np.concatenate([positives, negatives[negatives >= 0]])
        )  # P_b, ascending
        neighborhood = self.sampler.sample(passages, self.query_graph)
        texts = None
        if self.options.encoder_learning_rate is not None:
            texts = texts_of(self.sampler, passages, neighborhood.queries)
            texts = texts._replace(queries=[self.queries.texts[row] for row in rows])
        places = torch.from_numpy(np.searchsorted(passages, positives))
        queries = self.queries
        return {
            "batch": Batch(
                queries.vectors[where], queries.weights[where], places, neighborhood, texts
            )
        }


def _drawn(passages: CSR, count: int, random: np.random.Generator) -> np.ndarray:
    """Elements of each row, drawn with replacement, shape (rows, count); -1 for empty rows."""
    lengths = passages.lengths[:, None]
    places = (random.random((len(lengths), count)) * lengths).astype(np.int64) + passages.indptr[
        :-1, None
    ]
    padded = np.append(passages.indices, -1)
    return np.where(lengths > 0, padded[np.minimum(places, len(padded) - 1)], -1)


class MaskedGraphModel(nn.Module):
    """Lines 8 to 10 of Algorithm 1: the network, with the dual-encoder where it learns, too, and their loss.

    The loss has the penalty of :class:`L2SP` for leaving the network's present weights.
    """

    def __init__(
        self,
        network: PassageNetwork,
        scale: float | None = None,
        encoder: SentenceTransformer | None = None,
        *,
        l2_sp: float | None = 0.0,
    ) -> None:
        super().__init__()
        self.network, self.encoder, self.penalty = network, encoder, L2SP(network, l2_sp)
        self.scale = scale_of(scale, network.normalizes)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. 12 (Eq. 11 of 000), with the penalty: ``{'loss': ...}``."""
        device = next(self.parameters()).device
        queries, neighborhood = batch.queries.to(device), batch.neighborhood.to(device)
        if self.encoder is not None and batch.texts is not None:
            queries = encoded(self.encoder, batch.texts.queries, "query")
            passages = encoded(self.encoder, batch.texts.passages, "document")
            sources = (
                encoded(self.encoder, batch.texts.sources, "query") if batch.texts.sources else None
            )
            neighborhood = renewed(neighborhood, passages, sources)
        if self.network.normalizes:
            queries = functional.normalize(queries, dim=1)  # (queries, d)
        weighted = (
            batch.weights.to(queries)[:, :, None] * queries[:, None]
        )  # (queries, relations, d)
        queries = torch.cat([queries, weighted.flatten(1)], 1)  # (queries, width)
        states = self.network(neighborhood)  # lines 8, 9: (passages, width)
        loss = in_batch_loss(
            queries, states, batch.positives.to(device), scale=self.scale
        )  # line 10
        return {"loss": loss + self.penalty(self.network)}


def texts_of(sampler: NeighborSampler, passages: np.ndarray, queries: np.ndarray) -> Texts:
    """Texts of passages and of queries of the query graph, by number."""
    graph, query_graph = sampler.graph, sampler.query_graph
    if graph is None:
        raise ValueError("training the encoder needs the passages' texts: give graph=")
    sources = query_graph.texts(queries) if query_graph is not None and len(queries) else []
    return Texts([], graph.texts(graph.nodes_of(sampler.docnos_of(passages))), sources)


def renewed(neighborhood: NeighborBatch, passages: Tensor, queries: Tensor | None) -> NeighborBatch:
    """A neighborhood with the present vectors, of its passages and queries, by an encoder that learns.

    The vectors of the second hop (Eq. 6; 001, Sect. 3.4), and of the sources of document relations, stay cached ones.
    """
    fresh = {
        name: queries
        for name in QUERY_RELATIONS
        if queries is not None and name in neighborhood.sources
    }
    return replace(neighborhood, passages=passages, sources={**neighborhood.sources, **fresh})


def encoded(
    encoder: SentenceTransformer, texts: list[str], task: Literal["query", "document"]
) -> Tensor:
    """Vectors that gradients go through, shape (texts, d)."""
    prompt = prompts_of(encoder)[task == "document"] or None
    features = batch_to_device(encoder.preprocess(texts, prompt=prompt, task=task), encoder.device)
    return encoder(features, task=task)["sentence_embedding"]


def joint_measure(
    validation: PassageValidation,
    network: PassageNetwork,
    encoder: DualEncoder,
    sampler: NeighborSampler,
) -> np.ndarray:
    """The measure of each validation query, by a network and an encoder in their present state."""
    encoder.network.eval()
    network, device = network.eval(), encoder.network.device

    @torch.inference_mode()
    def vectors_of(passages: np.ndarray) -> np.ndarray:
        batch: Any = sampler.sample(passages)
        texts = texts_of(sampler, passages, batch.queries)
        own = torch.from_numpy(encoder.encode_docs(texts.passages)).to(device)
        sources = (
            torch.from_numpy(encoder.encode_queries(texts.sources)).to(device)
            if texts.sources
            else None
        )
        return network(renewed(batch.to(device), own, sources)).cpu().numpy()

    return validation(vectors_of, encoder.encode_queries(validation.queries))
