"""The contract of every model: files, copies, warnings and constructors; in the way of scikit-learn's estimator checks.

A model is added by an entry of ``MODELS``.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from torch import nn
from trainings import stop

import pyterrier_graph as ptg
from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.storage.artifact import META
from pyterrier_graph.training.model import LearnedModel, Run
from pyterrier_graph.training.trainer import RankingTrainer, TrainerOptions, train

QUIET: dict[str, Any] = {"device": "cpu", "verbose": False}
ONE: dict[str, Any] = {"epochs": 1, "patience": None}
RUN = tiny.run(3).assign(
    text=lambda frame: [tiny.graph().texts(tiny.graph().nodes_of([d]))[0] for d in frame["docno"]]
)
QRELS = tiny.qrels(3)
TOPICS = tiny.topics(3)
HGAT = ptg.HGATConfig("NO_LB", layers=1, heads=2, init="random", relations=None)


def reranked(model: Any) -> np.ndarray:
    return model(RUN)["score"].to_numpy()


def vectors(model: Any) -> np.ndarray:
    return model.vectors_of(RUN["docno"].unique().tolist())


class Model(NamedTuple):
    """How a kind of model is made and used.

    Attributes:
        make: Makes an untrained model that needs seconds to be trained; takes further arguments of the constructor.
        result: Scores or vectors.
        given: Arguments that :meth:`load` needs.
        kept: An argument that a copy can have with the same weights, and the same result.
        lost: An argument with which the weights are lost; None if there is none.
        random: Whether the untrained model ranks at random.
        fit: Frames for ``fit``.
    """

    make: Callable[..., Any]
    result: Callable[[Any], np.ndarray] = reranked
    given: dict[str, Any] = {}  # noqa: RUF012, not changed
    kept: dict[str, Any] = {"verbose": True}  # noqa: RUF012, not changed
    lost: dict[str, Any] | None = None
    random: bool = False
    fit: tuple[Any, ...] = (RUN, QRELS, RUN, QRELS)


def text_reranker(kind: Any, options_of: Any, **options: Any) -> Any:
    training = options_of(**ONE, pairs_per_epoch=4, encoder_learning_rate=None)
    return kind(
        **{"encoder": tiny.checkpoint(), "max_tokens": 32, "training": training} | QUIET | options
    )


MODELS = {
    "CrossEncoderReranker": Model(
        lambda **options: text_reranker(
            ptg.CrossEncoderReranker, ptg.CrossEncoderTraining, **options
        ),
        kept={"batch_size": 5},
        lost={"max_tokens": 31},
        random=True,
    ),
    "LGReReranker": Model(
        lambda **options: text_reranker(ptg.LGReReranker, ptg.LGReTraining, **options),
        kept={"batch_size": 5},
        lost={"config": ptg.LGReConfig(seed=1)},
        random=True,
    ),
    "DualEncoder": Model(
        lambda **options: ptg.DualEncoder(
            **{"encoder": tiny.checkpoint(), "max_query_tokens": 12, "max_passage_tokens": 24}
            | {"training": ptg.DualEncoderTraining(**ONE, batch_size=2), "miner": miner()}
            | QUIET
            | options
        ),
        kept={"batch_size": 5},
        lost={"encoder": tiny.checkpoint(tuple(tiny.WORDS[::-1]))},
        fit=(TOPICS, QRELS, RUN, QRELS),
    ),
    "HGATReranker": Model(
        lambda **options: ptg.HGATReranker(
            **{"graph": tiny.graph(), "encoder": tiny.encoder(), "config": HGAT}
            | {"training": ptg.HGATTraining(**ONE, batch_size=64)}
            | QUIET
            | options
        ),
        given={"graph": tiny.graph()},
        lost={"config": ptg.HGATConfig(layers=1, heads=2)},
        random=True,
    ),
    "GraphMaxSim": Model(
        lambda **options: ptg.GraphMaxSim(
            **{"graph": tiny.graph(), "encoder": tiny.encoder(), "weights": {"title": 0.5}}
            | QUIET
            | options
        ),
        given={"graph": tiny.graph()},
    ),
    "GraphMean": Model(
        lambda **options: ptg.GraphMean(
            **{"graph": tiny.graph(), "encoder": tiny.dual_encoder()} | QUIET | options
        ),
        result=vectors,
        given={"graph": tiny.graph()},
        fit=(TOPICS, QRELS),
    ),
    "GraphMean, fixed": Model(
        lambda **options: ptg.GraphMean(
            **{
                "graph": tiny.graph(),
                "encoder": tiny.dual_encoder(),
                "query_graph": tiny.query_graph(),
            }
            | {"weights": {"title": 0.5, "relevant": 1.0}}
            | QUIET
            | options
        ),
        result=vectors,
        given={"graph": tiny.graph(), "query_graph": tiny.query_graph()},
        fit=(TOPICS, QRELS),
    ),
    "GNNEncoder": Model(
        lambda **options: ptg.GNNEncoder(
            **{
                "graph": tiny.graph(),
                "encoder": tiny.dual_encoder(),
                "query_graph": tiny.query_graph(),
            }
            | {"training": ptg.GNNEncoderTraining(**ONE)}
            | QUIET
            | options
        ),
        result=vectors,
        given={"graph": tiny.graph(), "query_graph": tiny.query_graph()},
        lost={"config": ptg.GNNEncoderConfig(heads=2)},
        fit=(TOPICS, QRELS, TOPICS, QRELS),
    ),
}
TRAINED = [name for name in MODELS if name.partition(",")[0] not in ("GraphMaxSim", "GraphMean")]
every = pytest.mark.parametrize("name", MODELS)


def miner() -> ptg.HardNegativeMiner:
    found = pt.Transformer.from_df(
        RUN.drop(columns=["query", "text"]).assign(score=range(len(RUN)))
    )
    texts = pt.apply.generic(
        lambda run: run.drop(columns="text", errors="ignore").merge(PASSAGES, on="docno")
    )
    return ptg.HardNegativeMiner(found, texts, verbose=False)


PASSAGES = RUN[["docno", "text"]].drop_duplicates()


pytestmark = pytest.mark.filterwarnings("ignore:.*(training did not improve|at random|already)")


@cache
def trained(name: str) -> Any:
    return MODELS[name].make().fit(*MODELS[name].fit)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def path_of(name: str) -> Path:
        path = tmp_path_factory.mktemp("models") / "model"
        trained(name).apply_attributes().save(path)
        return path

    return path_of


def load(name: str, path: Path, **options: Any) -> Any:
    return type(trained(name)).load(path, **QUIET | MODELS[name].given | options)


for model_name, model in MODELS.items():
    globals()[f"Test{model_name.replace(', ', '_')}"] = pt.testing.transformer_test_class(
        model.make
    )


def test_every_model_is_here() -> None:
    def concrete(kind: type) -> set[str]:
        below = kind.__subclasses__()
        return set().union(*map(concrete, below)) if below else {kind.__name__}

    assert concrete(LearnedModel) & set(ptg.__all__) == {name.partition(",")[0] for name in MODELS}


@every
def test_the_constructor(name: str) -> None:
    """Its arguments are attributes, as PyTerrier's inspection requires."""
    made = MODELS[name].make()
    parameters = inspect.signature(type(made)).parameters
    attributes = {attribute.name for attribute in pt.inspect.transformer_attributes(made)}
    assert attributes == parameters.keys() and parameters["verbose"].default is True
    assert repr(made).startswith(type(made).__name__)


