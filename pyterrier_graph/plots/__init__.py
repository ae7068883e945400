"""Pictures: graphs, where a score came from, trainings, experiments, embeddings.

Every function draws into the axes that it is given, or into new ones, and returns them. None needs a display, and
colors of texts and frames are those of the style that is in use, light or dark.
"""

from __future__ import annotations

from pyterrier_graph.plots.experiments import effectiveness_latency, measure_curve, similarity_shift, training_curves
from pyterrier_graph.plots.graphs import document_graph, word_graph
from pyterrier_graph.plots.maps import embedding_map, state_map
from pyterrier_graph.plots.scores import contributions, passage_queries, relation_weights, token_matches

__all__ = [
    "contributions",
    "document_graph",
    "effectiveness_latency",
    "embedding_map",
    "measure_curve",
    "passage_queries",
    "relation_weights",
    "similarity_shift",
    "state_map",
    "token_matches",
    "training_curves",
    "word_graph",
]
