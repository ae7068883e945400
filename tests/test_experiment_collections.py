"""The readers of the benchmark collections, on tiny files in the collections' formats."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

from experiments.collections.cacm import read_cacm
from experiments.collections.cranfield import read_cranfield
from experiments.collections.medquad import ARCHIVE, read_medquad
from experiments.collections.qasper import read_qasper
from experiments.collections.trec_car import read_trec_car
from experiments.harness.collection import ALL, Collection
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.documents.records import read_record

# ---------------------------------------------------------------------------------------------------------- MedQuAD


def page(focus: str, pairs: list[tuple[str, str]], concepts: tuple[str, ...] = ()) -> str:
    cuis = "".join(f"<CUI>{concept}</CUI>" for concept in concepts)
    qa = "".join(
        f'<QAPair pid="{n}"><Question qid="0000001-{n}" qtype="kindword">{question}</Question>'
        f"<Answer>{answer}</Answer></QAPair>"
        for n, (question, answer) in enumerate(pairs, 1)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Document id="0000001" source="X" url="http://example.org/x">'
        f"<Focus>{focus}</Focus><FocusAnnotations><UMLS><CUIs>{cuis}</CUIs></UMLS></FocusAnnotations>"
        f"<QAPairs>{qa}</QAPairs></Document>"
    )


PAGES = {
    "1_CancerGov_QA/0000001_1": page(
        "Blue\n fever",
        [
            ("What  is askword ?", "It is blue.\n\n" + "long " * 130),
            ("Who gets askword ?", "Blue &amp; green people."),
        ],
        ("C01", "C02"),
    ),
    "1_CancerGov_QA/0000001_2": page(
        "Red fever", [("Why red askword ?", "No one knows.")], ("C01",)
    ),
    "2_GARD_QA/0000002": page(
        "Green fever",
        [
            ("Is it askword ?", "Yes."),
            ("Nothing askword ?", " \n "),
            ("IS it  askword ?", "Now and then."),
        ],
        ("C02", "C01"),
    ),
    "6_NINDS_QA/0000007": (
        '<doc docid="7" corpus="X" url="u"><doctitle-focus>Old fever</doctitle-focus><umls><cui>C09</cui></umls>'
        '<qaPairs><pair pid="3"><question qid="7-3" qtype="kindword">Old askword ?</question>'
        "<answer>An old answer.</answer></pair></qaPairs></doc>"
    ),
    "10_MPlus_ADAM_QA/0000001": page("Silent fever", [("Removed askword ?", "")], ("C01",)),
}


def write_archive(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))


def documents(collection: Collection) -> dict[str, StructuredDocument]:
    return {
        record["docno"]: read_record(record) for record in collection.get_corpus_iter(verbose=False)
    }


def relevant(collection: Collection) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Text and relevant passages of each query."""
    topics, qrels = collection.all_queries
    passages = qrels.groupby("qid")["docno"].agg(tuple)
    return {row.qid: (row.query, passages[row.qid]) for row in topics.itertuples()}


def test_medquad(tmp_path: Path) -> None:
    files = {f"MedQuAD/{name}.xml": content for name, content in PAGES.items()}
    write_archive(tmp_path / ARCHIVE, {"MedQuAD/readme.txt": "Read me", "notes.xml": "<a>"} | files)
    assert relevant(read_medquad(tmp_path, passages=None, verbose=False)) == {
        "1_CancerGov_QA/0000001_1-1": (
            "What is askword ?",
            tuple(f"1_CancerGov_QA/0000001_1%p{n}" for n in range(3)),
        ),
        "1_CancerGov_QA/0000001_1-2": ("Who gets askword ?", ("1_CancerGov_QA/0000001_1%p3",)),
        "1_CancerGov_QA/0000001_2-1": ("Why red askword ?", ("1_CancerGov_QA/0000001_2%p0",)),
        # The question of pair 3 is that of pair 1.
        "2_GARD_QA/0000002-1": (
            "Is it askword ?",
            ("2_GARD_QA/0000002%p0", "2_GARD_QA/0000002%p1"),
        ),
        "6_NINDS_QA/0000007-3": ("Old askword ?", ("6_NINDS_QA/0000007%p0",)),
    }


# --------------------------------------------------------------------------------------------------------- TREC CAR


def link(page_id: str) -> dict[str, str | None]:
    return {"page": page_id, "page_id": page_id, "section": None, "anchor": "there"}


def place(para_id: str, *headings: str) -> dict[str, object]:
    return {
        "para_id": para_id,
        "headings": list(headings),
        "heading_ids": [h.replace(" ", "%20") for h in headings],
    }


