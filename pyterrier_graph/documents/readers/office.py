"""Reads Word files, presentations, PDF and notebooks, without macros, pictures and the network.

The libraries are those that markitdown calls. They are called directly: the text of an office file is not Markdown, so
a paragraph such as ``# start it`` must not become a heading on its way.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from html import escape
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

import mammoth
from pdfminer.high_level import extract_text
from pptx import Presentation

from pyterrier_graph.documents.readers.markdown import render
from pyterrier_graph.documents.readers.page import MAX_BYTES, Page, ReaderError, decode

_NO_PICTURE = mammoth.images.img_element(lambda image: {})
# A document's title is above its headings, of which Word has nine levels.
_STYLES = "p[style-name='Title'] => h1:fresh\n" + "\n".join(
    f"p[style-name='heading {level}'] => div[role='heading'][aria-level='{min(level + 1, 9)}']:fresh"
    for level in range(1, 10)
)
_PARAGRAPHS = re.compile(r"\n\s*\n")


def to_html(data: bytes, name: str) -> Page:
    """Converts an office file. Slides and pages become sections."""
    path = PurePosixPath(name)
    match path.suffix.lower():
        case ".docx":
            _check_size(data)
            options = {"convert_image": _NO_PICTURE, "style_map": _STYLES}
            return Page(mammoth.convert_to_html(BytesIO(data), **options).value)
        case ".pptx":
            _check_size(data)
            return Page("".join(_slides(data)), path.stem)
        case ".pdf":
            return Page("".join(_pages(data)), path.stem)
        case _:
            return Page("".join(map(_cell, json.loads(decode(data))["cells"])))


def _check_size(data: bytes) -> None:
    """Checks the size of zipped files, of which zipfile reads no more than they claim to have."""
    with zipfile.ZipFile(BytesIO(data)) as files:
        size = sum(file.file_size for file in files.infolist())
    if size > MAX_BYTES:
        raise ReaderError(f"its parts have {size:,} bytes, more than {MAX_BYTES:,}")


def _section(title: str, paragraphs: Iterable[str]) -> str:
    return f"<h1>{escape(title)}</h1>" + "".join(f"<p>{escape(text)}</p>" for text in paragraphs)


def _slides(data: bytes) -> Iterator[str]:
    for number, slide in enumerate(Presentation(BytesIO(data)).slides, 1):
        title = slide.shapes.title
        name = title.text_frame.text.strip() if title is not None else ""
        shapes = [shape for shape in slide.shapes if shape != title]
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        paragraphs = [*_paragraphs(shapes), notes.text if notes is not None else ""]
        yield _section(name or f"Slide {number}", paragraphs)


def _paragraphs(shapes: Iterable[Any]) -> Iterator[str]:
    """Yields the texts of shapes, shapes in groups, and table rows, from top to bottom."""
    for shape in sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0)):
        if hasattr(shape, "shapes"):
            yield from _paragraphs(shape.shapes)
        elif shape.has_text_frame:
            yield from (paragraph.text for paragraph in shape.text_frame.paragraphs)
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield " | ".join(cell.text for cell in row.cells)


def _pages(data: bytes) -> Iterator[str]:
    for number, page in enumerate(extract_text(BytesIO(data)).split("\f"), 1):
        if page.strip():
            yield _section(f"Page {number}", _PARAGRAPHS.split(page))


def _cell(cell: dict[str, Any]) -> str:
    """A cell of a notebook, without its output."""
    source = "".join(cell["source"])
    return render(source) if cell["cell_type"] == "markdown" else f"<pre>{escape(source)}</pre>"
