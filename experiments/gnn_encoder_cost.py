"""What the GNN-encoder's graph attention costs, against PyG's ``GATConv`` over the whole graph at once.

``python -m experiments.gnn_encoder_cost``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.hgat_cost import peak_mib
from pyterrier_graph.models.bipartite_attention import CSR, BipartiteAttention, in_chunks
from pyterrier_graph.models.gnn_encoder import RETRIEVED, PaperGNNEncoderConfig, PaperGNNEncoderNetwork

GATCONV = "GATConv"
OURS = "bipartite attention"
STREAMED = "whole network, streamed"
STREAMED_AT_ONCE = 16_384
Pass = Callable[[], float]


class Graph(NamedTuple):
    """Each query retrieves so many random passages.

    Attributes:
        queries: Vectors, shape (queries, d).
        passages: Vectors, shape (passages, d).
        to_queries: For each query its passages.
        to_passages: For each passage its queries.
    """

    queries: Tensor
    passages: Tensor
    to_queries: CSR
    to_passages: CSR


def main() -> None:
    """Prints processor time per passage and peak memory beyond the vectors, of both hops."""
    command = argparse.ArgumentParser(prog="python -m experiments.gnn_encoder_cost", description=main.__doc__)
    command.add_argument(
        "--sizes", nargs="+", default=["25000:12500", "50000:25000", "100000:50000"], help="passages:queries"
    )
    command.add_argument("--training", nargs="*", default=["20000:10000"], help="of passes with gradients")
    command.add_argument("--edges", type=int, default=25, help="passages of a query")
    command.add_argument("--dimension", type=int, default=384)
    command.add_argument("--heads", type=int, default=4)
    command.add_argument("--repeats", type=int, default=3, help="passes, of which the fastest counts")
    command.add_argument("--without-gatconv", action="store_true", help="where it would not fit in memory")
    command.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.only:
        variant, size, mode = options.only
        print(*measure(variant, size, mode, options))
        return
    compared = [OURS] if options.without_gatconv else [GATCONV, OURS]
    for size in options.sizes:
        print(f"\n{size} passages:queries, {options.edges} edges a query, without gradients")
        print(table(size, "inference", [*compared, STREAMED]).to_string(), flush=True)
    for size in options.training:
        print(f"\n{size} passages:queries, {options.edges} edges a query, with gradients of vectors and parameters")
        print(table(size, "training", compared).to_string(), flush=True)


def table(size: str, mode: str, variants: list[str]) -> pd.DataFrame:
    """Each variant in a process of its own, and how much less than GATConv it takes.

    Raises:
        RuntimeError: If bipartite attention does not compute what GATConv does.
    """
    rows, outcomes = {}, {}
    for variant in variants:
        child = [sys.executable, "-m", "experiments.gnn_encoder_cost", *sys.argv[1:], "--only", variant, size, mode]
        printed = subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()[-3:]
        seconds, mib, outcomes[variant] = map(float, printed)
        rows[variant] = {"us a passage": 1e6 * seconds / int(size.split(":")[0]), "peak MiB": mib}
    costs = pd.DataFrame(rows).T
    if GATCONV not in costs.index:
        return costs.round(1)
    if abs(outcomes[OURS] - outcomes[GATCONV]) > 1e-4 * abs(outcomes[GATCONV]):
        raise RuntimeError(f"they compute different things: {outcomes}")
    times = costs.loc[GATCONV] / costs
    return costs.assign(**{"times faster": times["us a passage"], "times smaller": times["peak MiB"]}).round(1)


def measure(variant: str, size: str, mode: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Seconds of the fastest pass, MiB that passes needed on top of graph and vectors, and a digest of the outcome."""
    torch.manual_seed(0)
    passages, queries = map(int, size.split(":"))
    layers = [BipartiteAttention(options.dimension, options.heads) for _ in range(2)]
    graph = random_graph(passages, queries, options.edges, options.dimension)
    training = mode == "training"
    graph.queries.requires_grad_(training)
    graph.passages.requires_grad_(training)
    make = {GATCONV: gatconv_pass, OURS: attention_pass, STREAMED: streamed_pass}[variant]
    run = make(graph, layers, training)
    before, seconds, outcome = peak_mib(), [], 0.0
    with torch.set_grad_enabled(training):
        for _ in range(options.repeats):
            start = time.process_time()
            outcome = run()
            seconds.append(time.process_time() - start)
    return min(seconds), peak_mib() - before, outcome


