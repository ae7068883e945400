"""Masked graph training (Algorithm 1 of Liu et al. 2022): which queries give the loss, and on which graph.

A query that is in the graph finds its positive by itself: what it is looking for has listened to it. So in each epoch
some queries are taken out of the graph, and only those give the loss. Queries that are not in the graph always do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.ids import ids_of, numbers_of
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.models.gnn_encoder import Neighborhood, PassageNetwork, in_batch_loss
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler
from pyterrier_graph.training.dual import prompts_of, scale_of
from pyterrier_graph.training.options import HeadOptions

PassageTexts = Callable[[list[str]], list[str]]


@dataclass(frozen=True, kw_only=True)
class GNNEncoderTraining(HeadOptions):
    """Options of ``GNNEncoder.fit()``.

    Attributes:
        epochs: An epoch has the queries that are taken out of the graph, so it is short.
        learning_rate: Of the network (001: 5e-5, for 8,000 passages a batch; ours is for batches of hundreds).
        encoder_learning_rate: Of the dual-encoder: None leaves it as it is (000); 001 trains both, this one at 2e-6.
        scalar_learning_rate: Of the channels' weights, single numbers; None takes ``learning_rate``.
        masked: Share of the graph's queries that are taken out, and give the loss, in each epoch (Algorithm 1; both
            papers 5 %). None takes out none, and all give the loss: the ablation "w/o mask".
        negatives: Hard negatives per query, drawn from the passages that were retrieved for it.
        skip_unanswerable: Whether only those of the graph's queries count whose positive is known to answer another query, too.
            Without that, where known queries are heard, masking teaches that who has one is wrong. Queries that are not
            in the graph always count: what their positives hear is what those of new queries will.
        scale: Factor of similarities: None is 1, as in the papers, or 20 where vectors have unit length.

    For the other attributes see :class:`~pyterrier_graph.training.options.HeadOptions`.
    """

    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 1e-3
    scalar_learning_rate: float | None = None
    masked: float | None = 0.05
    negatives: int = 4
    skip_unanswerable: bool = False
    scale: float | None = None
    patience: int | None = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked is not None and not 0 < self.masked < 1:
            raise ValueError(f"masked is a share of the queries, between 0 and 1, or None, got {self.masked}")
        if self.negatives < 0:
            raise ValueError(f"negatives must not be negative, got {self.negatives}")


class LossQueries(Dataset):
    """The training queries, of which each epoch has some.

    Args:
        topics: ``qid, query``, ids as text, each once.
        relevant: ``qid, docno``: their relevant passages.
        best: Whether a query's positive is always the one that the dual-encoder finds best, instead of one that is
            drawn: for judgments of whole documents, of which most passages do not answer.
        sampler: The passages.
        options: How to train.

    Attributes:
        texts: The queries.
        vectors: Those of the dual-encoder, shape (queries, d).
        number: Number of each query in the graph, -1 where it is not there.

    Raises:
        ValueError: If no query can give a loss.
    """

    def __init__(
        self,
        topics: pd.DataFrame,
        relevant: pd.DataFrame,
        best: bool,
        sampler: NeighborSampler,
        options: GNNEncoderTraining,
    ) -> None:
        topics = topics[topics["qid"].isin(relevant["qid"])].reset_index(drop=True)
        self.sampler, self.options = sampler, options
        self.texts: list[str] = topics["query"].tolist()
        graph, qids = sampler.queries, topics["qid"].tolist()
        self.number = np.full(len(qids), -1) if graph is None else numbers_of(graph.qids, qids)
        self.vectors = self._encoded()
        row = pd.Series(np.arange(len(qids)), index=qids)
        self._positives = _lists(
            row.loc[relevant["qid"]].to_numpy(), sampler.numbers_of(relevant["docno"].tolist()), len(qids)
        )
        self._negatives = self._retrieved(qids)
        if best:
            self._positives = self._best()
        usable = self._usable()
        self._masked, self._always = usable[self.number[usable] >= 0], usable[self.number[usable] < 0]
        self._count = len(self._masked)
        if options.masked is not None:
            self._count = min(self._count, max(1, round(options.masked * (self.number >= 0).sum())))
        if not len(self):
            raise ValueError("no training query can give a loss: none has a relevant passage that hears another query")
        self.draw(0)

    def fingerprint(self) -> str:
        """A digest of the queries, their vectors, positives and negatives."""
        digest = hashlib.sha256(json.dumps(self.texts).encode())
        for array in (self.vectors.numpy(), self.number, *self._positives, *self._negatives):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self._count + len(self._always)

    def __getitem__(self, position: int) -> int:
        return int(self._rows[position])

    def draw(self, epoch: int) -> None:
        """Draws the queries of an epoch, and their positives and negatives."""
        self._random = np.random.default_rng((self.options.seed, epoch))
        drawn = self._random.permutation(self._masked)[: self._count]
        self._rows = np.concatenate([drawn, self._always])
        graph = self.sampler.queries
        out = self.number[drawn]
        self.graph = graph if graph is None or self.options.masked is None else graph.without(out)
        self._positive = self._drawn(self._positives, 1)[:, 0]
        self._negative = self._drawn(self._negatives, self.options.negatives)

    def positives(self, rows: np.ndarray) -> np.ndarray:
        """This epoch's positive of queries, shape (n,)."""
        return self._positive[rows]

    def negatives(self, rows: np.ndarray) -> np.ndarray:
        """This epoch's hard negatives of queries, shape (n, negatives); -1 where there are none."""
        return self._negative[rows]

    def passages(self, rows: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """The positives and negatives of queries, each passage once, ascending, and the place of each positive."""
        positives, negatives = self.positives(rows), self.negatives(rows)
        passages = np.unique(np.concatenate([positives, negatives[negatives >= 0]]))
        return passages, torch.from_numpy(np.searchsorted(passages, positives))

    def _encoded(self) -> Tensor:
        """Vectors of the queries: those of the graph's are there."""
        sampler = self.sampler
        there = np.flatnonzero(self.number >= 0)
        vectors = np.empty((len(self.texts), sampler.vectors.shape[1]), dtype=np.float32)
        if len(there):
            vectors[there] = sampler.query_vectors[self.number[there]]
        if len(others := np.flatnonzero(self.number < 0)):
            vectors[others] = sampler.encoder.encode_queries([self.texts[row] for row in others])
        return torch.from_numpy(vectors)

    def _drawn(self, lists: tuple[np.ndarray, np.ndarray], count: int) -> np.ndarray:
        """Elements of each list, drawn at random with replacement; -1 of empty ones."""
        bounds, elements = lists
        lengths = np.diff(bounds)[:, None]
        places = (self._random.random((len(lengths), count)) * lengths).astype(np.int64) + bounds[:-1, None]
        padded = np.append(elements, -1)
        return np.where(lengths > 0, padded[np.minimum(places, len(elements))], -1)

    def _retrieved(self, qids: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """What was retrieved for each query, the relevant passages left out."""
        sampler = self.sampler
        graph = sampler.queries
        inside = np.flatnonzero(self.number >= 0)
        rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        if graph is not None and len(inside):
            edges = graph.edges_of_queries(self.number[inside])
            rows.append(inside[_owners(edges.indptr)])
            found.append(edges.indices)
        outside = np.flatnonzero(self.number < 0)
        if len(outside) and self.options.negatives:
            depth = 25 if graph is None else graph.meta["k"]
            topics = pd.DataFrame({"qid": [str(row) for row in outside], "query": [self.texts[row] for row in outside]})
            topics["query_vec"] = [*self.vectors[outside].numpy()]
            results = sampler.index.np_retriever(num_results=depth)(topics)
            rows.append(results["qid"].astype(np.int64).to_numpy())
            found.append(sampler.numbers_of(results["docno"].tolist()))
        row, passage = np.concatenate(rows), np.concatenate(found)
        count = len(sampler)
        bounds, relevant = self._positives
        owner = _owners(bounds)
        kept = ~np.isin(row * count + passage, owner * count + relevant)
        return _lists(row[kept], passage[kept], len(qids))

    def _best(self) -> tuple[np.ndarray, np.ndarray]:
        """Each query's positive that is most similar to it."""
        bounds, passages = self._positives
        owner = _owners(bounds)
        scores = np.empty(len(passages), dtype=np.float32)
        for start in range(0, len(passages), 65_536):
            part = slice(start, start + 65_536)
            scores[part] = np.einsum(
                "nd,nd->n", self.vectors.numpy()[owner[part]], self.sampler.vectors[passages[part]]
            )
        order = np.lexsort((-scores, owner))
        first = np.unique(owner[order], return_index=True)[1]
        return _lists(owner[order][first], passages[order][first], len(bounds) - 1)

    def _usable(self) -> np.ndarray:
        """Rows of the queries that can give a loss; of those with several positives only those that may stay stay."""
        bounds, passages = self._positives
        owner = _owners(bounds)
        graph = self.sampler.queries
        if self.options.skip_unanswerable and graph is not None and RELEVANT in self.sampler.query_channels:
            known = graph.edges_of_passages(passages, RELEVANT)
            hearing = _owners(known.indptr)
            others = known.indices != self.number[owner][hearing]
            heard = np.bincount(hearing[others], minlength=len(owner))
            stays = (heard > 0) | (self.number[owner] < 0)
            self._positives = _lists(owner[stays], passages[stays], len(bounds) - 1)
        return np.flatnonzero(np.diff(self._positives[0]) > 0)


class Texts(NamedTuple):
    """Texts of a batch: of the queries that give the loss, of the passages, and of the queries that these hear."""

    queries: list[str]
    passages: list[str]
    heard: list[str]


@dataclass(frozen=True)
class Batch:
    """What a step learns from.

    Attributes:
        queries: Vectors of the queries that give the loss, shape (queries, d).
        positives: Row of each query's positive among the neighborhood's passages, shape (queries,).
        neighborhood: All positives and negatives, and what they hear.
        texts: Of all these, for training the encoder, too; None if it stays as it is.
    """

    queries: Tensor
    positives: Tensor
    neighborhood: Neighborhood
    texts: Texts | None


class BatchCollator:
    """Makes batches of loss queries.

    Args:
        queries: The loss queries.
        passage_texts: Texts of passages by docno, for training the encoder, too; None if it stays as it is.
    """

    def __init__(self, queries: LossQueries, passage_texts: PassageTexts | None = None) -> None:
        self.queries = queries
        self.passage_texts = passage_texts

    def __call__(self, rows: Sequence[int]) -> dict[str, Batch]:
        """The batch of some queries."""
        loss, where = self.queries, np.asarray(rows)
        passages, positives = loss.passages(where)
        around = loss.sampler.sample(passages, loss.graph)
        texts = None
        if self.passage_texts is not None:
            texts = texts_of(loss.sampler, self.passage_texts, passages, around.queries)
            texts = texts._replace(queries=[loss.texts[row] for row in rows])
        return {"batch": Batch(loss.vectors[where], positives, around.neighborhood, texts)}


def texts_of(sampler: NeighborSampler, passage_texts: PassageTexts, passages: np.ndarray, heard: np.ndarray) -> Texts:
    """Texts of passages and of the queries that they hear, by number."""
    graph = sampler.queries
    queries = graph.texts(heard) if graph is not None and len(heard) else []
    return Texts([], passage_texts(ids_of(sampler.docnos, passages)), queries)


class MaskedGraphModel(nn.Module):
    """A network, with the dual-encoder where that learns, too, as the trainer takes them.

    Args:
        network: The network.
        scale: Factor of similarities; None for what suits the network.
        encoder: The dual-encoder's SentenceTransformer, or None if it stays as it is.
    """

    def __init__(
        self, network: PassageNetwork, scale: float | None = None, encoder: SentenceTransformer | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.encoder = encoder
        self.scale = scale_of(scale, network.normalizes)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. 12 (Eq. 11 of 000): ``{'loss': ...}``."""
        device = next(self.parameters()).device
        queries, neighborhood = batch.queries.to(device), batch.neighborhood.to(device)
        if self.encoder is not None and batch.texts is not None:
            queries = encoded(self.encoder, batch.texts.queries, "query")
            passages = encoded(self.encoder, batch.texts.passages, "document")
            heard = encoded(self.encoder, batch.texts.heard, "query") if batch.texts.heard else None
            neighborhood = renewed(neighborhood, passages, heard)
        if self.network.normalizes:
            queries = functional.normalize(queries, dim=1)
        states = self.network(neighborhood)
        return {"loss": in_batch_loss(queries, states, batch.positives.to(device), scale=self.scale)}


def renewed(neighborhood: Neighborhood, passages: Tensor, queries: Tensor | None) -> Neighborhood:
    """A neighborhood with the vectors of an encoder as it now is.

    Those of what queries hear (Eq. 6; 001, Sect. 3.4), and of what relations lead to, stay cached ones.

    Args:
        neighborhood: The neighborhood.
        passages: h_p of its passages, shape (passages, d).
        queries: h_q of the queries that they hear, shape (queries, d); None where they hear none.
    """
    fresh = {name: queries for name in (RETRIEVED, RELEVANT) if queries is not None and name in neighborhood.sources}
    return replace(neighborhood, passages=passages, sources={**neighborhood.sources, **fresh})


class QueryEncoderModel(nn.Module):
    """A query encoder that learns to find fused passages, as the trainer takes it (000, Sect. 4.3).

    Args:
        encoder: The SentenceTransformer.
        scale: Factor of similarities.
    """

    def __init__(self, encoder: SentenceTransformer, scale: float) -> None:
        super().__init__()
        self.encoder, self.scale = encoder, scale

    def forward(self, texts: list[str], passages: Tensor, positives: Tensor) -> dict[str, Tensor]:
        """Eq. 12 of 000 in Eq. 2: ``{'loss': ...}``, of queries and fixed h'_p of their positives and negatives."""
        queries = encoded(self.encoder, texts, "query")
        return {"loss": in_batch_loss(queries, passages, positives, scale=self.scale)}


class FusedCollator:
    """Makes batches of queries and fused passages.

    Args:
        queries: The training queries.
        vectors: h'_p of all passages, shape (passages, d).
    """

    def __init__(self, queries: LossQueries, vectors: np.ndarray) -> None:
        self.queries, self.vectors = queries, vectors

    def __call__(self, rows: Sequence[int]) -> dict[str, object]:
        """The batch of some queries."""
        passages, positives = self.queries.passages(np.asarray(rows))
        return {
            "texts": [self.queries.texts[row] for row in rows],
            "passages": torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32)),
            "positives": positives,
        }


def encoded(encoder: SentenceTransformer, texts: list[str], task: Literal["query", "document"]) -> Tensor:
    """Vectors that gradients go through, shape (texts, d)."""
    prompt = prompts_of(encoder)[task == "document"] or None
    features = batch_to_device(encoder.preprocess(texts, prompt=prompt, task=task), encoder.device)
    return encoder(features, task=task)["sentence_embedding"]


def _lists(rows: np.ndarray, elements: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements by row, as compressed rows."""
    order = np.argsort(rows, kind="stable")
    return offsets(np.bincount(rows, minlength=count)), elements[order]


def _owners(bounds: np.ndarray) -> np.ndarray:
    """Row of each element of compressed rows."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
