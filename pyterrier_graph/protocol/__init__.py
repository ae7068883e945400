"""How experiments are done: folds, cross-validation, groups of queries, several seeds."""

from pyterrier_graph.protocol.cross_validation import cross_validate
from pyterrier_graph.protocol.folds import folds_of, query_folds
from pyterrier_graph.protocol.query_length import by_query_length
from pyterrier_graph.protocol.summary import summarise

__all__ = ["by_query_length", "cross_validate", "folds_of", "query_folds", "summarise"]
