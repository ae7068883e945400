"""Graph attention from the nodes of one side of a bipartite graph to those of the other (Liu et al. 2022, Eq. 3-5).

The attention logit of an edge is a sum of what its two nodes and the edge itself put in, each a number per head. Those
of nodes are computed once per node, and what is heard is added up by one product of a sparse and a dense matrix per
head, so that no vector is ever held per edge. W_s is applied to the sources or to the sums, whichever is less work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

SLOPE = 0.2
# how much longer a number takes in a sparse product than in a dense one
SPARSE_WORK = 16
# what a few thousand targets hear fits in a processor's cache; other devices rather have few calls
TARGETS_AT_ONCE = 2_048
TARGETS_AT_ONCE_ELSEWHERE = 65_536

Init = Literal["random", "mean"]


@dataclass(frozen=True)
class CSR:
    """The edges of a bipartite graph by target, as compressed sparse rows.

    Target i hears the sources ``indices[indptr[i]:indptr[i + 1]]``, in any order. Arrays may be memory-mapped: those of
    some targets are read when they are computed.

    Attributes:
        indptr: Shape (targets + 1,), int64 or int32.
        indices: Rows of the sources, shape (edges,), of the same type.
        features: Edge features, shape (edges, d_e), of any floating point type.
        own_features: Features of each target's edge to itself, shape (targets, d_e); None means that they are 0.

    Raises:
        ValueError: If shapes or types do not fit each other.
    """

    indptr: Tensor
    indices: Tensor
    features: Tensor | None = None
    own_features: Tensor | None = None

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or not len(self.indptr) or self.indices.ndim != 1:
            shapes = f"{tuple(self.indptr.shape)} and {tuple(self.indices.shape)}"
            raise ValueError(f"indptr and indices must have shapes (targets + 1,) and (edges,), got {shapes}")
        types = {self.indptr.dtype, self.indices.dtype}
        if len(types) > 1 or not types <= {torch.int64, torch.int32}:
            raise ValueError(f"indptr and indices must both be int64 or both int32, got {types}")
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            ends = f"{int(self.indptr[0])} to {int(self.indptr[-1])}"
            raise ValueError(f"indptr must go from 0 to the number of edges, {len(self.indices)}; it goes from {ends}")
        for name, count in (("features", len(self.indices)), ("own_features", len(self))):
            values = getattr(self, name)
            if values is not None and (values.ndim != 2 or len(values) != count):
                raise ValueError(f"{name} must have shape ({count}, d_e), got {tuple(values.shape)}")

    @classmethod
    def empty(cls, targets: int, device: torch.device | str | None = None) -> CSR:
        """A graph without edges."""
        nothing = torch.zeros(targets + 1, dtype=torch.int64, device=device)
        return cls(nothing, nothing[:0])

    def __len__(self) -> int:
        """Number of targets."""
        return len(self.indptr) - 1

    @cached_property
    def owner(self) -> Tensor:
        """Target of each edge, shape (edges,)."""
        targets = torch.arange(len(self), device=self.indptr.device)
        return targets.repeat_interleave(self.indptr.diff(), output_size=len(self.indices))

    @cached_property
    def turned(self) -> tuple[CSR, Tensor]:
        """The edges by source, as far as there are any, and the place here of each edge there."""
        order = self.indices.argsort(stable=True)
        starts = functional.pad(self.indices.bincount().cumsum(0), (1, 0))
        return CSR(starts, self.owner[order]), order

    def rows(self, part: slice) -> CSR:
        """The edges of some targets, ``part.start`` to ``part.stop``."""
        indptr = self.indptr[part.start : part.stop + 1]
        first, last = indptr[[0, -1]].tolist()
        features, own_features = self.features, self.own_features
        return CSR(
            indptr - first,
            self.indices[first:last],
            None if features is None else features[first:last],
            None if own_features is None else own_features[part],
        )

    def to(self, device: torch.device | str, **options: Any) -> CSR:
        """Moves the tensors."""
        tensors: list[Any] = [getattr(self, field.name) for field in fields(self)]
        moved: list[Any] = [tensor if tensor is None else tensor.to(device, **options) for tensor in tensors]
        return CSR(*moved)


class Sources(NamedTuple):
    """What targets hear, made ready once for any number of calls.

    Attributes:
        tables: h_s, or W_s h_s where it is applied beforehand, per head; (heads, sources, d or d / heads).
        logits: ``a_s W_s h_s``, shape (sources, heads).
        projected: Whether W_s was applied.
    """

    tables: Tensor
    logits: Tensor
    projected: bool


class Weights(NamedTuple):
    """alpha of Eq. 4: how much each target hears of whom; they add up to 1 per target and head, if it hears anything.

    Attributes:
        edges: Of the sources, in the order of :attr:`CSR.indices`, shape (edges, heads).
        own: Of the target itself, shape (targets, heads); 0 where a layer leaves it out.
    """

    edges: Tensor
    own: Tensor


class BipartiteAttention(nn.Module):
    """One GAT layer, of paper 001 (separate W_t, W_s, W_e) or 000 (one W); without the optional activation of Eq. 5.

    With several heads, W_s h is cut into as many parts of d / heads dimensions, which have attention of their own.

    Args:
        dimension: d, of targets, sources and what comes out.
        heads: Number of heads; they divide ``dimension``.
        edge_features: d_e, or None for none.
        shared: Whether W_t is W_s.
        own: Whether a target is one more source of its own.
        init: ``'random'``: Glorot, as in PyG's GATConv. ``'mean'``: W_s is the identity and a is 0, so that the
            untrained layer is the plain mean of the sources.

    Attributes:
        source: W_s, and ``target`` W_t (None where shared), ``edge`` W_e (None without edge features).
        attention: a, in the parts of Eq. 3: target, source and, with edge features, edge; (parts, heads, d / heads).

    Raises:
        ValueError: If the heads do not divide the dimensions.
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
        self.source = nn.Linear(dimension, dimension, bias=False)
        self.target = None if shared else nn.Linear(dimension, dimension, bias=False)
        self.edge = nn.Linear(edge_features, dimension, bias=False) if edge_features else None
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
        """Makes sources ready.

        Args:
            vectors: h_s, shape (sources, d), which may be memory-mapped; or sources that are ready.
            edges: How many edges there are to hear them along. If they are few, W_s is not applied to all sources.
        """
        if isinstance(vectors, Sources):
            return vectors
        self._check("sources", vectors)
        projected = edges is None or (self.heads - 1) * edges * SPARSE_WORK > self.dimension * len(vectors)
        with _full_precision(vectors):
            vectors = vectors.to(self.source.weight.dtype)
            logits = self._logits(vectors, 1, self.source)
            if projected:
                return Sources(vectors @ self.source.weight.unflatten(0, (self.heads, -1)).mT, logits, projected)
            return Sources(vectors.expand(self.heads, -1, -1), logits, projected)

    def weights(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Weights:
        """Eq. 3 and 4: how much each target hears of each source and of itself; arguments as for :meth:`forward`."""
        sources = self._ready(targets, sources, edges)
        with _full_precision(targets):
            targets = targets.to(self.source.weight.dtype)
            by_target = self._logits(targets, 0, self.target or self.source)
            logits = by_target.index_select(0, edges.owner) + sources.logits.index_select(0, edges.indices)  # Eq. 3
            own = by_target + self._logits(targets, 1, self.source) if self.own else None
            if self.edge is not None:
                if edges.features is not None:
                    logits = logits + self._logits(edges.features.to(logits.dtype), 2, self.edge)
                if own is not None and edges.own_features is not None:
                    own = own + self._logits(edges.own_features.to(logits.dtype), 2, self.edge)
            return _softmax(
                functional.leaky_relu(logits, SLOPE),
                None if own is None else functional.leaky_relu(own, SLOPE),
                edges,
            )

    def forward(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Tensor:
        """Eq. 3-5.

        Args:
            targets: h_t, shape (targets, d).
            sources: h_s, shape (sources, d), or what :meth:`prepare` made of them.
            edges: Who hears whom.

        Returns:
            Shape (targets, d); 0 for a target that hears nothing, which happens only without ``own``.

        Raises:
            ValueError: If shapes do not fit, or edge features are missing or not wanted.
        """
        sources = self._ready(targets, sources, edges)
        weights = self.weights(targets, sources, edges)
        projections = self.source.weight.chunk(self.heads)
        with _full_precision(targets):
            targets = targets.to(self.source.weight.dtype)
            parts = []
            for head, projection in enumerate(projections):
                heard = weighted_sum(weights.edges[:, head], sources.tables[head], edges)
                if self.own:
                    itself = functional.linear(targets, projection) if sources.projected else targets
                    heard = torch.addcmul(heard, weights.own[:, head, None], itself)
                parts.append(heard if sources.projected else functional.linear(heard, projection))
            return torch.cat(parts, 1)  # Eq. 5

    def _logits(self, vectors: Tensor, part: int, linear: nn.Linear) -> Tensor:
        """``a W h``, with a and W multiplied first; shape (rows, heads)."""
        weight = linear.weight.unflatten(0, (self.heads, -1))
        return vectors @ torch.einsum("hc,hcd->dh", self.attention[part], weight)

    def _ready(self, targets: Tensor, sources: Tensor | Sources, edges: CSR) -> Sources:
        self._check("targets", targets)
        if len(edges) != len(targets):
            raise ValueError(f"edges must have a row per target, {len(targets)}, got {len(edges)}")
        for name in ("features", "own_features"):
            features = getattr(edges, name)
            if features is not None and self.edge is None:
                raise ValueError(f"this layer was made without edge features, but the edges have {name}")
            if features is not None and self.edge is not None and features.shape[1] != self.edge.in_features:
                raise ValueError(f"{name} must have {self.edge.in_features} columns, got {features.shape[1]}")
        if self.edge is not None and edges.features is None and len(edges.indices):
            raise ValueError(f"this layer needs edge features of {self.edge.in_features} columns")
        return self.prepare(sources, len(edges.indices))

    def _check(self, name: str, vectors: Tensor) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"{name} must have shape (any number, {self.dimension}), got {tuple(vectors.shape)}")


def in_chunks(compute: Callable[[slice], Tensor], targets: Tensor, targets_at_once: int | None = None) -> Tensor:
    """Computes targets part by part, so that of all of them only what comes out is held.

    Args:
        compute: Takes a range of targets, returns a row for each.
        targets: Shape (targets, d).
        targets_at_once: Size of a part. None takes what is fast: few targets on a processor, and all at once where
            gradients are recorded.

    Returns:
        All rows, in the order of the targets.
    """
    if targets_at_once is None:
        fast = TARGETS_AT_ONCE if targets.device.type == "cpu" else TARGETS_AT_ONCE_ELSEWHERE
        targets_at_once = max(1, len(targets)) if torch.is_grad_enabled() else fast
    first = compute(slice(0, min(targets_at_once, len(targets))))
    if len(first) == len(targets):
        return first
    computed = first.new_empty(len(targets), first.shape[1])
    computed[: len(first)] = first
    for start in range(targets_at_once, len(targets), targets_at_once):
        part = slice(start, min(start + targets_at_once, len(targets)))
        computed[part] = compute(part)
    return computed


def mean_of_sources(sources: Tensor, edges: CSR) -> Tensor:
    """Plain mean of what each target hears, 0 where that is nothing; shape (targets, d)."""
    share = 1 / edges.indptr.diff().clamp(min=1).to(sources.dtype)
    return weighted_sum(share.index_select(0, edges.owner), sources, edges)


def weighted_sum(weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
    """Adds up what each target hears: a sparse matrix times a dense one.

    Args:
        weights: Of the edges, shape (edges,).
        vectors: Of the sources, shape (sources, d).
        edges: Who hears whom.

    Returns:
        Shape (targets, d).
    """
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
            turned, order = edges.turned
            heard = _product(weights[order], gradient, turned)
            for_vectors = functional.pad(heard, (0, 0, 0, len(vectors) - len(heard)))
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
    """Eq. 4 over each target's edges, and over its own logits where given."""
    largest = torch.segment_reduce(logits.detach(), "max", offsets=edges.indptr, axis=0)
    if own is not None:
        largest = torch.maximum(largest, own.detach())
    logits = (logits - largest.index_select(0, edges.owner)).exp()
    total = torch.segment_reduce(logits, "sum", offsets=edges.indptr, axis=0)
    if own is None:
        return Weights(logits / total.index_select(0, edges.owner), torch.zeros_like(total))
    own = (own - largest).exp()
    total = total + own
    return Weights(logits / total.index_select(0, edges.owner), own / total)


def _full_precision(vectors: Tensor) -> torch.autocast:
    """Softmax and sums over many sources are not for half a precision, and no autocast knows of them."""
    return torch.autocast(vectors.device.type, enabled=False)