PARAGRAPHS = {
    "a1": ("The lead.", ["Elsewhere", "Elsewhere", "Tea"]),
    "a2": ("Directly under.", []),
    "a3": ("Deeper down.", ["Tea", "Red%20kite"]),
    "a4": ("Back up.", [""]),
    "b1": ("Of kites.", ["Tea", "Green%20tea"]),
    "both": ("where", []),
}
CAR_PAGES = {
    "Red%20kite": [
        place("a1"),
        place("a2", "Headword one"),
        place("a3", "Headword one", "Headword two"),
        place("both", "Headword one", "Headword two"),
        place("a4", "Headword three"),
        place("both", "Headword three"),
    ],
    "Green%20tea": [place("b1", "Headword four", "Headword one"), place("both", "Headword one")],
}
TOPICS = [
    ("Red%20kite/Headword%20one", "Red kite Headword one"),
    ("Red%20kite/Headword%20one/Headword%20two", "Red kite Headword one Headword two"),
    ("Red%20kite/Headword%20three", "Red kite Headword three"),
    ("Green%20tea/Headword%20four", "Green tea Headword four"),
    ("Green%20tea/Headword%20four/Headword%20one", "Green tea Headword four Headword one"),
]
QRELS = [
    ("Red%20kite/Headword%20one", "a2"),
    ("Red%20kite/Headword%20one/Headword%20two", "a3"),
    ("Red%20kite/Headword%20one/Headword%20two", "both"),
    ("Red%20kite/Headword%20three", "a4"),
    ("Green%20tea/Headword%20four/Headword%20one", "b1"),
]


