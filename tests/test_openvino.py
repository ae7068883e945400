"""Encoders that OpenVINO runs: their vectors are those of torch, and a question loads neither torch nor its models."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny

from pyterrier_graph.__main__ import search
from pyterrier_graph.encoders.openvino_encoder import OpenVINOEncoder, load_encoder
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.encoders.stored_vectors import encoder_name

missing = pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
pytestmark = [missing, pytest.mark.slow]
TEXTS = ["alpha", "Alpha beta, gamma?", "", " ".join(tiny.WORDS * 20), "mu kappa"]
HEAVY = {"torch", "transformers", "sentence_transformers", "pyterrier_dr", "sklearn", "datasets"}
SEARCH = """
import sys
from pyterrier_graph.__main__ import search
assert search(ARGUMENTS) == 0
print("loaded", *(name for name, module in sys.modules.items() if module and "." not in name))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyTerrier's home, without conversions; conftest hides OpenVINO from the other tests."""
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("pyterrier_graph.encoders.openvino_encoder.find_spec", find_spec)
    return tmp_path / "home"


def test_vectors_are_those_of_torch(home: Path) -> None:
    torch_encoder = SentenceEncoder(tiny.checkpoint(), device="cpu", dtype="float32", verbose=False)
    encoder = load_encoder(tiny.checkpoint())
    assert isinstance(encoder, OpenVINOEncoder) and encoder_name(encoder) == encoder_name(
        torch_encoder
    )
    queries = encoder.encode_queries(TEXTS)
    np.testing.assert_allclose(queries, torch_encoder.encode_queries(TEXTS), atol=1e-5)
    vectors, expected = encoder.encode_docs(TEXTS), torch_encoder.encode_docs(TEXTS)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((vectors * expected).sum(1) / lengths).min() > 0.9999
    again = pickle.loads(pickle.dumps(encoder))
    topics = pd.DataFrame({"qid": [*"12345"], "query": TEXTS})
    np.testing.assert_allclose(np.stack(again(topics)["query_vec"]), queries, atol=1e-6)
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(encoder.encode_queries, [TEXTS] * 8):
            np.testing.assert_allclose(vectors, queries, atol=1e-6)


def test_torch_encodes_where_openvino_does_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a precision that is asked for, and if the vectors of the conversion differ, which is tried once."""
    assert isinstance(load_encoder(tiny.checkpoint(), dtype="float32"), SentenceEncoder)
    zeros = lambda self, texts: np.zeros((len(texts), 1), np.float32)  # noqa: E731
    monkeypatch.setattr(OpenVINOEncoder, "encode_queries", zeros)
    assert isinstance(load_encoder(tiny.checkpoint()), SentenceEncoder)
    monkeypatch.undo()
    monkeypatch.setenv("PYTERRIER_HOME", str(home))
    monkeypatch.setattr("pyterrier_graph.encoders.openvino_encoder.find_spec", find_spec)
    write = "pyterrier_graph.encoders.openvino_encoder._write"
    monkeypatch.setattr(write, lambda *_: pytest.fail("it was tried before"))
    assert isinstance(load_encoder(tiny.checkpoint()), SentenceEncoder)


def test_a_question_loads_no_model(home: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.md").write_text("# Kappa\n\nalpha mu\n\n# Beta\n\ngamma\n")
    arguments = [str(tmp_path), "alpha mu", "--encoder", tiny.checkpoint(), "--quiet"]
    assert search(arguments) == 0
    first, code = capsys.readouterr().out, SEARCH.replace("ARGUMENTS", repr(arguments))
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    second, loaded = output.split("loaded ")
    assert "alpha" in first and first == second and "openvino" in loaded.split()
    assert not {*loaded.split()} & HEAVY
