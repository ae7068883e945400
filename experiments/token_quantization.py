"""What quantized token vectors lose: MaxSim and GraphMaxSim on stores in few bits per dimension, beside float16.

``python -m experiments.token_quantization numpydoc-numpy --output OUTPUT``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from ir_measures import nDCG

import pyterrier_graph as ptg
from experiments.harness.collection import Collection
from experiments.harness.command import parse, parser
from experiments.harness.cost import fastest
from experiments.harness.first_stage import bm25
from pyterrier_graph.encoders.quantization import VectorQuantizer
from pyterrier_graph.encoders.token_states import TokenStates

MEASURE = nDCG @ 10
ABOUT = ("encoder", "encoder_sha256", "titles", "graph_sha256", "dtype")
SYSTEMS: dict[str, dict[str, float] | None] = {"MaxSim": {}, "GraphMaxSim": None}
SAMPLE = 8192
TIMED = 20_000  # vectors that are decoded to take the time
Reconstruct = Callable[[np.ndarray], np.ndarray]


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, SYSTEMS, [*SYSTEMS])
    command.add_argument("--documents", type=int, default=20, help="documents whose passages are reranked")
    command.add_argument("--dimension", type=int, help="dimensions to which token vectors are cut (all)")
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints a row per form of the vectors: bytes, similarity with the encoder's own vectors, and measures."""
    collection, options = parse(command_line(), {"medquad": {"passages": 2000}}, arguments)
    return run(collection, options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the forms.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.
    """
    graph = collection.graph(options.output / "graph")
    encoder = ptg.TokenEncoder(options.encoder)
    if options.dimension:
        encoder = encoder.reduced(graph.texts(graph.passage_nodes[:1000]), options.dimension)
    own = ptg.TokenStore(options.output / f"tokens-{encoder.dimension}")
    if not own.built():
        own.build(graph, encoder)
    queries = collection.split(dev_queries=0)["test"].sample(options.queries)
    first = bm25(collection, options.output / "pisa", options.first_stage) % options.documents
    candidates = (first >> graph.passages())(queries.topics)
    vectors = own.states(np.arange(graph.num_nodes)).values.numpy()
    sample = np.random.default_rng(0).choice(vectors, min(SAMPLE, len(vectors)), replace=False)
    rows, per_query = {}, {}
    for name, (size, encode, decode) in forms(sample).items():
        codes = encode(vectors)
        again = decode(codes)
        timed = fastest(lambda decode=decode, codes=codes: decode(codes[:TIMED]), 5)  # type: ignore[misc]
        cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(vectors), torch.from_numpy(again))
        row = {"bytes": size, "cosine": float(cosine.mean()), "us to decode": 1e6 * timed / min(TIMED, len(codes))}
        store = own
        if name != "float16":
            folder = options.output / f"{own.path.name}-{name}"
            store = ptg.TokenStore(folder)
            if not store.built():
                chunks = partial(states_of, again, own._offsets)
                about = {key: own.meta[key] for key in ABOUT if key in own.meta}
                store.write(chunks, graph.num_nodes, encoder.dimension, about, verbose=False)
        for system in options.systems:
            model = ptg.GraphMaxSim(graph, encoder, SYSTEMS[system], tokens=store, verbose=False)
            found = MEASURE.iter_calc(
                queries.qrels.rename(columns={"qid": "query_id", "docno": "doc_id", "label": "relevance"}),
                pd.DataFrame(model(candidates)).rename(columns={"qid": "query_id", "docno": "doc_id"}),
            )
            measured = pd.Series({metric.query_id: metric.value for metric in found})
            per_query[name, system] = measured
            difference = measured - per_query["float16", system]
            row |= {system: measured.mean(), f"{system}: difference": difference.mean()}
        rows[name] = row
        print(name, row, flush=True)
    table = pd.DataFrame(rows).T
    print(f"{collection.name}: {len(queries.topics)} queries, {graph.num_nodes} nodes, {len(vectors)} vectors")
    print(table.round(4).to_string())
    return table


def forms(sample: np.ndarray) -> dict[str, Any]:
    """By name the bytes of a vector, and the functions to its code and back."""
    import faiss

    dimension = sample.shape[1]
    made: dict[str, Any] = {"float16": (2 * dimension, lambda v: v.astype(np.float16), lambda c: c.astype(np.float32))}  # noqa: E501
    for bits in (4, 2, 1):
        quantizer = VectorQuantizer.fit(sample, bits)
        made[f"product, {bits} bits"] = quantizer.width, quantizer.encode, lambda c, q=quantizer: q.decode(c).numpy()
    scalar = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_4bit)
    scalar.train(sample)
    made["scalar, 4 bits"] = scalar.sa_code_size(), scalar.sa_encode, scalar.sa_decode
    return made


def states_of(vectors: np.ndarray, offsets: np.ndarray, nodes: np.ndarray) -> tuple[TokenStates, None]:
    """Vectors of some nodes that follow one another."""
    bounds = offsets[nodes[0] : nodes[-1] + 2]
    return TokenStates(torch.from_numpy(vectors[bounds[0] : bounds[-1]]), torch.from_numpy(bounds - bounds[0])), None


if __name__ == "__main__":
    main()
