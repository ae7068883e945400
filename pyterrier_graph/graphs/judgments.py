"""Judgments of passages, or of documents for all their passages."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from npids.lookup import Lookup

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import PASSAGE_SEPARATOR
from pyterrier_graph.storage.arrays import IDS_AT_ONCE, blocks, ids_of, numbers_of, some

HeteroGraph = Any  # of graphs.hetero_graph, which imports this module
PASSAGE_NUMBER = rf"{PASSAGE_SEPARATOR}[0-9]+$"


def documents_of(docnos: pd.Series, graph: HeteroGraph | None = None) -> pd.Series:
    """Document ids of passages: ``docno%pN``, or any passages of the graph. Other ids stay unchanged."""
    documents = docnos.astype(object).str.replace(PASSAGE_NUMBER, "", regex=True)
    if graph is not None:
        nodes = graph.find(docnos.tolist())
        documents[nodes >= 0] = graph.docnos_of(graph.document[nodes[nodes >= 0]])
    return documents


def passages_are_judged(qrels: pd.DataFrame, graph: HeteroGraph | None = None) -> bool:
    """Whether judgments are of passages, instead of documents. With a graph, the majority of judged ids decides."""
    if graph is None:
        return bool(qrels["docno"].str.contains(PASSAGE_NUMBER).any())
    docnos = qrels["docno"].unique().tolist()
    return (graph.find(docnos) >= 0).sum() >= (graph.find_documents(docnos) >= 0).sum()


def judged_ids(
    docnos: pd.Series, qrels: pd.DataFrame, graph: HeteroGraph | None = None
) -> pd.Series:
    """The id that judgments use for each passage: its own if passages are judged, else that of its document."""
    return docnos if passages_are_judged(qrels, graph) else documents_of(docnos, graph)


def passage_qrels(qrels: pd.DataFrame, passages: HeteroGraph | Lookup) -> pd.DataFrame:
    """Judgments of passages, as :meth:`HeteroGraph.passage_qrels`, given a graph or the ids of all passages."""
    docnos = qrels["docno"].tolist()
    if isinstance(passages, Lookup):
        known, row, ids = _in_ids(passages, docnos)
    else:
        known, row, ids = _in_graph(passages, qrels)
    if not known.any():
        corpus = "the index" if isinstance(passages, Lookup) else passages
        raise KeyError(
            f"nothing judged is in {corpus}, got {docnos[:3]}: are the judgments of another corpus?"
        )
    if not known.all():
        unknown = some(qrels["docno"][~known].tolist(), "judged docno")
        message = (
            f"{unknown} not in the graph: these judgments are ignored; are they of another corpus?"
        )
        warnings.warn(message, DataWarning, stacklevel=3)
    return qrels.iloc[row].assign(docno=ids)


Passages = tuple[np.ndarray, np.ndarray, list[str]]
"""Whether each judgment is of a known docno, and the row and the id of each judged passage."""


def _in_graph(graph: HeteroGraph, qrels: pd.DataFrame) -> Passages:
    docnos = qrels["docno"].tolist()
    if passages_are_judged(qrels, graph):
        known = graph.find(docnos) >= 0
        return known, np.flatnonzero(known), qrels["docno"][known].tolist()
    documents = graph.find_documents(docnos)
    known = documents >= 0
    position, nodes = graph.passages_of_documents(documents[known])
    return known, np.flatnonzero(known)[position], graph.ids_of(nodes)


def _in_ids(ids: Lookup, docnos: list[str]) -> Passages:
    known = numbers_of(ids, docnos) >= 0
    if known.any():
        rows = np.flatnonzero(known)
        return known, rows, [docnos[row] for row in rows]
    tables = [pd.DataFrame({"docno": [], "passage": []}, dtype=object)]
    for numbers in blocks(len(ids), IDS_AT_ONCE):
        passages = pd.Series(ids_of(ids, numbers), dtype=object)
        table = pd.DataFrame({"docno": documents_of(passages), "passage": passages})
        tables.append(table[table["docno"].isin(docnos)])
    judged = pd.Series(docnos, dtype=object, name="docno").rename_axis("row").reset_index()
    table = judged.merge(pd.concat(tables), on="docno")
    known[table["row"]] = True
    return known, table["row"].to_numpy(), table["passage"].tolist()
