"""What an experiment on a large collection needs, said before it starts: hours on this machine, disk and memory.

The sizes of collections are those that ir_datasets knows without a download. Rates are measured when the experiment
starts, with its own checkpoint, on the device that it will use; ``python -m experiments.rates`` measures more of them.
For GPUs that are not there, the hours are computed from the operations, for a GPU that sustains :data:`SUSTAINED`.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AutoModel

from pyterrier_graph.encoders.checkpoints import loading, resolve
from pyterrier_graph.encoders.devices import device_of, precision

BATCH = 32
REPEATS = 2
FLOAT32 = 4  # bytes
BM25_BYTES = 1000  # of a passage of MedQuAD (120 words) in an index of PISA; longer documents need more
SUSTAINED = 1e14  # operations per second in bfloat16, a tenth to a third of what data-center GPUs are sold with

logger = logging.getLogger(__name__)


class Sizes(NamedTuple):
    """Of a collection: documents, and queries for training (all, if there are no splits) and for the test."""

    documents: int
    train: int
    test: int


@dataclass(frozen=True)
class Work:
    """Texts that an encoder reads.

    Attributes:
        what: For what.
        texts: How many.
        tokens: Tokens of a text, at most.
        training: Whether there are gradients.
    """

    what: str
    texts: float
    tokens: int
    training: bool = False


@dataclass(frozen=True)
class Needs:
    """What an experiment needs.

    Attributes:
        work: What the encoder does.
        vectors: Number of vectors of passages that are on the disk at once.
    """

    work: Sequence[Work]
    vectors: int = 0


def sizes_of(options: argparse.Namespace) -> Sizes:
    """The sizes of the datasets that a command line names.

    Raises:
        ValueError: If ir_datasets has no such dataset, or does not know its size.
    """
    names = options.collection.split(",")
    train, test = ([name] if name else names for name in (options.train, options.test))
    documents = _count(names[0], "docs")
    train_queries, test_queries = (sum(_count(name, "queries") for name in part) for part in (train, test))
    return Sizes(
        documents,
        min(train_queries, options.train_queries or train_queries),
        min(test_queries, options.queries or test_queries),
    )


def _count(name: str, kind: str) -> int:
    import ir_datasets

    try:
        dataset = ir_datasets.load(name.removeprefix("irds:"))
    except KeyError as error:
        raise ValueError(f"ir_datasets has no dataset {name!r}") from error
    if count := dataset.metadata().get(kind, {}).get("count"):  # known without a download
        return int(count)
    if (items := getattr(dataset, f"{kind}_iter", None)) is None:
        raise ValueError(f"{name!r} has no {kind}")
    return sum(1 for _ in items())


def say(options: argparse.Namespace, needs_of: Callable[[argparse.Namespace, Sizes], Needs]) -> float:
    """Says what an experiment needs; returns the hours.

    Args:
        options: Of the command line: a collection of ir_datasets, ``encoder``, and perhaps ``checkpoint``.
        needs_of: The experiment's needs.

    Raises:
        ValueError: If the collection or the checkpoint is unknown.
    """
    sizes = sizes_of(options)
    needs = needs_of(options, sizes)
    checkpoint = getattr(options, "checkpoint", None) or options.encoder
    rates: dict[tuple[int, bool], float] = {}
    parameters = 0
    device = device_of(None)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    logger.info("%s: %s documents, %s queries for training and %s for the test", options.collection,
                *(f"{size:,}" for size in sizes))  # fmt: skip
    total, operations, dimension = 0.0, 0.0, 0
    for work in needs.work:
        key = work.tokens, work.training
        if key not in rates:
            rates[key], parameters, dimension = milliseconds(checkpoint, *key)
        hours = work.texts * rates[key] / 3_600_000
        total += hours
        operations += work.texts * work.tokens * 2 * parameters * (3 if work.training else 1)
        row = f"{work.what}: {work.texts:,.0f} texts of up to {work.tokens} tokens at {rates[key]:.2f} ms"
        logger.info("%s, measured now on %s: %.1f hours", row, machine, hours)
    gib = (sizes.documents * (BM25_BYTES + needs.vectors * dimension * FLOAT32)) / 2**30
    vectors = f", and {needs.vectors} x {dimension} float32 per document, read whole in a search" * (needs.vectors > 0)
    logger.info("disk: about %.1f GiB: the index%s", gib, vectors)
    elsewhere = operations / SUSTAINED / 3600
    logger.info("in all %.1f hours on this machine; computed, not measured: %.1f on a GPU that sustains %.0f TFLOP/s",
                total, elsewhere, SUSTAINED / 1e12)  # fmt: skip
    return total


def milliseconds(checkpoint: str, tokens: int, training: bool) -> tuple[float, int, int]:
    """How long an encoder takes for a text of so many tokens, on this machine; its parameters and dimensions.

    Embeddings are not among the parameters: they are looked up.

    Raises:
        ValueError: If there is no such checkpoint, or it does not read so many tokens.
    """
    device = device_of(None)
    try:
        with loading(checkpoint):
            model: Any = AutoModel.from_pretrained(resolve(checkpoint)).to(device)
    except OSError as error:
        raise ValueError(str(error)) from error
    limit = getattr(model.config, "max_position_embeddings", tokens)
    if tokens > limit:
        raise ValueError(f"{checkpoint!r} reads at most {limit} tokens, not {tokens}")
    batch = torch.randint(model.config.vocab_size, (BATCH if device.type == "cuda" else 4, tokens), device=device)

    def step() -> None:
        with torch.set_grad_enabled(training), precision("auto", device):
            states = model(batch).last_hidden_state
        if training:
            states.float().square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    step()
    start = time.perf_counter()
    for _ in range(REPEATS):
        step()
    duration = 1000 * (time.perf_counter() - start) / REPEATS / len(batch)
    embeddings = sum(parameter.numel() for parameter in model.get_input_embeddings().parameters())
    return duration, model.num_parameters() - embeddings, model.config.hidden_size
