"""CrossEncoderReranker: a cross-encoder in a pipeline."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from pyterrier_graph.encoders.checkpoints import DEFAULT, SAFE_WEIGHTS, checkpoint_name, loading
from pyterrier_graph.encoders.devices import DType, device_of, score_in_full_precision
from pyterrier_graph.rerank.text_reranker import TextReranker
from pyterrier_graph.training.pairs import Batch, CrossEncoderTraining, pair_logits

CHECKPOINT = "cross-encoder"


class CrossEncoderReranker(TextReranker):
    """Reranks documents by a cross-encoder: an encoder that reads query and document, and a score of its [CLS] state.

    It is the baseline of :class:`~pyterrier_graph.rerank.lgre.LGReReranker`, which explains how to rerank documents
    longer than ``max_tokens``; both are trained on the same pairs in the same way. ``save(path)`` writes an ordinary
    ``CrossEncoder`` of sentence-transformers to ``path/cross-encoder``, but ``max_tokens`` is not part of it.

    A teacher for :class:`~pyterrier_graph.training.mining.HardNegativeMiner` returns probabilities::

        CrossEncoderReranker(encoder, training=CrossEncoderTraining(ranking="pointwise"), probabilities=True)

    Args:
        encoder: Name or folder of a checkpoint: a cross-encoder with one label, or any encoder, which gets a random
            head, so that scores are random before training.
        training: Options of :meth:`fit`.
        probabilities: Whether a score is the sigmoid of the logit instead of the logit. It is a probability if the
            model was trained by binary cross-entropy.
        seed: Seed of a random head.

    The other arguments are those of :class:`~pyterrier_graph.rerank.lgre.LGReReranker`. Columns: see :meth:`transform`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the checkpoint is a classifier with several labels, or does not read ``max_tokens`` tokens.
    """

    schematic = {"label": "cross-encoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "cross_encoder"
    STAGES = {"training": CrossEncoderTraining}
    WRITTEN = (*TextReranker.WRITTEN, "probabilities")
    KEEP_WEIGHTS = TextReranker.KEEP_WEIGHTS | {"probabilities"}

    def __init__(
        self,
        encoder: str | os.PathLike[str] = DEFAULT,
        *,
        training: CrossEncoderTraining | None = None,
        probabilities: bool = False,
        batch_size: int = 32,
        max_tokens: int = 512,
        text_field: str = "text",
        seed: int = 0,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(encoder, training, batch_size, max_tokens, text_field, seed, device, dtype, verbose)
        self.probabilities = probabilities
        if self._labels > 1:
            raise ValueError(f"{self.encoder!r} is no cross-encoder with one label: it has {self._labels}")
        self.random_start = not self._labels
        with torch.random.fork_rng(), loading(self.encoder):
            torch.manual_seed(seed)
            kind = AutoModelForSequenceClassification
            self.network = kind.from_pretrained(self.checkpoint, num_labels=1, **SAFE_WEIGHTS).eval()
        score_in_full_precision(self.network)
        self.network.to(device_of(device))

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({checkpoint_name(self.encoder)!r})"

    def _scores(self, batch: Batch) -> Tensor:
        logits = pair_logits(self.network, batch)
        # in 32 bits the sigmoid of 17 is 1, and scores would tie
        return logits.double().sigmoid() if self.probabilities else logits

    def encode_pairs(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """[CLS] states of pairs, shape (pairs, d), for ``QueryPassageGraph.add_edge_features``."""

        def state(batch: Batch) -> Tensor:
            del batch["segments"]
            return self.network.base_model(**batch).last_hidden_state[:, 0].float()

        shape = (len(queries), self.network.config.hidden_size)
        return self._compute(state, (list(queries), list(documents)), np.zeros(shape, dtype=np.float32))

    def _write(self, folder: Path) -> dict[str, Any]:
        activation = "torch.nn.modules.activation.Sigmoid" if self.probabilities else "torch.nn.modules.linear.Identity"
        self.network.config.sentence_transformers = {"activation_fn": activation}
        self.network.save_pretrained(folder / CHECKPOINT)
        self.tokenizer.save_pretrained(folder / CHECKPOINT)
        return {}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        return cls(folder / CHECKPOINT, **options)
