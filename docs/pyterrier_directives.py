"""Stands in for the directives of PyTerrier's documentation, so that the pages can be built without it, and offline."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class HowTo(SphinxDirective):
    """``.. how-to:: Question?`` is a section of its own."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Makes the section."""
        question = self.arguments[0]
        section = nodes.section("", nodes.title(question, "", *self.parse_inline(question)[0]))
        section["ids"].append(nodes.make_id(question))
        section += self.parse_content_to_nodes()
        return [section]


class Cite(SphinxDirective):
    """``.. cite:: key`` with a citation and its link."""

    required_arguments = 1
    option_spec = {"citation": directives.unchanged_required, "link": directives.uri}

    def run(self) -> list[nodes.Node]:
        """Makes a paragraph with the link."""
        return [
            nodes.paragraph(
                "", "", nodes.reference("", self.options["citation"], refuri=self.options["link"])
            )
        ]


class CiteDblp(Cite):
    """``.. cite.dblp:: key``, of which nothing is looked up."""

    option_spec = {}

    def run(self) -> list[nodes.Node]:
        """Makes a paragraph with the link."""
        key = self.arguments[0]
        self.options = {"citation": f"dblp: {key}", "link": f"https://dblp.org/rec/{key}"}
        return super().run()


class Related(SphinxDirective):
    """``.. related:: name`` shows nothing here; PyTerrier's links a name's entry to this place."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Makes nothing."""
        return []


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directives."""
    app.add_directive("how-to", HowTo)
    app.add_directive("cite", Cite)
    app.add_directive("cite.dblp", CiteDblp)
    app.add_directive("related", Related)
    return {"parallel_read_safe": True}
