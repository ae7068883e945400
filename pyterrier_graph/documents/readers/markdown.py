"""Reads Markdown: CommonMark with tables and front matter, by way of the HTML that markdown-it makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from pyterrier_graph.documents.document import is_number
from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.html import LINE, Walk, parse_html
from pyterrier_graph.documents.readers.outline import Outline, ReaderError, clean

ENDINGS = (".md", "/index.md", "/README.md", "/_index.md")

_MAX_NESTING = 100
_MAX_FRONT_MATTER = 1 << 16  # characters
_LINE = "data-pyterrier-graph-line"
_TAG = re.compile(r"<[A-Za-z][\w-]*")
_KEPT = re.compile(
    r"</?(?:a|span|img|br)\b", re.IGNORECASE
)  # tags inside of paragraphs that say something


@cache
def _parser(html: bool) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING, "html": html}).enable("table")
    return parser.use(front_matter_plugin).use(anchors_plugin, max_level=6)


def parse(data: bytes, outline: Outline) -> None:
    """Reads a Markdown file into an outline."""
    read_part(decode(data), outline)


def read_part(text: str, outline: Outline, place: int | None = None, *, html: bool = True) -> None:
    """Reads Markdown into an outline, with the number of a slide or cell in place of lines if it is given.

    Tags are text if ``html`` is False.
    """
    parser = _parser(html)
    tokens = parser.parse(text)
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):  # what is deeper is not read
        raise ReaderError("blocks are nested too deeply")
    if tokens and tokens[0].type == "front_matter":
        read_front_matter(tokens.pop(0).content, outline)
    for token in tokens:
        _add_line(token)
        token.children = [*_inline(token.children)] if token.children else token.children
    root = parse_html(parser.renderer.render(tokens, parser.options, {}))
    if root is not None:
        _set_lines(root)
        for element in root.iter() if place else ():
            element.set(LINE, str(place))
        Walk(outline, ENDINGS, is_main=True).read(root)


def _add_line(token: Token) -> None:
    """Gives the first tag of a block the number of its line."""
    token.hidden = token.hidden and not token.type.startswith(
        "paragraph"
    )  # tight lists have paragraphs, too
    if token.map is None or token.nesting < 0:
        return
    line = token.map[0] + 1
    if token.type == "html_block" and (tag := _TAG.search(token.content)):
        line += token.content.count("\n", 0, tag.start())
        token.content = f'{token.content[: tag.end()]} {_LINE}="{line}"{token.content[tag.end() :]}'
    token.attrSet(_LINE, str(line))


def _inline(tokens: Iterable[Token]) -> Iterator[Token]:
    """The parts of a paragraph: a picture is its description, and of tags only anchors, links and breaks are kept."""
    for token in tokens:
        if token.type == "image":
            yield from _inline(token.children or ())
        elif token.type != "html_inline" or _KEPT.match(token.content):
            yield token


def _set_lines(root: Any) -> None:
    """Sets the line of each element; inside of a block of HTML, lines are counted from its first tag."""
    before = 0
    for element in root.iter():
        line = element.attrib.pop(_LINE, "")
        if is_number(line):
            before = int(line) - element.sourceline
        element.set(LINE, str(max(1, before + element.sourceline)))
        if (
            line and element.tag == "code"
        ):  # the renderer gives the line of a fence to the inner element
            element.getparent().set(LINE, element.get(LINE))
        elif (
            line and element.tag == "tr"
        ):  # the file does not have the line breaks between its cells
            element.text = None
            for cell in element:
                cell.tail = None


class _Loader(yaml.SafeLoader):
    """Reads plain values only; a value that is repeated by a name could grow without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_front_matter(text: str, outline: Outline) -> None:
    """Adds the title to an outline. Front matter that is not YAML, has aliases, or is too long is left out."""
    try:
        fields = yaml.load(text, _Loader) if len(text) <= _MAX_FRONT_MATTER else None
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
    ):
        return
    title = fields.get("title") if isinstance(fields, dict) else None
    if isinstance(title, str | int | float):
        outline.title = clean(str(title))
