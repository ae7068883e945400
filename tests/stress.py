"""GraphIndex under stress: kills, failing writes, readers and other writers during changes, flipped bits.

``python -W ignore tests/stress.py kills 500 disk 50`` runs so many rounds of each; ``STRESSES`` has the other names.
Each prints its counts, and fails at the first index that is damaged, or that is neither the former version nor the new
one. A process is forked for each change, so that none imports PyTorch again; the first process itself opens no table,
except for ``flips``, which comes last. Indexes of nine passages have codes for approximate search.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.forkserver import _forkserver as server
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Lock
from typing import Any

import lancedb  # noqa: F401  # once for all processes
import numpy as np
import pandas as pd
import pyterrier_dr  # noqa: F401
import torch
from joblib.externals.loky.backend import context, resource_tracker
from pyterrier_graph.storage.writer import Workers
from s3 import Server
from tiny import WORDS, checkpoint
from trainings import FORK

import pyterrier_graph as ptg
from pyterrier_graph.encoders import stored_vectors
from pyterrier_graph.graph_mean import codes, contextual_index
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.search import changes
from pyterrier_graph.storage.artifact import META

TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["alpha mu", "kappa iota"]})
Documents = dict[str, dict[str, str]]
Change = tuple[str, Documents | list[str]]
STARTING = Lock()  # filelock refuses a fork while another thread forks
gc.freeze()  # loky collects garbage after the first call of a worker


def opened(path: Path | str) -> ptg.GraphIndex:
    return ptg.GraphIndex(path, encoder=checkpoint(), verbose=False)


def texts_of(docs: Documents | ptg.GraphIndex) -> dict[str, str]:
    """The texts of passages by their ids."""
    records = (
        [ptg.read_record(doc, passage_words=4) for doc in docs.values()]
        if isinstance(docs, dict)
        else []
    )
    graph = MemoryGraph.from_documents(records) if isinstance(docs, dict) else docs.graph
    return dict(
        zip(graph.ids_of(graph.passage_nodes), graph.texts(graph.passage_nodes), strict=True)
    )


def drawn(draw: random.Random, before: Documents | None) -> tuple[Change, Documents]:
    """A random change of some documents, and the documents after it."""
    docnos = draw.sample([f"d{number}" for number in range(9)], draw.randint(1, 5))
    new = {
        d: {"docno": d, "title": draw.choice(WORDS), "text": " ".join(draw.choices(WORDS, k=9))}
        for d in docnos
    }
    if before is None:
        return ("index", new), new
    kind = draw.choice(["update", "update", "delete", "overwrite"])
    if kind == "delete" and (
        gone := [docno for docno in docnos if docno in before][: len(before) - 1]
    ):
        return (kind, gone), {docno: doc for docno, doc in before.items() if docno not in gone}
    return ("overwrite", new) if kind == "overwrite" else (
        "update",
        new,
    ), new if kind == "overwrite" else before | new


def change(path: Path | str, about: Change, workers: Workers = 1) -> bool:
    """Changes an index; True when it is done."""
    kind, docs = about
    index = opened(path)
    if kind == "delete":
        index.delete(docs)
    elif kind == "update" or not isinstance(docs, dict):
        index.update([*docs.values()], workers=workers)  # type: ignore[union-attr]
    else:
        index.index(
            [*docs.values()], passage_words=4, overwrite=kind == "overwrite", workers=workers
        )
    return True


def check(path: Path | str, allowed: list[Documents | None], fresh: bool = True) -> int:
    """Verifies an index; returns which of the allowed documents it has. Compares with a new index of these."""
    index = ptg.GraphIndex(path, verbose=False)
    if not (index.path / META).is_file():
        return allowed.index(None)
    index.verify()
    found = [docs is not None and texts_of(index) == texts_of(docs) for docs in allowed].index(True)
    if fresh:
        with tempfile.TemporaryDirectory() as folder:
            other = opened(Path(folder, "fresh")).index(
                [*(allowed[found] or {}).values()], passage_words=4
            )
            for name in ("bm25", "dense", "hybrid"):
                one, two = (
                    getattr(i, name)()(TOPICS).set_index(["qid", "docno"]).sort_index()
                    for i in (index, other)
                )
                pd.testing.assert_frame_equal(
                    one[["score", "text"]], two[["score", "text"]], atol=1e-4, obj=name
                )
    return found


def forked(
    work: Callable[[], Any], kill_after: float | None = None, phase: int = 0
) -> tuple[Any, list[float]]:
    """The result of a function in another process; None if it was killed. Raises its error.

    Also the seconds of the three phases of a change: until it begins to commit, the commit, and what is done after it.
    The seconds to the kill count from the start of a phase.
    """
    ours, theirs = FORK.Pipe(duplex=False)

    def commit(index: ptg.GraphIndex, *given: Any, put: Any = changes.commit) -> None:
        theirs.send(None)
        put(index, *given)
        theirs.send(None)

    def run() -> None:
        changes.commit = commit  # type: ignore[assignment]
        try:
            theirs.send((work(), None))
        except BaseException as error:
            theirs.send((None, f"{type(error).__name__}: {error}"))

    process, start = FORK.Process(target=run), time.monotonic()
    with STARTING:
        process.start()
    theirs.close()
    times, said = [start], None
    with suppress(EOFError):
        while said is None:
            due = (
                times[phase] + kill_after if kill_after is not None and len(times) > phase else None
            )
            if due is not None and not ours.poll(max(0, due - time.monotonic())):
                process.kill()
            said = ours.recv()
            times.append(time.monotonic())
    process.join()
    result, error = said or (None, None)
    if error:
        raise RuntimeError(error)
    return result, [*np.diff(times)]


def kills(
    rounds: int, folder: Path, draw: random.Random, url: str = "", workers: Workers = 1
) -> Counter[str]:
    """Kills changes at random moments: the index is the former one or the new one, and can be changed again."""
    now, seconds, counts = None, [1.0, 1.0, 1.0], Counter[str]()
    forked(
        partial(change, f"{url}/first" if url else folder / "first", drawn(draw, None)[0], workers)
    )  # workers start
    for number in range(rounds):
        path = f"{url}/{number // 12}" if url else folder / str(number // 12)
        os.environ["PYTERRIER_HOME"] = str(
            folder / draw.choice("ab")
        )  # one of two machines that share an object store
        now = now if number % 12 else None
        about, after = drawn(draw, now)
        phase = draw.randrange(3)
        kill_after = draw.uniform(0, seconds[phase]) if number % 6 else None
        done, times = forked(partial(change, path, about, workers), kill_after, phase)
        seconds = seconds if number % 6 else times
        found = forked(partial(check, path, [now, after], fresh=rounds < 100 or number % 5 == 0))[0]
        assert found == 1 or done is None
        ended = "ended first" if number % 6 else "undisturbed"
        counts[f"{about[0]}: {ended if done else 'killed, new' if found else 'killed, old'}"] += 1
        now = after if found else now
        if number % 50 == 49:  # a run that is stopped has told how far it came
            print(number + 1, json.dumps(counts), flush=True)
    return counts


def processes(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """The same with two processes that encode: forks of a server, since a fork of a change would keep its lock."""
    context.set_start_method("forkserver")
    server.set_forkserver_preload(["sentence_transformers", "stress"])
    server.ensure_running()
    server.ensure_running = lambda: (
        None
    )  # the processes of changes are not those that have started it
    resource_tracker.ensure_running()
    return kills(rounds, folder, draw, workers=2)


def cluster() -> str:
    """Starts a Ray cluster, which ends with this process; returns its address."""
    from ray.cluster_utils import Cluster

    return (
        globals()
        .setdefault("held", Cluster(initialize_head=True, head_node_args={"num_cpus": 1}))
        .address
    )


def ray(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """The same on a Ray cluster, which another process holds."""
    with FORK.Pool(1) as pool:
        os.environ["RAY_ADDRESS"] = pool.apply(cluster)
        return kills(rounds, folder, draw, workers="ray")


def store(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """The same in an object store, of which one request in ten fails."""
    os.environ |= Server().environment
    return kills(rounds, folder, draw, "s3://bucket")


def disk(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """No file may exceed a random size: a change fails, and has no effect."""
    path, now, counts = folder / "index", None, Counter[str]()

    def limited(about: Change, size: int) -> None:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        change(path, about)

    for number in range(rounds):
        about, after = drawn(draw, now)
        try:
            forked(partial(limited, about, int(10 ** draw.uniform(1, 5.5))))
            said = "done"
        except RuntimeError as error:
            said = str(error)[:190]
        found = forked(partial(check, path, [now, after], fresh=number % 5 == 0))[0]
        assert (found == 1) == (said == "done"), said
        counts[said] += 1
        now = after if found else now
    return counts


def answer(index: ptg.GraphIndex) -> tuple[int, str]:
    """The version of an index, and a digest of what a search finds."""
    found = index.search("alpha mu", 20)
    return index.meta["number"], hashlib.sha256(
        found.to_csv(float_format="%.4f").encode()
    ).hexdigest()


def readers(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """One process searches while another one changes the index: each answer is that of one version."""
    path, end = folder / "index", folder / "end"
    first = drawn(draw, None)
    forked(lambda: change(path, first[0]))

    def write() -> dict[int, str]:
        now, answers = first[1], dict([answer(opened(path))])
        while not end.exists():
            about, now = drawn(draw, now)
            change(path, about)
            answers |= dict([answer(opened(path))])
        return answers

    def read() -> list[tuple[int, str]]:
        found, index = [], opened(path)
        for number in range(rounds):
            if (
                number % 40 < 30
            ):  # ten searches of each block are by one object, which stays at its version
                index = opened(path)
            try:
                found.append(answer(index))
            except (
                FileNotFoundError,
                ValueError,
            ) as error:  # after two changes, files of its version are gone
                assert "open it again" in str(error), error
                index = opened(path)
        end.touch()
        return found

    with ThreadPool(2) as pool:
        writing, reading = pool.apply_async(forked, (write,)), pool.apply_async(forked, (read,))
        try:
            found = reading.get()[0]
        finally:
            end.touch()
        answers = writing.get()[0]
    wrong = [number for number, digest in found if answers[number] != digest]
    assert not wrong, wrong
    again = rounds - len(found)
    return Counter(
        {
            "searches": rounds,
            "versions written": len(answers),
            "seen": len(dict(found)),
            "too late": again,
        }
    )


def writers(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """Two processes change an index: each change counts once, and the second one is told to wait."""
    path = folder / "index"
    forked(lambda: change(path, drawn(draw, None)[0]))

    def write(name: str) -> int:
        refused, index = 0, opened(path)
        for number in range(rounds):
            while True:
                try:
                    index.update(
                        [{"docno": f"{name}{number}", "title": "mu", "text": "alpha beta"}]
                    )
                    break
                except BlockingIOError:
                    refused += 1
                    time.sleep(0.05)
        return refused

    with ThreadPool(2) as pool:
        refused = sum(
            result for result, _ in pool.map(forked, [lambda: write("a"), lambda: write("b")])
        )
    index = forked(lambda: texts_of(opened(path).verify()))[0]
    assert all(f"{name}{number}%p0" in index for name in "ab" for number in range(rounds))
    return Counter({"changes": 2 * rounds, "told to wait": refused})


def flips(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """Flips single bits of any files of an index: verify() finds each."""
    path = folder / "index"
    for kind in "index", "update", "update":
        change(path, (kind, drawn(draw, None)[1]))
    files = sorted({META, *json.loads((path / META).read_text())["files"]})
    files = [name for name in files if (path / name).stat().st_size]
    for _ in range(rounds):
        file = path / draw.choice(files)
        content = file.read_bytes()
        place = draw.randrange(len(content))
        file.write_bytes(
            content[:place]
            + bytes([content[place] ^ 1 << draw.randrange(8)])
            + content[place + 1 :]
        )
        try:
            ptg.GraphIndex(path, verbose=False).verify()
        except ValueError as error:
            assert "damaged" in str(error) or "is needed" in str(error), error
        else:
            raise AssertionError(f"{file}: byte {place}")
        file.write_bytes(content)
    ptg.GraphIndex(path, verbose=False).verify()
    return Counter({"flips": rounds, "files": len(files)})


STRESSES = {
    work.__name__: work for work in (kills, processes, ray, store, disk, readers, writers, flips)
}


def main(*given: str) -> None:
    """Runs parts one after another: names and rounds in turn."""
    warnings.simplefilter("ignore")
    os.environ |= {
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork, which makes encoding slow
    contextual_index.LARGE, codes.SAMPLED, stored_vectors.PASSAGES_AT_ONCE = 9, 624, 2
    checkpoint()
    for name, rounds in zip(given[::2], map(int, given[1::2]), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            print(
                name, json.dumps(STRESSES[name](rounds, Path(folder), random.Random(0))), flush=True
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
