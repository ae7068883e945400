"""The cost of the papers' equations: HGAT, LGRe and the GNN-encoder, each next to what it is compared with.

``OMP_NUM_THREADS=1 python -m experiments.model_cost`` (needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from experiments.harness.cost import Programs, compare
from experiments.harness.synthetic import document
from pyterrier_graph import HGATConfig, HGATReranker, LGReConfig, LGReLoss, TokenEncoder, TokenStore
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.gnn_encoder.equations import BipartiteAttention
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.lgre.equations import LGRe

HGATS = {"BASE": HGATConfig("BASE"), "paper, NO_LB_NS": HGATConfig.paper("NO_LB_NS")}
LGRES: dict[str, dict[str, Any]] = {
    "last layer, T = 1": {"layers": (-1,), "steps": 1},
    "last layer, T = 2": {"layers": (-1,), "steps": 2},
    "all layers, T = 2": {"layers": None, "steps": 2},
}
DIMENSION, HEADS, EDGES = 384, 4, 25  # of graph attention; passages of a query
TEXTS, QUERY_TOKENS = 4, 8


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints processor time of contextualizing against encoding, LGRe against a cross-encoder, and graph attention.

    Documents have 64 passages of 40 words in sections of eight, or are one section of 200, in which each passage
    attends to all others. Texts of the cross-encoder have no padding. PyG's GATConv computes the whole graph at once,
    with equal weights and outcome.
    """
    command = argparse.ArgumentParser(
        prog="python -m experiments.model_cost", description=main.__doc__
    )
    command.add_argument(
        "--passages", type=int, default=200, help="that are contextualized, at least"
    )
    command.add_argument(
        "--tokens", type=int, nargs="+", default=[128, 480], help="of a text of the cross-encoder"
    )
    command.add_argument(
        "--nodes",
        type=int,
        default=100_000,
        help="passages of graph attention; half as many queries",
    )
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options = command.parse_args(arguments)
    tasks, counts = dict[str, Programs](), dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        for dtype, (length, flat) in itertools.product(
            ("float32", "auto"), ((64, False), (200, True))
        ):
            documents = range(-(-options.passages // length))
            graph = MemoryGraph.from_documents(
                [document(n, length, 40, flat=flat) for n in documents]
            )
            task = f"{dtype}: {length} passages in {'one section' if flat else 'sections'}"
            encoder: Any = TokenEncoder(options.encoder, device="cpu", dtype=dtype)  # type: ignore[arg-type]
            tasks[task] = hgats(graph, encoder, Path(folder, f"{len(tasks)}"))
            counts[task] = len(graph.passage_nodes)
        logging.set_verbosity_error()  # that the head is new
        for tokens, action in itertools.product(options.tokens, (score, train)):
            task = f"{action.__name__}, {TEXTS} texts of {tokens} tokens"
            tasks[task], counts[task] = lgres(options.encoder, action, tokens), TEXTS
        task = f"graph attention, {options.nodes:,} passages"
        tasks[task], counts[task] = attention(options.nodes), options.nodes
        return compare(tasks, options.rounds, counts)


def hgats(graph: MemoryGraph, encoder: TokenEncoder, folder: Path) -> Programs:
    """Contextualizing all passages, whose token vectors are stored, and encoding them."""
    tokens = TokenStore(folder / "tokens", verbose=False).build(graph, encoder)
    given: dict[str, Any] = {
        "tokens": tokens,
        "device": "cpu",
        "dtype": encoder.dtype,
        "verbose": False,
    }
    paths = (folder / f"{number}" for number in itertools.count())
    models = {
        f"HGAT, {name}": HGATReranker(graph, encoder, config=config, **given)
        for name, config in HGATS.items()
    }
    encoding = partial(encoder.encode_passages, graph.texts(graph.passage_nodes))
    return {"encoding": encoding} | {
        name: lambda m=m: m.contextualize(next(paths)) for name, m in models.items()
    }


def lgres(checkpoint: str, action: Callable[..., None], tokens: int) -> Programs:
    """A batch by the cross-encoder, in training also without dropout of attention, and by LGRe with its checkpoint."""
    segments = torch.ones(TEXTS, tokens, dtype=torch.long)
    segments[:, : QUERY_TOKENS + 2] = 0
    segments[:, [0, QUERY_TOKENS + 1, -1]] = -1

    def load(**changes: float) -> Any:
        return AutoModelForSequenceClassification.from_pretrained(
            resolve(checkpoint), num_labels=1, **changes
        )

    ids = torch.randint(5, load().config.vocab_size, segments.shape)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(segments)}
    models = {"cross-encoder": load()}
    if action is train:
        models["cross-encoder, no dropout of attention"] = load(attention_probs_dropout_prob=0.0)
    models |= {
        f"LGRe, {name}": LGRe(load(), LGReConfig(**given, init="identity"))
        for name, given in LGRES.items()
    }
    return {name: partial(action, model, inputs, segments) for name, model in models.items()}


def score(model: nn.Module, inputs: dict[str, Tensor], segments: Tensor) -> None:
    """Scores a batch, without gradients."""
    with torch.inference_mode():
        model.eval()(**inputs, **{"segments": segments} if isinstance(model, LGRe) else {})


def train(model: nn.Module, inputs: dict[str, Tensor], segments: Tensor) -> None:
    """Loss and gradients of a batch, in which every other document is relevant."""
    model.train().zero_grad()
    relevant = torch.arange(len(segments)) % 2 == 0
    if isinstance(model, LGRe):
        LGReLoss()(
            model(**inputs, segments=segments), segments, relevant.unflatten(0, (-1, 2))
        ).backward()
    else:
        scores = model(**inputs).logits[:, 0]
        (1 + scores[~relevant] - scores[relevant][:, None]).relu().mean().backward()


def attention(passages: int) -> Programs:
    """Both hops of the GNN-encoder, from the passages to the queries and back; raises AssertionError if PyG differs."""
    torch.manual_seed(0)
    queries = passages // 2
    retrieved = torch.randint(passages, (queries * EDGES,))
    to_queries = CSR(torch.arange(0, queries * EDGES + 1, EDGES), retrieved)
    to_passages = CSR.group(retrieved, to_queries.row_index, passages)
    p, q = torch.randn(passages, DIMENSION), torch.randn(queries, DIMENSION)
    layers = [BipartiteAttention(DIMENSION, HEADS) for _ in range(2)]

    @torch.inference_mode()
    def ours() -> Tensor:
        states = layers[0]((p, q), to_queries)
        return layers[1]((states, p), to_passages)

    def convolution(layer: BipartiteAttention) -> GATConv:
        made = GATConv(
            (DIMENSION, DIMENSION), DIMENSION // HEADS, HEADS, add_self_loops=False, bias=False
        )
        made.lin_src.weight.data = layer.source.weight.data
        made.lin_dst.weight.data = (layer.target or layer.source).weight.data
        made.att_dst.data, made.att_src.data = layer.attention.data[:1], layer.attention.data[1:]
        return made

    def index(
        edges: CSR, sources: int
    ) -> Tensor:  # each target is one more source, as in Eq. 6 and 8
        targets = torch.arange(len(edges))
        return torch.stack(
            [torch.cat([edges.indices, sources + targets]), torch.cat([edges.row_index, targets])]
        )

    convolutions, indices = (
        [*map(convolution, layers)],
        [index(to_queries, passages), index(to_passages, queries)],
    )

    @torch.inference_mode()
    def theirs() -> Tensor:
        hop = convolutions[0]((torch.cat([p, q]), q), indices[0])
        return convolutions[1]((torch.cat([hop, p]), p), indices[1])

    assert torch.allclose(ours(), theirs(), atol=1e-4)
    return {"PyG's GATConv": theirs, "bipartite attention": ours}


if __name__ == "__main__":
    main()
