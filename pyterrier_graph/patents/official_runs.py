"""Results as the task has them, which name a passage by its document and XPath."""

from __future__ import annotations

import logging
import os

import pandas as pd
import pyterrier as pt

from pyterrier_graph.datasets.clef_ip import Archive, RetrievedPassage, read_run, write_run
from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.patents.filters import DocumentCutoff

_logger = logging.getLogger(__name__)


def write_official_run(run: pd.DataFrame, path: str | os.PathLike[str], patents: Archive) -> None:
    """Writes results as ``topic Q0 document xpath rank score``, the passages of at most 100 documents per topic.

    Args:
        run: ``qid``, ``docno`` (of passages), ``score``; where scores are equal, ``rank`` decides if there is one, or
            else the order of the rows.
        path: The file; it appears when it is complete.
        patents: The collection, whose files tell the XPaths.

    Raises:
        pt.validate.InputValidationError: If a column is missing.
        KeyError: If a passage is not in the collection.
        ValueError: If a row cannot be written so: a topic with spaces, a score that is not finite.
    """
    pt.validate.result_frame(run, extra_columns=["score"])
    by_rank = ["rank"] if "rank" in run.columns else []
    ordered = run.sort_values(["score", *by_rank], ascending=[False, *[True] * len(by_rank)], kind="stable")
    if ordered["score"].isna().any():
        raise ValueError(f"passage {ordered['docno'].iloc[-1]!r} has no score")
    best = DocumentCutoff().transform(pt.model.add_ranks(ordered[["qid", "docno", "score"]]))
    xpaths: dict[str, str] = {}
    for docno, passages in _by_document(best["docno"]).items():
        patent = patents.patent(docno)
        xpaths |= {passage: patent.xpath(passage) for passage in passages}
    rows = zip(best["qid"], best["docno"], best["score"], strict=True)
    write_run(
        path,
        (RetrievedPassage(qid, split_passage_id(docno)[0], xpaths[docno], float(score)) for qid, docno, score in rows),
    )


def read_official_run(path: str | os.PathLike[str], patents: Archive) -> pd.DataFrame:
    """Reads results; lines that name no passage of the collection are left out, with a warning that counts them.

    Args:
        path: The file.
        patents: The collection.

    Returns:
        ``qid``, ``docno`` (of passages), ``score``, ``rank``. A passage that several XPaths lead to comes once, as the
        first of its lines has it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not ``topic Q0 document xpath rank score``; the message names file and line.
    """
    found = pd.DataFrame(read_run(path), columns=list(RetrievedPassage._fields))
    passages: dict[tuple[str, str], str] = {}
    for docno, xpaths in found.groupby("docno", sort=False)["xpath"].unique().items():
        try:
            patent = patents.patent(str(docno))
        except (KeyError, ValueError) as error:
            _logger.warning("%s: %s", path, error.args[0])
            continue
        for xpath in xpaths:
            try:
                passages[str(docno), xpath] = patent.passage_id(xpath)
            except KeyError as error:
                _logger.warning("%s: %s", path, error.args[0])
    names = [passages.get(place) for place in zip(found["docno"], found["xpath"], strict=True)]
    run = pd.DataFrame({"qid": found["query_id"], "docno": names, "score": found["score"].astype(float)})
    if unknown := names.count(None):
        _logger.warning("%s: %d of %d lines name no passage of the collection", path, unknown, len(names))
    return pt.model.add_ranks(run.dropna(subset="docno").drop_duplicates(["qid", "docno"]).reset_index(drop=True))


def _by_document(passages: pd.Series) -> dict[str, list[str]]:
    by_document: dict[str, list[str]] = {}
    for passage in passages.unique():
        by_document.setdefault(split_passage_id(passage)[0], []).append(passage)
    return by_document
