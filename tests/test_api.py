"""The public names and signatures are those of a list in the repository, so that a review sees each change of them."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from api import api, call, entries

import pyterrier_graph as ptg

LIST = Path(__file__).with_name("api.txt")
COMMAND = "python -m tests.api > tests/api.txt"


def test_public_names_and_signatures() -> None:
    before, now = LIST.read_text("utf-8").splitlines(), api().splitlines()
    changes = "\n".join(difflib.unified_diff(before, now, "tests/api.txt", "now", lineterm="", n=0))
    assert not changes, f"if this change of the public names is meant, run `{COMMAND}`:\n{changes}"


@pytest.mark.parametrize("name", ptg.__all__)
def test_every_public_name_is_in_the_list(name: str) -> None:
    entry = f"pyterrier_graph.{name}"
    assert any(line == entry or line.startswith(f"{entry}(") for line in LIST.read_text("utf-8").splitlines())


def test_what_an_entry_has() -> None:
    @dataclass(kw_only=True)
    class Options:
        rate: float = 0.1
        arguments: dict[str, Any] = field(default_factory=dict)

        def paper(self, *, layers: int = 3) -> Options: ...

        def _own(self) -> None: ...

    Options.__module__ = "pyterrier_graph.options"
    assert [*entries("Options", Options)] == [
        "Options(*, fields)",
        "Options.rate: float = 0.1",
        "Options.arguments: dict[str, Any] = {}",
        "Options.paper(*, layers: int = 3) -> Options",
    ]


def test_entries_are_the_same_everywhere() -> None:
    def read(file: Path, *, split: Any = str.split, many: int = 0) -> list[Path]: ...

    expected = "read(file: Path, *, split: Any = str.split, many: int = 0) -> list[Path]"
    assert call("read", read) == expected
    read.__signature__ = inspect.signature(read, eval_str=True)  # Python 3.13 has pathlib._local.Path
    assert call("read", read) == expected
    assert call("a" * 100, read).splitlines()[1:] == [
        "    file: Path",
        "    *",
        "    split: Any = str.split",
        "    many: int = 0",
        ") -> list[Path]",
    ]
