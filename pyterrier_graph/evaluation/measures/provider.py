"""Registers the measures with ir_measures and PyTerrier."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import ir_measures
from ir_measures import Evaluator, Measure, Provider

from pyterrier_graph.evaluation.measures.definitions import PatentMeasure


class PatentProvider(Provider):
    """Computes the measures of this package."""

    NAME = "pyterrier_graph"

    def supports(self, measure: Measure) -> bool:
        """Whether the measure is one of this package with valid parameters."""
        measure.validate_params()
        return isinstance(measure, PatentMeasure)

    def _evaluator(self, measures: Iterable[Measure], qrels: Any) -> Evaluator:
        from pyterrier_graph.evaluation.measures.evaluator import PatentEvaluator

        return PatentEvaluator(measures, qrels)


def register(*measures: PatentMeasure) -> None:
    """Adds measures to ir_measures, and to PyTerrier if it was imported before. Skips names that are taken."""
    ir_measures.DefaultPipeline.providers.append(ir_measures.providers.register(PatentProvider()))
    for measure in measures:
        if measure.__name__ in ir_measures.measures.registry:
            continue
        ir_measures.measures.register(measure)
        if "pyterrier.measures" in sys.modules:
            setattr(sys.modules["pyterrier.measures"], measure.__name__, measure)
