"""Masked graph training (Algorithm 1 of Liu et al. 2022): its options, its queries, its batches and its loss.

The relevant passage of a query in the graph aggregates from that query, so the query finds it too easily. Therefore
some queries are taken out of the graph in each epoch, and of the graph's queries only these contribute to the loss.
Queries that are not in the graph always contribute.

======= ============================================================== ================================================
Line    Algorithm 1 (001, Appendix A)                                  Here
======= ============================================================== ================================================
1, 2    cached embeddings, top-k passages of each query, edge features ``QueryPassageGraph``, ``NeighborSampler``
3 to 5  for each epoch: split Q into Q_g and Q_t; graph G of Q_g and P :meth:`MaskedGraph.draw`
6, 7    for each batch Q_b of Q_t: its positives and hard negatives    :meth:`MaskedGraph.__call__`
8, 9    h~_q (Eq. 6) of queries with edges to P_b; h'_p (Eq. 7 to 10)  :meth:`MaskedGraphModel.forward`
10      loss (Eq. 11, 12)                                              ``pair.losses.in_batch_loss``
11      update parameters                                              ``training.trainer.train``
======= ============================================================== ================================================

The preprint ("000") has another line 6: batches are random passages, and their queries of Q_t give the loss. That is
:class:`MaskedPassages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import pydantic
import torch
from datasets import Dataset as Examples
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from torch_geometric.data import HeteroData

from pyterrier_graph.configuration import STRICT, OpenShare
from pyterrier_graph.encoders.sentence_encoder import encoded, scale_of
from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder
from pyterrier_graph.graph_mean.equations import PassageNetwork, RelationNetwork
from pyterrier_graph.graph_mean.nearest import nearest
from pyterrier_graph.graph_mean.neighbors import QUERY, NeighborSampler, encoded_again
from pyterrier_graph.graph_mean.tuning import PassageValidation, relevant_passages
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.pair.losses import in_batch_loss
from pyterrier_graph.pair.mining import example_ids
from pyterrier_graph.storage.arrays import known_numbers_of, numbers_of
from pyterrier_graph.training.trainer import HeadOptions
from pyterrier_graph.training.validation import checked_qrels, checked_topics

# what both papers state, and the epochs of 001
PAPERS: dict[str, Any] = {
    "epochs": 5,
    "learning_rate": 5e-5,
    "masked": 0.05,
    "scale": 1.0,
    "patience": None,
}
RETRIEVED_PER_QUERY = 25  # for hard negatives, if there is no graph, which stores this number


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class GNNEncoderTraining(HeadOptions):
    """Options of ``GNNEncoder.fit()``; the defaults train the network alone, in minutes for hundreds of queries.

    Attributes:
        epochs: Passes over the masked queries; each has few steps.
        learning_rate: Of the matrices of the network. The weights of relations stay, and
            :meth:`~pyterrier_graph.GNNEncoder.tune` sets them: how much a relation counts differs most between
            collections, and training them gained nothing. A relation that starts with 0 stays without effect.
        encoder_learning_rate: Of the dual-encoder. None leaves it unchanged (000); 001 trains both.
        masked: Share of the graph's queries that are taken out, and give the loss, in each epoch. Both papers have 5 %,
            of which hundreds of queries make one step. None masks none: all queries give the loss, and instead the
            edges between the training queries and their relevant passages are dropped ("w/o MGT").
        negatives: Hard negatives per query, drawn from the passages that were retrieved for it.
        scale: Factor of similarities: None is 1, as in the papers, or 20 where vectors have unit length.
        batches: What a batch has ``batch_size`` of: ``'queries'`` with their positives and negatives (001), or random
            ``'passages'`` of the whole collection, whose queries give the loss (000). An epoch of the latter computes
            all passages.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.HeadOptions`.
    """

    epochs: PositiveInt = 40
    batch_size: PositiveInt = 128
    learning_rate: NonNegativeFloat = 1e-3
    masked: OpenShare | None = 0.3
    negatives: NonNegativeInt = 4
    scale: NonNegativeFloat | None = None
    patience: PositiveInt | None = 5
    batches: Literal["queries", "passages"] = "queries"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The setting of 001, Sect. 4.3, on each of four GPUs; ``changes`` replace options."""
        joint = {"batch_size": 1024, "negatives": 1, "encoder_learning_rate": 2e-6}
        return cls(**PAPERS | joint | changes)

    @classmethod
    def preprint(cls, **changes: Any) -> Self:
        """The setting of 000, Sect. 5.1.4, stage 2; it does not state the number of epochs."""
        alone = {"batch_size": 8192, "batches": "passages", "negatives": 0}
        return cls(**PAPERS | alone | changes)


@dataclass(frozen=True)
class LossQueries:
    """The training queries, with the passages that they learn from."""

    texts: list[str]
    vectors: Tensor  # by the encoder, shape (queries, d)
    number: np.ndarray  # of each query in the query graph, -1 for queries outside of it
    positives: CSR  # relevant passages of each query; none for a query that cannot give a loss
    negatives: CSR  # hard negatives of each query
    labeled: CSR  # all relevant passages of each query


def loss_queries(
    model: ContextualEncoder,
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
    examples: Examples | None = None,
) -> LossQueries:
    """The training queries that have a relevant passage; takes the arguments of ``GNNEncoder.fit``.

    If documents are judged, most passages of a relevant document do not answer the query, so the most similar passage
    is the positive. Hard negatives are passages retrieved for the query: by the query graph, else by a search.
    ``examples`` replace both.
    """
    topics = checked_topics(topics, model)
    qrels = checked_qrels(qrels, model)
    sampler = model.sampler()
    in_topics = qrels["qid"].isin(topics["qid"])
    relevant, by_document = relevant_passages(sampler, qrels[in_topics])
    has_relevant = topics["qid"].isin(relevant["qid"])
    topics = topics[has_relevant]
    texts = topics["query"].tolist()
    qids = topics["qid"].tolist()
    vectors = np.asarray(sampler.encoder.encode_queries(texts), dtype=np.float32)
    number = np.full(len(qids), -1)
    if sampler.query_graph is not None:
        number = numbers_of(sampler.query_graph.qids, qids)
    row = pd.Index(qids).get_indexer(relevant["qid"])
    passages = numbers_of(sampler.docnos, relevant["docno"].tolist())
    labeled = CSR.group(row, passages, len(qids))
    if examples is not None:
        positives, negatives = _mined(sampler, qids, examples)
    else:
        candidates = _most_similar(sampler, vectors, labeled) if by_document else labeled
        positives = _answerable(sampler, number, candidates)
        negatives = _retrieved(sampler, vectors, number, labeled)
    return LossQueries(texts, torch.from_numpy(vectors), number, positives, negatives, labeled)


def _mined(sampler: NeighborSampler, qids: list[str], examples: Examples) -> tuple[CSR, CSR]:
    """The positives and the hard negatives of each query in mined examples; queries without examples have none."""
    of_queries, docnos = example_ids(examples)
    row = pd.Index(qids).get_indexer(of_queries)  # (examples,)
    known = row >= 0
    row = row[known]
    passages = known_numbers_of(sampler.docnos, docnos[known])  # (examples, 1 + negatives)
    positives = CSR.group(row, passages[:, 0], len(qids))
    hard = passages[:, 1:]  # (examples, negatives)
    rows = np.repeat(row, hard.shape[1])
    negatives = CSR.group(rows, hard.ravel(), len(qids))
    return positives, negatives


def _retrieved(
    sampler: NeighborSampler, vectors: np.ndarray, number: np.ndarray, labeled: CSR
) -> CSR:
    """The passages retrieved for each query, by the query graph or else by a search, without the relevant ones."""
    graph = sampler.query_graph
    if graph is None or RETRIEVED not in graph.edge_types:
        number = np.full_like(number, -1)
    inside = np.flatnonzero(number >= 0)
    outside = np.flatnonzero(number < 0)
    depth = RETRIEVED_PER_QUERY if graph is None else graph.meta["k"]
    _, best = nearest(vectors[outside], sampler.vectors, depth)  # (queries, depth)
    rows = np.repeat(outside, best.shape[1])
    passages = best.ravel()
    if len(inside):
        edges = graph.edges_of_queries(number[inside])
        rows = np.append(rows, inside[edges.row_index])
        passages = np.append(passages, edges.indices)
    # a number for each pair of a query and a passage
    pairs = rows * len(sampler) + passages
    relevant = labeled.row_index * len(sampler) + labeled.indices
    is_negative = ~np.isin(pairs, relevant)
    return CSR.group(rows[is_negative], passages[is_negative], len(number))


def _most_similar(sampler: NeighborSampler, vectors: np.ndarray, positives: CSR) -> CSR:
    """The positive of each query that is most similar to it."""
    row = positives.row_index
    passages = positives.indices
    scores = np.einsum("nd,nd->n", vectors[row], sampler.vectors[passages])
    order = np.lexsort((-scores, row))  # by query, the most similar passage first
    best = order[positives.indptr[:-1]]  # each query has a positive
    return CSR(np.arange(len(positives) + 1), passages[best])


def _answerable(sampler: NeighborSampler, number: np.ndarray, positives: CSR) -> CSR:
    """The positives that are also relevant to another query of the graph, and all positives of queries outside of it.

    If passages aggregate from relevant queries, masking a query can take the only one from its positive. The network
    would learn that passages with relevant queries are wrong. If no positive remains, all positives are returned.
    """
    graph = sampler.query_graph
    if graph is None or RELEVANT not in sampler.query_relations:
        return positives
    queries = graph.edges_of_passages(positives.indices, RELEVANT)
    own = number[positives.row_index]  # the query of each positive
    is_other = queries.indices != own[queries.row_index]
    num_others = np.bincount(queries.row_index[is_other], minlength=len(own))  # per positive
    is_outside = own < 0
    answerable = positives.filter((num_others > 0) | is_outside)
    return answerable if len(answerable.indices) else positives


class MaskedGraph(Dataset):
    """Lines 3 to 7 of Algorithm 1: the queries of each epoch, the graph without them, and the batches.

    It is the training set, whose examples are queries, and the function that collates examples into a batch.

    Attributes:
        query_graph: The graph of the present epoch, without the masked queries.
        positives: The positive of each query in this epoch, shape (queries,); -1 where there is none.
        negatives: Its hard negatives, shape (queries, negatives); -1 where there are none.
    """

    def __init__(
        self, queries: LossQueries, sampler: NeighborSampler, options: GNNEncoderTraining
    ) -> None:
        self.queries = queries
        self.sampler = sampler
        self.options = options
        has_positive = queries.positives.lengths > 0
        in_graph = queries.number >= 0
        self._inside = np.flatnonzero(has_positive & in_graph)
        self._outside = np.flatnonzero(has_positive & ~in_graph)
        self._num_drawn = len(self._inside)  # per epoch
        if options.masked is not None and sampler.query_graph is not None:
            num_masked = round(options.masked * sampler.query_graph.num_queries)
            self._num_drawn = min(self._num_drawn, max(1, num_masked))
        self.draw(0)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> int:
        return int(self._rows[position])

    def draw(self, epoch: int) -> None:
        """Lines 3 to 5: draws Q_t, and their positives and negatives, and takes Q_t out of the graph.

        Without masking, the edges between training queries and their relevant passages are dropped (001, Sect. 4.5).
        """
        random = np.random.default_rng((self.options.seed, epoch))
        shuffled = random.permutation(self._inside)
        drawn = shuffled[: self._num_drawn]
        self._rows = np.concatenate([drawn, self._outside])  # Q_t
        self.query_graph = self._graph_without(drawn)
        positives = _sample(self.queries.positives, 1, random)  # (queries, 1)
        self.positives = positives[:, 0]
        self.negatives = _sample(self.queries.negatives, self.options.negatives, random)

    def _graph_without(self, queries: np.ndarray) -> QueryPassageGraph | None:
        """The query graph without these queries; without masking, it lacks the edges to relevant passages instead."""
        graph = self.sampler.query_graph
        if graph is None:
            return None
        if self.options.masked is not None:
            return graph.without(self.queries.number[queries])
        labeled = self.queries.labeled
        query = self.queries.number[labeled.row_index]
        in_graph = query >= 0
        return graph.without_edges(query[in_graph], labeled.indices[in_graph])

    def __call__(self, rows: Sequence[int]) -> dict[str, Any]:
        """Lines 6 and 7: the batch of some queries, with their positives and negatives, each passage once."""
        queries = np.asarray(rows)
        positives = self.positives[queries]
        negatives = self.negatives[queries]
        negatives = negatives[negatives >= 0]
        passages = np.union1d(positives, negatives)  # P_b
        return self._batch(queries, passages)

    def _batch(self, queries: np.ndarray, passages: np.ndarray) -> dict[str, Any]:
        """The arguments of :meth:`MaskedGraphModel.forward`; ``passages`` ascend and include the positives."""
        positives = np.searchsorted(passages, self.positives[queries])
        neighborhood = self.sampler.sample(passages, self.query_graph)
        batch: dict[str, Any] = {
            "queries": self.queries.vectors[queries],
            "positives": torch.from_numpy(positives),
            "neighborhood": neighborhood,
        }
        if self.options.encoder_learning_rate is not None:
            query_texts = [self.queries.texts[row] for row in queries]
            passage_texts, sources = texts_of(self.sampler, passages, neighborhood)
            batch["texts"] = [query_texts, passage_texts, sources]
        return batch


class MaskedPassages(MaskedGraph):
    """Algorithm 1 of 000: an example is a passage, and a batch has the queries whose positives are among its passages.

    The loss of a query ranks all passages of the batch (Eq. 11 of 000). A batch without queries has the loss 0.
    """

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, position: int) -> int:
        return position

    def __call__(self, rows: Sequence[int]) -> dict[str, Any]:
        """The batch of some passages P_b."""
        passages = np.unique(rows)  # the trainer may repeat passages to fill a batch
        positives = self.positives[self._rows]
        in_batch = np.isin(positives, passages)
        queries = self._rows[in_batch]  # Q_b+
        return self._batch(queries, passages)


def _sample(rows: CSR, count: int, random: np.random.Generator) -> np.ndarray:
    """Elements of each row, drawn with replacement, shape (rows, count); -1 for empty rows."""
    lengths = rows.lengths[:, None]  # (rows, 1)
    starts = rows.indptr[:-1, None]  # (rows, 1)
    shares = random.random((len(rows), count))  # below 1
    offset = (shares * lengths).astype(np.int64)
    elements = np.append(rows.indices, -1)  # the end of the last row is read if it is empty
    drawn = elements[starts + offset]  # (rows, count)
    return np.where(lengths > 0, drawn, -1)


class MaskedGraphModel(nn.Module):
    """Lines 8 to 10 of Algorithm 1: the network, the dual-encoder if it also learns, and their loss."""

    def __init__(
        self,
        network: PassageNetwork,
        scale: float | None = None,
        encoder: DualEncoder | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.encoder = None if encoder is None else encoder.network
        # vectors of the project's own network have nearly the length 1
        self.normalizes = isinstance(network, RelationNetwork)
        self.scale = scale_of(scale, self.normalizes)

    def forward(
        self,
        queries: Tensor,
        positives: Tensor,
        neighborhood: HeteroData,
        texts: Sequence[list[str]] = (),
    ) -> dict[str, Tensor]:
        """Eq. 12 (Eq. 11 of 000): ``{'loss': ...}``.

        Args:
            queries: Vectors of the queries that give the loss, shape (queries, d).
            positives: Row of each query's positive among the passages, shape (queries,).
            neighborhood: All positives and negatives with their neighbors.
            texts: Of the queries, the passages, and the queries that they aggregate from, if the encoder learns.
        """
        if self.encoder is not None:
            encode = partial(encoded, self.encoder)
            query_texts, passages, sources = texts
            queries = encode(query_texts, "query")
            neighborhood = encoded_again(neighborhood, passages, sources, encode)
        if self.normalizes:
            queries = functional.normalize(queries, dim=1)  # (queries, d)
        neighborhood = neighborhood.to(queries.device)
        states = self.network(neighborhood)  # lines 8, 9: (passages, d)
        loss = in_batch_loss(queries, states, positives, scale=self.scale)  # line 10
        return {"loss": loss}


def texts_of(
    sampler: NeighborSampler, passages: np.ndarray, batch: HeteroData
) -> tuple[list[str], list[str]]:
    """Texts of the passages of a batch, with their titles in front, and of the queries that they aggregate from."""
    nodes = sampler.graph.passage_nodes[passages]
    passage_texts = sampler.graph.texts(nodes, titles=True)
    sources = []
    if QUERY in batch.node_types:
        queries = batch[QUERY].n_id.numpy()
        sources = sampler.query_graph.texts(queries)
    return passage_texts, sources


@torch.inference_mode()
def joint_measure(
    validation: PassageValidation, network: PassageNetwork, encoder: DualEncoder
) -> np.ndarray:
    """The measure of each validation query, with a network and an encoder in their present state."""
    encoder.network.eval()
    network.eval()
    sampler = validation.sampler
    passages = validation.candidates
    batch = sampler.sample(passages)

    def encode(texts: list[str], task: str) -> Tensor:
        method = encoder.encode_docs if task == "document" else encoder.encode_queries
        return torch.from_numpy(method(texts))

    passage_texts, sources = texts_of(sampler, passages, batch)
    batch = encoded_again(batch, passage_texts, sources, encode)
    states = network(batch.to(encoder.network.device))
    queries = encoder.encode_queries(validation.queries)
    return validation.measured(states.cpu().numpy(), queries)
