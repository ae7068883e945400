"""What LGRe costs, against the cross-encoder of the same checkpoint.

``python -m experiments.lgre_cost`` (needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging

from experiments.hgat_cost import peak_mib
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.models.lgre import LGRe, LGReConfig
from pyterrier_graph.models.lgre_losses import LGReLoss

CROSS_ENCODER = "cross-encoder"
LAYERS: dict[str, tuple[int, ...] | None] = {
    CROSS_ENCODER: None,
    "LGRe, last layer": (-1,),
    "LGRe, last 4": (-4, -3, -2, -1),
    "LGRe, all layers": None,
}
QUERY = 8
Action = Callable[[nn.Module, dict[str, Tensor]], None]


def main() -> None:
    """Prints times as multiples of the cross-encoder's, and peak memory."""
    command = argparse.ArgumentParser(prog="python -m experiments.lgre_cost", description=main.__doc__)
    command.add_argument("--checkpoint", help="any encoder; default: the packaged MiniLM")
    command.add_argument("--encoder-layers", type=int, help="random weights, and so many layers")
    command.add_argument("--steps", type=int, default=LGReConfig.steps, help="T")
    command.add_argument("--pairs", type=int, default=8, help="pairs at a time")
    command.add_argument("--tokens", type=int, default=128, help="tokens of a pair")
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--only", help=argparse.SUPPRESS)
    options = command.parse_args()
    logging.set_verbosity_error()  # that the head is new
    logging.disable_progress_bar()
    if options.only:
        train(model_of(options.only, options), batch(options))
        print(torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else peak_mib())
        return
    # before this process has grown: Linux counts it as part of its children
    memory = {name: training_memory(name) for name in LAYERS}
    print(times(options).assign(**{"peak MiB, training": memory}).to_string(float_format="{:.2f}".format))


def times(options: argparse.Namespace) -> pd.DataFrame:
    """Median over rounds of the ratio to the cross-encoder in the same round, scoring and training."""
    models = {name: model_of(name, options) for name in LAYERS}
    inputs = batch(options)
    columns = {}
    for column, action in {"scoring": score, "training": train}.items():
        rounds = []
        for _ in range(options.repeats + 1):
            seconds = {name: seconds_of(action, model, inputs) for name, model in models.items()}
            rounds.append({name: value / seconds[CROSS_ENCODER] for name, value in seconds.items()})
        columns[column] = {name: median(ratios[name] for ratios in rounds[1:]) for name in LAYERS}
    return pd.DataFrame(columns)


def model_of(name: str, options: argparse.Namespace) -> nn.Module:
    """The cross-encoder, or an LGRe that starts at it."""
    torch.manual_seed(0)
    checkpoint = options.checkpoint or resolve(DEFAULT)
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
    segments[:, : QUERY + 2] = 0
    segments[:, [0, QUERY + 1, -1]] = -1
    inputs = {"input_ids": torch.randint(1000, 20_000, segments.shape), "attention_mask": torch.ones_like(segments)}
    return {name: tensor.to(options.device) for name, tensor in {**inputs, "segments": segments}.items()}


def score(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """One batch, without gradients."""
    with torch.inference_mode():
        scores_of(model.eval(), inputs)


def train(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Loss and gradients of one batch, every other document relevant; LGRe's with the triangle distance."""
    model.train().zero_grad()
    relevant = torch.arange(len(inputs["input_ids"]), device=inputs["input_ids"].device) % 2 == 0
    if isinstance(model, LGRe):
        queries = torch.zeros_like(relevant, dtype=torch.long)
        LGReLoss()(model(**inputs), inputs["segments"], relevant, queries).backward()
    else:
        scores = scores_of(model, inputs)
        (1 + scores[~relevant] - scores[relevant][:, None]).relu().mean().backward()


def scores_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Of either kind of model."""
    if isinstance(model, LGRe):
        return model(**inputs).scores
    return model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]


def seconds_of(action: Action, model: nn.Module, inputs: dict[str, Tensor]) -> float:
    """Processor time on a CPU, which others may be using too; else wall time."""
    on_cuda = inputs["input_ids"].is_cuda
    clock = time.perf_counter if on_cuda else time.process_time
    start = clock()
    action(model, inputs)
    if on_cuda:
        torch.cuda.synchronize()
    return clock() - start


def training_memory(name: str) -> float:
    """Largest memory of a process that trains on one batch."""
    command = [sys.executable, "-m", "experiments.lgre_cost", *sys.argv[1:], "--only", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


if __name__ == "__main__":
    main()
