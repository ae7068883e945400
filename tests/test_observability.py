"""Warnings with categories, quiet logs, progress by PyTerrier, and what a model says about its training."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.checks import DataWarning, QualityWarning, SpeedWarning

PACKAGE = Path(ptg.__file__).parent
TREES = {
    file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text("utf-8"))
    for file in PACKAGE.rglob("*.py")
}
CATEGORIES = {"PyTerrierGraphWarning", "DataWarning", "QualityWarning", "SpeedWarning"}
PRINTING = ("demo.py", "__main__.py")


def calls(function: str) -> list[tuple[str, ast.Call]]:
    return [
        (f"{name}:{node.lineno}", node)
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]


def test_every_warning_has_one_of_our_categories() -> None:
    found = calls("warnings.warn")
    assert len(found) > 20
    passed_on = [
        place
        for place, node in found
        if len(node.args) > 1 and ast.unparse(node.args[1]) == "category"
    ]
    assert [place.partition(":")[0] for place in passed_on] == ["training/model.py"]
    for place, node in found:
        assert place in passed_on or (
            len(node.args) == 2 and ast.unparse(node.args[1]) in CATEGORIES
        ), place
    assert not calls("warn")


def test_categories_can_be_filtered() -> None:
    for category in (DataWarning, QualityWarning, SpeedWarning):
        assert issubclass(category, ptg.PyTerrierGraphWarning) and issubclass(category, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ptg.PyTerrierGraphWarning)
        with pytest.raises(ptg.PyTerrierGraphWarning, match="reset"):
            ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {})(
                tiny.run(1).assign(query="applypipeline:off x")
            )
        warnings.warn("of another library", UserWarning, stacklevel=1)


def test_one_query_has_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[str, bool]] = []
    real = pt.tqdm

    def seen(parts: Any = None, *, desc: str, disable: bool, **options: Any) -> Any:
        if parts is None:
            return real(
                desc=desc, disable=True, **options
            )  # of encoding, if no test before has done that
        bars.append((desc, disable))
        return parts

    monkeypatch.setattr(pt, "tqdm", seen)
    for count in (1, 2):
        for model in (ptg.GraphMaxSim, ptg.HGATReranker):
            model(tiny.graph(), tiny.encoder())(tiny.run(count))
    assert bars == [("reranking", True)] * 5 + [
        ("reranking", hidden) for hidden in (False, True, False)
    ]


def test_the_package_is_quiet() -> None:
    assert any(
        isinstance(handler, logging.NullHandler)
        for handler in logging.getLogger("pyterrier_graph").handlers
    )
    code = "import logging, pyterrier_graph; logging.getLogger('pyterrier_graph.graphs.builder').warning('told')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
    process = subprocess.run(
        [sys.executable, "-c", f"import logging; logging.basicConfig(); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "WARNING:pyterrier_graph.graphs.builder:told" in process.stderr
    assert [place for place, _ in calls("print") if not place.startswith(PRINTING)] == []
