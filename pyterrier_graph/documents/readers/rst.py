"""Reads reStructuredText with docutils. Directives and roles of Sphinx are read as their content.

Nothing is included from other files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from io import StringIO

from docutils import nodes
from docutils.core import publish_parts
from docutils.writers.html4css1 import Writer

from pyterrier_graph.documents.readers.page import Page, decode
from pyterrier_graph.documents.readers.passages import LABEL

_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,
    "halt_level": 5,
    "traceback": True,  # errors are raised
    "input_encoding": "unicode",
    "line_length_limit": 10_000_000,
    "syntax_highlight": "none",
    "math_output": "LaTeX",
    "footnote_backlinks": False,
    "doctitle_xform": False,
    "embed_stylesheet": False,
    "stylesheet_path": "",
}
# Directives that docutils reads. The others, such as notes, are read as their argument and their content.
_OF_DOCUTILS = frozenset(
    "class csv-table default-role figure image include list-table meta raw replace role sectnum table title "
    "unicode".split()
)
_CODE = frozenset(
    "autosummary code code-block doctest dot graphviz ipython jupyter-execute mermaid parsed-literal plot "
    "productionlist sourcecode testcleanup testcode testoutput testsetup uml".split()
)
_WITHOUT_TEXT = frozenset("contents currentmodule highlight index module only".split())
_ROLES_OF_DOCUTILS = frozenset(
    "code emphasis literal math pep raw rfc strong sub subscript sup superscript title".split()
)
_OBJECT_ROLES = frozenset("func class exc meth attr data const obj mod".split())

_DIRECTIVE = re.compile(
    r"^([ \t]*)\.\. ([\w:.+-]+)::[ \t]*(.*)\n((?:[ \t]+:[\w-]+:.*\n)*)", re.MULTILINE
)
_TOCTREE = re.compile(r"^([ \t]*)\.\. toctree::.*\n((?:[ \t]*\n|\1[ \t]+.*\n)*)", re.MULTILINE)
_LABEL = re.compile(r"^([ \t]*)\.\. _`?([^`:\n]+)`?:[ \t]*\n", re.MULTILINE)
_ROLE = re.compile(r":(?:[\w+.]+:)?([\w+.-]+):`([^`]+)`")


def to_html(data: bytes, name: str) -> Page:
    """Converts a file of reStructuredText."""
    text = "\n".join(decode(data).splitlines()) + "\n"
    links = "".join(f'<a id="toctree" href="{escape(entry)}"></a>' for entry in _entries(text))
    for pattern, replacement in (
        (_TOCTREE, "\n"),
        (_DIRECTIVE, _directive),
        (_LABEL, rf"\g<0>\1.. _{LABEL} \2:\n"),
        (_ROLE, _role),
    ):
        text = pattern.sub(replacement, text)
    settings = _SETTINGS | {"warning_stream": StringIO()}
    parts = publish_parts(text, writer=Writer(), settings_overrides=settings)
    return Page(links + parts["html_body"])


def _entries(text: str) -> Iterator[str]:
    """Yields the documents that tables of contents name as ``docname`` or ``Title <docname>``."""
    for table in _TOCTREE.finditer(text):
        for entry in table[2].splitlines():
            name = entry.strip().rpartition("<")[2].removesuffix(">").strip()
            if name not in ("", "self") and not name.startswith(":") and "*" not in name:
                yield name


def _directive(match: re.Match[str]) -> str:
    """Returns a directive without its markup."""
    indent, full_name, argument, _ = match.groups()
    name = full_name.rpartition(":")[2]
    if full_name in _OF_DOCUTILS:
        return match[0]
    if name in _CODE:
        return f"{indent}.. code::\n"
    if name == "math":
        return f"{indent}.. math:: {argument}\n"
    return "\n" if name in _WITHOUT_TEXT else f"{indent}{argument}\n"


def _role(match: re.Match[str]) -> str:
    """Returns the text of a role, as a link if it names a document or a label."""
    name, text = match.groups()
    if name in _ROLES_OF_DOCUTILS:
        return match[0]
    title, separator, target = text.rpartition("<")
    title, target = title.strip(), target.removesuffix(">").strip()
    if not (separator and title and text.endswith(">")):
        title = target = text.strip()
    if name in ("ref", "numref", "any"):
        return f"`{title} <{LABEL}:{nodes.make_id(target)}>`__"
    if name == "doc":
        return f"`{title} <{target}>`__"
    if name in _OBJECT_ROLES:
        title = title.rpartition(".")[2] if title.startswith("~") else title.lstrip("!")
    return f"``{title}``"
