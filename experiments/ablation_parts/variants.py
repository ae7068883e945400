"""The mechanisms that are compared, each a short function of arrays.

Shapes: queries k, passages n, dimensions d.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from experiments.ablation_parts.corpus import averaging

RAMP, QUERY_RAMP = (-0.3, -0.1), (-0.15, 0.15)
RRF = 60
ALIKE = 0.5, 0.65  # mean cosines of passages


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def mean_of(edges: csr_array, sources: np.ndarray) -> np.ndarray:
    """The mean of the sources of each passage, (n, d), 0 without any."""
    return np.asarray(averaging(edges) @ sources, np.float32).reshape(edges.shape[0], -1)


def message(x: np.ndarray, mean: np.ndarray, form: str) -> np.ndarray:
    """What a relation adds to each passage, (n, d): what it lacks of the mean's direction, or the mean itself."""
    direction = unit(mean)
    if form == "lacking":
        lacking = np.linalg.norm(x, axis=1, keepdims=True) - (x * direction).sum(1, keepdims=True)
        return lacking * direction
    return direction if form == "unit mean" else mean


def isolated_share(counts: np.ndarray) -> float:
    """Beta: how likely a passage without a past query is relevant, from how many past queries passages answer."""
    u, pairs = float((counts > 0).mean()), int(counts.sum())
    if not 0 < u < 1:
        return 1.0
    c = (int(counts[counts > 1].sum()) + u) / (pairs + 1)
    isolated, answered = (1 - c) / (1 - u), c / u
    return isolated / (isolated + answered)


def query_weights(
    queries: np.ndarray, x: np.ndarray, mean: np.ndarray, ramp: tuple[float, float]
) -> np.ndarray:
    """Weight of a relation for each query, (k,): from the best title (or past query) and the best passage."""

    def best(vectors: np.ndarray) -> np.ndarray:
        half = unit(vectors).astype(np.float16).astype(np.float32)
        return (queries @ half.T).max(1, initial=-1.0)

    low, high = ramp
    with_sources = mean[np.abs(mean).sum(1) > 0]
    return np.clip((best(with_sources) - best(x) - low) / (high - low), 0, 1)


def normalized(scores: np.ndarray, how: str) -> np.ndarray:
    """Scores of each query with 0 for the last result and for what is not retrieved (NaN); (k, n)."""
    missing = np.isnan(scores)
    if how == "rrf":
        filled = np.where(missing, -np.inf, scores)
        order = np.argsort(-filled, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(scores.shape[1])[None], 1)
        return np.where(missing, 0, 1 / (RRF + 1 + rank)).astype(np.float32)
    none = missing.all(1)
    safe = np.where(none[:, None], 0, scores)
    low = np.nanmin(safe, axis=1, keepdims=True)
    above = safe - low
    spread = (
        np.nanstd(safe, axis=1, keepdims=True)
        if how == "z-score"
        else np.nanmax(above, axis=1, keepdims=True)
    )
    scaled = np.where(spread > 0, above / np.maximum(spread, 1e-12), 1)
    return np.where(missing, 0, scaled).astype(np.float32)


def cut(scores: np.ndarray, depth: int) -> np.ndarray:
    """The scores of the best ``depth`` results of each query, NaN for others; (k, n)."""
    if depth >= scores.shape[1]:
        return scores
    filled = np.where(np.isnan(scores), -np.inf, scores)
    least = -np.partition(-filled, depth - 1, axis=1)[:, depth - 1 : depth]
    return np.where(filled >= least, scores, np.nan)


def with_evidence(
    scores: np.ndarray,
    first: np.ndarray,
    of_document: np.ndarray,
    beside: csr_array,
    document: float,
    near: float,
    *,
    spread: bool = False,
) -> np.ndarray:
    """Scores with the best score of the document and the mean of those before and after, (k, n).

    With ``spread``, passages that were not retrieved get evidence, too, and can be found by it.
    """
    found = np.isfinite(scores)
    filled = np.where(found, scores, 0).astype(np.float32)
    total = filled.copy()
    if document:
        total += document * np.maximum.reduceat(filled, first, axis=1)[:, of_document]
    if near:
        total += near * np.asarray(beside @ filled.T).T
    return total if spread else np.where(found, total, -np.inf)


def alikeness(vectors: np.ndarray) -> float:
    """The mean cosine of two passages; it is high where an encoder does not know the language."""
    return float(np.square(np.linalg.norm(unit(vectors).mean(0))))


def trust(vectors: np.ndarray) -> float:
    """The share of alpha that vectors keep: less where passages are alike."""
    return float(np.clip((ALIKE[1] - alikeness(vectors)) / (ALIKE[1] - ALIKE[0]), 0.3, 1))
