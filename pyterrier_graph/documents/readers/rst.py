"""Reads reStructuredText, by way of the HTML that a table makes of the nodes of docutils.

Directives and roles that docutils does not have, such as those of Sphinx, keep their content.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from io import StringIO
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, Parser, directives, roles, states
from lxml import etree

from pyterrier_graph.documents.document import xml_text
from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.html import LINE, MARKS, Walk
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

ENDINGS = (".rst", "/index.rst", ".rest")
CODE_DIRECTIVES = frozenset(
    "autosummary code-block doctest dot graphviz highlight ipython jupyter-execute literalinclude mermaid plot "
    "productionlist testcode testoutput testsetup testcleanup uml".split()
)
LABEL_ROLES = frozenset(("ref", "numref", "any"))
OBJECT_ROLES = frozenset("func class exc meth attr data const obj mod".split())

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
    "toc_backlinks": False,
    "doctitle_xform": False,
    "docinfo_xform": False,
}
_TAGS = {
    nodes.list_item: "li",
    nodes.definition_list_item: "li",
    nodes.option_list_item: "li",
    nodes.field: "li",
    nodes.block_quote: "blockquote",
    nodes.row: "tr",
    nodes.entry: "td",
    nodes.literal_block: "pre",
    nodes.doctest_block: "pre",
    nodes.math_block: "pre",
    nodes.caption: "caption",
    nodes.image: "img",
    **dict.fromkeys(
        (
            nodes.paragraph,
            nodes.line_block,
            nodes.term,
            nodes.option_group,
            nodes.field_name,
            nodes.attribution,
        ),
        "p",
    ),
    nodes.rubric: "p",
    nodes.line: "div",
    nodes.target: "span",  # it may be a block
}
_WITH_LINE = ("p", "tr", "pre", "caption", *(f"h{level}" for level in range(1, 21)))
_NO_TEXT = (
    nodes.Invisible,
    nodes.system_message,
    nodes.raw,
    nodes.decoration,
    nodes.generated,
    nodes.label,
)


def parse(data: bytes, outline: Outline) -> None:
    """Reads a file of reStructuredText into an outline."""
    text = decode(data)
    settings = _SETTINGS | {"warning_stream": StringIO()}
    try:
        document = publish_doctree(text, parser=keeping_parser(), settings_overrides=settings)
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # docutils does not name its errors
        raise ReaderError(f"docutils cannot read it: {type(error).__name__}: {error}") from error
    root = _Html(document.nametypes, len(text.splitlines())).element(document)
    Walk(outline, ENDINGS, flat=("p",)).read(root)


class _Html:
    """Makes HTML of the nodes of docutils; fields at the beginning, such as authors, are left out.

    ``is_explicit`` is whether a label was given by the author, rather than made of the title of a section. docutils
    reports lines after ``last_line``.
    """

    def __init__(self, is_explicit: dict[str, bool], last_line: int) -> None:
        self.is_explicit, self.last_line = is_explicit, last_line
        self.level = 0
        self.has_begun = False  # whether there is more text than the title

    def element(self, node: Any) -> Any:
        """The element of a node."""
        made, level = etree.Element(self._tag(node)), self.level
        if made.tag in _WITH_LINE and (
            line := node.line or (node.parent.line if node.parent is not None else None)
        ):
            line -= made.tag[0] == "h"  # docutils has that of the underline
            made.set(LINE, str(max(1, min(line, self.last_line))))
        if isinstance(node, nodes.image):
            made.set("alt", xml_text(node.get("alt", "")))
        if marks := [*self._anchors(node), *self._links(node)]:
            made.set(MARKS, json.dumps(marks))
        if isinstance(node, nodes.section):
            self.level += 1
        is_shown = isinstance(node, nodes.target) or not isinstance(
            node, (*_NO_TEXT, nodes.footnote_reference)
        )
        for child in (
            node.children if is_shown and "contents" not in node.get("classes", ()) else ()
        ):
            if isinstance(child, nodes.Text):
                self.has_begun |= made.tag != "h1"
                _append(made, xml_text(child.astext()))
            elif not isinstance(child, nodes.field_list) or self.has_begun or self.level > 1:
                made.append(self.element(child))
        self.level = level
        return made

    def _tag(self, node: Any) -> str:
        if isinstance(node, nodes.title):
            return f"h{self.level}" if isinstance(node.parent, nodes.section) else "p"
        is_block = isinstance(node, nodes.Body | nodes.section) and not isinstance(
            node, nodes.Inline
        )
        return _TAGS.get(type(node)) or ("div" if is_block else "span")

    def _anchors(self, node: Any) -> list[list[str]]:
        if isinstance(node, nodes.document):
            return []
        marks = [["anchor", name] for name in node.get("ids", ())]
        marks += [
            ["name", f"label:{name}"]
            for name in node.get("names", ())
            if self.is_explicit.get(name)
        ]
        return marks

    def _links(self, node: Any) -> list[Any]:
        role, target = node.get("role"), node.get("target", "")
        if isinstance(node, nodes.reference | nodes.footnote_reference | nodes.citation_reference):
            if "refid" in node:
                return [["link", node["refid"]]]
            return [["follow", node["refuri"], ENDINGS]] if "refuri" in node else []
        if role == "doc":
            return [["follow", target, ENDINGS]]
        if role in LABEL_ROLES:
            return [["refer", f"label:{nodes.fully_normalize_name(target)}"]]
        return [["follow", _target(entry), ENDINGS] for entry in node.get("entries", ())]


def _append(element: Any, text: str) -> None:
    """Adds text after all that an element contains."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _target(entry: str) -> str | None:
    """The document that an entry of a table of contents names: ``docname`` or ``Title <docname>``."""
    entry = entry.strip()
    target = entry.rpartition("<")[2].rstrip(">").strip()
    return target if target and target != "self" and not entry.startswith(":") else None


