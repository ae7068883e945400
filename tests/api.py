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
        default = " = " + (given.default.__qualname__ if inspect.isroutine(given.default) else repr(given.default))
    annotation = "" if given.annotation is given.empty else f": {annotated(given.annotation)}"
    return f"{stars}{given.name}{annotation}{default}"


def annotated(annotation: Any) -> str:
    """An annotation, which is a string where the module does not evaluate annotations."""
    return short(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


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
    result = signature.return_annotation
    returned = "" if result is signature.empty or inspect.isclass(function) else f" -> {annotated(result)}"
    line = f"{name}({', '.join(parts)}){returned}"
    return line if len(line) <= WIDTH else "\n    ".join([f"{name}(", *parts]) + f"\n){returned}"


def fields(name: str, kind: type) -> Iterator[str]:
    """The fields of a dataclass with their defaults."""
    for field in dataclasses.fields(kind):
        default = field.default_factory() if callable(field.default_factory) else field.default
        shown = "" if default is dataclasses.MISSING else f" = {default!r}"
        yield f"{name}.{field.name}: {annotated(field.type)}{shown}"


def members(name: str, kind: type) -> Iterator[str]:
    """The public members of a class that are defined in this package."""
    written = {
        name: value
        for cls in reversed(kind.__mro__)
        if cls.__module__.startswith("pyterrier_graph")
        for name, value in vars(cls).items()
    }
    for member, value in written.items():
        if member.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            yield call(f"{name}.{member}", getattr(kind, member))
        elif inspect.isfunction(value):
            yield call(f"{name}.{member}", value)
        elif inspect.isdatadescriptor(value) or hasattr(value, "__set_name__"):  # properties, cached or not
            yield f"{name}.{member}"
        elif member in CONSTANTS:
            yield f"{name}.{member} = {value!r}"


def entries(name: str, value: Any) -> Iterator[str]:
    """The entries of a public name in the list."""
    if dataclasses.is_dataclass(value):
        keywords = all(field.kw_only for field in dataclasses.fields(value))
        yield f"{name}({'*, ' if keywords else ''}fields)"
        yield from fields(name, value)  # type: ignore[arg-type]
    if inspect.isclass(value):
        if not dataclasses.is_dataclass(value):
            yield call(name, value)
        yield from members(name, value)
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
    return "\n".join(sorted(found, key=lambda entry: re.split(r"[(:= ]", entry, maxsplit=1)[0])) + "\n"


if __name__ == "__main__":
    print(api(), end="")
