"""A GraphIndex in an object store: a local S3 server, of which one request in ten fails, and two machines."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import obstore
import pytest
import tiny
from s3 import SECRET, Server
from test_graph_index import DOCUMENTS, assert_same, document, made, texts_of

import pyterrier_graph as ptg
from pyterrier_graph.storage.artifact import META
from pyterrier_graph.storage.store import FILES, KEYS


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {**server.environment, "PYTERRIER_HOME": str(tmp_path / "a")}.items():
        monkeypatch.setenv(name, value)
    soon = {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=20),
        "base": 2,
    }
    retries = {"backoff": soon, "max_retries": 10, "retry_timeout": timedelta(minutes=1)}
    monkeypatch.setattr(
        obstore.store, "from_url", partial(obstore.store.from_url, retry_config=retries)
    )
    return f"s3://bucket/{tmp_path.name}"


def elsewhere(url: str | Path, tmp_path: Path) -> ptg.GraphIndex:
    """The index as another machine opens it, which has a copy of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTERRIER_HOME", str(tmp_path / "b"))
        return ptg.GraphIndex(url, encoder=tiny.checkpoint(), verbose=False)


@pytest.mark.slow
def test_two_machines(url: str, server: Server, tmp_path: Path) -> None:
    index, new = made(url), [document("d9", "alpha mu")]
    assert_same(index, made(tmp_path / "local"))
    theirs = elsewhere(Path(url), tmp_path).update(new).delete(["d1"])
    assert_same(theirs.verify(), made(tmp_path / "changed", [*DOCUMENTS[1:], *new]))
    assert (
        theirs.path.is_relative_to(tmp_path / "b")
        and "d1%p0" in texts_of(index)
        and index.meta["number"] == 1
    )
    before = pickle.loads(pickle.dumps(index)).verify()
    assert_same(before, theirs)
    index.update([document("d8", "mu")])
    stored = {found["path"] for part in obstore.list(index.store._store, FILES) for found in part}  # type: ignore
    assert stored == {*before.meta[KEYS].values(), *index.meta[KEYS].values()}
    assert {file.name for file in index.path.iterdir() if file.is_dir()} == {
        "encoded",
        "tables",
        "v3",
        "v4",
    }
    index.index(DOCUMENTS, passage_words=4, overwrite=True)
    assert_same(elsewhere(url, tmp_path).verify(), made(tmp_path / "fresh"))
    assert server.failed > 10


@pytest.mark.slow
def test_two_writers(url: str, tmp_path: Path, encoded: list[str]) -> None:
    def docs(new: str) -> Iterator[dict[str, str]]:
        theirs = elsewhere(url, tmp_path)
        theirs.update([document(new, "mu")]) if theirs.built() else theirs.index(
            DOCUMENTS, passage_words=4
        )
        yield document("d8", "lambda mu")

    for write in (
        lambda: made(url, docs("")),
        lambda: ptg.GraphIndex(url, verbose=False).update(docs("d7")),
    ):
        with pytest.raises(
            BlockingIOError,
            match="was changed by another machine: this change has had no effect, rep",
        ):
            write()
    before = encoded.count("lambda mu")
    index = ptg.GraphIndex(url, verbose=False).verify().update([document("d8", "lambda mu")])
    assert encoded.count("lambda mu") == before, "the failed call encoded it"
    assert {*texts_of(index.verify())} == {*(f"d{d}%p0" for d in (1, 2, 3, 4, 7, 8)), "d3%p1"}


def test_a_version_that_is_replaced_while_it_is_copied(
    url: str, server: Server, tmp_path: Path
) -> None:
    index, lock, waiting = made(url), Lock(), [document("d5", "mu"), document("d6", "mu")]

    def fate(request: dict[str, Any]) -> str:
        if request["REQUEST_METHOD"] == "GET" and f"/{FILES}/" in request["PATH_INFO"]:
            with lock:
                while waiting:
                    index.update([waiting.pop()])
        return "works"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "fate", fate)
        assert elsewhere(url, tmp_path).verify().meta["number"] == 3


def test_damages(url: str) -> None:
    index = made(url)
    name = max(index.meta["files"], key=index.meta["files"].get)
    key, store = index.meta[KEYS][name], index.store._store  # type: ignore[union-attr]
    content = bytes(obstore.get(store, key).bytes())
    (index.path / META).write_text("{")
    assert_same(ptg.GraphIndex(url, verbose=False), index)
    for damage in (
        lambda: obstore.put(store, key, content[:-1] + b"\1"),
        lambda: obstore.delete(store, key),
    ):
        damage()
        with pytest.raises(ValueError, match=f"'{url}' is damaged: "):
            index.verify()
    with pytest.raises((ConnectionError, FileNotFoundError), match="s3://no-bucket/x"):
        ptg.GraphIndex("s3://no-bucket/x")


def test_credentials_are_nowhere(url: str, tmp_path: Path, caplog: Any, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    index = made(url).update([document("d7", "mu")])
    index.build_package(str(tmp_path / "package.tar.lz4"), verbose=False)
    ptg.write_card(index)
    with pytest.raises(ValueError, match="must not contain credentials or options: set") as given:
        ptg.GraphIndex(f"s3://key:{SECRET}@bucket/x")
    with pytest.raises(
        ValueError,
        match="the path of a DocumentGraph is a folder: only a GraphIndex may be in an obj",
    ):
        ptg.DocumentGraph("s3://bucket/x")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionError) as refused:
        patch.setenv("AWS_ENDPOINT_URL", f"http://key:{SECRET}@127.0.0.1:1")
        ptg.GraphIndex("s3://bucket/x")
    shown: list[Any] = [
        index,
        vars(index.store),
        index.meta,
        index._repr_html_(),
        given.value,
        refused.value,
    ]
    texts = [*map(str, shown), caplog.text, *capfd.readouterr(), str(pickle.dumps(index))]
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not [
        text
        for text in [*map(str.encode, texts), *files]
        if SECRET.encode() in text or b"TESTKEYID" in text
    ]
