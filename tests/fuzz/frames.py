"""Targets that take frames: transformers, measures, tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import ir_measures
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import plots
from pyterrier_graph.evaluation.measures.definitions import LeftOut
from pyterrier_graph.graphs.passages import GraphTextLoader, Passages
from pyterrier_graph.patents import AbstractTerms, ClaimsQuery, DocumentCutoff, NotOwnFamily, SharedCodes
from pyterrier_graph.patents import write_official_run as write_run
from pyterrier_graph.retrieve.query_weights import QueryWeights

from . import world
from .running import target
from .texts import archive
from .values import TEXTS, VALUES

matplotlib.use("Agg")
DTYPES = ("str", "object", "float64", "float32", "int64", "int8", "category", "string", "bool", "datetime64[ns]")
DTYPES = (*DTYPES, "complex128", "Float64", "Int64", "string[pyarrow]")
MANY = 1_000_000


def changed_frame(random: Random, frame: pd.DataFrame, *, many: bool = False) -> Any:
    """A frame with one to three changes: of columns, types, values, rows, or of the index."""
    if random.random() < 0.01:
        return random.choice([None, [], {}, frame.to_dict("records"), frame.iloc[:, 0], pd.DataFrame(), 5, "qid"])
    for _ in range(random.choice([1, 1, 2, 3])):
        if isinstance(frame, pd.DataFrame) and len(frame.columns):
            frame = random.choice(CHANGES)(random, frame)
    if many and random.random() < 0.002 and isinstance(frame, pd.DataFrame) and 0 < len(frame) < 1000:
        frame = frame.iloc[np.arange(MANY) % len(frame)].set_axis(pd.RangeIndex(MANY))
    return frame


def _without(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    without = random.randrange(len(frame.columns))  # by position: a name may be None
    return frame.iloc[:, [column for column in range(len(frame.columns)) if column != without]]


def _renamed(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    new = random.choice([*frame.columns, *TEXTS[:3], 0, None, ("a", "b")])
    return frame.rename(columns={random.choice([*frame.columns]): new})


def _more(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    name = random.choice(["docid", "rank", "score", "query_0", "graph", "text", "title", "codes", "label", "query_vec"])
    return frame.assign(**{name: pd.Series([random.choice(VALUES) for _ in range(len(frame))], frame.index, object)})


def _retyped(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    name = random.choice([*frame.columns])
    try:
        return frame.assign(**{name: frame[name].astype(random.choice(DTYPES))})
    except Exception:  # noqa: BLE001  # the values do not have this type
        values = [random.choice([0, 1, 2.5, np.nan]) for _ in range(len(frame))]
        return _with(frame, name, pd.Series(values, frame.index, dtype=random.choice([float, object])))


def _values(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    name = random.choice([*frame.columns])
    column = frame[name]
    if isinstance(column, pd.DataFrame):  # two columns with this name
        return frame
    values = np.empty(len(frame), dtype=object)
    for row, value in enumerate(column):
        values[row] = value
    chosen = random.choice(VALUES)
    for row in random.sample(range(len(frame)), k=min(len(frame), random.choice([1, 1, 2, len(frame)]))):
        values[row] = chosen if random.random() < 0.5 else random.choice(VALUES)
    return _with(frame, name, pd.Series(values, frame.index, dtype=object))


def _numbers(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in ("score", "rank", "label", "value") if name in frame.columns]
    if not names:
        return frame
    numbers = [random.choice([np.nan, np.inf, -np.inf, 0, -1, 1e39, 1e308, 0.5, 1]) for _ in range(len(frame))]
    return _with(frame, random.choice(names), pd.Series(numbers, frame.index, dtype=float))


def _rows(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    kind = random.randrange(5)
    if kind == 0:
        return frame.iloc[:0]
    if kind == 1:
        return frame.iloc[[random.randrange(len(frame))]] if len(frame) else frame
    if kind == 2:
        return frame.sample(frac=1, random_state=random.randrange(1000))
    some = frame.sample(frac=0.5, random_state=random.randrange(1000))
    return pd.concat([frame, some], ignore_index=kind == 3)


def _indexed(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    kind = random.randrange(4)
    if kind == 0:
        try:
            return frame.set_index(random.choice([*frame.columns]))
        except Exception:  # noqa: BLE001  # pandas allows no index of such values
            return frame
    if kind == 1:
        return frame.set_axis([0] * len(frame))
    if kind == 2:
        return frame.set_axis([f"r{n}" for n in range(len(frame))])
    return frame.set_axis(pd.MultiIndex.from_product([[0], range(len(frame))]))


def _twice(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[[random.choice([*frame.columns])]]], axis=1)


def _with(frame: pd.DataFrame, name: Any, values: pd.Series) -> pd.DataFrame:
    frame = frame.copy()
    frame[name] = values
    return frame


CHANGES = (_without, _renamed, _more, _retyped, _retyped, _values, _values, _values, _numbers, _rows, _indexed, _twice)


def checked(found: pd.DataFrame, *, scored: bool = True) -> None:
    """What holds for the output of every transformer."""
    assert isinstance(found, pd.DataFrame)
    if scored and len(found) and {"qid", "score", "rank"} <= {*found.columns}:
        assert found["score"].notna().all(), "a score is missing"
        assert found["rank"].min() == 0


def transformer(
    name: str, make: Callable[[], Any], frame: Callable[[], pd.DataFrame], *, scored: bool = True, many: bool = False
) -> None:
    """A target: a transformer gets changed frames."""

    def give(random: Random) -> None:
        given = changed_frame(random, frame().copy(), many=many)
        checked(make().transform(given), scored=scored)

    target(f"frame/{name}")(give)


def few() -> pd.DataFrame:
    """A small run with texts."""
    return world.TEXTS[world.TEXTS["qid"].isin(["t0", "t1"])].assign(score=lambda run: 9.0 - run["rank"])


def documents() -> pd.DataFrame:
    """A run of documents."""
    return tiny.topics(2).merge(pd.DataFrame({"docno": ["d0", "d1"]}), how="cross").assign(score=[2.0, 1, 4, 3], rank=0)


transformer("passages", lambda: world.graph().passages(), documents, many=True)
transformer("passages-titles", lambda: Passages(world.own_ids(), titles=True), documents)
transformer("texts", lambda: GraphTextLoader(world.graph()), few, scored=False, many=True)
transformer("fold-document", lambda: world.graph().fold("document"), few, many=True)
transformer("fold-structural", lambda: world.graph().fold("structural"), few)
transformer("candidate-graph", lambda: ptg.CandidateGraph(verbose=False), few, scored=False)
transformer("candidate-graph-similar", lambda: ptg.CandidateGraph(similarity=2, verbose=False), few, scored=False)
for _name in ("maxsim", "maxsim-all", "hgat", "lgre", "cross-encoder", "dual", "evidence", "evidence-own-ids"):
    transformer(_name, lambda name=_name: world.reranker(name), few, many=_name == "evidence")
for _name in ("maxsim-candidates", "hgat-candidates"):
    transformer(_name, lambda name=_name: world.reranker(name), world.candidates)
transformer("dual-queries", lambda: world.encoder(), tiny.topics, scored=False)
transformer("dual-passages", lambda: world.encoder(), lambda: few()[["docno", "text"]], scored=False)
transformer("query-weights", lambda: query_weights(), world.vectors, scored=False)
transformer("retriever", lambda: world.contextual().retriever(3), tiny.topics)
transformer("claims-query", lambda: ClaimsQuery(), world.patents, scored=False, many=True)
transformer("abstract-terms", lambda: AbstractTerms(world.frequencies()), world.patents, scored=False)
transformer("shared-codes", lambda: SharedCodes(world.own_ids()), world.patents, scored=False, many=True)
transformer("own-family", lambda: NotOwnFamily(), world.patents, scored=False, many=True)
transformer("document-cutoff", lambda: DocumentCutoff(2, 1), few, scored=False, many=True)


def query_weights() -> QueryWeights:
    """Weights per query."""
    sample = {name: np.eye(5, 16, dtype=np.float16) for name in ("passages", "title")}
    return QueryWeights(sample, {"title": 1.0})


@target("frame/hybrid")
def hybrid(random: Random) -> None:
    """Topics, and the results of one pipeline, are changed."""
    run = few()[["qid", "docno", "score", "rank", "text"]]
    given = run if random.random() < 0.3 else changed_frame(random, run, many=True)
    parts = [pt.apply.generic(lambda _: given), pt.apply.generic(lambda _: run[run["docno"] != "d1%p0"])]
    topics = tiny.topics(2) if random.random() < 0.7 else changed_frame(random, tiny.topics(2))
    normalization: Any = random.choice(["min-max", "z-score", "rank"])
    checked(ptg.Hybrid(*parts, normalization=normalization).transform(topics))


@target("frame/measures")
def measures(random: Random) -> None:
    """Changed judgments and runs, by this package's measures."""
    passages = [f"d{d}%p{p}" for d in range(3) for p in range(2)]
    qrels = pd.DataFrame(
        [("1", name, n % 2) for n, name in enumerate(passages)], columns=["query_id", "doc_id", "relevance"]
    )
    run = pd.DataFrame(
        [("1", name, 1.0 * n) for n, name in enumerate(passages)], columns=["query_id", "doc_id", "score"]
    )
    given = [frame if random.random() < 0.4 else changed_measured(random, frame) for frame in (qrels, run)]
    used = [
        ptg.measures.PRES @ 5,
        ptg.measures.MAPD @ 5,
        ptg.measures.PRECD,
        ptg.measures.on_documents(ir_measures.nDCG @ 3),
    ]
    evaluator = ir_measures.evaluator(random.sample(used, k=random.randint(1, 4)), given[0])
    values = [*evaluator.iter_calc(given[1])]
    assert all(np.isfinite(value.value) or isinstance(value.value, LeftOut) for value in values)


