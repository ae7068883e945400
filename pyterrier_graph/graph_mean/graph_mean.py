"""GraphMean, and its common part with GNNEncoder: from vectors of passages to contextual vectors and their index."""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.checks import (
    QualityWarning,
    View,
    check_choice,
    check_count,
    check_frame,
    check_training,
    check_type,
    check_weights,
)
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, precision
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.stored_vectors import (
    TITLED,
    VECTORS,
    WINDOWS,
    Mixed,
    Windows,
    base_vectors,
    encoder_name,
    further_windows,
    window_vectors,
)
from pyterrier_graph.graph_mean.contextual_index import (
    ContextualIndex,
    QueryWeights,
    Sample,
    draw_sample,
    encoder_of,
    query_vector,
    write_index,
)
from pyterrier_graph.graph_mean.equations import (
    FixedMean,
    PassageNetwork,
    SideBySide,
    isolated_share,
)
from pyterrier_graph.graph_mean.neighbors import NeighborBatch, NeighborSampler
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, vectors_folder
from pyterrier_graph.graphs.relations import (
    OWN,
    QUERY_RELATIONS,
    RELEVANT,
    RETRIEVED,
    TITLE,
    TITLES,
)
from pyterrier_graph.storage.arrays import Flex, blocks
from pyterrier_graph.storage.artifact import META, file_sha256, weights_sha256
from pyterrier_graph.storage.writer import Workers, check_workers
from pyterrier_graph.training.model import LearnedModel

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
    from pyterrier_graph.training.grid_search import Tuning

AUTO: Literal["auto"] = "auto"
Weights = Mapping[str, float] | Literal["auto"]
ENCODER = "encoder"  # folder of the encoder in a saved model
QUERIES_AT_ONCE = 4096


