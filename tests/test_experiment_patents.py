from __future__ import annotations

from itertools import islice
from statistics import mean

import pytest
from lxml import etree

from experiments.collections.synthetic_patents import (
    IN_COLLECTION,
    synthetic_patents,
    synthetic_records,
    write_xml_tree,
)
from pyterrier_graph.documents import StructuredDocument

COUNT = 400


@pytest.fixture(scope="module")
def documents() -> list[StructuredDocument]:
    return [StructuredDocument.from_record(record) for record in synthetic_records(COUNT)]


def test_sizes_are_those_of_patents(documents):
    patents = list(synthetic_patents(COUNT))
    paragraphs = [text for patent in patents for section in patent.description for text in section]
    lengths = [len(text.split()) for text in paragraphs]
    assert min(lengths) >= 80 and max(lengths) <= 120
    assert 49 < len(paragraphs) / COUNT < 51
    assert 14 < mean(len(patent.claims) for patent in patents) < 16
    assert len({*paragraphs}) > 0.999 * len(paragraphs)
    assert mean(len(document.passages()) for document in documents) == pytest.approx(
        1 + len(paragraphs) / COUNT + mean(len(patent.claims) for patent in patents)
    )


def test_references_lead_to_earlier_patents_or_out(documents):
    order = {document.docno: place for place, document in enumerate(documents)}
    assert len(order) == COUNT
    pairs = [(place, reference.target) for place, document in enumerate(documents) for reference in document.references]
    inside = [(place, order[target]) for place, target in pairs if target in order]
    assert all(target < place for place, target in inside)
    assert len(inside) / len(pairs) == pytest.approx(IN_COLLECTION, abs=0.05)
    for document in documents:
        assert all(link.target < link.source for link in document.links)


def test_records_do_not_depend_on_their_number():
    assert list(synthetic_records(3)) == list(islice(synthetic_records(COUNT), 3))
    assert list(synthetic_records(3, seed=1)) != list(synthetic_records(3))
    assert not list(synthetic_records(0))


def test_xml_says_the_same(documents, tmp_path):
    size = write_xml_tree(tmp_path, 3)
    assert size == sum(path.stat().st_size for path in tmp_path.rglob("*.xml"))
    for document in documents[:3]:
        number = document.docno[3:10]
        path = tmp_path / "EP" / f"00000{number[0]}" / number[1:3] / number[3:5] / number[5:] / f"{document.docno}.xml"
        root = etree.parse(path).getroot()
        texts = ["".join(element.itertext()) for element in root.xpath("abstract/p | description/p | claims/claim")]
        assert texts == document.passages()
        assert root.xpath("//patcit/@ucid") == [reference.target for reference in document.references]
        assert root.findtext(".//invention-title") == document.title
