"""The measures: names, parameters and descriptions, and their registration with ir_measures and PyTerrier."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from typing import Any, Self

import ir_measures
from ir_measures import Evaluator, Provider
from ir_measures.measures import Measure, ParamInfo

from pyterrier_graph.documents import PASSAGE_SEPARATOR


class _Parameter(ParamInfo):
    """A whole number of at least 1, or a text that is not empty."""

    def validate(self, value: Any) -> bool:
        return super().validate(value) and value != "" and (not isinstance(value, int) or value >= 1)


_RELEVANCE = _Parameter(dtype=int, default=1, desc="minimum relevance score to be considered relevant (inclusive)")
_MEASURE = ParamInfo(dtype=Measure, required=True, desc="an ir_measures measure")
_SEPARATOR = _Parameter(dtype=str, default=PASSAGE_SEPARATOR, desc="text between the ids of document and passage")


class LeftOut(float):
    """NaN that sums and means ignore: the value of a measure for a topic without relevant documents.

    ir_measures and PyTerrier add up the values of all topics and divide by the number of topics. A sum of LeftOut
    values has their ``total`` without ignored ``topics``, whose number a division subtracts from the divisor.
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
    """Base class of the measures. Unknown parameters and wrong values raise ValueError."""

    __name__: str
    DEFAULT = LeftOut()

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        for name, value in params.items():
            parameter = self.SUPPORTED_PARAMS.get(name)
            if parameter is None:
                raise ValueError(f"{self.__name__} has no parameter {name!r}, only {[*self.SUPPORTED_PARAMS]}")
            if not parameter.validate(value):
                raise ValueError(f"{self.__name__}: {name} cannot be {value!r} ({parameter.desc})")


class PRESMeasure(PatentMeasure):
    """Patent Retrieval Evaluation Score: recall and rank of relevant documents among the first N results.

    PRES is 1 if all relevant documents are on top and 0 if no relevant document is among the first N results. Relevant
    documents that are not among the first N results count as if they followed directly after result N. With recall R at
    N and r relevant documents among the first N results, ``r R / N <= PRES <= R``.

    Magdy and Jones, *PRES: a score metric for evaluating recall-oriented information retrieval applications*,
    SIGIR 2010.

    Parameters:
        cutoff: N, the number of results that a searcher checks; by default 1000, as in PRESeval.
        rel: Minimum label of a relevant document.
    """

    __name__ = NAME = "PRES"
    PRETTY_NAME = "Patent Retrieval Evaluation Score"
    SHORT_DESC = "How far up the relevant documents are, relative to the best and the worst ranking."
    SUPPORTED_PARAMS = {
        "cutoff": _Parameter(dtype=int, default=1000, desc="ranking cutoff threshold, from 1"),
        "rel": _RELEVANCE,
    }


class _WithinDocuments(PatentMeasure):
    SUPPORTED_PARAMS = {
        "cutoff": _Parameter(dtype=int, default=math.inf, desc="number of passages per topic that count, from 1"),
        "per_document": _Parameter(dtype=int, default=math.inf, desc="passages per document that count, from 1"),
        "rel": _RELEVANCE,
        "separator": _SEPARATOR,
    }


class MAPDMeasure(_WithinDocuments):
    """MAP(D) of CLEF-IP: average precision of the passages of a relevant document, mean over relevant documents.

    Runs and judgments are of passages. A document is relevant if it has a relevant passage. A relevant document without
    passages in the run has the value 0. Passages of other documents are ignored.

    Parameters:
        cutoff: Number of passages per topic that count: ``MAPD @ k`` is MAPD of the first k results. By default all.
        per_document: Number of passages per document that count, among those within the cutoff. By default all.
        rel: Minimum label of a relevant passage.
        separator: A passage's document is the part of the passage's id before the last separator.
    """

    __name__ = NAME = "MAPD"
    PRETTY_NAME = "Mean Average Precision within Documents"
    SHORT_DESC = "Average precision of the passages within each relevant document."


class PRECDMeasure(_WithinDocuments):
    """PREC(D) of CLEF-IP: precision of the passages of a relevant document, mean over relevant documents.

    The precision of a document is the share of relevant passages among the document's passages in the run. It depends
    on how many passages a run has, which the task does not limit: a run with all passages has a low precision.

    Parameters: those of MAPD. A document with fewer passages than a cutoff is not penalized.
    """

    __name__ = NAME = "PRECD"
    PRETTY_NAME = "Precision within Documents"
    SHORT_DESC = "Precision of the passages within each relevant document."


