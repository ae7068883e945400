"""What a graph of patents costs to build, and what parsing their files costs.

``python -m experiments.document_graph_cost --documents 1000 10000``: the patents are made up, of realistic size.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.collections.synthetic_patents import synthetic_records, write_xml_tree
from experiments.harness.cost import in_process, peak_mib, peak_without_files
from pyterrier_graph import DocumentGraph
from pyterrier_graph.datasets.clef_ip import Archive
from pyterrier_graph.documents import PASSAGE
from pyterrier_graph.patents import DocumentFrequencies

STEPS = ("generate", "write", "parse", "build", "count")
COLUMNS = ["s", "CPU ms per document", "peak MiB", "without files", "MiB written"]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints time and peak memory of every step, each in a process of its own.

    Steps: ``generate`` the documents and do nothing; ``write`` them as XML files; ``parse`` these files; ``build`` the
    graph; ``count`` words. The last two generate the documents, too. ``without files`` is the peak memory without
    mapped files, which a program can give back at any time (only Linux tells it).
    """
    command = argparse.ArgumentParser(prog="python -m experiments.document_graph_cost", description=main.__doc__)
    command.add_argument("--documents", type=int, nargs="+", default=[1000, 10_000])
    command.add_argument("--steps", nargs="+", choices=STEPS, default=["generate", "build"])
    command.add_argument("--folder", type=Path, help="where to write, about 45 KiB per document (a temporary folder)")
    command.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.only:
        print(*run(options.steps[0], options.documents[0], options.folder))
        return pd.DataFrame()
    rows = {}
    for count in options.documents:
        for step in options.steps:
            with TemporaryDirectory(dir=options.folder) as folder:
                given = ["--documents", count, "--steps", step, "--folder", folder, "--only"]
                rows[count, step] = in_process("experiments.document_graph_cost", *given)
    table = pd.DataFrame(rows, index=COLUMNS).T.rename_axis(["documents", "step"]).round(1)
    print(table.to_string())
    return table


def run(step: str, count: int, folder: Path) -> tuple[float, ...]:
    """Does one step, and returns its row of the table."""
    if step == "parse":
        write_xml_tree(folder, count)
    with peak_without_files() as peak:
        start, processor = time.perf_counter(), time.process_time()
        match step:
            case "generate":
                deque(synthetic_records(count), maxlen=0)
            case "write":
                write_xml_tree(folder, count)
            case "parse":
                deque(Archive(folder).patents(strict=True), maxlen=0)
            case "build":
                DocumentGraph(folder / "graph").index(synthetic_records(count), verbose=False)
            case "count":
                DocumentFrequencies(folder / "frequencies").index(map(_with_text, synthetic_records(count)))
        duration, processor = time.perf_counter() - start, time.process_time() - processor
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return duration, 1000 * processor / count, peak_mib(), peak[0], size / 2**20


def _with_text(record: dict[str, Any]) -> dict[str, Any]:
    text = "\n".join(node.text for node in record["nodes"] if node.kind == PASSAGE)
    return {"docno": record["docno"], "text": text, "language": "EN"}


if __name__ == "__main__":
    main()
