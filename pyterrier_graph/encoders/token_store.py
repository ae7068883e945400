"""Token vectors of a graph's nodes in float16: all of them on disk, or those that were needed so far in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import pyterrier as pt
import torch

from pyterrier_graph.checks import SpeedWarning, WithSignature
from pyterrier_graph.encoders.checkpoints import dtype_name
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import (
    TokenEncoder,
    TokenStates,
    open_encoder,
)
from pyterrier_graph.graphs.csr import offsets, ranges
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.storage.arrays import blocks, read_array
from pyterrier_graph.storage.artifact import BuiltArtifact, atomic_folder, kind_of
from pyterrier_graph.storage.shards import ShardWriter, Workers

NODES_AT_ONCE = 512
MANY_TEXTS = 256  # texts whose encoding is worth a warning
TOKENS, OFFSETS = "tokens.f2", "offsets.i8"


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
        origin = {"encoder": encoder.name, "encoder_sha256": encoder.fingerprint()}
        origin |= {"graph_sha256": graph.fingerprint(), "titles": titles}
        origin["dtype"] = dtype_name(encoder.dtype, encoder.network.device)

        def texts(nodes: np.ndarray) -> list[str]:
            return graph.texts(nodes, titles=titles)

        return self.write(
            encoder.encode_passages,
            graph.num_nodes,
            encoder.dimension,
            origin,
            read=texts,
            identity={"batch_size": encoder.batch_size},
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
        identity: Mapping[str, Any] | None = None,
        task: str = "encoding",
        workers: Workers = 1,
    ) -> Self:
        """Writes the vectors of all nodes.

        Args:
            states: Computes the vectors of some nodes, from what ``read`` returns.
            nodes: Number of nodes.
            dimension: Length of a vector.
            origin: What the vectors depend on, for ``pt_meta.json``.
            read: Nodes to the input of ``states``; called in this process. By default the nodes.
            identity: What else the vectors depend on, which an interrupted call compares when it is repeated.
            task: Name of the progress bar.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.
        """
        meta = kind_of(self) | {"nodes": nodes, "dimension": dimension} | origin
        inputs = meta | dict(identity or {})

        def arrays(batch: Any) -> dict[str, np.ndarray]:
            packed = states(batch)
            values = packed.values.detach().to("cpu", torch.float16).numpy()
            return {TOKENS: values, OFFSETS: packed.lengths.cpu().numpy()}

        progress: dict[str, Any] = {"desc": task, "unit": "node", "delay": 1}
        with atomic_folder(self.path, meta) as folder:
            shards = ShardWriter(folder.parent, nodes, NODES_AT_ONCE, inputs)
            shards.compute(arrays, read=read, workers=workers, disable=not self.verbose, **progress)
            shards.concatenate(folder, [TOKENS], lengths=[OFFSETS])
            meta["tokens"] = int(np.fromfile(folder / OFFSETS, "<i8", offset=8 * nodes)[0])
        return self

    @property
    def dimension(self) -> int:
        """Length of a token vector."""
        return self.meta["dimension"]

    def __len__(self) -> int:
        return self.meta["nodes"]

    def check(self, encoder: TokenEncoder, graph: HeteroGraph) -> None:
        """Raises ValueError unless this encoder has encoded the vectors, and this graph has their texts."""
        if self.meta.get("encoder_sha256") != encoder.fingerprint():
            other = f"{self.meta.get('encoder')!r} with other weights or lengths than {encoder!r}"
            raise ValueError(
                f"{self!r} holds vectors of {other}: build the store again with this encoder"
            )
        if self.meta.get("graph_sha256") != graph.fingerprint():
            raise ValueError(
                f"{self!r} holds vectors of other texts than those of {graph!r}: build it again"
            )

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """Token vectors of some nodes, in float32."""
        return self.stored_states(nodes, device).to(torch.float32)

    def stored_states(self, nodes: np.ndarray, device: torch.device | str) -> TokenStates:
        """As :meth:`states`, in float16."""
        starts = self._offsets[nodes]
        bounds, rows = ranges(starts, self._offsets[np.asarray(nodes) + 1] - starts)
        values = torch.from_numpy(np.take(self._tokens, rows, axis=0)).to(device)
        return TokenStates(values, torch.from_numpy(bounds).to(device))

    @cached_property
    def _tokens(self) -> np.ndarray:
        """Stored vectors: shape (tokens, d), memory-mapped."""
        shape = self.meta["tokens"], self.dimension
        if not shape[0]:  # an empty file cannot be mapped
            return np.zeros(shape, dtype="<f2")
        return np.asarray(
            self._open(
                lambda folder: np.memmap(folder / TOKENS, dtype="<f2", mode="r", shape=shape)
            )
        )

    @cached_property
    def _offsets(self) -> np.ndarray:
        return self._open(lambda folder: read_array(folder, "offsets"))


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
        self.graph, self.encoder = graph, encoder
        self.titles, self.verbose = titles, verbose
        self._matrices: dict[str, np.ndarray] = {}  # by text, shape (tokens, d)
        if shared:
            dtype = dtype_name(encoder.dtype, encoder.network.device)
            self._matrices = _shared_matrices(encoder.fingerprint(), dtype)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_matrices": {}}  # worker processes encode what they need

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """Token vectors of some nodes, in float32."""
        return self.stored_states(nodes, device).to(torch.float32)

    def stored_states(self, nodes: np.ndarray, device: torch.device | str) -> TokenStates:
        """As :meth:`states`, in float16."""
        texts = self.texts(nodes)
        self._encode([text for text in dict.fromkeys(texts) if text not in self._matrices])
        matrices = [self._matrices[text] for text in texts]
        values = np.concatenate([np.empty((0, self.encoder.dimension), np.float16), *matrices])
        bounds = offsets(torch.tensor([*map(len, matrices)], dtype=torch.long))
        return TokenStates(torch.from_numpy(values), bounds).to(device)

    def texts(self, nodes: np.ndarray) -> list[str]:
        """The texts that are encoded."""
        return self.graph.texts(nodes, titles=self.titles)

    def _encode(self, texts: Sequence[str]) -> None:
        """Adds the token vectors of texts; warns if there are many."""
        if len(texts) > MANY_TEXTS:
            advice = "TokenStore(path).build(graph, encoder, workers=2) stores those of a corpus"
            message = (
                f"encoding {len(texts):,} texts, which takes long; their vectors stay in memory"
            )
            warnings.warn(f"{message}. {advice}", SpeedWarning, stacklevel=4)
        progress = {"desc": "encoding", "unit": "text", "delay": 1, "leave": None}
        with pt.tqdm(total=len(texts), disable=not self.verbose, **progress) as bar:
            for numbers in blocks(len(texts), NODES_AT_ONCE):
                batch = [texts[number] for number in numbers]
                states = self.encoder.encode_passages(batch).to("cpu", torch.float16)
                matrices = np.split(states.values.numpy(), states.offsets[1:-1].numpy())
                self._matrices.update(zip(batch, matrices, strict=True))
                bar.update(len(batch))


@lru_cache(maxsize=4)
def _shared_matrices(encoder_sha256: str, dtype: str) -> dict[str, np.ndarray]:
    """The token vectors of texts by encoders that are equal."""
    return {}
