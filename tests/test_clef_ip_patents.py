"""Patents of the CLEF-IP collection: their XML in all its shapes, XPaths, references to claims."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from lxml import etree

from pyterrier_graph.clef_ip.patents import (
    Patent,
    claim_references,
    parse_patent,
    read_patent,
)
from pyterrier_graph.documents.document import Link

DOCNO = "EP-1000000-A1"
FULL = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE patent-document PUBLIC "-//MXW//DTD patent-document XML//EN" "http://dtd.invalid/patent-document.dtd">
<!-- a comment --><?an instruction?>
<patent-document ucid="EP-1000000-A1" country="EP" doc-number="1000000" kind="A1" lang="EN" family-id="1">
<bibliographic-data><technical-data>
<classifications-ipcr>
<classification-ipcr status="new">C07C  45/50        20060101A I20051008RMEP</classification-ipcr>
<classification-ipcr>G06F17/3020060101AFI20051220RMJP</classification-ipcr>
<classification-ipcr>H01L21/20720060101C</classification-ipcr>
</classifications-ipcr>
<classification-ipc><edition>7</edition><main-classification>C07C  45/50</main-classification>
<further-classification>C07F   9/145</further-classification><further-classification>A01B</further-classification>
<further-classification>unclear</further-classification></classification-ipc>
<invention-title lang="DE">Verfahren</invention-title><invention-title lang="EN">A <i>method</i></invention-title>
<citations><patent-citations><patcit ucid="JP-5708229-B2"><document-id><country>JP</country></document-id></patcit>
<patcit ucid="EP-0968118-A1"/>
<patcit ucid="JP-5708229-B2"/><patcit ucid="EP-1000000-A1"/><patcit ucid="../x%p1"/><patcit/>
</patent-citations><non-patent-citations><nplcit>A book</nplcit></non-patent-citations></citations>
</technical-data></bibliographic-data>
<abstract lang="FR"><p>un procédé</p></abstract>
<abstract lang="EN"><p>a method for H<sub>2</sub>O &alpha;</p></abstract>
<description lang="EN" status="new"><p num="0001">Before all headings.</p><heading>BACKGROUND</heading><p num="7">The
state   of <!-- no --> the art.</p><heading>Known methods</heading><p/><p>See <figref>Fig. 1</figref>.</p>
<table><row><entry>no passage</entry></row></table>
<heading>SUMMARY</heading><p>It has what claim 2 says.</p></description>
<claims lang="DE"><claim num="1"><claim-text>Verfahren</claim-text></claim></claims>
<claims lang="EN">
<claim num="1"><claim-text>A method<claim-text>- with steps,</claim-text>and so on.</claim-text></claim>
<claim num="2"><claim-text>The method of claim 1.</claim-text></claim>
<claim num="3"><claim-text>The method of any preceding claim.</claim-text></claim></claims>
</patent-document>"""


def parse(body: str, attributes: str = 'lang="EN"', docno: str = DOCNO) -> Patent:
    return parse_patent(f"<patent-document {attributes}>{body}</patent-document>".encode(), docno)


def outline(patent: Patent) -> list[tuple[str, str]]:
    """Every node after its section."""
    return [
        (patent.nodes[node.parent].text, node.text) for node in patent.nodes if node.parent >= 0
    ]


def test_a_short_paragraph_in_capitals_is_a_heading() -> None:
    """It stays a passage, with its XPath; a long one, and one in other cases, are passages only."""
    long = "SEQUENCE " * 10
    paragraphs = ["One.", "PRIOR ART", "Two.", long, "Three", "FIELD", "Four."]
    patent = parse(f"<description>{''.join(f'<p>{text}</p>' for text in paragraphs)}</description>")
    sections = [node.text for node in patent.nodes if node.kind == "section"]
    assert sections == ["", "Description", "PRIOR ART", "FIELD"]
    assert patent.passages == [text.strip() for text in paragraphs] and len(patent.xpaths) == 7
    parents = [section for section, text in outline(patent) if text in ("Two.", "Three", "Four.")]
    assert parents == ["PRIOR ART", "PRIOR ART", "FIELD"]


