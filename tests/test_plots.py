"""Pictures: what is in them, in light and in dark."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tiny
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from scipy import stats

from pyterrier_graph import plots
from pyterrier_graph.lgre.reranker import LearnedWordGraph

RELATIONS = pd.DataFrame(
    {"layer 1": [0.5, 0.2, 0.3], "layer 2": [0.1, 0.6, 0.3]}, index=["order", "order_i", "SELF"]
)
MEASURE = "RR@10"
LOG: list[dict[str, float]] = [
    {MEASURE: 0.3, "epoch": 0.0, "step": 0, "kept": True},
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

MODEL = SimpleNamespace(relation_weights=lambda: RELATIONS)
PICTURES: dict[str, Callable[[], Any]] = {
    "document_graph": lambda: plots.document_graph(tiny.graph(), "d0"),
    "relation_weights": lambda: plots.relation_weights(MODEL),
    "word_graph": lambda: plots.word_graph(WORDS),
    "results": lambda: plots.results(RESULTS, title="$a$")[0],
}


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    plt.close("all")  # what other tests have left open
    yield
    plt.close("all")


def texts(ax: Axes) -> list[str]:
    """The texts in the axes; arrows have no text."""
    return [text.get_text() for text in ax.texts if text.get_text()]


@pytest.mark.parametrize("style", ["default", "dark_background"])
@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_can_be_saved_and_has_the_colors_of_the_style(name: str, style: str) -> None:
    with plt.style.context(style):
        ax = PICTURES[name]()
        ax.figure.savefig(io.BytesIO())
        expected = to_rgba(plt.rcParams["text.color"])
        assert {to_rgba(text.get_color()) for text in [*ax.texts, ax.title]} == {expected}


def test_relations_and_texts_of_a_document() -> None:
    ax = plots.document_graph(tiny.graph(), "d0", most=4)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"next passage (order)", "section", "passage"} <= {*legend}
    assert ax.get_title("left") == "d0, first 4 of 5 nodes"


def test_curves_of_one_training() -> None:
    assert len(plots.training_curves(LOG[:3])) == 1  # there is one loss, which is not a curve
    loss, measure = plots.training_curves(SimpleNamespace(training_log=LOG), title="mine")
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[5, 0.7], [10, 0.6]])
    np.testing.assert_array_equal(measure.lines[0].get_xydata(), [[0, 0.3], [5, 0.5], [10, 0.4]])
    np.testing.assert_array_equal(measure.lines[1].get_xydata(), [[0, 0.3]])
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
    drawn = [line.get_xdata()[0] for line in means.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(drawn, values.mean())
    for lines, (_, row) in zip(means.collections, values, strict=True):
        (((low, _), (high, _)),) = lines.get_segments()
        interval = stats.t.interval(0.95, len(row) - 1, row.mean(), stats.sem(row))
        np.testing.assert_allclose([low, high], interval)
    assert [text[-1] for text in texts(means)] == ["1", "+", "1"]  # significantly better
    better, same = (np.asarray(points.get_offsets())[:, 0] for points in differences.collections)
    expected = RESULTS.pivot(index="qid", columns="name", values="value")
    np.testing.assert_allclose(better, np.sort(expected["$hybrid$"] - expected["BM25"]), atol=1e-9)
    assert not same.any()
    assert texts(differences)[1] == "better 40\nequal 0\nworse 0"
    other = plots.results(RESULTS, "nDCG@10", baseline="$hybrid$")
    assert [text[-1] for text in texts(other[0])] == ["0", "-", "-"]  # the baseline is the first
    by_name = plots.results(
        RESULTS.sort_values("name", ascending=False), names=["the same", "BM25"]
    )[0]
    assert [label.get_text() for label in by_name.get_yticklabels()] == ["the same", "BM25"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.relation_weights(SimpleNamespace(weights={})), "has no relations"),
        (lambda: plots.training_curves({"a": LOG, "b": SimpleNamespace()}), "was not trained"),
        (lambda: plots.results(RESULTS, "AP"), r"measure must be one of \['nDCG@10'\], got 'AP'"),
        (
            lambda: plots.results(RESULTS, baseline="PL2"),
            "baseline must be one of .*'BM25', .*got 'PL2'",
        ),
        (lambda: plots.results(RESULTS[1:]), "'BM25' has no nDCG@10 of some queries"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
    assert not any(figure.axes[0].has_data() for figure in map(plt.figure, plt.get_fignums()))