@every
def test_a_saved_model_is_the_same(name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    path, made = saved(name), trained(name)
    loaded = load(name, path)
    np.testing.assert_allclose(MODELS[name].result(loaded), MODELS[name].result(made), atol=1e-6)
    assert (
        loaded.path == path
        and loaded.training_log == made.training_log
        and bool(loaded.training_log) == (name in TRAINED)
    )
    meta = json.loads((path / META).read_text("utf-8"))
    kind = type(made)
    assert (meta["type"], meta["format"], meta["package_hint"]) == (
        kind.ARTIFACT_TYPE,
        kind.ARTIFACT_FORMAT,
        "pyterrier_graph",
    )
    assert not [
        file for file in path.rglob("*") if file.suffix in (".bin", ".pt", ".pkl", ".pickle")
    ]
    assert loaded.verify() is loaded
    with pytest.raises(FileExistsError, match="exists already"):
        made.apply_attributes().save(path)
    if name in TRAINED:
        assert loaded.training == made.training
        loaded.save(tmp_path / "again")
        again = load(name, tmp_path / "again")
        np.testing.assert_allclose(MODELS[name].result(again), MODELS[name].result(made), atol=1e-6)


@every
def test_a_copy_has_weights_of_its_own(name: str) -> None:
    made, (before, kept) = trained(name), (MODELS[name].result(trained(name)), MODELS[name].kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ptg.PyTerrierGraphWarning)
        copy = pt.inspect.transformer_apply_attributes(made, **kept)
    assert copy is not made and {argument: getattr(copy, argument) for argument in kept} == kept
    np.testing.assert_allclose(MODELS[name].result(copy), before, atol=1e-5)
    if not isinstance(made.network, torch.nn.Module) or not [*made.network.parameters()]:
        return
    with torch.no_grad():
        for weight in copy.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    assert not np.allclose(MODELS[name].result(copy), before, atol=1e-3)
    np.testing.assert_array_equal(MODELS[name].result(made), before)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].lost])
