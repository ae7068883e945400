"""Checkpoints, and the device and the precision that they run in.

``dtype="auto"`` is bfloat16 where the device computes it natively, else float32. Only networks run in half precision:
weights, the sums that make a score, norms, losses and whatever is returned or stored stay in float32, because bfloat16
has no more than 256 steps between two powers of two, and scores would tie.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

DType = Literal["auto", "float32", "bfloat16", "float16"]

# the defaults of all encoders, from Albarede et al. 2023
MAX_QUERY_TOKENS = 120
MAX_PASSAGE_TOKENS = 180
# Models that count positions from the number of the padding token, as RoBERTa does.
FROM_PADDING = frozenset(
    "roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert mpnet longformer".split()
)
MODULES = ("sentence_transformers.", "pylate.")  # classes that a checkpoint may name
# How weights are loaded: a file of pickled objects, which may run code, is never read.
SAFE_WEIGHTS: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True}

_TOKENIZING = RLock()


def tokenized(tokenize: Callable[..., Any], *texts: Any, **options: Any) -> Any:
    """Calls a tokenizer; threads take turns, because they share its state."""
    with _TOKENIZING:
        return tokenize(*texts, **options)


def share(network: nn.Module) -> list[Any]:
    """Makes threads take turns in the tokenizers of a network of sentence-transformers; returns its transformers."""
    # takes seconds, which converted encoders need not
    from sentence_transformers.base.modules import Transformer

    transformers = [module for module in network.modules() if isinstance(module, Transformer)]
    for module in transformers:
        module.preprocess = partial(tokenized, type(module).preprocess, module)
    return transformers


def set_lengths(
    transformers: list[Any],
    longest: Iterable[int | None],
    query_tokens: int | None,
    passage_tokens: int | None,
) -> tuple[int, int]:
    """Sets how many tokens of a query and of a passage are read; returns both numbers.

    By default these are 120 and 180. An encoder that cannot read as many reads as many as it can.
    """
    limits = [limit for limit in longest if limit]
    query = min([query_tokens or MAX_QUERY_TOKENS, *limits])
    passage = min([passage_tokens or MAX_PASSAGE_TOKENS, *limits])
    for module in transformers:
        module.query_length = query
        module.document_length = passage
    return query, passage


def positions_of(config: Any) -> int | None:
    """The number of tokens that a network has positions for, by its configuration; None if that is not limited."""
    config = config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions and config.model_type in FROM_PADDING:
        return positions - config.pad_token_id - 1
    return positions


@contextmanager
def hidden_bars() -> Iterator[None]:
    """A block in which transformers shows no progress bar for weights."""
    from transformers.utils.logging import set_tqdm_hook

    def disabled(bar: Any, args: Any, options: Any) -> Any:
        return bar(*args, **{**options, "disable": True})

    previous = set_tqdm_hook(disabled)
    try:
        yield
    finally:
        set_tqdm_hook(previous)


@contextmanager
def loading(encoder: str) -> Iterator[None]:
    """A block that loads an encoder, with :func:`hidden_bars`; raises ValueError as :func:`check_folder`."""
    check_folder(Path(encoder))
    with hidden_bars():
        yield


def check_folder(checkpoint: Path) -> None:
    """Raises ValueError if a checkpoint's folder names a class from elsewhere, or only has pickled weights."""
    folders = [checkpoint]
    file = checkpoint / "modules.json"
    if file.is_file():
        for module in json.loads(file.read_text("utf-8")):
            if not module["type"].startswith(MODULES):
                raise ValueError(f"{str(file)!r} names {module['type']!r}, whose code would be run")
            folders.append(checkpoint / module["path"])
    for folder in folders:
        pickled = next(folder.glob("pytorch_model*.bin"), None)
        if pickled and not any(folder.glob("model*.safetensors")):
            raise ValueError(
                f"{str(pickled)!r} holds pickled weights, which are not read; if you trust them, convert them: "
                "SentenceTransformer(name).save(folder), or model.save_pretrained(folder)"
            )


def device_of(name: str | None) -> torch.device:
    """The device of that name; a GPU where there is one and none is named."""
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device computes bfloat16 natively: a GPU that does, or a CPU with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return False


def dtype_of(name: DType, device: torch.device) -> torch.dtype:
    """The precision of that name."""
    if name != "auto":
        return getattr(torch, name)
    if computes_bfloat16(device):
        return torch.bfloat16
    return torch.float32


def dtype_name(name: DType, device: torch.device) -> str:
    """Name of the precision on a device, for ``pt_meta.json``: ``'auto'`` is resolved."""
    dtype = dtype_of(name, device)
    return str(dtype).removeprefix("torch.")


def precision(name: DType, device: torch.device) -> torch.autocast:
    """The context in which networks compute in the precision of that name."""
    dtype = dtype_of(name, device)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def full_precision(tensor: Tensor) -> torch.autocast:
    """The context in which whatever is computed with a tensor has the tensor's own precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it has half precision."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.to(dtype)


def score_in_full_precision(network: nn.Module) -> None:
    """Makes the last linear layer of a network, which gives the score, compute in float32 in any :func:`precision`."""
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    keep_full_precision(linear[-1])


def keep_full_precision(linear: nn.Linear) -> None:
    """Makes a linear layer compute in float32 in any :func:`precision`."""
    linear.register_forward_hook(_again_in_full_precision)  # not a closure, which cannot be pickled


def _again_in_full_precision(linear: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    if output.dtype.itemsize > 2:
        return output
    with full_precision(output):
        x = at_least_float32(inputs[0])
        return functional.linear(x, linear.weight, linear.bias)