class _Kept(Directive):
    """A directive that docutils does not have: its argument and its content are text."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = defaultdict(
        lambda: directives.unchanged, {"class": directives.unchanged}
    )  # of all names

    def run(self) -> list[nodes.Node]:
        """Makes the nodes that stand for the directive."""
        text, name = "\n".join(self.content), self.name.rpartition(":")[2]
        if name == "toctree":
            return [nodes.container("", entries=text.splitlines())]
        if name in CODE_DIRECTIVES:
            return [nodes.literal_block(text, text)] if text else []
        kept = nodes.container()
        if self.arguments and name not in ("highlight", "module", "currentmodule"):
            kept += nodes.paragraph(self.arguments[0], "", nodes.Text(self.arguments[0]))
            kept[0].line = self.lineno
        self.state.nested_parse(self.content, self.content_offset, kept)
        return [kept]


class _KeepsContent:
    """The differences that all states of the parser share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nested_sm_kwargs = self.indent_sm_kwargs = {
            "state_classes": _STATES,
            "initial_state": "Body",
        }

    def unknown_directive(self: Any, name: str) -> Any:
        """Reads the directive as text."""
        pattern = next(
            pattern
            for method, pattern in self.explicit.constructs
            if method.__name__ == "directive"
        )
        match = pattern.match(self.state_machine.line)
        return (
            self.run_directive(_Kept, match, name, {}) if match else super().unknown_directive(name)
        )  # type: ignore


_STATES = tuple(type(state.__name__, (_KeepsContent, state), {}) for state in states.state_classes)


def _interpreted(inliner: states.Inliner, rawsource: str, text: str, role: str, lineno: int) -> Any:
    """Reads what has a role that docutils does not have as text, which keeps role and target."""
    if roles.role(role, inliner.language, lineno, inliner.reporter)[0]:
        return states.Inliner.interpreted(inliner, rawsource, text, role, lineno)
    title, separator, target = nodes.unescape(text).rpartition("<")
    if not separator or not target.endswith(">"):
        title = target = nodes.unescape(text)
    name, title, target = role.rpartition(":")[2], title.strip(), target.removesuffix(">").strip()
    if name in OBJECT_ROLES:
        title = title.rpartition(".")[2] if title.startswith("~") else title.lstrip("!")
    return [nodes.inline(rawsource, title, role=name, target=target)], []


def keeping_parser() -> Parser:
    """A parser of reStructuredText that loses nothing that it does not understand."""
    inliner = states.Inliner()
    vars(inliner)["interpreted"] = partial(
        _interpreted, inliner
    )  # a derived class would lack its base's patterns
    parser = Parser(inliner=inliner)
    parser.state_classes = _STATES
    return parser
