"""Folders of Markdown, HTML, reStructuredText or office files as structured documents.

Files are found, the parser of a format reads each of them into an outline, and links between files are resolved last.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pyterrier_graph.checks import DataWarning, check_count, check_type, is_unicode
from pyterrier_graph.documents.document import (
    PASSAGE,
    Reference,
    needs_files_extra,
    split_passage_id,
)
from pyterrier_graph.documents.readers.outline import Draft, Outline, ReaderError, assemble, clean

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Parse = Callable[[bytes, Outline], None]

# per module the endings of its files' names; the libraries of the extras [files] and [office] are optional
FORMATS = {
    "markdown": (".md", ".markdown", ".mdown"),
    "html": (".html", ".htm", ".xhtml"),
    "rst": (".rst", ".rest"),
    "plain_text": (".txt", ".text"),
    "office": (".docx", ".pptx", ".pdf", ".ipynb"),
}
MAX_BYTES = 50_000_000  # of a file
SECONDS, MEMORY = (
    60,
    2 << 30,
)  # to read a file; the expansion of a stranger's file can be exponential
FEW = 200  # files; fewer take less time than processes need to start
EXAMPLES = 10
_LATIN = frozenset(("iso-8859-1", "iso8859-1", "latin-1", "latin1", "ascii", "us-ascii"))


class DocumentFiles:
    """The documents of files, in the order of their paths; each iteration reads the files again.

    All files are read before the first document is yielded, since links may lead to later files. Memory holds paths,
    names of anchors, and one document at a time; the other documents are in a temporary file. A document is a record
    with ``docno``, ``title``, ``text``, ``nodes``, ``links``, ``references``, and ``lines``: per node the line of the
    file where it begins.

    Attributes:
        report: A report of the last complete iteration: numbers of ``files`` and ``documents``, the reasons of
            ``broken`` files by name, the names of ``empty`` files, the numbers of ``skipped`` files by the endings of
            their names, and the first ``links_to_nowhere``. The summary of a graph contains it as ``source``.
    """

    def __init__(
        self,
        files: Files,
        formats: Sequence[str],
        *,
        min_words: int = 30,
        max_words: int = 120,
        workers: int | None = None,
        verbose: bool = True,
    ) -> None:
        check_type(
            "files", files, (str, os.PathLike, Iterable), "a folder, a file, or a list of files"
        )
        check_count("min_words", min_words, 0)
        check_count("max_words", max_words)
        if min_words > max_words:
            raise ValueError(
                f"min_words must not exceed max_words, got {min_words} and {max_words}"
            )
        if len(formats) == 1:
            parser(formats[0])  # raises at once if a library is missing
        self.root, self.paths, self.skipped = find(
            files, tuple(ending for name in formats for ending in FORMATS[name])
        )
        self.formats, self.options = formats, (min_words, max_words)
        self.workers, self.verbose = workers, verbose
        self.report: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyterrier as pt
        from joblib import Parallel, cpu_count, delayed

        broken, empty, nowhere = dict[str, str](), list[str](), list[str]()
        ids: dict[str, str] = {}  # of documents and passages, by the names that links use
        documents = 0
        workers = self.workers or (cpu_count() if len(self.paths) >= FEW else 1)
        calls = (
            delayed(read_file)(self.root, path, self.formats, *self.options) for path in self.paths
        )
        progress = {"desc": "reading files", "total": len(self.paths), "unit": "file", "delay": 1}
        with TemporaryFile("w+", encoding="utf-8") as drafts:
            results = pt.tqdm(
                Parallel(workers, return_as="generator")(calls),
                **progress,
                disable=not self.verbose,
            )
            for path, draft in zip(self.paths, results, strict=True):
                if isinstance(draft, str):
                    broken[os.fsencode(path).decode("utf-8", "replace")] = draft
                elif not any(kind == PASSAGE for kind, _, _ in draft.nodes):
                    empty.append(path)
                else:
                    for name, identifier in draft.names.items():
                        ids.setdefault(name, identifier)
                    drafts.write(json.dumps(vars(draft)) + "\n")
                    documents += 1
            drafts.seek(0)
            for line in drafts:
                yield self._record(json.loads(line), ids, nowhere)
        self.report = {
            "files": len(self.paths),
            "documents": documents,
            "broken": broken,
            "empty": empty,
            "skipped": dict(self.skipped.most_common(EXAMPLES)),
            "links_to_nowhere": nowhere[:EXAMPLES],
        }
        if broken:
            name, reason = next(iter(broken.items()))
            message = f"{len(broken)} of {len(self.paths)} files were not read, the first is {name}: {reason}"
            warnings.warn(
                f"{message}. report['broken'] lists all of them", DataWarning, stacklevel=2
            )

    def _record(
        self, draft: dict[str, Any], ids: Mapping[str, str], nowhere: list[str]
    ) -> dict[str, Any]:
        """The document of a draft, with its references resolved."""
        references = []
        for node, address, names in draft["references"]:
            target = next((ids[name] for name in names if name in ids), "")
            if (
                not target
                and address
                and not any(os.path.exists(self.root / name) for name in names)
            ):
                nowhere.append(f"{draft['docno']}: {address}")
                target = address  # the graph counts it as unresolved
            if target:
                references.append(Reference("external", node, target))
        nodes = draft["nodes"]
        text = "\n".join(text for kind, text, _ in nodes if kind == PASSAGE)
        return draft | {"title": nodes[0][1], "text": text, "references": references}


def find(files: Files, suffixes: tuple[str, ...]) -> tuple[Path, list[str], Counter[str]]:
    """The folder of files, their paths in it, and numbers of other files by suffix.

    Read are the files of a folder that have one of the suffixes, or all files of a list. Symbolic links and hidden
    files in a folder are left out, so that nothing outside of the folder is read.
    """
    if isinstance(files, str | os.PathLike) and os.path.isdir(files):
        root, paths, skipped = Path(files), [], Counter[str]()
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                path = Path(folder, name)
                if not name.lower().endswith(suffixes):
                    skipped[clean(path.suffix.lower()) or "no suffix"] += 1
                elif path.is_file() and not path.is_symlink():
                    paths.append(path.relative_to(root).as_posix())
        return root, paths, skipped
    given = [files] if isinstance(files, str | os.PathLike) else [*files]
    if not given:
        raise ValueError("files must be a folder, a file, or a list of files, got an empty list")
    for file in given:
        check_type("a path in files", file, (str, os.PathLike), "the path of a file")
        if not os.path.isfile(file):
            raise FileNotFoundError(f"there is no file {os.path.abspath(file)!r}")
    listed = [Path(path).absolute() for path in given]
    root = Path(os.path.commonpath([file.parent for file in listed]))
    return root, [*dict.fromkeys(file.relative_to(root).as_posix() for file in listed)], Counter()


def parser(format: str) -> Parse:
    """The parser of a format; raises ImportError if a library is missing."""
    with needs_files_extra(f"reading {format}", "office" if format == "office" else "files"):
        return import_module(f"pyterrier_graph.documents.readers.{format}").parse


def read_file(
    root: Path, path: str, formats: Sequence[str], min_words: int, max_words: int
) -> Draft | str:
    """The draft of a file, or the reason why it cannot be read."""
    format = next((name for name in formats if path.lower().endswith(FORMATS[name])), formats[0])
    parse = parser(format)
    try:
        if (size := (root / path).stat().st_size) > MAX_BYTES:
            return f"it has {size:,} bytes, more than {MAX_BYTES:,}"
        with _limits():
            return read_draft(parse, (root / path).read_bytes(), path, min_words, max_words)
    except ReaderError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    except _TimeIsUpError:
        return f"not read within {SECONDS} seconds"
    except Exception as error:  # an error of a parser concerns this file only
        return f"unexpected {type(error).__name__}: {error}"


class _TimeIsUpError(BaseException):
    """Parsers that catch all errors do not catch this one."""


@contextmanager
def _limits() -> Iterator[None]:
    """Ends what takes longer or more memory, where the system has such limits and this is the main thread."""
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    import resource  # not on Windows

    def stop(*_: object) -> None:
        raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, stop)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    if (pages := Path("/proc/self/statm")).exists():
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + MEMORY
        most = min([most, *(limit for limit in memory if limit != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_AS, (most, memory[1]))
    signal.setitimer(
        signal.ITIMER_REAL, SECONDS, 1.0
    )  # and each second after: a destructor can lose an exception
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def read_draft(parse: Parse, data: bytes, docno: str, min_words: int, max_words: int) -> Draft:
    """The document of a file's bytes; ReaderError if it does not have the format of the parser."""
    if split_passage_id(docno)[1] is not None:
        raise ReaderError("its name looks like the id of a passage")
    if not is_unicode(docno):
        raise ReaderError("its name is not valid UTF-8")
    outline = Outline(docno)
    try:
        parse(data, outline)
        return assemble(outline, min_words, max_words)
    except (RecursionError, MemoryError) as error:
        raise ReaderError("its parts are too large or nested too deeply") from error


