"""Reads reStructuredText."""

from __future__ import annotations

from collections.abc import Collection
from io import StringIO
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree

from pyterrier_graph.readers.encodings import decode
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.front_matter import CODES
from pyterrier_graph.readers.links import follow
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.rst_parser import LABELS, OBJECT_ROLES, keeping_parser
from pyterrier_graph.readers.source import DocumentFiles, Files

SUFFIXES = (".rst", ".rest")
ENDINGS = (".rst", "/index.rst", ".rest")

_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,
    "halt_level": 5,
    "traceback": True,  # errors are raised
    "input_encoding": "unicode",
    "line_length_limit": 10_000_000,
    "smart_quotes": False,
    "syntax_highlight": "none",
    "toc_backlinks": False,
    "footnote_backlinks": False,
    "doctitle_xform": False,
    "docinfo_xform": False,
}
_KINDS = {
    nodes.list_item: "list",
    nodes.definition_list_item: "list",
    nodes.option_list_item: "list",
    nodes.field: "list",
    nodes.block_quote: "quote",
    nodes.row: "table",
    nodes.literal_block: "code",
    nodes.doctest_block: "code",
    nodes.math_block: "code",
    nodes.caption: "caption",
    nodes.citation: "references",
}
_ALONE = (
    nodes.row,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.math_block,
    nodes.caption,
    nodes.paragraph,
    nodes.line_block,
    nodes.term,
    nodes.option_group,
    nodes.field_name,
    nodes.attribution,
    nodes.rubric,
)
_NO_TEXT = (nodes.Invisible, nodes.system_message, nodes.raw, nodes.decoration, nodes.generated, nodes.label)


def read_rst(
    files: Files,
    *,
    min_words: int = 30,
    max_words: int = 120,
    skip: Collection[str] = (),
    suffixes: Collection[str] = SUFFIXES,
    encoding: str | None = None,
    max_bytes: int = 50_000_000,
    seconds: float = 60,
    workers: int | None = None,
    strict: bool = False,
    verbose: bool = True,
) -> DocumentFiles:
    """Reads files of reStructuredText.

    Nothing is included from other files. Directives and roles that docutils does not have, such as those of Sphinx, are
    read as text; ``:doc:``, ``:ref:``, tables of contents and the roles of Python's objects become links where their
    targets are among the files. Fields at the beginning of a file are its attributes; tags and keywords are its codes.

    All arguments are those of :func:`~pyterrier_graph.read_markdown`.
    """
    options = ReaderOptions(min_words, max_words, skip, encoding, max_bytes, seconds)
    return DocumentFiles(files, parse, suffixes, options, workers=workers, strict=strict, verbose=verbose)


def parse(data: bytes, outline: Outline, encoding: str | None = None) -> None:
    """Reads a file of reStructuredText into an outline."""
    text, outline.counts["files with bytes of another encoding"] = decode(data, encoding)
    outline.last_line = max(1, len(text.splitlines()))  # docutils has lines behind it
    settings = _SETTINGS | {"warning_stream": StringIO()}
    try:
        document = publish_doctree(text, parser=keeping_parser(), settings_overrides=settings)
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # docutils does not name its errors
        raise ReaderError(f"docutils cannot read it: {type(error).__name__}: {error}") from error
    _Walk(outline, document.nametypes).read(document)
    outline.end()


