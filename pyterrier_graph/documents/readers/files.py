"""Folders of Markdown, HTML, reStructuredText, text or office files as structured documents.

Each file becomes a page of HTML and then a draft. Links between files are resolved last.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pyterrier_graph.checks import DataWarning, is_unicode
from pyterrier_graph.documents.document import (
    PASSAGE,
    Reference,
    split_passage_id,
)
from pyterrier_graph.documents.readers.page import Page, ReaderError
from pyterrier_graph.documents.readers.passages import Block, Draft, assemble, clean

ToHtml = Callable[[bytes, str], Page]  # the content and the name of a file

# Module of each format and endings of its files' names; the libraries of [files] and [office] are optional.
FORMATS = {
    "markdown": (".md", ".markdown", ".mdown"),
    "html": (".html", ".htm", ".xhtml"),
    "rst": (".rst", ".rest"),
    "plain_text": (".txt", ".text"),
    "office": (".docx", ".pptx", ".pdf", ".ipynb"),
}
MAX_BYTES = 50_000_000  # of a file
FEW = 200  # files; fewer take less time than processes need to start
EXAMPLES = 10


class DocumentFiles:
    """The documents of the files in a folder, in the order of their paths. Each iteration reads the files again.

    All files are read before the first document is yielded, because links may lead to later files. Memory holds paths,
    names of anchors, and one document at a time; the other documents are in a temporary file. A document is a record
    with ``docno``, ``title``, ``text``, ``nodes``, ``links``, ``references``, and ``lines``: the line of the file where
    each node begins, for Markdown, HTML and plain text, and 1 for other formats.

    Attributes:
        report: A report of the last complete iteration: numbers of ``files`` and ``documents``, the reasons of
            ``broken`` files by name, the names of ``empty`` files, the numbers of ``skipped`` files by the endings of
            their names. The summary of a graph contains it as ``source``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str],
        *,
        min_words: int = 30,
        max_words: int = 120,
        workers: int | None = None,
        verbose: bool = True,
    ) -> None:
        if min_words > max_words:
            raise ValueError(
                f"min_words must not exceed max_words, got {min_words} and {max_words}"
            )
        if len(formats) == 1:
            converter(formats[0])  # raises at once if a library is missing
        self.root = Path(folder)
        if not self.root.is_dir():
            raise FileNotFoundError(f"there is no folder {str(folder)!r}")
        self.skipped: Counter[str] = Counter()
        self.paths = [*self._find(tuple(end for name in formats for end in FORMATS[name]))]
        self.formats, self.options = formats, (min_words, max_words)
        self.workers, self.verbose = workers, verbose
        self.report: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        broken: dict[str, str] = {}
        empty: list[str] = []
        ids: dict[str, str] = {}  # of documents and passages, by the names that links use
        documents = 0
        with TemporaryFile("w+", encoding="utf-8") as drafts:
            for path, draft in self._drafts():
                if isinstance(draft, str):
                    broken[clean(path)] = draft
                elif not any(kind == PASSAGE for kind, _, _ in draft.nodes):
                    empty.append(path)
                else:
                    ids = draft.names | ids
                    drafts.write(json.dumps(vars(draft)) + "\n")
                    documents += 1
            drafts.seek(0)
            for line in drafts:
                yield self._record(json.loads(line), ids)
        self.report = {
            "files": len(self.paths),
            "documents": documents,
            "broken": broken,
            "empty": empty,
            "skipped": dict(self.skipped.most_common(EXAMPLES)),
        }
        if broken:
            name, reason = next(iter(broken.items()))
            warnings.warn(
                f"{len(broken)} of {len(self.paths)} files were not read, the first is {name}: {reason}. "
                "report['broken'] lists all of them",
                DataWarning,
                stacklevel=2,
            )

    def _find(self, endings: tuple[str, ...]) -> Iterator[str]:
        """Yields the paths of files with one of the endings, without symbolic links and hidden files."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                path = Path(folder, name)
                if not name.lower().endswith(endings):
                    self.skipped[clean(path.suffix.lower()) or "no suffix"] += 1
                elif path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.root).as_posix()

    def _drafts(self) -> Iterator[tuple[str, Draft | str]]:
        """Yields paths and drafts of all files, or the reasons why files cannot be read."""
        import pyterrier as pt
        from joblib import Parallel, delayed

        workers = self.workers or (-1 if len(self.paths) >= FEW else 1)
        calls = (
            delayed(read_file)(self.root, path, self.formats, *self.options) for path in self.paths
        )
        results = pt.tqdm(
            Parallel(workers, return_as="generator")(calls),
            desc="reading files",
            total=len(self.paths),
            unit="file",
            delay=1,
            disable=not self.verbose,
        )
        yield from zip(self.paths, results, strict=True)

    def _record(self, draft: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
        """Returns the document of a draft with resolved references."""
        references = []
        for node, address, names in draft["references"]:
            target = next((ids[name] for name in names if name in ids), "")
            if not target and not any((self.root / name).exists() for name in names):
                target = address  # the graph counts it as unresolved
            if target:
                references.append(Reference("external", node, target))
        nodes = draft["nodes"]
        text = "\n".join(text for kind, text, _ in nodes if kind == PASSAGE)
        return draft | {"title": nodes[0][1], "text": text, "references": references}


def converter(format: str) -> ToHtml:
    """Returns the function that converts files of a format to HTML. Raises ImportError if a library is missing."""
    try:
        return import_module(f"pyterrier_graph.documents.readers.{format}").to_html
    except ImportError as error:
        extra = "office" if format == "office" else "files"
        message = f"reading {format} needs {error.name!r}: pip install 'pyterrier_graph[{extra}]'"
        raise ImportError(message, name=error.name) from error


def read_file(
    root: Path, path: str, formats: Sequence[str], min_words: int, max_words: int
) -> Draft | str:
    """Returns the draft of a file, or the reason why it cannot be read."""
    format = next((name for name in formats if path.lower().endswith(FORMATS[name])), formats[0])
    try:
        if (size := (root / path).stat().st_size) > MAX_BYTES:
            return f"it has {size:,} bytes, more than {MAX_BYTES:,}"
        data = (root / path).read_bytes()
        return read_draft(converter(format), data, path, min_words, max_words)
    except ReaderError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def read_draft(to_html: ToHtml, data: bytes, docno: str, min_words: int, max_words: int) -> Draft:
    """Makes a document of the content of a file.

    Raises:
        ReaderError: If the file cannot be read.
    """
    from pyterrier_graph.documents.readers.html import read_page

    if split_passage_id(docno)[1] is not None:
        raise ReaderError("its name looks like the id of a passage")
    if not is_unicode(docno):
        raise ReaderError("its name is not valid UTF-8")
    if not data.strip():
        return assemble(docno, Block(), [], min_words, max_words)
    try:
        page = to_html(data, docno)
        draft = assemble(docno, *read_page(page), min_words, max_words)
    except ReaderError:
        raise
    except Exception as error:  # libraries raise errors of many kinds
        raise ReaderError(f"not in its format: {type(error).__name__}: {error}") from error
    if page.lines == "unknown":
        draft.lines = [1] * len(draft.nodes)
    return draft


def read_markdown(
    folder: str | os.PathLike[str],
    *,
    min_words: int = 30,
    max_words: int = 120,
    workers: int | None = None,
    verbose: bool = True,
) -> DocumentFiles:
    """Reads Markdown files: CommonMark, with tables and front matter. Needs the extra ``[files]``.

    ::

        graph = ptg.DocumentGraph("corpus.graph").index(ptg.read_markdown("docs"))

    Each file becomes a document, whose docno is the path of the file in the folder. Headings become sections.
    Paragraphs, list items, code, table rows and quotes become passages. The titles of a file without any other text are
    its only passage. A link to an anchor of the same file becomes an edge ``internal``. A link to another file of the
    folder becomes an edge ``external`` to the first passage at the anchor, or to the document if the link has no
    anchor. Other links are ignored. ``title`` in front matter is the title of the document, as the author typed it.

    Files are decoded as UTF-8, or else with the encoding that a page of HTML declares, or else as cp1252. A warning
    counts the files that cannot be read, and the report lists them.

    Args:
        folder: A folder, which is searched recursively. Symbolic links and hidden files are ignored.
        min_words: Blocks with fewer words are merged with the next block of the section, if the passage then has at
            most ``max_words``.
        max_words: Blocks with more words are cut, preferably after a sentence.
        workers: Number of processes. By default one per core, but a single one for fewer than 200 files.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ImportError: If the libraries of the extra ``[files]`` are not installed.
    """
    return DocumentFiles(
        folder,
        ["markdown"],
        min_words=min_words,
        max_words=max_words,
        workers=workers,
        verbose=verbose,
    )


def read_html(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
    """Reads HTML files. Arguments and documents are those of :func:`read_markdown`.

    The title is the only heading of the highest level, or else the ``<title>`` of the page. If a page marks its main
    text (``<main>``, ``role="main"`` or ``<article>``), only this text is read. Navigation, asides, and the header and
    footer of the page are never read. Cells of a table row are separated by ``|``.
    """
    return DocumentFiles(folder, ["html"], **options)


def read_rst(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
    """Reads reStructuredText files. Arguments and documents are those of :func:`read_markdown`.

    Nothing is included from other files. Directives and roles of Sphinx are read as their text, and ``:doc:``,
    ``:ref:`` and tables of contents become links to the files that they name.
    """
    return DocumentFiles(folder, ["rst"], **options)


def read_office(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
    """Reads ``.docx``, ``.pptx``, ``.pdf`` and ``.ipynb`` files as :func:`read_markdown` reads Markdown.

    The library markitdown converts them to Markdown. Needs the extra ``[office]``.
    """
    return DocumentFiles(folder, ["office"], **options)
