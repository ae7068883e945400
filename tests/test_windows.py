"""Windows of long passages: where they are cut, and that the best one counts wherever a passage is found."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyterrier_dr import FlexIndex
from tiny import WORDS, checkpoint

import pyterrier_graph as ptg
from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.graph_mean.contextual_index import write_index
from pyterrier_graph.graph_mean.graph_mean import Computed
from pyterrier_graph.graphs.hetero_graph import MemoryGraph

SIZE = 4  # words of a window, which has two special tokens more
QUERIES = pd.DataFrame(
    {"qid": WORDS, "query": [f"{word} {WORDS[n - 5]}" for n, word in enumerate(WORDS)]}
)
LENGTHS = [
    3,
    14,
    4,
    5,
    8,
    12,
    1,
    9,
    30,
    6,
    12,
    2,
]  # of passages: 14 and 30 words are more than three windows
RANDOM = np.random.default_rng(0)
TEXTS = {f"d{n}": " ".join(RANDOM.choice(WORDS, length)) for n, length in enumerate(LENGTHS)}
TITLES = dict(zip(TEXTS, WORDS, strict=True))


def graph() -> MemoryGraph:
    nodes = {
        name: (Node("section", TITLES[name], -1), Node("passage", text, 0))
        for name, text in TEXTS.items()
    }
    return MemoryGraph.from_documents(
        [StructuredDocument(name, each) for name, each in nodes.items()]
    )


@cache
def encoder(size: int = SIZE) -> SentenceEncoder:
    return SentenceEncoder(
        checkpoint(), max_passage_tokens=size + 2, device="cpu", dtype="float32", verbose=False
    )


@cache
def vector(text: str, size: int = SIZE) -> np.ndarray:
    """Of one passage by itself."""
    found: np.ndarray = encoder(size).encode_docs([text])[0].astype(float)
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- where passages are cut


texts = st.lists(st.sampled_from([*WORDS, "unknown", "[SEP]", "alpha."]), max_size=20).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, max_size=4))
def test_windows_are_cut_between_words(texts: list[str]) -> None:
    tokenize = encoder().network.tokenizer.tokenize
    for text, (first, *further) in zip(texts, encoder().windows(texts), strict=True):
        tokens = tokenize(text)
        assert first == text
        assert [*map(tokenize, further)] == [
            tokens[place : place + SIZE] for place in range(SIZE, len(tokens), SIZE)
        ]


def test_pieces_of_a_word_stay_together() -> None:
    model = SentenceEncoder(max_passage_tokens=8, device="cpu", verbose=False)
    text = "Tokens of extraordinarily tokenizable antidisestablishmentarianism, and a long end"
    expected = [
        "extraordinarily ",
        "tokenizable ",
        "antidisestablishment",
        "arianism, and a long ",
        "end",
    ]
    assert model.windows([text]) == [[text, *expected]]


# --- the literal definition: each window by itself, and the best one counts


AUTO = {"side by side": "auto", "titles in front": "auto"}


def literal(kind: str, docno: str, most: int, query: np.ndarray) -> float:
    """The score of a passage for a query, whose weights are part of its vector; each word is a token."""
    words, scores = TEXTS[docno].split(), []
    title = vector(TITLES[docno], 60)
    for start in range(0, len(words), SIZE)[:most]:
        own = vector(" ".join(words[start : start + SIZE]), 60)
        m = title / np.linalg.norm(title)
        z = own + (0 if kind == "bare" else 0.7 * title)
        # with the title in front, the first window is cut at the same length, and the others are cut at their ends
        titled = (
            f"{TITLES[docno]}: {' '.join(words if start == 0 else words[start : start + SIZE])}"
        )
        x = vector(titled) if kind == "titles in front" else own / 3 + 2 / 3 * vector(titled)
        side_by_side = np.concatenate([x, (np.linalg.norm(x) - x @ m) * m])
        scores.append((side_by_side if kind in AUTO else z / np.linalg.norm(z)) @ query)
    return max(scores)


def model_of(kind: str, size: int = SIZE) -> Any:
    options: Any = {"device": "cpu", "verbose": False}
    if kind == "network":
        return ptg.GNNEncoder(
            graph(), encoder(size), config=ptg.GNNEncoderConfig(weights={"title": 0.7}), **options
        )
    weights: Any = AUTO.get(kind) or {"fixed": {"title": 0.7}, "bare": {}}[kind]
    model = ptg.GraphMean(graph(), encoder(size), weights, **options)
    model.titled = 1 if kind == "titles in front" else model.titled
    return model


@pytest.mark.filterwarnings("ignore:2 of 12 passages")
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("side by side", 3),
        ("titles in front", 3),
        ("fixed", 3),
        ("network", 3),
        ("bare", 3),
        ("bare", 1),
    ],
)
def test_the_best_window_counts(
    kind: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(write_index.__kwdefaults__, "chunk_size", 5)
    model = model_of(kind)
    index = model.index(tmp_path / "index", windows=most)
    found = (
        index.retriever()(QUERIES).set_index(["qid", "docno"])["score"].unstack()
    )  # fails for a repeated passage
    vectors = model.query_encoder()(QUERIES)["query_vec"]
    rows = [[literal(kind, docno, most, query) for docno in TEXTS] for query in vectors]
    expected = pd.DataFrame(rows, index=WORDS, columns=[f"{docno}%p0" for docno in TEXTS])
    np.testing.assert_allclose(found.loc[expected.index, expected.columns], expected, atol=1e-4)
    best = index.retriever(5)(QUERIES)
    assert best["rank"].tolist() == [*range(5)] * len(QUERIES)
    np.testing.assert_allclose(
        best["score"], -np.sort(-expected.to_numpy())[:, :5].ravel(), atol=1e-4
    )
    query, scores = QUERIES["query"][3], expected.iloc[3]
    explained = [index.explain(query, docno)["score"].sum() for docno in scores.index]
    explained += [
        model.explain(query, docno, windows=most)["score"].sum() for docno in scores.index
    ]
    np.testing.assert_allclose(explained, [*scores, *scores], atol=1e-4)
    if kind == "bare":  # what others read has the first windows
        plain = model_of(kind).index(tmp_path / "plain", windows=1)
        np.testing.assert_array_equal(FlexIndex(str(index.path)).np_vecs(), plain.flex.np_vecs())


def test_short_passages_are_as_they_were(tmp_path: Path) -> None:
    model = model_of("side by side", 30)
    one, more = (model.index(tmp_path / f"{most}", windows=most) for most in (1, 3))
    assert files(one.path) == files(more.path)


def test_passages_that_are_cut_are_reported(tmp_path: Path) -> None:
    model = model_of("bare")
    message = "1 of 12 passages have more than 5 windows, and are cut: give windows=8, which takes longer, or shorter"
    with pytest.warns(DataWarning, match=message) as caught:
        model.index(tmp_path / "some")
    assert len(caught) == 1
    with warnings.catch_warnings(action="error", category=ptg.PyTerrierGraphWarning):
        model.index(tmp_path / "all", windows=8)
        model.index(tmp_path / "first", windows=1)
    with pytest.raises(ValueError, match="windows must be an integer, 1 or more, got 0"):
        model.index(tmp_path / "none", windows=0)


def test_an_interrupted_index_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(write_index.__kwdefaults__, "chunk_size", 5)

    def index(name: str, windows: int = 8) -> dict[str, bytes]:
        return files(model_of("bare").index(tmp_path / name, windows=windows).path)

    def failing(self: Computed, passages: np.ndarray) -> Any:
        if passages[0]:
            raise KeyboardInterrupt
        return of_windows(self, passages)

    whole, of_windows = index("whole"), Computed.of_windows
    monkeypatch.setattr(Computed, "of_windows", failing)
    with pytest.raises(KeyboardInterrupt):
        index("index")
    monkeypatch.setattr(Computed, "of_windows", of_windows)
    with pytest.raises(
        ValueError, match="holds unfinished work on other inputs .windows was 8, is 9"
    ):
        index("index", windows=9)
    assert index("index") == whole


def test_changes_of_an_index(tmp_path: Path) -> None:
    docs = [{"docno": docno, "title": TITLES[docno], "text": text} for docno, text in TEXTS.items()]
    options: dict[str, Any] = {"passage_words": 99, "windows": 8}

    def made(path: Path, docs: list[dict[str, str]]) -> ptg.GraphIndex:
        return ptg.GraphIndex(path, encoder=encoder(), verbose=False).index(docs, **options)

    changed = [docs[4] | {"text": " ".join(WORDS)}, docs[8] | {"docno": "new"}]
    index = made(tmp_path / "index", docs).update(changed).delete(["d5", "d1"]).verify()
    fresh = made(
        tmp_path / "fresh", [row for n, row in enumerate(docs) if n not in (1, 4, 5)] + changed
    )
    for name in ("dense", "hybrid"):
        rankings = [
            getattr(each, name)()(QUERIES).set_index(["qid", "docno"])["score"]
            for each in (index, fresh)
        ]
        assert rankings[0].index.is_unique
        pd.testing.assert_series_equal(*rankings, check_like=True, atol=1e-4)
    found, similar = (
        index.search("alpha theta"),
        index.dense().search("alpha theta").set_index("docno")["score"],
    )
    shown = found["why"].str.extract(r"similarity ([\d.]+)")[0].astype(float)
    np.testing.assert_allclose(shown, similar[found["docno"]], atol=0.0051)
