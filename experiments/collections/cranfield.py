"""The Cranfield 1400 collection: abstracts on aerodynamics, in the form of the Glasgow IR test collections."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import pandas as pd

from experiments.collections.smart import smart_records
from experiments.harness.collection import ALL, Collection, Queries

ARCHIVE = "cran.tar.gz"
FIELDS = "TABW"
GRADES = {1: 4, 2: 3, 3: 2, 4: 1, -1: 0}  # by the codes of the judgments, of which 1 is the best


def read_cranfield(path: str | Path) -> Collection:
    """Reads the collection from its archive.

    A query's id is its place in the file, counted from 1: the judgments use these places, not the numbers in the file.
    The judgments' codes become grades: from 4 for a complete answer (code 1) down to 1 (code 4), and 0 for the code -1,
    which the collection does not explain.

    Args:
        path: The archive ``cran.tar.gz``, or the folder that holds it.

    Raises:
        FileNotFoundError: If there is no such archive.
        ValueError: If it is cut short, lacks a file, or one holds something else than it should.
    """
    path = Path(path)
    archive = path / ARCHIVE if path.is_dir() else path
    try:
        with tarfile.open(archive, "r:gz") as members:
            documents, queries, judgments = (
                _member(members, name) for name in ("cran.all.1400", "cran.qry", "cranqrel")
            )
    except (tarfile.TarError, EOFError, KeyError, zlib.error) as error:
        raise ValueError(
            f"{archive} is not a complete archive of the Cranfield collection: {error}"
        ) from error
    return Collection.in_memory(
        "Cranfield", _documents(documents), {ALL: Queries(_topics(queries), _qrels(judgments))}
    )


def _member(members: tarfile.TarFile, name: str) -> list[str]:
    content = members.extractfile(name)
    assert content is not None  # a missing file raises KeyError
    return content.read().decode().splitlines()


def _documents(lines: list[str]) -> list[dict[str, str]]:
    documents = []
    for number, fields in smart_records(lines, "cran.all.1400", FIELDS):
        title, text = fields["T"], fields["W"]
        documents.append(
            {"docno": number, "title": title, "text": text.removeprefix(title).strip()}
        )
    return documents


def _topics(lines: list[str]) -> pd.DataFrame:
    queries = [fields["W"] for _, fields in smart_records(lines, "cran.qry", FIELDS)]
    return pd.DataFrame(
        {"qid": [str(place) for place in range(1, len(queries) + 1)], "query": queries}
    )


def _qrels(lines: list[str]) -> pd.DataFrame:
    rows = []
    for place, line in enumerate(lines, start=1):
        try:
            qid, docno, code = line.split()
            rows.append((qid, docno, GRADES[int(code)]))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"cranqrel, line {place}: not query, document and code (-1, 1 to 4): {line!r}"
            ) from error
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])
