"""The package as a whole: light import, order of imports, signatures."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyterrier_graph as ptg

DISTRIBUTION = importlib.metadata.distribution("pyterrier_graph")
PACKAGE = Path(ptg.__file__).parent
MODULES = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
# A module imports only from modules of its own line and of the lines above it.
LAYERS = """
html
checks
configuration
documents
storage
graphs
encoders
training
graph_mean
graph_maxsim
hgat
lgre
pair
gnn_encoder
search
evaluation
clef_ip
datasets
show
demo
__main__
""".split()


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_import_leaves_torch_alone():
    statements = """
import sys
from pyterrier_graph import CandidateGraph, DocumentGraph, StructuredDocument
import pyterrier_graph.datasets
print('torch' in sys.modules)
"""
    assert run(statements).strip() == "False"


def test_public_names_resolve():
    assert [getattr(ptg, name).__name__ for name in ptg.__all__] == [*ptg.__all__]
    assert {*ptg.__all__} <= {*dir(ptg)}


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(ptg.__file__).with_suffix(".pyi").read_text("utf-8"))
    seen = [
        alias.asname
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(seen) == sorted([*ptg.__all__, "clef_ip", "measures", "plots"])


@pytest.mark.parametrize(
    "entry_point", DISTRIBUTION.entry_points, ids=lambda entry_point: entry_point.name
)
def test_entry_point_loads(entry_point: importlib.metadata.EntryPoint):
    assert callable(entry_point.load())


# --- order of imports


def imports(module: str) -> Iterator[str]:
    """The modules that a module imports: at once, in a function, or for type checkers."""
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> int:
    return LAYERS.index(re.split(r"[./]", module)[0])


def test_imports_go_downwards():
    ours = [*MODULES.keys() - {"__init__.py"}]
    wrong = [
        f"{module} {name}"
        for module in ours
        for name in imports(module)
        if name.startswith("pyterrier_graph.")
        and name.split(".")[1] in LAYERS
        and layer(name.removeprefix("pyterrier_graph.")) > layer(module)
    ]
    assert len(ours) > 100 and not wrong


# --- signatures

CLASSES = [name for name in ptg.__all__ if inspect.isclass(getattr(ptg, name))]


@pytest.mark.parametrize("name", CLASSES)
def test_artifacts_have_an_entry_point(name: str):
    from pyterrier_graph.storage.artifact import OwnArtifact

    kind = getattr(ptg, name)
    if issubclass(kind, OwnArtifact):
        points = {
            point.name: point.value
            for point in DISTRIBUTION.entry_points.select(group="pyterrier.artifact")
        }
        assert (
            points[f"{kind.ARTIFACT_TYPE}.{kind.ARTIFACT_FORMAT}"].split(":")[1].split(".")[0]
            == name
        )
