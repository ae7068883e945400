"""Checks that need a GPU: models, precision, FAISS, memory and speed, compared with the CPU.

``python -m experiments.gpu_check --output OUTPUT`` writes one table, ``gpu_check.csv``. Without a GPU,
its parts are in the table as skipped, the CPU's are measured, and the command succeeds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from transformers import BertConfig, BertForSequenceClassification

import pyterrier_graph as ptg
from experiments.harness.command import add_options
from experiments.harness.cost import random_text, random_vectors
from experiments.harness.synthetic import document
from pyterrier_graph.encoders.checkpoints import DType, precision
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.gnn_encoder.equations import PaperGNNEncoderConfig, PaperGNNEncoderNetwork
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig, GNNEncoderNetwork
from pyterrier_graph.graph_maxsim.graph_reranker import token_maxima
from pyterrier_graph.graph_mean.neighbors import edge_type
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.hgat.equations import HGAT, HGATConfig
from pyterrier_graph.lgre.equations import LGRe, LGReConfig
from pyterrier_graph.pair.losses import in_batch_loss

LENGTHS: dict[str, Any] = {"max_query_tokens": 32, "max_passage_tokens": 128}
CPU, GPU, NO_GPU = "cpu", "cuda", "skipped: no GPU"
# largest distance from the CPU's float32, relative to its length: of what comes out, and of the gradients
TOLERANCES: dict[DType, tuple[float, float]] = {
    "float32": (1e-4, 1e-3),
    "bfloat16": (0.03, 0.1),
    "float16": (5e-3, 0.03),
}
COMPARED: list[tuple[str, DType]] = [
    (CPU, "bfloat16"),
    (GPU, "float32"),
    (GPU, "bfloat16"),
    (GPU, "float16"),
]
MEASURED: tuple[DType, ...] = ("float32", "bfloat16")
Forward = Callable[[torch.device], Tensor]
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Writes the table; raises SystemExit, with what failed, if something differs from the CPU by more than allowed."""
    command = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description=__doc__)
    command.add_argument("--output", type=Path, default=Path("gpu_check"))
    add_options(
        command,
        "sizes",
        encoder=(DEFAULT, "a checkpoint"),
        passages=(2048, "passages of each measurement"),
        dimension=(384, "of the networks that are compared"),
        repeats=(3, "measurements, of which the fastest counts"),
        devices=([CPU, GPU], "whose speed is measured", [CPU, GPU]),
    )
    options = command.parse_args(arguments)
    rows = [*models(options.dimension), *faiss_search(options), *throughput(options)]
    columns = ["part", "name", "device", "dtype", "value", "unit", "limit", "outcome"]
    table = pd.DataFrame(rows, columns=columns)
    options.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output / "gpu_check.csv", index=False)
    print(about(), table.to_string(), sep="\n")
    if (failed := table[table["outcome"] == "failed"]).size:
        raise SystemExit(f"{len(failed)} checks failed:\n{failed.to_string()}")
    return table


