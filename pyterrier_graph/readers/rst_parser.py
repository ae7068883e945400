"""A docutils parser that keeps the content of directives and roles that docutils does not have, such as Sphinx's."""

from __future__ import annotations

from functools import partial
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, Parser, directives, roles, states

CODE = frozenset(
    "autosummary code-block doctest dot graphviz highlight ipython jupyter-execute literalinclude mermaid plot "
    "productionlist testcode testoutput testsetup testcleanup uml".split()
)
LABELS = frozenset(("ref", "numref", "any"))
"""Roles whose text is a label."""

OBJECTS = frozenset("function class exception method classmethod staticmethod attribute property data".split())
"""Directives that describe an object of Python."""

OBJECT_ROLES = frozenset("func class exc meth attr data const obj mod".split())


class _AnyOption(dict[str, Any]):
    """Options of all names."""

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return directives.unchanged


class _Kept(Directive):
    """A directive that docutils does not have: its argument and its content are text."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = _AnyOption()

    def run(self) -> list[nodes.Node]:
        """Makes the nodes that stand for the directive."""
        text, name = "\n".join(self.content), self.name.rpartition(":")[2]
        if name == "toctree":
            return [nodes.container("", entries=text.splitlines())]
        if name in CODE:
            return [nodes.literal_block(text, text)] if text else []
        kept = nodes.container()
        prefix = self.state.document.get("prefix", ())  # of names: the module and the class
        argument = self.arguments[0] if self.arguments and name != "highlight" else ""
        if name in ("module", "currentmodule", *OBJECTS):
            named = [" ".join(line.split("(")[0].split()[-1:]) for line in argument.splitlines()]
            kept["objects"] = named if name not in OBJECTS else [".".join((*prefix, name)) for name in named]
        if name in ("module", "currentmodule"):
            self.state.document["prefix"] = (argument,)
        elif argument:
            kept += nodes.paragraph(argument, "", nodes.Text(argument))
            kept[0].line = self.lineno
        if name in ("class", "exception") and kept["objects"]:
            self.state.document["prefix"] = (kept["objects"][0],)
        self.state.nested_parse(self.content, self.content_offset, kept)
        if name in ("class", "exception"):
            self.state.document["prefix"] = prefix
        return [kept]


class _KeepsContent:
    """What is different in all states of the parser."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nested_sm_kwargs = self.indent_sm_kwargs = {"state_classes": _STATES, "initial_state": "Body"}

    def unknown_directive(self: Any, name: str) -> Any:
        """Reads the directive as text."""
        pattern = next(pattern for method, pattern in self.explicit.constructs if method.__name__ == "directive")
        match = pattern.match(self.state_machine.line)
        return self.run_directive(_Kept, match, name, {}) if match else super().unknown_directive(name)  # type: ignore


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
    prefix = ".".join(inliner.document.get("prefix", ()))
    return [nodes.inline(rawsource, title, role=name, target=target, prefix=prefix)], []


def keeping_parser() -> Parser:
    """A parser of reStructuredText that loses nothing that it does not understand."""
    inliner = states.Inliner()
    vars(inliner)["interpreted"] = partial(_interpreted, inliner)  # a derived class would lack its base's patterns
    parser = Parser(inliner=inliner)
    parser.state_classes = _STATES
    return parser
