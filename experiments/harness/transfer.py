"""Networks that are trained on one collection and used on another."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Queries, joined
from experiments.harness.judgments import judged_ranking

DEPTH, KEPT = 1000, 100


@dataclass(frozen=True)
class Place:
    """A collection on which networks are trained and used.

    Attributes:
        graph: The documents.
        queries: ``train``, ``dev`` and ``test``.
        folder: For vectors and indexes.
        query_graph: The graph of training queries, for networks with relations of queries.
    """

    graph: ptg.DocumentGraph
    queries: Mapping[str, Queries]
    folder: Path
    query_graph: ptg.QueryPassageGraph | None = None


def place_of(collection: Collection, folder: Path, *, dev_queries: int = 300, passage_words: int = 120) -> Place:
    """A collection with the graph of its documents, which is built in a folder if it is not there."""
    graph = collection.graph(folder / "documents", passage_words=passage_words)
    queries = collection.split(dev_queries=dev_queries)
    if "extra" in queries:
        queries["train"] = joined([queries["train"], queries["extra"]])
    return Place(graph, queries, folder)


def untrained(place: Place, encoder: ptg.DualEncoder, seed: int = 0, **options: object) -> ptg.GNNEncoder:
    """A :class:`~pyterrier_graph.GNNEncoder` as it starts, for a collection."""
    shape = {name: options.pop(name) for name in ("weights", "heads", "edges") if name in options}
    config = ptg.GNNEncoderConfig(seed=seed, **shape)  # type: ignore[arg-type]
    given = {"query_graph": place.query_graph, "folder": place.folder / "vectors", "config": config, **options}
    return ptg.GNNEncoder(place.graph, encoder, **given)  # type: ignore[arg-type]


def used_at(model: ptg.GNNEncoder, place: Place) -> ptg.GNNEncoder:
    """A copy of a trained network for another collection, with the same weights."""
    folder = place.folder / "vectors"
    return model.apply_attributes(graph=place.graph, query_graph=place.query_graph, vectors=None, folder=folder)


def ranking(model: ptg.GNNEncoder, place: Place, path: Path) -> pd.DataFrame:
    """Ranks the test queries by a network: documents by their best passage, where documents are judged.

    Args:
        model: The network, for this collection.
        place: The collection.
        path: Folder of the index, which is deleted afterwards.
    """
    test = place.queries["test"]
    shutil.rmtree(path, ignore_errors=True)
    found = model.index(path, windows=1).flex.np_retriever(num_results=DEPTH, drop_query_vec=True)(
        model.query_encoder()(test.topics)
    )
    shutil.rmtree(path, ignore_errors=True)
    return judged_ranking(found, test.qrels, KEPT)
