"""Checks of arguments: an error names the argument, what was expected and what was given."""

import inspect
import math
from collections.abc import Iterable, Mapping
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
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise TypeError(f"{name} must be {expected}, got {shown} ({type(value).__name__})")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError unless a value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}")


def check_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, below: bool = False) -> None:
    """Raises ValueError unless a value is a finite number from ``low`` to ``high``, or ``below`` ``high``."""
    number = isinstance(value, (int, float)) or hasattr(value, "__float__")
    if isinstance(value, bool | str) or not number or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not low <= value <= high or (below and value == high):
        between = f"from {low:g} to {'below ' if below else ''}{high:g}" if high < math.inf else f"{low:g} or more"
        raise ValueError(f"{name} must be {between}, got {value!r}")


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
