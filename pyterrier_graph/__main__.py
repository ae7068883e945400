"""``python -m pyterrier_graph demo``, ``... search FOLDER QUESTION``, and ``... verify PATH``."""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = "usage: python -m pyterrier_graph {demo,search,verify} [options]; see demo --help, search --help, verify --help"
QUIET = "httpx sentence_transformers transformers datasets pyterrier_graph.readers pyterrier_graph.graphs".split()
BAD_INPUT, INTERRUPTED = 2, 130
DAMAGED = 1


def main() -> None:
    """Runs the command that is named first."""
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["demo"]:
        from pyterrier_graph import demo

        demo.main(arguments)
    elif command == ["search"]:
        sys.exit(search(arguments))
    elif command == ["verify"]:
        sys.exit(verify(arguments))
    else:
        print(USAGE, file=sys.stderr)
        sys.exit(BAD_INPUT)


def search_parser() -> argparse.ArgumentParser:
    """The command line of ``search``."""
    made = argparse.ArgumentParser(
        prog="python -m pyterrier_graph search",
        description="Finds the passages of a folder's files (Markdown, HTML, reStructuredText, JATS XML, plain text) "
        "that answer a question. The first call reads all files and builds indexes; later calls read what changed.",
    )
    made.add_argument("folder", help="searched with all folders inside")
    made.add_argument("question", nargs="+")
    made.add_argument("-n", "--num-results", type=int, default=5, help="passages to print (5)")
    made.add_argument("--cache", help="folder of the indexes (.pyterrier_graph in the folder, if it can be written)")
    made.add_argument("--lexical", choices=["auto", "pisa", "terrier", "none"], default="auto", help="runs BM25")
    made.add_argument("--encoder", help="name or folder of a checkpoint (all-MiniLM-L6-v2)")
    made.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto")
    made.add_argument("--workers", type=int, help="processes that read files")
    made.add_argument("--quiet", action="store_true", help="print results only")
    return made


def search(arguments: Sequence[str] | None = None) -> int:
    """Prints the passages that answer a question. Returns the exit status: 2 for bad input."""
    options = search_parser().parse_args(arguments)
    question = " ".join(options.question)
    for library in QUIET:
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        from pyterrier_graph.folders.reading import find_files
        from pyterrier_graph.folders.snippets import check_question

        check_question(question)
        find_files(Path(options.folder))  # before the imports that take seconds
        from pyterrier_graph.folders import printing
        from pyterrier_graph.folders.search import open_folder

        given = {"encoder": options.encoder} if options.encoder else {}
        names = ("cache", "lexical", "dtype", "workers")
        given |= {name: getattr(options, name) for name in names}
        folder = open_folder(options.folder, verbose=not options.quiet, **given)
        if not options.quiet:
            print(printing.state_text(folder), file=sys.stderr, flush=True)
        found = folder.search(question, options.num_results)
    except (OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("Interrupted. The next call goes on where this one ended.", file=sys.stderr)
        return INTERRUPTED
    styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((printing.WIDTH, 24)).columns, printing.WIDTH)
    text = printing.results_text(found, question, Path(options.folder), styled=styled, width=width)
    sys.stdout.buffer.write(f"{text}\n".encode(errors="replace")) if hasattr(sys.stdout, "buffer") else print(text)
    return 0


def verify_parser() -> argparse.ArgumentParser:
    """The command line of ``verify``."""
    made = argparse.ArgumentParser(
        prog="python -m pyterrier_graph verify",
        description="Reads all files of artifacts (graphs, indexes, token stores, saved models), and compares them "
        "with the digests that were stored when they were written. The exit status is 0 if all are equal, and 1 if "
        "some file is damaged or has no digest.",
    )
    made.add_argument("path", nargs="+", help="folder of an artifact, or a folder that has artifacts inside")
    made.add_argument("--quiet", action="store_true", help="print damaged artifacts only, and show no progress")
    return made


def verify(arguments: Sequence[str] | None = None) -> int:
    """Verifies artifacts. Returns the exit status: 1 if one is damaged, 2 if there is none at some path."""
    from pyterrier_graph import integrity
    from pyterrier_graph.artifacts import NO_DIGESTS

    options = verify_parser().parse_args(arguments)
    status = 0
    for place in map(Path, options.path):
        if not (found := integrity.artifacts_in(place)):
            print(f"error: no artifact at {str(place)!r} (there is no {integrity.META})", file=sys.stderr)
            return BAD_INPUT
        for path in found:
            try:
                complete, result = integrity.verify(path, verbose=not options.quiet), "is as it was written"
            except (OSError, ValueError) as error:
                complete, result = False, str(error)
            else:
                result = f"{str(path)!r} {result if complete else f'has {NO_DIGESTS}'}"
            if not complete:
                status = DAMAGED
            if not (complete and options.quiet):
                print(result)
    return status


if __name__ == "__main__":
    main()
