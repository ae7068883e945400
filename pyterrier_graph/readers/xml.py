"""XML without network, without files that it names, and without entities that grow."""

from __future__ import annotations

from html import unescape
from typing import Any

from lxml import etree

from pyterrier_graph.readers.errors import ReaderError


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
