"""A question, and the encoding of passages, by this package and by what a user would take instead, in turns.

``OMP_NUM_THREADS=1 python -m experiments.questions PATH`` with the folder of MedQuAD's archive; needs ``[openvino]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pyterrier_graph as ptg
from experiments.collections.medquad import read_medquad
from pyterrier_graph.encoders.compiled import compiled
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints processor time: medians and minima over the rounds, and ratios of minima to the first program's."""
    command = argparse.ArgumentParser(prog="python -m experiments.questions", description=main.__doc__)
    command.add_argument("path", type=Path, help="the folder of MedQuAD's archive")
    command.add_argument("--passages", type=int, default=6000)
    command.add_argument("--rounds", type=int, default=15)
    options = command.parse_args(arguments)
    docs = read_medquad(options.path, passages=options.passages, verbose=False).get_corpus_iter()
    float32, auto = (SentenceEncoder(dtype=dtype, verbose=False) for dtype in ("float32", "auto"))
    ours: Any = compiled(auto)
    with tempfile.TemporaryDirectory() as folder:
        ptg.GraphIndex(f"{folder}/index", verbose=False).index(docs)
        index = ptg.GraphIndex(f"{folder}/index", verbose=False)  # opened again, it takes the converted encoder
        assert repr(type(index._encoder)) == repr(type(ours)), "this checkpoint was not converted"
        texts = index.graph.texts(index.graph.passage_nodes[:64])
        exact = float32.encode_docs(texts)
        for name, encode in {"OpenVINO": ours, "torch, auto": auto}.items():
            print(name, "least cosine to float32:", (encode.encode_docs(texts) * exact).sum(1).min())
        retriever, query = index.dense(10), "how is high blood pressure in pregnancy treated"
        vectors, weights = np.array(index._contextual._files.payload()[1]), index._contextual._weights
        encoded = index._contextual._encoded([query])

        def by_numpy() -> list[np.ndarray]:
            scores = vectors @ encoded[0]
            best = np.argpartition(-scores, 10)[:10]
            return [best[np.argsort(-scores[best])], np.sort(scores[best])[::-1]]

        assert np.allclose(retriever.search(query)["score"], by_numpy()[1], atol=1e-5)
        programs: dict[str, dict[str, Callable[[], Any]]] = {
            "a query": {
                "ours": lambda: ours.encode_queries([query]),
                "sentence-transformers": lambda: float32.network.encode([query]),
                "SentenceEncoder, float32": lambda: float32.encode_queries([query]),
            },
            "weights of a query": {"ours": lambda: weights and weights.widened(encoded[:, : exact.shape[1]])},
            f"a question, {len(vectors):,} passages": {
                "ours": lambda: retriever.search(query),
                "numpy, of a vector": by_numpy,
                "ours, hybrid and reasons": lambda: index.search(query),
            },
            f"{len(texts)} passages": {
                "ours": lambda: ours.encode_docs(texts),
                "SentenceEncoder, auto": lambda: auto.encode_docs(texts),
                "sentence-transformers": lambda: float32.network.encode(texts),
            },
        }
        rows = [row for task, each in programs.items() for row in measured(task, each, options.rounds)]
    table = pd.DataFrame(rows, columns=["task", "program", "median ms", "least ms", "ratio"])
    print(table.round(2).to_string(index=False))
    return table


def measured(task: str, programs: dict[str, Callable[[], Any]], rounds: int) -> list[tuple[Any, ...]]:
    """Milliseconds of each program, in turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):  # the first one is not counted
        for name, program in programs.items():
            start = time.process_time()
            program()
            times[name].append(1000 * (time.process_time() - start))
    least = {name: min(each[1:]) for name, each in times.items()}
    return [(task, name, np.median(times[name][1:]), least[name], least[name] / least["ours"]) for name in programs]


if __name__ == "__main__":
    main()