class FoldedMeasure(PatentMeasure):
    """Base class of measures that fold passages: a measure of what passages belong to or lead to."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if "measure" in params:
            self.DEFAULT = params["measure"].DEFAULT

    @property
    def fold(self) -> tuple[str, ...]:
        """The parameters that say how passages are folded."""
        return tuple(self[name] for name in self.SUPPORTED_PARAMS if name != "measure")

    def _with(self, measure: Measure | str | None, cutoff: int | None, **given: Any) -> Self:
        parsed = ir_measures.parse_measure(measure) if isinstance(measure, str) else measure
        given = {"measure": parsed} | given
        params = self.params | {name: value for name, value in given.items() if value is not None}
        if cutoff is not None:
            params["measure"] = params["measure"] @ cutoff
        return type(self)(**params)

    def _param_repr(self, v: Any) -> str:
        return repr(str(v))

    def aggregator(self) -> Any:
        """The aggregator of the inner measure."""
        return self["measure"].aggregator()


class OnDocumentsMeasure(FoldedMeasure):
    """A measure of documents, computed from a run of passages: ``on_documents(AP @ 100)``.

    A document has the rank of its first passage and the highest label of its passages. The id of a document is the part
    of a passage's id before the last separator. An id without a separator is the id of a document, so judgments may be
    of passages or of documents.

    ``str(on_documents(AP @ 100))``, which is ``on_documents(measure='AP@100')``, can be parsed again.
    The measure decides about topics without relevant documents: PRES leaves them out, AP has the value 0.

    Parameters:
        measure: The measure, or its name. It may only depend on ids, ranks and labels.
        separator: Text between the ids of document and passage.
    """

    __name__ = NAME = "on_documents"
    PRETTY_NAME = "Measure over Documents"
    SHORT_DESC = "A measure over the documents of a run of passages."
    SUPPORTED_PARAMS = {"measure": _MEASURE, "separator": _SEPARATOR}

    def __call__(  # type: ignore[override]  # the measure may be positional
        self, measure: Measure | str | None = None, separator: str | None = None, cutoff: int | None = None
    ) -> OnDocumentsMeasure:
        """The same measure with other parameters; ``cutoff`` is the cutoff of the inner measure."""
        return self._with(measure, cutoff, separator=separator)


class OnNodesMeasure(FoldedMeasure):
    """A measure of sections, or of other nodes of a graph, from a run of passages: ``on_nodes(nDCG @ 10, graph)``.

    A node has the rank of the first passage that leads to it and the highest label of the passages that lead to it, as
    in ``graph.fold(relation)``. A passage that leads to no node, and an id that is not that of a passage of the graph,
    stay as they are, so judgments may be of passages, of sections (``docno%sN``), or of other nodes.

    ``str`` of the measure has the graph's path, and can be parsed again.

    Parameters:
        measure: The measure, or its name. It may only depend on ids, ranks and labels.
        graph: The :class:`~pyterrier_graph.DocumentGraph`, or its path.
        relation: What passages lead to: a relation of the graph, a path of relations, or ``'document'`` for documents.
    """

    __name__ = NAME = "on_nodes"
    PRETTY_NAME = "Measure over Nodes"
    SHORT_DESC = "A measure over the sections, or other nodes of a graph, of a run of passages."
    SUPPORTED_PARAMS = {
        "measure": _MEASURE,
        "graph": _Parameter(dtype=str, required=True, desc="a DocumentGraph, or its path"),
        "relation": _Parameter(dtype=str, default="structural", desc="a relation of the graph, or 'document'"),
    }

    def __init__(self, **params: Any) -> None:
        if "graph" in params:
            path = getattr(params["graph"], "path", params["graph"])
            params["graph"] = str(path) if isinstance(path, os.PathLike) else path
        super().__init__(**params)

    def __call__(  # type: ignore[override]  # the parameters may be positional
        self,
        measure: Measure | str | None = None,
        graph: Any = None,
        relation: str | None = None,
        cutoff: int | None = None,
    ) -> OnNodesMeasure:
        """The same measure with other parameters; ``cutoff`` is the cutoff of the inner measure."""
        return self._with(measure, cutoff, graph=graph, relation=relation)


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


PRES = PRESMeasure()
MAPD = MAPDMeasure()
PRECD = PRECDMeasure()
on_documents = OnDocumentsMeasure()
on_nodes = OnNodesMeasure()
