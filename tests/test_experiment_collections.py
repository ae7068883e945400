"""The readers of the benchmark collections, on tiny files in the collections' formats."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import ir_datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.collections.cacm import read_cacm
from experiments.collections.cranfield import read_cranfield
from experiments.collections.ir_datasets import read_ir_datasets
from experiments.collections.medquad import ARCHIVE, SHARES, read_medquad
from experiments.collections.qasper import read_qasper
from experiments.collections.trec_car import read_trec_car
from experiments.collections.vaswani import read_vaswani
from experiments.harness.collection import ALL, SPLITS, Collection, fraction, split_of, successors
from pyterrier_graph.documents import StructuredDocument

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
    "1_CancerGov_QA/0000001_2": page("Red fever", [("Why red askword ?", "No one knows.")], ("C01",)),
    "2_GARD_QA/0000002": page(
        "Green fever",
        [("Is it askword ?", "Yes."), ("Nothing askword ?", " \n "), ("IS it  askword ?", "Now and then.")],
        ("C02", "C01"),
    ),
    "6_NINDS_QA/0000007": (
        '<doc docid="7" corpus="X" url="u"><doctitle-focus>Old fever</doctitle-focus><umls><cui>C09</cui></umls>'
        '<qaPairs><pair pid="3"><question qid="7-3" qtype="kindword">Old askword ?</question>'
        "<answer>An old answer.</answer></pair></qaPairs></doc>"
    ),
    "9_CDC_QA/0000397": (
        '<DiseaseFile fid="397"><Focus></Focus><UMLS><CUI></CUI></UMLS><QAPairs><QAPair pid="1">'
        '<Question qid="397-1" qtype="kindword">Root askword ?</Question><Answer>Another root.</Answer>'
        "</QAPair></QAPairs></DiseaseFile>"
    ),
    "10_MPlus_ADAM_QA/0000001": page("Silent fever", [("Removed askword ?", "")], ("C01",)),
    "5_NIDDK_QA/0000056": page("Empty fever", [], ("C01",)),
}


def write_archive(folder: Path, pages: dict[str, str], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
        files = {"MedQuAD/readme.txt": "Read me", "notes.xml": "<a>"}
        files |= {f"MedQuAD/{name}.xml": content for name, content in pages.items()}
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
        for member in more:
            archive.addfile(member)
    return folder


def documents(collection: Collection) -> dict[str, StructuredDocument]:
    return {
        record["docno"]: StructuredDocument.from_record(record) for record in collection.get_corpus_iter(verbose=False)
    }


def relevant(collection: Collection) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Text and relevant passages of each query."""
    topics, qrels = collection.all_queries
    passages = qrels.groupby("qid")["docno"].agg(tuple)
    return {row.qid: (row.query, passages[row.qid]) for row in topics.itertuples()}


@pytest.fixture
def medquad(tmp_path: Path) -> Collection:
    return read_medquad(write_archive(tmp_path, PAGES), passages=None, verbose=False)


def test_medquad_pages_become_documents(medquad: Collection) -> None:
    found = documents(medquad)
    assert {docno: (document.title, len(document.passages())) for docno, document in found.items()} == {
        "1_CancerGov_QA/0000001_1": ("Blue fever", 4),
        "1_CancerGov_QA/0000001_2": ("Red fever", 1),
        "2_GARD_QA/0000002": ("Green fever", 2),
        "6_NINDS_QA/0000007": ("Old fever", 1),
        "9_CDC_QA/0000397": ("", 1),
    }
    blue = found["1_CancerGov_QA/0000001_1"]
    assert [(node.kind, node.parent) for node in blue.nodes] == [
        ("section", -1),
        ("section", 0),
        ("passage", 1),
        ("passage", 1),
        ("passage", 1),
        ("section", 0),
        ("passage", 5),
    ]
    assert [len(passage.split()) for passage in blue.passages()] == [3, 120, 10, 4]
    assert blue.passages()[3] == "Blue & green people."
    record = next(medquad.get_corpus_iter(verbose=False))
    assert record["title"] == "Blue fever"
    assert record["text"].split() == " ".join(blue.passages()).split()


