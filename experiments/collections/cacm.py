"""The CACM collection: titles, abstracts and citations of Communications of the ACM, in the form of SMART."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.collections.smart import smart_records
from experiments.harness.collection import ALL, Collection, Queries, Record
from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Node, Reference

CITATION = "5"


def read_cacm(path: str | Path) -> Collection:
    """Reads the collection from the folder that holds ``cacm.all``, ``query.text`` and ``qrels.text``.

    A document has one section, its title, and one passage: the abstract, or the title where there is no abstract. Links
    of citation are ``external`` references; the collection does not say which of two documents cites the other, and
    lists each link at both. Documents are judged, not passages, with grade 1. Queries without judgments are left out.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one holds something else than it should; the message names file and line, or the document.
    """
    folder = Path(path)
    asked = smart_records(_lines(folder / "query.text"), "query.text", "WAN")
    topics = [(number, fields["W"]) for number, fields in asked if fields["W"]]
    documents = smart_records(_lines(folder / "cacm.all"), "cacm.all", "TWBAKCNX")
    queries = Queries(
        pd.DataFrame(topics, columns=["qid", "query"]), _qrels(_lines(folder / "qrels.text"))
    )
    judged = queries.among(queries.qrels["qid"])
    return Collection.in_memory(
        "CACM", [_record(number, fields) for number, fields in documents], {ALL: judged}
    )


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _record(docno: str, fields: dict[str, str]) -> Record:
    related = fields["X"].split()
    triples = [*zip(related[::3], related[1::3], related[2::3], strict=False)]
    if len(related) % 3 or any(this != docno for _, _, this in triples):
        raise ValueError(
            f"cacm.all: the relations of document {docno} are not lines of other, type, {docno}"
        )
    linked = dict.fromkeys(
        other for other, kind, _ in triples if kind == CITATION and other != docno
    )
    text = fields["W"] or fields["T"]
    return {
        "docno": docno,
        "title": fields["T"],
        "text": text,
        "nodes": [Node(SECTION, fields["T"], NO_PARENT), Node(PASSAGE, text, 0)],
        "links": [],
        "references": [Reference("external", 0, other) for other in linked],
    }


def _qrels(lines: list[str]) -> pd.DataFrame:
    rows = []
    for place, line in enumerate(lines, start=1):
        try:
            qid, docno, _, _ = map(int, line.split())
        except ValueError as error:
            raise ValueError(
                f"qrels.text, line {place}: not query, document and two numbers: {line!r}"
            ) from error
        rows.append((str(qid), str(docno), 1))
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])
