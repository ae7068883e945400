from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ir_datasets
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import RR, nDCG
from pandas.testing import assert_frame_equal

from pyterrier_graph.evaluation.cross_validation import cross_validate
from pyterrier_graph.evaluation.folds import by_query_length, folds_of, query_folds
from pyterrier_graph.rerank.document_evidence import DocumentEvidence
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim

MEASURES = [nDCG @ 10, RR @ 10]


def topics(count: int) -> pd.DataFrame:
    return pd.DataFrame({"qid": [f"{n:03}" for n in range(count)], "query": [f"query {n}" for n in range(count)]})


def qrels(count: int) -> pd.DataFrame:
    return pd.DataFrame({"qid": [f"{n:03}" for n in range(count)], "docno": "NA", "label": 1})


class Memory(pt.Estimator):
    """Memorizes what it is trained on, and scores a document by it."""

    def __init__(self, rate: float = 0.1, log: list[Memory] | None = None) -> None:
        self.rate = rate
        self.seen: list[set[str]] = []
        if log is not None:
            log.append(self)

    def fit(self, topics_tr: pd.DataFrame, qrels_tr: pd.DataFrame, topics_va: Any, qrels_va: Any) -> Memory:
        assert not self.seen
        assert set(topics_tr["qid"]) == set(qrels_tr["qid"]) and set(topics_va["qid"]) == set(qrels_va["qid"])
        self.seen = [set(topics_tr["qid"]), set(topics_va["qid"])]
        return self

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.tested = set(inp["qid"])
        rows = [
            (qid, docno, (sum(map(int, self.seen[0])) * int(qid) % 31 + place) / 7)
            for qid in inp["qid"]
            for place, docno in enumerate(["NA", "01", "a,b"])
        ]
        return pt.model.add_ranks(pd.DataFrame(rows, columns=["qid", "docno", "score"]))


class Network(pt.Estimator):
    """Holds weights, which training changes."""

    def __init__(self, network: torch.nn.Module, learns: bool = True) -> None:
        self.network = network
        self.learns = learns

    def fit(self, *_: Any) -> None:
        if self.learns:
            with torch.no_grad():
                next(self.network.parameters()).add_(1)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        return inp[["qid"]].assign(docno="d", score=0.0)


# --- the protocol ---


@settings(max_examples=50, deadline=None)
@given(count=st.integers(3, 40), folds=st.integers(3, 10), seed=st.integers(0, 5), shuffle=st.randoms())
def test_queries_are_divided_evenly_whatever_their_order(count: int, folds: int, seed: int, shuffle: Any):
    folds = min(folds, count)
    made = query_folds(topics(count), folds, seed=seed)
    assert sorted(qid for fold in made for qid in fold) == topics(count)["qid"].tolist()
    sizes = [len(fold) for fold in made]
    assert len(sizes) == folds and max(sizes) - min(sizes) <= 1
    order = list(range(count))
    shuffle.shuffle(order)
    assert query_folds(topics(count).iloc[order], folds, seed=seed) == made


def test_seeds_give_other_folds():
    assert query_folds(topics(20), seed=0) != query_folds(topics(20), seed=1)


@settings(max_examples=20, deadline=None)
@given(count=st.integers(3, 20), folds=st.integers(3, 6), seed=st.integers(0, 5))
def test_every_query_is_ranked_once_by_a_pipeline_that_does_not_know_it(count: int, folds: int, seed: int):
    folds = min(folds, count)
    log: list[Memory] = []
    run = cross_validate(lambda fold: Memory(log=log), topics(count), qrels(count), folds, seed=seed, verbose=False)
    described, *trained = log
    assert not described.seen and len(trained) == folds
    made = query_folds(topics(count), folds, seed=seed)
    for number, memory in enumerate(trained):
        train, validation = memory.seen
        assert memory.tested == made[number]
        assert validation == made[number - 1]  # of the first fold, the last one
        assert train == set(topics(count)["qid"]) - made[number] - made[number - 1]
        assert set(run["qid"][run["fold"] == number + 1]) == made[number]
    assert len(run) == 3 * count and not run.duplicated(["qid", "docno"]).any()
    assert sorted(run["docno"].unique()) == ["01", "NA", "a,b"]
    assert (run.groupby("qid")["rank"].agg(list).map(sorted) == pd.Series([[0, 1, 2]] * count).to_numpy()).all()


