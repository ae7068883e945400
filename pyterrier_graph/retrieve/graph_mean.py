"""The rule that a GNN-encoder has to beat: a passage plus the mean of what is around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import pandas as pd

from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig, GNNEncoderNetwork
from pyterrier_graph.retrieve.contextual_encoder import FusedEncoder
from pyterrier_graph.training.validation import tuning_set

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph


class GraphMean(FusedEncoder):
    """A passage's vector plus beta times the mean of the queries that it is known to answer.

    ``normalize(x + beta * mean of the vectors of its known queries + ...)``: one number per channel, no network. It is
    what Liu et al. 2022 call "average", of known in place of retrieved queries, and the rival of every graph.

    Args:
        encoder: A bi-encoder of pyterrier_dr, such as :class:`DualEncoder`.
        index: Its vectors of the passages.
        queries: The graph of training queries; None where only relations are heard.
        beta: Weight of the mean over the known queries, or, where the graph has none, over the retrieved ones; or a
            weight per channel: ``'relevant'``, ``'retrieved'``, and relations, or paths, of the document graph, such as
            ``{'relevant': 0.5, 'structural': 1.0}``, which adds the section's title.
        isolated_norm: Length of a passage's vector that no known query is heard by, where others hear some (1): see
            :class:`GNNEncoderNetwork`. :meth:`fit` finds it, too.
        documents: The document graph, where relations are heard.
        measure: What :meth:`fit` maximizes.
        candidates: Passages per validation query; each is ranked among the candidates of all.
        folder: Where vectors of queries and titles are kept, so that they are encoded once; by default temporary.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no index.
        ValueError: If a channel lacks its graph, or the graph is of other passages.
    """

    network: GNNEncoderNetwork
    schematic = {"label": "GraphMean", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self,
        encoder: BiEncoder,
        index: FlexIndex,
        queries: QueryPassageGraph | None = None,
        beta: float | Mapping[str, float] = 0.5,
        *,
        isolated_norm: float = 1.0,
        documents: HeteroGraph | None = None,
        measure: str = "nDCG@10",
        candidates: int = 100,
        folder: str | os.PathLike[str] | None = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.encoder, self.index, self.queries, self.documents = encoder, index, queries, documents
        self.measure, self.candidates, self.folder = measure, candidates, folder
        self.device, self.verbose = device, verbose
        if not isinstance(beta, Mapping):
            beta = {RELEVANT if queries is None or RELEVANT in queries.edge_types else RETRIEVED: beta}
        dimension = index.payload(return_docnos=False)[0].shape[1]
        self.network = GNNEncoderNetwork(GNNEncoderConfig(dimension, beta, 1, isolated_norm))
        self._sampler(index)

    @property
    def beta(self) -> dict[str, float]:
        """Weight per channel."""
        return self.network.weights

    @property
    def isolated_norm(self) -> float:
        """Length of a passage's vector that no known query is heard by."""
        return round(float(self.network.isolated_norm), 6)

    def __repr__(self) -> str:
        weights = ", ".join(f"{channel!r}: {weight:g}" for channel, weight in self.beta.items())
        length = "" if self.isolated_norm == 1 else f", isolated_norm={self.isolated_norm:g}"
        return f"GraphMean({self.encoder!r}, beta={{{weights}}}{length})"

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Tunes the numbers: see :meth:`tune`.

        So few numbers need few queries: the validation set is used where there is one, else the training set. Its
        queries should not be in the graph: a query finds what listens to it.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries.
            qrels_va: Judgments for them.

        Raises:
            ValueError: If none of the queries is judged.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        return self.tune(topics, qrels, measure=self.measure)
