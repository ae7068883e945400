"""Reads Markdown: CommonMark with tables and front matter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING

from pyterrier_graph.readers.encodings import decode
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.front_matter import read_fields
from pyterrier_graph.readers.html import parse_fragment, parse_tag
from pyterrier_graph.readers.links import follow
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.source import DocumentFiles, Files

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

SUFFIXES = (".md", ".markdown", ".mdown")
ENDINGS = (".md", "/index.md", "/README.md", "/_index.md")

_KINDS = {"list_item_open": "list", "blockquote_open": "quote", "tr_open": "table"}
_CODE = ("fence", "code_block")
_MAX_NESTING = 100


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.anchors import anchors_plugin
    from mdit_py_plugins.front_matter import front_matter_plugin

    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    return parser.use(front_matter_plugin).use(anchors_plugin, max_level=6)


def read_markdown(
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
    """Reads files of Markdown: CommonMark, with tables and front matter.

    ::

        graph = ptg.DocumentGraph("corpus.graph").index(ptg.read_markdown("docs"))

    A file becomes a document. Its docno is the file's path in the folder. Headings become sections; paragraphs, items
    of lists, code, rows of tables and quotes become passages. A link to a heading or an anchor of the same file becomes
    an edge ``internal``, a link to another file of the folder an edge ``external``: to the first passage at the anchor
    that the link names, or to the document. Links to elsewhere are counted. Of front matter, ``title`` is the
    document's title; tags, keywords and categories are its codes.

    Args:
        files: A folder, which is searched with all folders inside, a file, or a list of files. Symbolic links and
            hidden files in a folder are left out.
        min_words: Blocks of a section with fewer words are merged with the next block, if the passage does not get
            more than ``max_words``.
        max_words: Blocks with more words are cut, after a sentence if possible.
        skip: Kinds of blocks to leave out: ``'list'``, ``'code'``, ``'table'``, ``'quote'``, ``'caption'``,
            ``'references'`` (the entries of a bibliography). Links in them are left out, too.
        suffixes: How the names of the files in a folder end.
        encoding: Encoding of all files. By default the files' own: what a file declares, UTF-8, or what
            charset-normalizer detects.
        max_bytes: Larger files are not read.
        seconds: A file that takes longer is given up, where the system allows it; 0 is no limit.
        workers: Number of processes. By default as many as there are cores, but one for fewer than 200 files.
        strict: Whether a file that cannot be read is an error. By default such files are left out, named in one
            warning, and listed in the report.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ReaderError: If a file cannot be read and ``strict`` is True; a ValueError that names the file.
    """
    options = ReaderOptions(min_words, max_words, skip, encoding, max_bytes, seconds)
    return DocumentFiles(files, parse, suffixes, options, workers=workers, strict=strict, verbose=verbose)


def parse(data: bytes, outline: Outline, encoding: str | None = None) -> None:
    """Reads a Markdown file into an outline."""
    text, outline.counts["files with bytes of another encoding"] = decode(data, encoding)
    kinds = ["text"]
    for token in _parser().parse(text):
        line = token.map[0] + 1 if token.map else None
        if token.level >= _MAX_NESTING - 1:  # what is deeper is not read
            raise ReaderError("blocks are nested too deeply")
        if token.type == "front_matter":
            read_fields(token.content, outline)
        elif token.type == "heading_open":
            outline.begin("text", line, int(token.tag[1:]))
            outline.anchor(str(token.attrs.get("id", "")))
        elif token.type in _CODE:
            outline.begin("code", line)
            outline.add(token.content)
        elif token.type == "html_block":
            parse_fragment(token.content, outline, line or 1)
        elif token.type == "inline":
            _add(token.children or (), outline)
        elif token.type in ("td_open", "th_open"):
            outline.add("" if outline.is_blank else " | ")
        elif token.nesting == 1:
            if token.type in _KINDS:
                kinds.append(_KINDS[token.type])
            if token.block and token.type != "table_open":
                outline.begin(kinds[-1], line)
        elif token.nesting == -1 and token.type not in ("td_close", "th_close"):
            if token.type.replace("close", "open") in _KINDS:
                kinds.pop()
            outline.end()
    outline.end()


def _add(tokens: Iterable[Token], outline: Outline) -> None:
    for token in tokens:
        if token.type in ("softbreak", "hardbreak"):
            outline.add("\n")
        elif token.type == "image":
            _add(token.children or (), outline)
        elif token.type == "html_inline":
            parse_tag(token.content, outline)
        else:
            if token.type == "link_open":
                follow(outline, str(token.attrs.get("href", "")), ENDINGS)
            outline.add(token.content)
