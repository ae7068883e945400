"""``python -m tests.fuzz --minutes 10``: runs all targets in turn, and prints what was found."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROUND = 1.0  # seconds per target and round
LEAST = 200  # inputs of each target that a total has
PATIENCE = 700  # seconds until a process that says nothing is ended: more than worker.WAIT
WORKER = "--worker"
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}


class Worker:
    """A process that runs inputs, started again when it has died."""

    def __init__(self, folder: str) -> None:
        self.place = Path(folder, "seed")
        self.place.write_text("0")
        self.errors = open(Path(folder, "errors"), "w+")  # noqa: SIM115
        homes = {name: f"{folder}/{name.lower()}" for name in ("PYTERRIER_HOME", "IR_DATASETS_HOME")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", WORKER, str(self.place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            env=os.environ | QUIET | homes | {"TMPDIR": folder},
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def run(self, name: str, seed: int, inputs: int, seconds: float) -> tuple[int, float, list[list[object]]]:
        """The number of inputs that were made, the processor's seconds that they took, and the findings."""
        try:
            self.stdin.write(json.dumps([name, seed, inputs, seconds]) + "\n")
            self.stdin.flush()
        except BrokenPipeError:
            return 0, 0.0, [self._death(name)]
        with selectors.DefaultSelector() as ready:
            ready.register(self.stdout, selectors.EVENT_READ)
            line = self.stdout.readline() if ready.select(PATIENCE + seconds) else ""
        if line:
            made, used, findings = json.loads(line)
            return made, used, findings
        finding = self._death(name)
        return max(1, int(str(finding[1])) - seed + 1), 0.0, [finding]

    def _death(self, name: str) -> list[object]:
        self.process.kill()
        status = self.process.wait()
        self.errors.seek(0)
        return [name, int(self.place.read_text()), f"the process ended with {status}", self.errors.read()[-4000:]]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


class Progress:
    """What was run: inputs, the processor's seconds and findings of each target, in a file if it has a name."""

    def __init__(self, names: list[str], path: Path | None) -> None:
        known = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
        none: dict[str, Any] = {"inputs": 0, "seconds": 0.0, "findings": 0}
        self.names, self.path = names, path
        self.targets: dict[str, dict[str, Any]] = known | {name: known.get(name, none.copy()) for name in names}

    def made(self, name: str) -> int:
        """The number of inputs of a target."""
        return self.targets[name]["inputs"]

    def add(self, name: str, inputs: int, seconds: float, findings: int) -> None:
        """Adds what was run."""
        for key, value in (("inputs", inputs), ("seconds", round(seconds, 3)), ("findings", findings)):
            self.targets[name][key] += value
        if self.path:
            self.path.write_text(json.dumps(self.targets, indent=1), "utf-8")

    def missing(self, name: str, each: int | None, total: int | None) -> int:
        """The number of inputs of a target that are to be made."""
        if total is None:
            return (each or sys.maxsize) - self.made(name)
        if (short := LEAST - self.made(name)) > 0:
            return short
        costs = sorted(map(self._cost, self.names))
        return total - sum(map(self.made, self.names)) if self._cost(name) <= costs[len(costs) // 2] else 0

    def _cost(self, name: str) -> float:
        return self.targets[name]["seconds"] / max(self.made(name), 1)

    def table(self) -> str:
        """A row for each target."""
        rows = [(name, *self.targets[name].values()) for name in self.names]
        rows.append((f"{len(rows)} targets", *(sum(row[column] for row in rows) for column in (1, 2, 3))))
        return "\n".join(
            f"{name:32} {made:9,} inputs {used:9,.1f} s {found:5,} findings" for name, made, used, found in rows
        )


def main() -> int:
    """Returns the exit status: 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", metavar="KIND", help="targets whose names begin with this, such as 'frame'")
    parser.add_argument("--seed", type=int, default=0, help="of the first input of each target")
    parser.add_argument("--inputs", type=int, help="per target; without it, as many as there is time for")
    parser.add_argument(
        "--total",
        type=int,
        help=f"of all targets together: {LEAST} of each at least, the rest where inputs take less time",
    )
    parser.add_argument("--progress", type=Path, help="a file that says what was run; with one, a run goes on with it")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    options = parser.parse_args()
    from .running import targets

    names = [name for name in targets() if name.startswith(options.only or "")]
    if options.list or not names:
        print(*(names or [f"no target begins with {options.only!r}"]), sep="\n")
        return 0 if names else 2
    progress, seen = Progress(names, options.progress), set[tuple[str, str]]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        worker = Worker(folder)
        worker.run(names[0], 0, 0, 0)  # it has started: imports do not count
        end = time.monotonic() + 60 * options.minutes
        missing = {name: progress.missing(name, options.inputs, options.total) for name in names}
        while time.monotonic() < end and max(missing.values()) > 0:
            for name in names:
                missing[name] = progress.missing(name, options.inputs, options.total)
                if missing[name] <= 0 or time.monotonic() > end:
                    continue
                if not worker.alive:
                    worker.close()
                    worker = Worker(folder)
                inputs, used, findings = worker.run(name, options.seed + progress.made(name), missing[name], ROUND)
                progress.add(name, inputs, used, len(findings))
                for _, seed, what, details in findings:
                    lines = str(details).strip().splitlines()
                    place = next((line for line in reversed(lines) if line.lstrip().startswith("File")), "")
                    if (name, place) not in seen:
                        seen.add((name, place))
                        command = f"python -m tests.fuzz --only {name} --seed {seed} --inputs 1"
                        print(f"FOUND {name}: {what}\n  {command}", *lines[-24:], sep="\n  ", flush=True)
        worker.close()
    print(progress.table(), f"{len(seen)} different findings in this run", sep="\n")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))  # the tests' small encoder, corpora and files
    if WORKER in sys.argv:
        from .worker import work

        work()
    else:
        sys.exit(main())
