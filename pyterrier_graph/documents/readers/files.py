"""Folders of Markdown, HTML, text or office files as structured documents.

Each file becomes a page of HTML and then a draft. Links between files are resolved last.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import PASSAGE, Reference
from pyterrier_graph.documents.readers.page import Page
from pyterrier_graph.documents.readers.passages import Draft, assemble

ToHtml = Callable[[bytes, str], Page]  # the content and the name of a file

# Module of each format and endings of its files' names; the libraries of [files] and [office] are optional.
FORMATS = {
    "markdown": (".md", ".markdown", ".mdown"),
    "html": (".html", ".htm", ".xhtml"),
    "plain_text": (".txt", ".text"),
    "office": (".docx", ".pptx", ".pdf", ".ipynb"),
}
FEW = 200  # files; fewer take less time than processes need to start
EXAMPLES = 10


class DocumentFiles:
    """The documents of the files in a folder, in the order of their paths. Each iteration reads the files again.

    All files are read before the first document is yielded, because links may lead to later files. A document is a
    record with ``docno``, ``title``, ``text``, ``nodes``, ``links``, ``references``, and ``lines``: the line of the
    file (for office files, of their Markdown) where each node begins.

    Args:
        folder: A folder, which is searched recursively. Symbolic links and hidden files are ignored.
        formats: Names of formats, such as ``["markdown", "html"]``.
        min_words: Blocks with fewer words are merged with the next block of the section, if the passage then has at
            most ``max_words``.
        max_words: Blocks with more words are cut, preferably after a sentence.
        verbose: Whether to show progress.

    Attributes:
        report: A report of the last iteration: numbers of ``files`` and ``documents``, the reasons of ``broken`` files
            by name, the numbers of ``skipped`` files by the endings of their names. The summary of a graph contains it
            as ``source``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str],
        *,
        min_words: int = 30,
        max_words: int = 120,
        verbose: bool = True,
    ) -> None:
        self.root = Path(folder)
        if not self.root.is_dir():
            raise FileNotFoundError(f"there is no folder {str(folder)!r}")
        self.formats = formats
        self.options = (min_words, max_words)
        self.verbose = verbose
        self.skipped: Counter[str] = Counter()
        self.paths = [*self._find()]
        self.report: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        drafts: list[Draft] = []
        broken: dict[str, str] = {}
        ids: dict[str, str] = {}  # of documents and passages, by the names that links use
        for path, draft in zip(self.paths, self._drafts(), strict=True):
            if isinstance(draft, str):
                broken[path] = draft
            elif any(node.kind == PASSAGE for node in draft.nodes):
                drafts.append(draft)
                ids |= draft.names
        self.report = {
            "files": len(self.paths),
            "documents": len(drafts),
            "broken": broken,
            "skipped": dict(self.skipped.most_common(EXAMPLES)),
        }
        if broken:
            name, reason = next(iter(broken.items()))
            message = (
                f"{len(broken)} of {len(self.paths)} files were not read, the first is {name}: {reason}. "
                "report['broken'] lists all of them"
            )
            warnings.warn(message, DataWarning, stacklevel=2)
        for draft in drafts:
            yield self._record(draft, ids)

    def _find(self) -> Iterator[str]:
        """Yields the paths of files in the formats, without symbolic links and hidden files."""
        endings: tuple[str, ...] = ()
        for name in self.formats:
            endings += FORMATS[name]
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if name.startswith("."):
                    continue
                path = Path(folder, name)
                if not name.lower().endswith(endings):
                    self.skipped[path.suffix.lower() or "no suffix"] += 1
                elif path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.root).as_posix()

    def _drafts(self) -> Iterator[Draft | str]:
        """Yields the drafts of all files, or the reasons why files cannot be read."""
        import pyterrier as pt
        from joblib import Parallel, delayed

        workers = -1 if len(self.paths) >= FEW else 1
        read = delayed(read_file)
        calls = (read(self.root, path, self.formats, *self.options) for path in self.paths)
        drafts = Parallel(workers, return_as="generator")(calls)
        yield from pt.tqdm(
            drafts,
            desc="reading files",
            total=len(self.paths),
            unit="file",
            delay=1,
            disable=not self.verbose,
        )

    def _record(self, draft: Draft, ids: Mapping[str, str]) -> dict[str, Any]:
        """Returns the document of a draft with resolved references."""
        references = []
        for node, file, names in draft.references:
            target = next((ids[name] for name in names if name in ids), None)
            if target is None and not any((self.root / name).exists() for name in names):
                target = file  # the graph counts it as unresolved
            if target is not None:
                references.append(Reference("external", node, target))
        passages = [node.text for node in draft.nodes if node.kind == PASSAGE]
        return {
            "docno": draft.docno,
            "title": draft.nodes[0].text,
            "text": "\n".join(passages),
            "nodes": draft.nodes,
            "links": draft.links,
            "references": references,
            "lines": draft.lines,
        }


def converter(format: str) -> ToHtml:
    """Returns the function that converts files of a format to HTML. Raises ImportError if a library is missing."""
    try:
        module = import_module(f"pyterrier_graph.documents.readers.{format}")
    except ImportError as error:
        extra = "office" if format == "office" else "files"
        message = f"reading {format} needs {error.name!r}: pip install 'pyterrier_graph[{extra}]'"
        raise ImportError(message, name=error.name) from error
    return module.to_html


def read_file(
    root: Path, path: str, formats: Sequence[str], min_words: int, max_words: int
) -> Draft | str:
    """Returns the draft of a file, or the reason why it cannot be read."""
    from pyterrier_graph.documents.readers.html import read_page

    format = next(name for name in formats if path.lower().endswith(FORMATS[name]))
    to_html = converter(format)
    try:
        path.encode()  # a name that is not UTF-8 cannot be a docno
        data = (root / path).read_bytes()
        page = to_html(data, path)
        title, blocks = read_page(page)
        return assemble(path, title, blocks, min_words, max_words)
    except Exception as error:  # libraries raise errors of many kinds
        return f"{type(error).__name__}: {error}"


def read_markdown(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
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
        options: ``min_words``, ``max_words`` and ``verbose``, see
            :class:`~pyterrier_graph.documents.readers.files.DocumentFiles`.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ImportError: If the libraries of the extra ``[files]`` are not installed.
    """
    return DocumentFiles(folder, ["markdown"], **options)


def read_html(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
    """Reads HTML files. For arguments and documents see :func:`read_markdown`.

    The title is the only heading of the highest level, or else the ``<title>`` of the page. If a page marks its main
    text (``<main>``, ``role="main"`` or ``<article>``), only this text is read. Navigation, asides, and the header and
    footer of the page are never read. Cells of a table row are separated by ``|``.
    """
    return DocumentFiles(folder, ["html"], **options)


def read_office(folder: str | os.PathLike[str], **options: Any) -> DocumentFiles:
    """Reads ``.docx``, ``.pptx``, ``.pdf`` and ``.ipynb`` files as :func:`read_markdown` reads Markdown.

    The library markitdown converts them to Markdown. Needs the extra ``[office]``.
    """
    return DocumentFiles(folder, ["office"], **options)
