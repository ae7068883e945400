"""The loss of PAIR (Ren et al. 2021) for the trainer of sentence-transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.modules import Normalize
from sentence_transformers.util import all_gather_with_grad, get_rank
from torch import Tensor, nn

from pyterrier_graph.checks import check_count
from pyterrier_graph.models.losses import InBatch, check_options, pair_loss

logger = logging.getLogger(__name__)


class PAIRLoss(CachedLossMixin, nn.Module):
    """Query-centric and passage-centric similarity relations: :func:`~pyterrier_graph.models.losses.pair_loss`.

    The columns of the training set are, in this order and under any names: query, positive passage, and any number of
    hard negatives (also none), which serve all queries of the batch. A passage that is twice in a batch would be its
    own negative, so use ``batch_sampler=BatchSamplers.NO_DUPLICATES``.

    Args:
        model: The dual-encoder.
        alpha: See ``pair_loss``. (The paper: 0.1 in pre-training, 0 in fine-tuning.)
        in_batch: See ``pair_loss``.
        scale: See ``pair_loss``. It should be above 1 for normalized vectors.
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
            logger.warning("vectors are normalized: with scale=1, hard negatives hardly count for more than easy ones")
        self.model = model
        self.alpha = alpha
        self.in_batch: InBatch = in_batch
        self.scale = scale
        self.gather_across_devices = gather_across_devices
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
        """The loss of vectors, a scalar; gradient caching calls this method.

        Args:
            reps: Vectors of each column's parts, each of shape (texts, dimensions).
            labels: Not used.
            with_backward: Whether to compute the gradients of the vectors, a few rows of similarities at a time. The
                loss is detached then.
        """
        queries, positives, *negatives = (torch.cat(parts) for parts in reps)
        size, first = len(queries), 0
        vectors = [queries, positives, torch.cat([queries[:0], *negatives])]
        if self.gather_across_devices:
            vectors = [all_gather_with_grad(part) for part in vectors]
            first = get_rank() * size
        # gradients of these are summed up, and sent to the other processes once
        leaves = [part.detach().requires_grad_() for part in vectors] if with_backward else vectors
        step = self.mini_batch_size or size
        total = queries.new_zeros(())
        for start in range(first, first + size, step):
            rows = slice(start, min(start + step, first + size))
            loss = pair_loss(*leaves, self.alpha, in_batch=self.in_batch, scale=self.scale, rows=rows)
            loss = loss * ((rows.stop - rows.start) / size)
            if with_backward:
                loss.backward()
                loss = loss.detach()
            total = total + loss
        if with_backward:
            torch.autograd.backward(vectors, [leaf.grad for leaf in leaves])
        return total
