"""The loss of dual-encoders: query-centric and passage-centric similarity relations; also for sentence-transformers.

R. Ren, S. Lv, Y. Qu, J. Liu, W. X. Zhao, Q. She, H. Wu, H. Wang, J.-R. Wen: PAIR: Leveraging passage-centric similarity
relation for improving dense passage retrieval. Findings of ACL-IJCNLP 2021. "Eq. n" below are that paper's.
"""

import warnings
from collections.abc import Iterable
from functools import reduce
from typing import Literal, get_args

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.modules import Normalize
from sentence_transformers.util import all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pyterrier_graph.checks import check_choice, check_count, check_number
from pyterrier_graph.encoders.devices import full_precision
from pyterrier_graph.warning_categories import QualityWarning

InBatch = Literal["queries", "positives"]


def pair_loss(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor,
    alpha: float = 0.1,
    *,
    in_batch: InBatch = "queries",
    scale: float = 1.0,
    rows: slice = slice(None),
) -> Tensor:
    """The loss of PAIR, ``(1 - alpha) L_Q + alpha L_P`` (Eq. 6), of a batch of queries with one positive passage each.

    Similarities are dot products. Both losses are the mean negative log likelihood of the right candidate. In L_Q
    (Eq. 3) each query ranks all positives and negatives of the batch; its own positive is right. In L_P (Eq. 5) each
    positive ranks its own query, which is right, all negatives, and the texts that ``in_batch`` names. The loss is a
    scalar in float32 or float64; shapes that do not fit and a loss that is not finite are a ValueError.

    Args:
        queries: q, shape (batch, dimensions).
        positives: p+ of each query, shape (batch, dimensions).
        negatives: Hard negatives p- of all queries together, in any order, shape (any number, dimensions).
        alpha: Weight of L_P, 0 to 1.
        in_batch: Which texts of the other queries a positive ranks. ``'queries'``: these queries themselves, as in the
            code that the authors released. ``'positives'``: their positives, as in the printed Eq. 5, whose sum runs
            over the same p- as that of Eq. 3.
        scale: Factor of all similarities, the inverse of a temperature. The paper has none, which is 1.
        rows: The queries and positives that the loss is computed of, a slice without a step. The other queries and
            positives are only ranked.
    """
    check_options(alpha, in_batch, scale)
    q_shape, p_shape, n_shape = (tuple(vectors.shape) for vectors in (queries, positives, negatives))
    if len(q_shape) != 2 or not len(queries):
        raise ValueError(f"queries must have shape (batch, dimensions), with one at least, got {q_shape}")
    if p_shape != q_shape:
        raise ValueError(f"positives must have the shape of queries, {q_shape}, got {p_shape}")
    if len(n_shape) != 2 or n_shape[1] != q_shape[1]:
        raise ValueError(f"negatives must have shape (any number, {q_shape[1]}), as queries have, got {n_shape}")
    # half a precision has steps of 1 where dot products are above 128 (bfloat16), and ends at 65504 (float16)
    dtype = reduce(torch.promote_types, (queries.dtype, positives.dtype, negatives.dtype), torch.float32)
    with full_precision(queries):
        q, positive, negative = (vectors.to(dtype) for vectors in (queries, positives, negatives))
        passages = torch.cat([positive, negative])
        own = torch.arange(len(q), device=q.device)[rows]
        loss = q.new_zeros(())
        if alpha < 1:
            loss = loss + (1 - alpha) * cross_entropy(scale * q[rows] @ passages.T, own)  # Eq. 3, 6
        if alpha > 0:
            centers = positive[rows]
            if in_batch == "queries":
                similarities = centers @ torch.cat([q, negative]).T
            else:  # s(p+, q) in the place of s(p+, p+)
                similarities = (centers @ passages.T).scatter(1, own[:, None], (centers * q[rows]).sum(1, keepdim=True))
            loss = loss + alpha * cross_entropy(scale * similarities, own)  # Eq. 5, 6
    if not loss.isfinite():
        named = {"queries": queries, "positives": positives, "negatives": negatives}
        wrong = [name for name, vectors in named.items() if not vectors.isfinite().all()]
        raise ValueError(f"the loss is not finite: {' and '.join(wrong) or 'no vectors'} hold NaN or infinity")
    return loss


