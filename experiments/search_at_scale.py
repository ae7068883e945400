"""Search in an index of this package, exact and by codes, in contextual vectors of real texts.

``python -m experiments.search_at_scale FOLDER... --queries FILE --passages 100000 1000000 2000000 --output OUTPUT``
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import embedding_bag, normalize

import pyterrier_graph as ptg
from experiments.harness.cost import Programs, compare, peak_without_files
from experiments.harness.synthetic import NumberEncoder, documents, write_vectors
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.graph_mean.codes import write_codes
from pyterrier_graph.graph_mean.contextual_index import CODES, write_index
from pyterrier_graph.graph_mean.equations import lacking

SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp"}
WORDS, D, MOST = (
    24,
    384,
    1000,
)  # words of a passage, dimensions of the encoder, results of exact search


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints recall, processor time and sizes; vectors and the results of exact search are kept in the output folder.

    A passage is 24 words of a file, half of them also in the next one, its title the words of the file's path, and its
    vector that of GraphMean. The encoder is static: the mean of the vectors
    of a text's tokens, which are those of all-MiniLM-L6-v2 for each token alone, in principal directions, times the
    logarithm of its number in the vocabulary. The index has these vectors, made-up texts, and codes at every
    size. A size has the first of the vectors.
    """
    command = argparse.ArgumentParser(
        prog="python -m experiments.search_at_scale", description=main.__doc__
    )
    command.add_argument("folders", type=Path, nargs="*", help="folders with files, in any order")
    command.add_argument("--queries", type=Path, required=True, help="a file with a query per line")
    command.add_argument("--passages", type=int, nargs="+", default=[100_000])
    command.add_argument("--output", type=Path, required=True)
    options = command.parse_args(arguments)
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    options.output.mkdir(exist_ok=True, parents=True)
    encode = StaticEncoder(options.output / "static.npy")
    if not (file := options.output / "vectors.f4").exists():
        with open(file, "wb") as out:
            for part in contextual_vectors(encode, options.folders, max(options.passages)):
                out.write(part.tobytes())
    for count in options.passages:
        vectors = np.memmap(file, "<f4", "r").reshape(-1, D)[:count]
        texts = options.queries.read_text("utf-8").splitlines()
        queries = normalize(encode([text.split() for text in texts]), dim=1).numpy()
        index = written(options.output / f"{count}", vectors)
        print(pd.DataFrame([in_batches(index, queries)]).T.to_string())
        compare({f"{count:,} passages": searches(index, queries)}, 12)


class StaticEncoder:
    """The sum of the vectors of each text's tokens; texts are lists of words."""

    def __init__(self, file: Path) -> None:
        encoder = SentenceEncoder(verbose=False, device="cpu")
        self.tokenizer: Any = encoder.network.tokenizer.backend_tokenizer
        self.tokenizer.no_truncation(), self.tokenizer.no_padding()
        self.tokens: dict[str, list[int]] = {}
        if not file.exists():
            vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
            table = np.asarray(
                encoder.encode_docs([token.removeprefix("##") for token, _ in vocabulary]),
                np.float64,
            )
            table -= table.mean(0)
            table = (
                table
                @ np.linalg.svd(table.T @ table)[0]
                * np.log(np.arange(2, len(table) + 2))[:, None]
            )
            np.save(file, table / np.log(1 + len(table)))
        self.table = torch.from_numpy(np.load(file)).float()

    def __call__(self, texts: Sequence[Sequence[str]]) -> torch.Tensor:
        """Shape (texts, d)."""
        new = [word for word in {*chain.from_iterable(texts)} if word not in self.tokens]
        encoded = self.tokenizer.encode_batch_fast(
            [word[:200] for word in new], add_special_tokens=False
        )
        self.tokens |= zip(new, (encoding.ids for encoding in encoded), strict=True)
        ids = [
            [*chain.from_iterable(self.tokens[word] for word in words)] or [0] for words in texts
        ]
        starts = torch.tensor([0, *map(len, ids[:-1])]).cumsum(0)
        return embedding_bag(
            torch.tensor([*chain.from_iterable(ids)]), self.table, starts, mode="sum"
        )


