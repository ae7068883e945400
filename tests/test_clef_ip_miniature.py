from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from clef_ip_miniature import DOCUMENTS, FAMILY_DOCUMENTS, SPLITS, Miniature, write_miniature, write_qrels
from clef_ip_vocabulary import LANGUAGES, REFERENCES
from lxml import etree


@pytest.fixture(scope="module")
def trees(miniature) -> dict[str, etree._Element]:
    parser = etree.XMLParser(load_dtd=False, no_network=True)
    folder = miniature.home / DOCUMENTS
    return {
        ucid: etree.parse(folder / document.path, parser).getroot() for ucid, document in miniature.documents.items()
    }


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def source(miniature: Miniature, case: str) -> str:
    return (miniature.home / DOCUMENTS / miniature.documents[miniature.odd[case]].path).read_text("utf-8")


def test_another_process_writes_the_same_bytes(miniature, tmp_path):
    code = "import sys, pathlib, clef_ip_miniature; clef_ip_miniature.write_miniature(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).parent, env=environment)
    assert files(tmp_path) == files(miniature.home)


def test_layouts_hold_the_same_files(miniature, tmp_path):
    folders = write_miniature(tmp_path, "folders")
    tree, flat = files(miniature.home), files(folders.home)
    assert {path.name: data for path, data in tree.items()} == {path.name: data for path, data in flat.items()}
    assert {path for path in tree if path.parts[0] != DOCUMENTS} == {
        path for path in flat if path.parts[0] != DOCUMENTS
    }
    ucid = "EP-0968118-A1"
    assert str(miniature.documents[ucid].path) == "EP/000000/96/81/18/EP-0968118-A1.xml"
    assert str(folders.documents[ucid].path) == "EP/EP-0968118/EP-0968118-A1.xml"
    assert str(miniature.documents["WO-2000002749-A1"].path) == "WO/002000/00/27/49/WO-2000002749-A1.xml"


def test_counts(miniature):
    documents = miniature.documents.values()
    assert len({document.ucid.rpartition("-")[0] for document in documents}) >= 40
    kinds = Counter((document.ucid[:2], document.ucid[-2:]) for document in documents)
    assert {("EP", "A1"), ("EP", "A2"), ("EP", "A3"), ("EP", "B1"), ("WO", "A1"), ("WO", "A2")} == set(kinds)
    languages = Counter(topic.language for topic in miniature.split_topics("2013/test"))
    assert languages == {"EN": 4, "DE": 2, "FR": 2}
    assert len(miniature.split_topics("2013/train")) == 12
    for document in documents:
        counts = Counter(xpath.split("/")[2] for xpath, _ in document.passages)
        if document.ucid.endswith("A3"):
            assert not document.passages
        else:
            assert 4 <= counts["description"] <= 10
            assert 3 <= counts["claims"] <= 8 or document.ucid == miniature.odd["legacy_claims"]


def test_passages_differ(miniature):
    kept = [
        text for document in miniature.documents.values() if "-B" not in document.ucid for _, text in document.passages
    ]
    assert len({*kept}) > 0.98 * len(kept)


def test_relevant_passages_are_where_xpath_finds_them(miniature, trees):
    assert miniature.judgments
    for judgment in miniature.judgments:
        document = miniature.documents[judgment.ucid]
        found = trees[judgment.ucid].xpath(judgment.written)
        texts = [" ".join("".join(element.itertext()).split()) for element in found]
        assert dict(document.passages)[judgment.xpath] in texts


def test_passages_are_all_that_a_document_says_in_its_language(miniature, trees):
    for ucid, document in miniature.documents.items():
        found = {}
        for part, step in {"abstract": "p", "description": "p", "claims": "claim"}.items():
            versions = trees[ucid].xpath(f"/patent-document/{part}[not(@lang) or @lang='{document.language}']")
            for version in versions or trees[ucid].xpath(f"/patent-document/{part}[1]"):
                for number, element in enumerate(version.findall(step), 1):
                    if text := " ".join("".join(element.itertext()).split()):
                        found[f"/patent-document/{part}/{step}[{number}]"] = text
        assert found == dict(document.passages)


def test_every_topic_has_relevant_passages_that_share_its_words(miniature):
    for topic in miniature.topics.values():
        judged = [judgment for judgment in miniature.judgments if judgment.topic == topic.tid]
        own = [judgment for judgment in judged if miniature.documents[judgment.ucid].language == topic.language]
        assert len({judgment.ucid for judgment in own}) >= 2
        words = {word for word in topic.text.lower().split() if len(word) > 5}
        for judgment in own:
            assert words & {*dict(miniature.documents[judgment.ucid].passages)[judgment.xpath].lower().split()}
    languages = {
        (miniature.topics[judgment.topic].language, miniature.documents[judgment.ucid].language)
        for judgment in miniature.judgments
    }
    assert any(topic != document for topic, document in languages)


