from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys

import pytest

import pyterrier_graph as ptg

DISTRIBUTION = importlib.metadata.distribution("pyterrier_graph")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_is_quick():
    timed = "import time; start = time.perf_counter(); import pyterrier_graph; print(time.perf_counter() - start)"
    assert min(float(run(timed)) for _ in range(3)) < 2


@pytest.mark.parametrize(
    "statement",
    [
        "import pyterrier_graph",
        "from pyterrier_graph import StructuredDocument",
        "from pyterrier_graph import CandidateGraph, DocumentGraph",
        "import pyterrier_graph.datasets",
    ],
)
def test_import_leaves_torch_alone(statement: str):
    assert run(f"{statement}; import sys; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("name", ptg.__all__)
def test_public_name_resolves(name: str):
    assert getattr(ptg, name).__name__ == name
    assert name in dir(ptg)


def test_type_checkers_see_the_public_names():
    tree = ast.parse(open(ptg.__file__, encoding="utf-8").read())
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    seen = {alias.asname: node.module for node in imports for alias in node.names}
    assert seen == {name: f"pyterrier_graph.{module}" for name, module in ptg._MODULES.items()}


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'HGTReranker'"):
        ptg.HGTReranker  # noqa: B018


def test_version():
    assert DISTRIBUTION.version == ptg.__version__


@pytest.mark.parametrize("entry_point", DISTRIBUTION.entry_points, ids=lambda entry_point: entry_point.name)
def test_entry_point_loads(entry_point: importlib.metadata.EntryPoint):
    assert callable(entry_point.load())