def test_medquad_pages_of_a_concept_are_joined_once(medquad: Collection) -> None:
    found = documents(medquad)
    assert {docno: [tuple(r) for r in document.references] for docno, document in found.items()} == {
        "1_CancerGov_QA/0000001_1": [
            ("external", 0, "1_CancerGov_QA/0000001_2"),
            ("external", 0, "2_GARD_QA/0000002"),
        ],
        "1_CancerGov_QA/0000001_2": [("external", 0, "2_GARD_QA/0000002")],
        "2_GARD_QA/0000002": [],
        "6_NINDS_QA/0000007": [],
        "9_CDC_QA/0000397": [],
    }
    assert found["1_CancerGov_QA/0000001_1"].codes == ("C01", "C02")
    assert found["6_NINDS_QA/0000007"].codes == ("C09",)
    assert found["9_CDC_QA/0000397"].codes == ()


def test_medquad_questions_and_their_types_are_in_no_node(medquad: Collection) -> None:
    texts = " ".join(node.text for document in documents(medquad).values() for node in document.nodes)
    assert "askword" not in texts
    assert "kindword" not in texts
    assert medquad.all_queries.topics["query"].str.contains("askword").all()


def test_medquad_queries(medquad: Collection) -> None:
    assert relevant(medquad) == {
        "1_CancerGov_QA/0000001_1-1": (
            "What is askword ?",
            tuple(f"1_CancerGov_QA/0000001_1%p{n}" for n in range(3)),
        ),
        "1_CancerGov_QA/0000001_1-2": ("Who gets askword ?", ("1_CancerGov_QA/0000001_1%p3",)),
        "1_CancerGov_QA/0000001_2-1": ("Why red askword ?", ("1_CancerGov_QA/0000001_2%p0",)),
        # The question of pair 3 is that of pair 1.
        "2_GARD_QA/0000002-1": ("Is it askword ?", ("2_GARD_QA/0000002%p0", "2_GARD_QA/0000002%p1")),
        "6_NINDS_QA/0000007-3": ("Old askword ?", ("6_NINDS_QA/0000007%p0",)),
        "9_CDC_QA/0000397-1": ("Root askword ?", ("9_CDC_QA/0000397%p0",)),
    }


def test_medquad_splits_by_page(tmp_path: Path) -> None:
    pages = {f"2_GARD_QA/{n:07}": page(f"F{n}", [(f"A{n} ?", "One."), (f"B{n} ?", "Two.")]) for n in range(200)}
    collection = read_medquad(write_archive(tmp_path, pages), passages=None, verbose=False)
    sizes = {}
    seen: set[str] = set()
    for split in SPLITS:
        topics, qrels = collection.queries[split]
        assert list(topics.columns) == ["qid", "query"] and list(qrels.columns) == ["qid", "docno", "label"]
        assert list(topics.qid) == list(qrels.qid) and set(qrels.label) == {1}
        of_split = set(qrels.docno.str.rsplit("%p", n=1).str[0])
        assert not of_split & seen
        seen |= of_split
        sizes[split] = len(topics)
    assert sizes == {"train": 312, "dev": 24, "test": 64}
    assert len(seen) == 200


def test_medquad_question_of_two_splits_is_in_none(tmp_path: Path) -> None:
    train, other_train, test = "2_GARD_QA/0000002", "2_GARD_QA/0000003", "2_GARD_QA/0000007"
    assert [split_of(name, SHARES) for name in (train, other_train, test)] == ["train", "train", "test"]
    pages = {
        train: page("F1", [("Everywhere?", "One."), ("Shared?", "Two.")]),
        other_train: page("F2", [("shared?", "Three.")]),
        test: page("F3", [("everywhere?", "Four.")]),
    }
    collection = read_medquad(write_archive(tmp_path, pages), passages=None, verbose=False)
    assert relevant(collection) == {f"{train}-2": ("Shared?", (f"{train}%p1", f"{other_train}%p0"))}
    assert len(collection.queries["train"].topics) == 1 and not len(collection.queries["test"].topics)
    assert list(collection.queries["test"].qrels.columns) == ["qid", "docno", "label"]


