"""Graph attention from the nodes of one side of a bipartite graph to those of the other (Liu et al. 2022, Eq. 3-5).

The numbers of a node in the attention logits are computed once. The weighted sum over the sources is one product of a
sparse and a dense matrix per head. W_s is applied to the sources or to the sums, whichever is less work. Softmax and
sums over many sources need full precision.

Edges are a :class:`~pyterrier_graph.graphs.csr.CSR` of tensors with a row per target and the rows of its sources as
elements, in any order. ``data["features"]`` are the features of the edges, shape (edges, d_e), and
``row_data["features"]`` those of each target's edge to itself, shape (targets, d_e); without these they are 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from pyterrier_graph.encoders.devices import full_precision
from pyterrier_graph.graphs.csr import CSR

SLOPE = 0.2
FEATURES = "features"
# how much longer a number takes in a sparse product than in a dense one
SPARSE_WORK = 16
# the sums of a few thousand targets fit in a processor's cache; other devices are faster with few calls
TARGETS_AT_ONCE = 2_048
TARGETS_AT_ONCE_ELSEWHERE = 65_536

Init = Literal["random", "mean"]


class Sources(NamedTuple):
    """Sources with all that a layer computes of them alone, for any number of calls."""

    tables: Tensor  # h_s, or W_s h_s where W_s is applied beforehand, per head; (heads, sources, d or d / heads)
    logits: Tensor  # a_s W_s h_s, shape (sources, heads)
    projected: bool  # whether W_s was applied

    def to(self, device: torch.device | str) -> Sources:
        """Moves the tensors to a device."""
        return Sources(self.tables.to(device), self.logits.to(device), self.projected)


class Weights(NamedTuple):
    """alpha of Eq. 4: how much each target attends to each source. The weights of a target add up to 1 per head."""

    edges: Tensor  # to the sources, in the order of CSR.indices, shape (edges, heads)
    own: Tensor  # to the target's own vector, shape (targets, heads); 0 in a layer without it


class BipartiteAttention(nn.Module):
    """One GAT layer, of paper 001 (separate W_t, W_s, W_e) or 000 (one W); without the optional activation of Eq. 5.

    With several heads, W_s h is cut into parts of d / heads dimensions, each with attention of its own.

    Args:
        dimension: d, of targets, sources and what comes out.
        heads: Number of heads; they divide ``dimension``.
        edge_features: d_e, or None for none.
        shared: Whether W_t is W_s.
        own: Whether a target is one more source for itself.
        init: ``'random'``: Glorot, as in PyG's GATConv. ``'mean'``: W_s is the identity and a is 0, so that the
            untrained layer is the plain mean of the sources.
    """

    def __init__(
        self,
        dimension: int,
        heads: int = 1,
        *,
        edge_features: int | None = None,
        shared: bool = False,
        own: bool = True,
        init: Init = "random",
    ) -> None:
        super().__init__()
        if heads < 1 or dimension < 1 or dimension % heads:
            raise ValueError(f"heads must divide the dimensions, got {heads} heads and {dimension} dimensions")
        self.dimension, self.heads, self.own = dimension, heads, own
        self.source = nn.Linear(dimension, dimension, bias=False)  # W_s
        self.target = None if shared else nn.Linear(dimension, dimension, bias=False)  # W_t
        self.edge = nn.Linear(edge_features, dimension, bias=False) if edge_features else None  # W_e
        # a, in the parts of Eq. 3: target, source and, with edge features, edge
        self.attention = nn.Parameter(torch.zeros(3 if edge_features else 2, heads, dimension // heads))
        for linear in (self.source, self.target, self.edge):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
        if init == "mean":
            nn.init.eye_(self.source.weight)
        else:
            for part in self.attention:
                nn.init.xavier_uniform_(part)

    def prepare(self, vectors: Tensor | Sources, edges: int | None = None) -> Sources:
        """Computes what depends on the sources alone: on h_s, shape (sources, d), or on the output of this method.

        If the number of their edges is given, and small, W_s is not applied to all sources.
        """
        if isinstance(vectors, Sources):
            return vectors
        self._check("sources", vectors)
        projected = edges is None or (self.heads - 1) * edges * SPARSE_WORK > self.dimension * len(vectors)
        with full_precision(vectors):
            vectors = vectors.to(self.source.weight.dtype)
            logits = self._logits(vectors, 1, self.source)
            if projected:
                return Sources(vectors @ self.source.weight.unflatten(0, (self.heads, -1)).mT, logits, projected)
            return Sources(vectors.expand(self.heads, -1, -1), logits, projected)

    def weights(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Weights:
        """Eq. 3 and 4: attention to each source and to the target's own vector; arguments as for :meth:`forward`."""
        sources = self._prepared(targets, sources, edges)
        with full_precision(targets):
            targets = targets.to(self.source.weight.dtype)
            by_target = self._logits(targets, 0, self.target or self.source)
            logits = by_target.index_select(0, edges.row_index) + sources.logits.index_select(0, edges.indices)  # Eq. 3
            own = by_target + self._logits(targets, 1, self.source) if self.own else None
            if self.edge is not None:
                if FEATURES in edges.data:
                    logits = logits + self._logits(edges.data[FEATURES].to(logits.dtype), 2, self.edge)
                if own is not None and FEATURES in edges.row_data:
                    own = own + self._logits(edges.row_data[FEATURES].to(logits.dtype), 2, self.edge)
            return _softmax(logits, own, edges)

    def forward(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Tensor:
        """Eq. 3-5, of h_t, shape (targets, d), and h_s, shape (sources, d), or what :meth:`prepare` made of these.

        The output has shape (targets, d); it is 0 for a target without sources in a layer without ``own``.
        """
        sources = self._prepared(targets, sources, edges)
        weights = self.weights(targets, sources, edges)
        with full_precision(targets):
            targets = targets.to(self.source.weight.dtype)
            parts = []
            for head, projection in enumerate(self.source.weight.chunk(self.heads)):
                total = weighted_sum(weights.edges[:, head], sources.tables[head], edges)
                if self.own:
                    own = functional.linear(targets, projection) if sources.projected else targets
                    total = torch.addcmul(total, weights.own[:, head, None], own)
                parts.append(total if sources.projected else functional.linear(total, projection))
            return torch.cat(parts, 1)  # Eq. 5

    def _logits(self, vectors: Tensor, part: int, linear: nn.Linear) -> Tensor:
        """``a W h``, with a and W multiplied first; shape (rows, heads)."""
        weight = linear.weight.unflatten(0, (self.heads, -1))
        return vectors @ torch.einsum("hc,hcd->dh", self.attention[part], weight)

    def _prepared(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Sources:
        self._check("targets", targets)
        if len(edges) != len(targets):
            raise ValueError(f"edges must have a row per target, {len(targets)}, got {len(edges)}")
        for features in (edges.data.get(FEATURES), edges.row_data.get(FEATURES)):
            if features is not None and self.edge is None:
                raise ValueError("this layer was made without edge features, but the edges have features")
            if features is not None and self.edge is not None and features.shape[1:] != (self.edge.in_features,):
                raise ValueError(f"features must have {self.edge.in_features} columns, got shape {[*features.shape]}")
        if self.edge is not None and FEATURES not in edges.data and len(edges.indices):
            raise ValueError(f"this layer needs edge features of {self.edge.in_features} columns")
        return self.prepare(sources, len(edges.indices))

    def _check(self, name: str, vectors: Tensor) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"{name} must have shape (any number, {self.dimension}), got {tuple(vectors.shape)}")


def in_chunks(compute: Callable[[slice], Tensor], targets: Tensor) -> Tensor:
    """Computes targets part by part, so that only the output is held for all of them; with gradients, all at once."""
    size = TARGETS_AT_ONCE if targets.device.type == "cpu" else TARGETS_AT_ONCE_ELSEWHERE
    first = compute(slice(0, len(targets) if torch.is_grad_enabled() else min(size, len(targets))))
    if len(first) == len(targets):
        return first
    computed = first.new_empty(len(targets), first.shape[1])
    computed[: len(first)] = first
    for start in range(size, len(targets), size):
        part = slice(start, min(start + size, len(targets)))
        computed[part] = compute(part)
    return computed


def mean_of_sources(sources: Tensor, edges: CSR) -> Tensor:
    """Mean of the sources of each target, 0 for a target without any; shape (targets, d)."""
    share = 1 / edges.lengths.clamp(min=1).to(sources.dtype)
    return weighted_sum(share.index_select(0, edges.row_index), sources, edges)


def weighted_sum(weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
    """Weighted sum over the sources of each target, shape (targets, d): a sparse matrix times a dense one."""
    return cast(Tensor, _SparseProduct.apply(weights, vectors, edges))


class _SparseProduct(Function):
    """Sparse times dense, and gradients likewise: torch's own gradients of either form are ten times slower.

    ``embedding_bag`` is the faster of torch's two products on a processor. Gradients of the weights are a product that
    is computed at the edges only; those of the vectors are the product with the transposed matrix.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
        ctx.save_for_backward(weights, vectors)
        ctx.edges = edges
        return _product(weights, vectors, edges)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, vectors = ctx.saved_tensors
        edges, gradient = ctx.edges, gradients[0].contiguous()
        for_weights = for_vectors = None
        if ctx.needs_input_grad[0]:
            shape = len(edges), len(vectors)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
                pattern = torch.sparse_csr_tensor(edges.indptr, edges.indices, weights, shape, check_invariants=False)
            for_weights = torch.sparse.sampled_addmm(pattern, gradient, vectors.T, beta=0).values()
        if ctx.needs_input_grad[1]:
            transpose, order = edges.transpose()
            sums = _product(weights[order], gradient, transpose)
            for_vectors = functional.pad(sums, (0, 0, 0, len(vectors) - len(sums)))
        return for_weights, for_vectors, None


def _product(weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
    return functional.embedding_bag(
        edges.indices,
        vectors,
        edges.indptr,
        mode="sum",
        per_sample_weights=weights.contiguous(),
        include_last_offset=True,
    )


def _softmax(logits: Tensor, own: Tensor | None, edges: CSR) -> Weights:
    """LeakyReLU, then Eq. 4 over each target's edges, and over its own logits where given."""
    logits = functional.leaky_relu(logits, SLOPE)
    largest = torch.segment_reduce(logits.detach(), "max", offsets=edges.indptr, axis=0)
    if own is not None:
        own = functional.leaky_relu(own, SLOPE)
        largest = torch.maximum(largest, own.detach())
    logits = (logits - largest.index_select(0, edges.row_index)).exp()
    total = torch.segment_reduce(logits, "sum", offsets=edges.indptr, axis=0)
    if own is None:
        return Weights(logits / total.index_select(0, edges.row_index), torch.zeros_like(total))
    own = (own - largest).exp()
    total = total + own
    return Weights(logits / total.index_select(0, edges.row_index), own / total)
