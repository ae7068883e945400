"""Checks of the examples behind Terrier; those that want PISA get an index of Terrier in its place."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyterrier as pt
from terrier_pipelines import CHECKS, DOCUMENTS, is_ranking
from terrier_stages import Collection, IndexOfExamples, Setting

import pyterrier_graph as ptg

ROOT = Path(__file__).resolve().parent.parent
VASWANI = "irds:vaswani"


def example(name: str, *, terrier_only: bool = False) -> Callable[..., Any]:
    """Adds a check of an example, in a folder of its own, with the first stage where it wants PISA."""

    def add(run: Callable[[Setting, Any], None]) -> Callable[[Setting, Any], None]:
        def checked(at: Setting) -> None:
            if terrier_only:
                at.terrier()
            modules = {}
            if at.stage.name == "terrier":
                modules["pyterrier_pisa"] = types.ModuleType("pyterrier_pisa")
                modules["pyterrier_pisa"].PisaIndex = IndexOfExamples  # type: ignore[attr-defined]
            folder = at.folder / "examples" / name
            folder.mkdir(parents=True)
            get_dataset = pt.get_dataset
            get = mock.patch("pyterrier.get_dataset", lambda of: at.collection if of == VASWANI else get_dataset(of))
            path = mock.patch.object(sys, "path", [str(ROOT / "examples"), str(ROOT / "tests"), *sys.path])
            with mock.patch.dict(sys.modules, modules), get, path, contextlib.chdir(folder):
                sys.modules.pop(name, None)
                run(at, importlib.import_module(name))
                sys.modules.pop(name, None)

        CHECKS[f"example {name}"] = checked
        return run

    return add


@example("existing_index")
def existing_index(at: Setting, module: Any) -> None:
    is_ranking(module.rerank(at.bm25 % DOCUMENTS, at.stage.texts(at.collection))(at.topics), at.topics)
    with mock.patch.object(module, "rerank", lambda first, texts: first % DOCUMENTS >> at.rerank):
        module.main(str(at.stage.folder), VASWANI)


@example("hybrid")
def hybrid(at: Setting, module: Any) -> None:
    with mock.patch.object(at.collection, "documents", at.small.documents):
        module.main(str(at.stage.folder), VASWANI, "indexes")


@example("quickstart")
def quickstart(at: Setting, module: Any) -> None:
    module.main("indexes", queries=5)


@example("hgat")
def hgat(at: Setting, module: Any) -> None:
    module.main("indexes", queries=5)


@example("lgre", terrier_only=True)
def lgre(at: Setting, module: Any) -> None:
    small = at.small
    found = pt.text.get_text(small, ["text"])(module.first_stage(small, Path("index"))(at.topics))
    options = ptg.LGReTraining(epochs=1, pairs_per_epoch=4, validation_candidates=4)
    reranker = ptg.LGReReranker(training=options, verbose=False)
    found = (pt.Transformer.from_df(found) % DOCUMENTS)(at.topics)
    is_ranking(reranker.fit(found, small.qrels).transform(found), at.topics)


@example("pair", terrier_only=True)
def pair(at: Setting, module: Any) -> None:
    short = Collection(at.small.documents, at.collection.topics.head(2 * at.queries), at.collection.qrels)
    options = ptg.CrossEncoderTraining(epochs=1, pairs_per_epoch=16, validation_candidates=4, ranking="pointwise")
    # the thresholds for a teacher that is hardly trained: each of its scores is near one half
    miner = functools.partial(ptg.HardNegativeMiner, positive_threshold=0.5, negative_threshold=0.499)
    with (
        mock.patch("pyterrier.get_dataset", lambda _: short),
        mock.patch.object(ptg, "CrossEncoderTraining", lambda **_: options),
        mock.patch.object(ptg, "HardNegativeMiner", miner),
    ):
        module.main(VASWANI, folder="pair")


@example("clef_ip", terrier_only=True)
def clef_ip(at: Setting, module: Any) -> None:
    """On the miniature of the collection that the tests write."""
    from clef_ip_miniature import write_miniature

    from pyterrier_graph.datasets import provider

    home = Path("home").absolute()
    write_miniature(home / "clef-ip")
    with mock.patch.dict(os.environ, {"IR_DATASETS_HOME": str(home)}):
        provider.register()
        module.main("indexes", documents=20)
