"""Every model in float32 and in bfloat16, side by side: nDCG@10 and processor time.

    python -m experiments.precision medquad=FOLDER numpydoc-numpy --output OUTPUT
    python -m experiments.precision numpydoc-numpy --seeds 0 1 2 --parts training --output OUTPUT
    python -m experiments.precision --parts encoding

``inference`` trains each model once, in float32, and evaluates it in both precisions, on the same candidates.
``training`` trains it in both, with the same seeds. ``encoding`` measures ways to encode passages of 128 tokens.
A collection is a sample of whole documents. Tested are all queries that are not trained on, of whatever split.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from ir_measures import nDCG
from pyterrier_dr import FlexIndex
from sentence_transformers import SentenceTransformer

import pyterrier_graph as ptg
from experiments.collections import open_collection
from experiments.harness.collection import Collection, Queries, fraction
from experiments.harness.command import add_options
from experiments.harness.cost import random_text, seconds, side_by_side
from experiments.harness.fine_tuning import fine_tuned
from pyterrier_graph.documents import StructuredDocument
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve

PRECISIONS = ("float32", "bfloat16")
PARTS = ("inference", "training", "encoding")
TRAINED = ("DualEncoder", "GNNEncoder", "HGAT", "cross-encoder", "LGRe")
PASSAGE_TOKENS, DIMENSION, SAMPLE = 128, 128, 200
CPU: dict[str, Any] = {"device": "cpu", "verbose": False}


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("collections", nargs="*", metavar="COLLECTION[=FOLDER]")
    command.add_argument("--output", type=Path, help="folder for indexes and tables")
    add_options(
        command,
        "options",
        parts=(["inference"], "what is measured", [*PARTS]),
        passages=(2000, "size of the sample of a collection"),
        queries=(150, "test queries, drawn at random"),
        train_queries=(100, "training queries, drawn at random"),
        documents=(10, "passages per query that are reranked"),
        triples=(200, "training triples of an HGAT, and pairs of a cross-encoder"),
        seeds=([0], "of what is trained"),
        texts=(256, "texts that are encoded for the part 'encoding'"),
        encoder=(DEFAULT, "checkpoint of all models"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    options = command_line().parse_args(arguments)
    torch.set_num_threads(1)
    tables = [encoding(options)] if "encoding" in options.parts else []
    for given in options.collections:
        name, _, path = given.partition("=")
        bench = Bench(name, path, options)
        tables += [getattr(bench, part)() for part in PARTS[:2] if part in options.parts]
    return pd.concat(tables)


def shown(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Prints a table."""
    print(name, table.to_string(index=False, float_format="{:.4f}".format), sep="\n", flush=True)
    return table


