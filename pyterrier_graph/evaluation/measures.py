"""Measures of patent search for ir_measures: importing this module registers them.

The measures work wherever ir_measures' own measures do: ``PRES @ 100``, ``ir_measures.parse_measure("PRES@100")``,
``ir_measures.calc_aggregate``, ``pt.Experiment``, and, after an import of PyTerrier, ``pt.measures.PRES``.

A topic that is missing from the run has the value 0. A topic without relevant documents is left out of means and of
lists of values per topic. If another measure of the same call has a value for such a topic, the value of a measure of
this package is NaN, and so is a p-value of ``pt.Experiment``. If no measure of ``pt.Experiment`` has a value for a
topic, ``perquery="both"`` gives no mean, because PyTerrier adds the topic to the list and counts it.

Runs are sorted as in trec_eval: by score in single precision, then by id, both descending. A document that is judged
twice has the higher label. If a run has passages and the judgments have documents, or the other way round, all
measures except ``on_documents``, also those of ir_measures itself, are 0, with a warning.
"""

# The package imports this module, so it must be fast: only the evaluator imports numpy and pandas.

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Self

import ir_measures
from ir_measures import Evaluator, Metric, Provider
from ir_measures.measures import Measure, ParamInfo
from ir_measures.providers import FallbackProvider

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import level_mismatch

__all__ = ["MAPD", "PRECD", "PRES", "on_documents"]


SAMPLE = 100  # ids of a frame, of which the level is compared before all of them


class _Parameter(ParamInfo):
    """A whole number of at least 1, or a text."""

    def validate(self, value: Any) -> bool:
        return super().validate(value) and (not isinstance(value, int) or value >= 1)


_RELEVANCE = _Parameter(
    dtype=int, default=1, desc="minimum relevance score to be considered relevant (inclusive)"
)
_MEASURE = ParamInfo(dtype=Measure, required=True, desc="an ir_measures measure")


class LeftOut(float):
    """NaN that means ignore: the value of a measure for a topic without relevant documents.

    ir_measures and PyTerrier divide the sum of all values by the number of topics. A sum with LeftOut values is the
    ``total`` of the others, and a division subtracts the number of ignored ``topics`` from the divisor.
    """

    total: float
    topics: int

    def __new__(cls, total: float = 0.0, topics: int = 1) -> LeftOut:  # noqa: D102
        self = super().__new__(cls, math.nan)
        self.total, self.topics = total, topics
        return self

    def __add__(self, other: float) -> LeftOut:
        if isinstance(other, LeftOut):
            return LeftOut(self.total + other.total, self.topics + other.topics)
        return LeftOut(self.total + other, self.topics)

    __radd__ = __add__

    def __truediv__(self, count: float) -> float:
        return self.total / (count - self.topics) if count != self.topics else math.nan


class PatentMeasure(Measure):
    """Base class of the measures."""

    __name__: str
    DEFAULT = LeftOut()


class PRESMeasure(PatentMeasure):
    """Patent Retrieval Evaluation Score: recall and rank of relevant documents among the first N results.

    PRES is 1 if all relevant documents are on top and 0 if none is among the first N results. Relevant documents that
    are not among them count as if they followed directly after result N. With recall R at N and r relevant documents
    among the first N results, ``r R / N <= PRES <= R``.

    Magdy and Jones, *PRES: a score metric for evaluating recall-oriented information retrieval applications*,
    SIGIR 2010.

    Parameters:
        cutoff: N, the number of results that a searcher checks; by default 1000, as in PRESeval.
        rel: Minimum label of a relevant document.
    """

    __name__ = NAME = "PRES"
    SUPPORTED_PARAMS = {
        "cutoff": _Parameter(dtype=int, default=1000, desc="ranking cutoff threshold, from 1"),
        "rel": _RELEVANCE,
    }


class _WithinDocuments(PatentMeasure):
    SUPPORTED_PARAMS = {
        "cutoff": _Parameter(
            dtype=int, default=math.inf, desc="number of passages per topic that count, from 1"
        ),
        "rel": _RELEVANCE,
    }


class MAPDMeasure(_WithinDocuments):
    """MAP(D) of CLEF-IP: average precision of the passages of a relevant document, mean over relevant documents.

    Runs and judgments are of passages. A document is relevant if it has a relevant passage. A relevant document without
    passages in the run has the value 0. Passages of other documents are ignored.

    Parameters:
        cutoff: Number of passages per topic that count: ``MAPD @ k`` is MAPD of the first k results. By default all.
        rel: Minimum label of a relevant passage.
    """

    __name__ = NAME = "MAPD"