def random_graph(passages: int, queries: int, degree: int, dimension: int) -> Graph:
    """The edges first: what sorting them needs is less than the vectors, and so never counts as peak memory."""
    retrieved = torch.randint(passages, (queries * degree,))
    order = retrieved.argsort(stable=True)
    ends = retrieved.bincount(minlength=passages).cumsum(0)
    to_queries = CSR(torch.arange(0, queries * degree + 1, degree), retrieved)
    to_passages = CSR(nn.functional.pad(ends, (1, 0)), order // degree)
    return Graph(torch.randn(queries, dimension), torch.randn(passages, dimension), to_queries, to_passages)


def attention_pass(graph: Graph, layers: list[BipartiteAttention], training: bool) -> Pass:
    """Both hops as :class:`PaperGNNEncoderNetwork` computes them."""

    def hop(layer: BipartiteAttention, targets: Tensor, sources: Tensor, edges: CSR) -> Tensor:
        ready = layer.prepare(sources, len(edges.indices))
        return in_chunks(lambda part: layer(targets[part], ready, edges.rows(part)), targets)

    def both() -> float:
        heard = hop(layers[0], graph.queries, graph.passages, graph.to_queries)
        return finish(hop(layers[1], graph.passages, heard, graph.to_passages), training)

    return both


def gatconv_pass(graph: Graph, layers: list[BipartiteAttention], training: bool) -> Pass:
    """Both hops by PyG, with the same weights; each target is one more source, as in Eq. 6 and 8."""
    from torch_geometric.nn import GATConv

    def peer(layer: BipartiteAttention) -> nn.Module:
        size, heads = layer.dimension, layer.heads
        made = GATConv((size, size), size // heads, heads, add_self_loops=False, bias=False)
        with torch.no_grad():
            made.lin_src.weight.copy_(layer.source.weight)
            made.lin_dst.weight.copy_(layer.target.weight if layer.target else layer.source.weight)
            made.att_dst.copy_(layer.attention[:1])
            made.att_src.copy_(layer.attention[1:])
        return made

    def index(edges: CSR, sources: int) -> Tensor:
        targets = torch.arange(len(edges))
        return torch.stack([torch.cat([edges.indices, sources + targets]), torch.cat([edges.owner, targets])])

    peers = [peer(layer) for layer in layers]
    indices = [index(graph.to_queries, len(graph.passages)), index(graph.to_passages, len(graph.queries))]

    def both() -> float:
        heard = peers[0]((torch.cat([graph.passages, graph.queries]), graph.queries), indices[0])
        return finish(peers[1]((torch.cat([heard, graph.passages]), graph.passages), indices[1]), training)

    return both


def streamed_pass(graph: Graph, layers: list[BipartiteAttention], training: bool) -> Pass:
    """Eq. 6 to 10, fusing and filter gate included, as a corpus is fused: written part by part."""
    first = layers[0]
    network = PaperGNNEncoderNetwork(PaperGNNEncoderConfig(first.dimension, first.heads)).eval()

    def both() -> float:
        with TemporaryFile() as file:
            states = network.query_states(graph.queries, graph.passages, graph.to_queries)
            ready = network.prepare({RETRIEVED: states})
            for start in range(0, len(graph.passages), STREAMED_AT_ONCE):
                part = slice(start, min(start + STREAMED_AT_ONCE, len(graph.passages)))
                edges = {RETRIEVED: graph.to_passages.rows(part)}
                network.passage_states(graph.passages[part], ready, edges).numpy().tofile(file)
        return 0.0

    return both


def finish(passages: Tensor, training: bool) -> float:
    """A digest of the outcome, after going back through it."""
    digest = passages.square().sum()
    if training:
        digest.backward()
    return digest.item()


if __name__ == "__main__":
    main()