def contextual_vectors(
    encode: StaticEncoder, folders: Sequence[Path], count: int
) -> Iterator[np.ndarray]:
    """Vectors of the passages of each file, as GraphMean computes them from the encoder's."""
    files = sorted(
        file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES
    )
    random.Random(0).shuffle(files)
    for file in files:
        words = (
            file.read_bytes()[:3_000_000]
            .decode(errors="replace")
            .split()[: WORDS // 2 * (count + 1)]
        )
        if not words or count <= 0:
            continue
        halves = encode(
            [words[start : start + WORDS // 2] for start in range(0, len(words), WORDS // 2)]
        )
        own = halves[:-1] + halves[1:] if len(halves) > 1 else halves
        title = encode([re.findall("[A-Za-z]+", str(file))])
        x = normalize(own + title, dim=1)
        yield (x + 0.5 * lacking(x, title.expand_as(x))).numpy()
        count -= len(own)


def written(folder: Path, vectors: np.ndarray) -> ptg.ContextualIndex:
    """An index of this package with made-up texts, and with codes; prints what building takes."""
    numbers, path, count = NumberEncoder(1), folder / "index.flex", len(vectors)
    graph = ptg.DocumentGraph(folder / "documents.graph", verbose=False)
    if not path.exists():
        graph.index(documents(count))
        base = write_vectors(folder / "base.flex", count, graph, numbers)
        identity = {"encoder": "numbers", "relations": []}
        start = time.process_time()
        write_index(base, path, vectors.__getitem__, identity=identity, verbose=False)
        print(
            f"\n{count}: written in {1e6 * (time.process_time() - start) / count:.1f} us a passage"
        )
        with peak_without_files() as peak:
            start = time.process_time()
            write_codes(path / CODES, vectors)
            took = 1e6 * (time.process_time() - start) / count
        print(
            f"codes alone in {took:.1f} us a passage, at most {peak[0]:.0f} MiB without mapped files"
        )
    return ptg.ContextualIndex(path, graph, numbers)


def in_batches(index: ptg.ContextualIndex, queries: np.ndarray) -> dict[str, float]:
    """Time of a query, of all queries at once with their texts, memory, and recall of exact search."""
    topics = pd.DataFrame(
        {"qid": [*map(str, range(len(queries)))], "query": "-", "query_vec": [*queries]}
    )
    row, scores = {}, {}
    for name, k in (("exact", MOST), ("index", 100), ("index", MOST)):
        with peak_without_files() as peak:
            start = time.process_time()
            found = index.retriever(k, exact=name == "exact").transform(topics)
            row[f"{name}, {k}: ms a query in a batch"] = (
                1e3 * (time.process_time() - start) / len(queries)
            )
        row[f"{name}, {k}: MiB"] = peak[0]
        scores[name] = found["score"].to_numpy().reshape(len(queries), k)  # the best first
        row[f"{name}, recall@{k}"] = float(
            np.mean(scores[name] >= scores["exact"][:, [k - 1]] - 1e-5)
        )
    return row


def searches(index: ptg.ContextualIndex, queries: np.ndarray) -> Programs:
    """Search in an index of this package, next to numpy, and 1,000 texts by node; each call takes the next query."""
    vectors, _ = index.flex.payload(return_docnos=False)
    topics = cycle(
        pd.DataFrame({"qid": ["1"], "query": ["-"], "query_vec": [query]}) for query in queries
    )

    def with_numpy() -> np.ndarray:
        scores = vectors @ next(topics)["query_vec"][0]
        best = np.argpartition(scores, -MOST)[-MOST:]
        return best[np.argsort(-scores[best])]

    actions: dict[str, Callable[[], Any]] = {"numpy, 1,000 results": with_numpy}
    for k in (10, 100, 1000):
        for name in ("exact", "index"):
            search = index.retriever(k, exact=name == "exact")
            actions[f"{name}, {k}, with texts"] = lambda search=search: search(next(topics))  # type: ignore[misc]
    graph, random = index.graph, np.random.default_rng(0)
    assert graph is not None
    actions["1,000 texts"] = lambda: graph.texts(random.choice(graph.passage_nodes, MOST))
    return actions


if __name__ == "__main__":
    main()
