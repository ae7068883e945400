"""Names of passages in the files of the task: a docno, and an XPath in the file of that docno."""

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
    """The parts of an XPath.

    Attributes:
        part: ``'abstract'``, ``'description'`` or ``'claims'``.
        version: The position among the elements of that name, from 1; there may be one element per language.
        position: The position among the part's paragraphs or claims, from 1; 0 for the part as a whole.
    """

    part: str
    version: int
    position: int


def is_docno(text: str) -> bool:
    """Whether a text is a docno, such as ``EP-1480263-A1``: country, number and kind code."""
    return _DOCNO.fullmatch(text) is not None


def format_xpath(part: str, position: int) -> str:
    """The XPath of a paragraph or claim; position 0 stands for the part as a whole."""
    return f"/patent-document/{part}" + (f"/{PARAGRAPHS[part]}[{position}]" if position else "")


def parse_xpath(xpath: str) -> PassageXPath:
    """The parts of an XPath such as ``/patent-document/claims/claim[2]``.

    A missing index is 1. The XPath of an element inside a paragraph or claim means the paragraph or claim.

    Raises:
        ValueError: If it is no XPath of a paragraph of an abstract or description, or of a claim.
    """
    match = _XPATH.fullmatch(xpath.strip())
    part, version, step, position = match.groups() if match else (None, None, None, None)
    if part is None or step not in (None, PARAGRAPHS[part]):
        raise ValueError(
            f"{xpath!r} is no XPath of a passage, such as /patent-document/abstract/p[1], "
            "/patent-document/description/p[1] or /patent-document/claims/claim[1]"
        )
    return PassageXPath(part, int(version or 1), int(position or 1) if step else 0)
