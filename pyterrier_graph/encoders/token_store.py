"""Token vectors of all nodes of a graph, on disk: float16, or product quantization (Jégou, Douze and Schmid 2011)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from pyterrier_graph.checks import WithSignature, check_choice, check_type
from pyterrier_graph.encoders.checkpoints import dtype_name
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import (
    TokenEncoder,
    TokenStates,
    encode_once,
    open_encoder,
    stored_tokens,
)
from pyterrier_graph.graphs.csr import ranges
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, vectors_folder
from pyterrier_graph.storage.arrays import read_array
from pyterrier_graph.storage.artifact import BuiltArtifact, kind_of
from pyterrier_graph.storage.writer import Workers, unfinished

NODES_AT_ONCE = 512
TOKENS, CODES, OFFSETS, CODEBOOKS = "tokens.f2", "tokens.u1", "offsets.i8", "codebooks.safetensors"

Bits = Literal[1, 2, 4]
SAMPLED = 1024  # nodes whose tokens the quantizer is fitted to
CENTROIDS = 256  # of a byte
VECTORS, STEPS = 32, 10  # vectors for each centroid, and steps of k-means: more take long, and change little


@dataclass(frozen=True, eq=False)
class VectorQuantizer:
    """Stores each part of a vector as one byte: the number of the nearest of 256 centroids of that part.

    With 4 bits per dimension a part has 2 dimensions, with 2 it has 4, with 1 it has 8. Learning the centroids and
    finding the nearest ones needs FAISS (``pip install 'pyterrier_graph[faiss]'``); reading needs the centroids only.

    Attributes:
        codebooks: The centroids, shape (parts, 256, dimensions of a part), float32.
    """

    codebooks: np.ndarray

    @classmethod
    def fit(cls, sample: np.ndarray, bits: Bits) -> Self:
        """Learns the centroids by k-means; the same sample gives the same centroids.

        Args:
            sample: Vectors, shape (vectors, d), of which 8,192 are used at most.
            bits: Per dimension: 4 is a quarter of float16, 2 an eighth, 1 a sixteenth; ``8 / bits`` divides d.
        """
        faiss, size = load_faiss(), 8 // bits
        quantizer = faiss.ProductQuantizer(sample.shape[1], sample.shape[1] // size, 8)
        quantizer.cp.niter, quantizer.cp.max_points_per_centroid = STEPS, VECTORS
        quantizer.cp.min_points_per_centroid = 1  # no warning for a small corpus
        sample = sample if len(sample) else np.zeros((1, sample.shape[1]))
        rows = np.resize(np.arange(len(sample)), max(len(sample), CENTROIDS))
        quantizer.train(np.ascontiguousarray(sample[rows], dtype=np.float32))
        return cls(faiss.vector_to_array(quantizer.centroids).reshape(-1, CENTROIDS, size))

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """The codes of vectors of shape (vectors, d): uint8 of shape (vectors, parts)."""
        faiss, (parts, _, size) = load_faiss(), self.codebooks.shape
        quantizer = faiss.ProductQuantizer(parts * size, parts, 8)
        faiss.copy_array_to_vector(self.codebooks.ravel(), quantizer.centroids)
        return quantizer.compute_codes(np.ascontiguousarray(vectors, dtype=np.float32))

    def decode(self, codes: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
        """The vectors of codes of shape (vectors, parts): float32 of shape (vectors, d), on a device."""
        table = torch.from_numpy(self.codebooks).flatten(0, 1).to(device)  # (parts * 256, dimensions of a part)
        first = torch.arange(0, len(table), CENTROIDS, dtype=torch.int32, device=device)
        rows = torch.from_numpy(codes).to(device).int() + first
        return table.index_select(0, rows.flatten()).view(len(codes), len(first) * table.shape[1])


def load_faiss(purpose: str = "quantization") -> Any:
    """The module ``faiss``; raises ImportError, with the command that installs it, if it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"{purpose} needs FAISS: pip install 'pyterrier_graph[faiss]'") from error
    return faiss


