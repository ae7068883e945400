"""Reads Word files and presentations by markitdown, PDF by pdfminer, and notebooks.

The converters are called on bytes: without plugins, the network, language models, macros or other files.
"""

from __future__ import annotations

import json
import re
import zipfile
from io import BytesIO
from pathlib import PurePosixPath

from markitdown import StreamInfo
from markitdown.converters import DocxConverter, PptxConverter
from pdfminer.high_level import extract_text

from pyterrier_graph.documents.readers.files import MAX_BYTES, decode
from pyterrier_graph.documents.readers.markdown import read_part
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->$", re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n\s*\n")


def parse(data: bytes, outline: Outline) -> None:
    """Reads a file into an outline, with numbers of pages, slides or cells in place of lines; 1 in a Word file."""
    path = PurePosixPath(outline.docno)
    kind = path.suffix.lower()
    try:
        if kind == ".pdf":
            _read_pages(extract_text(BytesIO(data)), outline)
        elif kind == ".ipynb":
            _read_cells(json.loads(decode(data))["cells"], outline)
        elif kind == ".docx":
            read_part(_converted(data, kind), outline, 1, html=False)
        else:
            outline.title = path.stem
            for number, slide in enumerate(_SLIDE.split(_converted(data, kind))[1:], 1):
                title = "" if slide.lstrip().startswith("# ") else f"# Slide {number}\n"
                read_part(title + slide, outline, number, html=False)
    except (ReaderError, RecursionError, MemoryError):
        raise
    except Exception as error:  # of the converters, which raise many kinds
        raise ReaderError(
            f"not a {kind} file that can be read: {type(error).__name__}: {error}"
        ) from error


def _converted(data: bytes, kind: str) -> str:
    """The Markdown of a file that consists of zipped parts."""
    with zipfile.ZipFile(BytesIO(data)) as parts:
        size = sum(part.file_size for part in parts.infolist())  # zipfile reads no more than this
    if size > MAX_BYTES:
        raise ReaderError(f"its parts have {size:,} bytes, more than {MAX_BYTES:,}")
    converter = DocxConverter() if kind == ".docx" else PptxConverter()
    return converter.convert(BytesIO(data), StreamInfo(extension=kind)).markdown


def _read_pages(text: str, outline: Outline) -> None:
    """Each page as a section; a form feed ends a page, and blank lines separate paragraphs."""
    outline.title = PurePosixPath(outline.docno).stem
    for number, page in enumerate(text.split("\f"), 1):
        for place, paragraph in enumerate(
            [f"Page {number}", *_PARAGRAPHS.split(page)] if page.strip() else ()
        ):
            outline.begin(number, int(place == 0))
            outline.add(" ".join(paragraph.split()))
    outline.end()


def _read_cells(cells: list[dict[str, str | list[str]]], outline: Outline) -> None:
    """Markdown and code; outputs are left out."""
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        fence = max(["```", *(f"{marks}`" for marks in re.findall("`{3,}", source))], key=len)
        read_part(
            source if cell["cell_type"] == "markdown" else f"{fence}\n{source}\n{fence}",
            outline,
            number,
        )
