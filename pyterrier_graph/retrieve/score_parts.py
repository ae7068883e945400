"""What a passage's own vector, and each relation, add to the score of a dense model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pyterrier_graph.graphs.ids import numbers_of
from pyterrier_graph.models.gnn_encoder import GNNEncoderNetwork
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.models.side_by_side import SideBySideNetwork
from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder
from pyterrier_graph.retrieve.contextual_index import ContextualIndex


def query_vector(model: Any, query: str) -> np.ndarray:
    """The vector of a query for the index of a GraphMean or GNNEncoder, or for a ContextualIndex."""
    encoded = model.query_encoder().transform(pd.DataFrame({"qid": ["1"], "query": [query]}))
    return np.asarray(encoded["query_vec"].iloc[0], dtype=np.float32)


def index_scores(index: ContextualIndex, query: str, docnos: list[str]) -> np.ndarray:
    """The scores of passages of an index for a query."""
    ids, vectors, _ = index.flex.payload()
    return np.asarray(vectors[numbers_of(ids, docnos)], dtype=np.float32) @ query_vector(index, query)


def score_parts(model: ContextualEncoder, query: str, docno: str) -> dict[str, float]:
    """What adds up to the inner product of a query's vector and a passage's: SELF, and each relation.

    The vector of a passage is a sum, scaled to its length. In the papers' network, which is none, the relation has what
    the score changes by.
    """
    vector = torch.from_numpy(query_vector(model, query)).to(model._device)
    sampler, network = model._sampler(), model.network.to(model._device).eval()
    batch = sampler.sample(sampler.known_numbers_of([docno])).to(model._device)
    with torch.inference_mode():
        if isinstance(network, SideBySideNetwork):
            products = (network(batch)[0] * vector).reshape(1 + len(network.relations), -1).sum(1)
            return dict(zip([SELF, *network.relations], products.tolist(), strict=True))
        full = network(batch)[0]
        if isinstance(network, GNNEncoderNetwork):
            paths = network.paths(batch.passages, network._sources(batch), batch.edges)
            terms: dict[str, Tensor] = {SELF: paths.own[0]}
            terms |= {name: network.relation[name].weight * term[0] for name, term in paths.messages.items()}
            scale = full.norm() / torch.stack([*terms.values()]).sum(0).norm().clamp(min=1e-12)
            return {name: float(term @ vector * scale) for name, term in terms.items()}
        own = float(batch.passages[0] @ vector)
        changed = {name: float(full @ vector) - own for name in network.relations if name in batch.edges}
        return {SELF: own} | changed
