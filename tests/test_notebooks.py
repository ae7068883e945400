"""The notebooks: they run, and are stored with their outputs and nothing of the machine that made them.

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
from collections.abc import Iterator
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
LONGEST_CELL = 600  # seconds; a whole notebook takes less than three minutes of a core
LARGEST_PICTURE = 140_000  # bytes, base64
LARGEST_NOTEBOOK = 600_000
ABSOLUTE = re.compile(r"(?<![\w.~/])/(tmp|root|home|Users|usr|opt|var|mnt|[a-z]+/[^ ]*site-packages)/|[A-Z]:\\\\?\w")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def execute(path: Path, folder: Path) -> NotebookNode:
    """Runs a notebook in a folder.

    What was printed on the way is left out (progress bars, an indexer's log, warnings): what a reader is to see is the
    value of a cell's last line, or a picture. So is where packages are installed.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {
        "IPYTHONDIR": str(folder / ".ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),  # the miniature of CLEF-IP is among the tests
        "TQDM_DISABLE": "1",
    }
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in code_cells(notebook):
        cell.outputs = [output for output in cell.outputs if output.output_type != "stream" and not is_progress(output)]
        for data in (output.data for output in cell.outputs):
            if "image/png" in data:
                data.pop("text/html", None)  # the same picture once more, as SVG: both would be too large to store
            if len(data) > 1:
                del data["text/plain"]  # what it would be without a browser
            for kind, content in data.items():
                data[kind] = fewer_colors(content) if kind == "image/png" else content.replace(PACKAGES, "")
    return notebook


def is_progress(output: NotebookNode) -> bool:
    """Whether an output is the progress bar of a training, which ``transformers`` shows as HTML in a notebook."""
    return "<progress" in output.get("data", {}).get("text/html", "")


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
    """What is shown, by MIME type."""
    return (output.data for cell in code_cells(notebook) for output in cell.outputs)


def kinds(notebook: NotebookNode) -> list[list[list[str]]]:
    """What each cell shows, but for its content."""
    return [[sorted(output.data) for output in cell.outputs] for cell in code_cells(notebook)]


@pytest.mark.slow
@each_notebook
def test_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyterrier_pisa", reason="the notebooks' first stage is PISA, for x86-64 Linux")
    assert kinds(execute(path, tmp_path)) == kinds(nbformat.read(path, as_version=4))


@each_notebook
def test_is_stored_with_outputs_of_one_clean_run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert {output.output_type for cell in cells for output in cell.outputs} <= {"display_data", "execute_result"}
    shown = {kind for data in outputs(notebook) for kind in data}
    assert {"image/png", "text/html"} <= shown, "a notebook shows tables and pictures"
    assert not any("widget" in kind for kind in shown)


@each_notebook
def test_holds_nothing_of_a_machine_and_is_small(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    texts = [text for data in outputs(notebook) for kind, text in data.items() if kind.startswith("text/")]
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