def test_full_patent() -> None:
    patent = parse_patent(FULL.encode(), DOCNO)
    assert (patent.doc_id, patent.language, patent.title) == (DOCNO, "EN", "A method")
    assert patent.codes == (
        *(
            "C07C",
            "C07C45/50",
            "G06F",
            "G06F17/30",
            "H01L",
            "H01L21/207",
            "C07F",
            "C07F9/145",
            "A01B",
        ),
    )
    cited = [target for _, _, target in patent.references]
    assert cited == ["JP-5708229-B2", "EP-0968118-A1"]
    assert patent.abstract == "a method for H2O α"
    assert outline(patent) == [
        ("A method", "Abstract"),
        ("Abstract", "a method for H2O α"),
        ("A method", "Description"),
        ("Description", "Before all headings."),
        ("Description", "BACKGROUND"),
        ("BACKGROUND", "The state of the art."),
        ("BACKGROUND", "Known methods"),
        ("Known methods", "See Fig. 1."),
        ("Description", "SUMMARY"),
        ("SUMMARY", "It has what claim 2 says."),
        ("A method", "Claims"),
        ("Claims", "A method - with steps, and so on."),
        ("Claims", "The method of claim 1."),
        ("Claims", "The method of any preceding claim."),
    ]
    assert [xpath.removeprefix("/patent-document/") for xpath in patent.xpaths] == [
        "abstract/p[1]",
        *(f"description/p[{position}]" for position in (1, 2, 4, 5)),
        *(f"claims/claim[{position}]" for position in (1, 2, 3)),
    ]
    summary, first, second, third = 10, 12, 13, 14
    assert [(link.source, link.target) for link in patent.links] == [
        *((summary, second), (second, first), (third, first), (third, second)),
    ]
    assert {link.relation for link in patent.links} == {"internal"}


def test_xpaths_both_ways() -> None:
    patent = parse_patent(FULL.encode(), DOCNO)
    for number, xpath in enumerate(patent.xpaths):
        assert patent.passage_id(xpath) == f"{DOCNO}%p{number}"
    for xpath, number in {
        "/patent-document/abstract/p": 0,
        "/patent-document/abstract[1]/p[1]": 0,
        "/patent-document/abstract[2]/p": 0,
        "/patent-document/description[1]/p": 1,
        "/patent-document/claims/claim": 5,
        "/patent-document/claims[2]/claim[2]": 6,
        "/patent-document/claims/claim[2]/claim-text[1]": 6,
        "/patent-document/claims/claim[3]": 7,
    }.items():
        assert patent.passage_id(xpath) == f"{DOCNO}%p{number}", xpath
    for xpath in (
        "/patent-document/abstract/p[2]",
        "/patent-document/description/p[3]",  # empty; the heading before it does not count
        "/patent-document/description/p[6]",
        "/patent-document/claims/claim[4]",
        "/patent-document/claims/claim[0]",
        "/patent-document/claims/p[1]",
        "/patent-document/description",
    ):
        with pytest.raises(KeyError, match=re.escape(xpath)):
            patent.passage_id(xpath)


def test_claims_are_referred_to_by_number_and_found_by_position() -> None:
    patent = parse(
        '<claims><claim num="0011">A.</claim><claim num="12">B of claim 11.</claim><claim>of 1</claim></claims>'
    )
    assert patent.links == (Link("internal", 3, 2),)
    assert patent.passage_id("/patent-document/claims/claim[2]") == f"{DOCNO}%p1"


def test_language_versions() -> None:
    abstracts = '<abstract lang="FR"><p>f</p></abstract>'
    abstracts += '<abstract><p>?</p></abstract><abstract lang="en"><p>e</p></abstract>'
    assert parse(abstracts).abstract == "e"
    assert parse(abstracts, 'lang="FR"').abstract == "f"
    only_others = '<abstract lang="FR"><p>f</p></abstract><abstract lang="EN"><p>e</p></abstract>'
    assert parse(only_others, 'lang="DE"').abstract == "f"
    assert parse("<abstract><p>x</p></abstract>", "").language == ""


