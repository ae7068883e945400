"""Token vectors of a graph's nodes in float16: all of them on disk, or those that were needed so far in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Self

import numpy as np
import pyterrier as pt
import torch

from pyterrier_graph.checks import WithSignature
from pyterrier_graph.encoders.checkpoints import dtype_name
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import (
    TokenEncoder,
    TokenStates,
    open_encoder,
)
from pyterrier_graph.graphs.csr import offsets, ranges
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.storage.arrays import read_array
from pyterrier_graph.storage.artifact import BuiltArtifact, atomic_folder, kind_of
from pyterrier_graph.storage.shards import ShardWriter, Workers

NODES_AT_ONCE = 512
TOKENS = "tokens.f2"
OFFSETS = "offsets.i8"


class TokenStore(WithSignature, BuiltArtifact):
    """Token vectors of a graph's nodes, encoded once and memory-mapped, in float16.

    Args:
        path: Folder of the store, which :meth:`build` writes.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "token_store"
    ARTIFACT_FORMAT = "passage_graph"

    def build(
        self,
        graph: HeteroGraph,
        encoder: Any = DEFAULT,
        *,
        titles: bool = False,
        workers: Workers = 1,
    ) -> Self:
        """Encodes all nodes of a graph.

        An interrupted call continues when it is repeated, with any number of workers.

        Args:
            graph: The graph with the passages and section titles.
            encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name or folder of a
                checkpoint.
            titles: Whether a passage is preceded by the titles of its sections ("title - section: passage").
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            FileExistsError: If there is something at the path.
        """
        encoder = open_encoder(encoder)
        origin = {
            "encoder": encoder.name,
            "encoder_sha256": encoder.fingerprint(),
            "graph_sha256": graph.fingerprint(),
            "titles": titles,
            "batch_size": encoder.batch_size,
            "dtype": dtype_name(encoder.dtype, encoder.network.device),
        }
        return self.write(
            encoder.encode_passages,
            graph.num_nodes,
            encoder.dimension,
            origin,
            read=partial(graph.texts, titles=titles),
            workers=workers,
        )

    def write(
        self,
        states: Callable[[Any], TokenStates],
        nodes: int,
        dimension: int,
        origin: dict[str, Any],
        *,
        read: Callable[[np.ndarray], Any] = lambda nodes: nodes,
        task: str = "encoding",
        workers: Workers = 1,
    ) -> Self:
        """Writes the vectors of all nodes.

        Args:
            states: Computes the vectors of some nodes, from what ``read`` returns.
            nodes: Number of nodes.
            dimension: Length of a vector.
            origin: What the vectors depend on, for ``pt_meta.json``; a repeated call must have the same.
            read: Nodes to the input of ``states``; called in this process. By default the nodes.
            task: Name of the progress bar.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.
        """
        meta = kind_of(self) | {"nodes": nodes, "dimension": dimension} | origin

        def arrays(batch: Any) -> dict[str, np.ndarray]:
            packed = states(batch)
            values = packed.values.detach().to("cpu", torch.float16).numpy()
            return {TOKENS: values, OFFSETS: packed.lengths.cpu().numpy()}

        with atomic_folder(self.path, meta) as folder:
            shards = ShardWriter(folder.parent, nodes, NODES_AT_ONCE, meta)
            shards.compute(
                arrays,
                read=read,
                workers=workers,
                desc=task,
                unit="node",
                delay=1,
                disable=not self.verbose,
            )
            shards.concatenate(folder, [TOKENS], lengths=[OFFSETS])
        return self

    @property
    def dimension(self) -> int:
        """Length of a token vector."""
        return self.meta["dimension"]

    def check(self, encoder: TokenEncoder, graph: HeteroGraph) -> None:
        """Raises ValueError unless this encoder has encoded the vectors, and this graph has their texts."""
        digests = {
            "encoder_sha256": encoder.fingerprint(),
            "graph_sha256": graph.fingerprint(),
        }
        is_same = digests.items() <= self.meta.items()
        if not is_same:
            raise ValueError(
                f"{self!r} was not built with {encoder!r} and {graph!r}: build it again"
            )

    def states(
        self,
        nodes: np.ndarray,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> TokenStates:
        """Token vectors of some nodes."""
        starts = self._offsets[nodes]
        lengths = self._offsets[nodes + 1] - starts
        bounds, rows = ranges(starts, lengths)
        values = np.take(self._tokens, rows, axis=0)
        states = TokenStates(torch.from_numpy(values), torch.from_numpy(bounds))
        return states.to(device).to(dtype)  # moved before they become larger

    @cached_property
    def _tokens(self) -> np.ndarray:
        """Stored vectors: shape (tokens, d), memory-mapped."""
        tokens = read_array(self.folder, "tokens")
        return tokens.reshape(-1, self.dimension)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return read_array(self.folder, "offsets")


class GraphTokens:
    """Token vectors of a graph's nodes, encoded on first use and kept in memory, in float16.

    Encoders with the same weights, lengths and precision share them until the process ends.

    Args:
        graph: The graph.
        encoder: The encoder.
        titles: Whether a passage is preceded by the titles of its sections.
        shared: Whether other objects use the same vectors; not while the encoder learns.
        verbose: Whether to show progress.
    """

    def __init__(
        self,
        graph: HeteroGraph,
        encoder: TokenEncoder,
        *,
        titles: bool,
        shared: bool = True,
        verbose: bool = True,
    ) -> None:
        self.graph = graph
        self.encoder = encoder
        self.titles = titles
        self.verbose = verbose
        self._matrices: dict[str, np.ndarray] = {}  # by text, shape (tokens, d)
        if shared:
            dtype = dtype_name(encoder.dtype, encoder.network.device)
            self._matrices = _shared_matrices(encoder.fingerprint(), dtype)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_matrices": {}}  # worker processes encode what they need

    def states(
        self,
        nodes: np.ndarray,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> TokenStates:
        """Token vectors of some nodes."""
        texts = self.texts(nodes)
        new = [text for text in dict.fromkeys(texts) if text not in self._matrices]
        self._encode(new)
        matrices = [self._matrices[text] for text in texts]
        empty = np.empty((0, self.encoder.dimension), np.float16)  # without nodes
        values = np.concatenate([empty, *matrices])
        lengths = [len(matrix) for matrix in matrices]
        bounds = offsets(np.array(lengths, dtype=np.int64))
        states = TokenStates(torch.from_numpy(values), torch.from_numpy(bounds))
        return states.to(device).to(dtype)  # moved before they become larger

    def texts(self, nodes: np.ndarray) -> list[str]:
        """The texts that are encoded."""
        return self.graph.texts(nodes, titles=self.titles)

    def _encode(self, texts: Sequence[str]) -> None:
        """Adds the token vectors of texts."""
        starts = range(0, len(texts), NODES_AT_ONCE)
        bar = pt.tqdm(starts, desc="encoding", delay=1, leave=None, disable=not self.verbose)
        for start in bar:
            batch = texts[start : start + NODES_AT_ONCE]
            states = self.encoder.encode_passages(batch).to("cpu", torch.float16)
            bounds = states.offsets[1:-1]  # between the texts
            matrices = np.split(states.values.numpy(), bounds.numpy())
            self._matrices.update(zip(batch, matrices, strict=True))


@lru_cache(maxsize=4)
def _shared_matrices(encoder_sha256: str, dtype: str) -> dict[str, np.ndarray]:
    """The token vectors of texts by encoders that are equal."""
    return {}
