"""Reranking of passages by token vectors: MaxSim, GraphMaxSim, HGAT and PyLate, in turns.

``OMP_NUM_THREADS=1 python -m experiments.reranking PATH`` with the folder of MedQuAD's archive. PyLate is used where it
can be imported, as after ``pip install --no-deps pylate==1.6.0``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pyterrier_graph as ptg
from experiments.collections.medquad import read_medquad
from experiments.harness.cost import Programs, compare

try:
    from pylate.rank import rerank  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    rerank = None
PYLATE, ENCODING, OF_AIM = (
    "PyLate's rank.rerank, of vectors",
    "encoding of the queries",
    "of the aim",
)


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints processor time of a query; the scores of MaxSim are those of PyLate.

    Candidates are drawn at random for each query. The models get stored token vectors, of passages that are cut at
    ``--tokens``, and encode the queries; PyLate gets the vectors of both. The last column is the share of an aim: twice
    PyLate's time and the encoding.
    """
    command = argparse.ArgumentParser(
        prog="python -m experiments.reranking", description=main.__doc__
    )
    command.add_argument("path", type=Path, help="the folder of MedQuAD's archive")
    command.add_argument("--passages", type=int, default=500)
    command.add_argument("--candidates", type=int, default=100)
    command.add_argument("--queries", type=int, default=20)
    command.add_argument(
        "--tokens", type=int, nargs="+", default=[32, 180], help="of a passage, at most"
    )
    command.add_argument("--dimension", type=int, default=128, help="of a token vector")
    command.add_argument("--rounds", type=int, default=15)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options = command.parse_args(arguments)
    if rerank is None:
        print(
            "PyLate cannot be imported, so nothing is compared with it: pip install --no-deps pylate==1.6.0"
        )
    collection = read_medquad(options.path, passages=options.passages, verbose=False)
    topics = collection.all_queries.topics.head(options.queries)
    tasks: dict[str, Programs] = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = ptg.DocumentGraph(f"{folder}/graph", verbose=False).index(
            collection.get_corpus_iter()
        )
        for tokens in options.tokens:
            tasks |= programs(graph, topics, tokens, options, Path(folder, f"{tokens}"))
        queries = {task: len(topics) if " at once" in task else 1 for task in tasks}
        table = compare(tasks, options.rounds, queries)
    if rerank is not None:
        ms = table["ms"].unstack()
        aim = 2 * ms[PYLATE] + ms[ENCODING]
        table[OF_AIM] = table["ms"] / aim.reindex(table.index, level="task")
        print(table[OF_AIM].round(2).to_string())
    return table


def programs(
    graph: ptg.DocumentGraph,
    topics: pd.DataFrame,
    tokens: int,
    options: argparse.Namespace,
    folder: Path,
) -> dict[str, Programs]:
    """Programs that rerank the candidates of all queries, and of one query, by token vectors of one length."""
    whole = ptg.TokenEncoder(options.encoder, max_passage_tokens=tokens)
    encoder = whole.reduced(graph.texts(graph.passage_nodes[:200]), options.dimension)
    store = ptg.TokenStore(folder, verbose=False).build(graph, encoder)
    models: dict[str, Any] = {
        "MaxSim": ptg.GraphMaxSim(graph, encoder, {}, tokens=store, verbose=False),
        "GraphMaxSim": ptg.GraphMaxSim(graph, encoder, tokens=store, verbose=False),
        "HGAT, contextualized": (
            hgat := ptg.HGATReranker(graph, encoder, tokens=store, verbose=False)
        ),
        "GraphMaxSim, no store": ptg.GraphMaxSim(graph, encoder, verbose=False),
    }
    hgat.contextualized = hgat.contextualize(folder.with_suffix(".contextualized"))
    random = np.random.default_rng(0)
    nodes = [
        random.choice(graph.passage_nodes, options.candidates, replace=False)
        for _ in range(len(topics))
    ]
    run = topics.loc[topics.index.repeat(options.candidates)].assign(
        docno=graph.ids_of(np.concatenate(nodes))
    )
    models["GraphMaxSim, no store"](
        run
    )  # encodes their texts, and keeps the vectors; converts the encoder for queries
    queries, vectors = (
        encoder.encode_queries(topics["query"].tolist()),
        [store.states(found) for found in nodes],
    )
    found: dict[str, Programs] = {}
    for label, count in ((f"{len(topics)} queries at once", len(topics)), ("one query", 1)):
        rows, texts = run.head(count * options.candidates), topics["query"].tolist()[:count]
        one: dict[str, Callable[[], Any]] = {}
        if rerank is not None:
            ids = [graph.ids_of(part) for part in nodes[:count]]
            given = (
                [queries[n] for n in range(count)],
                [[states[n] for n in range(len(states))] for states in vectors[:count]],
            )
            one[PYLATE] = partial(rerank, ids, *given)
            ours = models["MaxSim"](run.head(options.candidates)).set_index("docno")["score"]
            theirs = pd.Series({each["id"]: each["score"] for each in one[PYLATE]()[0]})[ours.index]
            print(
                f"scores of MaxSim minus PyLate's: from {(ours - theirs).min():.1e} to {(ours - theirs).max():.1e}"
            )
        one[ENCODING] = partial(encoder.encode_queries, texts)
        found[f"{label}, at most {tokens} tokens"] = one | {
            name: partial(m, rows) for name, m in models.items()
        }
    return found


if __name__ == "__main__":
    main()
