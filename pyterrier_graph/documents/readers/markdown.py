"""Reads Markdown: CommonMark, tables and front matter."""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from pyterrier_graph.documents.readers.page import LINE, Page, decode

_TITLE = re.compile(r"""^title[ \t]*:[ \t]+(?![>|&*!])(["']?)(.*?)\1[ \t]*$""", re.MULTILINE)
# Tags inside of paragraphs that are read; others, such as List<String>, are more often text than HTML.
_TAG = re.compile(r"</?(?:a|span|img|br)\b", re.IGNORECASE)


def to_html(data: bytes, name: str) -> Page:
    """Converts a Markdown file."""
    text = "\n".join(decode(data).splitlines()) + "\n"
    tokens = _parser().parse(text)
    title = None
    if tokens and tokens[0].type == "front_matter":
        title = _TITLE.search(tokens[0].content)
    return Page(_render(tokens), title[2] if title else "", "attributes")


def render(text: str) -> str:
    """Renders Markdown as HTML whose elements know their lines."""
    return _render(_parser().parse(text))


def _render(tokens: list[Token]) -> str:
    for token in tokens:
        if token.map and token.nesting >= 0:
            token.attrSet(LINE, f"{token.map[0] + 1}")
            if token.type == "html_block":
                token.content = f'<span {LINE}="{token.map[0] + 1}"></span>{token.content}'
        token.children = [child for child in token.children or () if _is_read(child)]
    parser = _parser()
    return str(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table").use(front_matter_plugin)
    return parser.use(anchors_plugin, max_level=6)


def _is_read(token: Token) -> bool:
    return token.type != "html_inline" or _TAG.match(token.content) is not None
