"""Checks of arguments and frames, and categories of warnings.

An error names the argument, the expected kind of value and the value that was given. Warnings can be shown, hidden or
turned into errors by category: ``warnings.simplefilter("error", ptg.PyTerrierGraphWarning)`` makes all of them errors.
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

REWRITTEN = "applypipeline:"  # how Terrier's query language begins, which RM3, Bo1 and SDM write


class PyTerrierGraphWarning(UserWarning):
    """A warning of this package, whose message names a remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class DataWarning(PyTerrierGraphWarning):
    """Files or frames are inconsistent, and parts of them are left out."""


class QualityWarning(PyTerrierGraphWarning):
    """Results are worse than they could be."""


class SpeedWarning(PyTerrierGraphWarning):
    """A computation takes longer than necessary."""


def positions(groups: "np.ndarray") -> "np.ndarray":
    """Per row its position in its group; the numbers of groups are in ascending order."""
    import numpy as np

    return np.arange(len(groups)) - np.searchsorted(groups, groups)


class WithSignature:
    """Base of public classes: ``inspect.signature``, ``help()`` and Sphinx show the arguments of ``__init__``.

    Otherwise they show those of ``__new__(cls, *args, **kwargs)``, which PyTerrier's transformers have.
    """

    __signature__: inspect.Signature

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]
        cls.__signature__ = inspect.Signature(parameters)


