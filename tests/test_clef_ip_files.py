"""Topics, judgments and runs of the CLEF-IP task, and the folders of its patents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyterrier_graph.clef_ip.files import Archive, Judgment, Topic, read_qrels, read_topics

CLAIM = "/patent-document/claims/claim[{}]"
TOPICS_2013 = """<tid>PSG1</tid>
<tfile>EP-1480263-A1.xml</tfile>
<tfam-docs>JP-2003224099-A.xml WO-2003065434-A1.xml</tfam-docs>
<tclaims>/patent-document/claims/claim[1] /patent-document/claims/claim[2]</tclaims>

<tid>PSG2</tid>
<tfile>WO-2002015251-A1.xml</tfile>
<tfam-docs></tfam-docs>
<tclaims>/patent-document/claims/claim</tclaims>
"""
TOPICS_2012 = """<tid>tPSG-5</tid>
<file>EP-1480263-A1.xml</tfile>
<claims>/patent-document/claims/claim[1]
    /patent-document/claims/claim[2],
/patent-document/claims/claim[2]</tclaims>
<tid> tPSG-6
<TFILE>EP-1480263-A1.xml
<tclaims>/patent-document/claims/claim[9]"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes, name: str = "file.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_topics_of_2013(write: Callable[[str], Path]) -> None:
    expected = [
        Topic(
            "PSG1",
            "EP-1480263-A1",
            (CLAIM.format(1), CLAIM.format(2)),
            ("JP-2003224099-A", "WO-2003065434-A1"),
        ),
        Topic("PSG2", "WO-2002015251-A1", ("/patent-document/claims/claim",)),
    ]
    assert read_topics(write(TOPICS_2013)) == expected
    assert read_topics(write("\ufeff" + TOPICS_2013.replace("\n", "\r\n"))) == expected
    assert read_topics(write(TOPICS_2013.replace("\n", ""))) == expected


def test_topics_of_2012(write: Callable[[str], Path]) -> None:
    assert read_topics(write(TOPICS_2012)) == [
        Topic("tPSG-5", "EP-1480263-A1", (CLAIM.format(1), CLAIM.format(2))),
        Topic("tPSG-6", "EP-1480263-A1", (CLAIM.format(9),)),
    ]


JUDGMENTS = [
    Judgment("PSG1", "EP-1000000-A1", CLAIM.format(2)),
    Judgment("PSG1", "WO-2002015251-A1", "/patent-document/abstract/p"),
    Judgment("PSG2", "EP-1000000-A1", "/patent-document/description/p[22]"),
]


@pytest.mark.parametrize(
    "line",
    [
        "{0},{1},{2}",
        "{0} Q0 {1} {2}",
        "{0} {1} {2}",
        "{0}\t0\t{1}\t{2}\t1",
        "  {0} 0 {1} {2} 1\r",
    ],
)
def test_qrels_in_each_variant(line: str, write: Callable[[str], Path]) -> None:
    text = "\n\n".join(line.format(*judgment) for judgment in JUDGMENTS) + "\n"
    assert [*read_qrels(write(text))] == JUDGMENTS


@pytest.mark.parametrize("line", ["PSG1", "PSG1 Q0 EP-1000000 /x", "PSG1,EP-1000000-A1"])
def test_bad_qrels(line: str, write: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="does not name a topic, a docno and an XPath"):
        [*read_qrels(write(f"PSG1 0 EP-1000000-A1 /x 1\n{line}\n"))]


# Folders

DOCNOS = [
    "EP-0000001-A1",
    "EP-0968118-A1",
    "EP-0968118-B1",
    "EP-1234567-A2",
    "WO-1981000001-A1",
    "WO-2002015251-A1",
]
TREE = {
    "EP-0000001-A1": "EP/000000/00/00/01",
    "EP-0968118-A1": "EP/000000/96/81/18",
    "EP-0968118-B1": "EP/000000/96/81/18",
    "EP-1234567-A2": "EP/000001/23/45/67",
    "WO-1981000001-A1": "WO/001981/00/00/01",
    "WO-2002015251-A1": "WO/002002/01/52/51",
}
XML = "<patent-document><invention-title>{}</invention-title><abstract><p>Of it.</p></abstract></patent-document>"


def make(folder: Path, folders: dict[str, str]) -> Archive:
    for docno, inner in folders.items():
        (folder / inner).mkdir(parents=True, exist_ok=True)
        (folder / inner / f"{docno}.xml").write_text(XML.format(docno), "utf-8")
    return Archive(folder)


def test_files_of_patents(tmp_path: Path) -> None:
    archive = make(tmp_path, TREE)
    patents = [*archive.patents()]
    assert [patent.doc_id for patent in patents] == [patent.title for patent in patents] == DOCNOS
    for patent in patents:
        assert archive.patent(patent.doc_id) == patent
        assert (
            archive.path(patent.doc_id) == tmp_path / TREE[patent.doc_id] / f"{patent.doc_id}.xml"
        )
    for docno in (
        "EP-0968118-A2",
        "EP-0968118",
        "EP-../../etc-A1",
        "../EP-0968118-A1",
        "",
        "EP-0968118-A1/",
        "JP-1-A",
    ):
        with pytest.raises(KeyError, match="there is no patent"):
            archive.path(docno)


def test_bad_files_are_named_and_skipped(tmp_path: Path) -> None:
    archive = make(tmp_path, TREE)
    bad = {
        "EP/000000/96/81/18/EP-0968118-A1.xml": XML[:50],
        "EP/000001/23/45/67/EP-1234567-A2.xml": "",
    }
    (tmp_path / "WO/readme.txt").write_text("words", "utf-8")
    for name, text in bad.items():
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.warns(UserWarning) as warned:
        docnos = [patent.doc_id for patent in archive.patents()]
    assert docnos == [DOCNOS[0], DOCNOS[2], *DOCNOS[4:]]
    for name, warning in zip(bad, warned, strict=True):
        assert f"skipped {tmp_path / name}" in str(warning.message)
