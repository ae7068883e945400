"""Encoders that OpenVINO runs: their vectors are those of torch, and a question loads neither torch nor its models."""

from __future__ import annotations

import pickle
import re
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
from pyterrier_graph.encoders.compiled import CompiledEncoder, compiled, find_compiled
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.encoders.token_encoder import TokenEncoder

# importing it here would import what reports its use, from a forked process
pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
TEXTS = ["alpha", "Alpha beta, gamma?", "", " ".join(tiny.WORDS * 20), "mu kappa"]
HEAVY = "torch transformers sentence_transformers pyterrier_dr sklearn scipy datasets openvino_telemetry".split()
SEARCH = """
import sys
from pyterrier_graph.__main__ import search
for arguments in CALLS:
    assert search(arguments) == 0
    print("loaded", *(name for name, module in sys.modules.items() if module and "." not in name))
"""


@pytest.fixture
def torch_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SentenceEncoder:
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("pyterrier_graph.encoders.compiled.find_spec", find_spec)
    return SentenceEncoder(
        tiny.checkpoint(), max_query_tokens=8, max_passage_tokens=16, device="cpu", verbose=False
    )


def test_vectors_are_those_of_torch(
    torch_encoder: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(torch_encoder)
    assert isinstance(made, CompiledEncoder) and made.model_name == torch_encoder.model_name
    np.testing.assert_allclose(
        made.encode_queries(TEXTS), torch_encoder.encode_queries(TEXTS), atol=1e-5
    )
    cosines = (made.encode_docs(TEXTS) * torch_encoder.encode_docs(TEXTS)).sum(1)
    assert torch_encoder.similarity == "dot" or cosines.min() > 0.9999
    assert made.windows(TEXTS) == torch_encoder.windows(TEXTS)
    topics = pd.DataFrame({"qid": [*"12345"], "query": TEXTS})
    pickled = pickle.dumps(made)
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "another machine"))
    again = pickle.loads(pickled)
    np.testing.assert_allclose(
        np.stack(again(topics)["query_vec"]), made.encode_queries(TEXTS), atol=1e-6
    )
    with (
        ThreadPoolExecutor(4) as threads,
        pytest.raises(ValueError, match="text 1 of 2 is not a text"),
    ):
        for found in threads.map(made.encode_queries, [TEXTS] * 8):
            np.testing.assert_allclose(found, made.encode_queries(TEXTS), atol=1e-6)
        made.encode_docs(["alpha", None])  # type: ignore[list-item]


def test_other_vectors_are_not_used(
    torch_encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CompiledEncoder, "encode_queries", lambda self, texts: np.zeros((len(texts), 1), np.float32)
    )
    assert (
        compiled(torch_encoder) is torch_encoder and find_compiled(torch_encoder.model_name) is None
    )
    monkeypatch.setattr(
        "pyterrier_graph.encoders.compiled._save", lambda *_: pytest.fail("it was tried before")
    )
    assert compiled(torch_encoder) is torch_encoder


def test_queries_of_a_token_encoder_are_those_of_torch_until_it_is_trained(
    torch_encoder: SentenceEncoder,
) -> None:
    exact = TokenEncoder(tiny.checkpoint(), dtype="float32")
    encoder = TokenEncoder(tiny.checkpoint(), device="cpu", batch_size=2)
    queries = ["alpha", "Alpha beta, gamma?", " ".join(tiny.WORDS * 20), "alpha"]
    expected = exact.encode_queries(queries)
    assert encoder.query_program() is None and exact.query_program(convert=True) is None
    program = encoder.query_program(convert=True)
    assert program is not None and encoder.query_program() is program
    encoder._matrices = lambda *_: pytest.fail("torch encodes")  # type: ignore[method-assign]
    found = encoder.encode_queries(queries)
    assert found.offsets.tolist() == expected.offsets.tolist()
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    vars(encoder).pop("_matrices")
    again = pickle.loads(pickle.dumps(encoder))
    assert again._compiled is None and again.query_program() is not None
    weights = next(again.network.parameters())
    weights.data.mul_(1.01)  # as fused optimizers do, torch does not count this change
    assert again.query_program() is None
    np.testing.assert_allclose(encoder.encode_queries(queries).values, expected.values, atol=1e-5)


@pytest.mark.slow
def test_a_question_loads_no_model(
    torch_encoder: SentenceEncoder, tmp_path: Path, capsys: Any
) -> None:
    calls = []
    for name, text in {
        "docs": "# Kappa\n\nalpha mu\n\n# Beta\n\ngamma\n",
        "others": "# Mu\n\nalpha\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(text)
        calls.append([str(tmp_path / name), "alpha mu", "--encoder", tiny.checkpoint(), "--quiet"])
    assert search(calls[0]) == 0
    first, code = capsys.readouterr().out, SEARCH.replace("CALLS", repr(calls))
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    second, loaded, _, more = re.split(r"loaded (.*)\n", found)[:4]
    assert "alpha" in first and first == second and "openvino" in loaded.split()
    assert not {*loaded.split()}.intersection([*HEAVY, "lance_namespace_urllib3_client"])
    # another folder: only the network of the graph is torch's, now that the encoder is converted
    assert {*more.split()}.intersection(HEAVY) == {"torch"}
