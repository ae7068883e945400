"""A plot of the vectors of queries and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pyterrier_graph.html import COLORS
from pyterrier_graph.show.axes import new_axes, right_legend, titled

if TYPE_CHECKING:
    from pyterrier_graph.lgre.reranker import LGReReranker


def representations(
    reranker: LGReReranker,
    run: pd.DataFrame,
    qrels: pd.DataFrame,
    *,
    ax: Axes | None = None,
    title: str = "",
    seed: int = 0,
) -> Axes:
    """Draws query and document representations in the plane by t-SNE (LGRe, Fig. 5).

    Stars mark the center of each group: the query, which every document changes a little, relevant documents, and
    others. ``run`` has ``qid, query, docno, text``, as :class:`~pyterrier_graph.LGReReranker` reads it, usually of one
    query. Raises ValueError if there are fewer than three rows.
    """
    from sklearn.manifold import TSNE  # takes a second

    if len(run) < 3:
        raise ValueError(f"t-SNE needs three documents, got {len(run)}")
    queries, documents = reranker.representations(run)
    relevant = pd.MultiIndex.from_frame(qrels.loc[qrels["label"] > 0, ["qid", "docno"]])
    judged = pd.MultiIndex.from_frame(run[["qid", "docno"]]).isin(relevant)
    vectors = np.concatenate([queries, documents])
    perplexity = min(30, (len(vectors) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(vectors)
    query, document = np.split(points, 2)
    groups = {"query": query, "relevant": document[judged], "other": document[~judged]}
    ax = new_axes(7, 5) if ax is None else ax
    for (name, group), color in zip(groups.items(), COLORS, strict=False):
        if len(group):
            ax.scatter(
                group[:, 0],
                group[:, 1],
                s=12,
                color=color,
                alpha=0.6,
                label=f"{name} ({len(group)})",
            )
            x, y = group.mean(0)
            ax.scatter(x, y, s=160, color=color, marker="*", edgecolors="black")
    ax.set_xticks([])
    ax.set_yticks([])
    right_legend(ax)
    titled(ax, title or repr(reranker))
    return ax
