"""Targets that read files: documents, patents, topics, judgments, runs, records."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from clef_ip_miniature import write_miniature
from reader_files import FILES as READER_FILES

from pyterrier_graph import StructuredDocument, read_record
from pyterrier_graph.datasets.clef_ip import Archive, read_patent, read_qrels, read_run, read_topics
from pyterrier_graph.datasets.clef_ip.claim_references import claim_references
from pyterrier_graph.datasets.clef_ip.patents import parse_patent, parse_xpath
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.patents import read_official_run
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.reading import read_draft
from pyterrier_graph.readers.source import DocumentFiles

from .running import target
from .values import TEXTS, TOKENS, VALUES, changed_bytes, changed_json, changed_text

FILES = READER_FILES | {"plain_text": {"a.txt": "One paragraph\nof two lines.\n\nAnother one.\n\n\n  A third."}}

OPTIONS = ReaderOptions(3, 8, (), None, 1 << 22, 60)
ENCODINGS = (None, None, None, "utf-8", "utf-16", "latin-1", "shift_jis", "idna", "rot13", "base64", "no such", "\0")
CLAIMS = (
    "The method of any one of claims 1 to 9999, 3, 4 and/or 12, wherein each of the preceding claims holds",
    "Verfahren nach Anspruch 3 oder einem der vorhergehenden Ansprüche 1 bis 4 sowie Patentanspruch 7",
    "Procédé selon l'une quelconque des revendications précédentes 1 à 5, ou la revendication précédente",
)
RECORDS: tuple[dict[str, Any], ...] = (
    {"docno": "d0", "title": "alpha", "text": "beta gamma\n\ndelta", "codes": ["a", "b"]},
    {
        "docno": "d0",
        "nodes": [["section", "alpha", -1], ["passage", "beta", 0], ["section", "", 0], ["passage", "gamma", 2]],
        "links": [["internal", 3, 1]],
        "references": [["external", 0, "d1"]],
        "codes": ["a"],
        "passage_ids": ["x", "y"],
    },
    {"docno": "d0", "title": "alpha", "sections": [["one", "text"], ["two", ["a", "b"]]]},
    {"docno": "d0", "title": "alpha", "body_paras_html": ["<p>a", "b &amp; c"], "body_media": [["x", "caption"]]},
    {"docno": "d0", "marked_up_doc": "<doc><hl>alpha</hl><text><p>beta</p><p>gamma</text>"},
    {"docno": "d0", "body": FILES["html"]["a.html"], "body_content_type": "text/html", "http_headers": "HTTP\nA: b"},
    {"docno": "d0", "title": "alpha", "headings": "one\ntwo", "body": "one\ntext\ntwo\nmore"},
    {"docno": "d0", "title": "alpha", "abstract": "beta", "body": [["one", "text"], ["one", "more"]]},
    {"docno": "d0", "title": "alpha", "body": "one\ntext\ntwo\nmore"},
)


def read(name: str, random: Random) -> None:
    """A changed file: a reader makes a document of it, or says what is wrong."""
    content = random.choice([*FILES[name].values()])
    data = changed_bytes(random, content.encode() if isinstance(content, str) else content)
    docno = random.choice(TEXTS) if random.random() < 0.02 else "a"
    parse = import_module(f"pyterrier_graph.readers.{name}").parse
    options = (
        OPTIONS if random.random() < 0.9 else ReaderOptions(3, 8, ("code",), random.choice(ENCODINGS), 1 << 22, 60)
    )
    check_draft(read_draft(parse, data, docno, options), docno, data)


def check_draft(draft: Any, docno: str, data: bytes) -> None:
    """What holds for every document that a reader made."""
    StructuredDocument(docno, tuple(draft.nodes), tuple(draft.links), (), tuple(draft.codes))
    assert len(draft.lines) == len(draft.nodes)
    assert all(1 <= line <= len(data) + 2 for line in draft.lines)
    json.dumps(vars(draft), ensure_ascii=False).encode()
    passages = sum(kind == "passage" for kind, _, _ in draft.nodes)
    assert all(name == docno or int(name.removeprefix(f"{docno}%p")) < passages for name in draft.names.values())
    assert all(0 <= node < len(draft.nodes) and names for node, _, names in draft.references)
    assert all(kind == "section" or text.strip() for kind, text, _ in draft.nodes)


for _name in FILES:
    target(f"reader/{_name}")(partial(read, _name))


@target("reader/front_matter")
def front_matter(random: Random) -> None:
    """YAML before Markdown."""
    data = (
        b"---\n" + changed_bytes(random, b"title: Guide\ntags: [a, b]\ndate: 2020-01-02\nx: 1e3\n") + b"\n---\nText\n"
    )
    check_draft(read_draft(import_module("pyterrier_graph.readers.markdown").parse, data, "a", OPTIONS), "a", data)


@contextmanager
def file(name: str, data: bytes) -> Iterator[Path]:
    """A file with these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        yield path


