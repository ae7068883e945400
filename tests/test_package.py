"""The package as a whole: light import, order of imports, signatures."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pyterrier_graph as ptg
from pyterrier_graph.checks import WithSignature

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


def test_import_is_quick():
    timed = "import time; start = time.perf_counter(); import pyterrier_graph; print(time.perf_counter() - start)"
    assert min(float(run(timed)) for _ in range(2)) < 2


def test_import_leaves_torch_alone():
    statements = """
import sys
from pyterrier_graph import CandidateGraph, DocumentGraph, StructuredDocument
import pyterrier_graph.datasets
print('torch' in sys.modules)
"""
    assert run(statements).strip() == "False"


@pytest.mark.parametrize("name", ptg.__all__)
def test_public_name_resolves(name: str):
    assert getattr(ptg, name).__name__ == name
    assert name in dir(ptg)


def test_packages_are_loaded_when_they_are_used():
    code = "import pyterrier_graph as ptg; print({'clef_ip', 'plots'} <= {*dir(ptg)}, ptg.clef_ip, ptg.plots)"
    assert run(code).startswith("True")


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


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"))


def imports(module: str) -> Iterator[str]:
    """The modules that a module imports: at once, in a function, or for type checkers."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> int:
    return LAYERS.index(re.split(r"[./]", module)[0])


def upward_imports(module: str) -> list[str]:
    wrong = []
    for name in imports(module):
        target = name.removeprefix("pyterrier_graph.")
        if (
            target == name or target.split(".")[0] not in LAYERS
        ):  # of another package, or of the package's own names
            continue
        if layer(target) > layer(module):
            wrong.append(f"{module} {target}")
    return wrong


def test_every_module_has_a_layer():
    assert {re.split(r"[./]", module)[0] for module in MODULES} - {"__init__"} <= {
        *LAYERS,
        "pt_docs",
    }


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__.py"])
def test_imports_go_downwards(module: str):
    assert not upward_imports(module)


# --- signatures

CLASSES = [name for name in ptg.__all__ if inspect.isclass(getattr(ptg, name))]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CLASSES
        if not dataclasses.is_dataclass(getattr(ptg, name))
        and not issubclass(getattr(ptg, name), Warning)
    ],
)
def test_signature_is_that_of_the_constructor(name: str):
    import pyterrier as pt

    kind = getattr(ptg, name)
    assert issubclass(kind, WithSignature) or not issubclass(
        kind, pt.Transformer | pt.Artifact
    )  # Sphinx needs it
    constructor = [*inspect.signature(kind.__init__).parameters.values()][1:]
    assert [*inspect.signature(kind).parameters.values()] == constructor
    assert not {"args", "kwargs"} & {parameter.name for parameter in constructor}


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
