"""Work in other processes and on a Ray cluster: equal results, and objects that can be sent."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import datasets
import numpy as np
import pandas as pd
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.storage import shards

pytestmark = pytest.mark.filterwarnings("ignore")
DOCUMENTS = 60
LENGTHS = {"max_passage_tokens": 24, "max_query_tokens": 12}
# workers ask the hardware themselves, so "auto" might be another precision there
FLOAT32: dict[str, Any] = {"device": "cpu", "dtype": "float32", "verbose": False}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A graph on disk with stored tokens, contextual indexes, and a run."""
    folder = tmp_path_factory.mktemp("parallel")
    with warnings.catch_warnings(action="ignore"):
        graph = ptg.DocumentGraph(folder / "graph").index(tiny.documents(DOCUMENTS))
        tokens = TokenEncoder(tiny.checkpoint(), device="cpu", dtype="float32", **LENGTHS)
        store = ptg.TokenStore(folder / "tokens", verbose=False).build(graph, tokens)
        dual = ptg.DualEncoder(tiny.checkpoint(), **LENGTHS, **FLOAT32)
        whole = ptg.GraphIndex(folder / "whole", encoder=dual, verbose=False)
        return SimpleNamespace(
            folder=folder,
            graph=graph,
            tokens=tokens,
            store=store,
            dual=dual,
            whole=whole.index(tiny.documents(3)),
        )


@pytest.mark.slow
def test_queries_in_two_processes(small: Any) -> None:
    options = {"config": ptg.HGATConfig(heads=2), "tokens": small.store} | FLOAT32
    hgat = ptg.HGATReranker(small.graph, small.tokens, **options)
    hgat.contextualized = hgat.contextualize(small.folder / "contextualized")
    for model, inp in (hgat, tiny.run()), (small.whole.hybrid(20), tiny.topics()):
        one, two = (
            run.set_index(["qid", "docno"])["score"].sort_index()
            for run in (model(inp), model.parallel(2)(inp))
        )
        assert len(one)
        pd.testing.assert_series_equal(one, two, atol=1e-5)


@pytest.mark.slow
def test_ray_encodes_without_common_files(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers get no path. The vectors are the same to the byte."""
    ray = pytest.importorskip("ray")
    options = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(address="local", num_cpus=2, **options)
    sent, made, dumps = [], [], shards.cloudpickle.dumps
    monkeypatch.setattr(
        shards.cloudpickle, "dumps", lambda work: [sent.append(dumps(work)), sent[-1]][1]
    )
    for workers in ("ray", 1):
        model = ptg.GraphMean(small.graph, small.dual, folder=tmp_path / str(workers), **FLOAT32)
        index = model.index(tmp_path / f"{workers}.flex", workers=workers)
        made.append((index.path / "vecs.f4").read_bytes())
    ray.shutdown()
    assert sent and not [work for work in sent if str(tmp_path).encode() in work]
    assert made[0] == made[1]


def test_a_trained_encoder_is_pickled(small: Any) -> None:
    """Mixed precision in training leaves nothing behind that could not be sent, or that fixes the precision."""
    examples = {"query": tiny.WORDS[:4], "positive": [f"{word} mu" for word in tiny.WORDS[:4]]}
    training = ptg.DualEncoderTraining(epochs=1, batch_size=2)
    options = FLOAT32 | {"training": training, "dtype": "bfloat16"}
    model = ptg.DualEncoder(small.dual.encoder, **LENGTHS, **options)
    model.fit_examples(datasets.Dataset.from_dict(examples))
    model.dtype = "float32"
    model.save(folder := small.folder / "trained")
    expected = ptg.DualEncoder.load(folder, **FLOAT32).encode_docs(tiny.WORDS)
    for made in (model, cloudpickle.loads(cloudpickle.dumps(model))):
        np.testing.assert_allclose(made.encode_docs(tiny.WORDS), expected, atol=1e-6)