def changed_measured(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of ir_measures with other values or rows; ir_measures itself checks the columns."""
    change = random.choice([_values, _numbers, _rows, _retyped])
    return change(random, frame)


@target("frame/tables")
def tables(random: Random) -> None:
    """Tables of experiments and topics."""
    values = [(name, f"t{n}", "nDCG@10", n / 7 + (name == "b") / 9) for name in "abc" for n in range(5)]
    perquery = pd.DataFrame(values, columns=["name", "qid", "measure", "value"])
    kind = random.randrange(5)
    if kind == 0:
        ptg.summarize(changed_frame(random, perquery), "a")
    elif kind == 1:
        ptg.query_folds(changed_frame(random, tiny.topics(), many=True), 3)
    elif kind == 2:
        ptg.by_query_length(changed_frame(random, tiny.topics(), many=True))
    else:
        folds = [{"t0", "t3"}, {"t1", "t4"}, {"t2", "t5"}] if kind == 3 else ptg.query_folds(tiny.topics(), 3)
        topics, qrels = changed_frame(random, few_documents()), changed_frame(random, tiny.qrels())
        ptg.cross_validate(ptg.DocumentEvidence, topics, qrels, folds=folds, verbose=False)


def few_documents() -> pd.DataFrame:
    """A run for all queries."""
    return tiny.run().assign(score=lambda run: -1.0 * run["rank"])


@target("frame/official-run")
def official_run(random: Random) -> None:
    """Changed runs, which are written."""
    run = pd.DataFrame([("t", f"EP-1000001-A1%p{n}", 3.0 - n) for n in range(3)], columns=["qid", "docno", "score"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.txt")
        try:
            write_run(changed_frame(random, pt.model.add_ranks(run)), path, archive(), verbose=False)
        except Exception:
            assert not os.listdir(folder)
            raise


@target("plot/frames")
def drawn(random: Random) -> None:
    """Changed tables, which are drawn."""
    kind = random.randrange(5)
    explained = pd.DataFrame({"token": ["a", "b"], "weight": 1.0, "relation": ["SELF", "title"], "node": "d0%p0"})
    explained = explained.assign(match=["a", "c"], similarity=[0.5, 0.9], score=[0.5, 0.9])
    try:
        if kind == 0:
            plots.token_matches(changed_frame(random, explained))
        elif kind == 1:
            table = pd.DataFrame({"name": ["a", "b"], "nDCG@10": [0.5, 0.6], "mrt": [1.0, 20.0]})
            plots.effectiveness_latency(changed_frame(random, table), "nDCG@10")
        elif kind == 2:
            rows = [("a", "nDCG@10", k / 9, seed, k) for k in (1, 5, 9) for seed in (0, 1)]
            table = pd.DataFrame(rows, columns=["system", "measure", "value", "seed", "k"])
            plots.measure_curve(changed_frame(random, table), "nDCG@10", x="k")
        elif kind == 3:
            table = pd.DataFrame({"node": ["a", "b"], "relation": ["title", "SELF"], "position": [0, 1]})
            plots.contributions(changed_frame(random, table.assign(token=["x", "y"], contribution=[0.1, 0.9])))
        else:
            log = [{"step": 1, "epoch": 1, "loss": 0.5}, {"step": 2, "epoch": 2, "loss": 0.3, "nDCG@10": 0.4}]
            plots.training_curves(changed_log(random, log))
    finally:
        plt.close("all")


def changed_log(random: Random, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A training log, as an artifact from elsewhere has it."""
    entry = random.choice(log)
    entry[random.choice([*entry, "nDCG@10"])] = random.choice([None, np.nan, np.inf, "x", [], -1, 10**400])
    return log