def test_medquad_samples_are_nested_and_hold_their_own_queries_only(tmp_path: Path) -> None:
    pages = {f"2_GARD_QA/{n:07}": page(f"F{n}", [(f"A{n}?", "One."), (f"B{n}?", "Two.")], ("C1",)) for n in range(40)}
    path = write_archive(tmp_path, pages)
    smaller: set[str] = set()
    for passages, expected in ((1, 1), (9, 5), (10, 5), (40, 20), (1000, 40)):
        collection = read_medquad(path, passages=passages, verbose=False)
        found = documents(collection)
        assert len(found) == expected
        assert list(found) == sorted(found)
        assert smaller <= set(found)
        assert set(collection.all_queries.topics["qid"].str.rpartition("-")[0]) == set(found)
        assert {reference.target for document in found.values() for reference in document.references} <= set(found)
        smaller = set(found)
        if expected == 20:  # half of the pages hold half of every split
            assert all(len(collection.queries[split].topics) for split in SPLITS)
    with pytest.raises(ValueError, match="passages=0"):
        read_medquad(path, passages=0)


def test_medquad_frequent_concepts_join_a_few_pages_each(tmp_path: Path) -> None:
    pages = {f"2_GARD_QA/{n:07}": page(f"F{n}", [(f"A{n}?", "One.")], ("C1",)) for n in range(50)}
    found = documents(read_medquad(write_archive(tmp_path, pages), passages=None, verbose=False))
    assert [len(document.references) for document in found.values()] == [5] * 45 + [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<Document><Focus>", "not well-formed"),
        (page("F", [("", "An answer.")]), "without a question"),
        (page("F", [("A?", "One."), ("B?", "Two.")]).replace('pid="2"', 'pid="1"'), "twice"),
        ('<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/hostname">]><d><Focus>&e;</Focus></d>', "type declaration"),
        ('<!DOCTYPE d SYSTEM "http://localhost:1/d.dtd"><d/>', "type declaration"),
    ],
)
def test_medquad_bad_page_is_named(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"2_GARD_QA/0000009.*{problem}"):
        read_medquad(write_archive(tmp_path, PAGES | {"2_GARD_QA/0000009": content}), verbose=False)


def test_medquad_links_in_the_archive_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside.xml").write_text(page("Outside", [("Out?", "Out.")]))
    link = tarfile.TarInfo("MedQuAD/2_GARD_QA/0000010.xml")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "outside.xml")
    escape = tarfile.TarInfo("MedQuAD/../../0000011.xml")
    before = sorted(tmp_path.parent.rglob("*"))
    found = documents(read_medquad(write_archive(tmp_path, PAGES, link, escape), passages=None, verbose=False))
    assert len(found) == 5
    assert sorted(tmp_path.parent.rglob("*")) == sorted([*before, tmp_path / ARCHIVE])


