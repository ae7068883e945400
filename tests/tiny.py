"""A small random encoder and a small corpus, so that tests need no checkpoint."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import ir_measures
import pandas as pd
import pyterrier as pt
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import Link, Node, Reference, StructuredDocument
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.training.validation import JudgedRun

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()


@cache
def checkpoint(words: tuple[str, ...] = tuple(WORDS), positions: int = 64) -> str:
    """Folder of an untrained BERT with two layers and 16 dimensions, which knows some words."""
    folder = Path(mkdtemp(prefix="tiny-bert-"))
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), "utf-8"
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words) + 5,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


@cache
def cross_encoder(positions: int = 64) -> str:
    """Folder of an untrained cross-encoder of the same size, with one label; its scores differ widely."""
    folder = mkdtemp(prefix="tiny-cross-encoder-")
    start = checkpoint(positions=positions)
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(start, num_labels=1, initializer_range=0.3)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(start).save_pretrained(folder)
    return folder


def fresh_encoder(max_passage_tokens: int = 24) -> TokenEncoder:
    """The small encoder again, for tests that change its weights or length."""
    options = {"max_passage_tokens": max_passage_tokens, "max_query_tokens": 12}
    return TokenEncoder(checkpoint(), device="cpu", **options)


@cache
def encoder() -> TokenEncoder:
    """The small encoder."""
    return fresh_encoder()


@cache
def dual_encoder() -> ptg.DualEncoder:
    """The small encoder with a vector per text."""
    lengths = {"max_query_tokens": 12, "max_passage_tokens": 24}
    return ptg.DualEncoder(checkpoint(), device="cpu", verbose=False, **lengths)


def documents(count: int = 6) -> list[StructuredDocument]:
    """Documents about one word each: only their title and first passage say it."""
    made = []
    for number in range(count):
        word, other = WORDS[number % len(WORDS)], WORDS[(number + 1) % len(WORDS)]
        nodes = (
            Node("section", word, -1),
            Node("passage", f"{word} {word} mu", 0),
            Node("section", "lambda", 0),
            Node("passage", "kappa lambda", 2),
            Node("passage", f"kappa {other} iota", 2),
        )
        reference = (
            Reference("external", 0, f"d{(number + 1) % count}"),
            Reference("external", 0, "nowhere"),
        )
        made.append(
            StructuredDocument(
                f"d{number}",
                nodes,
                (Link("internal", 4, 1),),
                reference,
                ("even",) * (number % 2 == 0),
            )
        )
    return made


@cache
def graph(count: int = 6) -> MemoryGraph:
    """Their graph."""
    return MemoryGraph(documents(count))


@cache
def query_graph() -> ptg.QueryPassageGraph:
    """Two queries for each first passage of three documents."""
    pairs = [(f"k{n}", f"{WORDS[n % 3]} mu", f"d{n % 3}%p0") for n in range(6)]
    known = pd.DataFrame(pairs, columns=["qid", "query", "docno"]).assign(label=1)
    folder = Path(mkdtemp(prefix="query-graph-"))
    return ptg.QueryPassageGraph(folder / "queries").build(
        known[["qid", "query"]], graph(), qrels=known
    )


def topics(count: int = 6) -> pd.DataFrame:
    """A query for each document: its word."""
    return pd.DataFrame([{"qid": f"t{n}", "query": WORDS[n % len(WORDS)]} for n in range(count)])


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, and what is in them."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def logged(model: object, name: str) -> list[float]:
    """A loss or a measure in the log of a model's training."""
    return [entry[name] for entry in model.training_log if name in entry]  # type: ignore[attr-defined]


def weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights of a network."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def learned(network: torch.nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """The names of the weights that have changed."""
    return {name for name, value in network.state_dict().items() if not value.equal(before[name])}


def judged(run: pd.DataFrame, qrels: pd.DataFrame, graph: HeteroGraph | None = None) -> JudgedRun:
    """A run with its judgments, as the ``fit`` of a model with this graph has it."""
    model = pt.Transformer.identity()
    model.graph = graph
    return JudgedRun(run, qrels, model)


def evaluated(measure: str, qrels: pd.DataFrame, run: pd.DataFrame) -> float:
    """The mean of a measure over the judged queries."""
    parsed = ir_measures.parse_measure(measure)
    return ir_measures.calc_aggregate([parsed], *map(pt.model.to_ir_measures, (qrels, run)))[parsed]


def qrels(count: int = 6) -> pd.DataFrame:
    """All passages of the word's document are relevant, the first one most."""
    rows = [
        {"qid": f"t{n}", "docno": f"d{n}%p{p}", "label": 2 if p == 0 else 1}
        for n in range(count)
        for p in range(3)
    ]
    return pd.DataFrame(rows)


def run(count: int = 6) -> pd.DataFrame:
    """Every query with every passage."""
    passages = pd.DataFrame({"docno": [f"d{d}%p{p}" for d in range(count) for p in range(3)]})
    frame = topics(count).merge(passages, how="cross")
    return frame.assign(score=0.0, rank=frame.groupby("qid").cumcount())
