"""The CLEF-IP collection as ir_datasets and PyTerrier find it, on a miniature of it."""

from __future__ import annotations

from pathlib import Path

import ir_datasets
import pandas as pd
import pyterrier as pt
import pytest
from clef_ip_miniature import Miniature

from pyterrier_graph.clef_ip import Archive
from pyterrier_graph.clef_ip.collection import datasets
from pyterrier_graph.datasets import provider

TASK = "clef-ip/2013/claims-to-passages/{}/{}"
SETS = [("train", "en"), ("test", "de"), ("test", "fr")]


def load(split: str, language: str) -> ir_datasets.Dataset:
    return ir_datasets.load(TASK.format(split, language))


def test_documents(miniature: Miniature) -> None:
    patents = [*Archive(miniature.home / "documents").patents()]
    assert [patent.doc_id for patent in patents] == sorted(miniature.documents)
    for patent in patents:
        expected = miniature.documents[patent.doc_id]
        assert (patent.language, patent.title) == (expected.language, expected.title)
        assert [*zip(patent.xpaths, patent.passages, strict=True)] == [*expected.passages]
        assert tuple(target for _, _, target in patent.references) == expected.citations
        assert [code for code in patent.codes if "/" in code] == [
            code.replace(" ", "") for code in expected.codes
        ]
        assert {code[:4] for code in patent.codes} == {
            code for code in patent.codes if "/" not in code
        }
        headings = [node.text for node in patent.nodes if node.kind == "section"]
        assert [text for text, _ in expected.headings] == [
            text for text in headings if text in dict(expected.headings)
        ]
        claims = "/patent-document/claims/claim[{}]"
        passages = [
            position for position, node in enumerate(patent.nodes) if node.kind == "passage"
        ]
        xpath = dict(zip(passages, patent.xpaths, strict=True))
        assert {(xpath[link.source], xpath[link.target]) for link in patent.links} == {
            *(
                (claims.format(source), claims.format(target))
                for source, target in expected.claim_references
            ),
            *(
                (source, claims.format(target))
                for source, target in expected.description_references
            ),
        }


@pytest.mark.parametrize("split, language", SETS)
def test_topics_and_judgments(split: str, language: str, home: Path, miniature: Miniature) -> None:
    dataset = load(split, language)
    topics = [
        topic
        for topic in miniature.split_topics(f"2013/{split}")
        if topic.language == language.upper()
    ]
    queries = [*dataset.queries_iter()]
    assert topics and [query.query_id for query in queries] == [topic.tid for topic in topics]
    for query, topic in zip(queries, topics, strict=True):
        assert (query.text, query.claims, query.family) == (topic.text, topic.claims, topic.family)
        assert (query.document, query.language) == (topic.document.ucid, topic.language)
        abstract = [text for xpath, text in topic.document.passages if "/abstract/" in xpath]
        assert query.abstract == " ".join(abstract) and query.title == topic.document.title
        assert [code for code in query.codes if "/" in code] == [
            code.replace(" ", "") for code in topic.document.codes
        ]

    judgments = miniature.split_judgments(f"2013/{split}", language.upper())
    numbers = {
        (ucid, xpath): number
        for ucid, document in miniature.documents.items()
        for number, (xpath, _) in enumerate(document.passages)
    }
    qrels = [*dataset.qrels_iter()]
    assert {(qrel.query_id, qrel.doc_id) for qrel in qrels} == {
        (topic, f"{ucid}%p{numbers[ucid, xpath]}") for topic, ucid, xpath, _ in judgments
    }
    assert {qrel.iteration for qrel in qrels} == {judgment.written for judgment in judgments}
    assert {qrel.relevance for qrel in qrels} == {1}


def test_pyterrier_finds_it(home: Path) -> None:
    name = TASK.format("test", "en")
    dataset = pt.get_dataset(f"irds:{name}")
    topics, qrels = dataset.get_topics("abstract"), dataset.get_qrels()
    assert {*topics["qid"]} == {*qrels["qid"]}
    texts = dataset.text_loader(["title", "text"])(
        pd.DataFrame({"docno": qrels["docno"].str.split("%").str[0]})
    )
    assert texts["text"].str.len().min() > 100
    assert {"clef-ip", name, TASK.format("train", "fr")} <= {*datasets()}
    for unknown in (
        TASK.format("dev", "en"),
        TASK.format("test", "it"),
        "clef-ip/",
    ):
        with pytest.raises(KeyError):
            pt.get_dataset(f"irds:{unknown}")


def test_says_where_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    provider.register()
    dataset = load("test", "en")
    for missing in (
        dataset.docs_iter,
        dataset.docs_store,
        lambda: [*dataset.queries_iter()],
        dataset.qrels_iter,
    ):
        with pytest.raises(FileNotFoundError, match="10.48436/"):
            missing()