def test_trec_car(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "passages.jsonl.gz", "wt", encoding="utf-8") as file:
        for para_id, (text, targets) in PARAGRAPHS.items():
            file.write(
                json.dumps({"para_id": para_id, "text": text, "links": [link(t) for t in targets]})
                + "\n"
            )
    with gzip.open(tmp_path / "pages.jsonl.gz", "wt", encoding="utf-8") as file:
        for page_id, paragraphs in CAR_PAGES.items():
            name = page_id.replace("%20", " ")
            file.write(
                json.dumps({"page_id": page_id, "page_name": name, "paragraphs": paragraphs}) + "\n"
            )
    (tmp_path / "topics.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in TOPICS))
    (tmp_path / "hierarchical.qrels").write_text(
        "".join(f"{qid} 0 {para_id} 1\n" for qid, para_id in QRELS)
    )
    collection = read_trec_car(tmp_path)
    assert {qid: passages for qid, (_, passages) in relevant(collection).items()} == {
        "Red%20kite/Headword%20one": ("Red%20kite%p1",),
        "Red%20kite/Headword%20one/Headword%20two": (
            "Red%20kite%p2",
            "Red%20kite%p3",
            "Red%20kite%p5",
            "Green%20tea%p1",
        ),
        "Red%20kite/Headword%20three": ("Red%20kite%p4",),
        "Green%20tea/Headword%20four/Headword%20one": ("Green%20tea%p0",),
    }
    assert collection.queries["train"].topics["qid"].str.startswith("Red").all()
    assert not len(collection.queries["test"].topics)
    assert list(collection.queries["dev"].topics["query"]) == [
        "Green tea Headword four Headword one"
    ]
    passages = {
        f"{d.docno}%p{n}" for d in documents(collection).values() for n in range(len(d.passages()))
    }
    assert set(collection.all_queries.qrels["docno"]) == passages - {"Red%20kite%p0"}


# ------------------------------------------------------------------------------------------ Vaswani and Cranfield

CRANFIELD = {
    "cran.all.1400": ".I 1\n.T\na wing in a\nslipstream .\n.A\nbrenckman,m.\n.B\nj. 1958\n"
    ".W\na wing in a\nslipstream .\n"
    "  an experimental study .\n.I 2\n.T\n.A\n.B\n.W\n.I 3\n.T\nshear\n.A\n.B\n.W\nanother beginning\n",
    "cran.qry": ".I 001\r\n.W\r\nwhat laws ?\r\n.I 004\r\n.W\r\nwhat\r\nproblems ?\r\n",
    "cranqrel": "1 1 1 \n1 3       4\n2 3 -1\n",
}


def test_cranfield(tmp_path: Path) -> None:
    write_archive(tmp_path / "cran.tar.gz", CRANFIELD)
    found = read_cranfield(tmp_path)
    assert list(found.documents()) == [
        {"docno": "1", "title": "a wing in a slipstream .", "text": "an experimental study ."},
        {"docno": "2", "title": "", "text": ""},
        {"docno": "3", "title": "shear", "text": "another beginning"},
    ]
    assert found.all_queries.topics.to_numpy().tolist() == [
        ["1", "what laws ?"],
        ["2", "what problems ?"],
    ]  # by place
    assert found.all_queries.qrels.to_numpy().tolist() == [
        ["1", "1", 4],
        ["1", "3", 1],
        ["2", "3", 0],
    ]
    assert found.texts(["1", "2"]) == {
        "1": "a wing in a slipstream .\nan experimental study .",
        "2": "",
    }


# ---------------------------------------------------------------------------------------------------- CACM and QASPER

CACM = {
    "cacm.all": ".I 1\n.T\nRoots by\nSubtraction\n.B\nCACM 1958\n.A\nSugai, I.\n.N\nCA581202 JB\n"
    ".X\n1\t5\t1\n3\t5\t1\n3\t5\t1\n2\t6\t1\n2\t4\t1\n"
    ".I 2\n.T\nAlgebra\n.W\nA language .W is\ndescribed.\n.K\nsecret\n.C\n5.14\n.X\n2\t5\t2\n1\t6\t2\n"
    ".I 3\n.T\nSorting\n.X\n1\t5\t3\n",
    "query.text": ".I 1\n.W\n What about\nTSS?\n.N\n 1. Richard\n\n"
    ".I 2\n.W\nby Prieve\n.A\nPrieve, B.\n.I 3\n.W\nwhat\n.I 0\n",
    "qrels.text": "01 3 0 0\n01 1 0 0\n03 2  0 0\n",
}


def test_cacm(tmp_path: Path) -> None:
    for name, content in CACM.items():
        (tmp_path / name).write_text(content)
    collection = read_cacm(tmp_path)
    found = documents(collection)
    assert {docno: (document.title, document.passages()) for docno, document in found.items()} == {
        "1": ("Roots by Subtraction", ["Roots by Subtraction"]),  # there is no abstract
        "2": ("Algebra", ["A language .W is described."]),
        "3": ("Sorting", ["Sorting"]),
    }
    assert {
        docno: [tuple(reference) for reference in document.references]
        for docno, document in found.items()
    } == {
        "1": [("external", 0, "3")],  # once, and neither to itself nor for what is cited together
        "2": [],
        "3": [("external", 0, "1")],
    }
    topics, qrels = collection.queries[ALL]
    assert topics.to_numpy().tolist() == [["1", "What about TSS?"], ["3", "what"]]
    assert qrels.to_numpy().tolist() == [["1", "3", 1], ["1", "1", 1], ["3", "2", 1]]


def evidence(*answers: list[str]) -> dict[str, list[dict[str, list[str]]]]:
    return {"answer": [{"evidence": paragraphs} for paragraphs in answers]}


PAPER = {
    "id": "1901.1",
    "title": "On kites ",
    "abstract": "We study kites.",
    "full_text": {
        "section_name": ["Introduction", "Kites ::: Red", "Kites", None],
        "paragraphs": [
            ["Kites fly.", ""],
            ["Red ones.", "Kites fly."],
            ["All of them."],
            ["No section."],
        ],
    },
    "qas": {
        "question_id": ["q1", "q2", "q3"],
        "question": [" What flies?", "Which table?", "Who studies?"],
        "answers": [
            evidence(["Kites fly. "], ["All of them.", "Kites fly."]),
            evidence(["FLOAT SELECTED: Table 1"], []),
            evidence(["We study kites."]),
        ],
    },
}


def test_qasper(tmp_path: Path) -> None:
    (tmp_path / "sample.jsonl").write_text(json.dumps(PAPER) + "\n")
    collection = read_qasper(tmp_path)
    assert [tuple(node) for node in documents(collection)["1901.1"].nodes] == [
        ("section", "On kites", -1),
        ("section", "Abstract", 0),
        ("passage", "We study kites.", 1),
        ("section", "Introduction", 0),
        ("passage", "Kites fly.", 3),
        ("section", "Kites", 0),
        ("section", "Red", 5),
        ("passage", "Red ones.", 6),
        ("passage", "Kites fly.", 6),
        ("passage", "All of them.", 5),
        ("section", "", 0),
        ("passage", "No section.", 10),
    ]
    assert [*collection.queries] == [ALL]
    assert relevant(collection) == {  # a paragraph that stands twice is relevant twice
        "q1": ("What flies?", ("1901.1%p1", "1901.1%p3", "1901.1%p4")),
        "q3": ("Who studies?", ("1901.1%p0",)),
    }