class TokenStore(WithSignature, BuiltArtifact):
    """The token vectors of a graph's nodes, encoded once and then read from disk (memory-mapped).

    Vectors are stored as float16, or in 4, 2 or 1 bits per dimension: a quarter, an eighth or a sixteenth of the size.

    Args:
        path: Folder of the store; :meth:`build` makes it.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "token_store"
    ARTIFACT_FORMAT = "passage_graph"

    def __repr__(self) -> str:
        return f"TokenStore({str(self.path)!r})"

    def build(
        self,
        graph: HeteroGraph,
        encoder: Any = DEFAULT,
        *,
        titles: bool = False,
        bits: Bits | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Encodes all nodes of a graph; raises FileExistsError if there is a store already.

        An interrupted call continues when it is repeated, with any number of workers.

        Args:
            graph: The graph with the passages and section titles.
            encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or what that class takes.
            titles: Whether the titles of its sections are put before a passage ("title - section: passage").
            bits: Bits per dimension, 4, 2 or 1, for vectors that are not exactly the encoder's (with 4 bits, nDCG@10
                changed by at most 0.005, with 1 by 0.01: ``experiments/results/costs.md``). None for float16.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.writer`.
        """
        check_type("graph", graph, HeteroGraph, "a DocumentGraph: ptg.DocumentGraph(path).index(docs)")
        encoder = open_encoder(encoder)
        about = {"encoder": encoder.name, "encoder_sha256": encoder.fingerprint(), "titles": titles}
        about["graph_sha256"] = graph.fingerprint()

        def encoded(nodes: np.ndarray) -> TokenStates:
            stored = stored_tokens(encoder, vectors_folder(graph))
            return encode_once(encoder, graph.texts(nodes, titles=titles), stored, append=False, verbose=False)

        about["dtype"] = dtype_name(encoder.dtype, encoder.network.device)
        options: dict[str, Any] = {"identity": {"batch_size": encoder.batch_size}, "bits": bits}
        size = graph.num_nodes, encoder.dimension
        return self.write(encoded, *size, about, workers=workers, **options)

    def write(
        self,
        states_of: Callable[[np.ndarray], TokenStates],
        nodes: int,
        dimension: int,
        about: dict[str, Any],
        *,
        bits: Bits | None = None,
        identity: dict[str, Any] | None = None,
        prepare: Callable[[Path], Any] | None = None,
        task: str = "encoding",
        workers: Workers = 1,
    ) -> Self:
        """Writes the vectors of all nodes.

        Args:
            states_of: Computes the vectors of some nodes, which are given by their numbers.
            nodes: Number of nodes.
            dimension: Length of a token vector.
            about: Values that the vectors depend on, for ``pt_meta.json``.
            bits: Bits per dimension, or None for float16.
            identity: Further values that the vectors depend on, for an interrupted call that continues.
            prepare: Called first, with a folder for what is needed until all is done.
            task: Title of the progress bar.
            workers: See :meth:`build`.
        """
        meta = kind_of(self) | {"nodes": nodes, "dimension": dimension} | about
        if bits is not None:
            check_choice("bits", bits, get_args(Bits))
            if dimension % (8 // bits):
                raise ValueError(f"with {bits} bits the dimensions must be a multiple of {8 // bits}, got {dimension}")
            load_faiss()
            meta["bits"] = bits
        quantizer: VectorQuantizer | None = None

        def learn(folder: Path, bits: Bits) -> None:
            drawn = np.sort(np.random.default_rng(0).choice(nodes, min(nodes, SAMPLED), replace=False))
            parts = (states_of(drawn[start : start + NODES_AT_ONCE]) for start in range(0, len(drawn), NODES_AT_ONCE))
            vectors = [part.values.float().cpu().numpy() for part in parts]
            sample = np.concatenate([np.empty((0, dimension), np.float32), *vectors])
            save_file({"codebooks": VectorQuantizer.fit(sample, bits).codebooks}, folder / CODEBOOKS)

        def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
            states = states_of(numbers)
            if len(states) != len(numbers):
                raise ValueError(f"{len(numbers)} nodes were expected, got {len(states)}")
            if quantizer is not None:
                values = quantizer.encode(states.values.float().cpu().numpy())
            else:
                values = states.values.detach().to("cpu", torch.float16).numpy()
            return {tokens: values, OFFSETS: states.lengths.cpu().numpy()}

        tokens = TOKENS if bits is None else CODES
        progress: dict[str, Any] = {"desc": task, "unit": "node", "delay": 1, "disable": not self.verbose}
        with unfinished(self.path, meta, nodes, NODES_AT_ONCE, identity=meta | (identity or {})) as writer:
            if prepare is not None:
                prepare(writer.place)
            if bits is not None:
                writer.prepare(lambda folder: learn(folder, bits))
                quantizer = VectorQuantizer(load_file(writer.folder / CODEBOOKS)["codebooks"])
            writer.compute(rows, tokens, OFFSETS, lengths=[OFFSETS], workers=workers, **progress)
            meta["tokens"] = int(np.fromfile(writer.folder / OFFSETS, "<i8", offset=8 * nodes)[0])
        return self

    @property
    def dimension(self) -> int:
        """Length of a token vector."""
        return self.meta["dimension"]

    def __len__(self) -> int:
        return self.meta["nodes"]

    def check(self, encoder: TokenEncoder, graph: HeteroGraph) -> None:
        """Raises ValueError unless the vectors are of this graph, encoded by this encoder."""
        if self.meta.get("encoder_sha256") != encoder.fingerprint():
            other = f"{self.meta.get('encoder')!r} with other weights or lengths than {encoder!r}"
            raise ValueError(f"{self!r} holds vectors of {other}: build the store again with this encoder")
        if self.meta.get("graph_sha256") != graph.fingerprint():
            raise ValueError(f"{self!r} holds vectors of other texts than those of {graph!r}: build it again")

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """The token vectors of some nodes, in float32."""
        starts = self._offsets[nodes]
        offsets, rows = ranges(starts, self._offsets[np.asarray(nodes) + 1] - starts)
        stored = np.array(self._tokens[rows])
        if self._quantizer is not None:
            values = self._quantizer.decode(stored, device)
        else:
            values = torch.from_numpy(stored).to(device).float()
        return TokenStates(values, torch.from_numpy(offsets).to(device))

    def nodes_of_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """The nodes of some token vectors, which are numbered from 0 over all nodes."""
        return np.searchsorted(self._offsets, tokens, side="right") - 1

    @cached_property
    def _tokens(self) -> np.ndarray:
        """Stored vectors, or their codes: shape (tokens, width), memory-mapped."""
        quantizer = self._quantizer
        file, dtype = (TOKENS, "<f2") if quantizer is None else (CODES, "u1")
        shape = self.meta["tokens"], self.dimension if quantizer is None else len(quantizer.codebooks)
        if not shape[0]:  # an empty file cannot be mapped
            return np.zeros(shape, dtype=dtype)
        return self._open(lambda folder: np.memmap(folder / file, dtype=dtype, mode="r", shape=shape))

    @cached_property
    def _quantizer(self) -> VectorQuantizer | None:
        if "bits" not in self.meta:
            return None
        return VectorQuantizer(self._open(lambda folder: load_file(folder / CODEBOOKS)["codebooks"]))

    @cached_property
    def _offsets(self) -> np.ndarray:
        return self._open(lambda folder: read_array(folder, "offsets"))
