"""Reads Word files, presentations and PDF: markitdown converts the first two to Markdown, pdfminer reads PDF.

The converters are called directly, on bytes: without plugins, the network, language models, or other files. Macros are
not among the parts that they read.
"""

from __future__ import annotations

import re
import zipfile
from io import BytesIO
from pathlib import PurePosixPath

from markitdown import StreamInfo
from markitdown.converters import DocxConverter, PptxConverter
from pdfminer.high_level import extract_text

from pyterrier_graph.documents.readers.files import MAX_BYTES
from pyterrier_graph.documents.readers.markdown import read_part
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

_CONVERTERS = {".docx": DocxConverter, ".pptx": PptxConverter}
_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->$", re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n\s*\n")


def parse(data: bytes, outline: Outline) -> None:
    """Reads a file into an outline, with numbers of pages or slides in place of lines; a Word file has neither."""
    path = PurePosixPath(outline.docno)
    kind = path.suffix.lower()
    try:
        if kind == ".pdf":
            outline.title = path.stem
            _read_pages(extract_text(BytesIO(data)), outline)
            return
        with zipfile.ZipFile(BytesIO(data)) as parts:
            size = sum(part.file_size for part in parts.infolist())  # zipfile reads no more than this
        if size > MAX_BYTES:
            raise ReaderError(f"its parts have {size:,} bytes, more than {MAX_BYTES:,}")
        text = _CONVERTERS[kind]().convert(BytesIO(data), StreamInfo(extension=kind)).markdown
    except ReaderError:
        raise
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # of the converters, which raise many kinds
        raise ReaderError(f"not a {kind} file that can be converted: {type(error).__name__}: {error}") from error
    if kind == ".docx":
        read_part(text, outline, 1, html=False)
        return
    outline.title = path.stem
    for number, slide in enumerate(_SLIDE.split(text)[1:], 1):
        read_part(slide if slide.lstrip().startswith("# ") else f"# Slide {number}\n{slide}", outline, number, html=False)


def _read_pages(text: str, outline: Outline) -> None:
    """Each page as a section; a form feed ends a page, and blank lines separate paragraphs."""
    for number, page in enumerate(text.split("\f"), 1):
        if page.strip():
            outline.begin(number, 1)
            outline.add(f"Page {number}")
        for paragraph in _PARAGRAPHS.split(page.strip()):
            outline.begin(number)
            outline.add(" ".join(paragraph.split()))
    outline.end()