def test_topic_files(miniature):
    home = miniature.home
    for split, names in SPLITS.items():
        topics = miniature.split_topics(split)
        blocks = (home / names.topics).read_text("utf-8").strip().split("\n\n")
        assert [block.split("</tid>")[0] for block in blocks] == [f"<tid>{topic.tid}" for topic in topics]
        for topic in topics:
            root = etree.parse(home / names.topic_documents / f"{topic.document.ucid}.xml").getroot()
            claims = [root.xpath(xpath) for xpath in topic.claims]
            assert " ".join("".join(claim.itertext()) for [claim] in claims) == topic.text
            assert topic.document.ucid not in miniature.documents
            for ucid in topic.family:
                assert etree.parse(home / FAMILY_DOCUMENTS / f"{ucid}.xml").getroot().get("ucid") == ucid
    one, other = miniature.topics["PSG1"], miniature.topics["PSG5"]
    assert one.document.ucid == other.document.ucid and not {*one.claims} & {*other.claims}
    assert "\n".join(other.claims) in (home / SPLITS["2013/test"].topics).read_text("utf-8")
    assert "<file>" in (home / SPLITS["2012/train"].topics).read_text("utf-8")


def test_qrels_variants(miniature):
    home = miniature.home
    test = (home / SPLITS["2013/test"].qrels.format("EN")).read_text("utf-8").splitlines()
    assert all(len(line.split(",")) == 3 and " " not in line for line in test)
    train = (home / SPLITS["2013/train"].qrels).read_text("utf-8").splitlines()
    assert all(len(line.split(" ")) == 4 and " Q0 " in line for line in train)
    assert any(line.endswith(",/patent-document/claims/claim") for line in test)
    assert any(line.endswith("/patent-document/abstract/p") for line in train)
    judgments = miniature.split_judgments("2013/test")
    assert all(len(line.split(" ")) == 3 for line in write_qrels(judgments, "plain").splitlines())


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", REFERENCES["EN"])
def test_claims_refer_in_every_way(miniature, language, kind):
    claims = [
        text
        for document in miniature.documents.values()
        if document.language == language
        for xpath, text in document.passages
        if "/claims/" in xpath
    ]
    for phrase in REFERENCES[language][kind]:
        assert any(phrase.split("{")[0] in text for text in claims), phrase


def test_claim_references_lead_back(miniature):
    for document in miniature.documents.values():
        for claim, target in document.claim_references:
            assert claim > target >= 1
            assert f"/patent-document/claims/claim[{claim}]" in dict(document.passages)


def test_odd_cases(miniature, trees):
    def tree(case: str) -> etree._Element:
        return trees[miniature.odd[case]]

    assert "<!DOCTYPE" in source(miniature, "doctype")
    assert len(tree("legacy_claims").findall("claims/claim")) == 1
    assert len(tree("legacy_claims").findall("claims/claim/claim-text")) > 2
    assert {e.get("lang") for e in tree("claims_in_three_languages").findall("claims")} == {*LANGUAGES}
    assert len(tree("claims_in_three_languages").findall("description")) == 1
    assert [e.get("lang") for e in tree("abstracts_in_several_languages").findall("abstract")][-2:] == ["EN", "FR"]
    assert [e.get("lang") for e in tree("own_abstract_is_second").findall("abstract")] == ["EN", "FR"]
    assert tree("own_abstract_is_second").get("lang") == "FR"
    assert tree("abstract_in_other_languages").get("lang") == "DE"
    assert [e.get("lang") for e in tree("abstract_in_other_languages").findall("abstract")] == ["EN", "FR"]
    assert tree("no_family").get("family-id") is None
    assert tree("no_abstract").find("abstract") is None and tree("no_abstract").get("kind") == "A1"
    assert any(not len(e) and not e.text for e in tree("empty_paragraph").findall("description/p"))
    assert tree("no_section_language").find("description").get("lang") is None
    assert all(e.get("lang") for e in tree("paragraph_language").findall("description/p"))
    assert len(tree("nested_markup").xpath("description/p[.//sub and .//sup and .//b and .//figref and .//li]")) == 1
    assert "&amp;" in source(miniature, "entities") and "&#x3B1;" in source(miniature, "entities")
    assert not tree("no_description").xpath("abstract|description|claims")
    assert max(len(text.split()) for _, text in miniature.documents[miniature.odd["long_claim"]].passages) > 1500
    assert len(tree("two_paragraphs_in_abstract").findall("abstract[@lang='EN']/p")) == 2
    assert "claim 27" in source(miniature, "unknown_claim")
    assert "F25B  30/02</main" in source(miniature, "old_codes")
    assert "20060101AI" in source(miniature, "codes_without_any_space")
    places = [e.tag for e in tree("heading_between_paragraphs").find("description")]
    assert "heading" in places[1:-1]


def test_citations_lead_to_documents_and_out_of_the_collection(miniature, trees):
    for ucid, document in miniature.documents.items():
        assert {e.get("ucid") for e in trees[ucid].iter("patcit")} == {*document.citations}
    cited = {cited for document in miniature.documents.values() for cited in document.citations}
    assert cited & miniature.documents.keys()
    assert any(ucid.startswith("JP-") for ucid in cited)
    assert all(trees[ucid].find(".//nplcit") is not None for ucid in trees if not ucid.endswith("A2"))