def test_medquad_bad_archives(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_medquad(tmp_path, verbose=False)
    archive = write_archive(tmp_path, {}) / ARCHIVE
    with pytest.raises(ValueError, match="no page with answers"):
        read_medquad(archive, verbose=False)
    write_archive(tmp_path, PAGES)
    archive.write_bytes(archive.read_bytes()[:500])
    with pytest.raises(ValueError, match="no complete tar.gz"):
        read_medquad(archive, verbose=False)
    archive.write_text("text")
    with pytest.raises(ValueError, match="no complete tar.gz"):
        read_medquad(archive, verbose=False)
    write_archive(tmp_path, {"2_GARD_QA/a%pb": page("F", [("A?", "One.")])})
    with pytest.raises(ValueError, match="a%pb"):
        read_medquad(archive, verbose=False)


# --------------------------------------------------------------------------------------------------------- TREC CAR


def link(page_id: str) -> dict[str, str | None]:
    return {"page": page_id, "page_id": page_id, "section": None, "anchor": "there"}


def place(para_id: str, *headings: str) -> dict[str, object]:
    return {"para_id": para_id, "headings": list(headings), "heading_ids": [h.replace(" ", "%20") for h in headings]}


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


@pytest.fixture
def car_path(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "passages.jsonl.gz", "wt", encoding="utf-8") as file:
        for para_id, (text, targets) in PARAGRAPHS.items():
            file.write(json.dumps({"para_id": para_id, "text": text, "links": [link(t) for t in targets]}) + "\n")
    with gzip.open(tmp_path / "pages.jsonl.gz", "wt", encoding="utf-8") as file:
        for page_id, paragraphs in CAR_PAGES.items():
            name = page_id.replace("%20", " ")
            file.write(json.dumps({"page_id": page_id, "page_name": name, "paragraphs": paragraphs}) + "\n")
    (tmp_path / "topics.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in TOPICS))
    (tmp_path / "hierarchical.qrels").write_text("".join(f"{qid} 0 {para_id} 1\n" for qid, para_id in QRELS))
    return tmp_path


def test_trec_car_pages_become_documents(car_path: Path) -> None:
    found = documents(read_trec_car(car_path))
    assert [tuple(node) for node in found["Red%20kite"].nodes] == [
        ("section", "Red kite", -1),
        ("passage", "The lead.", 0),
        ("section", "", 0),
        ("passage", "Directly under.", 2),
        ("section", "", 2),
        ("passage", "Deeper down.", 4),
        ("passage", "where", 4),
        ("section", "", 0),
        ("passage", "Back up.", 7),
        ("passage", "where", 7),
    ]
    # A section without paragraphs of its own is there for those below it.
    assert [(node.kind, node.parent) for node in found["Green%20tea"].nodes] == [
        ("section", -1),
        ("section", 0),
        ("section", 1),
        ("passage", 2),
        ("section", 0),
        ("passage", 4),
    ]


def test_trec_car_headings_are_in_no_node(car_path: Path) -> None:
    collection = read_trec_car(car_path)
    texts = [node.text for document in documents(collection).values() for node in document.nodes]
    assert "Headword" not in " ".join(texts) + " ".join(str(r["title"]) + r["text"] for r in collection.documents())
    assert collection.all_queries.topics["query"].str.contains("Headword").all()


def test_trec_car_relations(car_path: Path) -> None:
    found = documents(read_trec_car(car_path))
    kite, tea = found["Red%20kite"], found["Green%20tea"]
    assert [tuple(reference) for reference in kite.references] == [
        ("external", 1, "Elsewhere"),
        ("external", 1, "Tea"),
        ("same_entity", 1, "Green%20tea%p0"),
        ("external", 5, "Tea"),
        ("same_entity", 5, "Green%20tea%p0"),
    ]
    assert [tuple(one) for one in kite.links] == [("same_entity", 1, 5)]
    assert [tuple(reference) for reference in tea.references] == [("external", 3, "Tea")]
    assert (kite.codes, tea.codes) == (("Elsewhere", "Tea"), ("Tea",))


def test_trec_car_queries(car_path: Path) -> None:
    collection = read_trec_car(car_path)
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
    assert list(collection.queries["dev"].topics["query"]) == ["Green tea Headword four Headword one"]
    passages = {f"{d.docno}%p{n}" for d in documents(collection).values() for n in range(len(d.passages()))}
    assert set(collection.all_queries.qrels["docno"]) == passages - {"Red%20kite%p0"}


@pytest.mark.parametrize(
    ("file", "line", "problem"),
    [
        ("hierarchical.qrels", "Red%20kite 0 unknown 1\n", "'unknown'"),
        ("hierarchical.qrels", "Red%20kite/No 0 a1 1\n", "Red%20kite/No"),
        ("hierarchical.qrels", "Red%20kite a1\n", "hierarchical.qrels"),
        ("topics.tsv", "Blue/X\tBlue X\n", "'Blue'"),
        ("topics.tsv", "no tab\n", "topics.tsv"),
        ("pages.jsonl.gz", '{"page_id": "P", "page_name": "P"}\n', "line 3 lacks .'paragraphs'."),
        ("pages.jsonl.gz", json.dumps({"page_id": "P", "page_name": "P", "paragraphs": [place("x")]}), "'P'.*'x'"),
        ("pages.jsonl.gz", json.dumps({"page_id": "Green%20tea", "page_name": "P", "paragraphs": []}), "2 times"),
        ("passages.jsonl.gz", "{", "passages.jsonl.gz, line 7"),
    ],
)
def test_trec_car_bad_line_is_named(car_path: Path, file: str, line: str, problem: str) -> None:
    with (gzip.open if file.endswith("gz") else open)(car_path / file, "at", encoding="utf-8") as lines:
        lines.write(line)
    with pytest.raises(ValueError, match=problem):
        read_trec_car(car_path)


def test_trec_car_cut_or_missing_file(car_path: Path) -> None:
    file = car_path / "passages.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match="passages.jsonl.gz"):
        read_trec_car(car_path)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read_trec_car(car_path)


# ------------------------------------------------------------------------------------------ Vaswani and Cranfield

VASWANI = {
    "doc-text.trec": "<DOC>\n<DOCNO>1</DOCNO>\nalpha beta\ngamma\n</DOC>\n<DOC>\n<DOCNO>2</DOCNO>\ndelta\n</DOC>\n",
    "query-text.trec": "<top>\n<num>1</num><title>\nALPHA\nBETA\n</title>\n</top>\n",
    "qrels": "1 0 2 1\n1 0 1 1\n",
}


def vaswani(folder: Path, **changed: str) -> Path:
    for name, content in VASWANI.items():
        (folder / name).write_text(changed.get(name, content))
    return folder


def test_vaswani(tmp_path: Path) -> None:
    found = read_vaswani(vaswani(tmp_path))
    assert list(found.documents()) == [
        {"docno": "1", "title": "", "text": "alpha beta\ngamma"},
        {"docno": "2", "title": "", "text": "delta"},
    ]
    assert list(found.get_corpus_iter(verbose=False)) == list(found.documents())
    assert found.all_queries.topics.to_dict("records") == [{"qid": "1", "query": "ALPHA BETA"}]
    assert found.all_queries.qrels.to_numpy().tolist() == [["1", "2", 1], ["1", "1", 1]]
    assert found.texts(["2"]) == {"2": "delta"}


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("doc-text.trec", VASWANI["doc-text.trec"][:-8], "doc-text.trec, line 6: this is no complete record: '<DOC>"),
        ("doc-text.trec", VASWANI["doc-text.trec"].replace("</DOC>\n<DOC>", "<DOC>"), "doc-text.trec, line 1"),
        ("doc-text.trec", VASWANI["doc-text.trec"].replace("2", "1"), "the id '1' occurs 2 times"),
        ("doc-text.trec", "", "doc-text.trec is empty"),
        ("query-text.trec", VASWANI["query-text.trec"] + "stray", "query-text.trec, line 7: .*'stray'"),
        ("qrels", "1 0 2 1\n1 0 1\n", "qrels, line 2: .*'1 0 1'"),
        ("qrels", "1 0 3 1\n", "the docno '3', which does not exist"),
        ("qrels", "2 0 1 1\n", "the qid '2', which does not exist"),
    ],
)
def test_vaswani_damaged(tmp_path: Path, file: str, content: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_vaswani(vaswani(tmp_path, **{file: content}))


def test_vaswani_missing_file(tmp_path: Path) -> None:
    (vaswani(tmp_path) / "qrels").unlink()
    with pytest.raises(FileNotFoundError, match="qrels"):
        read_vaswani(tmp_path)


CRANFIELD = {
    "cran.all.1400": ".I 1\n.T\na wing in a\nslipstream .\n.A\nbrenckman,m.\n.B\nj. 1958\n"
    ".W\na wing in a\nslipstream .\n"
    "  an experimental study .\n.I 2\n.T\n.A\n.B\n.W\n.I 3\n.T\nshear\n.A\n.B\n.W\nanother beginning\n",
    "cran.qry": ".I 001\r\n.W\r\nwhat laws ?\r\n.I 004\r\n.W\r\nwhat\r\nproblems ?\r\n",
    "cranqrel": "1 1 1 \n1 3       4\n2 3 -1\n",
}


def cranfield(folder: Path, **changed: str | None) -> Path:
    with tarfile.open(folder / "cran.tar.gz", "w:gz") as archive:
        for name, content in (CRANFIELD | changed).items():
            if content is not None:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))
    return folder