def test_unjudged_queries_are_ranked_but_not_trained_on():
    log: list[Memory] = []
    run = cross_validate(lambda fold: Memory(log=log), topics(20), qrels(19), verbose=False)
    assert "019" in set(run["qid"])
    assert all("019" not in part for memory in log for part in memory.seen)


def test_numbers_as_ids():
    numbers = topics(6).assign(qid=range(6))
    run = cross_validate(lambda fold: Memory(), numbers, qrels(6).assign(qid=range(6)), 3, verbose=False)
    assert set(run["qid"]) == set("012345")


def test_graph_rerankers_through_an_experiment(tmp_path: Path):
    run = tiny.run()
    weights: dict[int, dict[str, float]] = {}

    def make(fold: int) -> pt.Transformer:
        return GraphMaxSim(tiny.graph(), tiny.encoder(), {"structural": 0.0, "order": 0.0}) >> pt.RankCutoff(5)

    def keep(fold: int, pipeline: pt.Transformer) -> None:
        weights[fold] = pt.inspect.transformer_attributes(pipeline)[0].value[0].weights

    found = cross_validate(make, run, tiny.qrels(), 3, output_dir=tmp_path, on_trained=keep, verbose=False)
    assert sorted(weights) == [1, 2, 3]
    folds = query_folds(tiny.topics(), 3)
    for number, fold in enumerate(folds, start=1):
        alone = GraphMaxSim(tiny.graph(), tiny.encoder(), weights[number])
        expected = (alone % 5)(run[run["qid"].isin(fold)].reset_index(drop=True))
        of_fold = found[found["fold"] == number].drop(columns="fold").reset_index(drop=True)
        assert_frame_equal(of_fold, expected[of_fold.columns].reset_index(drop=True), check_dtype=False)
    table = pt.Experiment([run, found], tiny.topics(), tiny.qrels(), MEASURES, ["before", "after"], baseline=0)
    assert table["nDCG@10"][1] > table["nDCG@10"][0]
    assert table["nDCG@10 p-value"].notna()[1]
    per_query = pt.Experiment([found], tiny.topics(), tiny.qrels(), MEASURES, perquery=True)
    assert per_query["qid"].nunique() == len(tiny.topics())


def test_folds_may_be_given():
    given = [["000", "003"], ["001"], ["002", "004"]]
    run = cross_validate(lambda fold: Memory(), topics(5), qrels(5), given, verbose=False)
    assert run.groupby("fold")["qid"].unique().map(sorted).tolist() == given


# --- folds of a dataset ---


def test_folds_of_a_dataset(tmp_path: Path):
    def queries(*qids: str) -> ir_datasets.Dataset:
        file = tmp_path / f"{'-'.join(qids)}.tsv"
        file.write_text("".join(f"{qid}\tquery {qid}\n" for qid in qids), "utf-8")
        return ir_datasets.Dataset(ir_datasets.formats.TsvQueries(ir_datasets.util.LocalDownload(file)))

    ir_datasets.registry.register("folded", queries("1", "2", "3"))
    for number, qids in enumerate([("1",), ("2", "3"), ("4",)], start=1):
        ir_datasets.registry.register(f"folded/fold{number}", queries(*qids))
    assert folds_of("folded") == folds_of("irds:folded") == [{"1"}, {"2", "3"}, {"4"}]
    with pytest.raises(KeyError, match="folded/fold1/fold1"):
        folds_of("folded/fold1")
    with pytest.raises(KeyError):
        folds_of("unheard-of")


