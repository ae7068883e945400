"""Encoding by all encoders of this package and by what a user would take instead, and the hours that follow.

``OMP_NUM_THREADS=1 python -m experiments.rates``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from pyterrier_dr import SBertBiEncoder
from pyterrier_graph.encoders.compiled import compiled

import pyterrier_graph as ptg
from experiments import scale
from experiments.gpu_check import texts_of
from experiments.harness.cost import Programs, compare
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
CORES = 2
DTYPES: tuple[DType, ...] = ("float32", "auto")
WITHOUT_TORCH, TIMES = "GraphIndex (OpenVINO)", {"": 2, ", titled=1": 1}


def main(arguments: Sequence[str] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prints milliseconds for a passage of 60 words, and the hours that follow for collections on two cores.

    A GraphIndex encodes each passage with and without its titles; with titled=1 only with them. Everything else that it
    does is measured by the step ``GraphIndex`` of ``experiments.scale``, and takes one core. ``auto`` is bfloat16 where
    the processor has it.
    """
    command = argparse.ArgumentParser(prog="python -m experiments.rates", description=main.__doc__)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    command.add_argument("--encoded", type=int, default=96, help="passages that are encoded")
    command.add_argument("--indexed", type=int, default=20_000, help="passages of an index")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="of collections, for the hours"
    )
    options = command.parse_args(arguments)
    texts, checkpoint = texts_of(options.encoded), resolve(options.encoder)
    peer = SBertBiEncoder(checkpoint, batch_size=32, verbose=False)
    vectors: dict[str, Any] = {"pyterrier_dr's SBertBiEncoder": peer.encode_docs}
    vectors["sentence-transformers"] = partial(peer.model.encode, batch_size=32)
    vectors |= {
        f"DualEncoder, {d}": ptg.DualEncoder(checkpoint, dtype=d, verbose=False).encode_docs
        for d in DTYPES
    }
    vectors[WITHOUT_TORCH] = compiled(SentenceEncoder(checkpoint, verbose=False)).encode_docs
    tokens: dict[str, Any] = {
        d: ptg.TokenEncoder(checkpoint, dtype=d).encode_passages for d in DTYPES
    }
    first, *_, last = (encode(texts) for encode in vectors.values())
    print(f"least cosine of {WITHOUT_TORCH} to {[*vectors][0]}: {(first * last).sum(1).min():.5f}")
    tasks: dict[str, Programs] = {
        "vectors": {name: partial(encode, texts) for name, encode in vectors.items()},
        "token vectors": {
            f"TokenEncoder, {name}": partial(encode, texts) for name, encode in tokens.items()
        },
    }
    table = compare(tasks, options.rounds, len(texts))
    with TemporaryDirectory() as folder:
        _, rest, *_ = scale.run(scale.GRAPH_INDEX, options.indexed, Path(folder))
    print(f"\neverything else in a GraphIndex: {rest:.0f} us a passage, of {options.indexed:,}")
    encoding = table["ms"].droplevel("task")
    each = {name: ms / CORES for name, ms in encoding.items()}
    each |= {
        f"GraphIndex{once}": n * encoding[WITHOUT_TORCH] / CORES + rest / 1000
        for once, n in TIMES.items()
    }
    hours = pd.DataFrame(
        {f"{size:,}": pd.Series(each) * size / 3_600_000 for size in options.sizes}
    )
    print(f"\nhours on {CORES} cores:", hours.round(4).to_string(), sep="\n")
    return table, hours


if __name__ == "__main__":
    main()
