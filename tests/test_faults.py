"""Ctrl-C, too little memory and kills in training, indexing, mining and grid search."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyterrier as pt
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from test_models import MODELS, TRAINED
from test_sharing import document_graph
from trainings import forks, in_child, stop

from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.search.hybrid import Hybrid
from pyterrier_graph.training.trainer import RankingTrainer

# --- Ctrl-C


def stopping(
    after: int, function: Callable[..., Any], how: Callable[[], None] = stop
) -> Callable[..., Any]:
    """A function that is interrupted when it is called once too often."""
    left = iter(range(after))

    def call(*given: Any, **options: Any) -> Any:
        if next(left, None) is None:
            how()
        return function(*given, **options)

    return call


def attributes(model: Any) -> dict[str, Any]:
    """All attributes but those that keep what was computed."""
    kept = ("_last", "_warned_of", "_temporary", "_idf", "_frequencies", "_drawn")
    return {name: value for name, value in vars(model).items() if name not in kept}


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    encoder = getattr(getattr(model, "encoder", None), "network", None)
    networks = {"network": getattr(model, "network", None), "encoder": encoder}
    return {
        f"{part}.{name}": value.clone()
        for part, network in networks.items()
        if isinstance(network, torch.nn.Module)
        for name, value in network.state_dict().items()
    }


def made(name: str, **training: Any) -> Any:
    model = MODELS[name].make()
    return model.apply_attributes(training=replace(model.training, **training))


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """A block that fails leaves weights and attributes as they were."""
    weights, before = weights_of(model), attributes(model)
    yield
    now = weights_of(model)
    assert (
        all(torch.equal(value, now[name]) for name, value in weights.items())
        and now.keys() == weights.keys()
    )
    assert attributes(model) == before
    network = getattr(model, "network", None)
    assert not (isinstance(network, torch.nn.Module) and network.training)


@pytest.mark.parametrize("name", TRAINED)
def test_a_fit_that_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C after an epoch, and by too little memory for the first batch, which may be encoded before."""
    model = made(name, epochs=3)
    with unchanged(model), monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RankingTrainer, "evaluate", stopping(1, RankingTrainer.evaluate))
        model.fit(*MODELS[name].fit)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: torch.empty(1 << 50))
    with unchanged(model), hook, pytest.raises(RuntimeError, match="allocate memory"):
        model.fit(*MODELS[name].fit)


def test_ctrl_c_while_a_graph_is_indexed(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    records = [*graph.get_corpus_iter()]

    def documents() -> Iterator[dict[str, str]]:
        yield {"docno": "a", "text": "new"}
        stop()

    for path, overwrite in ((tmp_path / "new", False), (graph.path, True)):
        with pytest.raises(KeyboardInterrupt):
            DocumentGraph(path).index(documents(), overwrite=overwrite)
    before = attributes(graph)
    with pytest.raises(KeyboardInterrupt):
        graph.index(documents(), overwrite=True)
    assert attributes(graph) == before
    assert [*tmp_path.iterdir()] == [graph.path] and [*graph.get_corpus_iter()] == records


def test_ctrl_c_while_tokens_are_stored_or_contextualized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, store = tiny.encoder(), TokenStore(tmp_path / "store", verbose=False)
    encoder.max_passage_tokens = 21  # no other test has encoded these texts with this limit
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoder, "encode_passages", stopping(0, encoder.encode_passages))
        store.build(tiny.graph(2), encoder)
    assert not store.built() and not (tmp_path / "store").exists()
    assert store.build(tiny.graph(2), encoder).built()
    model = MODELS["HGATReranker"].make().save(tmp_path / "model")
    with unchanged(model), monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(model), "_in_context", stopping(0, stop))
        model.contextualize(tmp_path / "context")
    assert not (tmp_path / "context").exists()
    model.contextualize(tmp_path / "context").verify()


def test_ctrl_c_in_a_grid_search() -> None:
    run = tiny.run(3)
    other = pt.Transformer.from_df(run.drop(columns="query").assign(score=range(len(run), 0, -1)))
    hybrid = Hybrid(pt.Transformer.from_df(run.drop(columns="query")), other, verbose=False)
    before = attributes(hybrid)
    stopped = mock.patch.object(hybrid, "_parts", stopping(0, hybrid._parts))
    with stopped, pytest.raises(KeyboardInterrupt):
        hybrid.fit(tiny.topics(3), tiny.qrels(3))
    assert attributes(hybrid) == before
    model = GraphMaxSim(
        tiny.graph(3), tiny.encoder(), {"structural": 0.3}, device="cpu", verbose=False
    )
    before = attributes(model)
    stopped = mock.patch.object(
        tiny.encoder(), "encode_queries", stopping(0, tiny.encoder().encode_queries)
    )
    with stopped, pytest.raises(KeyboardInterrupt):
        model.fit(run, tiny.qrels(3))
    assert attributes(model) == before


# --- kills

KILLS = int(os.environ.get("PYTERRIER_GRAPH_KILLS", "8"))  # over all trainings
KILLS_OF_ONE = 3  # at most, of one training, before it may run to its end


def train_and_save(name: str, folder: Path | None, file: Path) -> None:
    model = made(
        name,
        epochs=4,
        evaluations=2,
        patience=None,
        output_dir=None if folder is None else str(folder),
    )
    model.fit(*MODELS[name].fit)
    save_file({key: value.contiguous() for key, value in weights_of(model).items()}, file)


@forks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*too easy")
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_that_is_killed_anywhere_ends_with_equal_weights(
    name: str, tmp_path: Path
) -> None:
    wanted = KILLS // len(TRAINED) + (TRAINED.index(name) < KILLS % len(TRAINED))
    random = np.random.default_rng(TRAINED.index(name))
    made(name)  # so that all processes have the same checkpoints, which are written once
    start = time.monotonic()
    assert in_child(train_and_save, name, None, tmp_path / "whole") == 0
    duration = time.monotonic() - start
    expected, kills, trials = load_file(tmp_path / "whole"), 0, 0
    while kills < wanted:
        folder, file = tmp_path / str(trials), tmp_path / f"weights{trials}"
        trials += 1
        for _ in range(KILLS_OF_ONE):
            end = time.monotonic() + random.uniform(0.1, 1) * duration
            status = in_child(
                train_and_save, name, folder, file, until=lambda end=end: time.monotonic() > end
            )
            kills += status == -signal.SIGKILL
            if status == 0:
                break
            assert status == -signal.SIGKILL
        if not file.exists():
            assert in_child(train_and_save, name, folder, file) == 0
        found = load_file(file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[key]) for key, value in found.items())
        shutil.rmtree(folder)
    print(json.dumps({"training": name, "kills": kills, "ends": trials}))
