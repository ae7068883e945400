"""GraphIndex under stress: killed changes, and readers during changes.

``python -W ignore tests/stress.py kills 500 readers 500`` runs this many rounds of each. Each prints its counts, and
fails at the first index that is damaged, or that is neither the former version nor the new one. A process is forked
for each change, so that none imports PyTorch again. Indexes of nine passages have codes for approximate search.
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
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
import pyterrier_dr  # noqa: F401  # once for all processes
import torch
from tiny import WORDS, checkpoint
from trainings import FORK

import pyterrier_graph as ptg
from pyterrier_graph.encoders import stored_vectors
from pyterrier_graph.graph_mean import contextual_index, nearest
from pyterrier_graph.graphs.memory_graph import MemoryGraph

TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["alpha mu", "kappa iota"]})
Documents = dict[str, dict[str, str]]
Change = tuple[str, Documents | list[str]]
STARTING = Lock()  # filelock refuses a fork while another thread forks
gc.freeze()


def opened(path: Path) -> ptg.GraphIndex:
    return ptg.GraphIndex(path, encoder=checkpoint(), verbose=False)


def texts_in(graph: Any) -> dict[str, str]:
    """The texts of passages by their ids."""
    nodes = graph.passage_nodes
    return dict(zip(graph.ids_of(nodes), graph.texts(nodes), strict=True))


def texts_of(docs: Documents) -> dict[str, str]:
    records = [ptg.read_record(doc, passage_words=4) for doc in docs.values()]
    return texts_in(MemoryGraph(records))


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
    gone = [docno for docno in docnos if docno in before][: len(before) - 1]
    if kind == "delete" and gone:
        return (kind, gone), {docno: doc for docno, doc in before.items() if docno not in gone}
    if kind == "overwrite":
        return (kind, new), new
    return ("update", new), before | new


def change(path: Path, about: Change) -> bool:
    """Changes an index; True when it is done."""
    kind, docs = about
    index = opened(path)
    if not isinstance(docs, dict):
        index.delete(docs)
    elif kind == "update":
        index.update([*docs.values()])
    else:
        index.index([*docs.values()], passage_words=4, overwrite=kind == "overwrite")
    return True


def check(path: Path, allowed: list[Documents | None]) -> int:
    """Verifies and searches an index; returns which of the allowed documents it has."""
    index = opened(path)
    if not index.built():
        return allowed.index(None)
    index.verify().hybrid()(TOPICS)
    texts = texts_in(index.graph)
    return [docs is not None and texts == texts_of(docs) for docs in allowed].index(True)


def forked(work: Callable[[], Any], kill_after: float | None = None) -> Any:
    """The result of a function in another process; None if it was killed. Raises its error."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send((work(), None))
        except BaseException as error:
            theirs.send((None, f"{type(error).__name__}: {error}"))

    process = FORK.Process(target=run)
    with STARTING:
        process.start()
    theirs.close()
    if kill_after is not None and not ours.poll(kill_after):
        process.kill()
    result = error = None
    with suppress(EOFError):
        result, error = ours.recv()
    process.join()
    if error:
        raise RuntimeError(error)
    return result


def kills(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """Kills changes at random moments: the index is the former one or the new one, and can be changed again."""
    now, seconds, counts = None, 1.0, Counter[str]()
    for number in range(rounds):
        now = now if number % 12 else None
        path = folder / str(number // 12)
        about, after = drawn(draw, now)
        undisturbed, start = number % 6 == 0, time.monotonic()
        kill_after = None if undisturbed else draw.uniform(0, 1.1 * seconds)
        done = forked(partial(change, path, about), kill_after)
        seconds = time.monotonic() - start if done else seconds
        version = forked(partial(check, path, [now, after]))
        assert version == 1 or done is None
        counts[
            f"{about[0]}: {'done' if done else 'killed, new' if version else 'killed, old'}"
        ] += 1
        now = after if version else now
    return counts


def answer(index: ptg.GraphIndex) -> str:
    """A digest of the texts of an index, and of what a search finds."""
    results = index.search("alpha mu", 20).to_csv(float_format="%.4f")
    return hashlib.sha256(f"{texts_in(index.graph)}{results}".encode()).hexdigest()


def readers(rounds: int, folder: Path, draw: random.Random) -> Counter[str]:
    """One process searches while another one changes the index: each answer is of one version."""
    path, end = folder / "index", folder / "end"
    first = drawn(draw, None)
    forked(lambda: change(path, first[0]))

    def write() -> set[str]:
        now, answers = first[1], {answer(opened(path))}
        while not end.exists():
            about, now = drawn(draw, now)
            change(path, about)
            answers.add(answer(opened(path)))
        return answers

    def read() -> list[str]:
        answers, index = [], opened(path)
        for number in range(rounds):
            if number % 40 < 30:  # ten searches of each block use one object, at one version
                index = opened(path)
            try:
                answers.append(answer(index))
            except (FileNotFoundError, ValueError) as error:  # its version was removed
                assert "open it again" in str(error), error
                index = opened(path)
        end.touch()
        return answers

    with ThreadPool(2) as pool:
        writing, reading = pool.apply_async(forked, (write,)), pool.apply_async(forked, (read,))
        try:
            seen = reading.get()
        finally:
            end.touch()
        written = writing.get()
    assert {*seen} <= written
    counts = {"searches": rounds, "versions written": len(written), "seen": len({*seen})}
    return Counter(counts | {"too late": rounds - len(seen)})


STRESSES = {work.__name__: work for work in (kills, readers)}


def main(*given: str) -> None:
    """Runs parts one after another: names and rounds in turn."""
    warnings.simplefilter("ignore")
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork, which makes encoding slow
    contextual_index.LARGE, nearest.SAMPLE_PER_LIST, stored_vectors.TEXTS_PER_SHARD = 9, 624, 2
    checkpoint()
    for name, rounds in zip(given[::2], map(int, given[1::2]), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            counts = STRESSES[name](rounds, Path(folder), random.Random(0))
            print(name, json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