def about() -> str:
    """The machine."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, GPU: {name}"


def models(dimension: int) -> Iterator[Row]:
    """Every model forward and backward, against the CPU in float32."""
    for name, (network, forward) in networks(dimension).items():
        expected = passes(network, forward, torch.device(CPU), "float32")
        for device, dtype in COMPARED:
            row: Row = {"part": "models", "name": name, "device": device, "dtype": dtype}
            if absent(device):
                yield row | {"outcome": NO_GPU}
                continue
            found = passes(network, forward, torch.device(device), dtype)
            for step, limit, ours, theirs in zip(
                ("forward", "backward"), TOLERANCES[dtype], found, expected, strict=True
            ):
                value = float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
                row |= {"name": f"{name}, {step}", "value": value, "limit": limit}
                row |= {"unit": "relative difference"}
                yield row | {"outcome": "passed" if value <= limit else "failed"}


def passes(
    network: nn.Module, forward: Forward, device: torch.device, dtype: DType
) -> tuple[Tensor, Tensor]:
    """The output of a network on a device, and the gradients of its parameters, all on the CPU."""
    network.to(device).zero_grad()
    with precision(dtype, device):
        out = forward(device)
    # no sum of squares: that of vectors of length 1 has no gradient
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (out.float() * probe).sum().backward()
    parts = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    gradients = [torch.empty(0), *(part.detach().float().cpu().flatten() for part in parts)]
    network.cpu()
    return out.detach().float().cpu().flatten(), torch.cat(gradients)


def networks(dimension: int) -> dict[str, tuple[nn.Module, Forward]]:
    """Networks with random weights, and functions that call them on a device, by name."""
    torch.manual_seed(0)
    return gnn_encoders(dimension) | hgats(dimension) | {"LGRe": lgre()}


def gnn_encoders(dimension: int) -> dict[str, tuple[nn.Module, Forward]]:
    """Our network and the papers', on the same random graph."""
    batch = neighbors(dimension)
    trained = GNNEncoderNetwork(GNNEncoderConfig({"title": 1.0, "relevant": 0.5}), dimension)
    for parameter in trained.parameters():  # zeros at the start would hide what goes through them
        nn.init.normal_(parameter, std=0.05)
    retrieved = HeteroData()
    retrieved["passage"].x = retrieved["candidate"].x = passages = batch["passage"].x
    retrieved["query"].x = queries = batch["query"].x
    retrieved["query", "retrieved", "passage"].edge_index = batch[edge_type("relevant")].edge_index
    hop = random_edges(len(queries), len(passages))
    retrieved["candidate", "retrieved", "query"].edge_index = hop
    paper = PaperGNNEncoderNetwork(PaperGNNEncoderConfig(), dimension)
    return {
        "GNNEncoder": (trained, lambda device: trained(batch.to(device))),
        "GNNEncoder of the papers": (paper, lambda device: paper(retrieved.to(device))),
    }


def hgats(dimension: int) -> dict[str, tuple[nn.Module, Forward]]:
    """Two variants of HGAT, with the first eight tokens of a document as the query."""
    graph = MemoryGraph([document(0, 16, 40, flat=False)])
    lengths = torch.arange(graph.num_nodes) % 5 + 3
    values = nn.functional.normalize(torch.randn(int(lengths.sum()), dimension), dim=1)
    states = TokenStates(values, nn.functional.pad(lengths.cumsum(0), (1, 0)))
    made: dict[str, tuple[nn.Module, Forward]] = {}
    for variant in ("BASE", "NO_LB_NS"):
        config = HGATConfig(
            variant, layers=2, init="random", dropout=0.0, relations=graph.relations
        )
        hgat = HGAT(config, dimension, positions=180)
        plan = hgat.plan(graph, graph.passage_nodes)

        def contextualized(device: torch.device, hgat: HGAT = hgat, plan: Any = plan) -> Tensor:
            inputs = states.select(torch.from_numpy(plan.nodes)).to(device)
            out = hgat(inputs, send_to_device(plan, device))
            return token_maxima(values[:8].to(device), out).sum(1)

        made[f"HGAT {variant}"] = hgat, contextualized
    return made


def lgre() -> tuple[nn.Module, Forward]:
    """LGRe on a small BERT, with a batch of random tokens."""
    shape: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 128, "num_labels": 1}
    bert = BertForSequenceClassification(
        BertConfig(vocab_size=100, hidden_dropout_prob=0.0, **shape)
    )
    network = LGRe(bert, LGReConfig(init="random")).eval()
    segments = torch.ones(8, 32, dtype=torch.long)
    segments[:, :8], segments[:, [0, 7, -1]] = 0, -1
    pairs = {
        "input_ids": torch.randint(5, 100, (8, 32)),
        "attention_mask": torch.ones(8, 32, dtype=torch.long),
        "segments": segments,
    }
    return network, lambda device: network(**send_to_device(pairs, device)).scores


