"""Which node states an HGAT computes, layer by layer, to represent some target nodes.

In the No out and No self variants, the state of a node depends on the target that it is computed for (Albarede et al.
2023, Sect. 3.3: j != tgt). A state is therefore identified by a node and a target. Only nodes near a target have a
state that depends on it; the states of all other nodes are computed once for all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.graphs.relations import follow, inverse_path

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

SELF = "SELF"
ALL_TARGETS = -1


@dataclass(frozen=True)
class Hop:
    """The work of one layer: new states are computed from the states of the layer before.

    Attributes:
        previous: For each new state the earlier state of the same node, shape (states,).
        edges: Per relation, SELF included, pairs of a new state and an earlier state that it attends to;
            shape (2, edges).
        without_self: Whether a new state is that of a target that does not attend to itself (No self),
            shape (states,).
    """

    previous: Tensor
    edges: dict[str, Tensor]
    without_self: Tensor

    def to(self, device: torch.device | str, **options: Any) -> Hop:
        """Moves the tensors."""
        edges = {relation: edges.to(device, **options) for relation, edges in self.edges.items()}
        return Hop(self.previous.to(device, **options), edges, self.without_self.to(device, **options))


@dataclass(frozen=True)
class Propagation:
    """The work of all layers for a set of targets.

    Attributes:
        nodes: Nodes whose encoded texts are the input of the first layer, shape (inputs,).
        hops: The layers, first to last.
        targets: For each given target its state after the last layer, shape (targets,).
        inputs: For each given target its position in ``nodes``, shape (targets,).
    """

    nodes: np.ndarray
    hops: tuple[Hop, ...]
    targets: Tensor
    inputs: Tensor

    def to(self, device: torch.device | str, **options: Any) -> Propagation:
        """Moves the tensors; ``nodes`` stay, because token vectors are looked up by them."""
        return replace(
            self,
            hops=tuple(hop.to(device, **options) for hop in self.hops),
            targets=self.targets.to(device, **options),
            inputs=self.inputs.to(device, **options),
        )


def plan_propagation(
    graph: HeteroGraph,
    targets: np.ndarray,
    relations: Sequence[str],
    *,
    layers: int,
    no_out: bool,
    no_self: bool,
) -> Propagation:
    """Works backwards from the targets to the encoded texts.

    Args:
        graph: The graph.
        targets: Node numbers; repetitions are computed once.
        relations: The relations (or paths of relations) of the model, without SELF.
        layers: Number of layers.
        no_out: Whether no node aggregates from the target (Eq. 2).
        no_self: Whether the target does not attend to itself (Eq. 8).
    """
    unique, position = np.unique(np.asarray(targets, dtype=np.int64), return_inverse=True)
    node = unique
    target_dependent = no_out or no_self
    target = np.arange(len(unique)) if target_dependent else np.full(len(unique), ALL_TARGETS)
    states = _States(graph, unique, relations, layers if target_dependent else 0)
    hops: list[Hop] = []
    for layer in range(layers, 0, -1):
        # What the states of the layer before depend on: the message of the target is missing (No out), or the state
        # of the target differs (No self). The difference spreads by one hop per layer.
        radius = layer - 1 if no_out else layer - 2
        if layer == 1 or not target_dependent:
            radius = -1
        target_node = np.where(target == ALL_TARGETS, -1, unique[target])
        is_target = node == target_node
        needed = [states.number(node, target, radius)]
        rows = []
        for relation in relations:
            row, neighbor = follow(graph, node, relation)
            if no_out:  # Eq. 2: j != tgt
                allowed = neighbor != target_node[row]
                row, neighbor = row[allowed], neighbor[allowed]
            rows.append(row)
            needed.append(states.number(neighbor, target[row], radius))
        numbers, index = np.unique(np.concatenate(needed), return_inverse=True)
        previous, *sources = np.split(index, np.cumsum([len(part) for part in needed])[:-1])
        without_self = is_target & no_self
        with_self = np.flatnonzero(~without_self)
        pairs = [(with_self, previous[with_self]), *zip(rows, sources, strict=True)]
        edges = {
            relation: torch.from_numpy(np.stack(pair))
            for relation, pair in zip([SELF, *relations], pairs, strict=True)
            if len(pair[0])
        }
        hops.append(Hop(torch.from_numpy(previous), edges, torch.from_numpy(without_self)))
        node, target = states.split(numbers)
    return Propagation(
        nodes=node,
        hops=tuple(reversed(hops)),
        targets=torch.from_numpy(position),
        inputs=torch.from_numpy(np.searchsorted(node, unique)[position]),
    )


class _States:
    """Numbers the states (node, target), and decides which of them depend on the target.

    Args:
        graph: The graph.
        targets: Node numbers of the targets, ascending.
        relations: Relations, or paths of them, along which states are aggregated.
        hops: The number of layers.
    """

    def __init__(self, graph: HeteroGraph, targets: np.ndarray, relations: Sequence[str], hops: int) -> None:
        self.num_nodes = graph.num_nodes
        front = np.arange(len(targets)) * self.num_nodes + targets
        within = front
        self.within = [within]  # by distance: the sorted keys of nodes that a message of the target can reach
        for _ in range(1, hops):
            target, node = np.divmod(front, self.num_nodes)
            reached = [within]
            for relation in relations:
                # the nodes that aggregate from a node are its neighbors by the inverse relation
                row, neighbor = follow(graph, node, inverse_path(relation))
                reached.append(target[row] * self.num_nodes + neighbor)
            wider = np.unique(np.concatenate(reached))
            front = np.setdiff1d(wider, within, assume_unique=True)
            within = wider
            self.within.append(within)

    def number(self, node: np.ndarray, target: np.ndarray, radius: int) -> np.ndarray:
        """The number of the state of each node for its target: the same for all targets that are farther away.

        Args:
            node: Node numbers, shape (n,).
            target: The position of the target for each, or ``ALL_TARGETS``; shape (n,).
            radius: States of nodes within so many hops depend on the target; -1 where none does.
        """
        if radius < 0 or not len(node):
            return node.astype(np.int64)
        within = self.within[radius]
        key = target * self.num_nodes + node
        found = within[np.minimum(np.searchsorted(within, key), len(within) - 1)] == key
        return np.where(found & (target != ALL_TARGETS), key + self.num_nodes, node)

    def split(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Node and target of each state."""
        target, node = np.divmod(numbers, self.num_nodes)
        return node, target - 1