@target("reader/folder")
def folder(random: Random) -> None:
    """Several changed files with odd names, links and folders among them, by the whole reader and into a graph."""
    name = random.choice(["markdown", "html", "rst", "jats", "plain_text"])
    module = import_module(f"pyterrier_graph.readers.{name}")
    with tempfile.TemporaryDirectory() as place:
        for number, (file, content) in enumerate(FILES[name].items()):
            path = Path(
                place, file if random.random() < 0.7 else f"{random.choice(TEXTS)[:50]}{number}{Path(file).suffix}"
            )
            data = changed_bytes(random, content.encode() if isinstance(content, str) else content)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if random.random() < 0.05:
                    path.symlink_to(random.choice(["/etc/hostname", "/", path.name, "."]))
                elif path.resolve().is_relative_to(Path(place).resolve()):
                    path.write_bytes(data)
            except (OSError, ValueError):
                continue  # the system does not allow such a name
        options = ReaderOptions(3, 8, (), None, 1 << 22, 60)
        documents = DocumentFiles(place, module.parse, module.SUFFIXES, options, workers=1, verbose=False)
        MemoryGraph.from_documents([StructuredDocument.from_record(document) for document in documents])
        assert not any(what.startswith("unexpected") for what in documents.report["broken"].values()), documents.report


@target("record/read_record")
def record(random: Random) -> None:
    """Records of corpora with changed fields."""
    document = read_record(changed_record(random), passage_words=random.choice([1, 3, 120]))
    MemoryGraph.from_documents([document])


@target("record/from_record")
def structured(random: Random) -> None:
    """Records with nodes, links and references."""
    StructuredDocument.from_record(changed_json(random, RECORDS[random.choice([0, 1])], VALUES))


@target("record/graph")
def graph(random: Random) -> None:
    """A graph of several documents, of which some are changed."""
    documents = [StructuredDocument.from_record(changed_record(random, RECORDS[1])), *_others()]
    random.shuffle(documents)
    made = MemoryGraph.from_documents(documents)
    made.texts(made.nodes_of(made.ids_of(made.passage_nodes)), titles=True)
    made.find([random.choice(VALUES) for _ in range(3)])
    made.fingerprint()


@cache
def _others() -> list[StructuredDocument]:
    import tiny

    return tiny.documents(3)[1:]


def changed_record(random: Random, record: dict[str, Any] | None = None) -> dict[str, Any]:
    """A record with changed fields."""
    changed = changed_json(random, record or random.choice(RECORDS), VALUES)
    return {"docno": random.choice(["d0", "d0", "a/b"])} | changed if isinstance(changed, dict) else changed


# --- CLEF-IP


@cache
def miniature() -> Any:
    """A small collection."""
    return write_miniature(Path(tempfile.mkdtemp()) / "clef-ip")


@cache
def archive() -> Archive:
    """Its patents."""
    return Archive(miniature().home / "documents")


@cache
def contents(pattern: str) -> list[bytes]:
    """The files of the collection whose names end so."""
    return [path.read_bytes() for path in sorted(miniature().home.rglob(pattern))[:40]]


@target("clef-ip/patent")
def patent(random: Random) -> None:
    """Changed XML of a patent."""
    found = parse_patent(changed_bytes(random, random.choice(contents("EP*.xml"))), "EP-1000001-A1")
    document = StructuredDocument.from_record(found.to_record())
    assert len(found.passages) == len(found.xpaths) == len(document.passages())
    for xpath in found.xpaths[:3]:
        assert found.passage_id(xpath)


@target("clef-ip/topics")
def topics(random: Random) -> None:
    """Changed files of topics."""
    with file(
        "topics.txt", changed_bytes(random, random.choice(contents("*TEST.txt") + contents("*topics.txt")))
    ) as path:
        read_topics(path)


@target("clef-ip/qrels")
def qrels(random: Random) -> None:
    """Changed judgments, which are looked up in the collection."""
    with file("qrels.txt", changed_bytes(random, random.choice(contents("*QRELS*")))) as path:
        found = [*read_qrels(path)]
    if random.random() < 0.05:
        archive().passage_ids((judgment.docno, judgment.xpath) for judgment in found[:20])


RUN = b"".join(
    b"PSG1 Q0 EP-1000001-A1 /patent-document/claims/claim[%d] %d %d.5\n" % (n, n, 9 - n) for n in range(1, 6)
)


@target("clef-ip/run")
def run(random: Random) -> None:
    """Changed runs."""
    with file("run.txt", changed_bytes(random, RUN)) as path:
        [*read_run(path)]
        if random.random() < 0.1:
            read_official_run(path, archive(), verbose=False)


@target("clef-ip/xpath")
def xpath(random: Random) -> None:
    """Changed XPaths and docnos."""
    changed = changed_text(random, "/patent-document/claims[2]/claim[12]/claim-text")
    if random.random() < 0.1:
        archive().patent(changed_text(random, "EP-1000001-A1"))
    parse_xpath(changed)


@target("clef-ip/claims")
def claims(random: Random) -> None:
    """Changed texts of claims."""
    text = changed_text(random, random.choice(CLAIMS))
    assert {*claim_references(text, range(1, 30), 12)} <= {*range(1, 30)}


@target("clef-ip/file")
def patent_file(random: Random) -> None:
    """Files with odd names."""
    name = random.choice(
        ["EP-1000001-A1.xml", changed_text(random, "EP-1-A1.xml").replace("/", "").replace("\0", "")[:60]]
    )
    data = changed_bytes(random, random.choice([b"", b"<patent-document/>", random.choice(TOKENS)]))
    with file(name or "x", data) as path:
        read_patent(path)
