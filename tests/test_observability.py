"""Warnings with categories, quiet logs, progress by PyTerrier, and what a model says about its training."""

from __future__ import annotations

import ast
import inspect
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import warning_categories
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.training.run_record import described
from pyterrier_graph.warning_categories import DataWarning, QualityWarning, SpeedWarning

PACKAGE = Path(ptg.__file__).parent
TREES = {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text("utf-8")) for file in PACKAGE.rglob("*.py")}
CATEGORIES = {name for name, kind in vars(warning_categories).items() if inspect.isclass(kind)}
PRINTING = ("demo.py", "__main__.py", "folders/printing.py", "integrity.py")


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
    passed_on = [place for place, node in found if len(node.args) > 1 and ast.unparse(node.args[1]) == "category"]
    assert [place.partition(":")[0] for place in passed_on] == ["training/learned_model.py"]
    for place, node in found:
        assert place in passed_on or (len(node.args) == 2 and ast.unparse(node.args[1]) in CATEGORIES), place
    assert not calls("warn")


def test_categories_can_be_filtered() -> None:
    for category in (DataWarning, QualityWarning, SpeedWarning):
        assert issubclass(category, ptg.PyTerrierGraphWarning) and issubclass(category, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ptg.PyTerrierGraphWarning)
        with pytest.raises(ptg.PyTerrierGraphWarning, match="reset"):
            ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {})(tiny.run(1).assign(query="applypipeline:off x"))
        warnings.warn("of another library", UserWarning, stacklevel=1)


def test_loggers_have_the_names_of_their_modules() -> None:
    made = [(place, ast.unparse(node.args[0])) for place, node in calls("logging.getLogger") if node.args]
    others = {place.partition(":")[0] for place, name in made if name != "__name__"}
    assert others <= {"demo.py", "__main__.py"}  # they quieten other libraries
    assert not calls("logging.basicConfig") and not calls("logging.warning") and not calls("logging.info")


def test_the_package_is_quiet() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("pyterrier_graph").handlers)
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


def test_progress_is_shown_by_pyterrier() -> None:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(imported.partition(".")[0] == "tqdm" for imported in names), name
    for place, node in calls("pt.tqdm"):
        options = {option.arg for option in node.keywords}
        assert "disable" in options or None in options or place.startswith("datasets/"), place


def test_a_model_keeps_what_its_training_took(tmp_path: Path) -> None:
    config = ptg.HGATConfig("NO_LB", layers=1, heads=2, init="random", registers=0, relations=None)
    model = HGATReranker(tiny.graph(), tiny.encoder(), config=config, verbose=False, seed=3)
    model.training = ptg.HGATTraining(epochs=1, batch_size=64, seed=5)
    assert model.training_run == {}
    model.fit(tiny.run(), tiny.qrels())
    run = model.training_run
    assert {"python", "pyterrier_graph", "torch"} <= run["versions"].keys()
    assert run["seeds"] == {"training": 5, "start": 3} and (run["device"], run["dtype"]) == ("cpu", "float32")
    assert run["seconds"] >= 0 and run["cpu_seconds"] >= 0
    if sys.platform != "win32":
        assert run["peak_memory"] > 1 << 26
    assert described(run) in model._repr_html_()
    loaded = HGATReranker.load(model.save(tmp_path / "model").path, graph=tiny.graph())
    assert loaded.training_run == run
    card = str(ptg.write_card(loaded))
    assert f"Run: {described(run)}".replace("_", r"\_") in card and '"peak_memory"' not in card
    untrained = HGATReranker(tiny.graph(), tiny.encoder(), config=config)
    assert "run" not in untrained._origin()


def test_signatures_of_methods_that_train() -> None:
    assert [*inspect.signature(HGATReranker.fit).parameters][1:3] == ["topics_or_res_tr", "qrels_tr"]
    assert inspect.getdoc(ptg.DualEncoder.fit_examples)
