"""Late interaction as the first stage: an index of token vectors that finds passages through the graph."""

from __future__ import annotations

import copy
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
EXHAUSTIVE = 20_000  # token vectors up to which all are compared
PROBES = 32  # lists that are searched
# token vectors per list, and in all, that the lists and codes are made from
SAMPLED, LEAST = 64, 4096
# entries of the meta data that an index and its token store share
SAME = (
    *("encoder_sha256", "model_sha256", "graph_sha256"),
    *("titles", "dtype", "tokens", "nodes", "dimension"),
)


class LateInteractionIndex(WithSignature, BuiltArtifact):
    """A FAISS index of token vectors, from which GraphMaxSim or HGAT retrieve, instead of reranking only.

    ::

        tokens = ptg.TokenStore("corpus.tokens").build(graph, encoder)
        graph_maxsim = ptg.GraphMaxSim(graph, encoder, tokens=tokens)
        index = ptg.LateInteractionIndex("corpus.nearest").index(tokens)
        pipeline = index.retriever(graph_maxsim)

    Approximate nearest-neighbor search finds token vectors. The passages that they belong to, or that have their nodes
    for neighbors, are scored exactly: see :meth:`retriever`. Each node is in the index once, and the weights of
    relations are not part of it, so they can be tuned without a new index. Needs FAISS:
    ``pip install 'pyterrier_graph[faiss]'``.

    Args:
        path: Folder of the index; :meth:`index` makes it.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "late_interaction_index"
    ARTIFACT_FORMAT = "faiss"

    def __len__(self) -> int:
        """Number of token vectors."""
        return self.meta["tokens"]

    def index(self, tokens: TokenStore) -> Self:
        """Makes the index; raises FileExistsError if there is something at the path.

        It has product quantization in 2 bits per dimension, in ``4 * sqrt(token vectors)`` lists; below 20,000 token
        vectors there are no lists, and vectors are exact.

        Args:
            tokens: The token vectors of a graph's nodes, or what ``HGATReranker.contextualize`` returned.

        Raises:
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
        same = {name: tokens.meta[name] for name in SAME if name in tokens.meta}
        with atomic_folder(self.path, kind_of(self) | {"factory": factory} | same) as folder:
            index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
            if not index.is_trained:
                lists = faiss.extract_index_ivf(index).nlist
                needed = math.ceil(nodes * min(1.0, max(SAMPLED * lists, LEAST) / count))
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
        """Finds passages, and scores them with a reranker.

        Finds the ``nearest`` token vectors for each query token. A passage gets the highest similarity of its own
        tokens, and of its neighbors' tokens times the weight of the relation, or the lowest similarity of all if none
        of them was found. The passages with the highest sums are then scored exactly.

        Columns in: ``qid, query``. Columns out: those, and ``docno, score, rank``.

        Args:
            reranker: A :class:`~pyterrier_graph.GraphMaxSim` with the ``tokens`` that were indexed, or an
                :class:`~pyterrier_graph.HGATReranker` with them as ``contextualized``.
            num_results: Passages per query.
            nearest: Token vectors per query token.

        Raises:
            ValueError: If the index and the reranker have different vectors.
        """
        return LateInteractionRetriever(self, reranker, num_results, nearest=nearest)

    def search(self, vectors: np.ndarray, nearest: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the similarities and the numbers of the nearest token vectors, each of shape (vectors, nearest).

        Args:
            vectors: Shape (vectors, d), float32.
            nearest: Token vectors per vector. Where fewer were found, the number is -1.
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
    """Nearest token vectors, their neighbors in the graph, exact scores: see :meth:`LateInteractionIndex.retriever`."""

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
        self.index = index
        self.reranker = reranker
        self.num_results = num_results
        self.nearest = nearest
        self._sources: dict[str, CSR] = {}
        self._check()

    def _check(self) -> None:
        check_count("num_results", self.num_results)
        check_count("nearest", self.nearest)
        meta, tokens = self.index.meta, self.reranker.searched_tokens()
        if differing := [name for name in SAME if meta.get(name) != tokens.meta.get(name)]:
            raise ValueError(
                f"{self.index!r} holds other vectors than {tokens!r} ({', '.join(differing)}): index them"
            )

    def __repr__(self) -> str:
        return f"{self.index!r}.retriever({self.reranker!r}, {self.num_results})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        self._check()
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        topics = inp.drop_duplicates("qid")
        topics = topics.drop(columns=["docno", "docid", "score", "rank"], errors="ignore")
        queries = self.reranker.encoder.encode_queries(query_texts(inp).tolist())
        candidates = [self._candidates(queries[number]) for number in range(len(topics))]
        query = np.repeat(np.arange(len(topics)), [*map(len, candidates)]).astype(np.int64)
        node = np.concatenate([np.zeros(0, dtype=np.int64), *candidates])
        score = self.reranker.score_passages(queries, query, node) if len(node) else np.zeros(0)
        order = np.lexsort((node, -score, query))  # ties are in the order of the graph
        query, node, score = query[order], node[order], score[order]
        return (
            topics.iloc[query]
            .reset_index(drop=True)
            .assign(
                docno=pd.array(self._graph.ids_of(node), dtype="str"),
                score=score,
                rank=positions(query),
            )
        )

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Finds the first ``k`` passages only."""
        first = copy.copy(self)
        first.num_results = min(k, self.num_results)
        return first

    @property
    def _graph(self) -> HeteroGraph:
        assert self.reranker.graph is not None  # its stored tokens belong to a graph
        return self.reranker.graph

    def _candidates(self, query: Tensor) -> np.ndarray:
        """Nodes of the passages that the nearest vectors of a query, shape (query tokens, d), lead to."""
        similarity, token = self.index.search(query.cpu().numpy(), self.nearest)
        row, column = np.nonzero(token >= 0)  # both arrays are (query tokens, nearest)
        if not len(row):
            return np.zeros(0, dtype=np.int64)
        nodes = self.reranker.searched_tokens().nodes_of_tokens(token[row, column])
        nodes, hit = np.unique(nodes, return_inverse=True)
        values = torch.from_numpy(similarity[row, column])
        best = torch.full((len(nodes), len(token)), -torch.inf)  # (nodes, query tokens)
        index = torch.from_numpy(hit * len(token) + row)
        best.view(-1).scatter_reduce_(0, index, values, "amax")
        passages, matches = self._passages_of(nodes, best)
        distinct, target = np.unique(passages, return_inverse=True)
        # a token that was not found is at most as similar as the last one that was
        lowest = torch.from_numpy(np.where(token >= 0, similarity, np.inf).min(1)).float()
        bound = lowest.repeat(len(distinct), 1)  # (passages, query tokens)
        index = torch.from_numpy(target)[:, None].expand(-1, len(token))
        bound.scatter_reduce_(0, index, matches, "amax")
        order = np.argsort(-bound.sum(1).numpy(), kind="stable")
        return distinct[order[: self.num_results]]

    def _passages_of(self, nodes: np.ndarray, best: Tensor) -> tuple[np.ndarray, Tensor]:
        """Passages that are among ``nodes`` or have them for neighbors, and their weighted matches; may repeat."""
        is_passage = self._graph.node_type[nodes] == PASSAGE_TYPE
        passages, matches = [nodes[is_passage]], [best[torch.from_numpy(is_passage)]]
        for relation, weight in self.reranker.weights.items():
            if weight:
                position, passage = self._sources_of(relation).select(nodes)
                passages.append(passage)
                matches.append(weight * best[torch.from_numpy(position)])
        return np.concatenate(passages), torch.cat(matches)

    def _sources_of(self, relation: str) -> CSR:
        """The passages that have each node for a neighbor along a relation."""
        if relation not in self._sources:
            passages = self._graph.passage_nodes
            row, neighbor = self._graph.neighbors(passages, relation)
            self._sources[relation] = CSR.group(neighbor, passages[row], self._graph.num_nodes)
        return self._sources[relation]


def default_factory(count: int, dimension: int) -> str:
    """The kind of index for this many token vectors."""
    if count < EXHAUSTIVE or dimension % 2:
        return "Flat"
    lists = 2 ** int(math.log2(4 * math.sqrt(count)))
    return f"IVF{lists},PQ{dimension // 2}x4fs"
