"""Checks of frames, queries and training options, and categories of warnings.

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
        parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]
        cls.__signature__ = inspect.Signature(parameters)


def check_training(training: Any, kind: type) -> Any:
    """Returns the options of a ``fit``, by default ``kind()``; raises TypeError for options of another class."""
    training = kind() if training is None else training
    if not isinstance(training, kind):
        raise TypeError(
            f"training must be a {kind.__name__}, such as {kind.__name__}(measure='AP'), "
            f"got {training!r:.60}"
        )
    return training


def check_frame(
    frame: Any, context: Any, *, numbers: Iterable[str] = (), texts: Iterable[str] = ()
) -> Any:
    """Returns a frame whose ids and ``texts`` are strings, and whose ``numbers`` are not missing.

    PyTerrier checks which columns exist (``pt.validate``). A ``qid`` may be an integer. The index has no duplicates.

    Raises:
        TypeError: If ``frame`` is not a DataFrame.
        ValueError: If a value is missing or of another type, two columns have one name, or the rows of a qid have
            different queries. The message begins with ``context``: a transformer, or the name of an argument.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"{context}: a DataFrame is needed, got {frame!r:.60}")
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"{context}: two columns are named {repeated!r}")
    if frame.index.name in frame.columns or not frame.index.is_unique:
        frame = frame.reset_index(drop=True)
    names = [name for name in ("qid", "docno", "query", *texts, *numbers) if name in frame.columns]
    before = {name: frame[name] for name in names}
    columns = {name: _plain(column) for name, column in before.items()}
    try:
        for name in names:
            if name in numbers:
                columns[name] = _numbers(columns[name])
            elif name != "query" or name in texts:
                columns[name] = _strings(columns[name])
        if "qid" in columns and "query" in columns:
            _check_queries(columns["qid"], columns["query"])
    except ValueError as error:
        raise ValueError(f"{context}: {error}") from None
    return frame.assign(
        **{name: columns[name] for name in names if columns[name] is not before[name]}
    )


def _plain(column: "pd.Series") -> "pd.Series":
    """Replaces categories and Arrow's types by Python's."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype | pd.ArrowDtype):
        return column.astype(object).infer_objects()
    return column


def _strings(column: "pd.Series") -> "pd.Series":
    """A column of strings. Docnos become strings, and qids may be integers."""
    import pandas as pd

    if isinstance(column.dtype, pd.StringDtype) and not column.array.isna().any():
        return column
    kind = pd.api.types.infer_dtype(column, skipna=False)
    if kind == "integer" and column.name in ("qid", "docno"):
        return column.astype("str") if column.name == "docno" else column
    if len(column) and (kind != "string" or column.hasnans):
        wrong = next((value for value in column if not isinstance(value, str)), None)
        raise ValueError(f"{column.name} must be a string, got {wrong!r:.60}")
    return column if len(column) else column.astype("str")


def _numbers(column: "pd.Series") -> "pd.Series":
    """A column of numbers without missing values."""
    try:
        numbers = column.astype(float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{column.name} must be numbers, got {column.iloc[0]!r:.60}") from None
    missing = numbers.array.isna()  # twenty times as fast as numbers.hasnans
    if missing.any():
        raise ValueError(f"{missing.sum()} rows have no {column.name}")
    return column if str(column.dtype).startswith(("int", "uint", "float")) else numbers


def _check_queries(qids: "pd.Series", queries: "pd.Series") -> None:
    """Raises ValueError if a qid has two queries; some of its rows may have none."""
    import pandas as pd

    if len(queries) < 2 or pd.api.types.infer_dtype(queries) != "string" or queries.nunique() < 2:
        return
    distinct = pd.DataFrame({"qid": qids, "query": queries}).dropna().drop_duplicates()
    repeated = distinct["qid"][distinct["qid"].duplicated()]
    if len(repeated):
        qid = repeated.iloc[0]
        first, second, *_ = distinct["query"][distinct["qid"] == qid]
        raise ValueError(
            f"query {qid!r} has two texts, {first!r:.60} and {second!r:.60}: "
            "each text needs a qid of its own"
        )


def query_texts(run: "pd.DataFrame") -> "pd.Series":
    """Returns the text of each query, by qid in the order of the frame; some of a query's rows may lack it.

    Raises ValueError if a query has no text. Warns as :func:`warn_of_rewritten`.
    """
    texts = run.groupby("qid", sort=False)["query"].first()
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
    rewritten = next((text for text in texts if text.startswith(TERRIER_QUERY)), None)
    if rewritten is not None:
        warnings.warn(
            f"queries such as {rewritten[:40]!r} are in Terrier's query language, which an encoder "
            "reads as words: put pt.rewrite.reset() before it",
            QualityWarning,
            stacklevel=1,
        )


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def progress(steps: Any, queries: int, unit: str, *, verbose: bool, desc: str = "reranking") -> Any:
    """A progress bar over ``steps``, unless there is a single query, as in ``pipeline.search``."""
    import pyterrier as pt

    return pt.tqdm(
        steps, desc=desc, unit=unit, delay=1, leave=None, disable=not verbose or queries < 2
    )


def positions(groups: "np.ndarray") -> "np.ndarray":
    """Position of each row in its group; the numbers of groups ascend."""
    import numpy as np

    return np.arange(len(groups)) - np.searchsorted(groups, groups)
