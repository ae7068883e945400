"""From the outline of a file to a document: sections, passages of bounded size, links, and what refers elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby

from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Link, Node, passage_id
from pyterrier_graph.readers.outline import ANCHOR, LINK, NAME, REFERENCE, Outline
from pyterrier_graph.readers.text import Mark, Piece, Text, clean


@dataclass
class Draft:
    """A document whose references are still names.

    Attributes:
        docno: The document's id.
        nodes: Its sections and passages, in their order; the root is the first.
        lines: Per node the line of the file where it begins, from 1.
        links: Links inside the document.
        references: Per reference its node, the file that it means or the empty text, and the names that it may mean.
        names: What others may call this document or a part of it, with a docno or passage id.
        codes: Attributes that documents can share.
        attributes: Other attributes, by name.
        counts: What was found in the file.
    """

    docno: str
    nodes: list[Node] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    references: list[tuple[int, str, list[str]]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def assemble(outline: Outline, min_words: int, max_words: int) -> Draft:
    """Makes the document of an outline.

    A heading that no other equals in level or exceeds is the document's title, unless the file declares another title.
    A heading whose level skips one belongs to the nearest heading above it of a smaller level. Blocks of a section with
    fewer than ``min_words`` words are merged with the next one while both have at most ``max_words``; blocks with more
    are cut.
    """
    blocks, title = _title(outline)
    draft = Draft(outline.docno, codes=outline.codes, attributes=outline.attributes, counts=outline.counts)
    placed: list[tuple[int, list[Mark]]] = []  # node, marks

    def add(kind: str, text: str, parent: int, line: int, marks: list[Mark]) -> int:
        draft.nodes.append(Node(kind, text, parent))
        draft.lines.append(min(line, outline.last_line))
        placed.append((len(draft.nodes) - 1, marks))
        return len(draft.nodes) - 1

    above = [(0, add(SECTION, title.plain(), NO_PARENT, title.line, title.marks))]  # levels and nodes
    for is_heading, group in groupby(blocks, key=lambda block: block.level > 0):
        if is_heading:
            for block in group:
                while above[-1][0] >= block.level:
                    above.pop()
                above.append((block.level, add(SECTION, block.plain(), above[-1][1], block.line, block.marks)))
        else:
            for piece in merge((piece for block in group for piece in block.pieces(max_words)), min_words, max_words):
                add(PASSAGE, piece.text, above[-1][1], piece.line, piece.marks)
    placed.append((len(draft.nodes) - 1, outline.pending))  # what stands after all text
    _connect(draft, placed)
    draft.names |= dict.fromkeys(map(clean, outline.names), draft.docno)
    return draft


def merge(pieces: Iterable[Piece], min_words: int, max_words: int) -> list[Piece]:
    """Merges each piece of fewer than ``min_words`` words with the next, or the last with the one before it."""
    merged: list[list[Piece]] = []
    sizes: list[int] = []
    for piece in pieces:
        if merged and sizes[-1] < min_words and sizes[-1] + piece.size <= max_words:
            merged[-1].append(piece)
            sizes[-1] += piece.size
        else:
            merged.append([piece])
            sizes.append(piece.size)
    if len(merged) > 1 and sizes[-1] < min_words and sum(sizes[-2:]) <= max_words:
        merged[-2:] = [merged[-2] + merged[-1]]
        sizes[-2:] = [sum(sizes[-2:])]
    return [
        Piece(" ".join(part.text for part in parts), size, parts[0].line, [*chain(*(part.marks for part in parts))])
        for parts, size in zip(merged, sizes, strict=True)
    ]


def _title(outline: Outline) -> tuple[list[Text], Text]:
    """The blocks without the title, and the title."""
    headings = [block for block in outline.blocks if block.level]
    declared = Text("text", 1)
    declared.add(clean(outline.title))
    if not headings or any(other.level <= headings[0].level for other in headings[1:]):
        return outline.blocks, declared
    first = headings[0]
    same = first.plain().casefold() == declared.plain().casefold()
    if declared.words and not outline.title_is_fallback and not same:
        return outline.blocks, declared
    return [block for block in outline.blocks if block is not first], first


def _connect(draft: Draft, placed: list[tuple[int, list[Mark]]]) -> None:
    """Turns marks into links, references and names."""
    places = {f"{draft.docno}#": 0}
    for node, marks in placed:
        for mark in marks:
            name = f"{draft.docno}#{mark.value[0]}" if mark.kind == ANCHOR else mark.value[0]
            if mark.kind in (ANCHOR, NAME) and places.setdefault(name, node) != node:
                draft.counts["anchors that come twice"] += 1
    for node, marks in placed:
        for kind, (name, *names) in ((mark.kind, mark.value) for mark in marks if mark.kind in (LINK, REFERENCE)):
            target = next((places[name] for name in names or [f"{draft.docno}#{name}"] if name in places), None)
            if target is not None:
                draft.links.append(Link("internal", node, target))
            elif kind == LINK:
                draft.counts["links to no anchor of their document"] += 1
            else:
                draft.references.append((node, name, names))
    first = _first_passages(draft)
    draft.names = {name: first[node] for name, node in places.items()}
    draft.names[draft.docno] = draft.docno


def _first_passages(draft: Draft) -> list[str]:
    """Per node the id of the first passage that is the node or in it; for others, the document's."""
    found = [draft.docno] * len(draft.nodes)
    passages = 0
    for node, (kind, _, above) in enumerate(draft.nodes):
        if kind == PASSAGE:
            found[node] = passage_id(draft.docno, passages)
            passages += 1
            while above > 0 and found[above] == draft.docno:
                found[above] = found[node]
                above = draft.nodes[above].parent
    return found