def test_robust04_has_folds():
    known = [name for name in ir_datasets.registry if name.startswith("disks45/nocr/trec-robust-2004/fold")]
    assert len(known) == 5


# --- what is refused ---


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        ([["000", "001"], ["002"], ["003", "001"], ["004"]], "1 queries are in more than one fold: '001'"),
        ([["000", "001"], ["002"], ["003", "004", "9"]], "1 queries are in the folds, but not among the topics: '9'"),
        ([["000", "001"], ["002"], ["003"]], "1 queries are in none of the folds: '004'"),
        ([["000", "001"], [], ["002", "003", "004"]], "fold 2 is empty"),
        ([["000", "001"], "002", ["003", "004"]], "fold 2 is the text '002'"),
        ([["000", "001"], ["002", "003", "004"]], "there are 2 folds"),
        (2, "5 queries in 2 folds"),
        (6, "5 queries in 6 folds"),
    ],
)
def test_wrong_folds(folds: Any, message: str):
    with pytest.raises(ValueError, match=message):
        cross_validate(lambda fold: Memory(), topics(5), qrels(5), folds, verbose=False)


@pytest.mark.parametrize(("judged", "part"), [(["000", "001"], "validation"), (["000", "002"], "train")])
def test_parts_without_judgments(judged: list[str], part: str):
    judgments = qrels(3)[qrels(3)["qid"].isin(judged)]
    with pytest.raises(ValueError, match=f"fold 1: qrels have no judgment of any query for {part}"):
        cross_validate(lambda fold: Memory(), topics(3), judgments, [["000"], ["001"], ["002"]], verbose=False)


@pytest.mark.parametrize("wrong", [{"topics": topics(5)[["query"]]}, {"qrels": qrels(5)[["qid", "docno"]]}])
def test_missing_columns(wrong: dict[str, pd.DataFrame]):
    frames = {"topics": topics(5), "qrels": qrels(5)} | wrong
    with pytest.raises(pt.validate.InputValidationError):
        cross_validate(lambda fold: Memory(), **frames, verbose=False)


def test_nothing_to_train():
    with pytest.raises(ValueError, match="nothing to train.*is a pt.Estimator$"):
        cross_validate(lambda fold: pt.Transformer.identity(), topics(5), qrels(5), verbose=False)
    with pytest.raises(ValueError, match="does not train Estimators inside of operators"):
        cross_validate(lambda fold: Memory() + Memory(), topics(5), qrels(5), verbose=False)


def test_warns_of_what_fit_does_not_reach():
    run = topics(5).assign(docno="d", score=1.0, rank=0)
    with pytest.warns(UserWarning, match=r"DocumentEvidence\(1\) is not trained"):
        cross_validate(lambda fold: (DocumentEvidence() + DocumentEvidence()) >> Memory(), run, qrels(5), verbose=False)


@pytest.mark.parametrize("score", [float("nan"), None])
def test_missing_scores(score: Any):
    silent = pt.apply.generic(lambda run: run.assign(score=score), transform_outputs=lambda columns: columns)
    with pytest.raises(ValueError, match="gave no score to document 'NA'"):
        cross_validate(lambda fold: Memory() >> silent, topics(5), qrels(5), verbose=False)


def test_queries_that_were_not_in_the_input():
    fixed = pt.Transformer.from_df(topics(5).assign(docno="d", score=1.0), uniform=True)
    with pytest.raises(ValueError, match="ranked the query '00.', which was not in its input"):
        cross_validate(lambda fold: Memory() >> fixed, topics(5), qrels(5), verbose=False)


# --- what folds must not share ---


def test_pipeline_instead_of_a_function():
    with pytest.raises(TypeError, match="lambda fold"):
        cross_validate(Memory(), topics(5), qrels(5), verbose=False)  # type: ignore[arg-type]


