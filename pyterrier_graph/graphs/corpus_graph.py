"""Relations of passages as a corpus graph, which adaptive retrieval by ``pyterrier_adaptive`` follows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.storage.arrays import DOCNOS, write_ids
from pyterrier_graph.storage.artifact import atomic_folder

if TYPE_CHECKING:
    from pyterrier_adaptive import NpTopKCorpusGraph


def corpus_graph(
    graph: HeteroGraph, relations: Sequence[str], k: int, path: str | os.PathLike[str]
) -> NpTopKCorpusGraph:
    """Writes a corpus graph: see :meth:`DocumentGraph.corpus_graph <pyterrier_graph.DocumentGraph.corpus_graph>`."""
    from pyterrier_adaptive import NpTopKCorpusGraph

    neighbors = _first_neighbors(graph, relations, k)
    count = len(graph.passage_nodes)
    table = np.repeat(np.arange(count, dtype="<u4")[:, None], k, axis=1)  # (passages, k)
    weights = np.zeros(table.shape, dtype="<f2")
    position = neighbors.groupby("row").cumcount()
    table[neighbors["row"], position] = neighbors["neighbor"]
    weights[neighbors["row"], position] = 1
    kind = {"type": "corpus_graph", "format": "np_topk", "package_hint": "pyterrier-adaptive"}
    with atomic_folder(path, kind | {"doc_count": count, "k": k}) as folder:
        table.tofile(folder / "edges.u32.np")
        weights.tofile(folder / "weights.f16.np")
        write_ids(folder / DOCNOS, graph.ids_of(graph.passage_nodes))
    return NpTopKCorpusGraph(path)


def _first_neighbors(graph: HeteroGraph, relations: Sequence[str], k: int) -> pd.DataFrame:
    """The first k neighbors of each passage, as positions in ``passage_nodes``: ``row, neighbor``."""
    passages, frames = graph.passage_nodes, []
    for relation in relations:
        row, node = graph.neighbors(passages, relation)
        frame = pd.DataFrame({"row": row, "neighbor": np.searchsorted(passages, node)})
        frame = frame[graph.node_type[node] == PASSAGE_TYPE]
        frames.append(frame.sort_values(["row", "neighbor"]))
    distinct = pd.concat(frames).drop_duplicates()  # the first relation decides the order
    return distinct.groupby("row").head(k)