def test_a_copy_whose_weights_do_not_fit_is_untrained(name: str) -> None:
    lost = MODELS[name].lost
    assert lost is not None
    with pytest.warns(
        UserWarning,
        match=f"is not trained: with another {next(iter(lost))} the trained weights do not",
    ):
        other = pt.inspect.transformer_apply_attributes(trained(name), **lost)
    assert not other.training_log


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].random])
def test_random_scores_warn(name: str, tmp_path: Path) -> None:
    untrained = MODELS[name].make()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*at random")
        untrained(RUN.iloc[:0])
        reranked(trained(name))
        MODELS[name].make().fit(*MODELS[name].fit)
    with pytest.warns(UserWarning, match="is not trained and ranks at random: call fit"):
        untrained(RUN)
    untrained.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="ranks at random"):
        load(name, tmp_path / "model")(RUN)


@pytest.mark.parametrize("name", TRAINED)
def test_a_second_fit_continues_and_warns(name: str, saved: Callable[[str], Path]) -> None:
    made = load(name, saved(name))
    made = made.apply_attributes(training=MODELS[name].make().training)
    if name == "DualEncoder":
        made.miner = miner()
    with pytest.warns(
        UserWarning, match=f"is trained already: fit continues .* fit a new {type(made).__name__}"
    ):
        assert made.fit(*MODELS[name].fit) is made


@pytest.mark.parametrize("name", TRAINED)
def test_an_interrupted_training_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same weights and the same log; neither a training that has ended nor another one continues."""

    def fit(qrels: pd.DataFrame = QRELS, **options: Any) -> Any:
        options = {"epochs": 2, "output_dir": str(tmp_path / "run")} | options
        made = MODELS[name].make()
        topics, _, *dev = MODELS[name].fit
        made = made.apply_attributes(training=replace(made.training, **options))
        return made.fit(topics, qrels, *dev)

    whole, evaluate, evaluations = fit(output_dir=None), RankingTrainer.evaluate, iter(range(2))

    def interrupted(*given: Any, **options: Any) -> Any:
        return evaluate(*given, **options) if next(evaluations) == 0 else stop()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RankingTrainer, "evaluate", interrupted)
        fit()
    measure = whole.training.measure
    for resumed in (fit(), fit()):
        np.testing.assert_array_equal(MODELS[name].result(resumed), MODELS[name].result(whole))
        one, other = (tiny.logged(model, measure) for model in (resumed, whole))
        assert one == other and len(one) == 3
    for other in ({"learning_rate": 0.5}, {"qrels": QRELS[QRELS["qid"] != "t1"]}):
        with pytest.raises(
            ValueError,
            match=r"another training \(.*(learning_rate|examples|triples|queries)",
        ):
            fit(**other)


class OneWeight(nn.Module):
    """A model whose weight is 0 at first, and grows by the learning rate in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, example: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": example.sum() - self.weight}


@pytest.mark.parametrize(
    ("gains", "random_start", "kept"),
    [
        ([0.1, 0.2, 0.3], False, 2),
        ([0.5, 0.0, 0.0], False, 0),  # a single query differs: exactly one standard error
        ([0.5, 0.0, 0.0], True, 2),
        ([-0.1, -0.2, -0.3], True, 1),
    ],
)
def test_the_best_epoch_is_kept_or_a_start_that_is_as_good(
    gains: list[float], random_start: bool, kept: int, tmp_path: Path
) -> None:
    """Also when a training that has ended is called again."""
    gain = np.array(gains)
    values = [0.5 + 0 * gain, 0.5 + gain / 2, 0.5 + gain, 0 * gain]  # by epoch

    def fit() -> tuple[float, list[dict[str, float]]]:
        model = OneWeight()
        measured = lambda: values[round(10 * model.weight.item())]  # noqa: E731
        log = train(
            model,
            cast(Any, [torch.zeros(1)]),
            lambda batch: {"example": batch[0]},
            TrainerOptions(epochs=3, learning_rate=0.1, patience=1, output_dir=str(tmp_path)),
            Run(measured, {}, torch.device("cpu"), "float32", False, random_start),
            rates=[([model.weight], 0.1)],
        )
        return model.weight.item(), log

    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            weight, log = fit()
        assert weight == pytest.approx(kept / 10, abs=1e-6)
        assert [entry["epoch"] for entry in log if "kept" in entry] == [kept]
        said = [str(w.message) for w in caught if issubclass(w.category, QualityWarning)]
        assert any("did not improve" in message for message in said) == (kept == 0)


@every
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "gpu"}, RuntimeError, "Expected one of cpu, cuda"),
    ],
)
def test_wrong_arguments_are_named(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    if next(iter(options)) not in inspect.signature(type(MODELS[name].make())).parameters:
        pytest.skip(f"there is no {next(iter(options))}")
    with pytest.raises(error, match=message):
        MODELS[name].make(**options)
    with pytest.raises(error, match=message):
        MODELS[name].make().apply_attributes(**options)
