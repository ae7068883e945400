"""What BM25 runs on: engines compared over the same passages, with the titles above them in front.

::

    python -m experiments.lexical_engines --data DATA --output OUTPUT

Each engine has k1 = 1.2 and b = 0.75 where it can be set, and English stems. Times are processor time of one thread per
query, one at a time, with the ids and texts of the results.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import nDCG

import pyterrier_graph as ptg
from experiments.collections import open_collection
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.lexical import bm25

FOLDERS = {
    "qasper": "qasper-sample",
    "cacm": "cacm",
    "cranfield": "cranfield",
    "vaswani": "vaswani",
    "trec-car": "trec-car-test200",
    "medquad": "medquad",
    "numpydoc-numpy": None,
    "numpydoc-numpy-see-also": None,
}
WHOLE = ("cranfield", "vaswani")  # each abstract is one passage
QUERIES, TIMED = 600, 50
Search = Callable[[str, int], tuple[list[str], list[float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--output", type=Path, required=True)
    command.add_argument("--collections", nargs="+", choices=FOLDERS, default=[*FOLDERS])
    command.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES])
    options = command.parse_args(arguments)
    rows = []
    for name in options.collections:
        for row in measure(name, options):
            rows.append(row)
            print(row, flush=True)
    table = pd.DataFrame(rows)
    for value in ("nDCG@10", "ms for 10", "ms for 1000", "MB"):
        frame = table.pivot(index="engine", columns="collection", values=value)
        frame = frame.loc[options.engines, options.collections]
        digits = 3 if value in ("nDCG@10", "ms for 10") else 1
        print(f"\n### {value}\n\n{markdown(frame.assign(mean=frame.mean(axis=1)), digits)}")


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A row per engine for one collection."""
    folder = FOLDERS[name] and options.data / FOLDERS[name]
    named = {"collection": name, "path": folder, "passages": 4000}
    collection = open_collection(argparse.Namespace(**named, train=None, dev=None, test=None))
    words = 1_000_000 if name in WHOLE else 120
    graph = collection.graph(options.output / name / "graph", passage_words=words, verbose=False)
    topics, qrels = collection.all_queries.sample(QUERIES)
    context = ["titles"] if "title" in graph.relations else []
    rows = list(graph.get_corpus_iter(context=context))
    for engine in options.engines:
        path = options.output / name / engine.replace(" ", "-")
        shutil.rmtree(path, ignore_errors=True)
        search = ENGINES[engine](rows, path)
        pipeline = retriever(search, 1000)
        if not qrels["docno"].str.contains("%p").any():
            pipeline = pipeline >> pt.text.max_passage()
        measured = pt.Experiment([pipeline], topics, qrels, [nDCG @ 10])["nDCG@10"][0]
        times = [timed(search, graph, topics, count) for count in (10, 1000)]
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
        yield {"collection": name, "engine": engine, "passages": len(rows), "nDCG@10": measured} | {
            "ms for 10": times[0],
            "ms for 1000": times[1],
            "MB": size,
        }


def retriever(search: Search, num_results: int) -> pt.Transformer:
    """A search as a transformer."""

    def ranked(topics: pd.DataFrame) -> pd.DataFrame:
        runs = []
        for row in topics.itertuples():
            docnos, scores = search(row.query, num_results)
            run = {"qid": row.qid, "query": row.query, "docno": docnos, "score": scores}
            runs.append(pd.DataFrame(run | {"rank": np.arange(len(docnos))}))
        return pd.concat(runs, ignore_index=True)

    return pt.apply.generic(ranked)


def timed(search: Search, graph: ptg.DocumentGraph, topics: pd.DataFrame, count: int) -> float:
    """Milliseconds per query; the first three are not counted."""
    pipeline = retriever(search, count) >> graph.text_loader()
    parts = [topics.iloc[[row % len(topics)]] for row in range(TIMED + 3)]
    for part in parts[:3]:
        pipeline.transform(part)
    started = time.process_time()
    for part in parts[3:]:
        pipeline.transform(part)
    return (time.process_time() - started) / TIMED * 1000


def own(rows: list[dict[str, str]], path: Path) -> Search:
    """``pyterrier_graph.search.bm25``: bm25s with this package's terms."""
    docnos = np.array([row["docno"] for row in rows], dtype=object)
    index = BM25Index.build(path, (row["text"] for row in rows))

    def search(query: str, count: int) -> tuple[list[str], list[float]]:
        numbers, scores = index.search(query, count)
        return docnos[numbers].tolist(), scores.tolist()

    return search