class ContextualEncoder(LearnedModel):
    """Makes vectors of passages that aggregate from their neighbors; the base of GraphMean and GNNEncoder.

    A subclass sets :attr:`network`, and calls :meth:`_check` at the end of its constructor. The arguments are those of
    :class:`~pyterrier_graph.GraphMean`.
    """

    GIVEN = ("graph", "query_graph")
    KEEP_WEIGHTS = frozenset(
        {"graph", "query_graph", "vectors", "folder", "training", "device", "dtype", "verbose"}
    )

    network: Any  # a PassageNetwork
    # of each relation, where each query has weights of its own
    largest_weights: Mapping[str, float] = MappingProxyType({})
    _last: tuple[tuple[Any, ...], NeighborSampler] | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None
    _drawn: tuple[NeighborSampler, Sample] | None = None
    _known_isolated: tuple[QueryPassageGraph, float] | None = None
    # memory-mapped files, temporary folders, and what is computed from these
    _of_this_process: ClassVar[tuple[str, ...]] = (
        "_last",
        "_temporary",
        "_drawn",
        "_known_isolated",
    )

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
        self.graph, self.query_graph, self.vectors, self.folder = (
            graph,
            query_graph,
            vectors,
            folder,
        )
        self.device, self.dtype, self.verbose = device, dtype, verbose
        self._check_given()
        self._checkpoint = os.fspath(encoder) if isinstance(encoder, (str, os.PathLike)) else None
        self.encoder: BiEncoder = encoder_of(encoder, device=device, dtype=dtype)
        self._dimension = int(np.asarray(self.encoder.encode_queries(["dimension"])).shape[1])  # d

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in self._of_this_process
        }

    def _check_given(self) -> None:
        """Raises TypeError or FileNotFoundError if graphs or vectors are something else."""
        if self.graph is not None:
            check_type(
                "graph",
                self.graph,
                HeteroGraph,
                "a DocumentGraph, such as ptg.DocumentGraph(path).index(docs)",
            )
        if self.query_graph is not None:
            from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

            expected = "a QueryPassageGraph, such as ptg.QueryPassageGraph(path)"
            check_type("query_graph", self.query_graph, QueryPassageGraph, expected)
        if self.vectors is not None:
            from pyterrier_dr import FlexIndex

            expected = "a FlexIndex of the encoder's vectors, such as pyterrier_dr.FlexIndex(path)"
            check_type("vectors", self.vectors, FlexIndex, expected)
            if not self.vectors.built():
                raise FileNotFoundError(f"no index at {str(self.vectors.index_path)!r}")

    def _check(self) -> None:
        super()._check()
        self._check_given()
        if self.graph is None and self.query_graph is None and self.vectors is None:
            return  # enough to encode queries
        check_graphs(self._relations, self.graph, self.query_graph)
        if self.vectors is not None:
            if "contextual" in json.loads(
                (self.vectors.index_path / META).read_text(encoding="utf-8")
            ):
                raise ValueError(
                    f"{self.vectors!r} is a contextual index: give the encoder's own vectors, or none"
                )
            vectors, meta = self.vectors.payload(return_docnos=False)
            other = "base" in meta and meta["base"]["encoder"] != encoder_name(self.encoder)
            if other or vectors.shape[1] != self.network.dimension:
                raise ValueError(
                    f"{self.vectors!r} has vectors of another encoder than {self.encoder!r}"
                )
            self._sampler()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries, for retrievers of a contextual index: adds ``query_vec`` to ``qid, query``."""
        return self.query_encoder().transform(check_frame(inp, self, texts=("query",)))

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries, for retrievers of a contextual index: ``query`` to ``query_vec``."""
        encode, weights = self.encoder.query_encoder(), self._query_weights
        return encode if weights is None else encode >> weights

    def index(
        self, path: str | os.PathLike[str], *, windows: int = WINDOWS, workers: Workers = 1
    ) -> ContextualIndex:
        """Writes the index of the contextual vectors of all passages; its ``flex`` is an ordinary ``FlexIndex``.

        Memory does not grow with the passages. Until the index is complete there is none; a call that was killed
        continues when it is repeated. After changes of documents or queries, build their graph and a new index with a
        new model: the encoder only reads texts that are new, the vectors of all others are copied from ``folder``.

        Args:
            path: Folder of the index; nothing may be there yet.
            windows: In how many windows a passage is read that is longer than the encoder's input, at most; the best
                one counts, and a warning reports passages with more. 1 reads only the beginning, as encoders of other
                packages always do; so do ``vectors`` that were given.
            workers: Number of processes, for encoding as well, or ``'ray'``, a cluster that encodes texts, and whose
                machines need no common files: see :mod:`~pyterrier_graph.storage.writer`.

        Raises:
            FileExistsError: If the path exists already.
            ValueError: If unfinished work at the path is of another model or of other graphs.
        """
        check_count("windows", windows)
        check_workers(workers)
        self._warn_if_random()
        sampler = self._sampler(workers)
        sampler.encode(workers)  # before the bar of the index
        compute, identity = self._compute(sampler), self._identity(sampler)
        if (graph := self.graph) is not None and self.vectors is None:
            options: dict[str, Any] = {"workers": workers, "verbose": self.verbose}
            compute.windows = window_vectors(
                self._place, graph, self.encoder, windows, share=self._share, **options
            )
            identity |= (
                {"windows": windows, "graph": graph.fingerprint()}
                if compute.windows is not None
                else {}
            )
        write_index(
            sampler.index,
            Flex(path),
            compute,
            identity=identity | {"dtype": dtype_name(self.dtype, self._device)},
            width=self.network.width,
            workers=workers,
            verbose=self.verbose,
            weights=self._query_weights,
            windows_of=None if compute.windows is None else compute.of_windows,
        )
        return ContextualIndex(path, self.graph, self)

    def vectors_of(self, docnos: Sequence[str]) -> np.ndarray:
        """The contextual vectors of passages, by their first windows: float32 of shape (passages, width)."""
        sampler = self._sampler()
        return self._compute(sampler)(sampler.known_numbers_of(docnos))

    def explain(
        self, query: str, docno: str, *, graph: HeteroGraph | None = None, windows: int = WINDOWS
    ) -> pd.DataFrame:
        """Each source's share of the inner product of the query's vector and the vector of the passage's best window.

        Args:
            query: The query.
            docno: The passage.
            graph: The graph that has the passage's text, for a model without a document graph.
            windows: As for :meth:`index`.

        Returns:
            A row for the passage's own vector (relation ``'own'``), then a row per source, the highest score first:
            ``relation``, ``source`` (id of a query or node), ``text``, ``weight`` (attention, mean over heads: within a
            relation the weights add up to 1, with the passage's own where it has one; NaN for the passage itself),
            ``score``. The scores add up to the inner product.

        Raises:
            KeyError: If the passage is not in the index of vectors.
        """
        sampler, device = self._sampler(), self._device
        network = self.network.to(device).eval()
        batch = sampler.sample(sampler.known_numbers_of([docno])).to(device)
        encoder = cast(Any, self.encoder)
        further: Any = ()
        if self.graph is not None and self.vectors is None and hasattr(encoder, "windows"):
            what, share = (self.graph, self.graph.nodes_of([docno]), encoder, windows), self._share
            further = encoder.encode_docs(further_windows(*what)[0])
            if share:
                further = Mixed(
                    further, encoder.encode_docs(further_windows(*what, titles=True)[0]), share
                )
        vector = torch.from_numpy(query_vector(self.query_encoder(), query)).to(device)  # (width,)
        with torch.inference_mode():
            batches = [
                batch,
                *(
                    replace(batch, passages=torch.from_numpy(own[None]).to(device))
                    for own in further
                ),
            ]
            batch = max(batches, key=lambda window: float(network(window)[0] @ vector))
            parts = network.parts(batch)
        graph = self.graph if graph is None else graph
        text = "" if graph is None else graph.texts(graph.nodes_of([docno]))[0]
        rows = [(OWN, docno, text, float("nan"), float(parts.own @ vector))]
        for relation, terms in parts.sources.items():
            if not len(terms):
                continue
            ids, texts = sampler.sources_of(batch, relation)
            found = (
                (ids, texts) if ids else ([docno], [text])
            )  # a passage without sources may be its own source
            scores = (terms @ vector).tolist()  # (edges,)
            rows += zip(
                [relation] * len(scores),
                *found,
                parts.weights[relation].tolist(),
                scores,
                strict=True,
            )
        frame = pd.DataFrame(rows, columns=["relation", "source", "text", "weight", "score"])
        order = frame["score"][1:].sort_values(ascending=False, kind="stable").index
        return frame.loc[[0, *order]].reset_index(drop=True)

    @property
    def _query_weights(self) -> QueryWeights | None:
        """Widens the vectors of queries, where each query has weights of its own."""
        network = self.network
        if not isinstance(network, SideBySide):
            return None
        sampler = self._sampler()
        if self._drawn is None or self._drawn[0] is not sampler:
            self._drawn = sampler, draw_sample(sampler, network)
        return QueryWeights(self._drawn[1], self.largest_weights)

    @property
    def _isolated(self) -> float:
        """Beta of :func:`isolated_share`, which is computed once for a query graph."""
        graph = self.query_graph
        if graph is None or RELEVANT not in graph.edge_types:
            return 1.0
        if self._known_isolated is None or self._known_isolated[0] is not graph:
            parts = blocks(graph.num_passages, QUERIES_AT_ONCE)
            lengths = [graph.edges_of_passages(part, RELEVANT).lengths for part in parts]
            self._known_isolated = graph, isolated_share(np.concatenate(lengths))
        return self._known_isolated[1]

    @property
    def _relations(self) -> Sequence[str]:
        """The relations that passages aggregate from."""
        return self.network.relations

    @property
    def _share(self) -> float:
        """The share of the vector that an encoder reads with titles in front, in the vector of a passage."""
        return 0.0 if self.vectors is not None else self.network.titled

    @property
    def _place(self) -> Path:
        """Where vectors of passages, queries and titles are kept."""
        if folder := self.folder or vectors_folder(self.graph) or vectors_folder(self.query_graph):
            return Path(folder)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="vectors-", ignore_cleanup_errors=True
            )
        return Path(self._temporary.name)

    def _sampler(self, workers: Workers = 1) -> NeighborSampler:
        """The sampler for the model as it is; the last one is kept, with the queries that it has encoded."""
        parts = (self.vectors, self.query_graph, self.graph)
        key = (
            encoder_name(self.encoder),
            self._share,
            *self._relations,
            str(self.folder),
            *map(id, parts),
        )
        if self._last is not None and key == self._last[0]:
            return self._last[1]
        index, titled = self.vectors, None
        if index is None:
            if self.graph is None:
                raise ValueError(
                    "passages need vectors: give graph=DocumentGraph(path) or vectors=FlexIndex(path)"
                )
            read = partial(
                base_vectors,
                self._place,
                self.graph,
                self.encoder,
                workers=workers,
                verbose=self.verbose,
            )
            index = read(titles=self._share == 1)
            titled = read(titles=True) if 0 < self._share < 1 else None
        sampler = NeighborSampler(
            index,
            self.encoder,
            self._relations,
            self.graph,
            self.query_graph,
            titled=titled,
            share=self._share,
            two_hops=self.network.two_hops,
            edge_features=self.network.edge_features,
            folder=self._place,
            verbose=self.verbose,
        )
        self._last = (key, sampler)
        return sampler

    def _compute(self, sampler: NeighborSampler) -> Computed:
        """Computes the contextual vectors of any passages."""
        return Computed(self.network.to(self._device).eval(), self._device, self.dtype, sampler)

    def _digest(self) -> str:
        """SHA-256 of the network: its shape and all of its numbers."""
        return weights_sha256(self.network, before=json.dumps(self.network.about(), sort_keys=True))

    def _identity(self, sampler: NeighborSampler) -> dict[str, Any]:
        """Digests of all that contextual vectors depend on."""
        identity: dict[str, Any] = {
            "model": type(self).__name__,
            "encoder": encoder_name(self.encoder),
        }
        identity |= {"relations": list(self._relations)}
        identity |= {
            "network": self._digest(),
            "vectors": file_sha256(sampler.index.index_path / VECTORS),
        }
        if sampler.titled is not None:
            identity["titled"] = file_sha256(sampler.titled.index_path / VECTORS)
        if self.query_graph is not None and QUERY_RELATIONS.keys() & {*self._relations}:
            identity["query_graph"] = self.query_graph.fingerprint()
        if self.graph is not None and {*self._relations} - QUERY_RELATIONS.keys():
            identity["graph"] = self.graph.fingerprint()
        return identity

    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the encoder, unless the name of its checkpoint is enough."""
        if self._checkpoint is None and isinstance(self.encoder, LearnedModel):
            copy.copy(self.encoder).save(folder / ENCODER)  # a copy, whose path may change
        return {"checkpoint": self._checkpoint, "encoder_name": encoder_name(self.encoder)}

    @classmethod
    def _read_encoder(
        cls, folder: Path, about: dict[str, Any], options: dict[str, Any]
    ) -> BiEncoder:
        """The encoder that was saved, or ``options["encoder"]``, which must have the same vectors."""
        encoder = options.get("encoder", about["checkpoint"])
        options = {"device": options.get("device"), "dtype": options.get("dtype", "auto")}
        if encoder is None and (folder / ENCODER).exists():
            encoder = cast(LearnedModel, pt.Artifact.load(str(folder / ENCODER))).apply_attributes(
                **options
            )
        if encoder is None:
            raise ValueError(f"{about['encoder_name']} is not part of the artifact: give encoder=")
        if encoder_name(made := encoder_of(encoder, **options)) != about["encoder_name"]:
            raise ValueError(
                f"the encoder must be {about['encoder_name']}, got {encoder_name(made)}"
            )
        return encoder


@dataclass
class Computed:
    """Passages, by number, to their contextual vectors; the states of queries are computed once in each process."""

    network: PassageNetwork
    device: torch.device
    dtype: DType
    sampler: NeighborSampler
    windows: Windows | None = None  # of the encoder

    def __getstate__(self) -> dict[str, Any]:
        sampler = copy.copy(self.sampler)
        sampler.encode()
        vars(sampler).pop("encoder")  # not needed any more
        return {name: value for name, value in vars(self).items() if name != "states"} | {
            "sampler": sampler
        }

    @cached_property
    def states(self) -> np.ndarray | None:
        """The states of all queries, shape (queries, d); None for networks in which queries do not aggregate."""
        sampler, network, device = self.sampler, self.network, self.device
        graph = sampler.query_graph
        if graph is None or not network.two_hops or not sampler.query_relations:
            return None
        states = sampler.query_vectors.copy()
        for part in blocks(len(states), QUERIES_AT_ONCE):
            passages, edges = sampler.passages_of_queries(part, graph)
            own = torch.from_numpy(states[part]).to(device)
            states[part] = (
                network.query_states(own, passages.to(device), edges.to(device))
                .float()
                .cpu()
                .numpy()
            )
        return states

    @torch.inference_mode()
    def apply(
        self,
        function: Callable[[NeighborBatch], Any],
        passages: np.ndarray,
        own: np.ndarray | None = None,
    ) -> Any:
        """Applies a function of the network to the neighborhood of passages, whose own vectors may be replaced."""
        batch = self.sampler.sample(passages, states=self.states)
        batch = batch if own is None else replace(batch, passages=torch.from_numpy(own))
        with precision(self.dtype, self.device):
            return function(batch.to(self.device))

    def __call__(self, passages: np.ndarray) -> np.ndarray:
        """Contextual vectors, float32 of shape (passages, width)."""
        return self.apply(self.network.forward, passages).float().cpu().numpy()

    def of_windows(self, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Per further window of passages, the position of its passage, and its vector with the passage's neighbors."""
        assert self.windows is not None
        position, own = self.windows.of(passages)
        states = [np.empty((0, self.network.width), np.float32)]
        for part in blocks(len(own), len(passages)):
            rows = self.apply(self.network.forward, passages[position[part]], own[part])
            states.append(rows.float().cpu().numpy())
        return position, np.concatenate(states)


