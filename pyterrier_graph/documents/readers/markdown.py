"""Reads Markdown: CommonMark, tables and front matter."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from pyterrier_graph.documents.readers.page import LINE, Page, decode

PARSER = MarkdownIt("commonmark").enable("table")
PARSER.use(front_matter_plugin).use(anchors_plugin, max_level=6)
_TITLE = re.compile(r"""^title[ \t]*:[ \t]+(?![>|&*!])(["']?)(.*?)\1[ \t]*$""", re.MULTILINE)
# Tags inside of paragraphs that are read; others, such as List<String>, are more often text than HTML.
_TAG = re.compile(r"</?(?:a|span|img|br)\b", re.IGNORECASE)


def to_html(data: bytes, name: str) -> Page:
    """Converts a Markdown file."""
    tokens = PARSER.parse(decode(data))
    title = None
    if tokens and tokens[0].type == "front_matter":
        title = _TITLE.search(tokens[0].content)
    for token in tokens:
        if token.map and token.nesting >= 0:
            line = str(token.map[0] + 1)
            token.attrSet(LINE, line)
            if token.type == "html_block":
                token.content = f'<span {LINE}="{line}"></span>{token.content}'
        token.children = [child for child in token.children or () if _is_read(child)]
    html = str(PARSER.renderer.render(tokens, PARSER.options, {}))
    return Page(html, title[2] if title else "")


def _is_read(token: Token) -> bool:
    return token.type != "html_inline" or _TAG.match(token.content) is not None
