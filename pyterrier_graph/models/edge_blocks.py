"""The edges of one relation, grouped so that nodes with the same neighbors attend to them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

SMALLEST_BLOCK = 4  # edges; fewer are cheaper one by one


@dataclass(frozen=True)
class Block:
    """Nodes that have nearly the same neighbors, such as the passages of one section."""

    nodes: Tensor  # positions in the nodes of the edges, ascending; shape (n,)
    neighbors: Tensor  # positions in their neighbors, ascending; shape (k,)
    allowed: Tensor  # which pairs are edges, bool of shape (k, n)
    complete: bool  # whether all pairs are

    def to(self, device: torch.device | str) -> Block:
        """Moves the tensors."""
        return Block(self.nodes.to(device), self.neighbors.to(device), self.allowed.to(device), self.complete)


@dataclass(frozen=True)
class EdgeBlocks:
    """Edges from nodes to the neighbors that they attend to: each is in one block, or is a pair of its own."""

    nodes: Tensor  # the nodes that have neighbors, distinct and ascending
    neighbors: Tensor  # the nodes that they attend to, likewise
    blocks: tuple[Block, ...]
    pairs: Tensor  # the other edges: positions in ``nodes`` and in ``neighbors``, shape (2, edges)

    @classmethod
    def of(cls, node: np.ndarray, neighbor: np.ndarray) -> EdgeBlocks:
        """Groups distinct edges.

        Nodes and neighbors fall into parts that no edge joins. In each part, the neighbors that at least half of the
        nodes attend to make a block with all its nodes.
        """
        nodes, node = np.unique(node, return_inverse=True)
        neighbors, neighbor = np.unique(neighbor, return_inverse=True)
        size = len(nodes) + len(neighbors)
        graph = coo_array((np.ones(len(node), dtype=bool), (node, neighbor + len(nodes))), shape=(size, size))
        count, part = connected_components(graph, directed=False)
        of_nodes, of_neighbors = part[: len(nodes)], part[len(nodes) :]
        frequent = 2 * np.bincount(neighbor) >= np.bincount(of_nodes, minlength=count)[of_neighbors]
        in_block = frequent[neighbor]
        edges = np.bincount(of_nodes[node[in_block]], minlength=count)
        in_block &= edges[of_nodes[node]] >= SMALLEST_BLOCK
        order = np.flatnonzero(in_block)[np.argsort(of_nodes[node[in_block]], kind="stable")]
        blocks = map(_block, *_split(of_nodes[node[order]], node[order], neighbor[order]))
        pairs = torch.from_numpy(np.stack([node[~in_block], neighbor[~in_block]]))
        return cls(torch.from_numpy(nodes), torch.from_numpy(neighbors), tuple(blocks), pairs)

    def to(self, device: torch.device | str) -> EdgeBlocks:
        """Moves the tensors."""
        blocks = tuple(block.to(device) for block in self.blocks)
        return EdgeBlocks(self.nodes.to(device), self.neighbors.to(device), blocks, self.pairs.to(device))

    def sum(self, values: Tensor) -> Tensor:
        """Per node the sum over its neighbors' values, float32; shapes (neighbors, ...) and (nodes, ...)."""
        rows = values.float().reshape(len(values), -1)
        node, neighbor = self.pairs
        total = rows.new_zeros(len(self.nodes), rows.shape[1])
        with torch.autocast(rows.device.type, enabled=False):  # adding up in half precision loses too much
            total.index_add_(0, node, rows[neighbor])
            for block in self.blocks:
                total.index_add_(0, block.nodes, block.allowed.T.to(rows.dtype) @ rows[block.neighbors])
        return total.reshape(-1, *values.shape[1:])


def _split(group: np.ndarray, *arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Each array, split where the sorted numbers of groups change."""
    places = np.flatnonzero(np.diff(group)) + 1
    return (np.split(array, places) if len(group) else [] for array in arrays)


def _block(node: np.ndarray, neighbor: np.ndarray) -> Block:
    nodes, row = np.unique(node, return_inverse=True)
    neighbors, column = np.unique(neighbor, return_inverse=True)
    allowed = np.zeros((len(neighbors), len(nodes)), dtype=bool)
    allowed[column, row] = True
    return Block(torch.from_numpy(nodes), torch.from_numpy(neighbors), torch.from_numpy(allowed), bool(allowed.all()))
