"""Learning an HGAT from triples <q, p+, p-> (Albarede et al. 2023, Sect. 5.2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.models.hgat import HGAT
from pyterrier_graph.models.propagation import Propagation
from pyterrier_graph.training.trainer import train

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.training.options import HGATTraining


@dataclass(frozen=True)
class Group:
    """The triples of a batch that are from one graph.

    Attributes:
        queries: Token vectors; texts where the encoder learns, too.
        inputs: The same for the propagation's nodes.
        propagation: How the passages of the triples are contextualized.
        triples: Query, p+ and p- (positions in the propagation's targets), shape (triples, 3).
    """

    queries: TokenStates | list[str]
    inputs: TokenStates | list[str]
    propagation: Propagation
    triples: Tensor


class TripleCollator:
    """Makes batches: plans what has to be computed for the passages of some triples, and collects the input for it.

    Args:
        hgat: The model that is trained.
        graphs: The graphs, each with what has the token vectors of its nodes (``states(nodes)``), or where the encoder
            learns, too, their texts (``texts(nodes)``).
        queries: The texts of the queries.
        encoder: Encodes the queries; None where the encoder learns, too.
    """

    def __init__(
        self,
        hgat: HGAT,
        graphs: Sequence[tuple[HeteroGraph, Any]],
        queries: Sequence[str],
        encoder: TokenEncoder | None,
    ) -> None:
        self.hgat = hgat
        self.graphs = graphs
        self.queries = queries
        self.encoded = None if encoder is None else encoder.encode_queries(queries).to("cpu")

    def __call__(self, triples: Sequence[np.ndarray]) -> dict[str, list[Group]]:
        """A batch for :class:`TripleModel`, of rows of what ``draw_triples`` returns."""
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
    """An HGAT, with the encoder where it learns too, and the loss on triples.

    Args:
        hgat: The network.
        encoder: The encoder if it is trained, else None.
    """

    def __init__(self, hgat: HGAT, encoder: TokenEncoder | None = None) -> None:
        super().__init__()
        self.hgat = hgat
        self.encoder = encoder
        self.network = encoder.network if encoder is not None else None

    def forward(self, groups: list[Group]) -> dict[str, Tensor]:
        """Pairwise softmax cross-entropy over the scores of p+ and p-, averaged over the triples."""
        scores = torch.cat([self._scores(group) for group in groups])  # (triples, 2)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return {"loss": functional.cross_entropy(scores.float(), first)}

    def _scores(self, group: Group) -> Tensor:
        device = next(self.hgat.parameters()).device
        if self.encoder is not None:
            queries = self.encoder.forward_queries(cast(list[str], group.queries))
            inputs = self.encoder.forward_passages(cast(list[str], group.inputs))
        else:
            queries = cast(TokenStates, group.queries).to(device)
            inputs = cast(TokenStates, group.inputs).to(device)
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
    graphs: Sequence[tuple[HeteroGraph, Any]],
    queries: Sequence[str],
    triples: np.ndarray,
    options: HGATTraining,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains an HGAT in place, and the encoder where ``options.encoder_learning_rate`` is given.

    Args:
        hgat: The network.
        encoder: The encoder.
        graphs: The graphs, each with what has the token vectors of its nodes; see :class:`TripleCollator`.
        queries: The texts of the queries.
        triples: What ``draw_triples`` returned.
        options: How to train.
        **arguments: Further arguments of :func:`pyterrier_graph.training.trainer.train`, such as ``validate``.

    Returns:
        The log: losses, and the measure under its own name.
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
    """Has all of an encoder learn but its embeddings and first layers; with a count of 0 all of it.

    Raises:
        ValueError: If the encoder's layers are not found, or all of them would be frozen.
    """
    network.requires_grad_(True)
    if not count:
        return
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        raise ValueError("the encoder has no list of layers: use frozen_encoder_layers=0")
    layers = max(stacks, key=len)
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
