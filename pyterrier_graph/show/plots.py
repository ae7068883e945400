"""Plots: graphs, trainings, experiments, weights of relations.

Every function returns the axes that it draws on a new figure. No function needs a display. Texts and frames have the
colors of the current matplotlib style, light or dark. A function raises ValueError if there is nothing to draw.
"""

from pyterrier_graph.show.graphs import document_graph, word_graph
from pyterrier_graph.show.results import (
    relation_weights,
    results,
    similarity_shift,
    training_curves,
)

__all__ = [
    "document_graph",
    "relation_weights",
    "results",
    "similarity_shift",
    "training_curves",
    "word_graph",
]
