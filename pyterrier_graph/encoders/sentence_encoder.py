"""What dual-encoders need of a ``SentenceTransformer``: loading, similarity, lengths, prompts, checksums."""

import copy
import zlib
from typing import Any, Literal, cast, get_args

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer

from pyterrier_graph.checks import check_choice, check_count
from pyterrier_graph.encoders.checkpoints import SAFE_WEIGHTS, loading
from pyterrier_graph.encoders.devices import device_of, keep_full_precision

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
Similarity = Literal["dot", "cosine"]


def load_sentence_transformer(checkpoint: str, device: str | None, seed: int) -> SentenceTransformer:
    """Loads a checkpoint; the seed is for weights that it lacks."""
    with torch.random.fork_rng(), loading(checkpoint):
        torch.manual_seed(seed)
        network = SentenceTransformer(checkpoint, device=str(device_of(device)), model_kwargs=SAFE_WEIGHTS)
    for module in network.modules():
        if isinstance(module, Dense):  # in half precision, the normalized vectors would not have length 1
            keep_full_precision(module.linear)
    return network


def is_normalized(network: SentenceTransformer) -> bool:
    """Whether vectors have length 1, so that their dot products are cosines."""
    return any(isinstance(module, Normalize) for module in network.modules())


def prompts_of(network: SentenceTransformer) -> tuple[str, str]:
    """The texts that are put before each query and each passage; mostly empty."""
    document = next((name for name in DOCUMENT_PROMPTS if name in network.prompts), "")
    return network.prompts.get("query") or "", network.prompts.get(document) or ""


def load_dual_encoder(
    checkpoint: str, separate_encoders: bool, similarity: Similarity | None, device: str | None, seed: int
) -> SentenceTransformer:
    """Loads a checkpoint, and gives it one encoder or two, with or without normalized vectors."""
    if similarity is not None:
        check_choice("similarity", similarity, get_args(Similarity))
    network = load_sentence_transformer(checkpoint, device, seed)
    similarity = similarity or ("cosine" if is_normalized(network) else "dot")
    modules: list[Any] = [module for module in network.children() if not isinstance(module, Normalize)]
    if separate_encoders and not any(isinstance(module, Router) for module in modules):
        modules = [Router.for_query_document(copy.deepcopy(modules), modules)]
    if similarity == "cosine":
        modules.append(Normalize())
    made = SentenceTransformer(
        modules=modules,
        device=str(network.device),
        prompts=cast(dict[str, str], network.prompts),
        default_prompt_name=network.default_prompt_name,
        similarity_fn_name=similarity,
        truncate_dim=network.truncate_dim,
    )
    if is_normalized(made) != (similarity == "cosine"):
        raise ValueError(f"similarity={similarity!r} is not possible: the checkpoint normalizes its vectors")
    return made


def limit_length(network: SentenceTransformer, name: str, length: int) -> None:
    """Sets how many tokens are read: of a query if the name is ``max_query_tokens``, else of a passage.

    Raises ValueError if the network cannot read so many, or if special tokens alone take as many.
    """
    check_count(name, length)
    for module in network.modules():
        if isinstance(module, Transformer):
            if not 2 < length <= (module.max_seq_length or length):
                raise ValueError(f"the encoder reads 3 to {module.max_seq_length} tokens, {name} is {length}")
            setattr(module, "query_length" if name == "max_query_tokens" else "document_length", length)


def checksums(network: SentenceTransformer) -> dict[str, int]:
    """CRC-32 of each weight, by name."""
    bits = {name: value.detach().cpu().flatten().view(torch.uint8) for name, value in network.state_dict().items()}
    return {name: zlib.crc32(value.numpy()) for name, value in sorted(bits.items())}
