"""The notebooks: they run, and are stored with what a reader sees and nothing of the machine that made them.

``python tests/test_notebooks.py`` executes all of them, or those that are named, and stores their outputs.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGES = f"{sysconfig.get_path('purelib')}{os.sep}"  # the encoder's folder is in there
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
VIEW, STATE = (
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.jupyter.widget-state+json",
)
BAR = 20  # characters
LONGEST_CELL = 600  # seconds; a whole notebook takes about two minutes of a core
LARGEST_PICTURE = 140_000  # bytes, base64
LARGEST_NOTEBOOK = 600_000
ABSOLUTE = re.compile(
    r"(?<![\w.~/])/(tmp|root|home|Users|usr|opt|var|mnt|[a-z]+/[^ ]*site-packages)/|[A-Z]:\\\\?\w"
)

START = "import shortcuts; shortcuts.in_notebook()"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def execute(path: Path, folder: Path, *modules: Path, start: str = "") -> NotebookNode:
    """Runs a notebook in a folder, and keeps what a user of Jupyter sees: tables, pictures, progress, warnings.

    Progress bars are widgets, which need a running kernel: they are kept as text, as they were at the end. A figure is
    kept once. Where packages are installed is left out. Modules are looked for in folders ``modules`` first, and
    the program ``start`` is run before the cells.
    """
    notebook = nbformat.read(path, as_version=4)
    ipython = folder / ".ipython"
    startup = ipython / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "start.py").write_text(start, "utf-8")
    environment = os.environ | {
        "IPYTHONDIR": str(ipython),
        "JPY_SESSION_NAME": path.name,  # as Jupyter sets it: PyTerrier sees that it is in a notebook
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": os.pathsep.join(
            map(str, [*modules, ROOT, TESTS])
        ),  # TESTS: clef_ip_miniature
    }
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    widgets = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in code_cells(notebook):
        kept = (as_stored(output, widgets, f"{folder}{os.sep}") for output in cell.outputs)
        cell.outputs = [output for output in kept if output is not None]
    return notebook


def as_stored(output: NotebookNode, widgets: Mapping[str, Any], folder: str) -> NotebookNode | None:
    """An output without what only a running kernel can show, nor the folder it ran in; None if nothing is left."""
    if output.output_type == "stream":
        text = re.sub(r"[^\n]*\r(?!\n)", "", output.text)  # without lines that were written over
        output.text = text.replace(PACKAGES, "").replace(folder, "")
        return output if output.text.strip() else None
    if output.output_type == "error":
        return output
    data = output.data
    view = data.pop(VIEW, None)
    if view is not None and "text/html" not in data:
        bar = progress(view["model_id"], widgets)
        if not bar:
            return None
        data["text/plain"] = bar
    for other in (
        ("text/plain", "text/latex") if len(data) > 1 else ()
    ):  # what it would be without a browser
        data.pop(other, None)
    for kind, content in data.items():
        stored = (
            fewer_colors(content)
            if kind == "image/png"
            else content.replace(PACKAGES, "").replace(folder, "")
        )
        data[kind] = stored
    return output


def progress(name: str, widgets: Mapping[str, Any]) -> str:
    """The last state of a progress bar as text, or "" if it is gone, as bars are that do not stay."""
    state = {name.removeprefix("IPY_MODEL_"): widget["state"] for name, widget in widgets.items()}

    def of(name: str) -> Mapping[str, Any]:
        return state.get(name.removeprefix("IPY_MODEL_"), {})

    box = of(name)
    if len(box.get("children", [])) != 3 or of(box["layout"]).get("visibility") == "hidden":
        return ""
    before, bar, after = map(of, box["children"])
    share = bar["value"] / bar["max"] if bar["max"] else 1.0
    blocks = "█" * round(BAR * share)
    return unescape(f"{before['value']}|{blocks:<{BAR}}|{after['value']}").replace("\u2007", " ")


def is_progress(output: NotebookNode) -> bool:
    """Whether an output is a progress bar: whether one is shown depends on how fast the machine is."""
    return output.output_type == "display_data" and [*output.data] == ["text/plain"]


def fewer_colors(picture: str) -> str:
    """A PNG at a third of its size."""
    packed = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    # The colors of thin lines are few pixels: MAXCOVERAGE keeps them, and the default method merges them.
    colors = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colors.save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> Iterator[dict[str, Any]]:
    """The outputs by MIME type."""
    return (
        output.data for cell in code_cells(notebook) for output in cell.outputs if "data" in output
    )


def kinds(notebook: NotebookNode) -> list[list[list[str]]]:
    """The kinds of outputs of each cell, except for progress."""
    return [
        [
            sorted(output.get("data", [output.output_type]))
            for output in cell.outputs
            if not is_progress(output)
        ]
        for cell in code_cells(notebook)
    ]


@pytest.mark.slow
@each_notebook
def test_runs_and_shows_what_is_stored(path: Path, tmp_path: Path, short_encoder: Path) -> None:
    """With shortcuts, so with other numbers."""
    pytest.importorskip(
        "pyterrier_pisa", reason="the notebooks' first stage is PISA, for x86-64 Linux"
    )
    assert kinds(execute(path, tmp_path, short_encoder.parent, start=START)) == kinds(
        nbformat.read(path, as_version=4)
    )


@each_notebook
def test_is_stored_with_outputs_of_one_clean_run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    # A warning, or the log of a library, would be in stderr.
    kinds_of_output = {
        output.get("name", output.output_type) for cell in cells for output in cell.outputs
    }
    assert kinds_of_output <= {"display_data", "execute_result", "stdout"}
    shown = {kind for data in outputs(notebook) for kind in data}
    assert {"image/png", "text/html"} <= shown, "a notebook shows tables and pictures"
    assert not any("widget" in kind for kind in shown)
    elided = [
        data["text/html"]
        for data in outputs(notebook)
        if re.search(r"<td>\.\.\.</td>", data.get("text/html", ""))
    ]
    assert not elided, "a table has rows or columns that are left out"


@each_notebook
def test_holds_nothing_of_a_machine_and_is_small(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    texts = [
        text
        for data in outputs(notebook)
        for kind, text in data.items()
        if kind.startswith("text/")
    ]
    for text in [*texts, *(cell.source for cell in notebook.cells)]:
        assert not (found := ABSOLUTE.search(text)), text[found.start() : found.start() + 80]
    assert max(len(data.get("image/png", "")) for data in outputs(notebook)) <= LARGEST_PICTURE
    assert path.stat().st_size <= LARGEST_NOTEBOOK


def main(names: list[str]) -> None:
    """Stores the outputs of the notebooks whose names begin so, or of all."""
    import conftest  # noqa: F401  # runs them as the tests do: offline, with one thread

    for path in NOTEBOOKS:
        if not names or path.name.startswith(tuple(names)):
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
