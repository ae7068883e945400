"""Judgments of passages, or of documents for all their passages."""

from __future__ import annotations

import reprlib
import warnings

import numpy as np
import pandas as pd
from npids.lookup import Lookup

from pyterrier_graph.checks import DataWarning, check_frame
from pyterrier_graph.documents.document import PASSAGE_SEPARATOR
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.storage.arrays import IDS_AT_ONCE, blocks, ids_of, numbers_of

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
    """Judgments of passages. If only documents are judged, a judgment counts for all passages of its document.

    Judgments of unknown docnos are left out with a warning.

    Args:
        qrels: ``qid, docno, label``.
        passages: A graph, or the ids of all passages of an index.

    Raises:
        KeyError: If no judged docno is in the graph or index.
    """
    qrels = check_frame(qrels, "qrels")
    if isinstance(passages, Lookup):
        known, row, ids = _in_index(passages, qrels["docno"])
    else:
        known, row, ids = _in_graph(passages, qrels)
    if not known.any():
        corpus = "the index" if isinstance(passages, Lookup) else passages
        some_docnos = qrels["docno"].tolist()[:3]
        raise KeyError(
            f"nothing judged is in {corpus}, got {some_docnos}: are the judgments of another corpus?"
        )
    if not known.all():
        unknown = reprlib.repr(qrels["docno"][~known].tolist())
        message = f"judged docnos {unknown} not in the graph: these judgments are ignored; are they of another corpus?"
        warnings.warn(message, DataWarning, stacklevel=3)
    return qrels.iloc[row].assign(docno=ids)


JudgedPassages = tuple[np.ndarray, np.ndarray, list[str]]
"""Whether each judgment is of a known docno, and the row and the id of each judged passage."""


def _in_graph(graph: HeteroGraph, qrels: pd.DataFrame) -> JudgedPassages:
    docnos = qrels["docno"].tolist()
    if passages_are_judged(qrels, graph):
        known = graph.find(docnos) >= 0
        return known, np.flatnonzero(known), qrels["docno"][known].tolist()
    documents = graph.find_documents(docnos)
    known = documents >= 0
    position, nodes = graph.document_passages.select(documents[known])
    return known, np.flatnonzero(known)[position], graph.ids_of(nodes)


def _in_index(ids: Lookup, docnos: pd.Series) -> JudgedPassages:
    known = numbers_of(ids, docnos.tolist()) >= 0
    if known.any():
        return known, np.flatnonzero(known), docnos[known].tolist()
    tables = []
    for numbers in blocks(len(ids), IDS_AT_ONCE):
        passages = pd.Series(ids_of(ids, numbers), dtype=object)
        table = pd.DataFrame({"docno": documents_of(passages), "passage": passages})
        tables.append(table[table["docno"].isin(docnos)])
    judged = pd.DataFrame({"docno": docnos.astype(object), "row": np.arange(len(docnos))})
    table = judged.merge(pd.concat(tables), on="docno")
    known[table["row"]] = True
    return known, table["row"].to_numpy(), table["passage"].tolist()