def check_options(alpha: float, in_batch: str, scale: float) -> None:
    """Raises ValueError if an option of :func:`pair_loss` is unknown or out of range."""
    check_number("alpha", alpha, 0, 1)
    check_choice("in_batch", in_batch, get_args(InBatch))
    check_number("scale", scale, 0)
    if scale == 0:
        raise ValueError("scale must be above 0, got 0")


class PAIRLoss(CachedLossMixin, nn.Module):
    """:func:`pair_loss` for the trainer of sentence-transformers.

    The columns of the training set are, in this order and under any names: query, positive passage, and any number of
    hard negatives (also none), which serve all queries of the batch. A passage that is twice in a batch would be its
    own negative, so use ``batch_sampler=BatchSamplers.NO_DUPLICATES``.

    Args:
        model: The dual-encoder.
        alpha: See :func:`pair_loss`, as for ``in_batch`` and ``scale``. (The paper: 0.1 in pre-training, 0 in
            fine-tuning.)
        in_batch: See above.
        scale: See above. It should be larger than 1 for normalized vectors.
        gather_across_devices: Whether the passages and queries of all processes are ranked (cross-batch negatives).
            Each process then needs a batch of the same size.
        mini_batch_size: Number of texts that are encoded at once, and of rows of similarities that are computed at
            once, in a batch of any size (GradCache). Loss and gradients are those of the whole batch. Memory grows with
            the batch by its vectors only, but every text is encoded twice. None encodes a whole column at once.
    """

    mini_batch_size: int | None  # type: ignore[assignment]

    def __init__(
        self,
        model: SentenceTransformer,
        alpha: float = 0.1,
        *,
        in_batch: InBatch = "queries",
        scale: float = 1.0,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        check_options(alpha, in_batch, scale)
        if mini_batch_size is not None:
            check_count("mini_batch_size", mini_batch_size)
            if has_static_embedding_input(model):
                raise ValueError("the inputs of a StaticEmbedding cannot be split: mini_batch_size must be None")
        if scale == 1 and any(isinstance(module, Normalize) for module in model.modules()):
            problem = "vectors are normalized: with scale=1, hard negatives hardly count for more than easy ones"
            warnings.warn(f"{problem}; try scale=20", QualityWarning, stacklevel=2)
        self.model, self.gather_across_devices = model, gather_across_devices
        self.alpha, self.in_batch, self.scale = alpha, in_batch, scale
        self.mini_batch_size = mini_batch_size
        self.uses_gradient_cache = mini_batch_size is not None  # losses that wrap this one read it

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar, by the tokens of each column; ``labels`` are not used."""
        columns = list(sentence_features)
        if len(columns) < 2:
            raise ValueError(f"needs a column of queries, one of positives, then any of negatives, got {len(columns)}")
        if self.uses_gradient_cache:
            return self.forward_cached(columns)
        return self.calculate_loss([[self.model(features)["sentence_embedding"]] for features in columns])

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the vectors of each column's parts, of shape (texts, dimensions); gradient caching calls it.

        ``with_backward``, it computes the gradients of the vectors, a few rows of similarities at a time, and the loss
        that it returns is detached.
        """
        queries, positives, *negatives = (torch.cat(parts) for parts in reps)
        size, first = len(queries), 0
        vectors = [queries, positives, torch.cat([queries[:0], *negatives])]
        if self.gather_across_devices:
            vectors = [all_gather_with_grad(part) for part in vectors]
            first = get_rank() * size
        # gradients of these are summed up, and sent to the other processes once
        leaves = [part.detach().requires_grad_() for part in vectors] if with_backward else vectors
        q, positive, negative = leaves
        step = self.mini_batch_size or size
        total = queries.new_zeros(())
        for start in range(first, first + size, step):
            rows = slice(start, min(start + step, first + size))
            loss = pair_loss(q, positive, negative, self.alpha, in_batch=self.in_batch, scale=self.scale, rows=rows)
            loss = loss * ((rows.stop - rows.start) / size)
            if with_backward:
                loss.backward()
                loss = loss.detach()
            total = total + loss
        if with_backward:
            torch.autograd.backward(vectors, [leaf.grad for leaf in leaves])
        return total
