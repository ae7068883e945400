"""Plots of vectors in two dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pyterrier_graph.checks import check_choice
from pyterrier_graph.plots.html import NEUTRAL
from pyterrier_graph.plots.style import check_frame, legend_beside, look_of, new_axes, shortened, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Method = Literal["tsne", "pca"]
GROUPS = 12  # maximum number of labels with a color and marker of their own


def embedding_map(
    vectors: np.ndarray,
    labels: Sequence[Any] | np.ndarray | pd.Series | pd.Categorical,
    *,
    method: Method = "tsne",
    seed: int = 0,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Draws vectors in two dimensions, colored by label, with a star at the mean of each label.

    The vectors are normalized first. t-SNE takes seconds for a thousand vectors and minutes for many thousands.

    Args:
        vectors: At least three vectors, shape (vectors, dimensions).
        labels: Label of each vector. The legend has the order of appearance, or of a ``pd.Categorical``. Of more than
            twelve labels, the twelve largest have colors.
        method: ``'tsne'``, or ``'pca'`` for the principal components.
        seed: Seed of t-SNE.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(f"vectors must be of shape (3 or more vectors, dimensions), got {vectors.shape}")
    if len(labels) != len(vectors):
        raise ValueError(f"each vector needs a label: there are {len(vectors)} and {len(labels)}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"vector {int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])} is not finite")
    points = _reduced(vectors, method, seed)
    names, order = _groups(labels)
    ax = ax if ax is not None else new_axes(8, 5)
    for number, name in enumerate(order):
        x, y = points[names == name].T
        marker, color = look_of(number) if number < GROUPS else (".", NEUTRAL)
        ax.scatter(x, y, marker=marker, color=color, s=22, alpha=0.8, linewidth=0, label=shortened(name))
        ax.scatter(x.mean(), y.mean(), s=200, c=color, marker="*", edgecolor=plt.rcParams["axes.edgecolor"], zorder=3)
    ax.set(xticks=[], yticks=[])
    legend_beside(ax)
    titled(ax, title)
    return ax


def state_map(
    states: pd.DataFrame,
    qrels: pd.DataFrame,
    *,
    method: Method = "tsne",
    seed: int = 0,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Draws the states of queries and documents as :func:`embedding_map` does (LGRe, Fig. 5).

    Args:
        states: What ``LGReReranker.states()`` returns for the documents of one or several queries.
        qrels: ``qid, docno, label``: a document with a label above 0 is relevant.
        method: ``'tsne'`` (as in the paper, with this ``seed``) or ``'pca'``.
    """
    check_frame(states, ["qid", "docno", "side", "state"], "what LGReReranker.states() returns")
    kinds = ["query", "relevant document", "other document"]
    keys = ["qid", "docno"]
    relevant = pd.MultiIndex.from_frame(qrels.loc[qrels["label"] > 0, keys].astype(str))
    is_relevant = pd.MultiIndex.from_frame(states[keys].astype(str)).isin(relevant)
    labels = np.where(states["side"] == "query", kinds[0], np.where(is_relevant, kinds[1], kinds[2]))
    ordered = pd.Categorical(labels, categories=kinds)
    return embedding_map(np.stack(states["state"]), ordered, method=method, seed=seed, ax=ax, title=title)


def _reduced(vectors: np.ndarray, method: Method, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import normalize

    check_choice("method", method, ("tsne", "pca"))
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    reduce = PCA(2) if method == "pca" else TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    return reduce.fit_transform(normalize(vectors))


def _groups(labels: Any) -> tuple[np.ndarray, list[str]]:
    """The group of each vector, and the groups in order; the smallest labels share a group if there are too many."""
    names = [str(label) for label in labels]
    order = map(str, labels.categories) if isinstance(labels, pd.Categorical) else dict.fromkeys(names)
    largest = {name for name, _ in Counter(names).most_common(GROUPS)}
    others = f"{len({*names} - largest)} other labels"
    groups = np.array([name if name in largest else others for name in names])
    return groups, [name for name in (*order, others) if name in groups]
