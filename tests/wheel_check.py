"""Checks what a release would publish: the files of the wheel, and that it works where nothing else is.

    python -m build && python tests/wheel_check.py dist -c constraints.txt

The wheel must contain every file of the package and nothing else. It is installed with ``[demo]`` into a new virtual
environment, or with ``--no-deps`` beside the packages of this one; then, in an empty folder, its public names and entry
points are loaded, a folder is searched, and with ``--demo`` the demo runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pyterrier_graph"
LEFT_OUT = {"__pycache__", ".DS_Store"}

NAMES = """
import importlib.metadata, sys
from pathlib import Path
import pyterrier as pt, pyterrier_graph as ptg
assert Path(ptg.__file__).is_relative_to(sys.argv[1]), f"{ptg.__file__} is not that of the wheel"
assert importlib.metadata.version("pyterrier_graph") == ptg.__version__
for name in (*ptg.__all__, "measures", "clef_ip", "plots"):
    getattr(ptg, name)
points = importlib.metadata.distribution("pyterrier_graph").entry_points
assert points and all(callable(point.load()) for point in points)
assert pt.graph is ptg
assert (Path(ptg.__file__).parent / "pt_docs" / "index.rst").exists()
print(f"{len(ptg.__all__)} names, {len(points)} entry points")
"""
PAGES = {
    "kettle.md": "# Kettle K1\n\nIt boils a liter of water, and switches itself off when it is empty.\n",
    "toaster.md": "# Toaster T2\n\nIt toasts two slices, and switches itself off after five minutes.\n",
}


def sources(package: Path) -> set[str]:
    """The files of the package as a wheel names them."""
    files = (file for file in package.rglob("*") if file.is_file() and not {*file.parts} & LEFT_OUT)
    return {f"{PACKAGE}/{file.relative_to(package).as_posix()}" for file in files}


def wrong_files(names: Iterable[str], expected: set[str]) -> list[str]:
    """The files that a wheel lacks, and those that do not belong to it."""
    found = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    return [
        *(f"not in the wheel: {name}" for name in sorted(expected - found)),
        *(f"in the wheel, but not of the package: {name}" for name in sorted(found - expected)),
    ]


def the_wheel(folder: Path) -> Path:
    """The only wheel of a folder."""
    wheels = [*folder.glob("*.whl")]
    if len(wheels) != 1:
        raise SystemExit(
            f"{folder} must have one wheel, not {len(wheels)}: {[wheel.name for wheel in wheels]}"
        )
    return wheels[0].resolve()


def check_sdist(
    folder: Path, names: Sequence[str] = ("CHANGELOG.md", "LICENSE", "README.md", "constraints.txt")
) -> None:
    """Checks that the source distribution has what MANIFEST.in names."""
    import tarfile

    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            found = {name.partition("/")[2] for name in opened.getnames()}
        if missing := {*names, *sources(ROOT / PACKAGE)} - found:
            raise SystemExit(f"not in {archive.name}: {sorted(missing)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Checks a folder with one wheel."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folder", type=Path, help="what `python -m build` wrote to")
    made.add_argument("-c", "--constraint", type=Path, help="versions to install")
    made.add_argument("--no-deps", action="store_true", help="use the packages that are installed")
    made.add_argument("--demo", action="store_true", help="run the demo, which takes minutes")
    options = made.parse_args(arguments)
    wheel = the_wheel(options.folder)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    if wrong := wrong_files(names, sources(ROOT / PACKAGE)):
        raise SystemExit("\n".join(wrong))
    check_sdist(options.folder)
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        python, install = (
            sys.executable,
            ["--no-deps", "--target", str(folder / "packages"), str(wheel)],
        )
        if not options.no_deps:
            venv.create(folder / "environment", with_pip=True)
            scripts = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
            python, install = str(scripts / "python"), [f"{wheel}[demo]"]
        if options.constraint:
            install += ["-c", str(options.constraint.resolve())]
        empty, pages = folder / "empty", folder / "pages"
        empty.mkdir()
        pages.mkdir()
        for name, text in PAGES.items():
            (pages / name).write_text(text, "utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        environment |= {
            "HF_HUB_OFFLINE": "1",
            "PYTERRIER_HOME": str(folder / "home"),
            "PYTHONPATH": str(folder / "packages"),  # with --no-deps only
        }
        pip, module = [python, "-m", "pip"], [python, "-m", PACKAGE]
        search = [*module, "search", str(pages), "when does the toaster switch itself off"]
        commands = {
            "install": [*pip, "install", "--quiet", *install],
            "names and entry points": [python, "-c", NAMES, str(folder)],
            "search": [*search, "-n", "1", "--quiet"],
        }
        if options.demo:
            commands["demo"] = [*module, "demo", "--output", "demo"]
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(
                command, cwd=empty, env=environment, capture_output=True, text=True
            )
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
            if done.returncode or (name == "search" and "five minutes" not in done.stdout):
                raise SystemExit(f"{name} failed: {command}\n{done.stdout}\n{done.stderr}")
    print("The wheel works by itself.")


if __name__ == "__main__":
    main()
