"""TREC CAR v1.5, set test200 (Dietz and Gamari 2017), as structured pages with heading paths as queries."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness.collection import Collection, Query, queries_by_split, split_of, successors
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Link,
    Node,
    Reference,
    passage_id,
)

SHARES = (0.6, 0.1, 0.3)
ENTITY_WIDTH = 5


class Paragraph(NamedTuple):
    """A paragraph's text and the ids of the pages that it links to, each once."""

    text: str
    entities: tuple[str, ...]


def read_trec_car(path: str | Path) -> Collection:
    """Reads the JSON form of TREC CAR test200.

    A page is a document: its paragraphs are the passages, in reading order, in the page's section tree. The queries are
    the page's name followed by headings, so **sections have no title**: no heading is in any node. The root section has
    the page's name as title, which all queries of a page share, as all questions of a MedQuAD page share its subject.
    A paragraph's links to other pages are ``external`` references of its passage; most point outside of the set.
    Passages that link to the same page are joined as ``same_entity``, each to the next five in corpus order.
    The pages that a page links to are its ``codes``.

    Relevant to a heading path (grade 1) are the paragraphs directly under it (``hierarchical.qrels``); heading paths
    without any are left out. A paragraph that stands in several places is a passage in each, and all of them are
    relevant where it is. The split is by page.

    Args:
        path: The folder with ``pages.jsonl.gz``, ``passages.jsonl.gz``, ``topics.tsv`` and ``hierarchical.qrels``.

    Raises:
        FileNotFoundError: If one of the files is missing.
        KeyError: If one names a paragraph or page that another one lacks.
    """
    path = Path(path)
    paragraphs = {
        line["para_id"]: Paragraph(line["text"], _entities(line["links"]))
        for line in _json_lines(path / "passages.jsonl.gz")
    }
    pages = list(_json_lines(path / "pages.jsonl.gz"))
    places: defaultdict[str, list[str]] = defaultdict(list)
    for page in pages:
        for number, place in enumerate(page["paragraphs"]):
            places[place["para_id"]].append(passage_id(page["page_id"], number))
    queries = queries_by_split(_queries(path, pages, places))
    return Collection.in_memory("TREC CAR test200", _records(pages, paragraphs), queries)


def _entities(links: list[dict[str, Any]]) -> tuple[str, ...]:
    # A link to a section of its own page has no page id.
    return tuple(dict.fromkeys(link["page_id"] for link in links if link["page_id"]))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _rows(path: Path, separator: str) -> list[list[str]]:
    return [line.split(separator) for line in path.read_text("utf-8").splitlines()]


def _records(pages: list[dict[str, Any]], paragraphs: dict[str, Paragraph]) -> list[dict[str, Any]]:
    linking: defaultdict[str, list[str]] = defaultdict(list)
    for page in pages:
        for number, place in enumerate(page["paragraphs"]):
            for entity in paragraphs[place["para_id"]].entities:
                linking[entity].append(passage_id(page["page_id"], number))
    related = successors(linking.values(), ENTITY_WIDTH)
    return [_record(page, paragraphs, related) for page in pages]


def _record(
    page: dict[str, Any], paragraphs: dict[str, Paragraph], related: Mapping[str, list[str]]
) -> dict[str, Any]:
    docno = page["page_id"]
    nodes = [Node(SECTION, page["page_name"], NO_PARENT)]
    sections: dict[tuple[str, ...], int] = {(): 0}
    passages: dict[str, int] = {}
    for number, place in enumerate(page["paragraphs"]):
        headings = tuple(place["heading_ids"])
        for depth in range(1, len(headings) + 1):
            if headings[:depth] not in sections:
                sections[headings[:depth]] = len(nodes)
                nodes.append(Node(SECTION, "", sections[headings[: depth - 1]]))
        passages[passage_id(docno, number)] = len(nodes)
        nodes.append(Node(PASSAGE, paragraphs[place["para_id"]].text, sections[headings]))
    links, references, codes = [], [], set()
    for place, (passage, position) in zip(page["paragraphs"], passages.items(), strict=True):
        entities = [entity for entity in paragraphs[place["para_id"]].entities if entity != docno]
        codes.update(entities)
        references += [Reference("external", position, entity) for entity in entities]
        for other in related.get(passage, ()):
            if other in passages:
                links.append(Link("same_entity", position, passages[other]))
            else:
                references.append(Reference("same_entity", position, other))
    return {
        "docno": docno,
        "title": page["page_name"],
        "text": "\n\n".join(nodes[position].text for position in passages.values()),
        "nodes": nodes,
        "links": links,
        "references": references,
        "codes": sorted(codes),
    }


def _queries(path: Path, pages: list[dict[str, Any]], places: dict[str, list[str]]) -> list[Query]:
    splits = {page["page_id"]: split_of(page["page_id"], SHARES) for page in pages}
    relevant: defaultdict[str, list[str]] = defaultdict(list)
    for qid, _, paragraph, label in _rows(path / "hierarchical.qrels", " "):
        if int(label) > 0:
            relevant[qid] += places[paragraph]
    return [
        Query(qid, text, splits[qid.partition("/")[0]], tuple(relevant[qid]))
        for qid, text in _rows(path / "topics.tsv", "\t")
        if qid in relevant
    ]
