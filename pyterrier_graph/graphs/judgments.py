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
from pyterrier_graph.storage.arrays import numbers_of

PASSAGE_NUMBER = rf"{PASSAGE_SEPARATOR}[0-9]+$"


def documents_of(docnos: pd.Series, graph: HeteroGraph | None = None) -> pd.Series:
    """Document ids of passages: ``docno%pN``, or any passages of the graph. Other ids stay unchanged."""
    documents = docnos.astype(object).str.replace(PASSAGE_NUMBER, "", regex=True)
    if graph is not None:
        nodes = graph.find(docnos.tolist())
        is_node = nodes >= 0
        numbers = graph.document[nodes[is_node]]
        documents[is_node] = graph.docnos_of(numbers)
    return documents


def passages_are_judged(qrels: pd.DataFrame, graph: HeteroGraph | None = None) -> bool:
    """Whether judgments are of passages, instead of documents. With a graph, the majority of judged ids decides."""
    if graph is None:
        return bool(qrels["docno"].str.contains(PASSAGE_NUMBER).any())
    docnos = qrels["docno"].unique().tolist()
    is_passage = graph.find(docnos) >= 0
    is_document = graph.find_documents(docnos) >= 0
    return is_passage.sum() >= is_document.sum()


def judged_ids(
    docnos: pd.Series, qrels: pd.DataFrame, graph: HeteroGraph | None = None
) -> pd.Series:
    """The id that judgments use for each passage: its own if passages are judged, else that of its document."""
    if passages_are_judged(qrels, graph):
        return docnos
    return documents_of(docnos, graph)


def passage_qrels(qrels: pd.DataFrame, passages: HeteroGraph | Lookup) -> pd.DataFrame:
    """Judgments of passages. If only documents of a graph are judged, a judgment counts for all their passages.

    Judgments of unknown docnos are left out with a warning.

    Args:
        qrels: ``qid, docno, label``.
        passages: A graph, or the ids of all passages of an index.

    Raises:
        KeyError: If no judged docno is in the graph or index.
    """
    qrels = check_frame(qrels, "qrels")
    docnos = qrels["docno"].tolist()
    if isinstance(passages, Lookup):
        numbers = numbers_of(passages, docnos)
        return qrels[_known(numbers, docnos)]
    if passages_are_judged(qrels, passages):
        nodes = passages.find(docnos)
        return qrels[_known(nodes, docnos)]
    documents = passages.find_documents(docnos)
    known = _known(documents, docnos)
    row, nodes = passages.document_passages.select(documents[known])
    judgments = qrels[known].iloc[row]  # a row per passage
    return judgments.assign(docno=passages.ids_of(nodes))


def _known(numbers: np.ndarray, docnos: list[str]) -> np.ndarray:
    """Whether each judged docno has a number; raises KeyError if none has, and warns if some have none."""
    known = numbers >= 0
    advice = "are the judgments of another corpus?"
    if not known.any():
        raise KeyError(f"nothing judged is in the corpus, got {docnos[:3]}: {advice}")
    if not known.all():
        unknown = [docnos[row] for row in np.flatnonzero(~known)]
        names = reprlib.repr(unknown)
        message = f"judged docnos {names} not in the graph: these judgments are ignored; {advice}"
        warnings.warn(message, DataWarning, stacklevel=4)
    return known
