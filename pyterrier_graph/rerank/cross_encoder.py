"""CrossEncoderReranker: a cross-encoder of sentence-transformers in a pipeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn
from transformers import AutoConfig

from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.pair_tokenizer import PairTokenizer
from pyterrier_graph.rerank.text_reranker import TextReranker, check_length
from pyterrier_graph.training.pairs import CrossEncoderPairs, CrossEncoderTraining

CHECKPOINT = "cross-encoder"


class CrossEncoderReranker(TextReranker):
    """Reranks documents by a cross-encoder, which a classification head on [CLS] makes of an encoder.

    What LGRe is compared with: it is trained on the same pairs by the same trainer, which the trainer of
    sentence-transformers would not do (it draws its examples once, and has no ranking measure to stop by). Read and
    written it is by sentence-transformers: ``save(path)`` makes an ordinary ``CrossEncoder`` of ``path/cross-encoder``
    (which is not told ``max_length``: another model that starts there may read longer texts).

    Long documents are cut at ``max_length``; to rank them by their best passage, as for
    :class:`~pyterrier_graph.rerank.lgre.LGReReranker`::

        bm25 >> pt.text.get_text(dataset) >> pt.text.sliding(...) >> cross_encoder >> pt.text.max_passage()

    As a teacher for :class:`~pyterrier_graph.training.mining.HardNegativeMiner` it has to say how sure it is::

        CrossEncoderReranker(model, training=CrossEncoderTraining(ranking="pointwise"), probabilities=True)

    Args:
        model: Hugging Face id or folder: a cross-encoder with one label, or an encoder, whose head is then random.
        training: Options of :meth:`fit`.
        probabilities: Whether a score is the sigmoid of the logit, which is a probability if the model learned by
            binary cross-entropy, instead of the logit as it is.
        batch_size: Documents scored at once.
        max_length: Tokens of query and document together; the longer of the two is cut.
        text_field: Column of the document's text.
        seed: Seed of the head, if it is new.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Columns: see :meth:`transform`.

    Raises:
        ValueError: If the checkpoint is a classifier with several labels, or does not read ``max_length`` tokens.
    """

    schematic = {"label": "cross-encoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "cross_encoder"
    KEEP_WEIGHTS = TextReranker.KEEP_WEIGHTS | {"probabilities"}

    def __init__(
        self,
        model: str | os.PathLike[str] = "bert-base-uncased",
        *,
        training: CrossEncoderTraining | None = None,
        probabilities: bool = False,
        batch_size: int = 32,
        max_length: int = 512,
        text_field: str = "text",
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            batch_size=batch_size,
            max_length=max_length,
            text_field=text_field,
            seed=seed,
            device=device,
            verbose=verbose,
        )
        self.training: CrossEncoderTraining = training or CrossEncoderTraining()
        self.probabilities = probabilities
        config = AutoConfig.from_pretrained(self.model)
        classifies = any("ForSequenceClassification" in name for name in config.architectures or ())
        if classifies and config.num_labels != 1:
            raise ValueError(f"{self.model!r} is no cross-encoder with one label: it has {config.num_labels}")
        self.tokenizer = PairTokenizer(self.model, max_length)
        check_length(self.model, max_length, self.tokenizer, config)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = CrossEncoder(
                self.model,
                num_labels=1,
                model_kwargs={"dtype": torch.float32},
                device=str(device_of(device)),
            ).eval()

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({checkpoint_name(self.model)!r})"

    @property
    def encoder(self) -> nn.Module:
        """What is below the head."""
        return self.network.model.base_model

    def _scores(self, batch: dict[str, Tensor]) -> Tensor:
        batch = {name: tensor for name, tensor in batch.items() if name != "segments"}
        logits = self.network.model(**batch).logits[:, 0]
        return logits.double().sigmoid() if self.probabilities else logits  # 32 bits round 17 to 1: ranks would tie

    def encode_pairs(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """[CLS] states of pairs, shape (pairs, d), as ``QueryPassageGraph.add_edge_features`` takes them."""
        lengths = [len(query) + len(document) for query, document in zip(queries, documents, strict=True)]
        order = np.argsort(np.negative(lengths), kind="stable")
        states = np.zeros((len(order), self.network.model.config.hidden_size), dtype=np.float32)
        for rows in np.split(order, range(self.batch_size, len(order), self.batch_size)):
            batch = self._tokens([queries[row] for row in rows], [documents[row] for row in rows])
            del batch["segments"]
            with torch.inference_mode():
                states[rows] = self.encoder(**batch).last_hidden_state[:, 0].float().cpu().numpy()
        return states

    def _learner(self) -> CrossEncoderPairs:
        return CrossEncoderPairs(self.network.model, self.training.ranking)

    def _shape(self) -> dict[str, Any]:
        return {}

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.activation_fn = nn.Sigmoid() if self.probabilities else nn.Identity()
        self.network.save_pretrained(str(folder / CHECKPOINT), create_model_card=False)
        return {"probabilities": self.probabilities}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> CrossEncoderReranker:
        return cls(folder / CHECKPOINT, **{"probabilities": about.get("probabilities", False)} | options)
