"""Which characters of a text its tokens stand for, and what each word adds to a score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pyterrier_graph.folders.snippets import content_stems, stems

WORD = re.compile(r"\w+")
CLOSE = 0.02  # difference of similarities up to which token vectors explain a vector: encoding may be in half precision

Spans = list[tuple[int, int, float]]  # start, end, and what the word adds


def token_spans(tokenizer: Any, text: str, ids: Sequence[int]) -> list[tuple[int, int] | None]:
    """The characters that each word piece stands for; None for special ones, and where the tokenizer cannot tell."""
    if not text.strip() or not tokenizer.is_fast:
        return [None] * len(ids)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans, place = encoded["offset_mapping"], 0
    found: list[tuple[int, int] | None] = []
    for number in ids:
        try:
            at = encoded["input_ids"].index(number, place)
        except ValueError:  # a special token, or one of a prompt
            found.append(None)
            continue
        found.append((int(spans[at][0]), int(spans[at][1])))
        place = at + 1
    return found


def word_parts(text: str, spans: Iterable[tuple[int, int] | None], parts: Iterable[float]) -> Spans:
    """Sums up what tokens add, by word; punctuation and special tokens belong to no word."""
    words = [match.span() for match in WORD.finditer(text)]
    starts = np.array([start for start, _ in words])
    sums = np.zeros(len(words))
    for span, part in zip(spans, parts, strict=True):
        if span is not None and len(words):
            at = int(np.searchsorted(starts, span[0], side="right")) - 1
            if at >= 0 and span[0] < words[at][1]:
                sums[at] += part
    return [(start, end, float(part)) for (start, end), part in zip(words, sums, strict=True) if part]


def shared_words(text: str, query: str) -> Spans:
    """The words of a text that a query has, too, each with 1."""
    return marked_words(text, content_stems(query))


def marked_words(text: str, wanted: set[str]) -> Spans:
    """The words of a text that have one of some stems, each with 1."""
    found = (match for match in WORD.finditer(text) if wanted.intersection(stems(match[0])))
    return [(match.start(), match.end(), 1.0) for match in found]


def similarity_words(encoder: Any, text: str, query: np.ndarray) -> Spans | None:
    """What each word adds to the inner product of a text's vector and a query's, where the encoder averages tokens.

    The mean of token vectors is a sum, of which each token has a part. None for other encoders.
    """
    network = getattr(encoder, "network", None)
    if network is None or not text.strip() or not hasattr(network, "encode_document"):
        return None
    kept = {"output_value": "token_embeddings", "show_progress_bar": False}
    tokens = np.asarray(network.encode_document([text], **kept)[0].float().cpu())
    parts = tokens @ query / len(tokens)
    exact = float(encoder.encode_docs([text])[0] @ query)
    scaled = parts / np.linalg.norm(tokens.mean(0))
    for one in (scaled, parts):
        if abs(one.sum() - exact) < CLOSE:
            ids = network.tokenizer(text, truncation=True, max_length=network.max_seq_length)["input_ids"]
            return word_parts(text, token_spans(network.tokenizer, text, ids), one) if len(ids) == len(one) else None
    return None
