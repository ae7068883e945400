"""The index of contextual vectors, with its query encoder and the texts of its passages."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_dr import FlexIndex

from pyterrier_graph.artifacts import META, OwnArtifact, read_meta
from pyterrier_graph.checks import WithSignature, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.graphs.array_files import DOCNOS
from pyterrier_graph.graphs.consistency import check_ids, count_of
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.ids import ids_of
from pyterrier_graph.ranges.pickling import flex_index
from pyterrier_graph.retrieve.contextual_retriever import ContextualRetriever
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.index_identity import identity_of, vector_space
from pyterrier_graph.retrieve.neighbor_sampler import some_of
from pyterrier_graph.retrieve.query_weights import QueryWeights, read_sample

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder


class ContextualIndex(WithSignature, pt.Transformer):
    """An index that ``GraphMean.index`` or ``GNNEncoder.index`` has written. In a pipeline it is its retriever.

    ::

        index = ptg.ContextualIndex("corpus.flex", graph)
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    Args:
        path: Folder of the index.
        graph: The document graph, which has the texts of the passages; None for passages without texts.
        encoder: Encodes queries: the name of a checkpoint, a bi-encoder, or the GraphMean or GNNEncoder that wrote the
            index, for encoders that were trained with it. In an index with weights per query, the
            ``largest_weights`` of a GraphMean take the place of those that the index was written with.

    Attributes:
        flex: The ``FlexIndex`` at the path.
        encoder: The bi-encoder that encodes queries.

    Raises:
        ValueError: If the index is not contextual, is damaged, or was made with another encoder, with other relations
            or of another graph.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        graph: HeteroGraph | None = None,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder = DEFAULT,
    ) -> None:
        check_type("path", path, (str, os.PathLike), "the folder of an index that index(path) has written")
        check_type("graph", graph, (HeteroGraph, NoneType), "a DocumentGraph, such as ptg.DocumentGraph(path)")
        self.path, self.graph = Path(path), graph
        if not (self.path / META).is_file():
            raise FileNotFoundError(f"no index at {str(path)!r}")
        self.flex = FlexIndex(str(path), verbose=False)
        identity = identity_of(self.flex)
        if "encoder" not in identity:
            raise ValueError(f"{self.flex!r} is damaged: it does not say which encoder its vectors are of")
        meta = read_meta(self.path, {"type": "dense_index", "format": "flex"})
        check_ids(self.path / DOCNOS, count_of(meta, "doc_count"))
        model: Any = encoder if hasattr(encoder, "explain") else None
        passages = encoder_of(encoder) if model is None else model.encoder
        if identity["encoder"] != (space := vector_space(passages)):
            raise ValueError(f"{self!r} needs encoder={identity['encoder']}, got {space}")
        self.encoder: BiEncoder = getattr(model, "query_model", None) or passages
        self._weights = self._query_weights(getattr(model, "largest_weights", {}))
        if graph is not None and identity.get("graph", "") != graph.fingerprint():
            self._check_passages(graph, "graph" in identity)

    def __repr__(self) -> str:
        return f"ContextualIndex({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        # worker processes read the sample from the index again
        return vars(self) | {"_weights": None if self._weights is None else self._weights.weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if (weights := state["_weights"]) is not None:
            self._weights = QueryWeights(read_sample(self.path, weights), weights)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.flex)

    verify = OwnArtifact.verify

    def retriever(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by exhaustive search; ``index.query_encoder() >> index.flex.*`` has other searches.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``, with a graph also ``text``.

        Args:
            num_results: Passages per query.
        """
        return ContextualRetriever(self, num_results)

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries for this index: adds ``query_vec`` to ``qid, query``.

        It stands in front of other searches of :attr:`flex`: ``index.query_encoder() >> index.flex.torch_retriever()``.
        The encoder's own query encoder does not add the weights per query of an index that has them.
        """
        encode = self.encoder.query_encoder()
        return encode if self._weights is None else encode >> self._weights

    def query_weights(self, topics: pd.DataFrame) -> pd.DataFrame:
        """How much each relation counts for some queries, where an index has weights per query.

        Args:
            topics: ``qid, query``.

        Returns:
            The topics with a column of weights per relation.

        Raises:
            ValueError: If the weights are the same for all queries: they are then part of the vectors.
        """
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        if self._weights is None:
            raise ValueError(f"{self!r} has no weights per query: it was not made with weights='auto'")
        vectors = np.asarray(self.encoder.encode_queries(topics["query"].tolist()), dtype=np.float32)
        return pd.concat([topics.reset_index(drop=True), self._weights.weights_of(vectors)], axis=1)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages as :meth:`retriever` does."""
        return self.retriever().transform(inp)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.html import value

        sizes = {"passages": len(self), "encoder": repr(self.encoder), "texts": repr(self.graph)}
        calls = ["index.retriever()"]
        if self.graph is not None:
            calls = ["index.retriever() >> ptg.GraphMaxSim(index.graph)", "ptg.explain(index, query, docno)"]
        return value(repr(self), sizes, calls=calls)

    def _query_weights(self, tuned: Mapping[str, float]) -> QueryWeights | None:
        """The weights per query, if the index has any, with the largest weights of a model where there is one."""
        about = self.flex.payload(return_dvecs=False, return_docnos=False)[0]["contextual"]
        try:
            if "weights" not in about.get("queries", {}):
                return None
            weights = {name: about["queries"]["weights"][name] for name in about["identity"]["relations"]}
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self!r} is damaged: its weights per query lack {error}") from error
        if tuned and [*tuned] != [*weights]:
            raise ValueError(f"{self!r} has the relations {', '.join(weights)}, the model has {', '.join(tuned)}")
        return QueryWeights(read_sample(self.path, weights), tuned or weights)

    def _check_passages(self, graph: HeteroGraph, changed: bool) -> None:
        docnos, _ = self.flex.payload(return_dvecs=False)
        try:
            graph.nodes_of(ids_of(docnos, some_of(len(self))))
        except KeyError as error:
            raise ValueError(f"{self!r} has passages that are not in {graph!r}: {error.args[0]}") from error
        if changed or len(graph.passage_nodes) != len(self):
            raise ValueError(f"{self!r} was made of another graph than {graph!r}: index(path) again")


def encoder_of(encoder: Any, *, device: str | None = None, dtype: DType = "auto") -> BiEncoder:
    """The bi-encoder that is given, or a :class:`~pyterrier_graph.DualEncoder` of that name; else a TypeError."""
    if isinstance(encoder, (str, os.PathLike)):
        return DualEncoder(encoder, device=device, dtype=dtype, verbose=False)
    if not hasattr(encoder, "encode_queries") or not hasattr(encoder, "encode_docs"):
        check_type("encoder", encoder, str, "the name of a checkpoint, or a bi-encoder such as ptg.DualEncoder(name)")
    return encoder


copyreg.pickle(FlexIndex, flex_index)  # PyTerrier's workers map the vectors again instead of receiving copies of them