def neighbors(dimension: int, passages: int = 256, queries: int = 64) -> HeteroData:
    """Passages with random titles and queries."""
    vectors = [
        torch.from_numpy(random_vectors(np.random.default_rng(seed), passages, dimension))
        for seed in range(2)
    ]
    batch = HeteroData(isolated_share=0.0)
    batch["passage"].x = vectors[0]
    for name, x in {"title": vectors[1][:queries], "relevant": vectors[1][-queries:]}.items():
        kind = edge_type(name)
        batch[kind[0]].x, batch[kind].edge_index = x, random_edges(passages, queries)
    return batch


def random_edges(targets: int, sources: int, degree: int = 3) -> Tensor:
    """Edges from sources to targets, shape (2, edges); every fourth target has none."""
    target = torch.arange(targets).repeat_interleave(degree)
    target = target[target % 4 > 0]
    return torch.stack([torch.randint(sources, target.shape), target])


def faiss_search(options: argparse.Namespace) -> Iterator[Row]:
    """Exhaustive search by FAISS on the GPU, against the CPU."""
    row = {"part": "FAISS", "name": "100 best of all passages", "device": GPU, "limit": 1e-4}
    try:
        import faiss
    except ImportError:
        yield row | {"outcome": "skipped: no FAISS"}
        return
    if absent(GPU):
        yield row | {"outcome": NO_GPU}
        return
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        yield row | {"outcome": "skipped: FAISS without GPU, install [gpu] in place of [faiss]"}
        return
    passages, queries = (
        random_vectors(np.random.default_rng(seed), options.passages) for seed in (0, 1)
    )
    index = faiss.IndexFlatIP(passages.shape[1])
    index.add(passages)
    found = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index).search(
        queries[:256], 100
    )[0]
    value = float(np.abs(found - index.search(queries[:256], 100)[0]).max())
    outcome = "passed" if value <= 1e-4 else "failed"
    yield row | {"value": value, "unit": "largest difference of scores", "outcome": outcome}


def throughput(options: argparse.Namespace) -> Iterator[Row]:
    """Passages a second, and memory of the GPU, in each precision."""
    for device, dtype in itertools.product(options.devices, MEASURED):
        row = {"part": "throughput", "device": device, "dtype": dtype}
        names = ["encoding", "encoding tokens", "training an encoder"]
        if absent(device):
            yield from (row | {"name": name, "outcome": NO_GPU} for name in names)
            continue
        actions = measured(options, device, dtype)
        for name, action in zip(names, actions, strict=True):
            count = action()  # once to warm up
            if device == GPU:
                torch.cuda.reset_peak_memory_stats()
            duration = min(_seconds(action, device) for _ in range(options.repeats))
            row |= {"name": name, "outcome": "measured"}
            yield row | {"value": count / duration, "unit": "passages a second"}
            if device == GPU:
                mib = torch.cuda.max_memory_allocated() / 2**20
                yield row | {"value": mib, "unit": "MiB at most"}


def measured(options: argparse.Namespace, device: str, dtype: DType) -> Iterator[Callable[[], int]]:
    """The measured functions, which return the number of passages that they have worked on."""
    texts = [random_text(np.random.default_rng(number), 60) for number in range(options.passages)]
    encoder = ptg.DualEncoder(options.encoder, **LENGTHS, device=device, dtype=dtype, verbose=False)
    yield lambda: len(encoder.encode_docs(texts))
    tokens = ptg.TokenEncoder(options.encoder, device=device, dtype=dtype)
    yield lambda: len(tokens.encode_passages(texts))
    network = encoder.network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6)
    batch = texts[:32]

    def train() -> int:
        features = send_to_device(network.preprocess(batch), device)
        with precision(dtype, torch.device(device)):
            vectors = network(features)["sentence_embedding"]
            loss = in_batch_loss(
                vectors, vectors, torch.arange(len(batch), device=vectors.device), scale=20
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(batch)

    yield train


def absent(device: str) -> bool:
    """Whether a device is not there."""
    return device == GPU and not torch.cuda.is_available()


def _seconds(action: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    action()
    if device == GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
