"""Reads Word files, presentations, PDF and notebooks, which markitdown converts to Markdown."""

from io import BytesIO
from pathlib import PurePosixPath

from markitdown import MarkItDown, StreamInfo

from pyterrier_graph.documents.readers import markdown
from pyterrier_graph.documents.readers.page import Page

CONVERTER = MarkItDown(enable_plugins=False)


def to_html(data: bytes, name: str) -> Page:
    """Converts an office file. Line numbers refer to the Markdown."""
    suffix = PurePosixPath(name).suffix.lower()
    result = CONVERTER.convert_stream(BytesIO(data), stream_info=StreamInfo(extension=suffix))
    return markdown.to_html(result.markdown.encode(), name)
