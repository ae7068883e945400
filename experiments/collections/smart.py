"""Files in the form of the SMART system, which the Glasgow IR test collections have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence


def smart_records(
    lines: Sequence[str], file: str, fields: Collection[str]
) -> list[tuple[str, dict[str, str]]]:
    """The number of each record, and its fields with single blanks between words; a field that is missing is ``''``.

    Args:
        lines: The lines of the file. ``.I n`` starts a record, and a field's letter after a dot starts the field.
        file: Name of the file, for messages.
        fields: The letters of the fields.

    Raises:
        ValueError: If there is no record, or a line is in no field; the message names file and line.
    """
    records: list[tuple[str, defaultdict[str, list[str]]]] = []
    field = ""
    for place, line in enumerate(lines, start=1):
        match line.split():
            case [".I", number] if number.isdecimal():
                records.append((number, defaultdict(list)))
                field = ""
            case [mark] if mark[0] == "." and mark[1:] in fields and records:
                field = mark[1]
            case words if field:
                records[-1][1][field] += words
            case words if words:
                raise ValueError(
                    f"{file}, line {place}: neither .I and a number nor in a field: {line!r}"
                )
    if not records:
        raise ValueError(f"{file} is empty")
    return [
        (number, defaultdict(str, {name: " ".join(words) for name, words in of.items()}))
        for number, of in records
    ]
