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
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from pyterrier_dr import BiEncoder, FlexIndex

from pyterrier_graph.checks import check_frame
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, precision
from pyterrier_graph.encoders.stored_vectors import VECTORS, base_vectors, encoder_name
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, encoder_of, write_index
from pyterrier_graph.graph_mean.equations import PassageNetwork
from pyterrier_graph.graph_mean.neighbors import NeighborSampler
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import OWN, QUERY_RELATIONS
from pyterrier_graph.storage.arrays import blocks, known_numbers_of
from pyterrier_graph.storage.artifact import stored_sha256, weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.model import LearnedModel

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

ENCODER, INITIAL_ENCODER = "encoder", "initial_encoder"  # folders in a saved model
QUERIES_AT_ONCE = 4096


@dataclass
class ContextualVectorizer:
    """Computes contextual vectors of passages, given their numbers. Query states are computed once and cached."""

    network: PassageNetwork
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
        {"graph", "query_graph", "vectors", "folder", "training", "device", "dtype", "verbose"}
    )

    network: Any
    initial_encoder: BiEncoder | None = None
    _cached_sampler: tuple[tuple[Any, ...], NeighborSampler] | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: str | os.PathLike[str] | BiEncoder,
        query_graph: QueryPassageGraph | None,
        vectors: FlexIndex | None,
        folder: str | os.PathLike[str] | None,
        device: str | None,
        dtype: DType,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.graph, self.query_graph = graph, query_graph
        self.vectors, self.folder = vectors, folder
        self.device, self.dtype, self.verbose = device, dtype, verbose
        if graph is not None and not isinstance(graph, HeteroGraph):
            raise TypeError(
                f"graph must be a DocumentGraph, such as ptg.DocumentGraph(path), got {graph!r:.60}"
            )
        is_name = isinstance(encoder, (str, os.PathLike))
        self._checkpoint = os.fspath(encoder) if is_name else None
        self.encoder: BiEncoder = encoder_of(encoder, device=device, dtype=dtype)
        self._dimension: int = np.shape(self.encoder.encode_queries(["dimension"]))[1]  # d

    def __getstate__(self) -> dict[str, Any]:
        # workers open the files again, and have temporary folders of their own
        return vars(self) | {"_cached_sampler": None, "_temporary": None}

    def _check(self) -> None:
        super()._check()
        if self.graph is None and self.query_graph is None and self.vectors is None:
            return  # enough to encode queries
        check_graphs(self.relations, self.graph, self.query_graph)
        if self.vectors is not None:
            self._check_vectors(self.vectors)

    def _check_vectors(self, index: FlexIndex) -> None:
        """Raises ValueError if an index does not have the encoder's own vectors of the graph's passages."""
        (meta,) = index.payload(return_docnos=False, return_dvecs=False)
        if "contextual" in meta:
            raise ValueError(
                f"{index!r} is a contextual index: give the encoder's own vectors, or none"
            )
        name = encoder_name(self.encoder)
        base = meta.get("base", {"encoder": name})  # pyterrier_dr does not name the encoder
        if base["encoder"] != name or meta["vec_size"] != self._dimension:
            raise ValueError(f"{index!r} has vectors of another encoder than {self.encoder!r}")
        self.sampler()

    @property
    def relations(self) -> Sequence[str]:
        """The relations that passages aggregate from."""
        return self.network.relations

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries for retrievers of a contextual index: adds ``query_vec`` to ``qid, query``."""
        return self.query_encoder().transform(check_frame(inp, self, texts=("query",)))

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
            ValueError: If unfinished work at the path is of another model or of other graphs.
        """
        self._warn_if_random()
        sampler = self.sampler(workers)
        sampler.encode(workers)  # before the progress bar of the index
        identity = self._identity(sampler) | {"dtype": dtype_name(self.dtype, self._device)}
        vectorizer = self.vectorizer()
        write_index(sampler.index, Path(path), vectorizer, identity=identity, verbose=self.verbose)
        return ContextualIndex(path, self.graph, self)

    def vectors_of(self, docnos: Sequence[str]) -> np.ndarray:
        """The contextual vectors of passages, float32 of shape (passages, d)."""
        return self.vectorizer()(known_numbers_of(self.sampler().docnos, docnos))

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Each source's share of the inner product of the query's and the passage's vectors.

        Args:
            query: The query.
            docno: The passage.
            graph: The graph that has the passage's text, for a model without a document graph.

        Returns:
            A row for the passage's own vector (relation ``'own'``), then a row per source, the highest score first:
            ``relation``, ``source`` (id of a query or node), ``text``, ``weight`` (attention, mean over heads: within a
            relation the weights add up to 1, with the passage's own where it has one; NaN for the passage itself),
            ``score``. The scores add up to the inner product.

        Raises:
            KeyError: If the passage is not in the index of vectors.
        """
        sampler, network = self.sampler(), self.vectorizer().network
        batch = sampler.sample(known_numbers_of(sampler.docnos, [docno])).to(self._device)
        with torch.inference_mode():
            own, terms, attention = network.parts(batch)
        vector = torch.as_tensor(self.encoder.encode_queries([query])[0]).to(own)  # (d,)
        rows: list[tuple[Any, ...]] = []
        for name in terms:
            ids, texts = sampler.texts_of_sources(batch, name)
            weights = attention[name].tolist()
            scores = (terms[name] @ vector).tolist()
            rows += [(name, *row) for row in zip(ids, texts, weights, scores, strict=True)]
        rows.sort(key=lambda row: -row[-1])
        graph = self.graph if graph is None else graph
        text = "" if graph is None else graph.texts(graph.nodes_of([docno]))[0]
        rows = [(OWN, docno, text, np.nan, float(own @ vector)), *rows]
        return pd.DataFrame(rows, columns=["relation", "source", "text", "weight", "score"])

    def sampler(self, workers: Workers = 1) -> NeighborSampler:
        """Returns what looks up neighborhoods for the model in its present state.

        The last sampler is kept, because it has the vectors of queries and titles.
        """
        inputs = self.vectors, self.query_graph, self.graph, self.initial_encoder
        names = encoder_name(self.encoder), *self.relations, str(self.folder)
        key = *names, *map(id, inputs)
        if self._cached_sampler is None or key != self._cached_sampler[0]:
            initial = None
            # joint training keeps the vectors of nodes in documents, and of passages that queries aggregate from
            in_documents = any(name not in QUERY_RELATIONS for name in self.relations)
            if self.initial_encoder is not None and (self.network.two_hops or in_documents):
                initial = self._new_sampler(self.initial_encoder, None, workers)
            sampler = self._new_sampler(self.encoder, self.vectors, workers, initial)
            self._cached_sampler = key, sampler
        return self._cached_sampler[1]

    def _new_sampler(
        self,
        encoder: BiEncoder,
        vectors: Any,
        workers: Workers,
        initial: NeighborSampler | None = None,
    ) -> NeighborSampler:
        folder = self._vectors_folder
        if vectors is None:
            if self.graph is None:
                raise ValueError(
                    "passages need vectors: give graph=DocumentGraph(path) or vectors=FlexIndex(path)"
                )
            vectors = base_vectors(
                folder,
                self.graph,
                encoder,
                titles=True,
                workers=workers,
                verbose=self.verbose,
            )
        return NeighborSampler(
            vectors,
            encoder,
            self.relations,
            self.graph,
            self.query_graph,
            two_hops=self.network.two_hops,
            edge_features=self.network.edge_features,
            initial=initial,
            folder=folder,
            verbose=self.verbose,
        )

    @property
    def _vectors_folder(self) -> Path:
        """Where vectors of passages, queries and titles are stored."""
        if self.folder:
            return Path(self.folder)
        for graph in (self.graph, self.query_graph):
            if graph is not None and graph.vectors_folder is not None:
                return graph.vectors_folder
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="vectors-", ignore_cleanup_errors=True
            )
        return Path(self._temporary.name)

    def vectorizer(self) -> ContextualVectorizer:
        """Computes contextual vectors with the network in its present state."""
        network: PassageNetwork = self.network.to(self._device).eval()
        return ContextualVectorizer(network, self.sampler(), self._device, self.dtype)

    def _digest(self) -> str:
        """SHA-256 of the network: its architecture and parameters."""
        about = json.dumps(self.network.about(), sort_keys=True)
        return weights_sha256(self.network, before=about)

    def _identity(self, sampler: NeighborSampler) -> dict[str, Any]:
        """Digests of everything that contextual vectors depend on."""
        identity: dict[str, Any] = {
            "model": type(self).__name__,
            "encoder": encoder_name(self.encoder),
            "relations": list(self.relations),
            "network": self._digest(),
            "vectors": stored_sha256(sampler.index.index_path / VECTORS),
        }
        if sampler.initial is not sampler:
            identity["initial vectors"] = stored_sha256(sampler.initial.index.index_path / VECTORS)
        if self.query_graph is not None and sampler.query_relations:
            identity["query_graph"] = self.query_graph.fingerprint()
        if self.graph is not None and sampler.document_relations:
            identity["graph"] = self.graph.fingerprint()
        return identity

    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the encoder, unless the name of its checkpoint is enough."""
        encoders = {INITIAL_ENCODER: self.initial_encoder}
        if self._checkpoint is None:
            encoders[ENCODER] = self.encoder
        for name, encoder in encoders.items():
            if isinstance(encoder, LearnedModel):
                copy.copy(encoder).save(folder / name)  # a copy, since saving changes its path
        return {"checkpoint": self._checkpoint, "encoder_name": encoder_name(self.encoder)}

    @classmethod
    def _read_encoder(
        cls, folder: Path, about: dict[str, Any], options: dict[str, Any]
    ) -> BiEncoder:
        """The saved encoder, or ``options["encoder"]``, which must have the same vectors."""
        encoder = options.get("encoder", about["checkpoint"])
        encoder = saved_encoder(folder / ENCODER, options) if encoder is None else encoder
        if encoder is None:
            raise ValueError(f"{about['encoder_name']} is not part of the artifact: give encoder=")
        encoder = encoder_of(encoder, **_hardware(options))
        if (name := encoder_name(encoder)) != about["encoder_name"]:
            raise ValueError(f"the encoder must be {about['encoder_name']}, got {name}")
        return encoder


def saved_encoder(folder: Path, options: dict[str, Any]) -> Any:
    """The encoder that was saved to a folder, with the hardware options of the model; None if there is none."""
    if not folder.exists():
        return None
    encoder: Any = pt.Artifact.load(str(folder))
    return encoder.apply_attributes(**_hardware(options))


def _hardware(options: dict[str, Any]) -> dict[str, Any]:
    return {"device": options.get("device"), "dtype": options.get("dtype", "auto")}
