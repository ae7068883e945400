"""Checks of arguments: an error names the argument, what was expected and what was given."""

import inspect
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints


class _SignatureOfInit:
    """The signature of a class's ``__init__``, without self. Instances have none: theirs is that of ``__call__``."""

    def __get__(self, instance: object | None, cls: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError(f"an instance of {cls.__name__} has no attribute '__signature__'")
        parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]  # type: ignore[misc]
        return inspect.Signature(parameters)


class WithSignature:
    """Base of public classes: ``inspect.signature``, ``help()`` and Sphinx show the arguments of ``__init__``.

    Otherwise they show those of ``__new__(cls, *args, **kwargs)``, which PyTerrier's transformers have.
    """

    __signature__ = _SignatureOfInit()


def check_type(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raises TypeError unless a value has one of these types, which ``expected`` describes in the message."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {expected}, got {_shown(value)} ({type(value).__name__})")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError unless a value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}")


def check_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, below: bool = False) -> None:
    """Raises ValueError unless a value is a finite number from ``low`` to ``high``, or ``below`` ``high``."""
    if isinstance(value, bool | str) or not _is_finite(value):
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")
    if not low <= value <= high or (below and value == high):
        between = f"from {low:g} to {'below ' if below else ''}{high:g}" if high < math.inf else f"{low:g} or more"
        raise ValueError(f"{name} must be {between}, got {value!r}")


def _is_finite(value: Any) -> bool:
    with suppress(OverflowError, TypeError, ValueError):  # of a huge whole number, no number, several numbers
        return math.isfinite(value)
    return False


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raises ValueError unless a value is one of the choices."""
    choices = [*choices]
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_fields(options: Any, **least: int) -> None:
    """Raises ValueError unless the fields of a dataclass have allowed values; None is allowed where the type allows it.

    Args:
        options: The dataclass. A field whose type is ``Literal`` must have one of its values.
        **least: The smallest allowed number of each numeric field. A field of type int must be a whole number.
    """
    for name, hint in get_type_hints(type(options)).items():
        value, kinds = getattr(options, name), (hint, *get_args(hint))  # the arguments of `int | None` are its types
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        if value is None and type(None) in kinds:
            continue
        if choices and not isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type))):
            check_choice(name, value, choices)
        elif name in least and int in kinds:
            check_count(name, value, least[name])
        elif name in least:
            check_number(name, value, least[name])


def check_weights(weights: Any) -> dict[str, float]:
    """Returns the weights of relations as floats; raises ValueError if a weight is negative or not finite."""
    check_type("weights", weights, Mapping, "a weight per relation, such as {'title': 1.0, 'order': 0.5}")
    for relation, weight in weights.items():
        check_type("a relation in weights", relation, str, "the name of a relation, such as 'title'")
        check_number(f"the weight of {relation!r}", weight, 0)
    return {relation: float(weight) for relation, weight in weights.items()}


def check_frame(
    frame: Any,
    context: Any,
    *,
    numbers: Iterable[str] = (),
    texts: Iterable[str] = (),
    optional_texts: Iterable[str] = (),
    vectors: Mapping[str, int] | None = None,
    largest: float = math.inf,
) -> Any:
    """A frame whose ids, numbers and texts can be computed with; whether it has a column is PyTerrier's to check.

    The frame that is returned has an index without duplicates, numbers in columns of numbers, and texts as ids
    (``qid``, ``docno``), except that a ``qid`` may be a whole number.

    Args:
        frame: The frame that was given.
        context: The transformer, or the name of what takes the frame, for messages.
        numbers: Columns of numbers, if they are there, such as ``score``: of integers or floats, none missing.
        texts: Columns of texts, if they are there; none is missing.
        optional_texts: Columns of texts, of which some may be missing.
        vectors: Columns of arrays of finite numbers, if they are there, with their lengths.
        largest: Numbers that are larger, or smaller than its negative, are an error.

    Raises:
        TypeError: If this is no frame.
        ValueError: If two columns have one name, or a value is missing or of another kind; the message has the value.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        shown = f"{frame!r:.60} ({type(frame).__name__})"
        raise TypeError(f"{_named(context)}: a DataFrame is needed, got {shown}")
    wrong = [name for name in frame.columns if not isinstance(name, str)] or frame.columns[frame.columns.duplicated()]
    if len(wrong):
        raise ValueError(f"{_named(context)}: names of columns must be different texts, got {wrong[0]!r}")
    if not _is_plain(frame.index, frame.columns):
        frame = frame.reset_index(drop=True)
    given = {name: frame[name] for name in ("qid", "docno", *numbers) if name in frame.columns}
    new: dict[str, Any] = {name: _ids(given[name], name, context) for name in ("qid", "docno") if name in given}
    for name in (*texts, *optional_texts):
        if name in frame.columns:
            present = frame[name].dropna() if name in optional_texts else frame[name]
            _check_texts(present, name, context)
    for name, dimension in (vectors or {}).items():
        if name in frame.columns:
            _check_vectors(frame[name], dimension, context)
    for name in numbers:
        if name in given:
            new[name] = _numbers(frame, given[name], context, largest)
    new = {name: column for name, column in new.items() if column is not given[name]}
    return frame.assign(**new) if new else frame


