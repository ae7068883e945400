"""Fields of records: texts, lists and sections, checked; errors name the document and the field."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyterrier_graph.documents import is_missing

Record = Mapping[str, Any]
Section = tuple[str, list[str]]  # title and paragraphs
PAIRS = "a list of (title, text or paragraphs)"


def text_of(record: Record, field: str) -> str:
    """The text of a field, which is empty if there is none."""
    return checked_text(record, field, record.get(field))


def checked_text(record: Record, field: str, value: Any) -> str:
    """A text that a field holds, which is empty if it is None or NaN."""
    if is_missing(value):
        return ""
    if not isinstance(value, str):
        raise _error(record, field, "text", value)
    return value


def checked_list(record: Record, field: str, value: Any, expected: str) -> list[Any]:
    """A list that a field holds, which is empty if it is None."""
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _error(record, field, expected, value)
    return [*value]


def sections_of(record: Record, field: str) -> Iterator[Section]:
    """The sections that a field holds."""
    for section in checked_list(record, field, record[field], PAIRS):
        pair = checked_list(record, field, section, PAIRS)
        if len(pair) != 2:
            raise _error(record, field, PAIRS, section)
        title, text = pair
        plain = text is None or isinstance(text, str)
        paragraphs = [text] if plain else checked_list(record, field, text, "a list of paragraphs")
        yield checked_text(record, field, title).strip(), [checked_text(record, field, part) for part in paragraphs]


def _error(record: Record, field: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"document {record['docno']!r}: {field!r} must have {expected}, not {value!r:.60}")
