"""Reads Markdown: CommonMark, tables and front matter."""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

from pyterrier_graph.documents.readers.page import LINE, Page, ReaderError, decode

_MAX_NESTING = 100
# Lines between two rules are front matter if they are "key: value" lines, perhaps with lines that continue a value.
_FRONT_MATTER = re.compile(
    r"---[ \t]*\n(?=\w)((?:\w[\w.-]*[ \t]*:(?:[ \t].*)?\n|[ \t#].*\n|- .*\n|\n)+)(?:---|\.\.\.)[ \t]*(?:\n|\Z)"
)
_TITLE = re.compile(r"""^title[ \t]*:[ \t]+(?![>|&*!])(["']?)(.*?)\1[ \t]*$""", re.MULTILINE)
# Tags inside of paragraphs that are read; others, such as List<String>, are more often text than HTML.
_TAG = re.compile(r"</?(?:a|span|img|br)\b", re.IGNORECASE)


def to_html(data: bytes, name: str) -> Page:
    """Converts a Markdown file."""
    text = "\n".join(decode(data).splitlines()) + "\n"
    title = ""
    if front_matter := _FRONT_MATTER.match(text):
        declared = _TITLE.search(front_matter[1])
        title = declared[2] if declared else ""
        text = "\n" * front_matter[0].count("\n") + text[front_matter.end() :]
    return Page(render(text), title, "attributes")


def render(text: str) -> str:
    """Renders Markdown as HTML whose elements know their lines."""
    parser = _parser()
    tokens = parser.parse(text)
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):  # deeper ones are not parsed
        raise ReaderError("blocks are nested too deeply")
    for token in tokens:
        if token.map and token.nesting >= 0:
            token.attrSet(LINE, f"{token.map[0] + 1}")
            if token.type == "html_block":
                token.content = f'<span {LINE}="{token.map[0] + 1}"></span>{token.content}'
        token.children = [child for child in token.children or () if _is_read(child)]
    return str(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    return parser.use(anchors_plugin, max_level=6)


def _is_read(token: Token) -> bool:
    return token.type != "html_inline" or _TAG.match(token.content) is not None
