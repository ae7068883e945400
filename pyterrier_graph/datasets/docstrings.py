"""Splits docstrings into summary, sections and passages, without their markup."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pyterrier_graph.documents.document import split_text

MAX_SUMMARY_WORDS = 30
MAX_PASSAGE_WORDS = 150

_OUTSIDE_OF_SECTIONS = {"Signature", "Summary", "Extended Summary", "See Also", "index"}


class Passage(NamedTuple):
    """A passage of a docstring.

    Attributes:
        section: Title of its section; ``""`` for the description before the first section.
        text: The text without markup and line breaks.
        names: Parameters that it describes, or the label of its bibliographic reference.
        mentions: Names, section titles and labels that its markup refers to.
    """

    section: str
    text: str
    names: frozenset[str]
    mentions: frozenset[str]


class SeeAlso(NamedTuple):
    """An entry of a "See Also" section: names of objects and their description."""

    names: tuple[str, ...]
    description: str


class Docstring(NamedTuple):
    """The parts of a docstring.

    Attributes:
        summary: The summary line, or ``""``. No passage contains it.
        passages: Passages in the order of the numpydoc standard, without "See Also".
        see_also: The entries of "See Also".
    """

    summary: str
    passages: tuple[Passage, ...]
    see_also: tuple[SeeAlso, ...]


def parse_docstring(text: str) -> Docstring:
    """Splits a docstring without indentation into its parts.

    A signature before the summary is removed. The summary is the first paragraph, or its first sentence if it has more
    than 30 words or ends in a colon. In sections that list things (parameters, attributes, returned values, errors),
    each entry is a passage; entries without a description are one passage together. In other sections, each paragraph
    is a passage, together with the code, formulas and lists after it. Passages of more than 150 words are cut.

    Raises:
        ValueError: If the docstring violates the standard.
    """
    from numpydoc.docscrape import NumpyDocString, Parameter

    text = _SIGNATURE.sub("", text, count=1)
    text = _TEMPLATE.sub("", text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown sections and underlines of another length
        parsed = NumpyDocString(text)
    summary, rest = _split_summary(parsed["Summary"])
    description = [*rest, "", *parsed["Extended Summary"]]
    passages = list(_paragraphs("", description))
    for title, content in parsed.items():
        if title in _OUTSIDE_OF_SECTIONS or not content:
            continue
        if isinstance(content[0], Parameter):
            passages += _entries(title, content)
        else:
            passages += _paragraphs(title, content)
    see_also = []
    for objects, description in parsed["See Also"]:
        names = tuple(name.removeprefix("~") for name, _ in objects)
        text = plain_text(" ".join(description))
        see_also.append(SeeAlso(names, text))
    return Docstring(summary, tuple(passages), tuple(see_also))


def plain_text(markup: str) -> str:
    """Removes the markup of reStructuredText from a text and joins its lines."""
    for pattern, replacement in _MARKUP:
        markup = re.sub(pattern, replacement, markup, flags=re.MULTILINE)
    if "--" in markup or "==" in markup:
        markup = _LINES.sub("", markup)
    return " ".join(markup.split())


_TEMPLATE = re.compile(r"%\((\w+)\)s|^[ \t]*\$?\{\w+\}[ \t]*$", re.MULTILINE)  # filled in at import
_SIGNATURE = re.compile(
    r"""\A\s*(?:[\w.,\ ]+=\ *)?[\w.]+\((?:(?!\n\s*\n).)*?\)  # name(...), in one paragraph
        [ \t]*(?:->[^\n]*)?(?:\n[ \t]*--[ \t]*)?(?:\n[ \t]*\n|\Z)""",
    re.DOTALL | re.VERBOSE,
)
_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=[A-Z`])", re.DOTALL)
# What continues a paragraph: an indented block, code, a formula, the rest of a sentence, an item of a list.
_CONTINUES = re.compile(r"\s|>>>|\.\. math::|[a-z]|[-*+] |\d+\. ")
_REFERENCE = re.compile(r"^\.\. \[(#?\w+)\]", re.MULTILINE)

_MARKUP = (
    (r"^\s*\.\. _[^:\n]+:.*$", ""),  # label or address of a link
    (
        r"^\s*\.\. (?:math|note|warning|seealso|attention|tip|important|hint|rubric|admonition)::",
        "",
    ),
    (r"^\s*\.\. [\w:-]+::.*$", ""),
    (r"^\s*:[\w-]+:[^`\n]*$", ""),  # option of a directive
    (r"^\s*\.\.(?= |$)", ""),
    (r"(?:Read more in|See) the :ref:`User Guide <[^`]*`\.?", ""),
    (r":[\w:+-]+:`([^`<]*?)\s*<[^`]*>`", r"\1"),
    (r":[\w:+-]+:`[~!]?([^`]*)`", r"\1"),
    (r"`([^`<]+?)\s*<[^`>]+>`__?", r"\1"),
    (r"``(.+?)``", r"\1"),
    (r"`~?([^`\n]*(?:\n[^`\n]*)?)`(?:__?\b)?", r"\1"),
    (r"(?<![\w*\\])\*\*([^\s*](?:[^*]*[^\s*\\])?)\*\*(?![\w*])", r"\1"),
    (r"(?<![\w*\\])\*([^\s*](?:[^*]*[^\s*\\])?)\*(?![\w*])", r"\1"),
    (r"\[(#?\w+)\]_", r"[\1]"),
    (r"::\s*$", ":"),
    (r"\\([*_|`])", r"\1"),
)
_LINES = re.compile(r"(?<!\S)(?:-{3,}|={3,}|\+[-=+]+)(?!\S)")  # of tables and under titles
# names, emphasized names, titles of sections, labels of bibliographic references
_MENTIONS = (
    r"(?<![:`\w])`{1,2}([A-Za-z_]\w*)`{1,2}(?![`\w])",
    r"(?<![\w*\\])\*{1,2}([A-Za-z_]\w*)\*{1,2}(?![\w*])",
    r"\b(?:[Ss]ee|[Ii]n) (?:also )?(?:the )?[`\"'*]*((?:Other )?[A-Z][a-z]+)[`\"'*]*(?= section| below|[.,;)])",
    r"\[(#?\w+)\]_",
)


def _split_summary(lines: list[str]) -> tuple[str, list[str]]:
    text = "\n".join(lines).strip()
    if len(text.split()) <= MAX_SUMMARY_WORDS and not text.endswith(":"):
        return plain_text(text), []
    sentence = _SENTENCE.match(text)
    if sentence and len(sentence[1].split()) <= MAX_SUMMARY_WORDS:
        rest = text[sentence.end() :]
        return plain_text(sentence[1]), rest.splitlines()
    return "", lines


def _entries(section: str, parameters: Iterable[Any]) -> Iterator[Passage]:
    for described, group in itertools.groupby(parameters, key=lambda entry: bool(entry.desc)):
        entries = [*group]
        if described:
            for entry in entries:
                markup = "\n".join([_header(entry), "", *entry.desc])
                yield from _passages(section, markup, _names(entry))
        else:
            headers = ", ".join(_header(entry) for entry in entries)
            names: frozenset[str] = frozenset()
            for entry in entries:
                names |= _names(entry)
            yield from _passages(section, headers, names)


def _header(entry: Any) -> str:
    if entry.name and entry.type:
        return f"{entry.name} : {entry.type}"
    return entry.name or entry.type


def _names(entry: Any) -> frozenset[str]:
    return frozenset(name.strip(" `*\\") for name in entry.name.split(","))


def _paragraphs(section: str, lines: Iterable[str]) -> Iterator[Passage]:
    paragraph = ""
    text = "\n".join(lines)
    blocks = re.split(r"\n\s*\n|\n(?=\.\. \[)", text)
    for block in blocks:
        if not block.strip():
            continue
        ends = len(paragraph.split()) >= 5 and not paragraph.rstrip().endswith(":")
        if ends and not _CONTINUES.match(block):
            yield from _passages(section, paragraph)
            paragraph = ""
        paragraph += f"\n\n{block}" if paragraph else block
    yield from _passages(section, paragraph)


def _passages(section: str, markup: str, names: frozenset[str] = frozenset()) -> Iterator[Passage]:
    names |= frozenset(_REFERENCE.findall(markup))
    mentions: frozenset[str] = frozenset()
    for pattern in _MENTIONS:
        mentions |= frozenset(re.findall(pattern, markup))
    mentions -= names
    for text in split_text(plain_text(markup), MAX_PASSAGE_WORDS):
        yield Passage(section, text, names, mentions)
        names = mentions = frozenset()  # the first part has them all
