"""What holds of every trained model, shown with the text rerankers: warnings, checks, copies, loading, checkpoints."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import tiny
from test_lgre_reranker import QRELS, RUN, cross_encoder, lgre, losses, qualities, scores
from transformers import Trainer

from pyterrier_graph.checks import check_fields
from pyterrier_graph.models.lgre_losses import LGReLoss
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.training.pairs import CrossEncoderTraining, LGReTraining

ONE = {"epochs": 1, "pairs_per_epoch": 8}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> LGReReranker:
    training = ONE | {"loss": LGReLoss(distance="none"), "arguments": {"max_grad_norm": 0.5}, "patience": None}
    trained = lgre(training=training).fit(RUN, QRELS, RUN, QRELS)
    return trained.save(tmp_path_factory.mktemp("models") / "lgre")


def test_a_second_fit_says_that_it_continues(saved: LGReReranker) -> None:
    once = lgre(training=ONE)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*trained")
        once.fit(RUN, QRELS)
    for model in (once, LGReReranker.load(saved.path, device="cpu", verbose=False)):
        with pytest.warns(UserWarning, match="is trained already: fit continues .* call fit of a new LGReReranker"):
            model.fit(RUN, QRELS)


def test_random_scores_warn_once() -> None:
    models = [lgre(), CrossEncoderReranker(tiny.checkpoint(), max_tokens=64, device="cpu", verbose=False)]
    for model in models:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*at random")
            model(RUN.iloc[:0])
        with pytest.warns(UserWarning, match="is not trained and ranks at random: call fit"):
            model(RUN)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*at random")
            model(RUN)


def test_no_warning_where_scores_are_not_random(saved: LGReReranker) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*at random")
        lgre(encoder=cross_encoder())(RUN)
        CrossEncoderReranker(cross_encoder(), max_tokens=64, device="cpu", verbose=False)(RUN)
        lgre(training=ONE).fit(RUN, QRELS, RUN, QRELS)(RUN)  # validation before training does not warn
        LGReReranker.load(saved.path, device="cpu", verbose=False)(RUN)


def test_an_untrained_model_that_was_saved_warns(tmp_path: Path) -> None:
    """Its checkpoint has a head now, which is as random as before."""
    CrossEncoderReranker(tiny.checkpoint(), max_tokens=64, device="cpu", verbose=False).save(tmp_path / "model")
    with pytest.warns(UserWarning, match="ranks at random"):
        CrossEncoderReranker.load(tmp_path / "model", device="cpu")(RUN)


def test_load_restores_the_training(saved: LGReReranker) -> None:
    loaded = LGReReranker.load(saved.path, device="cpu")
    assert loaded.training == saved.training
    assert isinstance(loaded.training.loss, LGReLoss)
    assert loaded.training_log == saved.training_log
    assert qualities(loaded) and losses(loaded)
    other = LGReTraining(epochs=7)
    assert LGReReranker.load(saved.path, device="cpu", training=other).training == other


def test_load_restores_the_configuration_of_the_paper(tmp_path: Path) -> None:
    model = lgre(layers=None).save(tmp_path / "paper")
    assert LGReReranker.load(model.path, device="cpu").config.layers is None


def test_fields_are_checked_by_their_types() -> None:
    @dataclass
    class Options:
        kind: Literal["a", "b"] = "a"
        choice: Literal["c"] | None = None
        count: int | None = 2
        rate: float = 0.5

    check_fields(Options(count=None), count=1, rate=0)
    for wrong, message in [
        ({"kind": "c"}, "kind must be one of 'a', 'b', got 'c'"),
        ({"kind": None}, "kind must be one of"),
        ({"choice": "d"}, "choice must be one of 'c', got 'd'"),
        ({"count": 1.5}, "count must be a whole number, 1 or more, got 1.5"),
        ({"rate": -1}, "rate must be 0 or more"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_fields(Options(**wrong), count=1, rate=0)  # type: ignore[arg-type]


def test_a_copy_keeps_weights_that_fit(saved: LGReReranker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        copy = saved.apply_attributes(training=LGReTraining(), batch_size=5, seed=saved.seed)
    assert (copy.batch_size, copy.training, copy.training_log) == (5, LGReTraining(), saved.training_log)
    assert scores(copy) == pytest.approx(scores(saved), abs=1e-6)
    for attributes in ({"seed": 4}, {"encoder": cross_encoder()}):
        with pytest.warns(UserWarning, match=f"is not trained: with another {next(iter(attributes))}"):
            assert not saved.apply_attributes(**attributes).training_log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": 3}, r"encoder must be the name or the folder of a checkpoint, got 3 \(int\)"),
        ({"training": {"epochs": 3}}, r"training must be a LGReTraining, such as LGReTraining\(epochs=3\), got {'ep"),
        ({"training": CrossEncoderTraining()}, "training must be a LGReTraining.*CrossEncoderTraining"),
        ({"config": "full"}, r"config must be an LGReConfig, such as LGReConfig\(word_graph='full'\), got 'full'"),
        ({"text_field": None}, "text_field must be the name of a column"),
    ],
)
def test_arguments_of_a_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LGReReranker(**{"encoder": tiny.checkpoint(), "max_tokens": 64, "device": "cpu"} | options)


def test_arguments_are_checked_when_they_are_set_later() -> None:
    model = lgre()
    with pytest.raises(TypeError, match="training must be a LGReTraining"):
        model.set_parameter("training", {"epochs": 3})
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        model.set_parameter("batch_size", 0)
    with pytest.raises(ValueError, match="dtype must be one of 'auto'"):
        model.set_parameter("dtype", "int8")
    with pytest.raises(ValueError, match="device must be 'cpu', .*got 'gpu'"):
        model.set_parameter("device", "gpu")


def test_options_of_training_are_checked() -> None:
    for options in (
        {"patience": 0},
        {"learning_rate": -1e-3},
        {"encoder_learning_rate": -1e-3},
        {"learning_rate": float("nan")},
        {"seed": -1},
        {"validation_candidates": 0},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            LGReTraining(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="arguments must be a dictionary"):
        LGReTraining(arguments=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss must be an LGReLoss"):
        LGReTraining(loss="hinge")  # type: ignore[arg-type]


def test_the_paper_has_no_early_stopping() -> None:
    for kind in (LGReTraining, CrossEncoderTraining):
        paper = kind.paper(seed=3)
        assert isinstance(paper, kind)
        assert (paper.epochs, paper.batch_size, paper.pairs_per_epoch, paper.patience) == (20, 32, 512, None)
        assert (paper.learning_rate, paper.encoder_learning_rate, paper.measure) == (5e-5, 1e-5, "nDCG@20")
        assert (paper.validation_candidates, paper.seed) == (None, 3)
    assert LGReTraining.paper().loss == LGReLoss(weight=0.01)


@pytest.mark.parametrize("kind", [LGReReranker, CrossEncoderReranker])
def test_signatures_are_shown(kind: type) -> None:
    parameters = inspect.signature(kind).parameters
    assert list(parameters)[0] == "encoder" and parameters["encoder"].default == "all-MiniLM-L6-v2"
    assert parameters["verbose"].default is True and parameters["dtype"].default == "auto"


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (True, False):
        lgre(training=ONE, verbose=verbose).fit(RUN, QRELS)
        assert ("1/1" in capsys.readouterr().err) == verbose
    lgre(training=ONE, verbose=True).fit(RUN, QRELS, RUN, QRELS)
    shown = capsys.readouterr()
    assert f"{lgre(training=ONE).training.measure}=" in shown.err and "{" not in shown.out + shown.err


def test_checkpoints_that_nothing_can_use_are_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[list[str]] = []
    save = Trainer._save_checkpoint

    def counting(self: Trainer, *given: Any, **named: Any) -> None:
        save(self, *given, **named)
        folders = Path(self.args.output_dir).glob("checkpoint-*/*.*")
        written.append(sorted({file.name for file in folders}))

    monkeypatch.setattr(Trainer, "_save_checkpoint", counting)
    training = {"epochs": 3, "patience": None}
    lgre(training=training).fit(RUN, QRELS)
    assert not written
    whole = lgre(training=training).fit(RUN, QRELS, RUN, QRELS)
    better = [value for place, value in enumerate(qualities(whole)) if value > max([-1, *qualities(whole)[:place]])]
    assert len(written) == len(better)  # no checkpoint that is worse than one before
    assert all("optimizer.pt" not in files and "model.safetensors" in files for files in written)
    lgre(training=training | {"output_dir": str(tmp_path)}).fit(RUN, QRELS)
    assert "optimizer.pt" in written[-1]


def test_half_precision() -> None:
    plain, half = lgre(encoder=cross_encoder()), lgre(encoder=cross_encoder(), dtype="bfloat16", training=ONE)
    assert scores(half) == pytest.approx(scores(plain), abs=0.1)
    assert (scores(half) != scores(plain)).any()
    assert all(parameter.dtype.itemsize == 4 for parameter in half.fit(RUN, QRELS).network.parameters())
    explained = half.explain("alpha", "alpha beta")
    assert explained.adjacency.sum(-1) == pytest.approx(1, abs=1e-2)
    assert len(half.states(RUN)) == 2 * len(RUN)
