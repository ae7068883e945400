"""The public names of the package with their signatures, as ``tests/api.txt`` has them.

``python -m tests.api > tests/api.txt`` writes the list again after a change that is meant.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MODULES = ["", ".evaluation.measures", ".clef_ip", ".show.plots"]
CONSTANTS = ("ARTIFACT_FORMAT", "ARTIFACT_TYPE", "FORMAT_VERSION")  # what is written into files
WIDTH = 120


def short(text: str) -> str:
    """Names without their modules, which differ between versions of Python, and between ``pd`` and ``pandas``."""
    return re.sub(r"\b(?:\w+\.)+(?=ndarray|[A-Z])", "", text)


def parameter(given: inspect.Parameter) -> str:
    """A parameter with its annotation and its default."""
    starred = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    stars = "".join(star for kind, star in starred.items() if kind is given.kind)
    if given.default is given.empty:
        default = ""
    else:
        default = " = " + (
            given.default.__qualname__ if inspect.isroutine(given.default) else repr(given.default)
        )
    annotation = "" if given.annotation is given.empty else f": {annotated(given.annotation)}"
    return f"{stars}{given.name}{annotation}{default}"


def annotated(annotation: Any) -> str:
    """An annotation, which is a string where the module does not evaluate annotations."""
    return short(
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )


def call(name: str, function: Any) -> str:
    """A name with the parameters that it is called with, and what it returns."""
    signature = inspect.signature(function)
    parts: list[str] = []
    for given in signature.parameters.values():
        starred = [part for part in parts if part.startswith("*")]
        if given.kind is given.KEYWORD_ONLY and not starred:
            parts.append("*")
        if given.name != "self":
            parts.append(parameter(given))
    if inspect.isclass(function):
        returned = bases_of(function)
    else:
        result = signature.return_annotation
        returned = "" if result is signature.empty else f" -> {annotated(result)}"
    line = f"{name}({', '.join(parts)}){returned}"
    return line if len(line) <= WIDTH else "\n    ".join([f"{name}(", *parts]) + f"\n){returned}"


def is_ours(kind: type) -> bool:
    """Whether a class is defined in this package."""
    return kind.__module__.startswith("pyterrier_graph")


def bases_of(kind: type) -> str:
    """The classes of this package that a class inherits from."""
    bases = [base.__name__ for base in kind.__bases__ if is_ours(base)]
    return f": {', '.join(bases)}" if bases else ""


def fields(kind: type) -> Iterator[str]:
    """The fields of a dataclass with their defaults; one that is as in its base, under the name of the base."""
    for field in dataclasses.fields(kind):
        default = field.default_factory() if callable(field.default_factory) else field.default
        shown = "" if default is dataclasses.MISSING else f" = {default!r}"
        entry = f"{field.name}: {annotated(field.type)}{shown}"
        bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
        same = [base for base in bases if any(line.endswith(f".{entry}") for line in fields(base))]
        yield f"{place(same[-1] if same else kind)}.{entry}"


def members(kind: type) -> Iterator[str]:
    """The public members of a class that are defined in this package, under the names of the classes that have them."""
    written = {
        member: cls for cls in reversed(kind.__mro__) if is_ours(cls) for member in vars(cls)
    }
    for member, cls in written.items():
        name, value = f"{place(cls)}.{member}", vars(cls)[member]
        if member.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            yield call(name, getattr(cls, member))
        elif inspect.isfunction(value):
            yield call(name, value)
        elif inspect.isdatadescriptor(value) or hasattr(
            value, "__set_name__"
        ):  # properties, cached or not
            yield name
        elif member in CONSTANTS:
            yield f"{name} = {value!r}"


def place(kind: type) -> str:
    """The name of a class in the list: where it is public, if it is."""
    modules = (importlib.import_module(f"pyterrier_graph{suffix}") for suffix in MODULES)
    home = next(
        (module.__name__ for module in modules if kind.__name__ in module.__all__),
        "pyterrier_graph",
    )
    return f"{home}.{kind.__name__}"


def entries(name: str, value: Any) -> Iterator[str]:
    """The entries of a public name in the list."""
    if dataclasses.is_dataclass(value):
        keywords = all(field.kw_only for field in dataclasses.fields(value))
        yield f"{name}({'*, ' if keywords else ''}fields){bases_of(value)}"  # type: ignore[arg-type]
        yield from fields(value)  # type: ignore[arg-type]
    if inspect.isclass(value):
        if issubclass(value, Warning):
            yield f"{name}{bases_of(value)}"
        elif not dataclasses.is_dataclass(value):
            yield call(name, value)
        yield from members(value)
    elif callable(value) and not isinstance(value, ModuleType):
        yield call(name, value)
    elif not dataclasses.is_dataclass(value):
        yield name


def api() -> str:
    """The list, sorted by names."""
    found: set[str] = set()
    for suffix in MODULES:
        module = importlib.import_module(f"pyterrier_graph{suffix}")
        for name in module.__all__:
            found.update(entries(f"pyterrier_graph{suffix}.{name}", getattr(module, name)))
    return (
        "\n".join(sorted(found, key=lambda entry: re.split(r"[(:= ]", entry, maxsplit=1)[0])) + "\n"
    )


if __name__ == "__main__":
    print(api(), end="")
