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
    "results": lambda: plots.results(RESULTS, "nDCG@10", title="$a$")[0],
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
    assert {"next passage", "section around it", "cited document"} == {*legend}
    assert len(texts(ax)) == 4 + 1  # and a cited document


def test_curves_of_a_training() -> None:
    model = SimpleNamespace(training_log=LOG, training=SimpleNamespace(measure=MEASURE))
    loss, measure = plots.training_curves({"mine": model})
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[5, 0.7], [10, 0.6]])
    np.testing.assert_array_equal(measure.lines[0].get_xydata(), [[0, 0.3], [5, 0.5], [10, 0.4]])
    np.testing.assert_array_equal(measure.lines[1].get_xydata(), [[0, 0.3]])


def test_similarities_before_and_after_training() -> None:
    pairs = pd.DataFrame({"positive_query": [0.9, 0.2], "positive_negative": [0.5, 0.6]})
    before, after = plots.similarity_shift(pairs, pairs.assign(positive_query=0.9))
    assert before.get_title().endswith("larger for 50%")
    assert after.get_title().endswith("larger for 100%")


def test_weights_of_a_model_without_layers() -> None:
    model = SimpleNamespace(weights={"external/order": 0.5, "about_i": 1.0})
    labels = [label.get_text() for label in plots.relation_weights(model).get_yticklabels()]
    assert labels == ["next passage of cited document", "about, inverse"]


def test_means_intervals_and_differences() -> None:
    means, differences = plots.results(RESULTS, "nDCG@10")
    labels = [label.get_text() for label in means.get_yticklabels()]
    values = RESULTS.pivot(index="qid", columns="name", values="value")
    marks = {"BM25": "", "$hybrid$": "+", "the same": ""}  # + is significantly better
    assert labels == [f"{name}  {values[name].mean():.3f}{mark}" for name, mark in marks.items()]
    for segment, name in zip(means.collections[0].get_segments(), marks, strict=True):
        row = values[name]
        interval = stats.t.interval(0.95, len(row) - 1, row.mean(), stats.sem(row))
        np.testing.assert_allclose(segment[:, 0], interval)
    for points, name in zip(differences.lines, marks, strict=False):
        gains = np.sort(values[name] - values["BM25"])
        np.testing.assert_allclose(points.get_xdata(), gains, atol=1e-9)
    other, _ = plots.results(
        RESULTS, "nDCG@10", names=["the same", "$hybrid$"], baseline="$hybrid$"
    )
    assert [label.get_text()[-1] for label in other.get_yticklabels()] == ["-", "0"]
    with pytest.raises(ValueError, match=r"measure must be one of \['nDCG@10'\], got 'AP'"):
        plots.results(RESULTS, "AP")
