"""What GraphMean and GNNEncoder have in common: from the vectors of passages to contextual vectors and their index."""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from pyterrier_dr import FlexIndex

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.checks import check_count, check_type
from pyterrier_graph.encoders.devices import DType, device_of, dtype_name, precision
from pyterrier_graph.encoders.vector_files import VectorsOf, blocks
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, TITLE
from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig, PaperGNNEncoderConfig
from pyterrier_graph.models.neighbor_batch import NeighborBatch
from pyterrier_graph.models.side_by_side import SideBySideConfig
from pyterrier_graph.ranges.workers import Workers, check_workers
from pyterrier_graph.retrieve.contextual_index import ContextualIndex, encoder_of
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.index_identity import (
    QUERIES_AT_ONCE,
    changed_passages,
    encoder_name,
    query_digests,
    vector_space,
)
from pyterrier_graph.retrieve.index_writer import base_vectors, check_vectors, write_index
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler, check_graphs
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.warning_categories import QualityWarning

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

Config = PaperGNNEncoderConfig | GNNEncoderConfig | SideBySideConfig
CONFIG, ENCODER = "config.json", "encoder"
NUMBERS = ("weights", "isolated_norm")  # fields of a configuration that the network has as numbers of its own
EXPECTED: dict[str, tuple[type, str]] = {
    "graph": (HeteroGraph, "a DocumentGraph, such as ptg.DocumentGraph(path).index(docs)"),
    "query_graph": (QueryPassageGraph, "a QueryPassageGraph, such as ptg.QueryPassageGraph(path)"),
    "vectors": (FlexIndex, "a FlexIndex of the encoder's vectors, such as pyterrier_dr.FlexIndex(path)"),
}
Result = TypeVar("Result")


@dataclass
class _Computed(Generic[Result]):
    """A function of a network, for any passages; the states of queries are computed once in each process."""

    network: Any  # a PassageNetwork
    device: torch.device
    dtype: DType
    sampler: NeighborSampler
    function: Callable[[NeighborBatch], Result]

    def __getstate__(self) -> dict[str, Any]:
        sampler = copy.copy(self.sampler)
        sampler.encode()
        vars(sampler).pop("encoder")  # not needed any more
        return {name: value for name, value in vars(self).items() if name != "prepared"} | {"sampler": sampler}

    @cached_property
    def prepared(self) -> Any:
        sampler, network, device = self.sampler, self.network, self.device
        graph = sampler.query_graph
        if graph is None or not sampler.query_relations:
            return None
        states = torch.from_numpy(sampler.query_vectors)
        states = states.clone() if network.two_hops else states  # without a second hop they stay in their file
        for part in blocks(len(states) if network.two_hops else 0, QUERIES_AT_ONCE):
            passages, edges = sampler.passages_of_queries(part, graph)
            own = states[part].to(device)
            states[part] = network.query_states(own, passages.to(device), edges.to(device)).float().cpu()
        return network.prepare(dict.fromkeys(sampler.query_relations, states.to(device)))

    @torch.inference_mode()
    def __call__(self, passages: np.ndarray) -> Result:
        with precision(self.dtype, self.device):
            return self.function(self.sampler.sample(passages, prepared=self.prepared).to(self.device))


