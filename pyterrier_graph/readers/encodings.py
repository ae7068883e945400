"""From the bytes of a file to its text."""

import codecs

from pyterrier_graph.readers.errors import ReaderError

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE = 1 << 16  # bytes from which an encoding is guessed


def decode(data: bytes, encoding: str | None = None, declared: str | None = None) -> tuple[str, bool]:
    """The text of a file, and whether some of its bytes were not of its encoding and became U+FFFD.

    The first of these that is there decides: ``encoding``, a byte order mark, the encoding that the file declares,
    UTF-8 if all bytes are valid, and what charset-normalizer finds. Windows-1252 is the last resort.

    Raises:
        ReaderError: If the file is no text.
    """
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if not (encoding or marked) and b"\0" in data:
        raise ReaderError("not a text: it contains NUL bytes")
    for name in filter(None, (encoding, marked, declared)):
        if codec := _codec(name):
            return _replace(data, codec)
    try:
        return data.decode("utf-8"), False
    except UnicodeDecodeError:
        return _replace(data, _detect(data))


def _codec(name: str) -> str | None:
    """The name of a text encoding that Python has; browsers read Latin-1 and ASCII as Windows-1252."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    text = getattr(codec, "_is_text_encoding", True) and codec.name not in ("idna", "punycode", "undefined")
    return ("cp1252" if codec.name in ("iso8859-1", "ascii") else codec.name) if text else None


def _replace(data: bytes, encoding: str) -> tuple[str, bool]:
    try:
        return data.decode(encoding), False
    except UnicodeError:
        return data.decode(encoding, errors="replace"), True


def _detect(data: bytes) -> str:
    from charset_normalizer import from_bytes

    first = next((place for place, byte in enumerate(data) if byte > 127), 0)
    start = max(0, first - _SAMPLE // 4)
    found = from_bytes(data[start : start + _SAMPLE]).best()
    if found is None and len(data) > 32:
        raise ReaderError("not a text: its bytes are of no encoding")
    return found.encoding if found else "cp1252"
