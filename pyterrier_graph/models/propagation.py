"""Which node states an HGAT has to compute, layer by layer, to represent some target nodes.

In the No out and No self variants the state of a node depends on the target that it is computed for
(Albarede et al. 2023, Sect. 3.3: j != tgt). A state is therefore identified by (node, target). Most states do not
depend on the target, though: only those of nodes that could have heard of it do. The others are computed once for all
targets.
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
EVERYONE = -1


@dataclass(frozen=True)
class Hop:
    """One layer's work: states computed from the states of the layer before.

    Attributes:
        itself: For each new state the earlier state of the same node, shape (states,).
        edges: Per relation, SELF included, the new states that listen and the earlier states they listen to;
            shape (2, edges).
        without_self: Whether a new state is that of a target which must not hear itself (No self), shape (states,).
    """

    itself: Tensor
    edges: dict[str, Tensor]
    without_self: Tensor

    def __len__(self) -> int:
        return len(self.itself)

    def to(self, device: torch.device | str, **options: Any) -> Hop:
        """Moves the tensors."""
        edges = {relation: edges.to(device, **options) for relation, edges in self.edges.items()}
        return Hop(self.itself.to(device, **options), edges, self.without_self.to(device, **options))


@dataclass(frozen=True)
class Propagation:
    """All the work for a set of targets.

    Attributes:
        nodes: Nodes whose encoded texts are the first layer's input, shape (inputs,).
        hops: The layers, first to last.
        targets: For each target asked for, its state after the last layer, shape (targets,).
        inputs: For each target asked for, its position in ``nodes``, shape (targets,).
    """

    nodes: np.ndarray
    hops: tuple[Hop, ...]
    targets: Tensor
    inputs: Tensor

    def to(self, device: torch.device | str, **options: Any) -> Propagation:
        """Moves the tensors; ``nodes`` are for look-ups and stay."""
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
        relations: The relations (or paths of relations) that the model has, without SELF.
        layers: Number of layers.
        no_out: No node hears from the target (Eq. 2).
        no_self: The target does not hear itself (Eq. 8).
    """
    unique, position = np.unique(np.asarray(targets, dtype=np.int64), return_inverse=True)
    node = unique
    owner = np.arange(len(unique)) if no_out or no_self else np.full(len(unique), EVERYONE)
    heard = _Audience(graph, unique, relations, layers if no_out or no_self else 0)
    hops: list[Hop] = []
    for layer in range(layers, 0, -1):
        # what the states of the layer before depend on: the target's own message is missing (No out),
        # or the target's state itself is special (No self), from where it spreads one hop per layer
        radius = layer - 1 if no_out else layer - 2
        if layer == 1 or not (no_out or no_self):
            radius = EVERYONE
        target_node = np.where(owner == EVERYONE, EVERYONE, unique[owner])
        is_target = node == target_node
        sources = [heard.key(node, owner, radius)]
        listeners = []
        for relation in relations:
            listener, neighbor = follow(graph, node, relation)
            if no_out:  # Eq. 2: j != tgt
                allowed = neighbor != target_node[listener]
                listener, neighbor = listener[allowed], neighbor[allowed]
            listeners.append(listener)
            sources.append(heard.key(neighbor, owner[listener], radius))
        keys, index = np.unique(np.concatenate(sources), return_inverse=True)
        itself, *heard_from = np.split(index, np.cumsum([len(source) for source in sources])[:-1])
        without_self = is_target & no_self
        hears_itself = np.flatnonzero(~without_self)
        pairs = [(hears_itself, itself[hears_itself]), *zip(listeners, heard_from, strict=True)]
        edges = {
            relation: torch.from_numpy(np.stack(pair))
            for relation, pair in zip([SELF, *relations], pairs, strict=True)
            if len(pair[0])
        }
        hops.append(Hop(torch.from_numpy(itself), edges, torch.from_numpy(without_self)))
        node, owner = heard.split(keys)
    return Propagation(
        nodes=node,
        hops=tuple(reversed(hops)),
        targets=torch.from_numpy(position),
        inputs=torch.from_numpy(np.searchsorted(node, unique)[position]),
    )


class _Audience:
    """Tells which nodes could have heard of a target within some hops, and numbers the states (node, target)."""

    def __init__(self, graph: HeteroGraph, targets: np.ndarray, relations: Sequence[str], radius: int) -> None:
        self.nodes = graph.num_nodes
        front = np.arange(len(targets)) * self.nodes + targets
        within = front
        self.within = [within]  # sorted (target, node) keys, by distance
        for _ in range(1, radius):
            owner, node = np.divmod(front, self.nodes)
            reached = [within]
            for relation in relations:
                # whoever listens to a node through r is what the node points to through the inverse of r
                row, listener = follow(graph, node, inverse_path(relation))
                reached.append(owner[row] * self.nodes + listener)
            wider = np.unique(np.concatenate(reached))
            front = np.setdiff1d(wider, within, assume_unique=True)
            within = wider
            self.within.append(within)

    def key(self, node: np.ndarray, owner: np.ndarray, radius: int) -> np.ndarray:
        """Number of the state of a node for a target, or for all targets alike if it cannot have heard of this one."""
        if radius < 0 or not len(node):
            return node.astype(np.int64)
        within = self.within[radius]
        own = owner * self.nodes + node
        found = within[np.minimum(np.searchsorted(within, own), len(within) - 1)] == own
        return np.where(found & (owner != EVERYONE), own + self.nodes, node)

    def split(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Node and target of a state's number."""
        owner, node = np.divmod(keys, self.nodes)
        return node, owner - 1
