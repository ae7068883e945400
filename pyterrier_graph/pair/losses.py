r"""The loss of PAIR: query-centric and passage-centric similarity relations, also for sentence-transformers.

With the similarity :math:`s(x, y) = x \cdot y` of vectors, B the positives and negatives of a batch, and N its
negatives, for each query q with its positive :math:`p^+`:

.. math::

    L_Q &= -\log \frac{e^{s(q, p^+)}}{\sum_{p \in B} e^{s(q, p)}} \quad \text{(Eq. 3)}

    L_P &= -\log \frac{e^{s(p^+, q)}}{e^{s(p^+, q)} + \sum_{p^- \in N} e^{s(p^+, p^-)} + \ldots} \quad \text{(Eq. 5)}

    L &= (1 - \alpha) L_Q + \alpha L_P \quad \text{(Eq. 6)}

PAIR pre-trains with ``alpha=0.1`` on many pseudo-labels, and fine-tunes with ``alpha=0``, the loss of RocketQA.

R. Ren, S. Lv, Y. Qu, J. Liu, W. X. Zhao, Q. She, H. Wu, H. Wang, J.-R. Wen: PAIR: Leveraging passage-centric similarity
relation for improving dense passage retrieval. Findings of ACL-IJCNLP 2021. "Eq. n" below are that paper's.
"""

from collections.abc import Iterable

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin
from sentence_transformers.util import all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pyterrier_graph.encoders.checkpoints import at_least_float32, full_precision


def pair_loss(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor,
    alpha: float = 0.1,
    *,
    scale: float = 1.0,
    rows: slice = slice(None),
) -> Tensor:
    """The loss of PAIR, ``(1 - alpha) L_Q + alpha L_P`` (Eq. 6), of a batch of queries with one positive passage each.

    Both losses are the mean negative log likelihood of the right candidate. In L_Q (Eq. 3) each query ranks all
    positives and negatives of the batch; its own positive is right. In L_P (Eq. 5) each positive ranks all queries, of
    which its own is right, and all negatives: as in the authors' code, the dots stand for the other queries.

    Args:
        queries: q, shape (batch, dimensions).
        positives: p+ of each query, shape (batch, dimensions).
        negatives: Hard negatives p- of all queries together, in any order, shape (any number, dimensions).
        alpha: Weight of L_P, 0 to 1.
        scale: Factor of all similarities, the inverse of a temperature. The paper has none, which is 1.
        rows: The queries and positives whose loss is computed, a slice without a step; the rest are only ranked.

    Returns:
        A scalar in float32 or float64.
    """
    with full_precision(queries):
        q = at_least_float32(queries)
        positive = at_least_float32(positives)
        negative = at_least_float32(negatives)
        own = torch.arange(len(q), device=q.device)[rows]  # the right candidates, (rows,)
        loss = q.new_zeros(())
        if alpha < 1:
            passages = torch.cat([positive, negative])  # (batch + negatives, d)
            by_query = in_batch_loss(q[rows], passages, own, scale=scale)  # Eq. 3
            loss = loss + (1 - alpha) * by_query
        if alpha > 0:
            candidates = torch.cat([q, negative])  # (batch + negatives, d)
            similarities = positive[rows] @ candidates.T  # (rows, batch + negatives)
            by_passage = cross_entropy(scale * similarities, own)  # Eq. 5
            loss = loss + alpha * by_passage
    return loss


def in_batch_loss(
    queries: Tensor, passages: Tensor, positives: Tensor, *, scale: float = 1.0
) -> Tensor:
    r"""The cross-entropy of each query's positive among all passages of a batch.

    .. math::

        L = -\frac{1}{n} \sum_{i=1}^{n} \log
            \frac{\exp(t\, q_i \cdot p_i^+)}{\sum_p \exp(t\, q_i \cdot p)}

    This is Eq. 3 of PAIR, and Eq. 2 of GNN-encoder (Liu et al. 2022), which has the sum over queries instead of the
    mean. The loss of a batch without queries is 0.

    Args:
        queries: Vectors q, shape (queries, d).
        passages: Vectors p, each passage once, shape (passages, d).
        positives: Row of each query's positive, shape (queries,). Several queries may have the same one.
        scale: t, the inverse of a temperature: 1 for dot products, 20 for vectors of length 1.
    """
    with full_precision(queries):
        # half precision has steps of 1 where dot products are above 128, or ends at 65504
        queries = at_least_float32(queries)
        passages = at_least_float32(passages)
        scores = scale * queries @ passages.T  # (queries, passages)
        total = cross_entropy(scores, positives, reduction="sum")
        return total / max(1, len(queries))


class PAIRLoss(CachedLossMixin, nn.Module):
    """:func:`pair_loss` for the trainer of sentence-transformers.

    The columns of the training set are, in this order and under any names: query, positive passage, and any number of
    hard negatives, which serve all queries of the batch. A passage that is twice in a batch would be its own negative,
    so use ``batch_sampler=BatchSamplers.NO_DUPLICATES``.

    Args:
        model: The dual-encoder.
        alpha: See :func:`pair_loss`. (The paper: 0.1 in pre-training, 0 in fine-tuning.)
        scale: See :func:`pair_loss`. It should be larger than 1 for normalized vectors.
        gather_across_devices: Whether the passages and queries of all processes are ranked (cross-batch negatives).
            Each process then needs a batch of the same size.
        mini_batch_size: Number of texts that are encoded at once, in a batch of any size (GradCache). Loss and
            gradients do not change, but every text is encoded twice. None encodes a whole column at once.
    """

    mini_batch_size: int | None  # type: ignore[assignment]

    def __init__(
        self,
        model: SentenceTransformer,
        alpha: float = 0.1,
        *,
        scale: float = 1.0,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.alpha = alpha
        self.scale = scale
        self.gather_across_devices = gather_across_devices
        self.mini_batch_size = mini_batch_size
        self.uses_gradient_cache = mini_batch_size is not None

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch, a scalar, by the tokens of each column; ``labels`` are not used."""
        if self.uses_gradient_cache:
            return self.forward_cached(sentence_features)
        columns = []  # of vectors, each in one part
        for features in sentence_features:
            output = self.model(features)
            columns.append([output["sentence_embedding"]])
        return self.calculate_loss(columns)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the vectors of each column's parts, of shape (texts, dimensions); gradient caching calls it.

        With ``with_backward``, it computes the gradients of the vectors, and the loss that it returns is detached.
        """
        queries, positives, *columns = [torch.cat(column) for column in reps]
        negatives = torch.cat([queries[:0], *columns])  # there may be no columns of negatives
        first = 0
        batch = len(queries)  # of this process
        if self.gather_across_devices:
            first = get_rank() * batch
            queries = all_gather_with_grad(queries)
            positives = all_gather_with_grad(positives)
            negatives = all_gather_with_grad(negatives)
        rows = slice(first, first + batch)
        loss = pair_loss(queries, positives, negatives, self.alpha, scale=self.scale, rows=rows)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss
