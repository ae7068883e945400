"""First-stage retrieval with late interaction: nearest token vectors lead to passages, also through the graph."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from torch import Tensor

from pyterrier_graph.checks import (
    WithSignature,
    check_count,
    check_frame,
    check_type,
    load_faiss,
    positions,
    query_texts,
)
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graph_maxsim.graph_reranker import GraphReranker
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import BuiltArtifact, atomic_folder, kind_of

NODES_AT_ONCE = 2048
FILE = "tokens.faiss"
EXHAUSTIVE = 20_000  # smaller indexes compare all token vectors
PROBES = 32  # lists that a query token searches
SAMPLE_PER_LIST, MIN_SAMPLE = 64, 4096  # token vectors that FAISS trains on
ORIGIN = (  # entries of pt_meta.json that an index shares with its token vectors
    "encoder_sha256",
    "model_sha256",
    "graph_sha256",
    "titles",
    "dtype",
    "tokens",
    "nodes",
    "dimension",
)


class LateInteractionIndex(WithSignature, BuiltArtifact):
    """A FAISS index of token vectors, from which GraphMaxSim or HGAT retrieve, instead of reranking only.

    ::

        tokens = ptg.TokenStore("corpus.tokens").build(graph, encoder)
        graph_maxsim = ptg.GraphMaxSim(graph, encoder, tokens=tokens)
        index = ptg.LateInteractionIndex("corpus.nearest").index(tokens)
        pipeline = index.retriever(graph_maxsim)

    Approximate nearest-neighbor search finds token vectors. The passages that contain them, or whose neighbors contain
    them, are scored exactly: see :meth:`retriever`. The weights of relations are not part of the index, so they can be
    tuned without building it again. Needs FAISS: ``pip install 'pyterrier_graph[faiss]'``.

    Args:
        path: Folder of the index, which :meth:`index` writes.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "late_interaction_index"
    ARTIFACT_FORMAT = "faiss"

    def __len__(self) -> int:
        """Number of token vectors."""
        return self.meta["tokens"]

    def index(self, tokens: TokenStore) -> Self:
        """Builds the index.

        Vectors are compressed to 2 bits per dimension (product quantization), in ``4 * sqrt(token vectors)`` lists. An
        index of fewer than 20,000 token vectors is exact and has no lists.

        Args:
            tokens: The token vectors of a graph's nodes, or the result of ``HGATReranker.contextualize``.

        Raises:
            FileExistsError: If there is something at the path.
            ImportError: If FAISS is not installed.
            ValueError: If there are no token vectors.
        """
        check_type(
            "tokens", tokens, TokenStore, "a TokenStore: ptg.TokenStore(path).build(graph, encoder)"
        )
        faiss = load_faiss("an index of token vectors")
        count, dimension, nodes = tokens.meta["tokens"], tokens.dimension, len(tokens)
        if not count:
            raise ValueError(f"{tokens!r} has no token vectors: there is nothing to index")
        factory = default_factory(count, dimension)
        same = {name: tokens.meta[name] for name in ORIGIN if name in tokens.meta}
        with atomic_folder(self.path, kind_of(self) | {"factory": factory} | same) as folder:
            index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
            if not index.is_trained:
                lists = faiss.extract_index_ivf(index).nlist
                needed = math.ceil(
                    nodes * min(1.0, max(SAMPLE_PER_LIST * lists, MIN_SAMPLE) / count)
                )
                drawn = np.random.default_rng(0).choice(nodes, needed, replace=False)
                index.train(tokens.states(np.sort(drawn)).values.numpy())
            with pt.tqdm(
                total=nodes, desc="indexing", unit="node", delay=1, disable=not self.verbose
            ) as bar:
                for some in blocks(nodes, NODES_AT_ONCE):
                    index.add(tokens.states(some).values.numpy())
                    bar.update(len(some))
            faiss.write_index(index, str(folder / FILE))
        return self

    def retriever(
        self, reranker: GraphReranker, num_results: int = 1000, *, nearest: int = 1000
    ) -> LateInteractionRetriever:
        """A transformer that retrieves passages, and scores them with a reranker.

        The search finds the ``nearest`` token vectors of each query token. A passage receives, per query token, the
        highest similarity among its own tokens and its neighbors' tokens, the latter multiplied by the weight of the
        relation; if none of them was found, the lowest similarity that was found. The reranker then scores the
        passages with the highest sums.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``.

        Args:
            reranker: A :class:`~pyterrier_graph.GraphMaxSim` with the indexed token vectors as ``tokens``, or an
                :class:`~pyterrier_graph.HGATReranker` with these as ``contextualized``.
            num_results: Number of passages per query.
            nearest: Number of token vectors per query token.

        Raises:
            ValueError: If the reranker has other token vectors than the index.
        """
        return LateInteractionRetriever(self, reranker, num_results, nearest=nearest)

    def search(self, vectors: np.ndarray, nearest: int) -> tuple[np.ndarray, np.ndarray]:
        """Similarities and numbers of the nearest token vectors, each of shape (vectors, nearest).

        Args:
            vectors: Query vectors, float32 of shape (vectors, d).
            nearest: Number of token vectors per query vector. The number is -1 where fewer were found.
        """
        return self._faiss.search(np.ascontiguousarray(vectors), min(nearest, len(self)))

    @cached_property
    def _faiss(self) -> Any:
        faiss = load_faiss("an index of token vectors")
        try:
            index = self._open(lambda folder: faiss.read_index(str(folder / FILE)))
        except RuntimeError as error:
            raise ValueError(f"{str(self.path / FILE)!r} is damaged: {error}") from error
        if (lists := faiss.try_extract_index_ivf(index)) is not None:
            lists.nprobe = min(PROBES, lists.nlist)
        return index


