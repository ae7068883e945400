"""Reads Markdown: CommonMark, tables and front matter."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from pyterrier_graph.documents.readers.page import LINE, Page, decode

PARSER = MarkdownIt("commonmark").enable("table")
PARSER.use(front_matter_plugin)
PARSER.use(anchors_plugin, max_level=6)
_TITLE = re.compile(r"""^title[ \t]*:[ \t]+(?![>|&*!])(["']?)(.*?)\1[ \t]*$""", re.MULTILINE)
# Tags inside of paragraphs that are read; others, such as List<String>, are more often text than HTML.
_TAG = re.compile(r"</?(?:a|span|img|br)\b", re.IGNORECASE)


def to_html(data: bytes, name: str) -> Page:
    """Converts a Markdown file."""
    tokens = PARSER.parse(decode(data))
    title = ""
    if tokens and tokens[0].type == "front_matter":
        entry = _TITLE.search(tokens[0].content)
        if entry:
            title = entry[2]
    for token in tokens:
        if token.map and token.nesting >= 0:
            first, _ = token.map  # from 0
            line = str(first + 1)
            token.attrSet(LINE, line)
            if token.type == "html_block":
                token.content = f'<span {LINE}="{line}"></span>{token.content}'
        children = token.children or []
        token.children = [child for child in children if _is_read(child)]
    html = PARSER.renderer.render(tokens, PARSER.options, {})
    return Page(str(html), title)


def _is_read(token: Token) -> bool:
    """Whether a token is a part of the text: all but most tags."""
    if token.type != "html_inline":
        return True
    return _TAG.match(token.content) is not None