def bm25s_as_it_is(rows: list[dict[str, str]], path: Path, stop_words: str = "en") -> Search:
    """bm25s with its tokenizer, 33 English stop words and Snowball's stems."""
    import bm25s
    from Stemmer import Stemmer

    stemmer = Stemmer("english")
    texts = [row["text"] for row in rows]
    index = bm25s.BM25(k1=1.2, b=0.75)
    options = {"stopwords": stop_words, "stemmer": stemmer, "show_progress": False}
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    index.save(path, show_progress=False)
    docnos = np.array([row["docno"] for row in rows], dtype=object)

    def search(query: str, count: int) -> tuple[list[str], list[float]]:
        tokens = bm25s.tokenize([query], **options)
        most = min(count, len(docnos))
        numbers, scores = index.retrieve(tokens, k=most, show_progress=False)
        found = scores[0] > 0
        return docnos[numbers[0][found]], scores[0][found]

    return search


def tantivy(rows: list[dict[str, str]], path: Path, stop_words: bool = True) -> Search:
    """Tantivy with English stems and stop words."""
    from tantivy import Document, Filter, Index, SchemaBuilder, TextAnalyzerBuilder, Tokenizer

    path.mkdir(parents=True)
    analyzer = TextAnalyzerBuilder(Tokenizer.simple()).filter(Filter.lowercase())
    if stop_words:
        analyzer = analyzer.filter(Filter.stopword("english"))
    builder = SchemaBuilder()
    builder.add_text_field("docno", stored=True, tokenizer_name="raw")
    builder.add_text_field("text", stored=False, tokenizer_name="terms")
    index = Index(builder.build(), path=str(path))
    index.register_tokenizer("terms", analyzer.filter(Filter.stemmer("english")).build())
    writer = index.writer(num_threads=1)
    for row in rows:
        writer.add_document(Document(docno=row["docno"], text=row["text"]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(query: str, count: int) -> tuple[list[str], list[float]]:
        words = "".join(character if character.isalnum() else " " for character in query)
        parsed = index.parse_query(words.lower(), ["text"])
        hits = searcher.search(parsed, count).hits
        docnos = [searcher.doc(address)["docno"][0] for _, address in hits]
        return docnos, [score for score, _ in hits]

    return search


def pisa(rows: list[dict[str, str]], path: Path) -> Search:
    """PISA with Porter's stems and Terrier's stop words."""
    path.mkdir(parents=True)
    bm25(rows, "pisa", path / "index")
    engines = {count: bm25([], "pisa", path / "index", count) for count in (10, 1000)}

    def search(query: str, count: int) -> tuple[list[str], list[float]]:
        run: Any = engines[count](pd.DataFrame({"qid": ["1"], "query": [query]}))
        return run["docno"].tolist(), run["score"].tolist()

    return search


def lance(rows: list[dict[str, str]], path: Path) -> Search:
    """Lance's full-text index with English stems and stop words, as versions up to 0.1 of this package used it."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS
    from lancedb.query import MatchQuery

    table = lancedb.connect(path).create_table(
        "passages", pa.table({name: [row[name] for row in rows] for name in ("docno", "text")})
    )
    table.create_index("text", config=FTS(language="English", stem=True, remove_stop_words=True))

    def search(query: str, count: int) -> tuple[list[str], list[float]]:
        match: Any = MatchQuery
        request = table.search(match(query, "text"), query_type="fts")
        found = request.select(["docno", "_score"]).limit(count).to_arrow()
        return found["docno"].to_pylist(), found["_score"].to_pylist()

    return search


def markdown(frame: pd.DataFrame, digits: int) -> str:
    """A table in Markdown."""
    head = ["engine", *frame.columns]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in frame.iterrows():
        values = [f"{value:.{digits}f}" for value in row]
        lines.append(f"| {' | '.join([str(name), *values])} |")
    return "\n".join(lines)


ENGINES: dict[str, Callable[[list[dict[str, str]], Path], Search]] = {
    "GraphIndex (bm25s)": own,
    "bm25s, its own tokenizer": bm25s_as_it_is,
    "tantivy": tantivy,
    "PISA": pisa,
    "Lance": lance,
}

if __name__ == "__main__":
    main()
