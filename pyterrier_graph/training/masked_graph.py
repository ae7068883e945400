"""Masked graph training (Algorithm 1 of Liu et al. 2022): the queries that give the loss, and the graph of an epoch.

The relevant passage of a query in the graph aggregates from that query, so that the query finds it too easily. So in
each epoch some queries are taken out of the graph, and of the graph's queries only these give the loss. Queries that
are not in the graph always give the loss.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pyterrier_graph.checks import check_fields
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.training.options import HeadOptions
from pyterrier_graph.warning_categories import QualityWarning

if TYPE_CHECKING:
    from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler

RETRIEVED_PER_QUERY = 25  # for hard negatives, where no graph says how many
SCORED = 65_536  # pairs whose similarity is computed at once


@dataclass(frozen=True, kw_only=True)
class GNNEncoderTraining(HeadOptions):
    """Options of ``GNNEncoder.fit()``; the defaults train the network alone, in minutes for hundreds of queries.

    Attributes:
        epochs: Passes over the masked queries; each has few steps.
        learning_rate: Of the network.
        encoder_learning_rate: Of the dual-encoder. None leaves it unchanged (000); 001 trains both.
        scalar_learning_rate: Of the weights of relations, single numbers; None takes ``learning_rate``. By default they
            stay, and :meth:`~pyterrier_graph.GNNEncoder.tune` sets them: how much a relation counts is what differs
            most between collections, and training them gained nothing. A relation that starts with 0 then stays
            without effect.
        masked: Share of the graph's queries that are taken out, and give the loss, in each epoch (both papers 5 %).
            None takes out none, and all give the loss: the ablation "w/o mask".
        negatives: Hard negatives per query, drawn from the passages that were retrieved for it, or from its examples.
        skip_unanswerable: Whether of the graph's queries only those count whose positive is relevant to another query,
            too. Otherwise, where passages aggregate from relevant queries, a masked query teaches that a passage with a
            relevant query is wrong, since its own positive has lost its only one. None: where any query is left then.
        scale: Factor of similarities: None is 1, as in the papers, or 20 where vectors have unit length.
        l2_sp: Factor of the penalty ``l2_sp / 2 * |w - w0|^2`` for leaving the weights w0 that the network has before
            training (L2-SP: Li et al., Explicit inductive bias for transfer learning with convolutional networks, ICML
            2018). With 0 a network suits its training queries best, and may rank worse than the untrained one on other
            collections.

    For the other attributes see :class:`~pyterrier_graph.training.options.HeadOptions`.
    """

    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 1e-3
    scalar_learning_rate: float | None = 0.0
    masked: float | None = 0.05
    negatives: int = 4
    skip_unanswerable: bool | None = None
    scale: float | None = None
    patience: int | None = 5
    l2_sp: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked is not None and not 0 < self.masked < 1:
            raise ValueError(f"masked is a share of the queries, between 0 and 1, or None, got {self.masked}")
        check_fields(self, negatives=0, scalar_learning_rate=0, scale=0, l2_sp=0)

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The setting of 001, Sect. 4.3, on each of four GPUs; ``changes`` replace options."""
        rates = {"learning_rate": 5e-5, "encoder_learning_rate": 2e-6}
        paper: dict[str, Any] = {"epochs": 5, "batch_size": 1024, "negatives": 1, "scale": 1.0, "patience": None}
        paper |= {"l2_sp": 0.0, "scalar_learning_rate": None}
        return cls(**{**rates, **paper, "skip_unanswerable": False} | changes)


