"""The check of the wheel finds what is missing and what is too much."""

from __future__ import annotations

from pathlib import Path

import pytest
from wheel_check import PACKAGE, ROOT, sources, the_wheel, wrong_files

EXPECTED = sources(ROOT / PACKAGE)


def test_sources_are_code_types_and_pages() -> None:
    assert {
        f"{PACKAGE}/{name}" for name in ("__init__.py", "__init__.pyi", "py.typed", "pt_docs/index.rst")
    } <= EXPECTED
    assert {Path(name).suffix for name in EXPECTED} == {".py", ".pyi", ".typed", ".rst"}


def test_wheel_has_the_package_and_nothing_else() -> None:
    metadata = [f"{PACKAGE}-0.1.0.dist-info/{name}" for name in ("METADATA", "RECORD", "licenses/LICENSE")]
    assert wrong_files([*EXPECTED, *metadata], EXPECTED) == []
    without = EXPECTED - {f"{PACKAGE}/py.typed"}
    assert wrong_files(without, EXPECTED) == [f"not in the wheel: {PACKAGE}/py.typed"]
    beside = [*EXPECTED, "tests/conftest.py"]
    assert wrong_files(beside, EXPECTED) == ["in the wheel, but not of the package: tests/conftest.py"]


def test_there_must_be_one_wheel(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="must have one wheel, not 0"):
        the_wheel(tmp_path)
    (tmp_path / "a.whl").touch()
    assert the_wheel(tmp_path).name == "a.whl"
