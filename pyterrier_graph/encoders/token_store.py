"""Token vectors of all nodes of a graph, on disk."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyterrier as pt
import torch

from pyterrier_graph.artifacts import BuiltArtifact, kind_of, writing
from pyterrier_graph.checks import WithSignature, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.token_encoder import TokenEncoder, open_encoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.vector_files import blocks
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.graphs.array_files import ArrayFiles, read_array
from pyterrier_graph.graphs.csr import CSR, ranges

CHUNK = 512  # nodes encoded between two steps of the progress bar
IDS = "word_pieces.indices"  # the ending makes them u4


class TokenStore(WithSignature, BuiltArtifact):
    """The token vectors of a graph's nodes, encoded once and then read from disk (float16, memory-mapped).

    Args:
        path: Folder of the store; :meth:`build` makes it.
    """

    ARTIFACT_TYPE = "token_store"
    ARTIFACT_FORMAT = "passage_graph"

    def __repr__(self) -> str:
        return f"TokenStore({str(self.path)!r})"

    def build(self, graph: HeteroGraph, encoder: Any = DEFAULT, *, titles: bool = False, verbose: bool = True) -> Self:
        """Encodes all nodes of a graph; raises FileExistsError if there is a store already.

        Args:
            graph: The graph with the passages and section titles.
            encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or what that class takes.
            titles: Whether the titles of its sections are put before a passage ("title - section: passage").
            verbose: Whether to show progress.
        """
        check_type("graph", graph, HeteroGraph, "a DocumentGraph: ptg.DocumentGraph(path).index(docs)")
        encoder = open_encoder(encoder)
        about = {"encoder": encoder.name, "encoder_sha256": encoder.fingerprint(), "titles": titles}
        about["graph_sha256"] = graph.fingerprint()

        def texts() -> Iterator[list[str]]:
            for nodes in blocks(graph.num_nodes, CHUNK):
                yield graph.texts(nodes, titles=titles)

        def write_ids(folder: Path) -> None:
            with ArrayFiles() as arrays:
                arrays.append(folder, IDS, np.zeros(0))
                for part in texts():
                    arrays.append(folder, IDS, encoder.token_ids(part).indices)

        chunks = map(encoder.encode_passages, texts())
        size = graph.num_nodes, encoder.dimension
        return self.write(chunks, *size, about, write_ids=write_ids, verbose=verbose)

    def write(
        self,
        states: Iterable[TokenStates],
        nodes: int,
        dimension: int,
        about: dict[str, Any],
        *,
        write_ids: Callable[[Path], None] | None = None,
        task: str = "encoding",
        verbose: bool = True,
    ) -> Self:
        """Writes the vectors of all nodes, in order; ``about`` is for ``pt_meta.json``, ``task`` for the bar.

        ``write_ids`` writes the numbers of the tokens' word pieces into the folder that it is given.
        """
        meta = kind_of(self) | {"nodes": nodes, "dimension": dimension} | about
        lengths = [np.zeros(1, dtype=np.int64)]
        progress = pt.tqdm(total=nodes, desc=task, unit="node", delay=1, disable=not verbose)
        with progress, writing(self.path, meta) as folder:
            with open(folder / "tokens.f2", "wb") as file:
                for chunk in states:
                    file.write(chunk.values.detach().to("cpu", torch.float16).numpy().tobytes())
                    lengths.append(chunk.lengths.cpu().numpy())
                    progress.update(len(chunk))
            offsets = np.concatenate(lengths).cumsum()
            if len(offsets) != nodes + 1:
                raise ValueError(f"{nodes} nodes were expected, got {len(offsets) - 1}")
            offsets.astype("<i8").tofile(folder / "offsets.i8")
            meta["tokens"] = int(offsets[-1])
            if write_ids is not None:
                write_ids(folder)
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
        if len(self) != graph.num_nodes:
            raise ValueError(f"{self!r} holds vectors of {len(self)} nodes, {graph!r} has {graph.num_nodes}")
        if self.meta.get("graph_sha256") != graph.fingerprint():
            raise ValueError(f"{self!r} holds vectors of other texts than those of {graph!r}: build it again")

    def states(self, nodes: np.ndarray, device: torch.device | str = "cpu") -> TokenStates:
        """The token vectors of some nodes, in float32."""
        starts = self._offsets[nodes]
        offsets, rows = ranges(starts, self._offsets[np.asarray(nodes) + 1] - starts)
        values = torch.from_numpy(np.array(self._tokens[rows]))
        return TokenStates(values.to(device).float(), torch.from_numpy(offsets).to(device))

    @property
    def has_ids(self) -> bool:
        """Whether :meth:`ids` can be used: a store that an older version wrote lacks them."""
        return f"{IDS}.u4" in self.meta["files"]

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
        shape = (self.meta["tokens"], self.dimension)
        if not shape[0]:  # an empty file cannot be mapped
            return np.zeros(shape, dtype=np.float16)
        return np.memmap(self.path / "tokens.f2", dtype=np.float16, mode="r", shape=shape)

    @cached_property
    def _offsets(self) -> np.ndarray:
        assert self.meta  # checks the files
        return np.fromfile(self.path / "offsets.i8", dtype="<i8")