class LateInteractionRetriever(WithSignature, pt.Transformer):
    """The retriever of an index: see :meth:`LateInteractionIndex.retriever`."""

    schematic = {
        "label": "LateInteraction",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    def __init__(
        self,
        index: LateInteractionIndex,
        reranker: GraphReranker,
        num_results: int = 1000,
        *,
        nearest: int = 1000,
    ) -> None:
        check_type("reranker", reranker, GraphReranker, "a GraphMaxSim or an HGATReranker")
        check_count("num_results", num_results)
        check_count("nearest", nearest)
        self.index, self.reranker, self.num_results, self.nearest = (
            index,
            reranker,
            num_results,
            nearest,
        )
        self._sources: dict[str, CSR] = {}
        tokens = reranker.searched_tokens()
        if differing := [name for name in ORIGIN if index.meta.get(name) != tokens.meta.get(name)]:
            raise ValueError(
                f"{index!r} holds other vectors than {tokens!r} ({', '.join(differing)}): index them"
            )

    def __repr__(self) -> str:
        return f"{self.index!r}.retriever({self.reranker!r}, {self.num_results})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        topics = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)  # type: ignore[arg-type]
        first = np.flatnonzero(~topics["qid"].duplicated())  # the first row of each query
        texts = query_texts(topics).tolist() if len(topics) else []
        queries = self.reranker.encoder.encode_queries(texts)
        candidates = [self._candidates(queries[number]) for number in range(len(texts))]
        sizes = [len(nodes) for nodes in candidates]
        query = np.repeat(np.arange(len(first)), sizes).astype(np.int64)
        node = np.concatenate([np.zeros(0, dtype=np.int64), *candidates])
        scores = self.reranker.score_passages(queries, query, node) if len(node) else np.zeros(0)
        order = np.lexsort((node, -scores, query))  # ties are in the order of the graph
        columns = topics.drop(columns=["docno", "docid", "score", "rank"], errors="ignore")
        results = columns.iloc[first[query[order]]].reset_index(drop=True)
        docnos = pd.array(self._graph.ids_of(node[order]), dtype="str")
        return results.assign(docno=docnos, score=scores[order], rank=positions(query[order]))

    def fuse_rank_cutoff(self, k: int) -> LateInteractionRetriever:
        """Finds no more passages than a cutoff behind it keeps."""
        num_results = min(k, self.num_results)
        return LateInteractionRetriever(
            self.index, self.reranker, num_results, nearest=self.nearest
        )

    @property
    def _graph(self) -> HeteroGraph:
        assert self.reranker.graph is not None  # its stored tokens are of a graph
        return self.reranker.graph

    def _candidates(self, query: Tensor) -> np.ndarray:
        """Nodes of the best passages by approximate scores; ``query`` has shape (query tokens, d)."""
        graph, tokens = self._graph, self.reranker.searched_tokens()
        vectors = query.cpu().numpy()
        similarity, token = self.index.search(vectors, self.nearest)  # both (query tokens, nearest)
        row, place = np.nonzero(token >= 0)
        if not len(row):
            return np.zeros(0, dtype=np.int64)
        nodes, hit = np.unique(tokens.nodes_of_tokens(token[row, place]), return_inverse=True)
        found = torch.full((len(nodes), len(token)), -torch.inf)  # (nodes, query tokens)
        values = torch.from_numpy(similarity[row, place])
        found.view(-1).scatter_reduce_(0, torch.from_numpy(hit * len(token) + row), values, "amax")
        own = graph.node_type[nodes] == PASSAGE_TYPE
        passages, matches = [nodes[own]], [found[torch.from_numpy(own)]]
        for relation, weight in self.reranker.weights.items():
            if weight:
                position, passage = self._sources_of(relation).select(nodes)
                passages.append(passage)
                matches.append(weight * found[torch.from_numpy(position)])
        distinct, target = np.unique(np.concatenate(passages), return_inverse=True)
        # a vector that was not found is at most as similar as the last one that was
        lowest = torch.from_numpy(np.where(token >= 0, similarity, np.inf).min(1)).float()
        best = lowest.repeat(len(distinct), 1)  # (passages, query tokens)
        best.scatter_reduce_(
            0, torch.from_numpy(target)[:, None].expand(-1, len(token)), torch.cat(matches), "amax"
        )
        order = np.argsort(-best.sum(1).numpy(), kind="stable")[: self.num_results]
        return distinct[order]

    def _sources_of(self, relation: str) -> CSR:
        """For each node, the passages whose neighbor it is along a relation."""
        if relation not in self._sources:
            passages = self._graph.passage_nodes
            row, neighbor = self._graph.neighbors(passages, relation)
            self._sources[relation] = CSR.group(neighbor, passages[row], self._graph.num_nodes)
        return self._sources[relation]


def default_factory(count: int, dimension: int) -> str:
    """The FAISS index factory string for a number of token vectors."""
    if count < EXHAUSTIVE or dimension % 2:
        return "Flat"
    lists = 2 ** int(math.log2(4 * math.sqrt(count)))
    return f"IVF{lists},PQ{dimension // 2}x4fs"