class PRECDMeasure(_WithinDocuments):
    """PREC(D) of CLEF-IP: precision of the passages of a relevant document, mean over relevant documents.

    The precision of a document is the share of relevant passages among the document's passages in the run. It depends
    on how many passages a run has, which the task does not limit: a run with all passages has a low precision.

    Parameters: those of MAPD. A document with fewer passages than a cutoff is not penalized.
    """

    __name__ = NAME = "PRECD"


class OnDocumentsMeasure(PatentMeasure):
    """A measure of documents, computed from a run of passages: ``on_documents(AP @ 100)``.

    A document has the rank of its first passage and the highest label of its passages. The id of a document is the part
    of a passage's id before the last ``%p``. An id without it is that of a document: judgments may be of passages or of
    documents. The inner measure decides about topics without relevant documents: PRES leaves them out, AP is 0.

    Parameters:
        measure: The measure, or its name. It may only depend on ids, ranks and labels.
    """

    __name__ = NAME = "on_documents"
    SUPPORTED_PARAMS = {"measure": _MEASURE}

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if "measure" in params:
            self.DEFAULT = params["measure"].DEFAULT

    def __call__(self, *values: Any, cutoff: int | None = None, **given: Any) -> Self:
        """The same measure with other parameters, in their order; ``cutoff`` is the cutoff of the inner measure."""
        given = dict(zip(self.SUPPORTED_PARAMS, values, strict=False)) | given
        params = self.params | {name: value for name, value in given.items() if value is not None}
        if isinstance(params.get("measure"), str):
            params["measure"] = ir_measures.parse_measure(params["measure"])
        if cutoff is not None:
            params["measure"] = params["measure"] @ cutoff
        return type(self)(**params)

    def _param_repr(self, v: Any) -> str:
        return repr(str(v))

    def aggregator(self) -> Any:
        """The aggregator of the inner measure."""
        return self["measure"].aggregator()


class PatentProvider(Provider):
    """Computes the measures of this package."""

    NAME = "pyterrier_graph"

    def supports(self, measure: Measure) -> bool:
        """Whether the measure is one of this package with valid parameters."""
        measure.validate_params()
        return isinstance(measure, PatentMeasure)

    def _evaluator(self, measures: Iterable[Measure], qrels: Any) -> Evaluator:
        from pyterrier_graph.evaluation.evaluator import PatentEvaluator

        return PatentEvaluator(measures, qrels)


class LevelProvider(FallbackProvider):
    """Passes measures on to other providers, and warns if the run has passages and documents are judged.

    It is the first provider, so that it sees the ordinary measures of ``pt.Experiment``, which are 0 where a pipeline
    lacks ``pt.text.max_passage()``. Nothing else sees both a run and its judgments.
    """

    NAME = "pyterrier_graph_levels"

    def supports(self, measure: Measure) -> bool:
        """Whether another provider supports the measure."""
        return any(one.supports(measure) for one in self.providers)

    def _evaluator(self, measures: Iterable[Measure], qrels: Any) -> Evaluator:
        evaluator = super()._evaluator(measures, qrels)
        calculate = evaluator.iter_calc

        def checked(run: Any) -> Iterator[Metric]:
            if all(
                "doc_id" in getattr(frame, "columns", ()) for frame in (run, qrels)
            ):  # pt.Experiment gives frames
                found, judged = run["doc_id"], qrels["doc_id"]
                few = level_mismatch(found[:SAMPLE].astype(str), judged[:SAMPLE].astype(str))
                if few and (message := level_mismatch(found.astype(str), judged.astype(str))):
                    warnings.warn(message, DataWarning, stacklevel=3)
            return calculate(run)

        evaluator.iter_calc = checked
        return evaluator


def register(*measures: PatentMeasure) -> None:
    """Adds measures to ir_measures, and to PyTerrier if it was imported before. Skips names that are taken."""
    providers = ir_measures.DefaultPipeline.providers
    providers[:] = [
        LevelProvider([*providers]),
        *providers,
        ir_measures.providers.register(PatentProvider()),
    ]
    for measure in measures:
        if measure.__name__ in ir_measures.measures.registry:
            continue
        ir_measures.measures.register(measure)
        if "pyterrier.measures" in sys.modules:
            setattr(sys.modules["pyterrier.measures"], measure.__name__, measure)


PRES = PRESMeasure()
MAPD = MAPDMeasure()
PRECD = PRECDMeasure()
on_documents = OnDocumentsMeasure()
register(PRES, MAPD, PRECD, on_documents)