class ContextualEncoder(LearnedModel):
    """Makes vectors of passages that aggregate from their neighbors; the base of GraphMean and GNNEncoder.

    The arguments of the constructor are those of :class:`~pyterrier_graph.GraphMean`. The argument ``vectors`` is set
    by ``model.vectors = index``; ``model.vectors(docnos)`` computes vectors.
    """

    GIVEN = ("graph", "query_graph")
    KEEP_WEIGHTS = frozenset(
        {"graph", "query_graph", "vectors", "folder", "num_candidates", "device", "dtype", "verbose"}
    )

    encoder: BiEncoder
    query_model: DualEncoder | None = None
    graph: HeteroGraph | None
    query_graph: QueryPassageGraph | None
    network: Any  # a PassageNetwork
    folder: str | os.PathLike[str] | None
    num_candidates: int
    dtype: DType
    verbose: bool
    _vectors: FlexIndex | None
    _checkpoint: str | None
    _last: tuple[tuple[Any, ...], NeighborSampler] | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks arguments of the constructor, also when they are set later."""
        if name in EXPECTED and value is not None:
            check_type(name, value, *EXPECTED[name])
            if name == "vectors" and not value.built():
                raise FileNotFoundError(f"no index at {str(value.index_path)!r}")
        elif name == "num_candidates":
            check_count(name, value)
        elif name == "encoder":
            self._checkpoint = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
            value = encoder_of(value, device=self.device, dtype=self.dtype)
        super().__setattr__("_vectors" if name == "vectors" else name, value)

    def __getstate__(self) -> dict[str, Any]:
        # memory-mapped files and temporary folders stay with this process
        return {name: value for name, value in vars(self).items() if name not in ("_last", "_temporary", "_drawn")}

    def _set_up(self, graph: Any, encoder: Any, **options: Any) -> None:
        """Sets and checks what both models have; the arguments are those of the constructor."""
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        for name, value in {"graph": graph, **options, "encoder": encoder}.items():
            setattr(self, name, value)

    def _default_weights(self) -> dict[str, float]:
        """The relations that the graphs have, with the weights that they have by default."""
        weights = {}
        graph, queries = self.graph, self.query_graph
        if graph is not None and TITLE in graph.relations and len(graph.adjacency(TITLE).indices):
            weights[TITLE] = 1.0
        if queries is not None:
            weights[RELEVANT if RELEVANT in queries.edge_types else RETRIEVED] = 0.5
        if graph is not None and not weights:
            warnings.warn(
                f"{graph!r} has no titles: passages aggregate from nothing; give weights=", QualityWarning, stacklevel=4
            )
        return weights

    def _check_attributes(self) -> None:
        if self.graph is None and self.query_graph is None and self._vectors is None:
            return  # enough to encode queries
        check_graphs(self._relations, self.graph, self.query_graph)
        if self._vectors is not None:
            check_vectors(self._vectors, self.encoder, self.graph, self.network.dimension)
            self._sampler()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries, for retrievers of a contextual index: adds ``query_vec`` to ``qid, query``."""
        return self.query_encoder().transform(inp)

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries, for retrievers of a contextual index: ``query`` to ``query_vec``."""
        return (self.query_model or self.encoder).query_encoder()

    def index(
        self,
        path: str | os.PathLike[str],
        *,
        previous: ContextualIndex | FlexIndex | None = None,
        chunk_size: int = 16_384,
        workers: Workers = 1,
    ) -> ContextualIndex:
        """Writes the index of the contextual vectors of all passages; its ``flex`` is an ordinary ``FlexIndex``.

        Queries are computed once, then passages chunk by chunk: memory does not grow with the passages. Until the index
        is complete there is none; a call that was killed continues when it is repeated.

        To add, change or remove documents, index them all as a graph again (``DocumentGraph(path).index(docs,
        overwrite=True)``, or at another path with the same ``folder=`` for the model), and write a new index with a new
        model. The encoder only reads passages and titles that are new: the vectors of all others are copied from the
        folder. To add queries, add them to the query graph, and write a new index with ``previous=``.

        Args:
            path: Folder of the index; nothing may be there yet.
            previous: An index that the same model has written before queries were added to the query graph
                (``QueryPassageGraph.add``): only passages with edges to the new queries are computed, all others are
                copied. The queries that were there before, their texts and edges must be unchanged.
            chunk_size: Passages per chunk.
            workers: Number of processes, or ``'ray'``, for encoding as well: see
                :mod:`~pyterrier_graph.ranges.writer`.

        Raises:
            FileExistsError: If something lies at the path.
            ValueError: If ``previous``, or unfinished work, is of something else than this model and these graphs.
        """
        check_count("chunk_size", chunk_size)
        check_workers(workers)
        self._warn_if_random()
        sampler = self._sampler(workers)
        sampler.encode(workers)  # before the bar of the index
        identity = {"network": self._digest(), "vectors": sampler.vectors_sha256} | self._neighbors_identity()
        identity["dtype"] = dtype_name(self.dtype, self._device)
        changed = None
        if previous is not None:
            old = previous.flex if isinstance(previous, ContextualIndex) else previous
            check_type("previous", old, FlexIndex, "a ContextualIndex or its FlexIndex")
            changed = old, changed_passages(old, identity, self.query_graph, features=self.network.edge_features)
        flex, vectors_of = FlexIndex(str(path), verbose=False), self._vectors_of(sampler)
        options: dict[str, Any] = {"chunk_size": chunk_size, "verbose": self.verbose, "width": self.network.width}
        options["workers"] = workers
        options |= {"queries": self._query_options(), "files": self._query_files()}
        write_index(sampler.index, flex, vectors_of, identity=identity, previous=changed, **options)
        return ContextualIndex(path, self.graph, self)

    def _query_options(self) -> dict[str, Any]:
        """What encoding queries for an index depends on beside the encoder, for JSON."""
        return {}

    def _query_files(self) -> dict[str, bytes]:
        """Contents, by name, of the files of an index that encoding queries needs."""
        return {}

    def vectors(self, docnos: Sequence[str]) -> np.ndarray:
        """The contextual vectors of passages, as they stand in an index: float32 of shape (passages, width)."""
        sampler = self._sampler()
        return self._vectors_of(sampler)(sampler.known_numbers_of(docnos))

    def explain(self, docno: str) -> pd.DataFrame:
        """The sources that a passage aggregates from, and the weights of these sources.

        Returns:
            A row per source, the highest weight first: ``qid`` (of a query, or id of a node), ``query`` (its text),
            ``weight`` (attention, mean over heads: within a relation the weights add up to 1, with the passage's own),
            ``relation``, ``gate`` (the factor of the relation's sum, mean over dimensions).
        """
        sampler = self._sampler()
        batch = sampler.sample(sampler.known_numbers_of([docno]))
        with torch.inference_mode():
            attended = self.network.to(self._device).eval().attended(batch.to(self._device))
        parts = [pd.DataFrame(columns=["qid", "query", "weight", "relation", "gate"])]
        for relation, (weights, gate) in attended.items():
            ids, texts = sampler.sources_of(batch, relation)
            about = {"qid": ids, "query": texts, "weight": weights.cpu().numpy()}
            parts.append(pd.DataFrame(about | {"relation": relation, "gate": float(gate.detach())}))
        found = pd.concat(parts[1:] or parts)
        return found.sort_values("weight", ascending=False, kind="stable").reset_index(drop=True)

    @property
    def _relations(self) -> Sequence[str]:
        """The relations that passages aggregate from."""
        return self.network.relations

    @property
    def config(self) -> Config:
        """The configuration of the network, with the weights that it started with."""
        return self.network.config

    @property
    def _device(self) -> torch.device:
        return device_of(self.device)

    @property
    def _dimension(self) -> int:
        """d, of the encoder's vectors."""
        if self._vectors is not None:
            return self._vectors.payload(return_docnos=False)[0].shape[1]
        return int(np.asarray(self.encoder.encode_queries(["dimension"])).shape[1])

    @property
    def _folder(self) -> Path:
        """Where vectors of passages, queries and titles are kept."""
        graphs: list[Any] = [self.graph, self.query_graph]
        place = next((graph.path for graph in graphs if getattr(graph, "path", None)), None)
        if self.folder is not None or place is not None:
            return Path(f"{place}.vectors" if self.folder is None else self.folder)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="vectors-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)

    def _base(self, workers: Workers = 1) -> FlexIndex:
        """The encoder's own vectors of the passages: those given, or made from the graph's texts."""
        if self._vectors is not None:
            return self._vectors
        if self.graph is None:
            raise ValueError(
                "the passages' vectors are needed: give graph=DocumentGraph(path) or vectors=FlexIndex(path)"
            )
        return base_vectors(self._folder, self.graph, self.encoder, workers=workers, verbose=self.verbose)

    def _sampler(self, workers: Workers = 1) -> NeighborSampler:
        """The sampler for the model as it is; the last one is kept, with the queries that it has encoded."""
        parts = (self._vectors, self.query_graph, self.graph)
        key = (encoder_name(self.encoder), *self._relations, str(self.folder), *map(id, parts))
        if self._last is not None and key == self._last[0]:
            return self._last[1]
        options = {"network": self.network, "folder": self._folder, "verbose": self.verbose}
        sampler = NeighborSampler(
            self._base(workers), self.encoder, self._relations, self.graph, self.query_graph, **options
        )
        self._last = (key, sampler)
        return sampler

    def _vectors_of(self, sampler: NeighborSampler) -> VectorsOf:
        """Computes any passages; the states of queries are computed at once."""
        states_of = self._computed(sampler, self.network.forward)
        return lambda passages: states_of(passages).float().cpu().numpy()

    def _computed(
        self, sampler: NeighborSampler, function: Callable[[NeighborBatch], Result]
    ) -> Callable[[np.ndarray], Result]:
        """Gives a function of the network the neighborhoods of any passages."""
        return _Computed(self.network.to(self._device).eval(), self._device, self.dtype, sampler, function)

    def _digest(self) -> str:
        """SHA-256 of the network: its shape and all of its numbers."""
        shape = {name: value for name, value in asdict(self.network.config).items() if name not in NUMBERS}
        return weights_sha256(self.network, before=json.dumps(shape, sort_keys=True))

    def _neighbors_identity(self) -> dict[str, Any]:
        """Digests of all that vectors depend on beside the network and the passages' own vectors."""
        identity: dict[str, Any] = {"encoder": vector_space(self.encoder), "relations": list(self._relations)}
        queries = [name for name in self._relations if name in (RETRIEVED, RELEVANT)]
        if self.query_graph is not None and queries:
            identity["queries"] = count = self.query_graph.num_queries
            features = self.network.edge_features
            identity["query_graph"] = query_digests(self.query_graph, queries, count, features=features)
        if self.graph is not None and len(queries) < len(self._relations):
            identity["graph"] = self.graph.fingerprint()
        return identity

    def _write(self, folder: Path) -> dict[str, Any]:
        # a mean's own configuration has its present weights, but it is always that of a network with fixed weights
        config = self.network.config if isinstance(self.network.config, SideBySideConfig) else self.config
        about = {"kind": type(config).__name__, "dimension": self.network.dimension}
        (folder / CONFIG).write_text(json.dumps({**about, "config": asdict(config)}, indent=1), encoding="utf-8")
        if self._checkpoint is None and isinstance(self.encoder, DualEncoder):
            copy.copy(self.encoder).save(folder / ENCODER)  # a copy, whose path may change
        return {"checkpoint": self._checkpoint, "encoder_space": vector_space(self.encoder)}

    @classmethod
    def _read_parts(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Options of the constructor, with the configuration and the encoder that were saved."""
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kinds: dict[str, Any] = {kind.__name__: kind for kind in get_args(Config)}
        config = kinds[saved["kind"]](**saved["config"])
        device, dtype = options.get("device"), options.get("dtype", "auto")
        if "encoder" not in options:
            if (folder / ENCODER).exists():
                options["encoder"] = DualEncoder.load(folder / ENCODER, device=device, dtype=dtype)
            elif (checkpoint := about["checkpoint"]) is None:
                raise ValueError(f"{about['encoder_space']} is not part of the artifact: give encoder=")
            else:
                options["encoder"] = checkpoint
        encoder = encoder_of(options["encoder"], device=device, dtype=dtype)
        if vector_space(encoder) != about["encoder_space"]:
            raise ValueError(f"the encoder must be {about['encoder_space']}, got {vector_space(encoder)}")
        return options | {"config": config}