def _is_plain(index: Any, columns: Any) -> bool:
    """Whether an index is of numbers or texts, without duplicates, and without a name that a column has, too."""
    import pandas as pd

    if index.dtype == object and pd.api.types.infer_dtype(index, skipna=False) != "string":
        return False  # it may be of lists
    return index.is_unique and index.name not in columns


def _ids(column: Any, name: str, context: Any) -> Any:
    """Ids as texts, those of queries perhaps as whole numbers; a category becomes what it stands for."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    kind = pd.api.types.infer_dtype(column, skipna=False) if len(column) else "empty"
    if kind not in ("string", "empty", "integer") or column.isna().any():
        _refuse(next((value for value in column if not isinstance(value, str)), column.iloc[0]), name, context)
    if kind == "string":
        _check_unicode(column, name, context)
    return column.astype("str") if kind != "string" and name == "docno" else column


def _check_texts(column: Any, name: str, context: Any) -> None:
    import pandas as pd

    if len(column) and (pd.api.types.infer_dtype(column, skipna=False) != "string" or column.isna().any()):
        _refuse(next((value for value in column if not isinstance(value, str)), column.iloc[0]), name, context)
    _check_unicode(column, name, context)


def _refuse(value: Any, name: str, context: Any) -> None:
    raise ValueError(f"{_named(context)}: a {name} must be a text, got {value!r:.60} ({type(value).__name__})")


def _check_vectors(column: Any, dimension: int, context: Any) -> None:
    import numpy as np

    for vector in column:
        is_vector = isinstance(vector, np.ndarray) and vector.shape == (dimension,) and vector.dtype.kind in "fiu"
        if not is_vector or not np.isfinite(vector).all():
            raise ValueError(
                f"{_named(context)}: a {column.name} must be an array of {dimension} finite numbers, got {vector!r:.80}"
            )


def _check_unicode(column: Any, name: str, context: Any) -> None:
    """Raises ValueError if a text has half of a pair of surrogates, which no file and no library can hold."""
    if column.dtype != object:  # then texts have been encoded already
        return
    try:
        "".join(column).encode()
    except UnicodeEncodeError:
        value = next(value for value in column if not is_unicode(value))
        raise ValueError(f"{_named(context)}: {name} {value!r:.60} is not valid Unicode") from None


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbers(frame: Any, column: Any, context: Any, largest: float) -> Any:
    """A column of numbers as such."""
    import pandas as pd

    name = column.name
    if column.dtype == object:
        values = [math.nan if value is None or value is pd.NA else value for value in column]
        kinds = (int, float) if not any(isinstance(value, bool) for value in values) else ()
        if all(isinstance(value, kinds) or getattr(value, "ndim", -1) == 0 for value in values):
            with suppress(TypeError, ValueError, OverflowError):
                column = pd.Series([float(value) for value in values], column.index, dtype=float)
    if getattr(column.dtype, "kind", "O") not in "iuf":
        value = column.iloc[0] if len(column) else column.dtype
        if not len(column):
            return column.astype(float)
        raise ValueError(f"{_named(context)}: {name} must be numbers, got {value!r:.60} ({column.dtype})")
    if (missing := column.isna().to_numpy()).any():
        raise ValueError(f"{_named(context)}: {_row(frame, missing)} has no {name}")
    column = column if not pd.api.types.is_extension_array_dtype(column.dtype) else column.astype(float)
    if (wrong := column.abs().to_numpy() > largest).any():
        what = f"{_row(frame, wrong)} has the {name} {column[wrong].iloc[0]:g}"
        raise ValueError(f"{_named(context)}: {what}, it must be from {-largest:g} to {largest:g}")
    return column


def _row(frame: Any, which: Any) -> str:
    """The first of some rows by its ids or name, or else by its number."""
    nouns = {"qid": "query ", "docno": "", "name": "", "token": "token "}
    found = [f"{noun}{frame[key][which].iloc[0]!r}" for key, noun in nouns.items() if key in frame]
    return ", ".join(found) or f"row {int(which.argmax())}"


def _named(context: Any) -> str:
    return context if isinstance(context, str) else repr(context)
