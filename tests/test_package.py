"""The package as a whole: light import, order of imports, sizes of modules, signatures, words."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

import pyterrier_graph as ptg
from pyterrier_graph.checks import WithSignature

DISTRIBUTION = importlib.metadata.distribution("pyterrier_graph")
PACKAGE = Path(ptg.__file__).parent
MODULES = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
# A module imports only from modules of its own line and of the lines above it.
LAYERS = """
warning_categories
checks
documents
readers
integrity
artifacts
ranges
graphs
encoders
models
training
rerank
retrieve
evaluation
datasets
patents
folders
plots
demo
__main__
""".split()


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


@pytest.mark.parametrize("name", ["patents", "plots"])
def test_packages_are_loaded_when_they_are_used(name: str):
    code = f"import pyterrier_graph as ptg; print('{name}' in dir(ptg), ptg.{name}.__name__)"
    assert run(code).split() == ["True", f"pyterrier_graph.{name}"]


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(ptg.__file__).with_suffix(".pyi").read_text("utf-8"))
    seen = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == sorted([*ptg.__all__, "measures", "patents", "plots"])


def test_unknown_name():
    with pytest.raises(AttributeError, match="attribute HGTReranker"):
        ptg.HGTReranker  # noqa: B018


def test_version():
    assert DISTRIBUTION.version == ptg.__version__


@pytest.mark.parametrize("entry_point", DISTRIBUTION.entry_points, ids=lambda entry_point: entry_point.name)
def test_entry_point_loads(entry_point: importlib.metadata.EntryPoint):
    assert callable(entry_point.load())


# --- order of imports


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"))


def nodes(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """All nodes but those for type checkers only, each with the names of the functions that it is inside of."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, inside
        name = (child.name,) if isinstance(child, ast.FunctionDef) else ()
        yield from nodes(child, inside + name)


