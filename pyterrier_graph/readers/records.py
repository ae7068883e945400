"""Records of corpora as structured documents."""

from collections.abc import Mapping

from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Node, StructuredDocument, split_text
from pyterrier_graph.readers.fields import Record
from pyterrier_graph.readers.record_types import RECORD_TYPES, WEB_PAGE
from pyterrier_graph.readers.web_pages import read_page


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Reads a document from a record of a corpus, and keeps the structure that its fields have.

    The names of its fields say how a record is read. The first line of this table that fits decides:

    ===================================  =======================================================================
    fields                               document
    ===================================  =======================================================================
    ``nodes``                            as :meth:`~pyterrier_graph.StructuredDocument.from_record` reads it
    ``sections``                         pairs of a title and a text, or a list of paragraphs, under ``title``
    ``body_paras_html``                  ``wapo``: paragraphs, and captions of pictures
    ``marked_up_doc``                    ``trec-robust04``, ``disks45``, ``aquaint``: headline and paragraphs
    ``body``, ``body_content_type``      ``clueweb09``, ``gov2``: HTML, as :func:`~pyterrier_graph.read_html` reads it
    ``headings``, ``body``               ``msmarco-document-v2``: a section begins at each heading in the body
    ``text``                             ``beir/*`` and most others: ``title``, and passages of the text
    ``abstract``                         ``cord19/fulltext``, ``pmc``, ``medline``: abstract, and sections of ``body``
    ``body``                             ``msmarco-document``: ``title``, and passages of the lines of the body
    ===================================  =======================================================================

    Passages do not cross the border of a section. Short paragraphs are joined, see
    :func:`~pyterrier_graph.documents.split_text`. A section without text is kept if it has a title. Text of a section
    without title lies directly under the document's root. Citations between documents are not read: in
    ``beir/scidocs`` they are what is judged.

    Args:
        record: A dictionary with ``docno`` and the fields of one of these lines; ``codes`` are optional.
        passage_words: Words per passage.

    Raises:
        ValueError: If a field is missing or is not what it should be; the message names the document.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("docno"), str) or record.get("nodes") is not None:
        return StructuredDocument.from_record(record)
    fields = next((fields for fields in RECORD_TYPES if record.keys() >= {*fields}), None)
    if fields is None:
        raise ValueError(
            f"document {record['docno']!r} has no fields that pyterrier_graph.read_record reads, such as 'text' "
            f"(fields: {sorted(record)}); a function of your own can read it: graph.index(..., read=function)"
        )
    if fields == WEB_PAGE:
        return read_page(record, passage_words)
    sectioned = RECORD_TYPES[fields]
    if sectioned is None:
        return StructuredDocument.from_record(record, passage_words=passage_words)
    title, sections = sectioned(record)
    nodes = [Node(SECTION, title, NO_PARENT)]
    for name, paragraphs in sections:
        parent = len(nodes) if name else 0
        if name:
            nodes.append(Node(SECTION, name, 0))
        nodes += (Node(PASSAGE, passage, parent) for passage in split_text("\n\n".join(paragraphs), passage_words))
    return StructuredDocument.from_record({"docno": record["docno"], "nodes": nodes, "codes": record.get("codes")})
