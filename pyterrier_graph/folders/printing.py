"""Results as lines for a terminal or a file."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pandas as pd

from pyterrier_graph.folders.search import FolderSearch
from pyterrier_graph.folders.snippets import content_stems, mark
from pyterrier_graph.folders.stored_files import named

BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"
WIDTH = 100


def results_text(found: pd.DataFrame, question: str, folder: Path, *, styled: bool, width: int = WIDTH) -> str:
    """The results, each with its titles, file and line, snippet and reason.

    Args:
        found: What :meth:`FolderSearch.search` returns.
        question: The question; its words are marked in snippets.
        folder: What the paths of files are shown with.
        styled: Whether words are marked by the codes of a terminal; else they stand between ``**``.
        width: Characters per line.
    """
    wanted = content_stems(question)
    bold, dim, plain = (BOLD, DIM, PLAIN) if styled else ("", "", "")
    marks = (BOLD, PLAIN) if styled else ("**", "**")
    texts = []
    for rank, row in enumerate(found.itertuples(), 1):
        head = f"{rank:>2}. {bold}{_printable(str(row.title))}{plain}"
        place = f"{dim}{_printable(os.path.join(folder, str(row.file)))}:{row.line}{plain}"
        lines = textwrap.fill(_printable(str(row.snippet)), max(20, width - 4))
        shown = mark(lines, wanted, *marks)
        below = textwrap.indent(f"{place}\n{shown}\n{dim}why: {row.why}{plain}", "    ")
        texts.append(f"{head}\n{below}\n")
    return "\n".join(texts)


def state_text(search: FolderSearch) -> str:
    """What was read and what was not, and what is left out of the search."""
    changes, broken = search.changes, search.broken
    removed = f", {changes.removed:,} removed" if changes.removed else ""
    lines = [
        f"{len(search.graph):,} documents, {len(search.index):,} passages; files read by this call: {changes.read:,}"
        f"{removed}."
    ]
    if broken:
        lines.append(f"Not readable: {len(broken):,} file{'s' * (len(broken) != 1)}{named(broken)}.")
    if search.lexical == "none":
        lines.append("The search has no BM25, which needs PISA (pip install pyterrier-pisa) or --lexical terrier.")
    return "\n".join(map(_printable, lines))


def _printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