def test_the_same_estimator_twice_is_refused_before_any_training():
    memory = Memory()
    with pytest.raises(ValueError, match="Memory.* for a second time"):
        cross_validate(lambda fold: pt.Transformer.identity() >> memory, topics(5), qrels(5), verbose=False)
    assert not memory.seen


def test_shared_weights_that_learn():
    network = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="a Linear that is shared by folds was changed by training"):
        cross_validate(lambda fold: Network(network), topics(5), qrels(5), verbose=False)


def test_shared_weights_inside_of_an_attribute():
    class Holder:
        def __init__(self) -> None:
            self.inner = torch.nn.Linear(1, 1)

        def parameters(self) -> Any:
            return self.inner.parameters()

    holder = Holder()
    with pytest.raises(ValueError, match="a Linear that is shared"):
        cross_validate(lambda fold: Network(holder), topics(5), qrels(5), verbose=False)  # type: ignore[arg-type]


def test_shared_weights_that_stay_as_they_are():
    network = torch.nn.Linear(1, 1)
    assert len(cross_validate(lambda fold: Network(network, False), topics(5), qrels(5), verbose=False)) == 5
    assert len(cross_validate(lambda fold: Network(torch.nn.Linear(1, 1)), topics(5), qrels(5), verbose=False)) == 5


# --- what is warned about ---


def test_passages_with_judgments_of_documents(tmp_path: Path):
    documents = (
        tiny.qrels().assign(docno=tiny.qrels()["docno"].str.partition("%p")[0]).drop_duplicates(["qid", "docno"])
    )
    arguments: Any = {"topics": tiny.run(), "folds": 3, "output_dir": tmp_path, "verbose": False}
    with pytest.warns(UserWarning, match=r"^cross_validate: .* passages, such as 'd0%p0'.*pt.text.max_passage\(\)"):
        cross_validate(lambda fold: DocumentEvidence(), qrels=documents, **arguments)
    with pytest.warns(UserWarning, match="every measure is 0"):  # also of runs from before
        cross_validate(lambda fold: DocumentEvidence(), qrels=documents, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        arguments["output_dir"] = None
        cross_validate(lambda fold: DocumentEvidence() >> pt.text.max_passage(), qrels=documents, **arguments)
        cross_validate(lambda fold: DocumentEvidence(), qrels=tiny.qrels(), **arguments)


def test_going_on_with_trained_weights(tmp_path: Path):
    """A model that was trained before may be trained further; LearnedModel says so in each fold."""

    class Trained(Memory):
        def fit(self, *data: Any) -> Memory:
            warnings.warn("Trained is trained already", stacklevel=2)
            return super().fit(*data)

    with pytest.warns(UserWarning, match="trained already") as found:
        assert len(cross_validate(lambda fold: Trained(), topics(6), qrels(6), 3, verbose=False)) == 18
    assert len([warning for warning in found if "trained already" in str(warning.message)]) == 3


# --- going on after a kill ---


class KilledError(Exception):
    pass


@pytest.mark.parametrize("when", ["making", "after training"])
def test_goes_on_with_the_fold_that_was_interrupted(tmp_path: Path, when: str):
    log: list[Memory] = []
    saved: list[int] = []

    def make(fold: int) -> Memory:
        if len(log) == 3 and when == "making":
            raise KilledError
        return Memory(log=log)

    def save(fold: int, _: pt.Transformer) -> None:
        if fold == 3 and when == "after training":
            raise KilledError
        saved.append(fold)

    arguments: Any = {"topics": topics(10), "qrels": qrels(10), "output_dir": tmp_path / "out", "verbose": False}
    with pytest.raises(KilledError):
        cross_validate(make, **arguments, on_trained=save)
    assert saved == [1, 2]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "cross_validation.json",
        "fold1.csv.gz",
        "fold2.csv.gz",
    ]
    log.clear()
    run = cross_validate(lambda fold: Memory(log=log), **arguments)
    folds = query_folds(topics(10))
    assert [memory.tested for memory in log if memory.seen] == folds[2:]
    expected = cross_validate(lambda fold: Memory(), topics(10), qrels(10), verbose=False)
    assert_frame_equal(run, expected, check_exact=True)
    log.clear()
    assert_frame_equal(cross_validate(lambda fold: Memory(log=log), **arguments), expected, check_exact=True)
    assert not any(memory.seen for memory in log)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"make_pipeline": lambda fold: Memory(0.2)}, "pipeline"),
        ({"make_pipeline": lambda fold: Memory() % 2}, "pipeline"),
        ({"seed": 1}, "folds"),
        ({"folds": 3}, "folds"),
        ({"topics": topics(10).assign(query="another")}, "topics"),
        ({"qrels": qrels(10).assign(label=2)}, "qrels"),
    ],
)
def test_runs_of_another_cross_validation_are_refused(tmp_path: Path, change: dict[str, Any], named: str):
    arguments = {"make_pipeline": lambda fold: Memory(), "topics": topics(10), "qrels": qrels(10)}
    arguments |= {"output_dir": tmp_path, "verbose": False}
    cross_validate(**arguments)
    with pytest.raises(ValueError, match=rf"another cross-validation \(other: {named}\)"):
        cross_validate(**(arguments | change))
    (tmp_path / "cross_validation.json").unlink()
    with pytest.raises(ValueError, match="other: folds, pipeline, qrels, topics"):
        cross_validate(**arguments)


