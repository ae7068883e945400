"""Token vectors of all nodes of a graph, on disk."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from pyterrier_graph.artifacts import BuiltArtifact, kind_of
from pyterrier_graph.checks import WithSignature, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import dtype_name
from pyterrier_graph.encoders.quantization import Bits, VectorQuantizer, check_bits
from pyterrier_graph.encoders.token_encoder import TokenEncoder, open_encoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.vector_files import blocks
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.graphs.array_files import read_array
from pyterrier_graph.graphs.consistency import count_of, offsets_to
from pyterrier_graph.graphs.csr import CSR, ranges
from pyterrier_graph.ranges.workers import Workers
from pyterrier_graph.ranges.writer import unfinished

NODES_AT_ONCE = 512
SAMPLED = 1024  # nodes whose tokens tell how vectors are quantized
TOKENS, CODES, OFFSETS = "tokens.f2", "tokens.u1", "offsets.i8"
IDS = "word_pieces.indices"  # the ending makes them u4

StatesOf = Callable[[np.ndarray], tuple[TokenStates, np.ndarray | None]]


class TokenStore(WithSignature, BuiltArtifact):
    """The token vectors of a graph's nodes, encoded once and then read from disk (memory-mapped).

    Vectors are stored as float16, or in 4, 2 or 1 bits per dimension: a quarter, an eighth or a sixteenth of the size.

    Args:
        path: Folder of the store; :meth:`build` makes it.
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
        verbose: bool = True,
    ) -> Self:
        """Encodes all nodes of a graph; raises FileExistsError if there is a store already.

        An interrupted call continues when it is repeated, with any number of workers.

        Args:
            graph: The graph with the passages and section titles.
            encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or what that class takes.
            titles: Whether the titles of its sections are put before a passage ("title - section: passage").
            bits: Bits per dimension, 4, 2 or 1, for vectors that are not exactly the encoder's (with 4 bits, nDCG@10
                changed by at most 0.005, with 1 by 0.01: ``experiments/results/costs.md``): see
                :class:`~pyterrier_graph.encoders.quantization.VectorQuantizer`. None for float16.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
            verbose: Whether to show progress.
        """
        check_type("graph", graph, HeteroGraph, "a DocumentGraph: ptg.DocumentGraph(path).index(docs)")
        encoder = open_encoder(encoder)
        about = {"encoder": encoder.name, "encoder_sha256": encoder.fingerprint(), "titles": titles}
        about["graph_sha256"] = graph.fingerprint()

        def encoded(nodes: np.ndarray) -> tuple[TokenStates, np.ndarray]:
            texts = graph.texts(nodes, titles=titles)
            return encoder.encode_passages(texts), encoder.token_ids(texts).indices

        about["dtype"] = dtype_name(encoder.dtype, encoder.network.device)
        options: dict[str, Any] = {"identity": {"batch_size": encoder.batch_size}, "ids": True, "bits": bits}
        size = graph.num_nodes, encoder.dimension
        return self.write(encoded, *size, about, workers=workers, verbose=verbose, **options)

    def write(
        self,
        states_of: StatesOf,
        nodes: int,
        dimension: int,
        about: dict[str, Any],
        *,
        ids: bool = False,
        bits: Bits | None = None,
        identity: dict[str, Any] | None = None,
        prepare: Callable[[Path], Any] | None = None,
        task: str = "encoding",
        workers: Workers = 1,
        verbose: bool = True,
    ) -> Self:
        """Writes the vectors of all nodes.

        Args:
            states_of: Takes the numbers of some nodes, and gives their vectors, and the numbers of their tokens' word
                pieces.
            nodes: Number of nodes.
            dimension: Length of a token vector.
            about: What the vectors depend on, for ``pt_meta.json``.
            ids: Whether there are numbers of word pieces; otherwise ``states_of`` gives None for them.
            bits: Bits per dimension, or None for float16.
            identity: What else the vectors depend on, for an interrupted call that continues.
            prepare: Called first, with a folder for what is needed until all is done.
            task: What the progress bar says.
            workers: See :meth:`build`.
            verbose: Whether to show progress.
        """
        meta = kind_of(self) | {"nodes": nodes, "dimension": dimension} | about
        if bits is not None:
            check_bits(bits, dimension)
            meta["bits"] = bits
        tokens = TOKENS if bits is None else CODES
        progress: dict[str, Any] = {"desc": task, "unit": "node", "delay": 1, "disable": not verbose}

        def quantizer(bits: Bits) -> VectorQuantizer:
            drawn = np.random.default_rng(0).choice(nodes, min(nodes, SAMPLED), replace=False)
            parts = (states_of(np.sort(drawn)[part])[0] for part in blocks(len(drawn), NODES_AT_ONCE))
            vectors = [part.values.float().cpu().numpy() for part in parts]
            return VectorQuantizer.fit(np.concatenate([np.empty((0, dimension), np.float32), *vectors]), bits)

        def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
            states, pieces = states_of(numbers)
            if len(states) != len(numbers):
                raise ValueError(f"{len(numbers)} nodes were expected, got {len(states)}")
            values = (
                stored(states.values) if quantized is None else quantized.encode(states.values.float().cpu().numpy())
            )
            arrays = {tokens: values, OFFSETS: states.lengths.cpu().numpy()}
            return arrays if pieces is None else arrays | {f"{IDS}.u4": pieces.astype("<u4")}

        quantized: VectorQuantizer | None = None
        names = [tokens, OFFSETS] + [f"{IDS}.u4"] * ids
        with unfinished(self.path, meta, nodes, NODES_AT_ONCE, identity=meta | (identity or {})) as writer:
            if prepare is not None:
                prepare(writer.place)
            if bits is not None:
                writer.prepare(lambda folder: quantizer(bits).save(folder))
                quantized = VectorQuantizer.load(writer.folder)
            writer.compute(rows, *names, lengths=[OFFSETS], workers=workers, **progress)
            meta["tokens"] = int(np.fromfile(writer.folder / OFFSETS, "<i8", offset=8 * nodes)[0])
        return self

    @property
    def dimension(self) -> int:
        """Length of a token vector."""
        return count_of(self.meta, "dimension")

    def __len__(self) -> int:
        return count_of(self.meta, "nodes")

    def check(self, encoder: TokenEncoder, graph: HeteroGraph) -> None:
        """Raises ValueError unless the vectors are of this graph, encoded by this encoder."""
        if self.meta.get("encoder_sha256") != encoder.fingerprint():
            other = f"{self.meta.get('encoder')!r} with other weights or lengths than {encoder!r}"
            raise ValueError(f"{self!r} holds vectors of {other}: build the store again with this encoder")
        if len(self) != graph.num_nodes:
            raise ValueError(f"{self!r} holds vectors of {len(self)} nodes, {graph!r} has {graph.num_nodes}")
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
        """The nodes that some token vectors are of, which are counted over all nodes, from 0."""
        return np.searchsorted(self._offsets, tokens, side="right") - 1

    @property
    def has_ids(self) -> bool:
        """Whether :meth:`ids` can be used: a store that an older version wrote lacks them."""
        return f"{IDS}.u4" in self.meta.get("files", ())

    def ids(self, nodes: np.ndarray) -> CSR:
        """The numbers of the word pieces that the token vectors of some nodes stand for."""
        starts = self._offsets[nodes]
        offsets, rows = ranges(starts, self._offsets[np.asarray(nodes) + 1] - starts)
        return CSR(offsets, self._ids[rows].astype(np.int64))

    @cached_property
    def _ids(self) -> np.ndarray:
        return read_array(self.path, IDS)

    @cached_property
    def _tokens(self) -> np.ndarray:
        quantizer = self._quantizer
        file, width = TOKENS, self.dimension
        dtype: np.dtype[Any] = np.dtype("<f2")
        if quantizer is not None:
            file, dtype, width = CODES, np.dtype("u1"), quantizer.width
        shape = (count_of(self.meta, "tokens"), width)
        size, needed = (self.path / file).stat().st_size, shape[0] * width * dtype.itemsize
        if size != needed:
            raise ValueError(
                f"{str(self.path / file)!r} is damaged: {needed:,} bytes are needed, it has {size:,} bytes"
            )
        if not shape[0]:  # an empty file cannot be mapped
            return np.zeros(shape, dtype=dtype)
        return np.memmap(self.path / file, dtype=dtype, mode="r", shape=shape)

    @cached_property
    def _quantizer(self) -> VectorQuantizer | None:
        return VectorQuantizer.load(self.path) if "bits" in self.meta else None

    @cached_property
    def _offsets(self) -> np.ndarray:
        return read_array(self.path, "offsets", offsets_to(count_of(self.meta, "tokens"), len(self)))


def stored(values: torch.Tensor) -> np.ndarray:
    """Token vectors as they are stored, shape (tokens, d)."""
    return values.detach().to("cpu", torch.float16).numpy()