def decode(data: bytes, encoding: str | None = None) -> str:
    """Decodes a file by the given encoding, its byte order mark, the declared encoding, UTF-8, or a guess."""
    with needs_files_extra("reading files"):
        from bs4.dammit import EncodingDetector, UnicodeDammit

    names = [encoding, EncodingDetector.find_declared_encoding(data, is_html=True)]
    given, declared = (
        ["cp1252" if name in _LATIN else name] if name else [] for name in names
    )  # as browsers do
    text = UnicodeDammit(data, given, user_encodings=[*declared, "utf-8"]).unicode_markup
    if text is None or "\0" in text:
        raise ReaderError("not a text: it contains NUL bytes")
    return text


def read_markdown(
    files: Files,
    *,
    min_words: int = 30,
    max_words: int = 120,
    workers: int | None = None,
    verbose: bool = True,
) -> DocumentFiles:
    """Reads files of Markdown: CommonMark, with tables and front matter. Needs the extra ``[files]``.

    ::

        graph = ptg.DocumentGraph("corpus.graph").index(ptg.read_markdown("docs"))

    A file becomes a document. Its docno is the file's path in the folder. Headings become sections; paragraphs, items
    of lists, code, rows of tables and quotes become passages. A link to a heading or an anchor of the same file becomes
    an edge ``internal``, a link to another file of the folder an edge ``external``: to the first passage at the anchor
    that the link names, or to the document. Links out of the folder are left out. In front matter, ``title`` is the
    document's title. Files that cannot be read are left out and listed in the report; one warning counts them.

    Args:
        files: A folder, which is searched with all folders inside, a file, or a list of files. Symbolic links and
            hidden files in a folder are left out.
        min_words: Blocks of a section with fewer words are merged with the next block, if the passage then has at most
            ``max_words``.
        max_words: Blocks with more words are cut, after a sentence if possible.
        workers: Number of processes. By default as many as there are cores, but one for fewer than 200 files.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ImportError: If the libraries of the extra ``[files]`` are not installed.
    """
    return DocumentFiles(
        files,
        ["markdown"],
        min_words=min_words,
        max_words=max_words,
        workers=workers,
        verbose=verbose,
    )


