"""Plots: graphs, trainings, experiments, weights of relations; rankings side by side.

Every function except :func:`compare`, which makes HTML, returns the axes that it draws: new ones, or those given as
``ax`` to functions that draw one. No function needs a display. Texts and frames have the colors of the current
matplotlib style, light or dark. A function raises ValueError if there is nothing to draw.
"""

from pyterrier_graph.show.compare import compare
from pyterrier_graph.show.graphs import document_graph, word_graph
from pyterrier_graph.show.representations import representations
from pyterrier_graph.show.results import (
    relation_weights,
    results,
    similarity_shift,
    training_curves,
)

__all__ = [
    "compare",
    "document_graph",
    "relation_weights",
    "representations",
    "results",
    "similarity_shift",
    "training_curves",
    "word_graph",
]