class _Walk:
    """Goes through a document of docutils and tells an outline of it."""

    def __init__(self, outline: Outline, is_explicit: dict[str, bool]) -> None:
        self.outline = outline
        self.is_explicit = is_explicit  # per label; titles of sections are implicit ones
        self.level = 0
        self.kind = "text"
        self.is_flat = False

    def read(self, node: Any) -> None:
        """Reads a node with all that is in it."""
        outline = self.outline
        if isinstance(node, nodes.Text):
            outline.add(node.astext())
        elif isinstance(node, nodes.field_list) and self._is_first():
            self._read_fields(node)
        elif isinstance(node, nodes.meta):
            if node.get("name") == "keywords":
                outline.code(node.get("content", ""))
        elif isinstance(node, nodes.target):
            self._anchors(node)
            self._read_children(node)
        elif isinstance(node, _NO_TEXT) or "contents" in node.get("classes", ()):
            self._anchors(node)
        elif isinstance(node, nodes.title):
            self._read_title(node)
        elif isinstance(node, nodes.section):
            self.level += 1
            outline.end()
            self._anchors(node)
            self._read_children(node)
            self.level -= 1
        else:
            self._read_other(node)

    def _is_first(self) -> bool:
        """Whether fields are those of the document: no text, and no heading but the title is before them."""
        return self.level <= 1 and all(block.level == 1 for block in self.outline.blocks)

    def _read_children(self, node: Any) -> None:
        for child in node.children:
            self.read(child)

    def _read_title(self, node: Any) -> None:
        level = self.level if isinstance(node.parent, nodes.section) else 0
        line = _line(node)
        self.outline.begin(self.kind, line - 1 if line and level else line, level)  # docutils has that of the underline
        self._anchors(node)
        self._read_children(node)
        self.outline.end()

    def _read_other(self, node: Any) -> None:
        outline, before = self.outline, (self.kind, self.is_flat)
        self.kind = _KINDS.get(type(node), self.kind)
        if isinstance(node, _ALONE) and (not self.is_flat or isinstance(node, nodes.row)):
            outline.begin(self.kind, _line(node))
        elif isinstance(node, nodes.entry):
            outline.add("" if outline.is_blank else " | ")
        elif isinstance(node, nodes.Body | nodes.line):
            outline.add(" ")
        self.is_flat = self.is_flat or isinstance(node, _ALONE)
        if not isinstance(node, nodes.document):
            self._anchors(node)
        if isinstance(node, nodes.image):
            outline.add(f" {node.get('alt', '')} ")
        for entry in node.get("entries", ()):
            follow(outline, _target(entry), ENDINGS)
        self._links(node)
        if not isinstance(node, nodes.footnote_reference):
            self._read_children(node)
        if isinstance(node, _ALONE) and not before[1]:
            outline.end()
        self.kind, self.is_flat = before

    def _anchors(self, node: Any) -> None:
        for name in node.get("ids", ()):
            self.outline.anchor(name)
        for name in node.get("names", ()):
            if self.is_explicit.get(name):
                self.outline.name(f"label:{name}")
        for name in node.get("objects", ()):
            self.outline.name(f"object:{name}")

    def _links(self, node: Any) -> None:
        role, target = node.get("role"), node.get("target", "")
        if isinstance(node, nodes.reference | nodes.footnote_reference | nodes.citation_reference):
            if "refid" in node:
                self.outline.link(node["refid"])
            elif "refuri" in node:
                follow(self.outline, node["refuri"], ENDINGS)
        elif role == "doc":
            follow(self.outline, target, ENDINGS)
        elif role in LABELS:
            self.outline.refer(f"label:{nodes.fully_normalize_name(target)}")
        elif role in OBJECT_ROLES and not target.startswith("!"):
            name = target.lstrip("~.")
            self.outline.refer(f"object:{name}", f"object:{node['prefix']}.{name}")

    def _read_fields(self, fields: Any) -> None:
        for name, body in fields.children:
            if name.astext().lower() in CODES:
                self.outline.code(body.astext())
            else:
                self.outline.attributes[name.astext().lower()] = body.astext()


def _target(entry: str) -> str | None:
    """The document that an entry of a table of contents names: ``docname`` or ``Title <docname>``."""
    entry = entry.strip()
    target = entry.rpartition("<")[2].rstrip(">").strip()
    return target if target and target != "self" and not entry.startswith(":") else None


def _line(node: Any) -> int | None:
    return node.line or (node.parent.line if node.parent is not None else None)
