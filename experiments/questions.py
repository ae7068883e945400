"""A question by this package and by what a user would take instead, in turns.

``OMP_NUM_THREADS=1 python -m experiments.questions PATH`` with the folder of MedQuAD's archive; needs ``[openvino]``
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from pyterrier_dr import FlexIndex, SBertBiEncoder

import pyterrier_graph as ptg
from experiments.collections.medquad import read_medquad
from experiments.harness.cost import Programs, compare
from pyterrier_graph.encoders.compiled import CompiledEncoder, compiled
from pyterrier_graph.encoders.names import DEFAULT, resolve
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

QUESTION = "how is high blood pressure in pregnancy treated"


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints processor time, and ratios to what a user would take instead: the first program of each task."""
    command = argparse.ArgumentParser(
        prog="python -m experiments.questions", description=main.__doc__
    )
    command.add_argument("path", type=Path, help="the folder of MedQuAD's archive")
    command.add_argument("--passages", type=int, default=6000)
    command.add_argument("--rounds", type=int, default=20)
    options = command.parse_args(arguments)
    docs = read_medquad(options.path, passages=options.passages, verbose=False).get_corpus_iter()
    torch, peer = (
        SentenceEncoder(dtype="float32", verbose=False),
        SBertBiEncoder(resolve(DEFAULT), verbose=False),
    )
    ours = compiled(SentenceEncoder(verbose=False))
    with tempfile.TemporaryDirectory() as folder:
        ptg.GraphIndex(f"{folder}/index", verbose=False).index(docs)
        index = ptg.GraphIndex(
            f"{folder}/index", verbose=False
        )  # opened again, it takes the converted encoder
        assert isinstance(index.loaded_encoder, CompiledEncoder), (
            "this checkpoint was not converted"
        )
        contextual, (_, vectors, _) = index.contextual, index.contextual.flex.payload()
        encoded = contextual.encoder.encode_queries([QUESTION])
        dimension = len(query := ours.encode_queries([QUESTION])[0])
        print(
            "largest difference from float32:",
            np.abs(torch.encode_queries([QUESTION])[0] - query).max(),
        )
        plain = FlexIndex(f"{folder}/plain.flex", verbose=False)
        plain.index(
            {"docno": f"{n}", "doc_vec": np.array(row[:dimension])} for n, row in enumerate(vectors)
        )

        def by_numpy() -> np.ndarray:
            scores = np.asarray(vectors) @ encoded[0]
            best = np.argpartition(-scores, 10)[:10]
            return np.sort(scores[best])[::-1]

        assert np.allclose(index.dense(10).search(QUESTION)["score"], by_numpy(), atol=1e-5)
        tasks: dict[str, Programs] = {
            "encode": {
                "sentence-transformers": partial(torch.network.encode, [QUESTION]),
                "SentenceEncoder, torch": partial(torch.encode_queries, [QUESTION]),
                "ours (OpenVINO)": partial(ours.encode_queries, [QUESTION]),
            },
            f"find in {len(vectors):,} passages": {
                "numpy: a product, and the best ten": by_numpy,
                "ours: the best ten": lambda: contextual.search(encoded, 10),
            },
            "a question": {
                "pyterrier_dr: SBertBiEncoder >> FlexIndex": partial(
                    (peer.query_encoder() >> plain.np_retriever(num_results=10)).search, QUESTION
                ),
                "ours: encoding and finding, of arrays": lambda: contextual.search(
                    contextual.encoder.encode_queries([QUESTION]), 10
                ),
                "index.dense(10)": partial(index.dense(10).search, QUESTION),
                "index.bm25(10)": partial(index.bm25(10).search, QUESTION),
                "index.hybrid(10)": partial(index.hybrid(10).search, QUESTION),
                "index.search, with reasons": partial(index.search, QUESTION),
            },
        }
        return compare(tasks, options.rounds)


if __name__ == "__main__":
    main()
