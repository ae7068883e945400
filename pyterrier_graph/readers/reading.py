"""Reads one file, within bounds of size and time; whatever is wrong with the file becomes a reason."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyterrier_graph.documents import PASSAGE, split_passage_id
from pyterrier_graph.readers.drafts import Draft, assemble
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.options import Parse, ReaderOptions
from pyterrier_graph.readers.outline import Outline

SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of a file's name that are not UTF-8


@dataclass
class Result:
    """What was read of a file.

    Attributes:
        docno: The file's path in its folder.
        reason: Why the file cannot be read; the empty text if it can be.
        body: The document's draft, as JSON; the empty text if it has no passage.
        names: Names of the document and its parts, with their ids.
        counts: What was found.
    """

    docno: str
    reason: str = ""
    body: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class _TimeIsUpError(BaseException):
    """Parsers that catch all errors do not catch this one."""


def read_file(parse: Parse, root: Path, options: ReaderOptions, docno: str) -> Result:
    """Reads a file of a folder; no error leaves this function but what stops the program."""
    try:
        with _time_limit(options.seconds):
            draft = read_draft(parse, _bytes(root / docno, options.max_bytes), docno, options)
    except ReaderError as error:
        return Result(_printable(docno), str(error))
    except _TimeIsUpError:
        return Result(_printable(docno), f"not read within {options.seconds:g} seconds")
    except OSError as error:
        return Result(_printable(docno), error.strerror or str(error))
    except Exception as error:  # an error of a parser is one of this file only
        return Result(_printable(docno), f"unexpected {type(error).__name__}: {error}")
    if not any(kind == PASSAGE for kind, _, _ in draft.nodes):
        return Result(docno, counts=draft.counts)
    record = {name: value for name, value in vars(draft).items() if name not in ("names", "counts")}
    return Result(docno, "", json.dumps(record), draft.names, draft.counts)


def read_draft(parse: Parse, data: bytes, docno: str, options: ReaderOptions) -> Draft:
    """Makes a document of a file's bytes.

    Raises:
        ReaderError: If the file is not what the parser reads.
    """
    if split_passage_id(docno)[1] is not None:
        raise ReaderError("its name looks like the id of a passage")
    if _printable(docno) != docno:
        raise ReaderError("its name is not valid UTF-8")
    outline = Outline(docno, tuple(options.skip))
    try:
        parse(data, outline, options.encoding)
        return assemble(outline, options.min_words, options.max_words)
    except RecursionError as error:
        raise ReaderError("its parts are nested too deeply") from error
    except MemoryError as error:
        raise ReaderError("it needs more memory than there is") from error


def _bytes(file: Path, limit: int) -> bytes:
    size = file.stat().st_size
    if size > limit:
        raise ReaderError(f"it has {size:,} bytes, more than max_bytes={limit:,}")
    with open(file, "rb") as stream:
        return stream.read(limit)


def _printable(docno: str) -> str:
    return SURROGATES.sub("\N{REPLACEMENT CHARACTER}", docno)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Ends what takes longer, where the system has such a signal and this is the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, stop)
    # again each second: an exception that is raised while an object is deleted is ignored
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest, interval)
        signal.signal(signal.SIGALRM, before)
