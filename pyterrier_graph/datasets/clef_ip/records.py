"""What ir_datasets returns of CLEF-IP: documents, queries and judgments."""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

from typing import NamedTuple

from pyterrier_graph.documents import Link, Node, Reference


class ClefIpDoc(NamedTuple):
    """A patent as a document of ir_datasets.

    Attributes:
        doc_id: Its docno, such as ``EP-1480263-A1``.
        title: Its title, in its language.
        text: The passages, separated by blank lines.
        language: ``'EN'``, ``'DE'``, ``'FR'``.
        nodes: Sections and passages. This field and the three after it are those of
            :class:`pyterrier_graph.documents.StructuredDocument`.
        codes: IPC codes, as subclass and as group.
        xpaths: The XPath of each passage.
    """

    doc_id: str
    title: str
    text: str
    language: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    references: tuple[Reference, ...]
    codes: tuple[str, ...]
    xpaths: tuple[str, ...]

    def default_text(self) -> str:
        """Title and text."""
        return f"{self.title} {self.text}"


class ClefIpQuery(NamedTuple):
    """A topic: claims of a patent application, for which prior art is searched.

    Attributes:
        text: The claims.
        abstract: The application's abstract, or ``''``; title, language, document and codes are the application's too.
        claims: XPaths of the claims in the application.
        family: Docnos of the application's family that were published before it; empty in the topics of 2012.
    """

    query_id: str
    text: str
    abstract: str
    title: str
    language: str
    document: str
    claims: tuple[str, ...]
    codes: tuple[str, ...]
    family: tuple[str, ...]

    def default_text(self) -> str:
        """The claims."""
        return self.text


class ClefIpQrel(NamedTuple):
    """A judged passage; ``iteration`` is the XPath in the file of judgments."""

    query_id: str
    doc_id: str
    relevance: int
    iteration: str
