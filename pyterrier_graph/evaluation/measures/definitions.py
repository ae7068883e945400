"""What the measures are called, and their parameters."""

from __future__ import annotations

import math
from typing import Any

import ir_measures
from ir_measures.measures import Measure, ParamInfo

from pyterrier_graph.documents import PASSAGE_SEPARATOR
from pyterrier_graph.evaluation.measures.left_out import LeftOut


class _Parameter(ParamInfo):
    """A whole number from 1 up, or a text that is not empty."""

    def validate(self, value: Any) -> bool:
        return super().validate(value) and value != "" and (not isinstance(value, int) or value >= 1)


_RELEVANCE = _Parameter(dtype=int, default=1, desc="minimum relevance score to be considered relevant (inclusive)")
_SEPARATOR = _Parameter(dtype=str, default=PASSAGE_SEPARATOR, desc="what stands between a document and its passage")


class PatentMeasure(Measure):
    """A measure of this package. Parameters are checked when they are given.

    Raises:
        ValueError: If a parameter is unknown, or cannot have that value.
    """

    __name__: str
    DEFAULT = LeftOut()

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        for name, value in params.items():
            if name not in self.SUPPORTED_PARAMS:
                raise ValueError(f"{self.__name__} has no parameter {name!r}, only {[*self.SUPPORTED_PARAMS]}")
            parameter = self.SUPPORTED_PARAMS[name]
            if not parameter.validate(value):
                raise ValueError(f"{self.__name__}: {name} cannot be {value!r} ({parameter.desc})")


class PRESMeasure(PatentMeasure):
    """Patent Retrieval Evaluation Score: how far up a searcher who checks N results finds the relevant documents.

    1 if they are all on top; 0 if none is among the first N: those that are not are taken to follow right after.
    With recall R at N and n relevant documents, of which r are found, ``r R / N <= PRES <= R``.

    Magdy and Jones, *PRES: a score metric for evaluating recall-oriented information retrieval applications*,
    SIGIR 2010.

    Parameters:
        cutoff: N, the number of results that are checked; 1000 if it is not given, as in PRESeval.
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
        "cutoff": _Parameter(dtype=int, default=math.inf, desc="so many passages of the ranking count, from 1"),
        "per_document": _Parameter(dtype=int, default=math.inf, desc="so many passages of each document count, from 1"),
        "rel": _RELEVANCE,
        "separator": _SEPARATOR,
    }


class MAPDMeasure(_WithinDocuments):
    """MAP(D) of CLEF-IP: average precision within each relevant document, and its mean over them.

    Runs and judgments are of passages. A relevant document is one with a relevant passage; one without passages in the
    run counts 0. Passages of other documents play no part.

    Parameters:
        cutoff: Only the first so many passages of a topic count, whatever their documents: ``MAPD @ k`` is MAPD of a
            run that ends there. Not given, all do.
        per_document: Only the first so many passages of each document count, of those. Not given, all do.
        rel: Minimum label of a relevant passage.
        separator: A passage's document is what stands before the last separator in its id.
    """

    __name__ = NAME = "MAPD"
    PRETTY_NAME = "Mean Average Precision within Documents"
    SHORT_DESC = "Average precision of the passages within each relevant document."


class PRECDMeasure(_WithinDocuments):
    """PREC(D) of CLEF-IP: precision within each relevant document, and its mean over them.

    The precision is that among the passages of the document which are in the run. So it depends on how many are handed
    in, which the task leaves open: a run with every passage of a document has a low one.

    Parameters: those of MAPD. With a cut-off a document with fewer passages is not punished for it.
    """

    __name__ = NAME = "PRECD"
    PRETTY_NAME = "Precision within Documents"
    SHORT_DESC = "Precision of the passages within each relevant document."


class OnDocumentsMeasure(PatentMeasure):
    """A measure computed over documents, from a run and judgments of passages: ``on_documents(AP @ 100)``.

    A document is where the first of its passages is, and as relevant as the most relevant of them. Its id is what
    stands before the last separator in a passage's; an id without a separator is that of a document.

    ``str(on_documents(AP @ 100))``, which is ``on_documents(measure='AP@100')``, can be parsed again.
    What becomes of topics without relevant documents is up to the measure: PRES leaves them out, AP counts 0.

    Parameters:
        measure: The measure, or its name. It may use ids, order and labels, and nothing else of a run or judgments.
        separator: What stands between a document and its passage.
    """

    __name__ = NAME = "on_documents"
    PRETTY_NAME = "Measure over Documents"
    SHORT_DESC = "A measure over the documents of a run of passages."
    SUPPORTED_PARAMS = {
        "measure": ParamInfo(dtype=Measure, required=True, desc="an ir_measures measure"),
        "separator": _SEPARATOR,
    }

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if "measure" in params:
            self.DEFAULT = params["measure"].DEFAULT

    def __call__(  # type: ignore[override]  # the measure need not be named
        self, measure: Measure | str | None = None, separator: str | None = None, cutoff: int | None = None
    ) -> OnDocumentsMeasure:
        """The same with other parameters; ``cutoff`` is handed to the measure."""
        params = dict(self.params)
        if measure is not None:
            params["measure"] = ir_measures.parse_measure(measure) if isinstance(measure, str) else measure
        if separator is not None:
            params["separator"] = separator
        if cutoff is not None:
            params["measure"] = params["measure"] @ cutoff
        return type(self)(**params)

    def _param_repr(self, v: Any) -> str:
        return repr(str(v))

    def aggregator(self) -> Any:
        """How the measure makes one value of those of the topics."""
        return self["measure"].aggregator()


PRES = PRESMeasure()
MAPD = MAPDMeasure()
PRECD = PRECDMeasure()
on_documents = OnDocumentsMeasure()
