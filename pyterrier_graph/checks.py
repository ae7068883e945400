"""Checks of frames and queries, and categories of warnings.

Warnings can be shown, hidden or turned into errors by category:
``warnings.simplefilter("error", ptg.PyTerrierGraphWarning)`` makes all of them errors.
"""

import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

TERRIER_QUERY = "applypipeline:"  # the start of queries that RM3, Bo1 and SDM write


class PyTerrierGraphWarning(UserWarning):
    """Base class of this package's warnings. Every message names a remedy."""


class DataWarning(PyTerrierGraphWarning):
    """Files or frames are inconsistent, and some of their contents are left out."""


class QualityWarning(PyTerrierGraphWarning):
    """Results are worse than they could be."""


class SpeedWarning(PyTerrierGraphWarning):
    """A computation takes longer than necessary."""


class WithSignature:
    """Base of public classes: ``inspect.signature``, ``help()`` and Sphinx show the arguments of ``__init__``.

    Otherwise they show ``__new__(cls, *args, **kwargs)`` of PyTerrier's transformers.
    """

    __signature__: inspect.Signature

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        signature = inspect.signature(cls.__init__)
        _, *parameters = signature.parameters.values()  # without self
        cls.__signature__ = inspect.Signature(parameters)


def check_frame(
    frame: Any, context: Any, *, numbers: Iterable[str] = (), texts: Iterable[str] = ()
) -> Any:
    """Returns a frame whose ids and ``texts`` are strings, and whose ``numbers`` are not missing.

    PyTerrier checks which columns exist (``pt.validate``). A ``qid`` may be an integer. The index has no duplicates.

    Raises:
        ValueError: If a value is missing or of another type, or the rows of a qid have different queries. The message
            begins with ``context``: a transformer, or the name of an argument.
    """
    if not len(frame):
        return frame
    if frame.index.name in frame.columns or not frame.index.is_unique:
        frame = frame.reset_index(drop=True)
    columns = set(frame.columns)
    for name in numbers:
        if name in columns:
            missing = frame[name].array.isna().sum()  # twenty times as fast as without array
            if missing:
                raise ValueError(f"{context}: {missing} rows have no {name}")
    for name in ("qid", "docno", *texts):
        if name in columns and not _are_strings(frame[name]):
            wrong = next(value for value in frame[name] if not isinstance(value, str))
            raise ValueError(f"{context}: {name} must be a string, got {wrong!r:.60}")
    if len(frame) > 1 and columns.issuperset(["qid", "query"]):
        _check_queries(frame, context)
    return frame


def _are_strings(column: "pd.Series") -> bool:
    """Whether all values are strings, or integers in a column ``qid``."""
    from pandas.api.types import is_integer_dtype, is_string_dtype

    if column.name == "qid" and is_integer_dtype(column):
        return True
    return is_string_dtype(column) and not column.array.isna().any()


def _check_queries(frame: "pd.DataFrame", context: Any) -> None:
    """Raises ValueError if a qid has two queries; some of its rows may have none."""
    if frame["query"].nunique() < 2:
        return
    queries = frame[["qid", "query"]].dropna().drop_duplicates()
    is_repeated = queries["qid"].duplicated(keep=False)
    if is_repeated.any():
        repeated = queries[is_repeated].sort_values("qid", kind="stable")
        qid = repeated["qid"].iloc[0]
        first, second, *_ = repeated["query"]
        problem = f"query {qid!r} has two texts, {first!r:.60} and {second!r:.60}"
        raise ValueError(f"{context}: {problem}: each text needs a qid of its own")


def query_texts(run: "pd.DataFrame") -> "pd.Series":
    """Returns the text of each query, by qid in the order of the frame; some of a query's rows may lack it.

    Raises ValueError if a query has no text. Warns as :func:`warn_of_rewritten`.
    """
    by_qid = run.groupby("qid", sort=False)
    texts = by_qid["query"].first()
    for qid, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"query {qid!r} has no text: {text!r:.60}")
    warn_of_rewritten(texts.tolist())
    return texts


def check_texts(texts: Iterable[Any]) -> list[str]:
    """Returns the texts as a list; raises ValueError if one is not a string, for example NaN."""
    texts = [*texts]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} of {len(texts)} is not a string: {text!r:.60}")
    return texts


def warn_of_rewritten(texts: Sequence[str]) -> None:
    """Warns if queries are in Terrier's query language, which an encoder reads as words."""
    rewritten = [text for text in texts if text.startswith(TERRIER_QUERY)]
    if rewritten:
        warnings.warn(
            f"queries such as {rewritten[0][:40]!r} are in Terrier's query language, which an encoder "
            "reads as words: put pt.rewrite.reset() before it",
            QualityWarning,
            stacklevel=1,
        )


def progress(steps: Any, queries: int, unit: str, *, verbose: bool, desc: str = "reranking") -> Any:
    """A progress bar over ``steps``, unless there is a single query, as in ``pipeline.search``."""
    import pyterrier as pt

    hidden = not verbose or queries < 2
    return pt.tqdm(steps, desc=desc, unit=unit, delay=1, leave=None, disable=hidden)


def positions(groups: "np.ndarray") -> "np.ndarray":
    """Position of each row in its group; the numbers of groups ascend."""
    import numpy as np

    starts = np.searchsorted(groups, groups)  # (rows,)
    return np.arange(len(groups)) - starts
