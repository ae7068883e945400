"""The cost of the GNN-encoder's graph attention, against PyG's ``GATConv`` over the whole graph at once.

``python -m experiments.gnn_encoder_cost``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryFile
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.harness.cost import in_process, peak_mib, seconds
from pyterrier_graph.gnn_encoder.equations import BipartiteAttention, PaperGNNEncoderConfig, PaperGNNEncoderNetwork
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RETRIEVED

GATCONV = "GATConv"
OURS = "bipartite attention"
STREAMED = "whole network, streamed"
STREAMED_AT_ONCE = 16_384


class Graph(NamedTuple):
    """Queries that retrieve random passages.

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


def main(arguments: Sequence[str] | None = None) -> list[pd.DataFrame]:
    """Prints processor time per passage and peak memory beyond the vectors, of both hops."""
    command = argparse.ArgumentParser(prog="python -m experiments.gnn_encoder_cost", description=main.__doc__)
    sizes = ["25000:12500", "50000:25000", "100000:50000"]
    command.add_argument("--sizes", nargs="+", default=sizes, help="passages:queries")
    command.add_argument("--training", nargs="*", default=["20000:10000"], help="of passes with gradients")
    command.add_argument("--edges", type=int, default=25, help="passages of a query")
    command.add_argument("--dimension", type=int, default=384)
    command.add_argument("--heads", type=int, default=4)
    command.add_argument("--repeats", type=int, default=3, help="passes, of which the fastest counts")
    command.add_argument("--without-gatconv", action="store_true", help="where GATConv does not fit in memory")
    command.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    options = command.parse_args(given)
    if options.only:
        variant, size, mode = options.only
        print(*measure(variant, size, mode, options))
        return []
    compared = [OURS] if options.without_gatconv else [GATCONV, OURS]
    runs = [(size, "inference", [*compared, STREAMED]) for size in options.sizes]
    runs += [(size, "training", compared) for size in options.training]
    tables = []
    for size, mode, variants in runs:
        print(f"\n{size} passages:queries, {options.edges} edges a query, {mode}")
        tables.append(table(size, mode, variants, given))
        print(tables[-1].to_string(), flush=True)
    return tables


def table(size: str, mode: str, variants: list[str], arguments: Sequence[str]) -> pd.DataFrame:
    """Each variant in a process of its own, and how much less than GATConv it takes.

    Raises:
        RuntimeError: If bipartite attention does not compute what GATConv computes.
    """
    rows, outcomes = {}, {}
    for variant in variants:
        measured = in_process("experiments.gnn_encoder_cost", *arguments, "--only", variant, size, mode)
        duration, mib, outcomes[variant] = measured
        rows[variant] = {"us a passage": 1e6 * duration / int(size.split(":")[0]), "peak MiB": mib}
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
    run, before, outcomes = make(graph, layers), peak_mib(), [0.0]

    def once() -> None:
        digest = run()
        if training:
            digest.backward()
        outcomes.append(digest.item())

    with torch.set_grad_enabled(training):
        durations = [seconds(once, time.process_time) for _ in range(options.repeats)]
    return min(durations), peak_mib() - before, outcomes[-1]


def random_graph(passages: int, queries: int, degree: int, dimension: int) -> Graph:
    """The edges are made first: sorting them takes less memory than the vectors, and so never counts as the peak."""
    retrieved = torch.randint(passages, (queries * degree,))
    to_queries = CSR(torch.arange(0, queries * degree + 1, degree), retrieved)
    to_passages = CSR.group(retrieved, to_queries.row_index, passages)
    return Graph(torch.randn(queries, dimension), torch.randn(passages, dimension), to_queries, to_passages)


def attention_pass(graph: Graph, layers: list[BipartiteAttention]) -> Callable[[], Tensor]:
    """Both hops as :class:`PaperGNNEncoderNetwork` computes them, and the sum of squares of the outcome."""

    def both() -> Tensor:
        queries = layers[0](graph.queries, graph.passages, graph.to_queries)
        return layers[1](graph.passages, queries, graph.to_passages).square().sum()

    return both


def gatconv_pass(graph: Graph, layers: list[BipartiteAttention]) -> Callable[[], Tensor]:
    """The same by PyG, with the same weights; each target is one more source, as in Eq. 6 and 8."""
    from torch_geometric.nn import GATConv

    def convolution(layer: BipartiteAttention) -> nn.Module:
        size, heads = layer.dimension, layer.heads
        made = GATConv((size, size), size // heads, heads, add_self_loops=False, bias=False)
        with torch.no_grad():
            made.lin_src.weight.copy_(layer.source.weight)
            made.lin_dst.weight.copy_((layer.target or layer.source).weight)
            made.att_dst.copy_(layer.attention[:1])
            made.att_src.copy_(layer.attention[1:])
        return made

    def index(edges: CSR, sources: int) -> Tensor:
        targets = torch.arange(len(edges))
        return torch.stack([torch.cat([edges.indices, sources + targets]), torch.cat([edges.row_index, targets])])

    first, second = map(convolution, layers)
    indices = [index(graph.to_queries, len(graph.passages)), index(graph.to_passages, len(graph.queries))]

    def both() -> Tensor:
        queries = first((torch.cat([graph.passages, graph.queries]), graph.queries), indices[0])
        return second((torch.cat([queries, graph.passages]), graph.passages), indices[1]).square().sum()

    return both


def streamed_pass(graph: Graph, layers: list[BipartiteAttention]) -> Callable[[], Tensor]:
    """Eq. 6 to 10, gate included, as an index is made: written part by part."""
    config = PaperGNNEncoderConfig(heads=layers[0].heads)
    network = PaperGNNEncoderNetwork(config, layers[0].dimension).eval()

    def both() -> Tensor:
        with TemporaryFile() as file:
            states = network.query_states(graph.queries, graph.passages, graph.to_queries)
            for start in range(0, len(graph.passages), STREAMED_AT_ONCE):
                part = slice(start, min(start + STREAMED_AT_ONCE, len(graph.passages)))
                edges = {RETRIEVED: graph.to_passages.rows(part)}
                network.passage_states(graph.passages[part], {RETRIEVED: states}, edges).numpy().tofile(file)
        return torch.zeros(())

    return both


if __name__ == "__main__":
    main()
