"""The triples <q, p+, p-> that an HGAT learns from, and learning from them (Albarede et al. 2023, Sect. 5.2.3)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.checks import check_type
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.models.hgat import HGAT
from pyterrier_graph.models.propagation import Propagation
from pyterrier_graph.training.negatives import NegativeSampler
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.validation import judged_ids, passages_are_judged
from pyterrier_graph.warning_categories import DataWarning

if TYPE_CHECKING:
    from pyterrier_graph.training.options import HGATTraining

Graphs = Sequence[tuple[HeteroGraph, Any]]
"""Graphs, each with an object whose ``states(nodes)`` (``texts(nodes)``, if the encoder learns) are its nodes'."""


def draw_triples(
    run: pd.DataFrame, qrels: pd.DataFrame, graph: HeteroGraph | None, options: HGATTraining
) -> tuple[list[str], list[HeteroGraph], np.ndarray]:
    """Draws triples as the options say, from ``qid, query, docno`` (and ``graph`` if there is no document graph).

    Returns the texts of the queries, the graphs, and the triples, of shape (triples, 4): position of the graph,
    position of the query, node of p+, node of p-.
    """
    texts = query_texts(run)
    qrels = qrels[qrels["qid"].isin(texts.index)]
    if graph is not None:
        sources = [(graph, passage_judgments(qrels, graph), run)]
    elif options.negatives == "candidates":
        sources = list(_learnable(run, qrels))
    else:
        advice = "use HGATTraining(negatives='candidates')"
        raise ValueError(f"without a document graph, negatives are each query's own passages: {advice}")
    if not sources:
        raise ValueError("no training query has both a relevant passage among its own and one that is judged lower")
    codes = run.drop_duplicates("qid").set_index("qid")["codes"].to_dict() if "codes" in run.columns else None
    drawn = []
    for number, (source, labels, candidates) in enumerate(sources):
        given = {"candidates": candidates, "codes": codes, "seed": options.seed + number}
        sampler = NegativeSampler(source, labels, options.negatives, **given)
        query = texts.index.get_indexer(sampler.qids)
        for _ in range(options.repeats):
            new = sampler.sample()
            drawn.append(np.column_stack([np.full(len(new), number), query[new[:, 0]], new[:, 1:]]))
    triples = np.concatenate(drawn)
    if options.max_triples is not None and options.max_triples < len(triples):
        triples = np.random.default_rng(options.seed).choice(triples, options.max_triples, replace=False)
    return texts.tolist(), [source for source, *_ in sources], triples


def passage_judgments(qrels: pd.DataFrame, graph: HeteroGraph) -> pd.DataFrame:
    """Judgments of passages, as given or, where no passage is judged, those of their documents in the graph."""
    if not len(qrels) or passages_are_judged(qrels, graph):
        return qrels
    documents = graph._documents(qrels["docno"].tolist())
    missing = qrels["docno"][documents < 0]
    if len(missing) == len(qrels):
        graph.document_of(missing)  # raises KeyError, and says why
    if len(missing):
        warnings.warn(
            f"{len(missing)} of {len(qrels)} judged documents are not in the graph, such as {missing.iloc[0]!r}: "
            "their judgments are not used",
            DataWarning,
            stacklevel=2,
        )
    qrels = qrels[documents >= 0]
    position, nodes = graph.passages_of_documents(documents[documents >= 0])
    return qrels.iloc[position].assign(docno=graph.ids_of(nodes))


def graph_of(rows: pd.DataFrame) -> HeteroGraph:
    """The graph of a query's rows."""
    qid, graph = rows["qid"].iloc[0], rows["graph"].iloc[0]
    check_type(f"the graph of query {qid!r}", graph, HeteroGraph, "a graph: put CandidateGraph() before")
    return graph


def _learnable(run: pd.DataFrame, qrels: pd.DataFrame) -> Iterator[tuple[HeteroGraph, pd.DataFrame, pd.DataFrame]]:
    """Graph, judgments and passages of each query whose own passages are not all equally relevant."""
    labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
    pairs = pd.MultiIndex.from_arrays([run["qid"], judged_ids(run["docno"], qrels)])
    run = run.assign(label=labels.reindex(pairs, fill_value=0).to_numpy())
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
    triples: Tensor  # query, p+ and p- (positions in the targets of the propagation), shape (triples, 3)


