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
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUND = 1.0  # seconds per target and round
PATIENCE = 400  # seconds until a process that says nothing is ended
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

    def run(self, name: str, seed: int, inputs: int, seconds: float) -> tuple[int, list[list[object]]]:
        """The number of inputs that were made, and the findings."""
        try:
            self.stdin.write(json.dumps([name, seed, inputs, seconds]) + "\n")
            self.stdin.flush()
        except BrokenPipeError:
            return 0, [self._death(name)]
        with selectors.DefaultSelector() as ready:
            ready.register(self.stdout, selectors.EVENT_READ)
            line = self.stdout.readline() if ready.select(PATIENCE + seconds) else ""
        if line:
            made, findings = json.loads(line)
            return made, findings
        finding = self._death(name)
        return max(1, int(str(finding[1])) - seed + 1), [finding]

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


def main() -> int:
    """Returns the exit status: 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", metavar="KIND", help="targets whose names begin with this, such as 'frame'")
    parser.add_argument("--seed", type=int, default=0, help="of the first input of each target")
    parser.add_argument("--inputs", type=int, help="per target; without it, as many as there is time for")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    options = parser.parse_args()
    from .running import targets

    names = [name for name in targets() if name.startswith(options.only or "")]
    if options.list or not names:
        print(*(names or [f"no target begins with {options.only!r}"]), sep="\n")
        return 0 if names else 2
    made, seen = dict.fromkeys(names, 0), Counter[tuple[str, str]]()
    most = options.inputs or sys.maxsize
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        worker = Worker(folder)
        worker.run(names[0], 0, 0, 0)  # it has started: imports do not count
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and (open_names := [name for name in names if made[name] < most]):
            for name in open_names:
                if not worker.alive:
                    worker.close()
                    worker = Worker(folder)
                inputs, findings = worker.run(name, options.seed + made[name], most - made[name], ROUND)
                made[name] += inputs
                for _, seed, what, details in findings:
                    lines = str(details).strip().splitlines()
                    place = next((line for line in reversed(lines) if line.lstrip().startswith("File")), "")
                    seen[name, place] += 1
                    if seen[name, place] == 1:
                        command = f"python -m tests.fuzz --only {name} --seed {seed} --inputs 1"
                        print(f"FOUND {name}: {what}\n  {command}", *lines[-24:], sep="\n  ", flush=True)
                if time.monotonic() > end:
                    break
        worker.close()
    for name in names:
        found = sum(count for (other, _), count in seen.items() if other == name)
        print(f"{name:32} {made[name]:8,} inputs {found:6,} findings")
    print(f"{sum(made.values()):,} inputs of {len(names)} targets, {len(seen)} different findings")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))  # the tests' small encoder, corpora and files
    if WORKER in sys.argv:
        from .worker import work

        work()
    else:
        sys.exit(main())
