"""What operators and machines do: two builds at one path, full disks, too little memory, Ctrl-C, and kills."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyterrier as pt
import pytest
import test_dual_encoder
import test_hgat_reranker
import test_lgre_reranker
import test_mining
import tiny
import torch
from safetensors.torch import load_file, save_file
from test_sharing import base, base_encoder, document_graph, hgat
from trainings import forks, stop

from pyterrier_graph import artifacts
from pyterrier_graph.artifacts import META, writing
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.encoders.vector_reuse import complete
from pyterrier_graph.folders import cache
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder
from pyterrier_graph.retrieve.gnn_training import GNNEncoderTraining
from pyterrier_graph.retrieve.graph_mean import GraphMean
from pyterrier_graph.retrieve.hybrid import Hybrid

KIND = {"type": "thing", "format": "files", "format_version": 1}
FORK = multiprocessing.get_context("fork")


def in_child(work: Callable[..., None], *given: Any, until: Callable[[], bool] | None = None) -> int | None:
    """Runs a function in another process, which is killed once something is true. Returns the exit status."""
    process = FORK.Process(target=work, args=given)
    process.start()
    while process.is_alive() and until is not None:
        if until():
            process.kill()
        time.sleep(0.005)
    process.join(600)
    return process.exitcode


def write(path: Path, wait: float = 0.0, content: bytes = b"content") -> None:
    with writing(path, dict(KIND)) as folder:
        (folder / "file").write_bytes(content)
        time.sleep(wait)


# --- several processes


def test_two_builds_at_one_path(tmp_path: Path) -> None:
    with writing(tmp_path / "a", dict(KIND)) as folder:
        (folder / "file").write_bytes(b"first")
        with pytest.raises(FileExistsError, match="another process is writing '.*a': wait until it is done"):
            write(tmp_path / "a")
        write(tmp_path / "b")  # another path
    assert (tmp_path / "a" / "file").read_bytes() == b"first"
    with pytest.raises(FileExistsError, match="exists already"):
        write(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@forks
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.flex"
    (tmp_path / ".a.flex.12345678.new").mkdir()  # without a lock: whoever's it is
    begun = lambda: any(tmp_path.glob(".a.flex.*.new/file"))  # noqa: E731
    assert in_child(write, path, 60.0, until=begun) == -signal.SIGKILL
    assert begun() and not path.exists()
    living = FORK.Process(target=write, args=(tmp_path / "b.flex", 60.0))
    living.start()
    while not any(tmp_path.glob(".b.flex.*.new/file")):
        time.sleep(0.005)
    write(path)
    with pytest.raises(FileExistsError, match="another process"):
        write(tmp_path / "b.flex")
    left = sorted(place.name.split(".")[1] for place in tmp_path.iterdir() if place != path)
    assert left == ["a", "b", "b"] and not begun()  # the folder without a lock; a folder and its lock
    living.kill()
    living.join()


@forks
def test_what_is_to_be_replaced_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the process is killed, or has an error, when the old graph has gone and the new one is not there."""
    graph = document_graph(tmp_path / "graph")
    records, rename = [*graph.get_corpus_iter(verbose=False)], Path.rename

    def failing(fail: Callable[[], Any]) -> Callable[..., Any]:
        return lambda path, target: fail() if path.suffix == ".new" else rename(path, target)

    def replace(fail: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", failing(fail))
            DocumentGraph(graph.path).index([{"docno": "a", "text": "new"}], overwrite=True, verbose=False)

    with pytest.raises(OSError, match="Input/output"):
        replace(fails(errno.EIO))
    assert [*tmp_path.iterdir()] == [graph.path]
    assert in_child(replace, lambda: os._exit(9)) == 9
    assert not graph.path.exists()
    with pytest.raises(FileExistsError, match="exists already"):
        document_graph(graph.path)
    assert [*tmp_path.iterdir()] == [graph.path]
    assert [*DocumentGraph(graph.path).get_corpus_iter(verbose=False)] == records


@forks
def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    path, count = tmp_path / "graph", 6

    def documents(generation: int) -> list[dict[str, str]]:
        return [{"docno": f"{number}", "text": f"text {generation}"} for number in range(generation + 1)]

    def work() -> None:
        for generation in range(count):
            DocumentGraph(path).index(documents(generation), overwrite=True, verbose=False)

    writer = FORK.Process(target=work)
    writer.start()
    seen = set()
    while writer.is_alive() or not seen:
        try:
            texts = [record["text"] for record in DocumentGraph(path).get_corpus_iter(verbose=False)]
        except FileNotFoundError:  # there is none yet, or for a moment
            continue
        except ValueError as error:
            assert "was replaced or removed" in str(error)  # noqa: PT017
            continue
        assert texts == [f"text {len(texts) - 1}"] * len(texts)
        seen.add(len(texts))
    writer.join()
    assert writer.exitcode == 0 and seen <= {*range(1, count + 1)}
    assert [place.name for place in tmp_path.iterdir()] == ["graph"]


def test_a_graph_that_was_replaced_is_not_mixed_with_the_new_one(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    old = DocumentGraph(graph.path)
    assert len(old) == 2
    graph.index([{"docno": "a", "text": "new"}, {"docno": "b", "text": "new"}], overwrite=True, verbose=False)
    with pytest.raises(ValueError, match="was replaced or removed after it had been opened: open it again"):
        old.texts(np.array([0]))


@pytest.mark.skipif(os.name != "posix", reason="files that are mapped cannot be deleted")
def test_a_store_that_is_deleted_while_it_is_mapped(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    store = TokenStore(tmp_path / "store").build(graph, tiny.encoder(), verbose=False)
    nodes = np.arange(graph.num_nodes)
    states, records = store.states(nodes).values, [*graph.get_corpus_iter(verbose=False)]
    for path in (graph.path, store.path):
        shutil.rmtree(path)
    assert torch.equal(store.states(nodes).values, states)
    assert [*graph.get_corpus_iter(verbose=False)] == records
    with pytest.raises(FileNotFoundError):
        len(DocumentGraph(graph.path))
    with pytest.raises((FileNotFoundError, ValueError)):  # an array that was not opened before
        graph.neighbors(nodes, "internal")


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    write(tmp_path / "x-1")
    write(tmp_path / "x-2")
    os.utime(tmp_path / "x-1" / META, (4e9, 4e9))  # in the year 2096
    assert {path.name for path in complete(tmp_path, "x-*")} == {"x-1", "x-2"}
    states = [tmp_path / "cache" / f"{number:016x}" for number in range(4)]
    for state in states:
        document_graph(state / cache.GRAPH)
    for state in states[1:]:
        os.utime(state, (4e9, 4e9))
    cache.remove_old(tmp_path / "cache", states[0])
    assert states[0].exists() and sum(state.exists() for state in states) == 2


# --- disks and memory


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = document_graph(tmp_path / "graph")
    Path(f"{graph.path}.json").write_text('{"url": "https://example.org"}')
    before = sorted(tmp_path.rglob("*"))
    open_file = os.open

    def read_only(path: Any, flags: int, *given: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            fails(errno.EROFS)()
        return open_file(path, flags, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        patch.setattr(os, "mkdir", fails(errno.EROFS))
        patch.setattr(pt.io, "finalized_open", fails(errno.EROFS))
        with pytest.raises(OSError, match="Read-only file system"):
            DocumentGraph(tmp_path / "new").index([{"docno": "a", "text": "b"}], verbose=False)
        again = DocumentGraph(graph.path)  # a download, which is verified
        assert [*again.get_corpus_iter(verbose=False)] == [*graph.get_corpus_iter(verbose=False)]
    assert sorted(tmp_path.rglob("*")) == before


@forks
@pytest.mark.parametrize("limit", [20_000, 200_000])
def test_a_file_that_may_not_grow(limit: int, tmp_path: Path) -> None:
    def work() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        random = np.random.default_rng(0)
        documents = ({"docno": f"{n}", "text": " ".join(map(str, random.random(99)))} for n in range(2000))
        try:
            DocumentGraph(tmp_path / "graph").index(documents, verbose=False)
        except OSError as error:
            os._exit(7 if error.errno == errno.EFBIG else 8)

    assert in_child(work) == 7
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("moment", ["sync", "meta_text", "file_sha256"])
def test_a_disk_that_is_full(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = document_graph(tmp_path / "graph")
    records = [*graph.get_corpus_iter(verbose=False)]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(artifacts, moment, fails(errno.ENOSPC))
        graph.index([{"docno": "a", "text": "new"}], overwrite=True, verbose=False)
    assert [*tmp_path.iterdir()] == [graph.path]
    assert [*graph.get_corpus_iter(verbose=False)] == records == [*DocumentGraph(graph.path).get_corpus_iter()]
    assert len(graph.index([{"docno": "a", "text": "new"}], overwrite=True, verbose=False)) == 1


@forks
def test_too_little_memory(tmp_path: Path) -> None:
    def work() -> None:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        try:
            DocumentGraph(tmp_path / "graph").index(
                ({"docno": f"{n}", "text": "word " * (10 << 20 if n == 3 else 1)} for n in range(9)), verbose=False
            )
        except MemoryError:
            os._exit(7)

    assert in_child(work) == 7
    assert [*tmp_path.iterdir()] == []


# --- Ctrl-C


def stopping(after: int, function: Callable[..., Any], how: Callable[[], None] = stop) -> Callable[..., Any]:
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


def check_interrupted(
    model: Any,
    method: str,
    after: int,
    work: Callable[[], Any],
    how: Callable[[], None] = stop,
    error: type[BaseException] = KeyboardInterrupt,
    message: str = "",
) -> None:
    """Interrupts work at a call of a method: weights and attributes are those of before."""
    weights, before = weights_of(model), attributes(model)
    original = getattr(model, method)
    setattr(model, method, stopping(after, original, how))
    with pytest.raises(error, match=message):
        work()
    vars(model).pop(method)
    now = weights_of(model)
    assert all(torch.equal(value, now[name]) for name, value in weights.items()) and now.keys() == weights.keys()
    assert attributes(model).keys() == before.keys()
    assert [name for name, value in before.items() if attributes(model)[name] is not value] == []
    network = getattr(model, "network", None)
    assert not (isinstance(network, torch.nn.Module) and network.training)


def gnn(**training: Any) -> GNNEncoder:
    options = GNNEncoderTraining(**{"epochs": 3, "batch_size": 1, "patience": None} | training)
    return GNNEncoder(**base(), encoder=base_encoder(), training=options, device="cpu", verbose=False)


TRAIN = (tiny.topics(2), tiny.qrels(2))
RERANKED = (test_hgat_reranker.RUN, test_hgat_reranker.QRELS) * 2
TRAININGS: dict[str, tuple[Callable[..., Any], str, Callable[[Any], Any]]] = {
    "HGAT": (
        lambda **options: test_hgat_reranker.hgat(
            encoder=test_hgat_reranker.fresh_encoder(), training={"encoder_learning_rate": 1e-3} | options
        ),
        "_scores",
        lambda model: model.fit(*RERANKED),
    ),
    "LGRe": (
        lambda **options: test_lgre_reranker.lgre(training=options),
        "transform",
        lambda model: model.fit(test_lgre_reranker.RUN, test_lgre_reranker.QRELS, *RERANKED_TEXTS),
    ),
    "dual-encoder": (
        lambda **options: test_dual_encoder.dual(training=options),
        "encode_docs",
        lambda model: model.fit_examples(
            test_dual_encoder.examples(),
            test_dual_encoder.RUN,
            test_dual_encoder.QRELS,
            pretraining_examples=test_dual_encoder.examples(0),
        ),
    ),
    "GNN-encoder": (gnn, "_vectors_of", lambda model: model.fit(*TRAIN, *TRAIN)),
}
RERANKED_TEXTS = (test_lgre_reranker.RUN, test_lgre_reranker.QRELS)


@pytest.mark.filterwarnings("ignore:.*too easy")
@pytest.mark.parametrize("name", TRAININGS)
def test_ctrl_c_in_fit(name: str) -> None:
    make, method, fit = TRAININGS[name]
    model = make()
    check_interrupted(model, method, 4 if name == "dual-encoder" else 2, lambda: fit(model))


def take_all_memory() -> None:
    """Asks torch for four times as much memory as the process may still have."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        torch.ones(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@forks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*too easy")
@pytest.mark.parametrize("name", TRAININGS)
def test_too_little_memory_in_fit(name: str) -> None:
    make, method, fit = TRAININGS[name]
    message = r"too little memory for this training.* smaller batch_size than \d+ .*allocate"

    def work() -> None:
        model = make()
        after = 4 if name == "dual-encoder" else 2
        check_interrupted(model, method, after, lambda: fit(model), take_all_memory, MemoryError, message)
        fit(model)  # the same object can be trained with enough memory
        assert model.training_log
        os._exit(7)

    TRAININGS[name][0]()  # its checkpoint is written once
    assert in_child(work) == 7


@pytest.mark.parametrize("name", TRAININGS)
def test_network_that_gets_too_little_memory(name: str) -> None:
    """At its first batch, which may be encoded before the training begins."""
    make, _, fit = TRAININGS[name]
    model = make()
    weights, before = weights_of(model), attributes(model)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: torch.empty(1 << 50))
    with hook, pytest.raises(MemoryError, match=r"too little memory (for this|to read).* smaller batch_size.*allocate"):
        fit(model)
    assert attributes(model) == before
    assert all(torch.equal(value, weights[key]) for key, value in weights_of(model).items())


def test_ctrl_c_while_a_graph_is_indexed(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    records = [*graph.get_corpus_iter(verbose=False)]

    def documents() -> Iterator[dict[str, str]]:
        yield {"docno": "a", "text": "new"}
        stop()

    for path, overwrite in ((tmp_path / "new", False), (graph.path, True)):
        with pytest.raises(KeyboardInterrupt):
            DocumentGraph(path).index(documents(), overwrite=overwrite, verbose=False)
    before = attributes(graph)
    with pytest.raises(KeyboardInterrupt):
        graph.index(documents(), overwrite=True, verbose=False)
    assert attributes(graph) == before
    assert [*tmp_path.iterdir()] == [graph.path] and [*graph.get_corpus_iter(verbose=False)] == records


def test_ctrl_c_while_tokens_are_stored_or_contextualized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, store = tiny.encoder(), TokenStore(tmp_path / "store")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoder, "encode_passages", stopping(0, encoder.encode_passages))
        store.build(tiny.graph(2), encoder, verbose=False)
    assert not store.built() and not (tmp_path / "store").exists()
    assert store.build(tiny.graph(2), encoder, verbose=False).built()
    model = hgat(tmp_path / "model", tiny.checkpoint())
    check_interrupted(model, "_in_context", 0, lambda: model.contextualize(tmp_path / "context"))
    assert not (tmp_path / "context").exists()
    model.contextualize(tmp_path / "context").verify(verbose=False)


@pytest.mark.parametrize("kind", [GraphMean, GNNEncoder])
def test_ctrl_c_in_index(kind: Any, tmp_path: Path) -> None:
    model = kind(**base(), encoder=base_encoder(), device="cpu", verbose=False)
    make = model._vectors_of
    model._vectors_of = lambda sampler: stopping(1, make(sampler))
    before = attributes(model)
    with pytest.raises(KeyboardInterrupt):
        model.index(tmp_path / "index", chunk_size=2)
    assert attributes(model) == before and not (tmp_path / "index").exists()
    del model._vectors_of
    again = model.index(tmp_path / "index", chunk_size=2).flex.payload(return_docnos=False)[0]
    whole = model.index(tmp_path / "whole", chunk_size=2).flex.payload(return_docnos=False)[0]
    np.testing.assert_array_equal(again, whole)


def test_ctrl_c_while_examples_are_mined(tmp_path: Path) -> None:
    world = test_mining.WORLD
    expected = test_mining.miner().pseudo_labeled(test_mining.TOPICS)
    teacher = test_mining.Teacher(world["scores"], patience=2)
    miner = test_mining.miner(teacher=teacher, folder=tmp_path, batch_size=8)
    before = attributes(miner)
    with pytest.raises(KeyboardInterrupt):
        miner.pseudo_labeled(test_mining.TOPICS)
    assert attributes(miner) == before and not list(tmp_path.rglob("*.arrow"))
    miner.teacher = test_mining.Teacher(world["scores"])
    assert test_mining.rows(miner.pseudo_labeled(test_mining.TOPICS)) == test_mining.rows(expected)


def test_ctrl_c_in_a_grid_search() -> None:
    """Before numbers are tried; later the best so far are kept, with a warning, as tests of the search have it."""
    run = tiny.run(3)
    other = pt.Transformer.from_df(run.drop(columns="query").assign(score=range(len(run), 0, -1)))
    hybrid = Hybrid(pt.Transformer.from_df(run.drop(columns="query")), other, verbose=False)
    before = attributes(hybrid)
    stopped = mock.patch.object(hybrid, "_parts", stopping(0, hybrid._parts))
    with stopped, pytest.raises(KeyboardInterrupt):
        hybrid.fit(tiny.topics(3), tiny.qrels(3))
    assert attributes(hybrid) == before
    model = GraphMaxSim(tiny.graph(3), tiny.encoder(), {"structural": 0.3}, device="cpu", verbose=False)
    before = attributes(model)
    stopped = mock.patch.object(tiny.encoder(), "encode_queries", stopping(0, tiny.encoder().encode_queries))
    with stopped, pytest.raises(KeyboardInterrupt):
        model.fit(run, tiny.qrels(3))
    assert attributes(model) == before


SIGNALLED = """
import signal, sys
from pyterrier_graph.graphs import DocumentGraph
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def documents():
    for number in range(10 ** 4):
        if number == 50:
            signal.raise_signal(signal.SIGINT)
        yield {"docno": str(number), "text": "text"}
DocumentGraph(sys.argv[1]).index(documents(), verbose=False)
"""


def test_a_real_signal(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED, str(tmp_path / "graph")], capture_output=True, text=True)
    assert done.returncode and "KeyboardInterrupt" in done.stderr
    assert [*tmp_path.iterdir()] == []


# --- kills

KILLS = int(os.environ.get("PYTERRIER_GRAPH_KILLS", "8"))  # over the four trainings
KILLS_OF_ONE = 3  # at most, of one training, before it is let go on to its end


def train_and_save(name: str, folder: Path | None, file: Path) -> None:
    make, _, fit = TRAININGS[name]
    model = make(epochs=4, evaluations=2, patience=None, output_dir=None if folder is None else str(folder))
    fit(model)
    save_file({key: value.contiguous() for key, value in weights_of(model).items()}, file)


@forks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*too easy")
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_is_killed_anywhere_ends_with_equal_weights(name: str, tmp_path: Path) -> None:
    wanted = KILLS // 4 + ([*TRAININGS].index(name) < KILLS % 4)
    random = np.random.default_rng([*TRAININGS].index(name))
    TRAININGS[name][0]()  # so that all processes have the same checkpoints, which are written once
    start = time.monotonic()
    assert in_child(train_and_save, name, None, tmp_path / "whole") == 0
    duration = time.monotonic() - start
    expected, kills, trials = load_file(tmp_path / "whole"), 0, 0
    while kills < wanted:
        folder, file = tmp_path / str(trials), tmp_path / f"weights{trials}"
        trials += 1
        for _ in range(KILLS_OF_ONE):
            end = time.monotonic() + random.uniform(0.1, 1) * duration
            status = in_child(train_and_save, name, folder, file, until=lambda end=end: time.monotonic() > end)
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
