"""Pictures: what is in them, in light and in dark."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from html_reader import HOSTILE, Reader
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.text import Text
from scipy import stats

from pyterrier_graph import plots
from pyterrier_graph.html import COLORS, NEUTRAL, TEXT, WIDEST
from pyterrier_graph.lgre.reranker import LearnedWordGraph

RELATIONS = pd.DataFrame(
    {"layer 1": [0.5, 0.2, 0.3], "layer 2": [0.1, 0.6, 0.3]}, index=["order", "order_i", "SELF"]
)
MEASURE = "RR@10"
LOG: list[dict[str, float]] = [
    {MEASURE: 0.3, "epoch": 0.0, "step": 0},
    {"loss": 0.7, "learning_rate": 0.1, "epoch": 1.0, "step": 5},
    {MEASURE: 0.5, "epoch": 1.0, "step": 5},
    {"loss": 0.6, "learning_rate": 0.1, "epoch": 2.0, "step": 10},
    {MEASURE: 0.4, "epoch": 2.0, "step": 10},
    {"train_runtime": 1.0, "train_loss": 0.65, "epoch": 2.0, "step": 10},
]
WORDS = LearnedWordGraph(
    ["[CLS]", "alpha", "[SEP]", "alpha", "$b$", "[SEP]"],
    np.array([-1, 0, -1, 1, 1, -1]),
    (2,),
    np.pad(np.eye(6)[None] * 0.5, 0) + np.eye(6)[None, :, ::-1] * 0.5,
    np.ones(1),
    1.5,
)

SCORES = np.random.default_rng(1).uniform(0, 1, 40)
RESULTS = pd.DataFrame(
    [
        {
            "name": name,
            "qid": str(n),
            "measure": "nDCG@10",
            "value": min(1.0, score + gain * (1 + n % 3)),
        }
        for name, gain in [("BM25", 0.0), ("$hybrid$", 0.05), ("the same", 0.0)]
        for n, score in enumerate(SCORES * 0.6)
    ]
)

PICTURES: dict[str, Callable[..., Any]] = {
    "document_graph": lambda **to: plots.document_graph(tiny.graph(), "d0", **to),
    "relation_weights": lambda **to: plots.relation_weights(RELATIONS, **to),
    "word_graph": lambda **to: plots.word_graph(WORDS, **to),
    "results": lambda **to: plots.results(RESULTS, title="$a$", **to)[0],
}
ELSEWHERE = {"representations"}  # drawn in test_lgre_reranker


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    plt.close("all")  # what other tests have left open
    yield
    plt.close("all")


HTML = {"compare"}  # what draws no axes


def texts(ax: Axes) -> list[str]:
    """The texts in the axes; arrows have no text."""
    return [text.get_text() for text in ax.texts if text.get_text()]


def names(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def colors(ax: Axes) -> list[str]:
    return [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]


@pytest.mark.parametrize("style", ["default", "dark_background"])
@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_can_be_saved_and_has_the_colors_of_the_style(name: str, style: str) -> None:
    with plt.style.context(style):
        ax = PICTURES[name]()
        figure = ax.figure
        figure.savefig(io.BytesIO())
        sizes = [
            text.get_fontsize()
            for text in figure.findobj(Text)
            if text.get_text() and text.get_visible()
        ]
        assert min(sizes) >= TEXT and figure.get_size_inches()[0] <= WIDEST and figure.dpi >= 110
        expected = to_rgba(plt.rcParams["text.color"])
        for text in (
            [*ax.texts, ax.title, *ax.get_legend().get_texts()] if ax.get_legend() else ax.texts
        ):
            assert to_rgba(text.get_color()) == expected
        other = plt.subplots()[1]
        if name != "results":
            assert PICTURES[name](ax=other) is other
            assert len(plt.get_fignums()) == 2
    assert set(plots.__all__) == {
        *PICTURES,
        "training_curves",
        "similarity_shift",
        *HTML,
        *ELSEWHERE,
    }


def test_curves_of_one_training() -> None:
    assert len(plots.training_curves(LOG[:3])) == 1  # there is one loss, which is not a curve
    loss, measure = plots.training_curves(SimpleNamespace(training_log=LOG), title="mine")
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[5, 0.7], [10, 0.6]])
    np.testing.assert_array_equal(measure.lines[0].get_xydata(), [[0, 0.3], [5, 0.5], [10, 0.4]])
    np.testing.assert_array_equal(measure.lines[1].get_xydata(), [[5, 0.5]])
    assert (loss.get_ylabel(), measure.get_ylabel(), measure.get_xlabel()) == (
        "loss",
        "validation RR@10",
        "step",
    )
    assert loss.get_title("left") == "mine" and loss.get_legend() is None
    (only,) = plots.training_curves([entry for entry in LOG if MEASURE not in entry])
    np.testing.assert_array_equal(only.lines[0].get_xdata(), [5, 10])


def test_means_intervals_and_differences() -> None:
    means, differences = plots.results(RESULTS)
    assert [label.get_text() for label in means.get_yticklabels()] == [
        "BM25",
        "$hybrid$",
        "the same",
    ]
    values = RESULTS.groupby("name", sort=False)["value"]
    drawn = [line for line in means.lines if line.get_marker() == "o"]
    np.testing.assert_allclose([line.get_xdata()[0] for line in drawn], values.mean())
    assert [line.get_color() for line in drawn] == [NEUTRAL, COLORS[0], COLORS[0]]
    assert (
        means.get_xlim()[0] > 0.1 and differences.get_xlim()[0] > -0.1
    )  # and not at 0 or at minus the best
    for lines, (_, row) in zip(means.collections, values, strict=True):
        (((low, _), (high, _)),) = lines.get_segments()
        interval = stats.t.interval(0.95, len(row) - 1, row.mean(), stats.sem(row))
        np.testing.assert_allclose([low, high], interval)
    assert [text[-1] for text in texts(means)] == ["1", "+", "1"]  # significantly better
    better, same = differences.collections
    offsets = np.asarray(better.get_offsets())
    expected = RESULTS.pivot(index="qid", columns="name", values="value")
    np.testing.assert_allclose(
        offsets[:, 0], np.sort(expected["$hybrid$"] - expected["BM25"]), atol=1e-9
    )
    assert offsets[0, 1] > 1 > offsets[-1, 1] and not np.asarray(same.get_offsets())[:, 0].any()
    assert texts(differences) == [
        "baseline",
        "better 40\nequal 0\nworse 0",
        "better 0\nequal 40\nworse 0",
    ]
    other = plots.results(RESULTS, "nDCG@10", baseline="$hybrid$")
    assert [text[-1] for text in texts(other[0])] == ["0", "-", "-"]  # the baseline is the first
    by_name = plots.results(
        RESULTS.sort_values("name", ascending=False), names=["the same", "BM25"]
    )[0]
    assert [label.get_text() for label in by_name.get_yticklabels()] == ["the same", "BM25"]
    assert plots.results(RESULTS, baseline=1)[1].get_xlabel() == other[1].get_xlabel()


def ranking(*docnos: str, **columns: Any) -> pt.Transformer:
    """A pipeline that finds these passages for any query."""
    found = pd.DataFrame({"docno": [*docnos]}).assign(
        score=range(len(docnos), 0, -1), rank=range(len(docnos))
    )
    return pt.apply.generic(lambda topics: topics.merge(found.assign(**columns), how="cross"))


TWO = pd.DataFrame({"qid": ["a", "b"], "docno": "d", "label": 1})


def test_rankings_side_by_side() -> None:
    pipelines = [
        ranking("d0%p0", "d1%p0", text="it raises ValueError"),
        ranking("d1%p0", "d2%p0", "d0%p0"),
        ranking(),
    ]
    qrels = pd.DataFrame(
        {"qid": ["7", "7", "8"], "docno": ["d0", "d1%p0", "d2%p0"], "label": [2, 0, 1]}
    )
    topics = pd.DataFrame({"qid": ["7"], "query": ["does it raise"]})
    shown = plots.compare(topics.iloc[0], pipelines, names=["one", "two", HOSTILE], qrels=qrels)
    read = Reader(shown._repr_html_())
    assert (
        "script" not in read.seen
        and read.text.count("also one ") == 2
        and read.text.count("also two ") == 2
    )
    assert (
        read.text.count("relevant (2)") == read.text.count("not relevant") == 2
        and "also two 3" in read.text
    )
    assert "only here" in read.text and "no results" in read.text and read.seen.count("mark") == 4
    assert repr(shown).splitlines()[:2] == [
        "query: does it raise",
        "one: 1 d0%p0 ✓ relevant (2); 2 d1%p0 ✗ not relevant",
    ]
    plain = repr(plots.compare("raise", pipelines, num_results=1))
    assert plain.count("1 d") == 2 and "relevant" not in plain


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.compare("q", [ranking("a")]), "two pipelines or more"),
        (
            lambda: plots.compare("q", [ranking("a")] * 2, qrels=TWO),
            "give the query as a row of topics",
        ),
        (lambda: plots.relation_weights(RELATIONS[:0]), "no weights: give a graph model"),
        (lambda: plots.training_curves({"a": LOG, "b": SimpleNamespace()}), "was not trained"),
        (lambda: plots.results(RESULTS, "AP"), r"measure must be one of \['nDCG@10'\], got 'AP'"),
        (
            lambda: plots.results(RESULTS, baseline="PL2"),
            "baseline must be one of .*'BM25', .*got 'PL2'",
        ),
        (lambda: plots.results(RESULTS[1:]), "'BM25' has no value for query '0'"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
    assert not any(figure.axes[0].has_data() for figure in map(plt.figure, plt.get_fignums()))
