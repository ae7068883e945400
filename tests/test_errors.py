"""Bad input: an error that names what is wrong and what would be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.checks import check_texts
from pyterrier_graph.clef_ip.document_frequencies import DocumentFrequencies
from pyterrier_graph.documents.document import Node, Reference, StructuredDocument
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.storage.artifact import META, SIZES, read_meta
from pyterrier_graph.training.model import ranked

NOTHING = pt.Transformer.from_df(pd.DataFrame({"qid": [], "docno": []}))
NO_JUDGMENTS = tiny.qrels().head(0)
QUIET: dict[str, Any] = {"device": "cpu", "verbose": False}


def document(*nodes: tuple[str, int], references: tuple[Reference, ...] = ()) -> Any:
    """A document with nodes of these kinds, which lie in these nodes."""
    made = [Node(kind, "alpha", parent) for kind, parent in nodes]
    return StructuredDocument("d1", tuple(made), references=references)


ERRORS: dict[str, Callable[[], Any]] = {
    "text 1 of 2 is not a string: nan": lambda: check_texts(["alpha", float("nan")]),
    "alpha must be from 0 to 1, got 2": lambda: ptg.Hybrid(NOTHING, NOTHING, alpha=2),
    "a score is not finite, so its weights are not finite": lambda: ranked(
        tiny.run(), np.full(len(tiny.run()), np.nan), NOTHING
    ),
    "no relation 'cites': this graph has order, order_i": lambda: tiny.graph().neighbors(
        np.array([1]), "cites"
    ),
    "'title' is a relation of documents: give graph=": lambda: check_graphs(["title"], None, None),
    "none of the topics has a relevant document": lambda: ptg.HardNegativeMiner(
        NOTHING, NOTHING
    ).labeled(tiny.topics(), NO_JUDGMENTS),
    "pseudo-labels come from a teacher: give": lambda: ptg.HardNegativeMiner(
        NOTHING, NOTHING
    ).pseudo_labeled(tiny.topics()),
    "node 1 lies in node 4, which is not a section before it": lambda: document(
        ("section", -1), ("passage", 4)
    ),
    "a link or reference is at node 7, but there are 2 nodes": lambda: document(
        ("section", -1), ("passage", 0), references=(Reference("external", 7, "d2"),)
    ),
    "corpus_iter has no documents": lambda: DocumentFrequencies("nowhere").index([]),
}


@pytest.mark.parametrize("message", ERRORS)
def test_the_message_names_what_is_wrong(message: str) -> None:
    with pytest.raises((ValueError, KeyError)) as error:
        ERRORS[message]()
    assert message in str(error.value)


@pytest.fixture
def index(tmp_path: Path) -> ptg.GraphIndex:
    docs = [{"docno": "d1", "text": "alpha beta"}, {"docno": "d2", "text": "gamma delta"}]
    index = ptg.GraphIndex(tmp_path / "index", encoder=tiny.dual_encoder(), verbose=False)
    return index.index(docs)


def test_an_index_needs_its_own_encoder_and_engine(index: ptg.GraphIndex) -> None:
    with pytest.raises(ValueError, match="give it again as encoder="):
        _ = ptg.GraphIndex(index.path).bi_encoder
    with pytest.raises(ValueError, match="was made with lexical='bm25s', got 'terrier'"):
        ptg.GraphIndex(index.path, lexical="terrier")
    with pytest.raises(ValueError, match="no document would be left: delete the folder"):
        index.delete(["d1", "d2"])
    assert len(index) == 2


def test_damaged_artifacts_are_named(index: ptg.GraphIndex, tmp_path: Path) -> None:
    folder = index.version.folder
    meta = json.loads((folder / META).read_text())
    name = next(iter(meta[SIZES]))
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b"x")
    with pytest.raises(
        ValueError, match=f"should have {len(content)} bytes, has {len(content) + 1}"
    ):
        read_meta(folder)
    (folder / name).write_bytes(content)
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="'link' is a symbolic link"):
        read_meta(folder)
    (folder / "link").unlink()
    meta[SIZES]["../../other"] = 1
    (folder / META).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="names a file outside of the artifact: '../../other'"):
        read_meta(folder)
