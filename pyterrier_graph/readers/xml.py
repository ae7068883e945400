"""XML without network, without files that it names, and without entities that grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import unescape
from typing import Any

from lxml import etree

from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.outline import Outline


def parse_xml(data: bytes, encoding: str | None = None) -> Any:
    """The root element; entities other than characters stay as they are.

    Raises:
        ReaderError: If the bytes are not well-formed XML.
    """
    try:
        parser = etree.XMLParser(
            resolve_entities=False,
            no_network=True,
            huge_tree=False,
            load_dtd=False,
            remove_comments=True,
            remove_pis=True,
            encoding=encoding,
        )
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError, LookupError) as error:
        raise ReaderError(f"not well-formed XML: {error}") from error


def text_of(element: Any) -> str | None:
    """The text at the begin of an element, or the character that an entity such as ``&alpha;`` of HTML stands for."""
    return element.text if isinstance(element.tag, str) else unescape(element.text)


def plain_text(element: Any) -> str:
    """All text of an element, with normalized white space."""
    return " ".join("".join(map(unescape, element.itertext())).split())


class ElementWalk(ABC):
    """Goes through the elements of a page or an article and tells an outline of them."""

    outline: Outline
    lines_before = 0

    def read(self, root: Any) -> None:
        """Reads an element with all that is in it."""
        self.outline.begin("text", self._line(root))
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            if event == "start" and self._is_left_out(element, root):
                walk.skip_subtree()
            elif event == "start":
                self._start(element)
                self.outline.add(text_of(element))
            else:
                self._end(element)
                self.outline.add(element.tail if element is not root else "")
        self.outline.end()

    def _line(self, element: Any) -> int:
        return self.lines_before + (element.sourceline or 1)

    @abstractmethod
    def _is_left_out(self, element: Any, root: Any) -> bool:
        """Whether an element, with all that is in it, is not read."""

    @abstractmethod
    def _start(self, element: Any) -> None:
        """Tells the outline that an element begins."""

    @abstractmethod
    def _end(self, element: Any) -> None:
        """Tells the outline that an element ends."""
