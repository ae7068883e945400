"""MedQuAD (Ben Abacha and Demner-Fushman, BMC Bioinformatics 2019) as structured pages with questions as queries."""

from __future__ import annotations

import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyterrier as pt
from lxml import etree

from experiments.harness.collection import (
    Collection,
    Query,
    fraction,
    queries_by_split,
    split_of,
    successors,
)
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Node,
    Reference,
    passage_id,
    split_text,
)

ARCHIVE = "medquad-xml.tar.gz"
SHARES = (0.8, 0.05, 0.15)
PASSAGE_WORDS = 120
CONCEPT_WIDTH = 5


class Answer(NamedTuple):
    """An answered question of a page, its number on the page and the answer's passages."""

    number: str
    question: str
    passages: tuple[str, ...]


class Page(NamedTuple):
    """A page that has answers: its id (folder/file), subject, UMLS concepts (CUIs) and answers."""

    docno: str
    focus: str
    concepts: tuple[str, ...]
    answers: tuple[Answer, ...]


def read_medquad(
    path: str | Path, *, passages: int | None = 17_500, verbose: bool = True
) -> Collection:
    """Reads MedQuAD from its archive, in place.

    A page is a document: its root section has the page's subject as title, each answered question is a section, and the
    answer's passages (paragraphs merged to about 120 words) are in it. The questions are the queries, so a section has
    **no title**: no node is made from a question or from its type, which was derived from the question. (Answers are
    left as they are, and some, about one in twenty, repeat their question.)
    Pages about the same UMLS concept are joined by ``external`` references, each to the next five with that concept in
    file order, so that the most frequent concepts do not join everything with everything. The concepts are the
    ``codes``.

    Relevant to a question (grade 1) are the passages of its answer. Questions that differ at most in case and white
    space are one query, to which the answers of all are relevant. The split is by page; a question that pages of
    different splits ask is in none of them.

    Args:
        path: The archive ``medquad-xml.tar.gz``, or the folder that holds it.
        passages: Take pages, in an order that depends on their names alone, until there are at least this many
            passages; a smaller collection is part of a larger one. None: all pages with answers.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no such archive.
    """
    path = Path(path)
    pages = list(_read_pages(path / ARCHIVE if path.is_dir() else path, verbose))
    if passages is not None:
        pages = _sample(pages, passages)
    return Collection.in_memory("MedQuAD", _records(pages), queries_by_split(_queries(pages)))


def _read_pages(archive: Path, verbose: bool) -> Iterator[Page]:
    with tarfile.open(archive, "r|gz") as members:
        for member in pt.tqdm(members, desc="MedQuAD", unit="file", disable=not verbose):
            match PurePosixPath(member.name).parts:
                case ["MedQuAD", folder, file] if file.endswith(".xml") and member.isfile():
                    content: Any = members.extractfile(member)
                    page = _parse(f"{folder}/{file.removesuffix('.xml')}", content.read())
                    if page.answers:
                        yield page


def _parse(docno: str, content: bytes) -> Page:
    parser = etree.XMLParser(
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        remove_comments=True,
        remove_pis=True,
    )
    root = etree.fromstring(content, parser)
    answers = []
    # Four pages of 6_NINDS_QA name their elements differently.
    for pair in root.iter("QAPair", "pair"):
        question, answer = (_text(pair, name, name.lower()) for name in ("Question", "Answer"))
        passages = tuple(split_text(answer, PASSAGE_WORDS))
        if passages:
            answers.append(Answer(pair.get("pid", ""), " ".join(question.split()), passages))
    focus = " ".join(_text(root, "Focus", "doctitle-focus").split())
    concepts = dict.fromkeys(
        "".join(concept.itertext()).strip() for concept in root.iter("CUI", "cui")
    )
    return Page(docno, focus, tuple(filter(None, concepts)), tuple(answers))


def _text(element: etree._Element, *names: str) -> str:
    found = next(element.iter(*names), None)
    return "" if found is None else "".join(found.itertext())


def _sample(pages: list[Page], passages: int) -> list[Page]:
    chosen: set[str] = set()
    for page in sorted(pages, key=lambda page: fraction(page.docno, "sample")):
        if passages <= 0:
            break
        chosen.add(page.docno)
        passages -= sum(len(answer.passages) for answer in page.answers)
    return [page for page in pages if page.docno in chosen]


def _records(pages: list[Page]) -> list[dict[str, Any]]:
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for page in pages:
        for concept in page.concepts:
            holders[concept].append(page.docno)
    related = successors(holders.values(), CONCEPT_WIDTH)
    records = []
    for page in pages:
        nodes = [Node(SECTION, page.focus, NO_PARENT)]
        for answer in page.answers:
            section = len(nodes)
            nodes.append(Node(SECTION, "", 0))
            nodes += [Node(PASSAGE, passage, section) for passage in answer.passages]
        records.append(
            {
                "docno": page.docno,
                "title": page.focus,
                "text": "\n\n".join(
                    passage for answer in page.answers for passage in answer.passages
                ),
                "nodes": nodes,
                "links": [],
                "references": [
                    Reference("external", 0, other) for other in related.get(page.docno, ())
                ],
                "codes": list(page.concepts),
            }
        )
    return records


def _queries(pages: list[Page]) -> list[Query]:
    asked: dict[str, Query] = {}
    ambiguous = set()
    for page in pages:
        split = split_of(page.docno, SHARES)
        first = 0
        for answer in page.answers:
            relevant = tuple(passage_id(page.docno, first + n) for n in range(len(answer.passages)))
            first += len(relevant)
            key = answer.question.casefold()
            query = asked.setdefault(
                key, Query(f"{page.docno}-{answer.number}", answer.question, split, ())
            )
            asked[key] = query._replace(relevant=query.relevant + relevant)
            if query.split != split:
                ambiguous.add(key)
    return [query for key, query in asked.items() if key not in ambiguous]
