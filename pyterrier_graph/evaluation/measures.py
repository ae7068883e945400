"""Measures of patent search and of question answering for ir_measures. Importing this module registers them.

The measures work wherever the measures of ir_measures do: ``PRES @ 100``, ``ir_measures.parse_measure("PRES@100")``,
``ir_measures.calc_aggregate`` and ``pt.Experiment``.

Topics and ties are handled as in trec_eval: a judged topic that is missing from the run has the value 0, and so has a
topic without relevant documents. Runs are sorted by score in single precision, then by id, both descending. A document
that is judged twice has the higher label.

PRES, MAPD and PRECD warn if the run has passages and the judgments have documents, or the other way round: they are 0
then.
"""

# The package imports this module, so it must be fast: only the equations import numpy and pandas.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import ir_measures
from ir_measures import Metric
from ir_measures.measures import Measure, ParamInfo

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MAPD", "AnswerRecall", "PRECD", "PRES", "on_documents"]


_RELEVANCE = ParamInfo(
    dtype=int, default=1, desc="minimum relevance score to be considered relevant (inclusive)"
)
_PASSAGES = ParamInfo(dtype=int, default=math.inf, desc="number of passages per topic that count")


class _PythonMeasure(Measure):
    """A measure that the provider ``runtime`` of ir_measures computes, like measures of ``ir_measures.define``."""

    RUN_INPUTS = ["query_id", "doc_id", "score"]
    QREL_INPUTS = ["query_id", "doc_id", "relevance"]

    def runtime_impl(self, qrels: pd.DataFrame, run: pd.DataFrame) -> Iterator[Metric]:
        """Computes the measure of the topics with relevant documents; other judged topics have the value 0."""
        from pyterrier_graph.evaluation.equations import compute

        values = compute(self, qrels, run)
        return (Metric(topic, self, value) for topic, value in values.items())


class PRESMeasure(_PythonMeasure):
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
        "cutoff": ParamInfo(dtype=int, default=1000, desc="ranking cutoff threshold"),
        "rel": _RELEVANCE,
    }


class MAPDMeasure(_PythonMeasure):
    """MAP(D) of CLEF-IP: average precision of the passages of a relevant document, mean over relevant documents.

    Runs and judgments are of passages. A document is relevant if it has a relevant passage. A relevant document without
    passages in the run has the value 0. Passages of other documents are ignored.

    Parameters:
        cutoff: Number of passages per topic that count: ``MAPD @ k`` is MAPD of the first k results. By default all.
        rel: Minimum label of a relevant passage.
    """

    __name__ = NAME = "MAPD"
    SUPPORTED_PARAMS = {"cutoff": _PASSAGES, "rel": _RELEVANCE}


class PRECDMeasure(_PythonMeasure):
    """PREC(D) of CLEF-IP: precision of the passages of a relevant document, mean over relevant documents.

    The precision of a document is the share of relevant passages among the document's passages in the run. It depends
    on how many passages a run has, which the task does not limit: a run with all passages has a low precision.

    Parameters: as for MAPD. A document with fewer passages than a cutoff is not penalized.
    """

    __name__ = NAME = "PRECD"
    SUPPORTED_PARAMS = {"cutoff": _PASSAGES, "rel": _RELEVANCE}


class OnDocumentsMeasure(_PythonMeasure):
    """A measure of documents, computed from a run of passages: ``on_documents(AP @ 100)``.

    A document has the rank of its first passage and the highest label of its passages. The id of a document is the part
    of a passage's id before the last ``%p``. An id without it is the id of a document: judgments may be of passages or
    of documents.

    Parameters:
        measure: The measure, or its name. It may only depend on ids, ranks and labels.
    """

    __name__ = NAME = "on_documents"
    SUPPORTED_PARAMS = {
        "measure": ParamInfo(dtype=Measure, required=True, desc="an ir_measures measure")
    }

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if "measure" in params:
            self.DEFAULT = params["measure"].DEFAULT

    def __call__(  # type: ignore[override]
        self, measure: Measure | str | None = None, *, cutoff: int | None = None
    ) -> Self:
        """Returns this measure with another inner measure, or with another cutoff of the inner measure."""
        if measure is None:
            measure = self["measure"]
        if isinstance(measure, str):
            measure = ir_measures.parse_measure(measure)
        if cutoff is not None:
            measure = measure @ cutoff
        return type(self)(measure=measure)

    def _param_repr(self, v: Any) -> str:
        return repr(str(v))

    def aggregator(self) -> Any:
        """Returns the aggregator of the inner measure."""
        return self["measure"].aggregator()


class AnswerRecallMeasure(_PythonMeasure):
    """Share of questions with an answer among the first k passages, as in DPR (Karpukhin et al. 2020).

    A passage counts if it contains one of the question's answers as a sequence of words, after the Unicode
    normalization and tokenization of DPR's released code. No passage has to be judged. The judgments are a frame
    ``qid, answer`` with one row per answer, and the results need the column ``text``::

        pt.Experiment([retriever >> pt.text.get_text(dataset, "text")], topics, answers, [AnswerRecall @ 20])

    Parameters:
        cutoff: Number of passages per question; by default all.
    """

    __name__ = NAME = "AnswerRecall"
    SUPPORTED_PARAMS = {"cutoff": _PASSAGES}
    RUN_INPUTS = ["query_id", "doc_id", "score", "text"]
    QREL_INPUTS = ["query_id", "answer"]

    def runtime_impl(self, qrels: pd.DataFrame, run: pd.DataFrame) -> Iterator[Metric]:
        """Computes whether each question has an answer; questions without results have the value 0."""
        from pyterrier_graph.evaluation.answers import first_answers

        for topic, rank in first_answers(qrels, run).items():
            yield Metric(topic, self, float(rank <= self["cutoff"]))


PRES = PRESMeasure()
MAPD = MAPDMeasure()
PRECD = PRECDMeasure()
on_documents = OnDocumentsMeasure()
AnswerRecall = AnswerRecallMeasure()


for _measure in (PRES, MAPD, PRECD, on_documents, AnswerRecall):
    ir_measures.measures.register(_measure)
