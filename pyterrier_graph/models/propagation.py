"""Which node states an HGAT computes, layer by layer, to represent some target nodes.

In the No out and No self variants, the state of a node depends on the target that it is computed for (Albarede et al.
2023, Sect. 3.3: j != tgt). A state is therefore identified by a node and a target. Only nodes near a target have a
state that depends on it; the states of all other nodes are computed once for all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.graphs.relations import follow, inverse_path
from pyterrier_graph.models.edge_blocks import EdgeBlocks

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.models.hgat import HGATConfig

SELF = "SELF"
ALL_TARGETS = -1


@dataclass(frozen=True)
class Hop:
    """The work of one layer: new states are computed from the states of the layer before."""

    previous: Tensor  # for each new state the earlier state of the same node, shape (states,)
    edges: dict[str, EdgeBlocks]  # per relation and SELF: new states, and the earlier ones that they attend to
    without_self: Tensor  # whether a new state is that of a target that does not attend to itself (Eq. 8), (states,)

    def to(self, device: torch.device | str) -> Hop:
        """Moves the tensors."""
        edges = {relation: edges.to(device) for relation, edges in self.edges.items()}
        return Hop(self.previous.to(device), edges, self.without_self.to(device))


@dataclass(frozen=True)
class Propagation:
    """The work of all layers for a set of targets."""

    nodes: np.ndarray  # nodes whose encoded texts are the input of the first layer, shape (inputs,)
    hops: tuple[Hop, ...]  # the layers, first to last
    targets: Tensor  # for each given target its state after the last layer, shape (targets,)
    inputs: Tensor  # for each given target its position in ``nodes``, shape (targets,)
    # per relation whose tokens are matched directly: positions in the distinct targets, and of neighbors in ``nodes``
    matches: tuple[tuple[Tensor, Tensor], ...] = ()

    def to(self, device: torch.device | str) -> Propagation:
        """Moves the tensors; ``nodes`` stay, because token vectors are looked up by them."""
        hops = tuple(hop.to(device) for hop in self.hops)
        matches = tuple((target.to(device), place.to(device)) for target, place in self.matches)
        return Propagation(self.nodes, hops, self.targets.to(device), self.inputs.to(device), matches)


def plan_propagation(
    graph: HeteroGraph, targets: np.ndarray, relations: Sequence[str], config: HGATConfig, tolerance: float = 0.0
) -> Propagation:
    """Works backwards from the targets, which are node numbers, to the encoded texts; relations are without SELF.

    With a tolerance above 0, a state is shared by all targets, too, where what depends on the target is at most that
    part of the node's neighbors: with 0.05, the state of a section with 20 passages or more.
    """
    layers, no_out, no_self = config.layers, config.no_out, config.no_self
    unique, position = np.unique(np.asarray(targets, dtype=np.int64), return_inverse=True)
    target_dependent = no_out or no_self
    node, target = unique, np.arange(len(unique)) if target_dependent else np.full(len(unique), ALL_TARGETS)
    states = _States(graph, unique, relations, layers if target_dependent else 0, tolerance)
    hops: list[Hop] = []
    for layer in range(layers, 0, -1):
        # What the states of the layer before depend on: the message of the target is missing (No out), or the state
        # of the target differs (No self). The difference spreads by one hop per layer.
        radius = (layer - 1 if no_out else layer - 2) if layer > 1 and target_dependent else -1
        target_node = np.where(target == ALL_TARGETS, -1, unique[target])
        needed, rows = [states.number(node, target, radius)], []
        for relation in relations:
            row, neighbor = follow(graph, node, relation)
            if no_out:  # Eq. 2: j != tgt
                allowed = neighbor != target_node[row]
                row, neighbor = row[allowed], neighbor[allowed]
            rows.append(row)
            needed.append(states.number(neighbor, target[row], radius))
        numbers, index = np.unique(np.concatenate(needed), return_inverse=True)
        previous, *sources = np.split(index, np.cumsum([len(part) for part in needed])[:-1])
        without_self = (node == target_node) & no_self
        with_self = np.flatnonzero(~without_self)
        pairs = [(SELF, with_self, previous[with_self]), *zip(relations, rows, sources, strict=True)]
        edges = {name: EdgeBlocks.of(row, source) for name, row, source in pairs if len(row)}
        hops.append(Hop(torch.from_numpy(previous), edges, torch.from_numpy(without_self)))
        node, target = numbers % graph.num_nodes, numbers // graph.num_nodes - 1
    inputs = np.searchsorted(node, unique)[position]
    return Propagation(node, tuple(reversed(hops)), torch.from_numpy(position), torch.from_numpy(inputs))


class _States:
    """Numbers the states (node, target), and decides which of them depend on the target. ``targets`` ascend."""

    def __init__(
        self, graph: HeteroGraph, targets: np.ndarray, relations: Sequence[str], hops: int, tolerance: float
    ) -> None:
        self.num_nodes = graph.num_nodes
        front = np.arange(len(targets)) * self.num_nodes + targets
        self.within = [front]  # by distance: the sorted keys of nodes that a message of the target can reach
        for _ in range(1, hops):
            target, node = np.divmod(front, self.num_nodes)
            reached = [self.within[-1]]
            for relation in relations:
                # the nodes that aggregate from a node are its neighbors by the inverse relation
                row, neighbor = follow(graph, node, inverse_path(relation))
                if tolerance:
                    nodes, place = np.unique(neighbor, return_inverse=True)
                    number = np.bincount(follow(graph, nodes, relation)[0], minlength=len(nodes))
                    depends = number[place] * tolerance < 1
                    row, neighbor = row[depends], neighbor[depends]
                reached.append(target[row] * self.num_nodes + neighbor)
            self.within.append(np.unique(np.concatenate(reached)))
            front = np.setdiff1d(self.within[-1], self.within[-2], assume_unique=True)

    def number(self, node: np.ndarray, target: np.ndarray, radius: int) -> np.ndarray:
        """The number of the state of each node for its target (a position in the targets, or ``ALL_TARGETS``).

        It is the same for all targets that are more than ``radius`` hops away; with -1, for all targets.
        """
        if radius < 0 or not len(node):
            return node.astype(np.int64)
        within = self.within[radius]
        key = target * self.num_nodes + node
        found = within[np.minimum(np.searchsorted(within, key), len(within) - 1)] == key
        return np.where(found & (target != ALL_TARGETS), key + self.num_nodes, node)