class Bench:
    """A sample of a collection, its queries, and all models on one checkpoint.

    Args:
        name: The collection.
        path: Its folder, or an empty text.
        options: See :func:`command_line`.
    """

    def __init__(self, name: str, path: str, options: argparse.Namespace) -> None:
        self.options, self.name = options, name
        opened = argparse.Namespace(collection=name, path=Path(path) if path else None, passages=options.passages)
        collection, documents = sample(open_collection(opened), options.passages)
        self.folder = Path(options.output, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.graph = ptg.DocumentGraph(self.folder / "graph").index(documents, verbose=False)
        self.train = collection.split()["train"].sample(options.train_queries)
        self.test = collection.all_queries.without(self.train).sample(options.queries)
        lengths = {"max_passage_tokens": PASSAGE_TOKENS, **CPU}
        self.dual = ptg.DualEncoder(options.encoder, dtype="float32", **lengths)
        texts = self.graph.texts(self.graph.passage_nodes[:SAMPLE])
        tokens = ptg.TokenEncoder(options.encoder, max_passage_tokens=PASSAGE_TOKENS, device="cpu", dtype="float32")
        self.tokens = tokens.reduced(texts, min(DIMENSION, tokens.dimension // 2))
        self.stores: dict[str, ptg.TokenStore] = {}
        self.vectors: dict[str, FlexIndex] = {}
        self.times: dict[tuple[str, str], float] = {}
        for dtype in PRECISIONS:
            self.use(dtype)
            self.timed("encode vectors", dtype, self._encode)
            self.timed("encode tokens", dtype, self._store)
        self.candidates = {"train": self._candidates(self.train), "test": self._candidates(self.test)}
        print(
            f"{name}: {len(self.graph.passage_nodes)} passages, queries: {len(self.train.topics)} for training, "
            f"{len(self.test.topics)} for the test",
            flush=True,
        )

    def use(self, dtype: Any) -> None:
        """Has both encoders compute in a precision from now on."""
        self.dtype = self.dual.dtype = self.tokens.dtype = dtype

    def timed(self, name: str, dtype: str, action: Callable[[], Any]) -> Any:
        """Calls an action, and notes its processor time."""
        made: list[Any] = []
        self.times[name, dtype] = seconds(lambda: made.append(action()), time.process_time)
        return made[0]

    def _encode(self) -> None:
        index = FlexIndex(str(self.folder / f"{self.dtype}.flex"), verbose=False)
        (self.dual.doc_encoder() >> index).index(self.graph.get_corpus_iter())
        self.vectors[self.dtype] = index

    def _store(self) -> None:
        store = ptg.TokenStore(self.folder / f"{self.dtype}.tokens")
        self.stores[self.dtype] = store.build(self.graph, self.tokens, verbose=False)

    def _candidates(self, queries: Queries) -> pd.DataFrame:
        self.use("float32")
        retriever = self.dual.query_encoder() >> self.vectors["float32"].np_retriever(
            num_results=self.options.documents, drop_query_vec=True
        )
        return self.graph.text_loader()(retriever(queries.topics))

    def measured(self, run: pd.DataFrame) -> float:
        """nDCG@10 on the test queries."""
        return pt.Experiment([run], *self.test, [nDCG @ 10], names=["run"])["nDCG@10"].item()

    def inference(self) -> pd.DataFrame:
        """Trains each model in float32, and evaluates it in both precisions."""
        self.use("float32")
        models = {name: self.fitted(name, 0) for name in TRAINED[1:]}
        quality: dict[tuple[str, str], float] = {}
        for dtype in PRECISIONS:
            self.use(dtype)
            systems: dict[str, Callable[[], pd.DataFrame]] = {
                "DualEncoder": lambda: self._dense(self.dual),
                "GraphMean": lambda: self._contextual(self._model(ptg.GraphMean)),
                "GraphMean, fixed weights": lambda: self._contextual(self._model(ptg.GraphMean, weights={"title": 1})),
                "GNNEncoder": lambda: self._contextual(self._again(models["GNNEncoder"])),
                "MaxSim": lambda: self._reranked(self._maxsim({})),
                "GraphMaxSim": lambda: self._reranked(self._maxsim(None)),
                "HGAT, untrained": lambda: self._reranked(self._hgat(0)),
                **{
                    name: functools.partial(lambda name: self._reranked(self._again(models[name])), name)
                    for name in TRAINED[2:]
                },
            }
            for name, make in systems.items():
                quality[name, dtype] = self.measured(self.timed(name, dtype, make))
        rows = []
        for name in [*dict.fromkeys(name for name, _ in self.times if not name.startswith("fit"))]:
            before, after = (quality.get((name, dtype), np.nan) for dtype in PRECISIONS)
            ratio = self.times[name, PRECISIONS[1]] / self.times[name, PRECISIONS[0]]
            rows.append([name, before, after, after - before, ratio])
        return shown(pd.DataFrame(rows, columns=["model", *PRECISIONS, "difference", "time"]), self.name)

    def training(self) -> pd.DataFrame:
        """Trains each model in both precisions, with the same seeds, and evaluates it in the one it was trained in."""
        rows = []
        for name in TRAINED:
            quality: dict[str, list[float]] = {dtype: [] for dtype in PRECISIONS}
            times = []
            for seed in self.options.seeds:
                for dtype in PRECISIONS:
                    self.use(dtype)
                    model = self.timed(f"fit {name}", dtype, functools.partial(self.fitted, name, seed))
                    quality[dtype].append(self.measured(self._run_of(name, model)))
                times.append(self.times[f"fit {name}", PRECISIONS[1]] / self.times[f"fit {name}", PRECISIONS[0]])
            means = [np.mean(quality[dtype]) for dtype in PRECISIONS]
            spread = [np.ptp(quality[dtype]) for dtype in PRECISIONS]
            rows.append([name, *means, *spread, np.median(times)])
        columns = ["trained", *PRECISIONS, *(f"range, {dtype}" for dtype in PRECISIONS), "time"]
        return shown(pd.DataFrame(rows, columns=columns), self.name)

    def fitted(self, name: str, seed: int) -> Any:
        """A model, trained briefly in the present precision."""
        count, run = self.options.triples, self.candidates["train"]
        if name == "DualEncoder":
            encoder = self.dual.apply_attributes(seed=0)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return fine_tuned(encoder, self.vectors[self.dtype], self.train, self.graph.text_loader(), 1)
        if name == "GNNEncoder":
            options = ptg.GNNEncoderTraining(epochs=5, seed=seed)
            return self._model(ptg.GNNEncoder, training=options, seed=seed).fit(*self.train)
        if name == "HGAT":
            return self._hgat(seed).fit(run, self.train.qrels)
        kind: Any = {"cross-encoder": ptg.CrossEncoderReranker, "LGRe": ptg.LGReReranker}[name]
        options = kind.STAGES["training"](epochs=1, pairs_per_epoch=count, seed=seed)
        model = kind(self.options.encoder, training=options, max_tokens=192, seed=seed, dtype=self.dtype, **CPU)
        return model.fit(run, self.train.qrels)

    def _run_of(self, name: str, model: Any) -> pd.DataFrame:
        if name == "DualEncoder":
            run = self.candidates["test"]
            vectors = model.encode_docs(run["text"].tolist())
            queries = run["qid"].map(dict(zip(self.test.topics["qid"], range(len(self.test.topics)), strict=True)))
            encoded = model.encode_queries(self.test.topics["query"].tolist())
            return pt.model.add_ranks(run.assign(score=(vectors * encoded[queries]).sum(1)))
        return self._contextual(model) if name == "GNNEncoder" else self._reranked(model)

    def _model(self, kind: Any, **options: Any) -> Any:
        return kind(self.graph, self.dual, **self._stored(), dtype=self.dtype, **CPU | options)

    def _stored(self) -> dict[str, Any]:
        """Vectors in the present precision."""
        return {"vectors": self.vectors[self.dtype], "folder": self.folder / f"{self.dtype}.vectors"}

    def _maxsim(self, weights: dict[str, float] | None) -> ptg.GraphMaxSim:
        return ptg.GraphMaxSim(self.graph, self.tokens, weights, tokens=self.stores[self.dtype], **CPU)

    def _hgat(self, seed: int) -> ptg.HGATReranker:
        training = ptg.HGATTraining(epochs=1, max_triples=self.options.triples, seed=seed)
        options: dict[str, Any] = {"training": training, "seed": seed, "dtype": self.dtype, **CPU}
        return ptg.HGATReranker(self.graph, self.tokens, tokens=self.stores[self.dtype], **options)

    def _again(self, model: Any) -> Any:
        """A trained model in the present precision."""
        stored: dict[str, Any] = {}
        if isinstance(model, ptg.HGATReranker):
            stored = {"tokens": self.stores[self.dtype]}
        elif isinstance(model, ptg.GNNEncoder):
            stored = self._stored()
        return model.apply_attributes(dtype=self.dtype, **stored)

    def _dense(self, encoder: ptg.DualEncoder) -> pd.DataFrame:
        search = self.vectors[self.dtype].np_retriever(drop_query_vec=True)
        return (encoder.query_encoder() >> search)(self.test.topics)

    def _contextual(self, model: Any) -> pd.DataFrame:
        folder = self.folder / "index.flex"
        shutil.rmtree(folder, ignore_errors=True)
        return model.index(folder).retriever(100)(self.test.topics)

    def _reranked(self, reranker: Any) -> pd.DataFrame:
        return reranker(self.candidates["test"])


def sample(collection: Collection, passages: int) -> tuple[Collection, list[dict[str, Any]]]:
    """Some documents, drawn by their ids, and the queries whose relevant passages are all in them."""
    records = sorted(collection.get_corpus_iter(verbose=False), key=lambda record: fraction(record["docno"], "sample"))
    chosen: list[dict[str, Any]] = []
    for record in records:
        if passages <= 0:
            break
        chosen.append(record)
        passages -= len(StructuredDocument.from_record(record).passages())
    docnos = {record["docno"] for record in chosen}
    queries = {}
    for split, part in collection.queries.items():
        inside = part.qrels["docno"].str.replace(r"%p\d+$", "", regex=True).isin(docnos)
        queries[split] = part.among(set(part.qrels["qid"][inside]) - set(part.qrels["qid"][~inside]))
    return Collection(collection.name, lambda: chosen, queries, structured=True), chosen


def encoding(options: argparse.Namespace) -> pd.DataFrame:
    """Processor time per passage of ways to encode: precision, batches, threads and processes."""
    random = np.random.default_rng(0)
    network = SentenceTransformer(resolve(options.encoder), device="cpu", model_kwargs={"dtype": torch.float32})
    half = SentenceTransformer(resolve(options.encoder), device="cpu", model_kwargs={"dtype": torch.bfloat16})
    even = [random_text(random, PASSAGE_TOKENS) for _ in range(options.texts)]  # cut at 128 tokens
    mixed = [random_text(random, int(words)) for words in random.integers(8, PASSAGE_TOKENS, options.texts)]
    for model in (network, half):
        model.max_seq_length = PASSAGE_TOKENS

    def encode(model: SentenceTransformer, texts: list[str], size: int = 32, at_once: int | None = None) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=model is network and precise == "bfloat16"):
            return [
                model.encode(texts[start : start + (at_once or len(texts))], batch_size=size)
                for start in range(0, len(texts), at_once or len(texts))
            ]

    tables = []
    for precise, given in (("float32", network), ("bfloat16", network), ("bfloat16 weights", half)):
        actions = {"128 tokens": functools.partial(encode, given, even)}
        if given is network:
            actions |= {f"batches of {size}": functools.partial(encode, given, even, size) for size in (8, 128)}
            actions["8 to 128 tokens, sorted"] = functools.partial(encode, given, mixed)
            actions["8 to 128 tokens, not sorted"] = functools.partial(encode, given, mixed, 32, 32)
        table = side_by_side(actions, 1, time.process_time)
        table = (1000 * table[["seconds"]] / options.texts).rename(columns={"seconds": "ms per passage"})
        tables.append(table.rename_axis("what").reset_index().assign(precision=precise))
    whole = network.encode(even[:32])
    for precise, given in (("bfloat16", network), ("bfloat16 weights", half)):
        cosines = torch.nn.functional.cosine_similarity(
            torch.as_tensor(whole).float(), torch.as_tensor(np.concatenate(encode(given, even[:32]))).float()
        )
        row = {"what": "least cosine with float32", "precision": precise, "ms per passage": cosines.min().item()}
        tables.append(pd.DataFrame([row]))
    first, tables = shown(pd.concat(tables), "encoding"), []
    for processes, threads in ((1, 1), (1, 2), (2, 1)):
        parts = [even[number::processes] for number in range(processes)]
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            start = time.perf_counter()
            times = pool.map(_encoded, [options.encoder] * processes, parts, [threads] * processes)
            spent = 1000 * sum(times) / len(even)
            wall = time.perf_counter() - start
        used = f"processes: {processes}, threads of each: {threads}; wall time {1000 * wall / len(even):.1f}"
        row = {"what": used, "precision": "auto", "ms per passage": spent}
        tables.append(pd.DataFrame([row]))
    return pd.concat([first, shown(pd.concat(tables), "threads")])


def _encoded(checkpoint: str, texts: list[str], threads: int) -> float:
    """Processor time of encoding, in a process of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    encoder = ptg.DualEncoder(checkpoint, max_passage_tokens=PASSAGE_TOKENS, **CPU)
    encoder.encode_docs(texts[:8])
    return seconds(lambda: encoder.encode_docs(texts), time.process_time)


if __name__ == "__main__":
    main()
