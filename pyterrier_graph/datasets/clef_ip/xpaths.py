"""How a passage of a patent is named: by a docno, and by the XPath of its element in the docno's file."""

from __future__ import annotations

import re
from typing import NamedTuple

PARAGRAPHS = {"abstract": "p", "description": "p", "claims": "claim"}

_DOCNO = re.compile(r"[A-Z]{2}-[0-9A-Z]{1,20}-[A-Z][0-9A-Z]?")
_INDEX = r"(?:\[\s*([1-9]\d{0,8})\s*\])?"
_XPATH = re.compile(
    rf"/patent-document(?:\[1\])?/(abstract|description|claims){_INDEX}(?:/([a-z-]+){_INDEX}(?:/[^\s,]*)?)?"
)


class PassageXPath(NamedTuple):
    """An XPath, taken apart.

    Attributes:
        part: ``'abstract'``, ``'description'`` or ``'claims'``.
        version: Which one of several elements of that name (there may be one per language); 1 is the first.
        position: Which one of the part's paragraphs or claims, 1 is the first; or 0 for the part as a whole.
    """

    part: str
    version: int
    position: int


def is_docno(text: str) -> bool:
    """Whether a text is a docno, such as ``EP-1480263-A1``: country, number and kind code."""
    return _DOCNO.fullmatch(text) is not None


def format_xpath(part: str, position: int) -> str:
    """The XPath of a paragraph or claim as the task writes it; position 0 stands for the part as a whole."""
    return f"/patent-document/{part}" + (f"/{PARAGRAPHS[part]}[{position}]" if position else "")


def parse_xpath(xpath: str) -> PassageXPath:
    """Takes the XPath of a passage apart.

    A missing index means the first element. What lies deeper inside a paragraph or claim counts as that.

    Args:
        xpath: For example ``/patent-document/claims/claim[2]``, ``/patent-document/abstract[1]/p[1]``.

    Raises:
        ValueError: If it is no XPath of a paragraph of an abstract or description, or of a claim.
    """
    match = _XPATH.fullmatch(xpath.strip())
    part, version, step, position = match.groups() if match else (None, None, None, None)
    if part is None or step not in (None, PARAGRAPHS[part]):
        raise ValueError(
            f"{xpath!r} is no XPath of a passage, which look like /patent-document/abstract/p[1], "
            "/patent-document/description/p[1], /patent-document/claims/claim[1]"
        )
    return PassageXPath(part, int(version or 1), int(position or 1) if step else 0)
