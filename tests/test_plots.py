"""Pictures: what is in them, in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from html_reader import HOSTILE, Reader
from ir_measures import nDCG
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.text import Annotation, Text
from pictures import (
    AFTER,
    BEFORE,
    EXPERIMENT,
    LOG,
    MATCHES,
    MEASURE,
    PARTS,
    PICTURES,
    QRELS,
    QUERIES,
    RELATIONS,
    RESULTS,
    STATES,
    SWEPT,
    VECTORS,
    WORDS,
)
from scipy import stats

from pyterrier_graph import plots
from pyterrier_graph.documents import Node, Reference, StructuredDocument
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.plots.axes import with_path
from pyterrier_graph.plots.style import COLORS, NEUTRAL, TEXT, WIDEST


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    plt.close("all")  # what other tests have left open
    yield
    plt.close("all")


HTML = {"compare", "pipeline", "alt_text"}  # what draws no axes


def texts(ax: Axes) -> list[str]:
    """What is written into the axes; arrows have no text."""
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
        figure, alt = ax.figure, plots.alt_text(ax.figure)
        assert len(alt) > 30 and ax.get_label() in alt
        html = figure._repr_html_()
        assert f'alt="{escape(alt)}"' in html and "data:image/svg+xml" in html
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert min(sizes) >= TEXT and figure.get_size_inches()[0] <= WIDEST and figure.dpi >= 110
        expected = to_rgba(plt.rcParams["text.color"])
        for text in [*ax.texts, ax.title, *ax.get_legend().get_texts()] if ax.get_legend() else ax.texts:
            assert to_rgba(text.get_color()) == expected
        other = plt.subplots()[1]
        if name != "results":
            assert PICTURES[name](ax=other) is other
            assert len(plt.get_fignums()) == 2
    assert set(plots.__all__) == {*PICTURES, "training_curves", "similarity_shift", *HTML}


def test_edges_and_nodes_of_a_document() -> None:
    ax = plots.document_graph(tiny.graph(), "d0")
    assert texts(ax) == ["alpha", "alpha alpha mu", "lambda", "kappa lambda", "kappa beta iota", "d1"]
    relations = ["order", "structural", "internal", "external"]
    assert names(ax) == [*map(with_path, relations), "section", "passage"]
    assert names(ax)[0] == "next passage (order)"
    arrows = [text for text in ax.texts if isinstance(text, Annotation) and not text.get_text()]
    drawn = [to_hex(arrow.arrow_patch.get_edgecolor()).upper() for arrow in arrows if arrow.arrow_patch]
    assert drawn == [COLORS[0]] * 2 + [COLORS[1]] * 4 + [COLORS[2], COLORS[3]]
    up = arrows[6]  # from the last passage to the first one
    assert up.xy == (1.0, -1.0) and up.xyann == (2.0, -4.0)
    markers = [line.get_marker() for line in ax.lines]
    assert markers == ["o", "s", "o", "s", "s", "o"]


def test_long_documents_and_many_references_are_cut() -> None:
    nodes = (Node("section", "root", -1), *(Node("passage", "word " * 50, 0) for _ in range(9)))
    references = tuple(Reference("external", 0, f"e{n}") for n in range(7)) + (Reference("external", 1, "e0%p3"),)
    others = [StructuredDocument(f"e{n}", nodes) for n in range(7)]
    graph = MemoryGraph.from_documents([StructuredDocument("d", nodes, (), references), *others])
    ax = plots.document_graph(graph, "d", most=5)
    assert ax.get_title("left") == "d, first 5 of 10 nodes, 5 of 8 references"
    assert len(texts(ax)) == 10 and all(len(text) <= 60 for text in texts(ax))
    assert "e0%p3" in texts(plots.document_graph(graph, "d"))
    with pytest.raises(KeyError, match="'nowhere'"):
        plots.document_graph(graph, "nowhere")


def test_bars_of_relations() -> None:
    ax = plots.relation_weights(RELATIONS)
    assert names(ax) == ["layer 1", "layer 2"]
    assert [label.get_text() for label in ax.get_yticklabels()] == [*map(with_path, ["SELF", "order_i", "order"])]
    lengths = {color: [] for color in COLORS[:2]}
    for bar, color in zip(ax.patches, colors(ax), strict=True):
        lengths[color].append(bar.get_width())
    np.testing.assert_allclose(lengths[COLORS[0]], RELATIONS["layer 1"][::-1])
    np.testing.assert_allclose(lengths[COLORS[1]], RELATIONS["layer 2"][::-1])
    assert ax.patches[0].get_y() < ax.patches[3].get_y()  # the first layer lies above the second
    first, second = ([bar for bar, c in zip(ax.patches, colors(ax), strict=True) if c == k][0] for k in COLORS[:2])
    assert first.get_y() > second.get_y()


def test_weights_of_relations_of_all_models() -> None:
    weights = {"title": 1.0, "relevant": 0.5}
    models = [
        weights,
        SimpleNamespace(weights=weights),
        SimpleNamespace(relation_weights=lambda: pd.DataFrame({"layer 1": weights})),
    ]
    for model in models:
        ax = plots.relation_weights(model, title="mine")
        assert [label.get_text() for label in ax.get_yticklabels()] == [*map(with_path, ["relevant", "title"])]
        assert [bar.get_width() for bar in ax.patches] == [0.5, 1.0]
        assert ax.get_legend() is None and ax.get_title("left") == "mine" and ax.get_xlabel() == "weight"


def test_bars_of_tokens_have_room_for_what_stands_beside_them() -> None:
    ax = plots.token_matches(MATCHES, title="query")
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], MATCHES["score"])
    assert [label.get_text() for label in ax.get_yticklabels()] == MATCHES["token"].tolist()
    assert colors(ax) == [COLORS[0], COLORS[1], COLORS[0]] and names(ax) == [*map(with_path, ["SELF", "structural"])]
    ax.figure.canvas.draw()
    ends = [text.get_window_extent().x1 for text in ax.texts]
    assert max(ends) <= ax.get_window_extent().x1
    assert texts(ax)[2].startswith("$\\broken{") and "…" in texts(ax)[2]


def test_bars_of_contributions() -> None:
    ax = plots.contributions(PARTS, most=2)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [0.5, -0.4])
    assert names(ax) == ["further away", "next passage (order)"]
    assert texts(ax) == ["beta", "delta"]
    assert texts(plots.contributions(PARTS))[2] == "alpha gamma"


def test_bars_of_queries() -> None:
    ax = plots.passage_queries(QUERIES, title="d0%p0")
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [0.7, 0.2, 0.1])
    assert colors(ax) == [COLORS[0], COLORS[1], COLORS[1]] and names(ax) == [*map(with_path, ["relevant", "retrieved"])]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert [label[-4:] for label in labels] == ["[q2]", "[q3]", "[q1]"] and len(labels[0]) < 60
    assert texts(ax) == ["0.700", "0.200", "0.100"]
    fewer = plots.passage_queries(QUERIES, title="d0%p0", most=2)
    assert len(fewer.patches) == 2 and fewer.get_title("left") == "d0%p0, 2 of 3"


def test_curves_of_one_training() -> None:
    reranker = SimpleNamespace(training_log=LOG)
    loss, measure = plots.training_curves(reranker, title="mine")
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[5, 0.7], [10, 0.6]])
    np.testing.assert_array_equal(measure.lines[0].get_xydata(), [[0, 0.3], [5, 0.5], [10, 0.4]])
    np.testing.assert_array_equal(measure.lines[1].get_xydata(), [[5, 0.5]])
    assert (loss.get_ylabel(), measure.get_ylabel(), measure.get_xlabel()) == ("loss", "validation RR@10", "step")
    assert loss.get_title("left") == "mine" and loss.get_legend() is None
    (only,) = plots.training_curves([entry for entry in LOG if MEASURE not in entry], by="epoch")
    np.testing.assert_array_equal(only.lines[0].get_xdata(), [1, 2])


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_curves_of_several_trainings(style: str) -> None:
    log = [{"loss": 0.7, "step": 5}, {"nDCG@10": 0.4, "step": 5, "eval_runtime": 1.0}]
    other = SimpleNamespace(training_log=log)
    with plt.style.context(style):
        axes = plots.training_curves({"one": LOG, "other": other}, axes=list(plt.subplots(2)[1]))
        axes[0].figure.savefig(io.BytesIO(), dpi=40)
    assert [len(ax.lines) for ax in axes] == [2, 4] and names(axes[0]) == ["one", "other"]
    assert axes[1].get_ylabel() == "validation RR@10 and nDCG@10"


def test_trainings_that_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="neither losses nor a measure"):
        plots.training_curves([])
    with pytest.raises(ValueError, match="was not trained"):
        plots.training_curves({"a": LOG, "b": SimpleNamespace()})
    with pytest.raises(ValueError, match="2 parts, but 1 axes"):
        plots.training_curves(LOG, axes=[plt.subplots()[1]])


def test_the_front_of_effectiveness_and_latency() -> None:
    ax = plots.effectiveness_latency(EXPERIMENT, "nDCG@10")
    *systems, front = ax.lines
    np.testing.assert_array_equal(front.get_xydata(), [[1, 0.4], [5, 0.5], [100, 0.6]])
    np.testing.assert_array_equal([line.get_xydata()[0] for line in systems], EXPERIMENT[["mrt", "nDCG@10"]])
    assert [line.get_fillstyle() for line in systems] == ["full", "none", "full", "none", "full"]
    assert names(ax) == [*EXPERIMENT["name"], "not beaten in both"]
    assert ax.get_xscale() == "log" and ax.get_ylabel() == "nDCG@10"
    linear = plots.effectiveness_latency(EXPERIMENT.assign(time=[0.0, 1, 2, 3, 4]), "nDCG@10", time="time")
    assert linear.get_xscale() == "linear" and linear.get_xlabel() == "time"
    many = pd.concat([EXPERIMENT.assign(name=[f"{n}{name}" for name in EXPERIMENT["name"]]) for n in range(8)])
    looks = [(line.get_marker(), line.get_color()) for line in plots.effectiveness_latency(many, "nDCG@10").lines]
    assert len(set(looks)) == 41


def test_a_measure_against_an_option() -> None:
    other = SWEPT.assign(measure="RR@10", value=0.0)
    ax = plots.measure_curve(pd.concat([SWEPT, other]), nDCG @ 10, x="k")
    level, curve = ax.lines
    np.testing.assert_allclose(level.get_xydata(), [[5, 0.4], [10, 0.4]])
    np.testing.assert_allclose(curve.get_xydata(), [[5, 0.5], [10, 0.65]])
    assert (level.get_linestyle(), curve.get_linestyle()) == ("--", "-") and names(ax) == ["dual", "$gnn$"]
    band = ax.collections[1].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.5, 0.65 + np.std([0.6, 0.7], ddof=1)))
    assert ax.get_ylabel() == "nDCG@10" and "(k)" in ax.get_xlabel() and ax.get_xscale() == "linear"
    wide = plots.measure_curve(SWEPT.assign(k=SWEPT["k"].replace(10, 100)), "nDCG@10", x="k")
    assert wide.get_xscale() == "log" and wide.lines[1].get_xdata().tolist() == [5, 100]
    assert plots.measure_curve(SWEPT.rename(columns={"k": "share"}), "nDCG@10", x="share").get_xlabel() == "share"


def test_groups_of_a_map() -> None:
    labels = ["b", "a", "b", "c", "a"] * 6
    ax = plots.embedding_map(VECTORS, labels, method="pca", title="mine")
    assert names(ax) == ["b", "a", "c"] and ax.get_title("left") == "mine"
    assert [len(points.get_offsets()) for points in ax.collections] == [12, 1, 12, 1, 6, 1]
    for points, mean in zip(ax.collections[::2], ax.collections[1::2], strict=True):
        np.testing.assert_allclose(points.get_offsets().mean(0), mean.get_offsets()[0])
    ordered = pd.Categorical(labels, categories=["a", "unused", "b", "c"])
    assert names(plots.embedding_map(VECTORS, ordered, method="pca")) == ["a", "b", "c"]
    longer = plots.embedding_map(VECTORS * np.arange(1, 31)[:, None], labels, method="pca")
    np.testing.assert_allclose(longer.collections[0].get_offsets(), ax.collections[0].get_offsets(), atol=1e-6)
    many = plots.embedding_map(VECTORS, [0, 0, *range(1, 29)], method="pca")
    assert len(names(many)) == 13 and names(many)[::12] == ["0", "17 other labels"]
    assert len(many.collections[-2].get_offsets()) == 17
    assert len(plots.embedding_map(VECTORS, labels).collections) == 6


def test_similarities_before_and_after() -> None:
    before, after = plots.similarity_shift(BEFORE, AFTER, title="PAIR")
    assert before.get_title("left") == "PAIR, before: s(p+, q) is larger for 25%"
    assert after.get_title("left") == "PAIR, after: s(p+, q) is larger for 100%"
    assert names(before) == ["s(p+, q): 0.55 ± 0.11", "s(p+, p-): 0.625 ± 0.11"]
    heights = [sum(bar.get_height() for bar in ax.patches) for ax in (before, after)]
    assert heights == [2 * len(BEFORE), 2 * len(AFTER)]
    assert [line.get_xdata()[0] for line in after.lines] == pytest.approx([0.8, 0.4])
    assert before.get_xlim() == after.get_xlim()
    with plt.style.context("dark_background"):
        same = pd.DataFrame({"positive_query": [0.5], "positive_negative": [0.5]})
        plots.similarity_shift(same, same, axes=list(plt.subplots(2)[1]))[0].figure.savefig(io.BytesIO(), dpi=40)


def test_alternative_texts_of_several_axes() -> None:
    for axes in (plots.training_curves(LOG), plots.similarity_shift(BEFORE, AFTER)):
        assert all(len(ax.get_label()) > 30 for ax in axes)
        assert plots.alt_text(axes) == " ".join(ax.get_label() for ax in axes) == plots.alt_text(axes[0].figure)
    assert plots.alt_text(plt.figure()) == ""


def test_means_intervals_and_differences() -> None:
    means, differences = plots.results(RESULTS)
    assert [label.get_text() for label in means.get_yticklabels()] == ["BM25", "$hybrid$", "the same"]
    values = RESULTS.groupby("name", sort=False)["value"]
    np.testing.assert_allclose([bar.get_width() for bar in means.patches], values.mean())
    assert colors(means) == [NEUTRAL, COLORS[0], COLORS[0]]
    for lines, (_, row) in zip(means.collections, values, strict=True):
        (((low, _), (high, _)),) = lines.get_segments()
        interval = stats.t.interval(0.95, len(row) - 1, row.mean(), stats.sem(row))
        np.testing.assert_allclose([low, high], interval)
    assert [text[-1] for text in texts(means)] == ["1", "+", "1"]  # significantly better
    better, same = differences.collections
    offsets = np.asarray(better.get_offsets())
    expected = RESULTS.pivot(index="qid", columns="name", values="value")
    np.testing.assert_allclose(offsets[:, 0], np.sort(expected["$hybrid$"] - expected["BM25"]), atol=1e-9)
    assert offsets[0, 1] > 1 > offsets[-1, 1] and not np.asarray(same.get_offsets())[:, 0].any()
    assert texts(differences) == ["baseline", "better 40\nequal 0\nworse 0", "better 0\nequal 40\nworse 0"]
    assert "significantly better" in means.get_label() and "better for 40" in differences.get_label()
    other = plots.results(RESULTS, "nDCG@10", baseline="$hybrid$", axes=list(plt.subplots(1, 2)[1]))
    assert [text[-1] for text in texts(other[0])] == ["-", "0", "-"]
    assert plots.results(RESULTS, baseline=1)[1].get_xlabel() == other[1].get_xlabel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experiment": EXPERIMENT}, "no column 'qid', 'measure', 'value'.*perquery=True"),
        ({"experiment": {"a": 1}}, "dict is no frame .*perquery=True"),
        ({"measure": "AP"}, "no values of AP: the frame has nDCG@10"),
        ({"baseline": "PL2"}, "baseline must be one of 'BM25', .*got 'PL2'"),
        ({"baseline": 3}, "or a position, got 3"),
        ({"experiment": pd.concat([RESULTS, RESULTS.assign(measure="AP")])}, "several measures, give one: nDCG@10, AP"),
        ({"experiment": RESULTS[RESULTS["name"] == "BM25"]}, "nothing to compare 'BM25' with"),
        ({"experiment": RESULTS[1:]}, "'BM25' has no value for query '0'"),
        ({"experiment": RESULTS[:0]}, "the frame has no rows"),
        ({"axes": [None]}, "2 parts, but 1 axes"),
    ],
)
def test_results_that_cannot_be_drawn(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.results(**{"experiment": RESULTS, **options})


def test_punctuation_is_one_bar_and_bars_are_limited() -> None:
    tokens = ["[CLS]", ",", "##s", "alpha", "[MASK]", "7", "</s>", "beta"]
    scores = [5.0, 4.0, 1.0, 0.5, 3.0, 0.4, 0.1, 0.3]
    frame = pd.DataFrame({"token": tokens, "score": scores}).assign(relation="SELF", node="d0%p0", match="x")
    ax = plots.token_matches(frame, most=3)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["##s", "alpha", "7", "5 other tokens"]
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(sum(scores))
    assert colors(ax)[-1] == NEUTRAL and len(names(ax)) == 1
    every = plots.token_matches(frame, all_tokens=True)
    assert [label.get_text() for label in every.get_yticklabels()] == tokens
    parts = PARTS.assign(token=[",", "[SEP]", "alpha", "."])
    assert texts(plots.contributions(parts)) == ["alpha"]
    assert "," in "".join(texts(plots.contributions(parts, all_tokens=True)))


def test_word_graphs_have_one_scale_and_maps_name_their_axes() -> None:
    dim = replace(WORDS, adjacency=WORDS.adjacency / 10)
    norms = [plots.word_graph(one).images[0].norm for one in (WORDS, dim)]
    assert (norms[0].vmin, norms[0].vmax) == (norms[1].vmin, norms[1].vmax) == (0.001, 1.0)
    assert plots.word_graph(dim, scale=(0.01, 0.5)).images[0].norm.vmax == 0.5
    ax = plots.embedding_map(VECTORS, ["a", "b"] * 15, kinds=["passage"] * 20 + ["query"] * 10, method="pca")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("principal component 1", "principal component 2")
    assert names(ax) == ["a", "b", "passage", "query"]
    shapes = [points.get_paths()[0].vertices.shape for points in ax.collections]
    assert shapes[0] != shapes[1] and shapes[:3] == shapes[3:]  # per label: passages, queries, mean
    assert plots.similarity_shift(BEFORE, AFTER)[0].get_ylabel() == "pairs"
    with pytest.raises(ValueError, match="each vector needs a kind: there are 30 and 1"):
        plots.embedding_map(VECTORS, ["a"] * 30, kinds=["query"])


def ranking(*docnos: str, **columns: Any) -> pt.Transformer:
    """A pipeline that finds these passages for any query."""
    found = pd.DataFrame({"docno": [*docnos]}).assign(score=range(len(docnos), 0, -1), rank=range(len(docnos)))
    return pt.apply.generic(lambda topics: topics.merge(found.assign(**columns), how="cross"))


def test_rankings_side_by_side() -> None:
    pipelines = [ranking("d0%p0", "d1%p0", text="it raises ValueError"), ranking("d1%p0", "d2%p0", "d0%p0"), ranking()]
    qrels = pd.DataFrame({"qid": ["7", "7", "8"], "docno": ["d0", "d1%p0", "d2%p0"], "label": [2, 0, 1]})
    topics = pd.DataFrame({"qid": ["7"], "query": ["does it raise"]})
    shown = plots.compare(topics.iloc[0], pipelines, names=["one", "two", HOSTILE], qrels=qrels)
    read = Reader(shown._repr_html_())
    assert read.seen.count("line") == 2 and read.seen.count("svg") == 2 and "script" not in read.seen
    assert read.text.count("relevant (2)") == read.text.count("not relevant") == 2 and "also two 3" in read.text
    assert "only here" in read.text and "no results" in read.text and read.seen.count("mark") == 4
    first, second = re.findall(r'<line x1="2" y1="([\d.]+)" x2="46" y2="([\d.]+)"', shown._repr_html_())
    assert first == second[::-1] or float(first[1]) > float(second[1])
    assert repr(shown).splitlines()[:2] == [
        "query: does it raise",
        "one: 1 d0%p0 ✓ relevant (2); 2 d1%p0 ✗ not relevant",
    ]
    plain = repr(plots.compare("raise", pipelines, num_results=1))
    assert plain.count("1 d") == 2 and "relevant" not in plain


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("q", [ranking("a")]), {}, "two pipelines or more"),
        (("q", [ranking("a")] * 2), {"names": ["one"]}, "a name for each"),
        (({"query": "q"}, [ranking("a")] * 2), {}, "query must be a text, or a row of topics"),
        (("q", [ranking("a")] * 2), {"qrels": pd.DataFrame({"qid": ["1"]})}, "no column docno, label"),
        (
            ("q", [ranking("a")] * 2),
            {"qrels": pd.DataFrame({"qid": ["a", "b"], "docno": "d", "label": 1})},
            "give the query as a row of topics",
        ),
        (("q", [pt.Transformer.identity()] * 2), {}, "ranks nothing: its output has no column docno, score"),
    ],
)
def test_rankings_that_cannot_be_compared(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.compare(*arguments, **options)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.relation_weights(RELATIONS[:0]), "empty.*graph model"),
        (lambda: plots.relation_weights({}), "empty.*graph model"),
        (lambda: plots.relation_weights("HGAT"), "give a graph model"),
        (lambda: plots.token_matches(PARTS), "no column 'match', 'score' in .*GraphMaxSim.explain"),
        (lambda: plots.contributions(PARTS[:0]), "empty.*HGATReranker.explain"),
        (
            lambda: plots.passage_queries(QUERIES.drop(columns="relation")),
            "no column 'relation'.*GraphMean or GNNEncoder",
        ),
        (lambda: plots.effectiveness_latency(EXPERIMENT, "AP"), "no column 'AP' in .*eval_metrics=.'AP', 'mrt'."),
        (lambda: plots.effectiveness_latency(EXPERIMENT[:0], "nDCG@10"), "empty"),
        (lambda: plots.effectiveness_latency(EXPERIMENT.assign(mrt=[1, 2, None, 3, 4]), "nDCG@10"), "'best' has no"),
        (lambda: plots.measure_curve(SWEPT, "nDCG@10", x="masked"), "no column 'masked'"),
        (lambda: plots.measure_curve(SWEPT, "AP", x="k"), "no values of AP: the frame has nDCG@10"),
        (lambda: plots.measure_curve(SWEPT.assign(k=np.nan), "nDCG@10", x="k"), "no system has a value of 'k'"),
        (lambda: plots.similarity_shift(BEFORE, AFTER[["positive_query"]]), "no column 'positive_negative'.*'after'"),
        (lambda: plots.similarity_shift(BEFORE * np.nan, AFTER), "'before'.* row 0 has no positive_query"),
        (lambda: plots.similarity_shift(BEFORE, AFTER, axes=[plt.subplots()[1]]), "2 parts, but 1 axes"),
        (lambda: plots.state_map(STATES.drop(columns="side"), QRELS), "no column 'side'.*states"),
        (lambda: plots.embedding_map(VECTORS[:2], "ab"), r"3 or more vectors, .* got \(2, 5\)"),
        (lambda: plots.embedding_map(VECTORS[0], "ab"), r"must be of shape .* got \(5,\)"),
        (lambda: plots.embedding_map(VECTORS, ["a"]), "there are 30 and 1"),
        (lambda: plots.embedding_map(np.where(np.arange(30)[:, None] == 7, np.nan, VECTORS), [0] * 30), "vector 7 is"),
        (lambda: plots.embedding_map(VECTORS, [0] * 30, method="umap"), "'tsne', 'pca', got 'umap'"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
    assert not any(figure.axes[0].has_data() for figure in map(plt.figure, plt.get_fignums()))
