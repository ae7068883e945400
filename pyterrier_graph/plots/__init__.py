"""Plots: graphs, the parts of a score, trainings, experiments, embeddings; rankings side by side.

Every function draws into the given axes (``ax``, or a sequence ``axes``), or into new axes, and returns the axes, with
a ``title`` of your own. No function needs a display. Texts and frames have the colors of the current matplotlib style,
light or dark. Every function raises ValueError if a column is missing, there is nothing to draw, or a value is missing.

A notebook shows a new figure as SVG with an alternative text, which :func:`alt_text` returns, for figures of your own,
too. :func:`compare` and :func:`pipeline` make HTML instead.
"""

from pyterrier_graph.plots.axes import alt_text
from pyterrier_graph.plots.experiments import effectiveness_latency, measure_curve, similarity_shift, training_curves
from pyterrier_graph.plots.graphs import document_graph, word_graph
from pyterrier_graph.plots.html import pipeline
from pyterrier_graph.plots.maps import embedding_map, state_map
from pyterrier_graph.plots.rankings import compare
from pyterrier_graph.plots.result_plots import results
from pyterrier_graph.plots.scores import contributions, passage_queries, relation_weights, token_matches

__all__ = [
    "alt_text",
    "compare",
    "contributions",
    "document_graph",
    "effectiveness_latency",
    "embedding_map",
    "measure_curve",
    "passage_queries",
    "pipeline",
    "relation_weights",
    "results",
    "similarity_shift",
    "state_map",
    "token_matches",
    "training_curves",
    "word_graph",
]
