"""``python -m pyterrier_graph demo``, and ``... search FOLDER QUESTION``."""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyterrier_graph.encoders.names import DEFAULT

if TYPE_CHECKING:
    import pandas as pd

    from pyterrier_graph.search.graph_index import GraphIndex

BAD_INPUT = 2  # exit status
WIDTH = 96


def main() -> None:
    """Runs the command that is named first."""
    parser = argparse.ArgumentParser(prog="python -m pyterrier_graph")
    parser.add_argument("command", choices=["demo", "search"], help="add --help for its options")
    command = parser.parse_args(sys.argv[1:2]).command
    arguments = sys.argv[2:]
    for library in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if command == "demo":
        from pyterrier_graph import demo

        demo.main(arguments)
    else:
        sys.exit(search(arguments))


def search(arguments: Sequence[str] | None = None) -> int:
    """Prints the passages that answer a question. Returns the exit status: 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m pyterrier_graph search",
        description="Finds the passages of a folder's files (Markdown, HTML, plain text; "
        "with the extra [office] also Word, PowerPoint, PDF and notebooks) that answer a question. The first "
        "call reads all files and builds indexes; later calls read changed files and only encode new texts.",
    )
    parser.add_argument("folder", help="searched with all folders inside")
    parser.add_argument("question", nargs="+")
    parser.add_argument("-n", "--num-results", type=int, default=5, help="passages to print (5)")
    parser.add_argument("--encoder", default=DEFAULT, help=f"name or folder ({DEFAULT})")
    parser.add_argument("--quiet", action="store_true", help="print results only")
    options = parser.parse_args(arguments)
    question = " ".join(options.question)
    from pyterrier_graph.search.folder import open_folder

    try:
        index = open_folder(options.folder, encoder=options.encoder, verbose=not options.quiet)
        if not options.quiet:
            print(index_state(index), file=sys.stderr)
        results = index.search(question, options.num_results)
    except (OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print(results_text(results, question, options.folder))
    return 0


def results_text(results: pd.DataFrame, question: str, folder: str) -> str:
    """The results as lines, each with its titles, file and line, snippet with its words between ``**``, and reason."""
    from pyterrier_graph.search.bm25 import query_terms
    from pyterrier_graph.search.snippets import matching_words

    terms = frozenset(query_terms(question))
    texts = []
    for rank, row in enumerate(results.itertuples(), 1):
        snippet = textwrap.fill(row.snippet, WIDTH)
        for start, end in reversed(matching_words(snippet, terms)):
            snippet = f"{snippet[:start]}**{snippet[start:end]}**{snippet[end:]}"
        details = f"{folder}/{row.file}:{row.line}\n{snippet}\nwhy: {row.why}"
        details = textwrap.indent(details, "    ")
        texts.append(f"{rank:>2}. {row.title}\n{details}\n")
    return "\n".join(texts)


def index_state(index: GraphIndex) -> str:
    """Describes the index, and names files that could not be read."""
    from pyterrier_graph.search.files import reasons_of

    source = index.meta["source"]
    lines = [f"{len(index.graph):,} documents, {len(index):,} passages in {str(index.path)!r}."]
    broken = source["broken"]
    if broken:
        reasons = reasons_of(broken)
        lines.append(f"Files that cannot be read: {len(broken):,}{reasons}.")
    skipped = source["skipped"]
    if skipped:
        counts = [f"{count:,} {suffix}" for suffix, count in skipped.items()]
        lines.append(f"Other files: {', '.join(counts)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