def check_type(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raises TypeError unless a value has one of these types, which ``expected`` describes in the message."""
    if not isinstance(value, kinds):
        kind = (
            f"the class {value.__name__}: call it"
            if isinstance(value, type)
            else type(value).__name__
        )
        raise TypeError(f"{name} must be {expected}, got {_shown(value)} ({kind})")


def check_training(training: Any, kind: type) -> Any:
    """Returns the options of a ``fit``, by default those of a class; TypeError if they are of another class."""
    training = kind() if training is None else training
    check_type(
        "training", training, kind, f"a {kind.__name__}, such as {kind.__name__}(measure='AP')"
    )
    return training


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError unless a value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or more, got {value!r}")


def check_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, below: bool = False
) -> None:
    """Raises ValueError unless a value is a finite number from ``low`` to ``high``, or ``below`` ``high``."""
    is_finite = False
    with suppress(OverflowError):  # an integer that no float can hold
        is_finite = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_finite:
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")
    if not low <= value <= high or (below and value == high):
        between = (
            f"from {low:g} to {'below ' if below else ''}{high:g}"
            if high < math.inf
            else f"{low:g} or more"
        )
        raise ValueError(f"{name} must be {between}, got {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raises ValueError unless a value is one of the choices."""
    choices = [*choices]
    try:
        known = value in choices
    except (TypeError, ValueError):  # pd.NA, an array
        known = False
    if not known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_weights(weights: Any) -> dict[str, float]:
    """Returns the weights of relations as floats; raises ValueError if a weight is negative or not finite."""
    check_type(
        "weights", weights, Mapping, "a weight per relation, such as {'title': 1.0, 'order': 0.5}"
    )
    for relation, weight in weights.items():
        check_type(
            "a relation in weights", relation, str, "the name of a relation, such as 'title'"
        )
        check_number(f"the weight of {relation!r}", weight, 0)
    return {relation: float(weight) for relation, weight in weights.items()}


def check_frame(
    frame: Any, context: Any, *, numbers: Iterable[str] = (), texts: Iterable[str] = ()
) -> Any:
    """Returns a frame with valid ids, numbers and texts; PyTerrier checks whether it has the required columns.

    Its index has no duplicates. Columns of ``numbers`` have integers or floats, ``qid``, ``docno`` and columns of
    ``texts`` have texts, except that a ``qid`` may be an integer.

    Raises TypeError if ``frame`` is not a DataFrame, ValueError if two columns have one name, a value is missing or of
    another kind, or the rows of a qid have different queries. The message begins with ``context``: the transformer, or
    the name of an argument.
    """
    import pandas as pd

    try:
        if not isinstance(frame, pd.DataFrame):
            advice = (
                "; pipeline.search reads a text, pt.io.read_topics and read_qrels files"
                * isinstance(frame, str)
            )
            raise TypeError(
                f"a DataFrame is needed, got {_shown(frame)} ({type(frame).__name__}){advice}"
            )
        names = frame.columns
        if len(
            wrong := [name for name in names if not isinstance(name, str)]
            or names[names.duplicated()]
        ):
            advice = "; a pipeline reads a DataFrame, pipeline.search a text" * (wrong[0] == 0)
            raise ValueError(f"names of columns must be different texts, got {wrong[0]!r}{advice}")
        if frame.index.name in names or not frame.index.is_unique:
            frame = frame.reset_index(drop=True)
        given = {name: frame[name] for name in ("qid", "docno", "query", *texts) if name in names}
        new = {name: _plain(column) for name, column in given.items()}
        new |= {name: _texts(new[name]) for name in ("qid", "docno", *texts) if name in names}
        new |= {name: _numbers(frame, name) for name in numbers if name in names}
        if "query" in names and "qid" in names:
            _check_queries(new["qid"], new["query"])
    except (TypeError, ValueError) as error:
        error.args = (f"{context}: {error}",)
        raise
    return frame.assign(
        **{name: column for name, column in new.items() if column is not given.get(name)}
    )


def _check_queries(qids: Any, queries: Any) -> None:
    """Raises ValueError if a query has two texts; some of its rows may have none."""
    import numpy as np
    import pandas as pd

    if len(queries) < 2 or pd.api.types.infer_dtype(queries) != "string":
        return  # what is not a text is found where queries are read
    texts = queries.factorize()[0]  # numbers, -1 where there is none
    if texts.max() < 1:
        return  # all have the same one
    known = texts >= 0
    place, names = qids[known].factorize()
    first = (
        texts[known][np.unique(place, return_index=True)[1]] if len(place) else place
    )  # of each qid
    if (twice := first[place] != texts[known]).any():
        qid = names[place[twice][0]]
        texts = " and ".join(map(_shown, queries[known][place == place[twice][0]].unique()[:2]))
        raise ValueError(f"query {qid!r} has two texts, {texts}: each text needs a qid of its own")


def _plain(column: Any) -> Any:
    """A column whose categories, or numbers in a dictionary of Arrow, are replaced by their values."""
    import pandas as pd

    is_plain = not isinstance(column.dtype, pd.CategoricalDtype | pd.ArrowDtype)
    return column if is_plain else column.astype(object).infer_objects()


def _texts(column: Any) -> Any:
    """A column of texts, or of ids: docnos become texts, qids may be integers."""
    import pandas as pd

    kind, name = pd.api.types.infer_dtype(column, skipna=False), column.name
    is_missing = column.array.isna().any()
    if name in ("qid", "docno") and kind == "integer" and not is_missing:
        return column.astype("str") if name == "docno" else column
    if len(column) and (kind != "string" or is_missing):
        value = next((value for value in column if not isinstance(value, str)), column.iloc[0])
        raise ValueError(f"a {name} must be a text, got {_shown(value)} ({type(value).__name__})")
    if name in ("qid", "docno") and column.dtype == object and not is_unicode("".join(column)):
        raise ValueError(
            f"{name} {next(value for value in column if not is_unicode(value))!r} is not valid Unicode"
        )
    return column if len(column) else column.astype("str")


def _numbers(frame: Any, name: str) -> Any:
    """A column of numbers, none of which is missing."""
    import pandas as pd

    column = frame[name]
    if not len(column):
        return column.astype(float)
    if column.dtype == object and pd.api.types.infer_dtype(column) in (
        "floating",
        "integer",
        "mixed-integer-float",
    ):
        with suppress(OverflowError, TypeError):  # of huge numbers, pd.NA
            column = column.astype(float)
    if not pd.api.types.is_any_real_numeric_dtype(column.dtype):
        raise ValueError(f"{name} must be numbers, got {_shown(column.iloc[0])} ({column.dtype})")
    if (missing := column.isna().to_numpy()).any():
        raise ValueError(f"{_row(frame, missing)} has no {name}")
    return column.astype(float) if pd.api.types.is_extension_array_dtype(column.dtype) else column


def _row(frame: Any, which: Any) -> str:
    """The first of some rows by its ids or name, or else by its number."""
    nouns = {"qid": "query ", "docno": "", "name": "", "token": "token "}
    found = [f"{noun}{frame[key][which].iloc[0]!r}" for key, noun in nouns.items() if key in frame]
    return ", ".join(found) or f"row {int(which.argmax())}"


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def progress(parts: Any, queries: int, unit: str, *, verbose: bool, desc: str = "reranking") -> Any:
    """Parts of the work for some queries, with a progress bar; one query, as in ``pipeline.search``, gets none."""
    import pyterrier as pt

    return pt.tqdm(
        parts, desc=desc, unit=unit, delay=1, leave=None, disable=not verbose or queries < 2
    )


def query_texts(run: "pd.DataFrame") -> "pd.Series":
    """Returns the text of each query, by qid in the order of the frame; some of a query's rows may lack it.

    Raises ValueError if a query has no text. Warns as :func:`warn_of_rewritten`.
    """
    texts = run.groupby("qid", sort=False)["query"].first()
    for qid, text in texts.items():
        if not isinstance(text, str) or not text.strip() or not is_unicode(text):
            raise ValueError(f"query {qid!r} has no text: {text!r:.60}")
    warn_of_rewritten(texts.tolist())
    return texts


def check_texts(texts: Iterable[Any]) -> list[str]:
    """The texts as a list; raises ValueError if one is not a string."""
    for number, text in enumerate(texts := [*texts]):
        if not isinstance(text, str) or not (text.isascii() or is_unicode(text)):
            raise ValueError(f"text {number} of {len(texts)} is not a string: {text!r:.60}")
    return texts


def warn_of_rewritten(texts: Sequence[str]) -> None:
    """Warns if queries are in Terrier's query language, which an encoder reads as words.

    The warning of the same queries is the same in all transformers of a pipeline, so Python shows it once.
    """
    rewritten = next((text for text in texts if text.startswith(REWRITTEN)), None)
    if rewritten is not None:
        problem = f"queries such as {rewritten[:40]!r} are in Terrier's query language, which an encoder reads as words"
        warnings.warn(f"{problem}: put pt.rewrite.reset() before it", QualityWarning, stacklevel=1)


def load_faiss(purpose: str) -> Any:
    """The module ``faiss``; raises ImportError, with the command that installs it, if it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"{purpose} needs FAISS: pip install 'pyterrier_graph[faiss]'") from error
    return faiss
