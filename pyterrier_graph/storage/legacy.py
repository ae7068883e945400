"""What GraphIndex still needs until its versions are folders of their own."""

from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyterrier_graph.storage.artifact import DIGESTS, META, SIZES, file_sha256, meta_text, sync

NEW_META = f"{META}.new"  # before it takes the place of the former one


def complete(
    folder: Path,
    meta: dict[str, Any],
    sha256: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
    publish: Callable[[dict[str, Any]], None] | None = None,
    kept: Container[str] = (),
) -> None:
    """Makes a folder with its files an artifact: syncs everything to the disk, and writes ``pt_meta.json`` at the end.

    Sizes and digests of the files, by default all in the folder, are added to ``meta``; ``sha256`` has known digests.
    ``publish`` may extend the metadata before they are written. What is ``kept`` is on the disk already. A caller that
    renames the folder afterwards has to :func:`sync` the folder around it.
    """
    known = sha256 or {}
    new = folder / NEW_META
    files = sorted({*(folder.rglob("*") if files is None else files)} - {folder / META, new})
    names = {file.relative_to(folder).as_posix(): file for file in files if file.is_file()}
    meta[SIZES] = {name: file.stat().st_size for name, file in names.items()}
    meta[DIGESTS] = {name: known.get(name) or file_sha256(file) for name, file in names.items()}
    if publish is not None:
        publish(meta)
    new.write_text(meta_text(meta), encoding="utf-8", newline="\n")
    mode = new.stat().st_mode & 0o777
    written = [*(file for name, file in names.items() if name not in kept), new]
    for file in written:
        file.chmod(mode)  # safetensors creates files that only their creator may read
        sync(file)
    for place in {
        parent for file in written for parent in file.parents if folder in parent.parents
    }:
        sync(place)
    new.replace(folder / META)
    sync(folder)
