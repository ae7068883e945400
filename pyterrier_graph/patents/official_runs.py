"""Runs in the format of the task, which names a passage by its document and XPath."""

import os
import warnings

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_frame
from pyterrier_graph.datasets.clef_ip import Archive, RetrievedPassage, read_run
from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.patents.transformers import DocumentCutoff
from pyterrier_graph.warning_categories import DataWarning


def write_official_run(
    run: pd.DataFrame, path: str | os.PathLike[str], patents: Archive, *, verbose: bool = True
) -> None:
    """Writes a run as ``topic Q0 document xpath rank score``: the passages of the 100 best documents of each topic.

    Args:
        run: ``qid``, ``docno`` (of passages), ``score``. Passages with equal scores are ordered by ``rank`` if there is
            this column, or else by row.
        path: The file. It appears when it is complete.
        patents: The collection, from which the XPaths are read.
        verbose: Whether to show progress when it takes long.

    Raises:
        pt.validate.InputValidationError: If a column is missing.
        KeyError: If a passage is not in the collection.
        ValueError: If a score is not finite, or the id of a topic contains a space.
    """
    from ir_datasets.util import finialized_file

    run = check_frame(run, "write_official_run", numbers=("score", "rank"))
    pt.validate.result_frame(run, extra_columns=["score"])
    by_rank = ["rank"] if "rank" in run.columns else []
    ordered = run.sort_values(["score", *by_rank], ascending=[False, *[True] * len(by_rank)], kind="stable")
    for qid, docno, score in zip(ordered["qid"], ordered["docno"], ordered["score"], strict=True):
        if str(qid).split() != [str(qid)] or not np.isfinite(score):
            raise ValueError(f"a run needs topics without spaces and finite scores, got {qid!r}, {docno!r}, {score}")
    best = DocumentCutoff(100).transform(pt.model.add_ranks(ordered[["qid", "docno", "score"]]))
    names = pd.Series([split_passage_id(passage)[0] for passage in best["docno"]], best.index, dtype=object)
    by_document = best["docno"].groupby(names, sort=False)
    xpaths: dict[str, str] = {}
    for docno, passages in pt.tqdm(by_document, desc="XPaths", unit="document", disable=not verbose, delay=1):
        patent = patents.patent(docno)
        xpaths |= {passage: patent.xpath(passage) for passage in passages.unique()}
    rows = sorted(zip(best["qid"], best["rank"], best["docno"], best["score"], strict=True), key=lambda row: row[:2])
    with finialized_file(os.fspath(path), "wb") as file:
        for qid, rank, passage, score in rows:
            document = split_passage_id(passage)[0]
            file.write(f"{qid} Q0 {document} {xpaths[passage]} {rank + 1} {float(score)!r}\n".encode())


def read_official_run(path: str | os.PathLike[str], patents: Archive, *, verbose: bool = True) -> pd.DataFrame:
    """Reads a run. Lines whose passage is not in the collection are left out; a warning counts them.

    The arguments are those of :func:`write_official_run`.

    Returns:
        ``qid``, ``docno`` (of passages), ``score``, ``rank``. If several lines name the same passage, the first counts.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not ``topic Q0 document xpath rank score``; the message names file and line.
    """
    found = pd.DataFrame(read_run(path), columns=list(RetrievedPassage._fields))
    places = [*zip(found["docno"], found["xpath"], strict=True)]
    passages = patents.passage_ids(places, verbose=verbose)
    names = [passages.get(place) for place in places]
    run = pd.DataFrame({"qid": found["query_id"], "docno": names, "score": found["score"].astype(float)})
    if missing := [place for place in places if place not in passages]:
        lines = (
            f"{len(missing)} of {len(places)} lines name no passage of the collection, such as {''.join(missing[0])}"
        )
        warnings.warn(
            f"{path}: {lines}: they are left out; is the run of another collection?", DataWarning, stacklevel=2
        )
    return pt.model.add_ranks(run.dropna(subset="docno").drop_duplicates(["qid", "docno"]).reset_index(drop=True))
