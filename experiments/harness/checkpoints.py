"""Checkpoints that are named on the command line."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig

from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.lgre.cross_encoder import CHECKPOINT


def trained_cross_encoder(checkpoint: str, option: str) -> str:
    """A cross-encoder's name or folder; of a saved :class:`~pyterrier_graph.CrossEncoderReranker`, that inside of it.

    Args:
        checkpoint: What was given.
        option: With which option, for the message.

    Raises:
        SystemExit: If it is not there, or is not a cross-encoder with one score.
    """
    inner = Path(checkpoint) / CHECKPOINT
    found = str(inner) if inner.exists() else resolve(checkpoint)
    try:
        shape = AutoConfig.from_pretrained(found)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{option} {checkpoint}: there is no such checkpoint: {error}") from error
    if shape.num_labels != 1 or not any(
        "ForSequenceClassification" in kind for kind in shape.architectures or ()
    ):
        raise SystemExit(
            f"{option} {checkpoint} is not a cross-encoder with one score, but {shape.architectures}"
        )
    return found
