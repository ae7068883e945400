"""What a parser finds in a file, in its order: headings, and blocks of text with their anchors and links."""

from __future__ import annotations

import sys
from collections import Counter

from pyterrier_graph.readers.text import Mark, Text, clean

KINDS = ("text", "list", "code", "table", "quote", "caption", "references")
"""Kinds of blocks. ``references`` are the entries of a bibliography."""

ANCHOR, NAME, LINK, REFERENCE = "anchor", "name", "link", "reference"
MAX_LEVEL = 20
MAX_HEADING = 100  # words; a longer one is a heading that nobody closed


class Outline:
    """The headings and blocks of a file. A parser begins each, adds its text, and marks anchors and links in it.

    Args:
        docno: The document's id.
        skip: Kinds of blocks whose text and links are left out.

    Attributes:
        title: The title that the file declares, or the empty text.
        title_is_fallback: Whether a heading is preferred to the declared title.
        codes: Attributes that documents can share, such as keywords.
        attributes: Other attributes, by name.
        last_line: No line is after this one; a parser sets it if its lines are not reliable.
        names: Names of the whole document by which others can refer to it.
        counts: What was found: blocks by kind, links out of the files, and notes of the parser.
    """

    def __init__(self, docno: str, skip: tuple[str, ...] = ()) -> None:
        self.docno = docno
        self.title = ""
        self.title_is_fallback = False
        self.codes: list[str] = []
        self.attributes: dict[str, str] = {}
        self.last_line = sys.maxsize
        self.names: list[str] = []
        self.counts: Counter[str] = Counter()
        self.blocks: list[Text] = []
        self.skip = skip
        self._text = Text("text", 1)

    def begin(self, kind: str, line: int | None, level: int = 0) -> None:
        """Ends the block before, and begins one in this line; one of a ``level`` is a heading."""
        self.end()
        marks, line = self._text.marks, line or self._text.line
        self._text = Text(kind, line, min(level, MAX_LEVEL), marks=marks)

    def end(self) -> None:
        """Ends a block. Marks of a block without text are those of the next block."""
        text = self._text
        if text.words and text.level and text.words > MAX_HEADING:
            text.level, text.kind = 0, "text"
        self._text = Text("text", text.line)
        if text.words and (text.level or text.kind not in self.skip):
            self.blocks.append(text)
            self.counts["headings" if text.level else text.kind] += 1
        else:
            if text.words:
                self.counts[f"skipped {text.kind}"] += 1
            self._text.marks = [
                mark._replace(word=0) for mark in text.marks if mark.kind in (ANCHOR, NAME) or not text.words
            ]

    @property
    def pending(self) -> list[Mark]:
        """Marks of the present block."""
        return self._text.marks

    @property
    def is_blank(self) -> bool:
        """Whether the present block has no text yet."""
        return not self._text.words

    def add(self, text: str | None) -> None:
        """Adds text to the present block."""
        self._text.add(text or "")

    def anchor(self, name: str | None) -> None:
        """Marks a place that links can lead to."""
        if name:
            self._text.mark(ANCHOR, clean(name))

    def name(self, name: str) -> None:
        """Marks a place that has a name for all files."""
        self._text.mark(NAME, clean(name))

    def link(self, name: str) -> None:
        """Marks a link to an anchor of this document; the empty name is that of the document itself."""
        self._text.mark(LINK, clean(name))

    def refer(self, *names: str, address: str = "") -> None:
        """Marks a reference to the first of these names that a document has.

        Args:
            names: What is looked for, as :meth:`name` and the other files' anchors have it.
            address: The file, if one is meant: without it, the link leads nowhere. A name that is no file may well be
                that of a document elsewhere.
        """
        self._text.mark(REFERENCE, *map(clean, (address, *names)))

    def code(self, values: object) -> None:
        """Adds codes: a text, in which commas separate them, or a list of texts."""
        items = values.split(",") if isinstance(values, str) else values if isinstance(values, list) else []
        texts = (clean(" ".join(str(item).split())) for item in items if isinstance(item, str | int | float))
        self.codes += [text for text in texts if text and text not in self.codes]
