"""Finds the files of a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from stat import S_ISREG

from pyterrier_graph.checks import check_type

FILES = "a folder, a file, or a list of files"


@dataclass
class Found:
    """The files to read.

    Attributes:
        root: The folder that all paths are relative to.
        paths: The files' paths, with slashes, in order.
        broken: Folders that could not be read, with the reason.
        counts: What was left out.
    """

    root: Path
    paths: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def find(files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...]) -> Found:
    """Finds files. Of a folder, those with one of the suffixes; of a list, all.

    Symbolic links and hidden files in a folder are left out, so that nothing outside of the folder is read.

    Raises:
        FileNotFoundError: If there is no such folder or file.
    """
    if not isinstance(files, str | os.PathLike):
        listed = []
        for path in files:
            check_type("a file in files", path, (str, os.PathLike), "a path")
            listed.append(Path(path).absolute())
        return _listed(listed)
    path = Path(files)
    return _walk(path, suffixes) if path.is_dir() else _listed([path.absolute()])


def _listed(files: list[Path]) -> Found:
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {str(file)!r}")
    if not files:
        raise ValueError(f"files must be {FILES}, got an empty list")
    root = Path(commonpath([file.parent for file in files]))
    return Found(root, [*dict.fromkeys(file.relative_to(root).as_posix() for file in files)])


def _walk(root: Path, suffixes: tuple[str, ...]) -> Found:
    found = Found(root)

    def note(error: OSError) -> None:
        found.broken[Path(error.filename).relative_to(root).as_posix()] = error.strerror or "not readable"

    for folder, folders, names in os.walk(root, onerror=note):
        hidden = sum(name.startswith(".") for name in folders)
        linked = sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        found.counts.update({"hidden folders left out": hidden, "symbolic links left out": linked})
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if name.lower().endswith(suffixes)):
            path = Path(folder, name)
            if name.startswith("."):
                found.counts["hidden files left out"] += 1
            elif path.is_symlink():
                found.counts["symbolic links left out"] += 1
            elif not S_ISREG(path.lstat().st_mode):
                found.counts["left out, since they are no regular files"] += 1
            else:
                found.paths.append(path.relative_to(root).as_posix())
    return found
