"""Late chunking, in a short version, and its training with in-sequence negatives.

M. Guenther et al.: Late Chunking, 2024, https://arxiv.org/abs/2409.04701. M. Conti et al.: Context is Gold to find the
Gold Passage, 2025, https://arxiv.org/abs/2505.24782.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from accelerate.utils import send_to_device
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from transformers import Trainer, TrainingArguments

import pyterrier_graph as ptg
from pyterrier_graph.encoders.checkpoints import precision
from pyterrier_graph.encoders.sentence_encoder import NORMALIZED_SCALE

TOKENS, PART = 510, 250  # of a window, and at most of a passage or of the titles above it
BATCH = 8  # windows


class Window(NamedTuple):
    """Consecutive passages of a document: their tokens, and per passage its number, first token and end."""

    tokens: list[int]
    spans: list[tuple[int, int, int]]


class LateChunking:
    """A passage is the mean of its tokens, which the encoder has read with the passages around it and their titles.

    Windows have up to 510 tokens, and do not overlap. Titles precede the first passage below them.

    Args:
        encoder: An encoder that averages tokens and normalizes the mean.
        graph: The documents.
    """

    def __init__(self, encoder: Any, graph: ptg.DocumentGraph) -> None:
        self.encoder, self.network, self.transformer = encoder, encoder.network, encoder.network[0]
        self.tokenizer, nodes = self.transformer.tokenizer, graph.passage_nodes
        cut = {"add_special_tokens": False, "truncation": True, "max_length": PART}
        titles, texts = (
            self.tokenizer(part, **cut)["input_ids"]
            for part in (graph.titles(nodes), graph.texts(nodes))
        )
        self.windows: list[Window] = []
        before = None
        for number, (document, title, text) in enumerate(
            zip(graph.document[nodes], titles, texts, strict=True)
        ):
            if (
                before is None
                or document != before[0]
                or len(self.windows[-1].tokens + title + text) > TOKENS
            ):
                self.windows.append(Window([], []))
                before = document, None
            tokens, spans = self.windows[-1]
            tokens += title if title != before[1] else []
            spans.append((number, len(tokens), len(tokens) + len(text)))
            tokens += text
            before = document, title

    def _vectors(self, windows: list[Window]) -> torch.Tensor:
        """The vectors of the passages in some windows, one after the other, shape (passages, d)."""
        ids = [
            [self.tokenizer.cls_token_id, *window.tokens, self.tokenizer.sep_token_id]
            for window in windows
        ]
        padded = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        states = self.transformer(send_to_device(dict(padded), self.network.device))[
            "token_embeddings"
        ].float()
        spans = [
            (row, a + 1, max(a, b - 1) + 2)
            for row, window in enumerate(windows)
            for _, a, b in window.spans
        ]
        return normalize(
            torch.stack([states[row, start:end].mean(0) for row, start, end in spans]), dim=1
        )

    @torch.inference_mode()
    def encode(self) -> np.ndarray:
        """The vectors of all passages in the order of the graph, float32 of shape (passages, d)."""
        found: dict[int, np.ndarray] = {}
        windows = sorted(self.windows, key=lambda window: len(window.tokens))
        with precision(self.encoder.dtype, self.network.device):
            for part in (windows[start : start + BATCH] for start in range(0, len(windows), BATCH)):
                numbers = [number for window in part for number, _, _ in window.spans]
                found.update(zip(numbers, self._vectors(part).cpu().numpy(), strict=True))
        return np.stack([found[number] for number in range(len(found))])

    def fit(self, queries: pd.DataFrame, rate: float, epochs: int) -> None:
        """Trains the encoder: half of the loss ranks the passages of a window, half those of a batch's other windows.

        Args:
            queries: ``query``, ``positive``, the number of the passage that is to be first, and ``relevant``, those of
                all relevant passages, which are never negatives.
            rate: The highest learning rate; it rises and falls as in the training of a dual-encoder.
            epochs: Number of epochs.
        """
        window_of = {
            number: row for row, window in enumerate(self.windows) for number, _, _ in window.spans
        }
        asked = {
            row: [*part.itertuples()]
            for row, part in queries.groupby(queries["positive"].map(window_of))
        }
        with TemporaryDirectory() as folder:
            settings = TrainingArguments(
                output_dir=folder,
                num_train_epochs=epochs,
                per_device_train_batch_size=BATCH,
                learning_rate=rate,
                warmup_steps=epochs * len(asked) // (10 * BATCH),
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=self.network.device.type == "cpu",
                remove_unused_columns=False,
                seed=int(torch.randint(2**31, ())),
            )
            model = InSequence(self, asked)
            Trainer(
                model, settings, data_collator=lambda rows: {"rows": rows}, train_dataset=[*asked]
            ).train()
        self.network.eval()


class InSequence(nn.Module):
    """The loss of a batch of windows, in which queries are asked."""

    def __init__(self, late: LateChunking, asked: dict[int, list[Any]]) -> None:
        super().__init__()
        self.network, self.late, self.asked = late.network, late, asked

    def forward(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """The loss of the windows with these numbers."""
        place = [(row, number) for row in rows for number, _, _ in self.late.windows[row].spans]
        pairs = [(row, query) for row in rows for query in self.asked[row]]
        with precision(self.late.encoder.dtype, self.network.device):
            texts = self.network.preprocess([query.query for _, query in pairs])
            asking = self.network(send_to_device(texts, self.network.device))
            passages = self.late._vectors([self.late.windows[row] for row in rows])
        scores = (
            NORMALIZED_SCALE * asking["sentence_embedding"].float() @ passages.T
        ).cpu()  # (queries, passages)
        first = torch.tensor(
            [[number == query.positive for _, number in place] for _, query in pairs]
        )
        other = torch.tensor(
            [[number not in query.relevant for _, number in place] for _, query in pairs]
        )
        own = torch.tensor([[row == mine for row, _ in place] for mine, _ in pairs])
        sides = (scores.masked_fill(~(first | other & side), -torch.inf) for side in (own, ~own))
        loss = torch.stack([cross_entropy(side, first.int().argmax(1)) for side in sides]).mean()
        return {"loss": loss.to(self.network.device)}
