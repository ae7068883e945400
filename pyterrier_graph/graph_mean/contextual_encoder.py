"""The base of GraphMean and GNNEncoder: from vectors of passages to contextual vectors and their index."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from pyterrier_dr import BiEncoder

from pyterrier_graph.checks import check_frame
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, precision
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import (
    EXPLANATION,
    ContextualIndex,
    encoder_of,
    own_row,
    write_index,
)
from pyterrier_graph.graph_mean.neighbors import NeighborSampler, relations_of
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.storage.arrays import blocks, known_numbers_of
from pyterrier_graph.storage.artifact import weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.model import LearnedModel

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

# folders in a saved model
ENCODER = "encoder"
INITIAL_ENCODER = "initial_encoder"
QUERIES_AT_ONCE = 4096


@dataclass
class ContextualVectorizer:
    """Computes contextual vectors of passages, given their numbers. Query states are computed once and cached."""

    network: Any  # a PassageNetwork
    sampler: NeighborSampler
    device: torch.device
    dtype: DType

    @cached_property
    @torch.inference_mode()
    def query_states(self) -> np.ndarray | None:
        """States of all queries, shape (queries, d); None if queries do not aggregate."""
        sampler = self.sampler
        if not self.network.two_hops or not sampler.query_relations:
            return None
        states = sampler.query_vectors.copy()
        for queries in blocks(len(states), QUERIES_AT_ONCE):
            batch = sampler.sample_queries(queries).to(self.device)
            new = self.network.query_states(batch)
            states[queries] = new.float().cpu().numpy()
        return states

    @torch.inference_mode()
    def apply(self, function: Callable[[HeteroData], Any], passages: np.ndarray) -> Any:
        """Applies a function of the network to the neighborhood of the passages with these numbers."""
        batch = self.sampler.sample(passages, states=self.query_states)
        with precision(self.dtype, self.device):
            return function(batch.to(self.device))

    def __call__(self, passages: np.ndarray) -> np.ndarray:
        """Contextual vectors, float32 of shape (passages, d)."""
        vectors = self.apply(self.network.forward, passages)
        return vectors.float().cpu().numpy()


class ContextualEncoder(LearnedModel):
    """Makes vectors of passages that aggregate from their neighbors.

    A subclass sets :attr:`network`, and calls :meth:`_check` at the end of its constructor. The arguments are those of
    :class:`~pyterrier_graph.GraphMean`.

    Attributes:
        network: Computes the contextual vectors.
        initial_encoder: After joint training, the encoder before it, whose vectors of passages are kept in Eq. 6 of
            Liu et al. 2022; else None.
    """

    KEEP_WEIGHTS = frozenset(
        {"graph", "query_graph", "folder", "training", "device", "dtype", "verbose"}
    )

    network: Any
    initial_encoder: BiEncoder | None = None
    _sampler: NeighborSampler | None = None

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: str | os.PathLike[str] | BiEncoder,
        query_graph: QueryPassageGraph | None,
        folder: str | os.PathLike[str] | None,
        device: str | None,
        dtype: DType,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.graph: Any = graph
        self.query_graph = query_graph
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self.verbose = verbose
        is_name = isinstance(encoder, (str, os.PathLike))
        self._checkpoint = os.fspath(encoder) if is_name else None
        self.encoder: BiEncoder = encoder_of(encoder, device=device, dtype=dtype)
        (vector,) = self.encoder.encode_queries(["dimension"])
        self._dimension = len(vector)  # d

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_sampler":
            self._sampler = None  # it may be of the former encoder, graph or network

    def __getstate__(self) -> dict[str, Any]:
        # copies and workers open the files again, and have temporary folders of their own
        state = vars(self) | {"_sampler": None}
        state.pop("_temporary_folder", None)
        return state

    def _check(self) -> None:
        super()._check()
        if self.graph is not None:  # else the model can only encode queries
            check_graphs(self.relations, self.graph, self.query_graph)

    @property
    def relations(self) -> Sequence[str]:
        """The relations that passages aggregate from."""
        return self.network.relations

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries for retrievers of a contextual index: adds ``query_vec`` to ``qid, query``."""
        topics = check_frame(inp, self, texts=("query",))
        return self.query_encoder().transform(topics)

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries for retrievers of a contextual index: ``query`` to ``query_vec``."""
        return self.encoder.query_encoder()

    def index(self, path: str | os.PathLike[str], *, workers: Workers = 1) -> ContextualIndex:
        """Writes the contextual vectors of all passages as an ordinary ``FlexIndex``.

        Until the index is complete there is none; a call that was killed continues when it is repeated. Memory does not
        grow with the passages. After changes of documents or queries, build their graph and a new index with a new
        model: only new texts are encoded, all other vectors are copied from ``folder``.

        Args:
            path: Folder of the index; nothing may be there yet.
            workers: Number of processes, for encoding as well, or ``'ray'``, a cluster that encodes texts, and whose
                machines need no common files: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            FileExistsError: If the path exists already.
            ValueError: If the model has no document graph.
        """
        self._warn_if_random()
        sampler = self.sampler(workers)
        sampler.encode()  # before the progress bar of the index
        identity = self._identity()
        identity["dtype"] = dtype_name(self.dtype, self._device)
        vectorizer = self.vectorizer()
        write_index(sampler.index, Path(path), vectorizer, identity=identity, verbose=self.verbose)
        return ContextualIndex(path, self.graph, self)

    def vectors_of(self, docnos: Sequence[str]) -> np.ndarray:
        """The contextual vectors of passages, float32 of shape (passages, d)."""
        passages = known_numbers_of(self.sampler().docnos, docnos)
        vectorizer = self.vectorizer()
        return vectorizer(passages)

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Each source's share of the inner product of the query's and the passage's vectors.

        Args:
            query: The query.
            docno: The passage.
            graph: The graph that has the passage's text; by default the model's.

        Returns:
            A row for the passage's own vector (relation ``'own'``), then a row per source, the highest score first:
            ``relation``, ``source`` (id of a query or node), ``text``, ``weight`` (attention, mean over heads: within a
            relation the weights add up to 1, with the passage's own where it has one; NaN for the passage itself),
            ``score``. The scores add up to the inner product.

        Raises:
            KeyError: If the passage is not in the graph.
        """
        sampler = self.sampler()
        network = self.vectorizer().network
        passage = known_numbers_of(sampler.docnos, [docno])
        batch = sampler.sample(passage).to(self._device)
        with torch.inference_mode():
            own, terms, attention = network.parts(batch)
        (vector,) = self.encoder.encode_queries([query])
        vector = torch.as_tensor(vector).to(own)  # (d,)
        rows: list[tuple[Any, ...]] = []
        for name in relations_of(batch):
            ids, texts = sampler.texts_of_sources(batch, name)
            weights = attention[name].tolist()
            scores = (terms[name] @ vector).tolist()
            for row in zip(ids, texts, weights, scores, strict=True):
                rows.append((name, *row))
        rows.sort(key=lambda row: -row[-1])  # by score
        own_score = float(own @ vector)
        first = own_row(docno, graph or self.graph, own_score)
        return pd.DataFrame([first, *rows], columns=EXPLANATION)

    def sampler(self, workers: Workers = 1) -> NeighborSampler:
        """Returns what looks up neighborhoods for the model in its present state.

        It is kept until an attribute of the model is set, because it has the vectors of queries and titles.
        """
        if self.graph is None:
            raise ValueError(f"{self!r} needs graph=DocumentGraph(path), which has the passages")
        if self._sampler is None:
            graphs = self.graph, self.query_graph
            options = {
                "relations": self.relations,
                "network": self.network,
                "folder": self._vectors_folder,
                "workers": workers,
                "verbose": self.verbose,
            }
            initial = None
            if self.initial_encoder is not None:
                initial = NeighborSampler(self.initial_encoder, *graphs, **options)
            self._sampler = NeighborSampler(self.encoder, *graphs, **options, initial=initial)
        return self._sampler

    @property
    def _vectors_folder(self) -> Path:
        """Where vectors of passages, queries and titles are stored."""
        folder = self.folder or self.graph.vectors_folder
        if folder is None:
            folder = self._temporary_folder.name
        return Path(folder)

    @cached_property
    def _temporary_folder(self) -> tempfile.TemporaryDirectory[str]:
        """For a graph in memory."""
        return tempfile.TemporaryDirectory(prefix="vectors-", ignore_cleanup_errors=True)

    def vectorizer(self) -> ContextualVectorizer:
        """Computes contextual vectors with the network in its present state."""
        network = self.network.to(self._device).eval()
        return ContextualVectorizer(network, self.sampler(), self._device, self.dtype)

    def _digest(self) -> str:
        """SHA-256 of the network: its architecture and parameters."""
        about = json.dumps(self.network.about(), sort_keys=True)
        return weights_sha256(self.network, before=about)

    def _identity(self) -> dict[str, Any]:
        """Digests of everything that contextual vectors depend on."""
        identity: dict[str, Any] = {
            "model": type(self).__name__,
            "encoder": encoder_name(self.encoder),
            "relations": list(self.relations),
            "network": self._digest(),
            "graph": self.graph.fingerprint(),
        }
        if self.initial_encoder is not None:
            identity["initial encoder"] = encoder_name(self.initial_encoder)
        if self.query_graph is not None:
            identity["query_graph"] = self.query_graph.fingerprint()
        return identity

    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the encoder, unless the name of its checkpoint is enough, and the one before joint training."""
        models = {INITIAL_ENCODER: self.initial_encoder}
        if self._checkpoint is None:
            models[ENCODER] = self.encoder
        for name, model in models.items():
            if isinstance(model, LearnedModel):
                copy.copy(model).save(folder / name)  # a copy, since saving changes its path
        return {"checkpoint": self._checkpoint, "encoder_name": encoder_name(self.encoder)}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes the model with the saved encoder, or with ``options["encoder"]``, which must have the same vectors."""
        hardware = {name: options[name] for name in ("device", "dtype") if name in options}

        def saved(name: str) -> Any:
            """The encoder in a folder of the model, if there is one."""
            if not (folder / name).exists():
                return None
            encoder: Any = pt.Artifact.load(str(folder / name))
            return encoder.apply_attributes(**hardware)

        encoder = options.get("encoder") or about["checkpoint"] or saved(ENCODER)
        encoder = encoder_of(encoder, **hardware)
        name = encoder_name(encoder)
        if name != about["encoder_name"]:
            raise ValueError(f"the model needs encoder={about['encoder_name']}, got {name}")
        model = cls(**options | {"encoder": encoder})
        model.initial_encoder = saved(INITIAL_ENCODER)
        return model
