"""Late interaction as the first stage: an index of token vectors that finds passages through the graph."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyterrier as pt

from pyterrier_graph.artifacts import BuiltArtifact, kind_of, writing
from pyterrier_graph.checks import WithSignature, check_type
from pyterrier_graph.encoders.quantization import load_faiss
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.encoders.vector_files import blocks
from pyterrier_graph.graphs.consistency import count_of

if TYPE_CHECKING:
    from pyterrier_graph.rerank.base import GraphReranker

NODES_AT_ONCE = 2048
FILE, PURPOSE = "tokens.faiss", "an index of token vectors"
EXHAUSTIVE = 20_000  # token vectors up to which all are compared
SAMPLED, LEAST = 64, 4096  # token vectors per list, and in all, that the lists and codes are made from
SAME = ("encoder_sha256", "model_sha256", "graph_sha256", "titles", "dtype", "bits", "tokens", "nodes", "dimension")


class LateInteractionIndex(WithSignature, BuiltArtifact):
    """A FAISS index of token vectors, from which GraphMaxSim or HGAT retrieve, instead of reranking only.

    ::

        tokens = ptg.TokenStore("corpus.tokens").build(graph, encoder)
        graph_maxsim = ptg.GraphMaxSim(graph, encoder, tokens=tokens)
        index = ptg.LateInteractionIndex("corpus.nearest").index(tokens)
        pipeline = index.retriever(graph_maxsim)

    The vectors of the ``tokens`` are found by approximate nearest-neighbor search, and the passages that they belong
    to, or that have their nodes for neighbors, are scored exactly: see :meth:`retriever`. Each node is in the index
    once, and the weights of relations are not part of it, so that they can change, and be tuned, without a new index.
    It needs FAISS: ``pip install 'pyterrier_graph[faiss]'``.

    Args:
        path: Folder of the index; :meth:`index` makes it.
    """

    ARTIFACT_TYPE = "late_interaction_index"
    ARTIFACT_FORMAT = "faiss"

    def __repr__(self) -> str:
        return f"LateInteractionIndex({str(self.path)!r})"

    def __len__(self) -> int:
        """Number of token vectors."""
        return count_of(self.meta, "tokens")

    def index(self, tokens: TokenStore, *, factory: str | None = None, verbose: bool = True) -> Self:
        """Makes the index; raises FileExistsError if there is something at the path.

        Args:
            tokens: The token vectors of a graph's nodes, or what ``HGATReranker.contextualize`` returned.
            factory: The kind of the index, as ``faiss.index_factory`` reads it, such as ``'IVF1024,SQ8'``. By default
                product quantization in 2 bits per dimension, in ``4 * sqrt(token vectors)`` lists; below 20,000 token
                vectors there are no lists, and vectors are exact.
            verbose: Whether to show progress.

        Raises:
            ImportError: If FAISS is not installed.
            ValueError: If there are no token vectors, or FAISS cannot read ``factory``.
        """
        check_type("tokens", tokens, TokenStore, "a TokenStore: ptg.TokenStore(path).build(graph, encoder)")
        faiss = load_faiss(PURPOSE)
        count, dimension, nodes = count_of(tokens.meta, "tokens"), tokens.dimension, len(tokens)
        if not count:
            raise ValueError(f"{tokens!r} has no token vectors: there is nothing to index")
        name = default_factory(count, dimension) if factory is None else factory
        meta = kind_of(self) | {"factory": name} | identity(tokens)
        with writing(self.path, meta) as folder:
            try:
                index = faiss.index_factory(dimension, name, faiss.METRIC_INNER_PRODUCT)
                if not index.is_trained:
                    lists = getattr(faiss.try_extract_index_ivf(index), "nlist", 0)
                    needed = math.ceil(nodes * min(1.0, max(SAMPLED * lists, LEAST) / count))
                    drawn = np.random.default_rng(0).choice(nodes, needed, replace=False)
                    index.train(vectors_of(tokens, np.sort(drawn)))
            except RuntimeError as error:
                about = f"{count} vectors of {dimension} dimensions"
                raise ValueError(f"factory={name!r} makes no index of {about}: {error}") from error
            with pt.tqdm(total=nodes, desc="indexing", unit="node", delay=1, disable=not verbose) as bar:
                for some in blocks(nodes, NODES_AT_ONCE):
                    index.add(vectors_of(tokens, some))
                    bar.update(len(some))
            faiss.write_index(index, str(folder / FILE))
        return self

    def retriever(
        self,
        reranker: GraphReranker,
        num_results: int = 1000,
        *,
        nearest: int = 1000,
        probes: int = 32,
        candidates: int | None = None,
    ) -> pt.Transformer:
        """Finds passages, and scores them with a reranker.

        For each query token the ``nearest`` token vectors are found. A passage gets their similarities: those of its
        own tokens, and those of its neighbors' tokens times the weight of the relation; where none of them was found,
        the lowest similarity that was. The ``candidates`` with the highest sums are then scored exactly.

        Columns in: ``qid, query``. Columns out: those, and ``docno, score, rank``.

        Args:
            reranker: A :class:`~pyterrier_graph.GraphMaxSim` with the ``tokens`` that were indexed, or an
                :class:`~pyterrier_graph.HGATReranker` with them as ``contextualized``.
            num_results: Passages per query.
            nearest: Token vectors per query token.
            probes: Lists of the index that are searched, where it has lists.
            candidates: Passages that are scored exactly; by default ``num_results``.

        Raises:
            ValueError: If the index holds other vectors than those of the reranker.
        """
        from pyterrier_graph.retrieve.late_interaction_retriever import LateInteractionRetriever

        return LateInteractionRetriever(
            self, reranker, num_results, nearest=nearest, probes=probes, candidates=candidates
        )

    def check(self, tokens: TokenStore) -> None:
        """Raises ValueError unless the index is of these token vectors."""
        differing = [name for name, value in identity(tokens).items() if self.meta.get(name) != value]
        if differing:
            raise ValueError(f"{self!r} holds other vectors than {tokens!r} ({', '.join(differing)}): index them")

    def search(self, vectors: np.ndarray, nearest: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest token vectors of some vectors: similarities, and their numbers; shapes (vectors, nearest).

        Args:
            vectors: Shape (vectors, d).
            nearest: How many, at most all that there are. Where fewer were found, the number is -1.
            probes: Lists that are searched.
        """
        index = self._faiss
        if (lists := load_faiss(PURPOSE).try_extract_index_ivf(index)) is not None:
            lists.nprobe = min(probes, lists.nlist)
        return index.search(np.ascontiguousarray(vectors, dtype=np.float32), min(nearest, len(self)))

    @cached_property
    def _faiss(self) -> Any:
        faiss, file = load_faiss(PURPOSE), self.path / FILE
        meta = self.meta
        try:
            index = faiss.read_index(str(file))
        except RuntimeError as error:
            raise ValueError(f"{str(file)!r} is damaged: {error}") from error
        if (index.ntotal, index.d) != (count_of(meta, "tokens"), count_of(meta, "dimension")):
            raise ValueError(f"{str(file)!r} is damaged: it has {index.ntotal} vectors of {index.d} numbers")
        return index


def identity(tokens: TokenStore) -> dict[str, Any]:
    """What the vectors of a store depend on."""
    return {name: tokens.meta[name] for name in SAME if name in tokens.meta}


def vectors_of(tokens: TokenStore, nodes: np.ndarray) -> np.ndarray:
    """The token vectors of some nodes."""
    return tokens.states(nodes).values.numpy()


def default_factory(count: int, dimension: int) -> str:
    """The kind of an index of so many token vectors."""
    if count < EXHAUSTIVE or dimension % 2:
        return "Flat"
    lists = 2 ** int(math.log2(4 * math.sqrt(count)))
    return f"IVF{lists},PQ{dimension // 2}x4fs"