class LossQueries(Dataset):
    """The training queries, of which each epoch has some; ValueError if no query can give a loss.

    Topics have ``qid, query``, each once; relevant passages and hard negatives ``qid, docno``. Without negatives,
    passages that were retrieved are taken. With ``best`` a query's positive is always the one that the dual-encoder
    finds best, instead of one that is drawn: for judgments of documents, of which most passages do not answer.

    Attributes:
        texts: The queries.
        vectors: Their vectors by the dual-encoder, shape (queries, d).
        number: Number of each query in the graph, -1 for queries outside of it.
        query_graph: The graph of the present epoch, without the masked queries.
        positives: The positive of each query in this epoch, shape (queries,).
        negatives: Its hard negatives, shape (queries, negatives); -1 where there are none.
    """

    def __init__(
        self,
        topics: pd.DataFrame,
        relevant: pd.DataFrame,
        best: bool,
        sampler: NeighborSampler,
        options: GNNEncoderTraining,
        negatives: pd.DataFrame | None = None,
    ) -> None:
        topics = topics[topics["qid"].isin(relevant["qid"])].reset_index(drop=True)
        self.sampler, self.options = sampler, options
        self.texts: list[str] = topics["query"].tolist()
        graph, qids = sampler.query_graph, topics["qid"].tolist()
        self.number, twins = sampler.in_query_graph(qids, self.texts)
        if sampler.query_relations and twins.any():
            warnings.warn(
                f"{int(twins.sum())} training queries, such as {qids[int(twins.argmax())]!r}, are in the graph under "
                "another qid: they are never masked, and their positives aggregate from them",
                QualityWarning,
                stacklevel=5,
            )
        self.vectors = self._encoded()
        self._row = pd.Series(np.arange(len(qids)), index=qids)
        self._positives = self._passages_of(relevant)
        self._negatives = self._retrieved() if negatives is None else self._passages_of(negatives)
        if best:
            self._positives = self._best()
        usable = self._usable()
        self._masked, self._always = usable[self.number[usable] >= 0], usable[self.number[usable] < 0]
        self._count = len(self._masked)
        if options.masked is not None and graph is not None:
            self._count = min(self._count, max(1, round(options.masked * graph.num_queries)))
        if not len(self):
            raise ValueError("no training query can give a loss: none has a positive that is relevant to another query")
        self.draw(0)

    def fingerprint(self) -> str:
        """A digest of the queries, their vectors, positives and negatives."""
        digest = hashlib.sha256(json.dumps(self.texts).encode())
        rows = (self._positives, self._negatives)
        for array in (self.vectors.numpy(), self.number, *(part for of in rows for part in (of.indptr, of.indices))):
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
        graph, out = self.sampler.query_graph, self.number[drawn]
        self.query_graph = graph if graph is None or self.options.masked is None else graph.without(out)
        self.positives = self._drawn(self._positives, 1)[:, 0]
        self.negatives = self._drawn(self._negatives, self.options.negatives)

    def passages(self, rows: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """The positives and negatives of queries, each passage once, ascending, and the place of each positive."""
        positives, negatives = self.positives[rows], self.negatives[rows]
        passages = np.unique(np.concatenate([positives, negatives[negatives >= 0]]))
        return passages, torch.from_numpy(np.searchsorted(passages, positives))

    def _encoded(self) -> Tensor:
        """Vectors of the queries; those of the graph's queries are stored."""
        sampler = self.sampler
        stored = (self.number >= 0) & bool(sampler.query_relations)
        vectors = np.empty((len(self.texts), sampler.vectors.shape[1]), dtype=np.float32)
        if stored.any():
            vectors[stored] = sampler.query_vectors[self.number[stored]]
        if not stored.all():
            vectors[~stored] = sampler.encoder.encode_queries([self.texts[row] for row in np.flatnonzero(~stored)])
        return torch.from_numpy(vectors)

    def _passages_of(self, pairs: pd.DataFrame) -> CSR:
        """For each query its passages in a ``qid, docno`` frame."""
        rows = self._row.loc[pairs["qid"]].to_numpy()
        return CSR.group(rows, self.sampler.numbers_of(pairs["docno"].tolist()), len(self._row))

    def _drawn(self, passages: CSR, count: int) -> np.ndarray:
        """Elements of each row, drawn at random with replacement; -1 for empty rows."""
        lengths = passages.lengths[:, None]
        places = (self._random.random((len(lengths), count)) * lengths).astype(np.int64) + passages.indptr[:-1, None]
        padded = np.append(passages.indices, -1)
        return np.where(lengths > 0, padded[np.minimum(places, len(padded) - 1)], -1)

    def _retrieved(self) -> CSR:
        """The passages that are retrieved for each query, by the graph where it has them, without the relevant ones."""
        sampler, graph = self.sampler, self.sampler.query_graph
        stored = (self.number >= 0) & (graph is not None and RETRIEVED in graph.edge_types)
        inside, outside = np.flatnonzero(stored), np.flatnonzero(~stored)
        row = passage = np.empty(0, np.int64)
        if graph is not None and len(inside):
            edges = graph.edges_of_queries(self.number[inside])
            row, passage = inside[edges.row_index], edges.indices
        if len(outside) and self.options.negatives:
            depth = RETRIEVED_PER_QUERY if graph is None else graph.meta["k"]
            topics = pd.DataFrame({"qid": outside.astype(str), "query": [self.texts[row] for row in outside]})
            topics["query_vec"] = [*self.vectors[outside].numpy()]
            results = sampler.index.np_retriever(num_results=depth)(topics)
            row = np.append(row, results["qid"].astype(np.int64))
            passage = np.append(passage, sampler.numbers_of(results["docno"].tolist()))
        count, relevant = len(sampler), self._positives
        kept = ~np.isin(row * count + passage, relevant.row_index * count + relevant.indices)
        return CSR.group(row[kept], passage[kept], len(self.texts))

    def _best(self) -> CSR:
        """Each query's positive that is most similar to it."""
        row, passages = self._positives.row_index, self._positives.indices
        scores = np.empty(len(passages), dtype=np.float32)
        for start in range(0, len(passages), SCORED):
            part = slice(start, start + SCORED)
            vectors = self.sampler.vectors[passages[part]]
            scores[part] = np.einsum("nd,nd->n", self.vectors.numpy()[row[part]], vectors)
        order = np.lexsort((-scores, row))
        first = order[np.unique(row[order], return_index=True)[1]]
        return CSR.group(row[first], passages[first], len(self.texts))

    def _usable(self) -> np.ndarray:
        """Rows of the queries that can give a loss; with ``skip_unanswerable`` also drops positives that cannot."""
        positives, graph = self._positives, self.sampler.query_graph
        skip = self.options.skip_unanswerable
        if skip is not False and graph is not None and RELEVANT in self.sampler.query_relations:
            queries = graph.edges_of_passages(positives.indices, RELEVANT)
            number = self.number[positives.row_index]
            others = queries.indices != number[queries.row_index]
            answerable = np.bincount(queries.row_index[others], minlength=len(number)) > 0
            usable = positives.filter(answerable | (number < 0))
            if skip or len(usable.indices):
                self._positives = positives = usable
            else:
                warnings.warn(
                    "no training query has a positive that is relevant to another query: all of them give the loss, "
                    "which may teach that passages with relevant queries are wrong; training queries that are not in "
                    "the graph would help",
                    QualityWarning,
                    stacklevel=6,
                )
        return np.flatnonzero(positives.lengths > 0)
