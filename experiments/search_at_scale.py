"""Search in millions of vectors: by codes, next to an exact product.

``OMP_NUM_THREADS=1 python -m experiments.search_at_scale COLLECTION [PATH] --output OUTPUT --vectors 1000000 10000000``

The first vectors are those of a collection's passages. More are mixtures: a vector, half of another one, and noise of
half its length. The queries are the collection's. Everything is done by the functions that write and search an index.

``--texts FOLDER ...`` searches real texts instead of mixtures: windows of twelve words of the files in folders, such as
``/usr/share/doc``. A query is the first half of a window that is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg
from experiments.collections import open_collection
from experiments.harness.collection import joined
from experiments.harness.command import add_options
from experiments.harness.cost import peak_without_files
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.openvino_encoder import load_encoder
from pyterrier_graph.graph_mean.nearest import nearest, nearest_by_codes, read_codes, write_codes
from pyterrier_graph.storage.arrays import blocks

ROWS = 16_384  # vectors that are made at once
RESULTS = (10, 100, 1000)
TEXT_FILES = {".py", ".pyi", ".rst", ".md", ".txt", ".html", ".h", ".pod"}
WORDS, MAX_LENGTH, MAX_BYTES = 12, 200, 100_000  # of a window, and of a file


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints what codes cost, and for each number of results what they find and how long a query takes."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("collection", nargs="?")
    command.add_argument("path", type=Path, nargs="?")
    command.add_argument("--texts", type=Path, nargs="+", help="folders of text files")
    command.add_argument(
        "--output", type=Path, required=True, help="folder for indexes and vectors"
    )
    add_options(
        command,
        "sizes",
        vectors=([1_000_000], "vectors to search in"),
        queries=(50, "queries"),
        passages=(17_500, "size of the sample of MedQuAD"),
    )
    options = command.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.texts:
        vectors, queries = encoded_windows(options)
        tables = {len(vectors): measured(vectors, queries, options.output)}
    else:
        own, queries = encoded(options)
        tables = {
            count: measured(mixed(own, count, options.output), queries, options.output)
            for count in options.vectors
        }
    table = pd.concat(tables, names=["vectors"])
    print(table.round(3).to_string())
    return table


def encoded(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of a collection's passages, shape (passages, d), and of its queries, shape (queries, d)."""
    options.train = options.test = None
    collection = open_collection(options)
    index = ptg.GraphIndex(options.output / "index")
    if not index.built():
        index.index(collection.documents())
    topics = joined(collection.queries.values()).sample(options.queries).topics
    own = np.stack([row["vector"] for row in index.rows()])
    return own, index.query_vectors(topics)


def encoded_windows(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of windows of text, memory-mapped, shape (windows, d), and of queries; encoding can be continued."""
    encoder, file = load_encoder(DEFAULT), options.output / "windows.f4"
    texts = windows(options.texts, options.vectors[0] + options.queries)
    texts, left_out = texts[options.queries :], texts[: options.queries]
    queries = encoder.encode_queries([text[: len(text) // 2] for text in left_out])
    dimension = queries.shape[1]
    done = file.stat().st_size // (4 * dimension) if file.exists() else 0
    with open(file, "ab") as out:
        for rows in pt.tqdm([*blocks(len(texts) - done, ROWS)], desc="encoding"):
            encoder.encode_docs([texts[done + row] for row in rows]).tofile(out)
            out.flush()
    return np.memmap(file, np.float32, "r").reshape(-1, dimension), queries


def windows(folders: Sequence[Path], count: int) -> list[str]:
    """Distinct windows of twelve words, most of whose characters are letters, in random order."""
    random = np.random.default_rng(0)
    paths = sorted(path for folder in folders for path in folder.rglob("*"))
    files = [path for path in paths if path.suffix in TEXT_FILES and path.is_file()]
    texts: dict[str, None] = {}
    for number in random.permutation(len(files)):
        words = files[number].read_bytes()[:MAX_BYTES].decode(errors="ignore").split()
        for start in range(0, len(words) - WORDS, WORDS):
            text = " ".join(words[start : start + WORDS])[:MAX_LENGTH]
            if sum(map(str.isalpha, text)) > 0.6 * len(text):
                texts[text] = None
        if len(texts) >= count:
            break
    return [*random.permutation([*texts])[:count].tolist()]


def mixed(own: np.ndarray, count: int, folder: Path) -> np.ndarray:
    """A file of ``count`` vectors, memory-mapped, shape (count, d)."""
    file, random = folder / f"{count}.f4", np.random.default_rng(0)
    dimension = own.shape[1]
    if not file.exists():
        with open(file, "wb") as out:
            own[:count].tofile(out)
            for rows in blocks(max(0, count - len(own)), ROWS):
                one, other = own[random.integers(len(own), size=(2, len(rows)))]
                noise = random.standard_normal(one.shape, dtype=np.float32) / dimension**0.5
                vectors = one + (other + noise) / 2
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors.tofile(out)
    return np.memmap(file, np.float32, "r").reshape(count, dimension)


def measured(vectors: np.ndarray, queries: np.ndarray, folder: Path) -> pd.DataFrame:
    """A row per number of results: recall of the exact results, and milliseconds of processor time for a query."""
    file = folder / f"{len(vectors)}.codes"
    with peak_without_files() as peak:
        seconds, _ = timed(lambda: write_codes(file, vectors))
        codes: Any = read_codes(file)
    print(
        f"{len(vectors):,} vectors: codes took {1e6 * seconds / len(vectors):.1f} us and "
        f"{file.stat().st_size / len(vectors):.0f} bytes a vector, {peak[0]:.0f} MiB without mapped files"
    )
    rows = {}
    seconds, (_, exact) = timed(lambda: nearest(queries, vectors, max(RESULTS)))
    for k in RESULTS:
        start = time.process_time()
        results = [nearest_by_codes(query[None], vectors, codes, k)[1][0] for query in queries]
        spent = time.process_time() - start
        same = [len(np.intersect1d(a, b[:k])) / k for a, b in zip(results, exact, strict=True)]
        rows[k] = {
            "recall": np.mean(same),
            "codes, ms": 1000 * spent / len(queries),
            "exact, all queries at once, ms": 1000 * seconds / len(queries),
        }
    return pd.DataFrame(rows).T.rename_axis("results")


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time that an action takes, and its result."""
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


if __name__ == "__main__":
    main()
