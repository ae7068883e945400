"""The projection of token vectors that comes with the package.

It projects the token vectors of the default encoder, all-MiniLM-L6-v2, from 384 to 128 dimensions. It started at their
principal directions, and was trained by MaxSim, with the encoder frozen, on questions of MedQuAD and on summary lines
of numpy's docstrings: ``experiments/results/token_encoders.md`` has what it gains, at home and on other collections.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pyterrier_graph.encoders.checkpoints import DEFAULT

LATE_INTERACTION = "late-interaction"
FILE = Path(__file__).with_name("late_interaction.safetensors")


def packaged_projection(encoder: str) -> Tensor:
    """The projection, shape (128, 384).

    Args:
        encoder: The name of the encoder whose token vectors are projected.

    Raises:
        ValueError: If it is another encoder than the one that the projection was trained for, or the file is damaged.
    """
    if encoder != DEFAULT:
        raise ValueError(
            f"projection={LATE_INTERACTION!r} is for token vectors of {DEFAULT!r}, not of {encoder!r}: "
            "leave projection= away"
        )
    try:
        return load_file(FILE)["weight"].float()
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{str(FILE)!r} is missing or damaged: install pyterrier_graph again") from error
