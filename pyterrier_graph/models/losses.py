"""The loss of dual-encoders: query-centric and passage-centric similarity relations.

R. Ren, S. Lv, Y. Qu, J. Liu, W. X. Zhao, Q. She, H. Wu, H. Wang, J.-R. Wen: PAIR: Leveraging passage-centric similarity
relation for improving dense passage retrieval. Findings of ACL-IJCNLP 2021. "Eq. n" below are that paper's.
"""

from __future__ import annotations

from functools import reduce
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pyterrier_graph.checks import check_choice, check_number

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
    positive ranks its own query, which is right, all negatives, and the texts that ``in_batch`` names.

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

    Returns:
        A scalar, in float32 or float64.

    Raises:
        ValueError: If shapes do not fit, or the loss is not finite.
    """
    check_options(alpha, in_batch, scale)
    _check_shapes(queries, positives, negatives)
    # half a precision has steps of 1 where dot products are above 128 (bfloat16), and ends at 65504 (float16)
    dtype = reduce(torch.promote_types, (queries.dtype, positives.dtype, negatives.dtype), torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
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


def _check_shapes(queries: Tensor, positives: Tensor, negatives: Tensor) -> None:
    if queries.ndim != 2 or not len(queries):
        raise ValueError(f"queries must have shape (batch, dimensions), with one at least, got {tuple(queries.shape)}")
    if positives.shape != queries.shape:
        raise ValueError(
            f"positives must have the shape of queries, {tuple(queries.shape)}, got {tuple(positives.shape)}"
        )
    if negatives.ndim != 2 or negatives.shape[1] != queries.shape[1]:
        raise ValueError(
            f"negatives must have shape (any number, {queries.shape[1]}), for the dimensions of queries, "
            f"got {tuple(negatives.shape)}"
        )