def read_html(files: Files, **options: Any) -> DocumentFiles:
    """Reads files of HTML; arguments, documents, passages and links are those of :func:`read_markdown`.

    The title is that of the only heading of the highest level, or the page's ``<title>``. Where a page marks its main
    text (``<main>``, ``role="main"``, ``<article>``), other text is left out; so are navigation, asides, and the header
    and footer of the page. Cells of a row of a table are separated by ``|``. The encoding is the one that the page
    declares.
    """
    return DocumentFiles(files, ["html"], **options)


def read_rst(files: Files, **options: Any) -> DocumentFiles:
    """Reads files of reStructuredText; arguments, documents, passages and links are those of :func:`read_markdown`.

    Nothing is included from other files. Directives and roles that docutils does not have, such as those of Sphinx, are
    read as text; ``:doc:``, ``:ref:`` and tables of contents become links where their targets are among the files.
    """
    return DocumentFiles(files, ["rst"], **options)


def read_office(files: Files, **options: Any) -> DocumentFiles:
    """Reads ``.docx``, ``.pptx``, ``.pdf`` and ``.ipynb`` files; arguments and passages as for :func:`read_markdown`.

    Slides and pages are sections. ``lines`` are numbers of slides, pages or cells, from 1. Pictures, macros, scanned
    pages and outputs of notebooks are left out. Needs the extra ``[office]``.
    """
    return DocumentFiles(files, ["office"], **options)
