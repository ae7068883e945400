"""Measures of patent search, as measures of ir_measures: importing this module registers them.

Afterwards they work wherever ir_measures' own do: ``PRES @ 100``, ``ir_measures.parse_measure("PRES@100")``,
``ir_measures.calc_aggregate``, ``pt.Experiment``, and, once PyTerrier is imported, as ``pt.measures.PRES``.

A topic that is missing from the run counts 0. One without relevant documents is left out: it takes no part in a mean,
and it is not listed among the values of topics, unless another measure of the same call has one for it; then that of
this measure is not a number, nor is a p-value of ``pt.Experiment``. Where no measure of ``pt.Experiment`` has a value
for a topic, ``perquery="both"`` has no mean: PyTerrier adds the topic to the list, and counts it.

The order of a run is that of trec_eval: scores in single precision, descending, then ids, descending.
Ids are compared, and reported, as text. A document that is judged twice has the higher of its labels.
"""

# This is imported with the package, and so must be quick: numpy and pandas come with the evaluator.

from __future__ import annotations

from pyterrier_graph.evaluation.measures.definitions import MAPD, PRECD, PRES, on_documents
from pyterrier_graph.evaluation.measures.provider import register

__all__ = ["MAPD", "PRECD", "PRES", "on_documents"]

register(PRES, MAPD, PRECD, on_documents)