def test_cranfield(tmp_path: Path) -> None:
    found = read_cranfield(cranfield(tmp_path))
    assert list(found.documents()) == [
        {"docno": "1", "title": "a wing in a slipstream .", "text": "an experimental study ."},
        {"docno": "2", "title": "", "text": ""},
        {"docno": "3", "title": "shear", "text": "another beginning"},
    ]
    assert found.all_queries.topics.to_numpy().tolist() == [["1", "what laws ?"], ["2", "what problems ?"]]  # by place
    assert found.all_queries.qrels.to_numpy().tolist() == [["1", "1", 4], ["1", "3", 1], ["2", "3", 0]]
    assert found.texts(["1", "2"]) == {"1": "a wing in a slipstream .\nan experimental study .", "2": ""}
    assert list(read_cranfield(tmp_path / "cran.tar.gz").documents()) == list(found.documents())


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("cran.qry", None, "no complete archive of the Cranfield collection.*cran.qry"),
        ("cran.qry", "", "cran.qry is empty"),
        ("cran.qry", "stray\n.I 1\n.W\nwhat\n", "cran.qry, line 1: .*'stray'"),
        ("cran.all.1400", ".I 1\nstray\n", "cran.all.1400, line 2: .*'stray'"),
        ("cranqrel", "1 1 1\n1 1 5\n", "cranqrel, line 2: .*'1 1 5'"),
        ("cranqrel", "1 1\n", "cranqrel, line 1: .*'1 1'"),
        ("cranqrel", "3 1 1\n", "the qid '3', which does not exist"),
    ],
)
def test_cranfield_damaged(tmp_path: Path, file: str, content: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cranfield(cranfield(tmp_path, **{file: content}))


def test_cranfield_cut_short(tmp_path: Path) -> None:
    archive = cranfield(tmp_path) / "cran.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-60])
    with pytest.raises(ValueError, match="no complete archive of the Cranfield collection"):
        read_cranfield(archive)
    archive.unlink()
    with pytest.raises(FileNotFoundError):
        read_cranfield(tmp_path)


def test_cranfield_of_ir_datasets_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ir_datasets.datasets.cranfield import CranfieldQrels

    class Judgments:
        qrels_iter = CranfieldQrels.qrels_iter

        @staticmethod
        def queries_iter() -> list[ir_datasets.formats.GenericQuery]:
            return [ir_datasets.formats.GenericQuery(qid, "what") for qid in "12"]

        class _qrels_dlc:  # noqa: N801
            @staticmethod
            def stream() -> io.BytesIO:
                return io.BytesIO(CRANFIELD["cranqrel"].encode())

        docs_cls = staticmethod(lambda: ir_datasets.formats.GenericDoc)

    monkeypatch.setattr(ir_datasets, "load", lambda _: Judgments())
    found = read_ir_datasets("irds:cranfield").queries[ALL].qrels
    assert found["label"].tolist() == read_cranfield(cranfield(tmp_path)).queries[ALL].qrels["label"].tolist()
    assert read_ir_datasets("irds:other").queries[ALL].qrels["label"].tolist() == [1, 4, -1]


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


def cacm(folder: Path, **changed: str) -> Path:
    for name, content in CACM.items():
        (folder / name).write_text(changed.get(name, content))
    return folder


def test_cacm(tmp_path: Path) -> None:
    collection = read_cacm(cacm(tmp_path))
    found = documents(collection)
    assert {docno: (document.title, document.passages()) for docno, document in found.items()} == {
        "1": ("Roots by Subtraction", ["Roots by Subtraction"]),  # there is no abstract
        "2": ("Algebra", ["A language .W is described."]),
        "3": ("Sorting", ["Sorting"]),
    }
    assert {docno: [tuple(reference) for reference in document.references] for docno, document in found.items()} == {
        "1": [("external", 0, "3")],  # once, and neither to itself nor for what is cited together
        "2": [],
        "3": [("external", 0, "1")],
    }
    topics, qrels = collection.queries[ALL]
    assert topics.to_numpy().tolist() == [["1", "What about TSS?"], ["3", "what"]]
    assert qrels.to_numpy().tolist() == [["1", "3", 1], ["1", "1", 1], ["3", "2", 1]]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("cacm.all", "stray\n", "cacm.all, line 1: .*'stray'"),
        ("cacm.all", "", "cacm.all is empty"),
        ("cacm.all", CACM["cacm.all"].replace("1\t5\t3", "1\t5"), "the relations of document 3 are not lines of"),
        ("cacm.all", CACM["cacm.all"].replace("1\t5\t3", "1\t5\t2"), "the relations of document 3 are not lines of"),
        ("query.text", ".I 1\nstray\n", "query.text, line 2: .*'stray'"),
        ("qrels.text", "01 3 0 0\n01 3\n", "qrels.text, line 2: .*'01 3'"),
        ("qrels.text", "01 9 0 0\n", "the docno '9', which does not exist"),
        ("qrels.text", "08 1 0 0\n", "the qid '8', which does not exist"),
    ],
)
def test_cacm_damaged(tmp_path: Path, file: str, content: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cacm(cacm(tmp_path, **{file: content}))


def evidence(*answers: list[str]) -> dict[str, list[dict[str, list[str]]]]:
    return {"answer": [{"evidence": paragraphs} for paragraphs in answers]}


PAPER = {
    "id": "1901.1",
    "title": "On kites ",
    "abstract": "We study kites.",
    "full_text": {
        "section_name": ["Introduction", "Kites ::: Red", "Kites", None],
        "paragraphs": [["Kites fly.", ""], ["Red ones.", "Kites fly."], ["All of them."], ["No section."]],
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
    assert [*read_qasper(tmp_path / "sample.jsonl").documents()] == [*collection.documents()]


def test_qasper_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="0 files"):
        read_qasper(tmp_path)
    file = tmp_path / "sample.jsonl"
    for content in ("{", json.dumps({"id": "1"}), "[]"):
        file.write_text(json.dumps(PAPER) + "\n" + content)
        with pytest.raises(ValueError, match="sample.jsonl, line 2: this is no paper"):
            read_qasper(file)


# ------------------------------------------------------------------------------------------------------------ shared


def test_split_depends_on_the_id_alone_and_is_independent_of_the_sample() -> None:
    names = [f"page{n}" for n in range(4000)]
    splits = [split_of(name, (0.6, 0.1, 0.3)) for name in names]
    assert splits[:8] == ["train", "test", "train", "train", "train", "train", "dev", "train"]
    assert [round(splits.count(split) / 4000, 2) for split in SPLITS] == [0.6, 0.1, 0.3]
    early = [split for name, split in zip(names, splits, strict=True) if fraction(name, "sample") < 0.25]
    assert early.count("test") / len(early) == pytest.approx(0.3, abs=0.04)


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), unique=True), max_size=4), st.integers(1, 4))
def test_successors_join_what_shares_a_group(groups: list[list[str]], width: int) -> None:
    joined = {(one, other) for one, others in successors(groups, width).items() for other in others}
    assert joined == {
        (group[i], group[j])
        for group in groups
        for i in range(len(group))
        for j in range(i + 1, len(group))
        if j - i <= width
    }
    assert all(one != other for one, other in joined)
    assert all(len(set(others)) == len(others) for others in successors(groups, width).values())
