"""Builds the documentation: pages of the package, papers, results, and notebooks with their stored outputs.

    python docs/pages.py OUTPUT

Nothing is run or downloaded. Where GITHUB_REPOSITORY is set, as in GitHub's workflows, the pages of the notebooks have
links that open them on Colab and Kaggle, at the branch or tag of GITHUB_REF_NAME.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from sphinx.cmd.build import build_main

DOCS = Path(__file__).parent
ROOT = DOCS.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEED_A_CLONE = ("7_patents",)  # of the repository, and run nowhere else
SERVICES = {
    "Colab": "https://colab.research.google.com/github/{repository}/blob/{version}/notebooks/{name}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{repository}/blob/{version}/notebooks/{name}",
}
PAPERS = sorted((DOCS / "papers").glob("*.md"))
RESULTS = DOCS / "results.md"
CAPTIONS = {
    "Papers and Results": [*(f"papers/{path.stem}" for path in PAPERS), RESULTS.stem],
    "Notebooks": [f"notebooks/{path.stem}" for path in NOTEBOOKS],
}
CONTENTS = """
.. toctree::
    :caption: {caption}
    :maxdepth: 1

{pages}
"""


def assemble(folder: Path, repository: str = "", version: str = "main") -> Path:
    """Writes all sources of the documentation into a folder.

    Args:
        folder: A new folder.
        repository: Owner and name on GitHub, for links. If empty, there are no links.
        version: A branch or tag.
    """
    shutil.copytree(ROOT / "pyterrier_graph" / "pt_docs", folder)
    (folder / "papers").mkdir()
    for path in [*PAPERS, RESULTS]:
        text = leading_somewhere(path.read_text("utf-8"), repository, version)
        (folder / path.relative_to(DOCS)).write_text(text, "utf-8")
    (folder / "notebooks").mkdir()
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = leading_somewhere(cell.source, repository, version)
        if repository and path.stem not in NEED_A_CLONE:
            notebook.cells[0].source += f"\n\n{links(path.name, repository, version)}"
        nbformat.write(notebook, folder / "notebooks" / path.name)
    with open(folder / "index.rst", "a", encoding="utf-8") as index:
        for caption, names in CAPTIONS.items():
            pages = "\n".join(f"    {name}" for name in names)
            index.write(CONTENTS.format(caption=caption, pages=pages))
    return folder


def links(name: str, repository: str, version: str) -> str:
    """Links that open a notebook in hosted services, in Markdown."""
    opened = (
        f"[{service}]({link.format(repository=repository, version=version, name=name)})"
        for service, link in SERVICES.items()
    )
    return f"Open this notebook on {' or '.join(opened)}."


def leading_somewhere(text: str, repository: str, version: str) -> str:
    """Markdown whose links to repository files lead to GitHub, or become plain text without a repository."""
    target = rf"[\1](https://github.com/{repository}/blob/{version}/\2)" if repository else r"\1"
    return re.sub(r"\[([^\]]*)\]\((?:\.\./)+([^)]*)\)", target, text)


def main(output: str) -> int:
    """Builds the pages; warnings are errors."""
    repository, version = (
        os.environ.get("GITHUB_REPOSITORY", ""),
        os.environ.get("GITHUB_REF_NAME", "main"),
    )
    with tempfile.TemporaryDirectory() as folder:
        sources = assemble(Path(folder, "sources"), repository, version)
        return build_main(
            ["-q", "-W", "-c", str(DOCS), "-d", f"{folder}/doctrees", str(sources), output]
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
