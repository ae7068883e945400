"""The cost of LGRe, against the cross-encoder of the same checkpoint.

``python -m experiments.lgre_cost`` (needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging

from experiments.harness.cost import in_process, peak_mib, side_by_side
from pyterrier_graph import LGReConfig, LGReLoss
from pyterrier_graph.encoders.names import DEFAULT, resolve
from pyterrier_graph.lgre.equations import LGRe

CROSS_ENCODER = "cross-encoder"
LAYERS: dict[str, tuple[int, ...] | None] = {
    CROSS_ENCODER: None,
    "LGRe, last layer": (-1,),
    "LGRe, last 4": (-4, -3, -2, -1),
    "LGRe, all layers": None,
}
QUERY_TOKENS = 8


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints times of scoring and training as multiples of the cross-encoder's, and peak memory of training."""
    command = argparse.ArgumentParser(prog="python -m experiments.lgre_cost", description=main.__doc__)
    command.add_argument("--encoder", default=DEFAULT)
    command.add_argument("--encoder-layers", type=int, help="random weights, and so many layers")
    command.add_argument("--steps", type=int, default=2, help="T")
    command.add_argument("--pairs", type=int, default=8, help="pairs at a time")
    command.add_argument("--tokens", type=int, default=128, help="tokens of a pair")
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--only", help=argparse.SUPPRESS)
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    options = command.parse_args(given)
    logging.set_verbosity_error()  # that the head is new
    logging.disable_progress_bar()
    if options.only:
        train(model_of(options.only, options), batch(options))
        print(torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else peak_mib())
        return pd.DataFrame()
    peaks = {name: in_process("experiments.lgre_cost", *given, "--only", name)[0] for name in LAYERS}
    models, inputs = {name: model_of(name, options) for name in LAYERS}, batch(options)
    # processor time, which other programs do not change; a GPU's work is none
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    columns = {
        action.__name__: side_by_side(
            {name: partial(action, model, inputs) for name, model in models.items()}, options.repeats, clock
        )["ratio"]
        for action in (score, train)
    }
    table = pd.DataFrame(columns).assign(**{"peak MiB, training": pd.Series(peaks)})
    print(table.to_string(float_format="{:.2f}".format))
    return table


def model_of(name: str, options: argparse.Namespace) -> nn.Module:
    """The cross-encoder, or an LGRe that starts at it."""
    torch.manual_seed(0)
    checkpoint = resolve(options.encoder)
    if options.encoder_layers:
        shape = AutoConfig.from_pretrained(checkpoint, num_labels=1, num_hidden_layers=options.encoder_layers)
        encoder = AutoModelForSequenceClassification.from_config(shape)
    else:
        encoder = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=1)
    if name == CROSS_ENCODER:
        return encoder.to(options.device)
    config = LGReConfig(layers=LAYERS[name], steps=options.steps, init="identity")
    return LGRe(encoder, config).to(options.device)


def batch(options: argparse.Namespace) -> dict[str, Tensor]:
    """Pairs without padding."""
    segments = torch.ones(options.pairs, options.tokens, dtype=torch.long)
    segments[:, : QUERY_TOKENS + 2] = 0
    segments[:, [0, QUERY_TOKENS + 1, -1]] = -1
    words = AutoConfig.from_pretrained(resolve(options.encoder)).vocab_size
    inputs = {"input_ids": torch.randint(5, words, segments.shape), "attention_mask": torch.ones_like(segments)}
    return {name: tensor.to(options.device) for name, tensor in {**inputs, "segments": segments}.items()}


def score(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Scores one batch, without gradients."""
    with torch.inference_mode():
        scores_of(model.eval(), inputs)
    _wait(inputs)


def train(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Loss and gradients of one batch, every other document relevant; LGRe's with the triangle distance."""
    model.train().zero_grad()
    relevant = torch.arange(len(inputs["input_ids"]), device=inputs["input_ids"].device) % 2 == 0
    if isinstance(model, LGRe):
        LGReLoss()(model(**inputs), inputs["segments"], relevant.unflatten(0, (-1, 2))).backward()
    else:
        scores = scores_of(model, inputs)
        (1 + scores[~relevant] - scores[relevant][:, None]).relu().mean().backward()
    _wait(inputs)


def scores_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Scores by either kind of model."""
    if isinstance(model, LGRe):
        return model(**inputs).scores
    return model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]


def _wait(inputs: dict[str, Tensor]) -> None:
    if inputs["input_ids"].is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
