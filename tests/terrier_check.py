"""Runs this package behind Terrier, for those who have Terrier's jars (or a network, by which PyTerrier gets them).

    python tests/terrier_check.py VASWANI [--only NAME ...] [--queries N] [--folder FOLDER]

VASWANI is a folder with the collection in TREC's format: ``doc-text.trec``, ``query-text.trec`` and ``qrels``, such as
``tests/fixtures/vaswani_npl`` in PyTerrier's repository. It is indexed with Terrier; then each check is run. A table
says what passed, what failed and why, and what was skipped. The exit status is the number of failures, 100 at most.

``--first-stage pisa`` runs what does not need Terrier on PISA, which checks the checks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import terrier_examples  # noqa: F401  # adds its checks
from terrier_pipelines import CHECKS
from terrier_stages import Collection, PisaStage, Setting, Skipped, TerrierStage


@dataclass
class Outcome:
    """What a check came to."""

    name: str
    result: str
    seconds: float
    told: str = ""
    error: str = field(default="", repr=False)


def run_check(name: str, at: Setting, *, verbose: bool = False) -> Outcome:
    """Runs one check; what it prints is kept for its error."""
    start = time.perf_counter()
    output: Any = sys.stdout if verbose else io.StringIO()
    result, told, error = "passed", "", ""
    try:
        with contextlib.redirect_stdout(output):
            told = CHECKS[name](at) or ""
    except Skipped as reason:
        result, told = "skipped", str(reason)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # Java's errors, and SystemExit of an example
        result, told = "failed", f"{type(problem).__name__}: {problem}".splitlines()[0][:120]
        error = traceback.format_exc()
    return Outcome(name, result, time.perf_counter() - start, told, error)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each check, and a last one that counts."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [f"{one.name:<{width}}  {one.result:<7}  {one.seconds:6.1f} s  {one.told}".rstrip() for one in outcomes]
    counts = [f"{sum(one.result == kind for one in outcomes)} {kind}" for kind in ("passed", "failed", "skipped")]
    return "\n".join([*lines, ", ".join(counts)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks, and prints the table. Returns the number of failures."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("collection", type=Path, help="folder with doc-text.trec, query-text.trec and qrels")
    made.add_argument("--first-stage", choices=["terrier", "pisa"], default="terrier")
    made.add_argument("--only", nargs="+", default=[], help="checks whose names begin so", metavar="NAME")
    made.add_argument("--queries", type=int, default=10, help="of the collection, but for BM25's effectiveness (10)")
    made.add_argument("--folder", type=Path, help="a new folder for what is made; a temporary one, if none is named")
    made.add_argument("--verbose", action="store_true", help="what the examples print")
    options = made.parse_args(arguments)
    names = [name for name in CHECKS if not options.only or name.startswith(tuple(options.only))]
    if not names:
        made.error(f"no check begins with {' or '.join(options.only)}; there are: {', '.join(CHECKS)}")
    collection = Collection.read(options.collection)
    with contextlib.ExitStack() as held:
        folder = options.folder or Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        stages: dict[str, Any] = {"terrier": TerrierStage, "pisa": PisaStage}
        stage = stages[options.first_stage](folder / "index")
        start = time.perf_counter()
        stage.build(collection.get_corpus_iter())
        told = f"{len(collection.documents):,} documents"
        outcomes = [Outcome("index", "passed", time.perf_counter() - start, told)]
        at = Setting(collection, stage, folder, options.queries)
        for name in names:
            outcomes.append(run_check(name, at, verbose=options.verbose))
            print(f"{outcomes[-1].result}: {name}", file=sys.stderr, flush=True)
    for outcome in outcomes:
        if outcome.error:
            print(f"--- {outcome.name}\n{outcome.error}", file=sys.stderr)
    print(table(outcomes))
    return min(100, sum(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
