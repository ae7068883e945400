"""What cannot be used is named in the message, wherever it comes in."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.graphs.document_graph import DocumentGraph

NODES = (Node("section", "", -1), Node("passage", "alpha", 0))


def indexed(path: Path, corpus: list[Any], **options: Any) -> DocumentGraph:
    return DocumentGraph(path / "graph", verbose=False).index(corpus, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: indexed(path, ["a"], document="doc"), "with document=, a row needs strings"),
        (lambda path: indexed(path, [{"docno": "a"}], document="doc"), "a row needs strings as"),
        (
            lambda path: indexed(path, [{"docno": "a", "text": "b"}], document="doc"),
            "passage 'a': no docno of its document in 'doc'",
        ),
        (lambda path: indexed(path, [StructuredDocument("a%p0", NODES)]), "must not look like"),
        (
            lambda path: indexed(path, [StructuredDocument("a", NODES, passage_ids=("b", "b"))]),
            "has 1 passages, but 2 passage_ids",
        ),
        (
            lambda path: indexed(
                path, [StructuredDocument("a", (NODES[0], Node("passage", "\ud800", 0)))]
            ),
            "is not valid Unicode",
        ),
    ],
)
def test_wrong_input_is_named(call: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call(tmp_path)


def test_a_graph_that_exists_is_not_replaced_and_travels(tmp_path: Path) -> None:
    graph = indexed(tmp_path, [StructuredDocument("a", NODES)])
    assert pickle.loads(pickle.dumps(graph)).fingerprint() == graph.fingerprint()
    with pytest.raises(FileExistsError, match="replaces it"):
        indexed(tmp_path, pd.DataFrame({"docno": ["a"], "text": ["b"]}))
