"""Front matter: the fields, written in YAML, before the text of a Markdown file."""

from __future__ import annotations

from typing import Any

import yaml

from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.text import clean

MAX_CHARACTERS = 1 << 16
CODES = ("tags", "keywords", "categories", "category")


class _Loader(yaml.SafeLoader):
    """Reads plain values only; a value that is repeated by a name could grow without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_fields(text: str, outline: Outline) -> None:
    """Adds the title, the codes (tags, keywords, categories) and other fields of front matter to an outline.

    Front matter that is no YAML, has aliases, or is too long is counted and left out.
    """
    try:
        fields = yaml.load(text, _Loader) if len(text) <= MAX_CHARACTERS else None  # a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, AttributeError, LookupError, TypeError):
        fields = None
    if not isinstance(fields, dict):
        outline.counts["front matter that is not readable"] += 1
        return
    for name, value in fields.items():
        if name == "title" and isinstance(value, str | int | float):
            outline.title = clean(str(value))
        elif name in CODES:
            outline.code(value)
        elif isinstance(name, str) and not isinstance(value, dict | list | set | tuple | bytes) and value is not None:
            outline.attributes[clean(name)] = clean(str(value))