class TripleCollator:
    """Makes batches: plans what has to be computed for the passages of some triples, and collects the input for it.

    The arguments are those of :func:`train_on_triples`; ``encoder`` is None if the encoder learns, too.
    """

    def __init__(self, hgat: HGAT, graphs: Graphs, queries: Sequence[str], encoder: TokenEncoder | None) -> None:
        self.hgat, self.graphs, self.queries = hgat, graphs, queries
        self.encoded = None if encoder is None else encoder.encode_queries(queries).to("cpu")

    def __call__(self, triples: Sequence[np.ndarray]) -> dict[str, list[Group]]:
        """A batch for :class:`TripleModel`."""
        rows = np.stack(triples)
        return {"groups": [self._group(number, rows[rows[:, 0] == number]) for number in dict.fromkeys(rows[:, 0])]}

    def _group(self, number: int, rows: np.ndarray) -> Group:
        graph, tokens = self.graphs[number]
        queries, query = np.unique(rows[:, 1], return_inverse=True)
        passages, passage = np.unique(rows[:, 2:], return_inverse=True)
        propagation = self.hgat.plan(graph, passages)
        triples = torch.from_numpy(np.column_stack([query, passage.reshape(-1, 2)]))
        if self.encoded is None:
            return Group([self.queries[q] for q in queries], tokens.texts(propagation.nodes), propagation, triples)
        encoded = self.encoded.select(torch.from_numpy(queries))
        return Group(encoded, tokens.states(propagation.nodes), propagation, triples)


class TripleModel(nn.Module):
    """An HGAT with its loss on triples, and with the encoder if the encoder learns, too."""

    def __init__(self, hgat: HGAT, encoder: TokenEncoder | None = None) -> None:
        super().__init__()
        self.hgat, self.encoder = hgat, encoder
        self.network = encoder.network if encoder is not None else None

    def forward(self, groups: list[Group]) -> dict[str, Tensor]:
        """Pairwise softmax cross-entropy over the scores of p+ and p-, averaged over the triples."""
        scores = torch.cat([self._scores(group) for group in groups])  # (triples, 2)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return {"loss": functional.cross_entropy(scores.float(), first)}

    def _scores(self, group: Group) -> Tensor:
        device = next(self.hgat.parameters()).device
        given: tuple[Any, Any] = (group.queries, group.inputs)
        if self.encoder is not None:
            queries, inputs = self.encoder.forward_queries(given[0]), self.encoder.forward_passages(given[1])
        else:
            queries, inputs = (states.to(device) for states in given)
        queries, inputs = (self.hgat.project(states) for states in (queries, inputs))
        propagation = group.propagation.to(device)
        in_context = self.hgat(inputs, propagation)
        content = inputs.select(propagation.inputs)
        scores = []
        for query, *passages in group.triples.tolist():
            pair = torch.tensor(passages, device=device)
            scores.append(self.hgat.score(queries[query], content.select(pair), in_context.select(pair)))
        return torch.stack(scores)


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

    Each graph comes with the source of its nodes' token vectors; ``triples`` are what :func:`draw_triples` returned.
    Further arguments, and the log that is returned, are those of :func:`pyterrier_graph.training.trainer.train`.
    """
    scalars = hgat.scalars()
    others = [p for p in hgat.parameters() if all(p is not scalar for scalar in scalars)]
    scalar_rate = options.learning_rate if options.scalar_learning_rate is None else options.scalar_learning_rate
    rates = [(others, options.learning_rate), (scalars, scalar_rate)]
    encoder_rate = options.encoder_learning_rate
    if encoder_rate is not None:
        rates.append(([p for p in encoder.network.parameters() if p.requires_grad], encoder_rate))
    model = TripleModel(hgat, None if encoder_rate is None else encoder)
    collator = TripleCollator(hgat, graphs, queries, encoder if encoder_rate is None else None)
    return train(model, cast(Dataset, triples), collator, options, rates=rates, **arguments)


def freeze_first_layers(network: nn.Module, count: int) -> None:
    """Freezes the embeddings and the first layers of an encoder, and nothing with a count of 0."""
    network.requires_grad_(True)
    if not count:
        return
    layers = max((module for module in network.modules() if isinstance(module, nn.ModuleList)), key=len, default=None)
    if layers is None:
        raise ValueError("the encoder has no list of layers: use frozen_encoder_layers=0")
    if count >= len(layers):
        raise ValueError(
            f"encoder_learning_rate has no effect: the encoder has {len(layers)} layers, and frozen_encoder_layers="
            f"{count} freezes all of them. Use HGATTraining(frozen_encoder_layers=...) with less than {len(layers)}"
        )
    for name, module in network.named_modules():
        if name.rpartition(".")[2] == "embeddings":
            module.requires_grad_(False)
    for layer in layers[:count]:
        layer.requires_grad_(False)
