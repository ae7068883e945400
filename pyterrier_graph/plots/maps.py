"""Plots of vectors in two dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from pyterrier_graph.checks import check_choice
from pyterrier_graph.plots.axes import MARKERS, described, drawable, legend_beside, look_of, new_axes, titled
from pyterrier_graph.plots.style import NEUTRAL, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Method = Literal["tsne", "pca"]
GROUPS = 12  # maximum number of labels with a color and marker of their own
NAMES = {"tsne": "t-SNE, dimension {}", "pca": "principal component {}"}


def embedding_map(
    vectors: np.ndarray,
    labels: Sequence[Any] | np.ndarray | pd.Series | pd.Categorical,
    *,
    kinds: Sequence[Any] | np.ndarray | pd.Series | None = None,
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
        kinds: What each vector is of, such as ``'query'`` or ``'passage'``: each kind has a marker, large and small in
            turn. Without kinds, each label has a marker.
        method: ``'tsne'``, or ``'pca'`` for the principal components.
        seed: Seed of t-SNE.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(f"vectors must be of shape (3 or more vectors, dimensions), got {vectors.shape}")
    for name, given in {"label": labels, "kind": kinds}.items():
        if given is not None and len(given) != len(vectors):
            raise ValueError(f"each vector needs a {name}: there are {len(vectors)} and {len(given)}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"vector {int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])} is not finite")
    points = _reduced(vectors, method, seed)
    names, order = _groups(labels)
    kind_of = np.full(len(points), "") if kinds is None else np.array([str(kind) for kind in kinds])
    all_kinds = [*dict.fromkeys(kind_of.tolist())]
    ax = ax if ax is not None else new_axes(8, 5)
    for number, name in enumerate(order):
        own, color = look_of(number) if number < GROUPS else (".", NEUTRAL)
        for place, kind in enumerate(all_kinds):
            x, y = points[(names == name) & (kind_of == kind)].T
            marker, size = (own, 22) if kinds is None else (MARKERS[place % len(MARKERS)], 60 if place % 2 == 0 else 18)
            if len(x):
                ax.scatter(x, y, marker=marker, color=color, s=size, alpha=0.8, linewidth=0, label=shortened(name))
        x, y = points[names == name].T
        ax.scatter(x.mean(), y.mean(), s=200, c=color, marker="*", edgecolor=plt.rcParams["axes.edgecolor"], zorder=3)
    ax.set(xticks=[], yticks=[], xlabel=NAMES[method].format(1), ylabel=NAMES[method].format(2))
    if kinds is None:
        legend_beside(ax)
    else:
        colors = {name: look_of(number)[1] if number < GROUPS else NEUTRAL for number, name in enumerate(order)}
        handles = [Line2D([], [], color=color, lw=6, label=shortened(name)) for name, color in colors.items()]
        of_kinds = {kind: MARKERS[place % len(MARKERS)] for place, kind in enumerate(all_kinds)}
        handles += [
            Line2D([], [], color=NEUTRAL, marker=marker, linestyle="", label=kind) for kind, marker in of_kinds.items()
        ]
        legend_beside(ax, handles=handles)
    titled(ax, title)
    counts = ", ".join(f"{name}: {(names == name).sum()}" for name in order)
    described(ax, f"Map of {len(points)} vectors in two dimensions ({method}). {title} Vectors per label: {counts}.")
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
    states = drawable(states, ["qid", "docno", "side", "state"], "what LGReReranker.states() returns")
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
