"""Relations of passages as a corpus graph, which adaptive retrieval by ``pyterrier_adaptive`` follows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph

if TYPE_CHECKING:
    from pyterrier_adaptive import NpTopKCorpusGraph


def corpus_graph(
    graph: HeteroGraph,
    passages: Iterable[dict[str, Any]],
    relations: Sequence[str],
    k: int,
    path: str | os.PathLike[str],
) -> NpTopKCorpusGraph:
    """Writes a corpus graph: see :meth:`DocumentGraph.corpus_graph <pyterrier_graph.DocumentGraph.corpus_graph>`."""
    from pyterrier_adaptive import CorpusGraph

    def neighbors(batch: pd.DataFrame) -> pd.DataFrame:
        """Retrieves the neighbors of passages, whose ids are in ``qid``."""
        qids = batch["qid"].to_numpy()
        nodes = graph.nodes_of(qids.tolist())
        frames = []
        for relation in relations:
            row, node = graph.neighbors(nodes, relation)
            frame = pd.DataFrame({"qid": qids[row], "node": node})
            frames.append(frame)
        run = pd.concat(frames).drop_duplicates()  # the first relation decides the order
        is_passage = graph.node_type[run["node"]] == PASSAGE_TYPE
        run = run[is_passage]
        docnos = graph.ids_of(run["node"])
        return run.assign(docno=docnos, score=1.0)

    return CorpusGraph.from_retriever(neighbors, passages, path, k=k)