def test_a_cross_validation_that_got_nowhere_claims_nothing(tmp_path: Path):
    with pytest.raises(AttributeError):
        cross_validate(lambda fold: Network(None), topics(5), qrels(5), output_dir=tmp_path, verbose=False)  # type: ignore[arg-type]
    assert len(cross_validate(lambda fold: Memory(), topics(5), qrels(5), output_dir=tmp_path, verbose=False)) == 15


# --- groups by length ---


def test_groups_by_query_length():
    queries = ["", "a", "a b c", "a  b  c", "a b c d", "a b c d e f"]
    frame = pd.DataFrame({"qid": list("012345"), "query": queries, "more": range(6)})
    groups = by_query_length(frame)
    assert {name: group["qid"].tolist() for name, group in groups.items()} == {
        "length <= 3": ["0", "1", "2", "3"],
        "length > 3": ["4", "5"],
    }
    assert all(group.columns.equals(frame.columns) for group in groups.values())
    of_three = by_query_length(frame, (1, 4))
    assert {name: group["qid"].tolist() for name, group in of_three.items()} == {
        "length <= 1": ["0", "1"],
        "1 < length <= 4": ["2", "3", "4"],
        "length > 4": ["5"],
    }
    letters = by_query_length(frame, (5,), tokenize=list)
    assert letters["length <= 5"]["qid"].tolist() == ["0", "1", "2"]
    assert by_query_length(frame, (9,))["length > 9"].empty


@pytest.mark.parametrize("bounds", [(), (3, 3), (4, 2)])
def test_wrong_bounds(bounds: tuple[int, ...]):
    with pytest.raises(ValueError, match="ascending"):
        by_query_length(topics(3), bounds)


def test_queries_without_text():
    with pytest.raises(pt.validate.InputValidationError):
        by_query_length(topics(3)[["qid"]])


def test_results_per_group():
    asked = tiny.topics().assign(query=lambda frame: frame["query"] + ([" mu"] * 3 + [" mu mu"] * 3))
    run = cross_validate(lambda fold: DocumentEvidence(), tiny.run(), tiny.qrels(), 3, verbose=False)
    found = {
        name: pt.Experiment([tiny.run(), run], group, tiny.qrels(), MEASURES, perquery=True)
        for name, group in by_query_length(asked, (2,)).items()
    }
    assert [sorted(set(table["qid"])) for table in found.values()] == [["t0", "t1", "t2"], ["t3", "t4", "t5"]]


def test_import_leaves_torch_alone():
    code = "import pyterrier_graph.evaluation, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
