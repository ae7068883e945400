"""Measures of patent search for ir_measures: importing this module registers them.

The measures work wherever ir_measures' own measures do: ``PRES @ 100``, ``ir_measures.parse_measure("PRES@100")``,
``ir_measures.calc_aggregate``, ``pt.Experiment``, and, after an import of PyTerrier, ``pt.measures.PRES``.

A topic that is missing from the run has the value 0. A topic without relevant documents is left out of means and of
lists of values per topic. If another measure of the same call has a value for such a topic, the value of a measure of
this package is NaN, and so is a p-value of ``pt.Experiment``. If no measure of ``pt.Experiment`` has a value for a
topic, ``perquery="both"`` gives no mean, because PyTerrier adds the topic to the list and counts it.

Runs are sorted as in trec_eval: by score in single precision, then by id, both descending. Ids are compared as text. A
document that is judged twice has the higher label.

A run of passages evaluated with judgments of documents, or the other way round, has the value 0 and gives a warning.
"""

# The package imports this module, so it must be fast: only the evaluator imports numpy and pandas.

from pyterrier_graph.evaluation.measures.definitions import MAPD, PRECD, PRES, on_documents, on_nodes, register

__all__ = ["MAPD", "PRECD", "PRES", "on_documents", "on_nodes"]

register(PRES, MAPD, PRECD, on_documents, on_nodes)