def default_weights(
    graph: HeteroGraph | None, queries: QueryPassageGraph | None
) -> dict[str, float]:
    """The relations that the graphs have, with the fixed weights that they have by default."""
    weights = {}
    if graph is not None and TITLE in graph.relations and len(graph._adjacency(TITLE).indices):
        weights[TITLE] = 1.0
    if queries is not None:
        weights |= dict.fromkeys(
            [name for name in queries.edge_types if name != RETRIEVED] or [RETRIEVED], 0.5
        )
    if graph is not None and not weights:
        warnings.warn(
            f"{graph!r} has no titles: passages aggregate from nothing; give weights=",
            QualityWarning,
            stacklevel=5,
        )
    return weights


def largest_weights(
    graph: HeteroGraph | None, queries: QueryPassageGraph | None
) -> dict[str, float]:
    """The relations that the graphs have by default, where each query has weights of its own."""
    return dict.fromkeys(
        [TITLES if name == TITLE else name for name in default_weights(graph, queries)], 1.0
    )


class GraphMean(ContextualEncoder):
    """Adds to each passage's vector those of its neighbors: of its titles and relevant queries. Needs no training.

    ::

        index = ptg.GraphMean(graph).index("corpus.flex")
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    By default, each query decides how much each relation counts, from what it finds. The index has the vector of a
    passage, followed by what each relation adds to it, so that one search has a weight per query and relation: see
    :class:`~pyterrier_graph.graph_mean.equations.SideBySide` for the vectors, and
    :class:`~pyterrier_graph.graph_mean.contextual_index.QueryWeights` for the weights. The index is larger: with titles
    it has two vectors per passage, with relevant queries as well it has three.

    With fixed weights the vector of a passage is as large as the encoder's:
    ``normalize(x + sum over relations of weight * mean of the neighbors)``, see
    :class:`~pyterrier_graph.graph_mean.equations.FixedMean`. With retrieved queries this is what Liu et al. 2022 call
    "average". A :class:`~pyterrier_graph.GNNEncoder` starts as the mean with its weights.

    Args:
        graph: The document graph; None for passages without documents, which are given by ``vectors``.
        encoder: The name of a checkpoint, or a bi-encoder of pyterrier_dr, such as a
            :class:`~pyterrier_graph.DualEncoder`.
        weights: ``'auto'``, or fixed weights: the weight per relation of the document graph, or path of relations
            (``'title'``, ``'order'``, ``'title/title'``), and per relation of the query graph (``'relevant'``,
            ``'retrieved'``). With ``'auto'`` the relations are 'titles', all titles above a passage, and 'relevant' (or
            'retrieved' where no query has a relevant passage); relations that the graphs lack are left out.
        query_graph: The graph of training queries, for 'relevant' and 'retrieved'.
        vectors: The encoder's own vectors of the graph's passages. By default they are made from the graph's texts, and
            kept in ``folder``, so that the next model with the same encoder and graph finds them.
        folder: Where vectors of passages, queries and titles are kept. By default ``<graph path>.vectors``, the vectors
            of a :class:`~pyterrier_graph.GraphIndex` for its graph, and a temporary folder for a graph in memory.
            Graphs that share a folder share the vectors of equal passages.
        training: Options of :meth:`fit`.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding, see :mod:`~pyterrier_graph.encoders.checkpoints`.
        verbose: Whether to show progress.

    Attributes:
        largest_weights: With ``weights='auto'``, the weight of each relation for a query that matches its sources well.
        titled: As in :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`; to be set before an index is made.
        isolated_norm: With fixed weights, the length of the vector of a passage without a relevant query, where other
            passages have some; 1 unless :meth:`fit` finds a better one.

    Raises:
        ValueError: If a relation is not in the graphs, or ``vectors`` are of other passages or of another encoder.
    """

    schematic = {"label": "GraphMean", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "graph_mean"
    ARTIFACT_FORMAT = "json"
    WRITTEN = ()
    KEEP_WEIGHTS = ContextualEncoder.KEEP_WEIGHTS | {"weights"}

    isolated_norm: float

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        weights: Weights = AUTO,
        *,
        query_graph: QueryPassageGraph | None = None,
        vectors: FlexIndex | None = None,
        folder: str | os.PathLike[str] | None = None,
        training: Tuning | None = None,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, query_graph, vectors, folder, device, dtype, verbose)
        self.training, self.largest_weights, self.titled, self.isolated_norm = (
            training,
            {},
            TITLED,
            1.0,
        )
        self.weights = weights

    @property
    def weights(self) -> Weights:
        """Weight per relation, or ``'auto'``."""
        return self._weights

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._weights = weights
        self._check()

    @property
    def network(self) -> FixedMean | SideBySide:
        """The function that computes the vectors, with the present weights."""
        if self.weights == AUTO:
            return SideBySide(self.largest_weights, self._dimension, self._isolated, self.titled)
        return FixedMean(self.weights, self._dimension, self.isolated_norm)

    @property
    def fixed_weights(self) -> dict[str, float]:
        """The weights, or the default ones that take the place of ``'auto'`` in a network with fixed weights."""
        return (
            default_weights(self.graph, self.query_graph)
            if isinstance(self.weights, str)
            else dict(self.weights)
        )

    def _check(self) -> None:
        if self.training is not None:
            from pyterrier_graph.training.grid_search import Tuning

            check_training(self.training, Tuning)
        if isinstance(self.weights, str):
            check_choice("weights, unless they are numbers,", self.weights, [AUTO])
            self.isolated_norm = 1.0
            if (
                self.graph is not None or self.query_graph is not None
            ):  # another graph may have other relations
                names = largest_weights(self.graph, self.query_graph)
                self.largest_weights = {name: self.largest_weights.get(name, 1.0) for name in names}
        else:
            self._weights, self.largest_weights = check_weights(self.weights), {}
        super()._check()

    def __repr__(self) -> str:
        norm = "" if self.isolated_norm == 1 else f", isolated_norm={self.isolated_norm:g}"
        weights = (
            self.weights
            if isinstance(self.weights, str)
            else {n: round(w, 6) for n, w in self.weights.items()}
        )
        return f"GraphMean({self.graph!r}, {self.encoder!r}, {weights!r}{norm})"

    def _view(self) -> View:
        facts: dict[str, Any] = {"encoder": repr(self.encoder), "weights": self.weights}
        if self.weights == AUTO:
            facts["largest weights"] = self.largest_weights
        else:
            facts["isolated_norm"] = self.isolated_norm
        return View(facts)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Tunes the weights; nothing else is learned.

        A weight moves from its present value only as far as the queries support it: see
        :func:`~pyterrier_graph.training.grid_search.coordinate_search`. With ``weights='auto'`` the
        :attr:`largest_weights` move; they are not part of the vectors, so an index that was written before stays valid:
        ``ContextualIndex(path, graph, mean)`` opens it with the new weights. Fixed weights move together with
        ``isolated_norm``.

        So few numbers need few queries: the validation set is used where there is one, else the training set. Its
        queries should not be in the query graph, where the passages aggregate from them. Topics have ``qid, query``;
        judgments have ``qid, docno, label``, of passages, or of documents for all their passages.
        """
        from pyterrier_graph.graph_mean.tuning import tuned_largest_weights, tuned_weights
        from pyterrier_graph.training.grid_search import Tuning
        from pyterrier_graph.training.validation import tuning_set

        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        measure = (self.training or Tuning()).measure
        with self._recorded():
            if self.weights == AUTO:
                self.largest_weights = tuned_largest_weights(self, topics, qrels, measure)
            else:
                self._weights, self.isolated_norm = tuned_weights(self, topics, qrels, measure)
        return self

    def _write(self, folder: Path) -> dict[str, Any]:
        about = {
            "weights": self.weights,
            "largest_weights": self.largest_weights,
            "isolated_norm": self.isolated_norm,
        }
        return super()._write(folder) | about | {"titled": self.titled}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        given: dict[str, Any] = {"graph": None, "weights": about["weights"]}
        model = cls(**given | options | {"encoder": cls._read_encoder(folder, about, options)})
        model.largest_weights, model.isolated_norm = (
            about["largest_weights"],
            about["isolated_norm"],
        )
        model.titled = about.get("titled", TITLED)
        model._check()
        return model
