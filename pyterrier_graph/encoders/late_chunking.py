"""Late chunking: a passage is the mean of its own tokens, which an encoder has read with the rest of the document.

Guenther et al.: `Late Chunking: Contextual Chunk Embeddings Using Long-Context Embedding Models
<https://arxiv.org/abs/2409.04701>`_, 2024.

- A document is its passages one after the other, without the titles of sections. Passages are not cut.
- The encoder reads a document in windows of as many tokens as the checkpoint has positions. The windows overlap by
  half, and the last one ends with the document.
- A passage is the mean of its own tokens in the window where it is most central. In a document that is longer than a
  window, a passage of more than half a window is divided into pieces of half a window. Each piece is taken from the
  window where it is most central, and the passage is the mean of all its tokens.
- Each window has the prompt of passages, if there is one, and special tokens such as [CLS] and [SEP]. They are not
  among the tokens that are averaged. A passage without tokens is the mean of these alone, in a window by itself.
- A text without a document graph is a document of one passage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import truncate_embeddings
from torch import Tensor
from torch.nn.functional import embedding_bag

from pyterrier_graph.encoders.checkpoints import positions_of, tokenized
from pyterrier_graph.encoders.sentence_encoder import document_modules, prompts_of
from pyterrier_graph.graphs.csr import offsets, ranges

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

NO_TEXT = -1  # the start of the window for passages without tokens


class Layout(NamedTuple):
    """Windows of tokens, and the pieces of passages in them; int64 arrays.

    Attributes:
        starts: Per window the place of its first token, ascending; ``NO_TEXT`` for a window without tokens.
        lengths: Per window its number of tokens.
        passages: Per piece the position of its passage.
        windows: Per piece the number of its window.
        places: Per piece the place of its first token in the window.
        tokens: Per piece its number of tokens.
    """

    starts: np.ndarray
    lengths: np.ndarray
    passages: np.ndarray
    windows: np.ndarray
    places: np.ndarray
    tokens: np.ndarray


def lay_out(bounds: np.ndarray, documents: np.ndarray, passages: np.ndarray, window: int) -> Layout:
    """The windows that some passages need, each passage in the window where it is most central.

    The windows of a document start every half window, and the last one ends with the document. A passage of a document
    that is longer than a window is divided into pieces of half a window, so that each piece is within a window.

    Args:
        bounds: Per passage the place of its first token, and the end; shape (passages + 1,).
        documents: Per document the number of its first passage, and the end; shape (documents + 1,).
        passages: Numbers of the passages that are wanted, shape (wanted,).
        window: Tokens per window.
    """
    half = max(1, window // 2)
    document = np.searchsorted(documents, passages, side="right") - 1
    first = bounds[documents[document]]  # of the document
    total = bounds[documents[document + 1]] - first
    size = np.where(total <= window, window, half)
    tokens = bounds[passages + 1] - bounds[passages]
    count = np.maximum(1, -(-tokens // size))
    row = np.repeat(np.arange(len(passages)), count)
    start = (bounds[passages] - first)[row] + ranges(np.zeros_like(count), count)[1] * size[row]
    end = np.minimum(start + size[row], (bounds[passages + 1] - first)[row])
    last = np.maximum(0, total - window)[row]  # start of the document's last window
    middle = start + end - window  # twice the start of a window that has the piece in its middle
    before, after = (np.minimum((np.maximum(0, middle // (2 * half)) + step) * half, last) for step in (0, 1))
    chosen = np.where(abs(2 * after - middle) < abs(2 * before - middle), after, before)
    keys = np.where(tokens[row] > 0, first[row] + chosen, NO_TEXT)
    starts, example, windows = np.unique(keys, return_index=True, return_inverse=True)
    lengths = np.where(starts == NO_TEXT, 0, np.minimum(window, total[row[example]]))
    places = np.where(keys == NO_TEXT, 0, start - chosen)
    return Layout(starts, lengths, row, windows.reshape(-1), places, end - start)


class LateChunking:
    """Encodes the passages of documents in the context of their documents.

    Args:
        network: An encoder of passages that averages the states of tokens.

    Attributes:
        window: Tokens per window, without prompt and special tokens.

    Raises:
        ValueError: If the network does not average the states of tokens, or its number of positions is unknown.
    """

    def __init__(self, network: SentenceTransformer) -> None:
        modules = document_modules(network)
        kinds = [type(module).__name__ for module in modules]
        pooling = next((module.pooling_mode for module in modules if isinstance(module, Pooling)), None)
        if pooling != "mean" or not isinstance(modules[0], Transformer) or not isinstance(modules[1], Pooling):
            found = f"pooling_mode={pooling!r}" if pooling else f"the modules {', '.join(kinds)}"
            raise ValueError(f"late_chunking needs an encoder that averages the states of tokens, this one has {found}")
        self.network, self.transformer, self.rest = network, modules[0], modules[2:]
        self.tokenizer: Any = self.transformer.tokenizer
        (mask,) = tokenized(self.tokenizer, ["a"], return_special_tokens_mask=True)["special_tokens_mask"]
        (special,) = tokenized(self.tokenizer, ["a"])["input_ids"]
        prefix, suffix = mask.index(0), mask[::-1].index(0)
        prompt = self._tokenized([prompts_of(network)[1]])[0]
        self.before = np.array([*special[:prefix], *prompt], dtype=np.int64)
        self.after = np.array(special[len(special) - suffix :], dtype=np.int64)
        self.window = longest_input(self.transformer) - len(self.before) - len(self.after)
        if self.window < 1:
            raise ValueError(f"late_chunking: prompt and special tokens leave {self.window} tokens for passages")

    def encode(self, texts: Sequence[str], documents: np.ndarray, passages: np.ndarray, *, at_once: int) -> np.ndarray:
        """Vectors of some passages, float32 of shape (wanted, dimensions).

        Args:
            texts: All passages of some documents, in order.
            documents: Per document the number of its first passage, and the end; shape (documents + 1,).
            passages: Numbers of the passages that are wanted, shape (wanted,).
            at_once: Tokens per forward pass, with padding but without special tokens; a pass has a window at least.
        """
        tokenized = self._tokenized(texts)
        bounds = offsets(np.array([len(tokens) for tokens in tokenized], dtype=np.int64))
        tokens = np.fromiter(chain.from_iterable(tokenized), np.int64, int(bounds[-1]))
        layout = lay_out(bounds, documents, passages, self.window)
        if not len(passages):
            return np.empty((0, self.network.get_embedding_dimension() or 0), dtype=np.float32)
        device = self.network.device
        with torch.inference_mode():
            batches = [self._sums(tokens, layout, windows) for windows in batches_of(layout.lengths, at_once)]
            order, sums = np.concatenate([pieces for pieces, _ in batches]), torch.cat([part for _, part in batches])
            sums = sums[torch.from_numpy(np.argsort(order)).to(device)]
            first = np.flatnonzero(np.diff(layout.passages, prepend=-1))  # pieces of a passage follow each other
            rows = torch.arange(len(sums), device=device)
            sums = embedding_bag(rows, sums, torch.from_numpy(first).to(device), mode="sum")
            counts = np.add.reduceat(np.where(layout.tokens, layout.tokens, len(self.before) + len(self.after)), first)
            features = {"sentence_embedding": sums / torch.from_numpy(counts).to(sums)[:, None]}
            for module in self.rest:
                features = module(features)
            vectors = truncate_embeddings(features["sentence_embedding"], self.network.truncate_dim)
        return vectors.float().cpu().numpy()

    def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts, without special tokens."""
        if self.transformer.do_lower_case:
            texts = [text.lower() for text in texts]
        options = {"add_special_tokens": False, "verbose": False}
        return tokenized(self.tokenizer, [*texts], **options)["input_ids"] if len(texts) else []

    def _sums(self, tokens: np.ndarray, layout: Layout, windows: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """The pieces in some windows, and per piece the sum of its tokens' states, float32 of shape (pieces, d)."""
        lengths, device = layout.lengths[windows], self.network.device
        width = len(self.before) + int(lengths.max()) + len(self.after)
        inputs = np.full((len(windows), width), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        inputs[:, : len(self.before)] = self.before
        row = np.repeat(np.arange(len(windows)), lengths)
        place = ranges(np.zeros_like(lengths), lengths)[1]
        inputs[row, len(self.before) + place] = tokens[layout.starts[windows][row] + place]
        end = (len(self.before) + lengths)[:, None] + np.arange(len(self.after))
        inputs[np.arange(len(windows))[:, None], end] = self.after
        mask = np.arange(width) < (lengths + width - int(lengths.max()))[:, None]
        features = {"input_ids": torch.from_numpy(inputs), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        features = self.transformer({name: value.to(device) for name, value in features.items()})
        states = features["token_embeddings"].flatten(0, 1).float()
        row_of = np.full(len(layout.lengths), -1)
        row_of[windows] = np.arange(len(windows))
        pieces = np.flatnonzero(row_of[layout.windows] >= 0)
        empty = layout.tokens[pieces] == 0  # the mean of the prompt and the special tokens
        sizes = np.where(empty, len(self.before) + len(self.after), layout.tokens[pieces])
        starts = row_of[layout.windows[pieces]] * width
        starts += np.where(empty, 0, len(self.before) + layout.places[pieces])
        bounds, places = ranges(starts, sizes)
        bags = torch.from_numpy(bounds[:-1]).to(device)
        return pieces, embedding_bag(torch.from_numpy(places).to(device), states, bags, mode="sum")


def batches_of(lengths: np.ndarray, at_once: int) -> Iterator[np.ndarray]:
    """The numbers of some windows, the longest first, as many at once as have so many tokens with padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + max(1, at_once // max(1, int(lengths[order[start]])))
        yield order[start:end]
        start = end


def longest_input(transformer: Transformer) -> int:
    """How many tokens a transformer has positions for, special tokens included."""
    limit = positions_of(transformer.model.config) or transformer.max_seq_length
    if not limit:
        raise ValueError("late_chunking needs an encoder with a known number of positions; this one does not state it")
    return int(limit)


def passages_in_documents(graph: HeteroGraph, nodes: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The documents of some passages of a graph, as the arguments of :meth:`LateChunking.encode`."""
    documents = np.unique(graph.document[nodes])
    row, passages = graph.passages_of_documents(documents)
    position = np.minimum(np.searchsorted(passages, nodes), max(0, len(passages) - 1))
    if (passages[position] != nodes).any():
        raise ValueError("only passages have vectors of their own in late chunking, these nodes have sections")
    return graph.texts(passages), offsets(np.bincount(row, minlength=len(documents))), position