ENGLISH = {
    "according to claims 1 to 4": [1, 2, 3, 4],
    "of claim 1 or 2": [1, 2],
    "of claim 1 or claim 4": [1, 4],
    "of claim 1, 5 mm thick": [1],
    "a disclaimer 1": [],
    # the first does not exist, the other is itself
    "claims 1 to 9999": [1, 2, 3, 4, 5, 7, 8, 9],
    "any one of the preceding claims": [1, 2, 3, 4, 5],
    "the preceding claim": [5],
    "the method of claim 7 and of the previous claims": [1, 2, 3, 4, 5, 7],
}
GERMAN = {
    "nach einem der Ansprüche 1 bis 4": [1, 2, 3, 4],
    "nach einem der vorhergehenden Ansprüche": [1, 2, 3, 4, 5],
    "nach einem vorangehenden Anspruch": [1, 2, 3, 4, 5],
    "die Aussprache 4": [],
}
FRENCH = {
    "selon l'une quelconque des revendications 1 à 4": [1, 2, 3, 4],
    "selon l'une des revendications précédentes": [1, 2, 3, 4, 5],
    "selon la revendication précédente": [5],
    "selon l'une des revendications qui précèdent": [1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("text, expected", [*(ENGLISH | GERMAN | FRENCH).items()])
def test_claim_references(text: str, expected: list[int]) -> None:
    assert claim_references(text, range(1, 10), 6) == expected
    assert claim_references(text.upper(), range(1, 10), 6) == expected
    text = f"A thing {text}, wherein 3 is 4."
    assert claim_references(text, range(1, 10), 6) == expected


def test_what_stands_before_is_said_by_claims_only() -> None:
    assert claim_references("any one of the preceding claims", range(1, 10)) == []
    assert claim_references("the preceding claim", range(1, 10), 1) == []


# What no parser must do


def write(folder: Path, data: bytes, name: str = f"{DOCNO}.xml") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def laughs(levels: int) -> str:
    entities = itertools.pairwise(f"e{level}" for level in range(levels))
    declared = "".join(f'<!ENTITY {name} "{f"&{inner};" * 10}">' for inner, name in entities)
    return f'<!DOCTYPE patent-document [<!ENTITY e0 "ha">{declared}]>'


@pytest.mark.parametrize(
    "source",
    [
        "",
        FULL[: len(FULL) // 2],
        "<patent-document><p>\0</p></patent-document>",
        "<patent-document>" + "<p>" * 5000 + "</p>" * 5000 + "</patent-document>",
        f"{laughs(30)}<patent-document><abstract><p>&e29;</p></abstract></patent-document>",
    ],
)
def test_damaged_files_are_refused(source: str, tmp_path: Path) -> None:
    path = write(tmp_path, source.encode())
    with pytest.raises(etree.XMLSyntaxError):
        read_patent(path)


@pytest.mark.parametrize(
    "declared",
    [
        '<!DOCTYPE patent-document [<!ENTITY e29 SYSTEM "{secret}">]>',
        '<!DOCTYPE patent-document [<!ENTITY % x SYSTEM "{secret}">%x;]>',
    ],
)
def test_entities_are_not_resolved(declared: str, tmp_path: Path) -> None:
    secret = write(tmp_path, b"<!ENTITY e29 'secret'>", "secret")
    body = "<patent-document><abstract><p>a &e29; b</p></abstract></patent-document>"
    source = declared.replace("{secret}", secret.as_uri()) + body
    patent = read_patent(write(tmp_path, source.encode()))
    assert patent.passages == ["a &e29; b"]


def test_dtds_elsewhere_are_not_read(tmp_path: Path) -> None:
    dtd = write(
        tmp_path, b'<!ENTITY x "secret"><!ATTLIST patent-document lang CDATA "FR">', "x.dtd"
    )
    source = f'<!DOCTYPE patent-document SYSTEM "{dtd.as_uri()}"><patent-document><abstract><p>a &x; b</p></abstract>'
    patent = read_patent(write(tmp_path, f"{source}</patent-document>".encode()))
    assert patent.passages == ["a &x; b"] and patent.language == ""