def imports(module: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules that a module imports, each with the functions that the import is inside of."""
    for node, inside in nodes(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            yield from ((f"{node.module}.{alias.name}", inside) for alias in node.names)


def layer(module: str) -> int:
    return LAYERS.index(re.split(r"[./]", module)[0])


def wrong_imports(module: str) -> list[str]:
    wrong = []
    for name, inside in imports(module):
        target = name.removeprefix("pyterrier_graph.")
        if target == name or target.split(".")[0] not in LAYERS:  # of another package, or of the package's own names
            continue
        shown = layer(target) == LAYERS.index("plots") and "_repr_html_" in inside
        if layer(target) > layer(module) and not shown:
            wrong.append(name)
    return wrong


def test_every_module_has_a_layer():
    assert {re.split(r"[./]", module)[0] for module in MODULES} - {"__init__"} <= {*LAYERS, "pt_docs"}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__.py"])
def test_imports_go_upwards(module: str):
    assert not wrong_imports(module)


def test_wrong_imports_are_found(monkeypatch: pytest.MonkeyPatch):
    code = """
from pyterrier_graph.checks import check_type
from pyterrier_graph.plots import html
if TYPE_CHECKING:
    from pyterrier_graph.rerank import hgat
def _repr_html_(self):
    from pyterrier_graph.plots import html
def fit(self):
    import pyterrier_graph.evaluation.folds
"""
    monkeypatch.setitem(MODULES, "graphs/new.py", type("File", (), {"read_text": lambda self, _: code})())
    assert wrong_imports("graphs/new.py") == ["pyterrier_graph.plots.html", "pyterrier_graph.evaluation.folds"]


def test_only_the_demo_is_a_program():
    programs = {module for module in MODULES if any(name.startswith("argparse") for name, _ in imports(module))}
    assert programs <= {"demo.py", "__main__.py"}


# --- sizes


def test_modules_are_small():
    lines = {module: file.read_text("utf-8").count("\n") for module, file in MODULES.items()}
    assert not {module: count for module, count in lines.items() if count > 400}
    assert median(lines.values()) < 120


# --- signatures

CLASSES = [name for name in ptg.__all__ if inspect.isclass(getattr(ptg, name))]


@pytest.mark.parametrize("name", CLASSES)
def test_signature_is_that_of_the_constructor(name: str):
    import pyterrier as pt

    kind = getattr(ptg, name)
    assert issubclass(kind, WithSignature) or not issubclass(kind, pt.Transformer | pt.Artifact)  # Sphinx needs it
    constructor = [*inspect.signature(kind.__init__).parameters.values()][1:]
    assert [*inspect.signature(kind).parameters.values()] == constructor
    assert not {"args", "kwargs"} & {parameter.name for parameter in constructor}


@pytest.mark.parametrize("name", CLASSES)
def test_artifacts_have_an_entry_point(name: str):
    from pyterrier_graph.artifacts import OwnArtifact

    kind = getattr(ptg, name)
    if issubclass(kind, OwnArtifact):
        points = {point.name: point.value for point in DISTRIBUTION.entry_points.select(group="pyterrier.artifact")}
        assert points[f"{kind.ARTIFACT_TYPE}.{kind.ARTIFACT_FORMAT}"].split(":")[1].split(".")[0] == name


def test_signature_of_a_transformer():
    import pyterrier as pt

    class Model(WithSignature, pt.Transformer):
        def __init__(self, graph: str, *, depth: int = 3) -> None:
            self.graph, self.depth = graph, depth

        def transform(self, inp):
            return inp

    class Derived(Model):
        def __init__(self, other: int) -> None:
            super().__init__("")

    assert str(inspect.signature(Model)) == "(graph: 'str', *, depth: 'int' = 3)"
    assert str(inspect.signature(Derived)) == "(other: 'int')"
    assert isinstance(Model.__signature__, inspect.Signature)  # what Sphinx looks for
    assert "Model(graph: 'str', *, depth: 'int' = 3)" in pydoc.plain(pydoc.render_doc(Model))
    assert [*inspect.signature(Model("g")).parameters] == ["inp"]  # of a call
    assert [attribute.value for attribute in pt.inspect.transformer_attributes(Model("g"))] == ["g", 3]


# --- words

RETIRED_IN_TEXTS = [
    r"\blisten",
    r"\bhear(s|d|ing)?\b",
    r"\bspeak(s|ing)?\b",
    r"\baudience",
    r"\bsurroundings\b",
    r"\bas it comes\b",
    r"\bchannels?\b",
    r"\bfus(e|es|ed|ing)\b",
    r"\blone\b",
    r"\bslots?\b",
    r"\brooms?\b",
    r"\bquality\b",
    r"\bthe rule\b",
    r"\bcontrols?\b",
    r"\bmeanqueries\b",
    r"\bstrengths?\b",
    r"\bexampleminer\b",
    r"\btypedgraph\b",
    r"colour",
    r"neighbour",
    r"contextualis",
    r"normalis",
    r"\bcentre",
]
OF_PYTERRIER = {"fuse_rank_cutoff"}  # a method that PyTerrier looks for
RETIRED_NAMES = {"asking", "beta", "itself", "known", "nobody", "owner", "ready", "speaking", "turned"}


def words(module: str) -> Iterator[tuple[int, str]]:
    """Docstrings, names and parameters of what is public in a module, each with its line."""
    for node, _ in nodes(tree(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.lineno, "" if node.name in OF_PYTERRIER else node.name
            yield node.lineno, ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef) and not node.name.startswith(("_", "on_")):  # on_: of transformers
            yield from ((argument.lineno, argument.arg) for argument in [*node.args.args, *node.args.kwonlyargs])
    yield 1, ast.get_docstring(tree(module)) or ""


@pytest.mark.parametrize("module", MODULES)
def test_retired_words_are_gone(module: str):
    pattern = re.compile("|".join(RETIRED_IN_TEXTS), re.IGNORECASE)
    found = [
        f"{line}: {match[0]}" for line, text in words(module) for match in pattern.finditer(text.replace("_", " "))
    ]
    found += [f"{line}: {text}" for line, text in words(module) if text in RETIRED_NAMES]
    assert not found
