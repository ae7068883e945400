"""The experiment on networks away from home, in miniature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from experiment_tools import pages, texts

import pyterrier_graph as ptg
from experiments import transfer
from experiments.harness.judgments import judged_ranking
from experiments.harness.transfer import place_of, untrained, used_at

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


def test_networks_at_home_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "opened", lambda name, passages: pages() if name == "pages" else texts(4))
    arguments = ["pages", "texts", "--output", str(tmp_path), "--encoder", tiny.checkpoint(), "--epochs", "1"]
    arguments += ["--max-tokens", "16"]
    table = transfer.main(arguments)
    trained = [f"{home}, L2-SP {strength}" for home in ("pages", "texts") for strength in ("0.1", "0")]
    assert table["trained on"].tolist() == 2 * ["untrained", *trained]
    assert table["network"].unique().tolist() == [transfer.WITHOUT_EDGES, transfer.GNN]
    runs = sorted(file.name for file in (tmp_path / "texts" / "GNNEncoder" / "runs").iterdir())
    assert len(runs) == 5 and not list(tmp_path.rglob("index.flex"))
    monkeypatch.setattr(transfer, "ranking", lambda *_: pytest.fail("all runs are stored"))
    pd.testing.assert_frame_equal(transfer.main(arguments), table)
    with pytest.raises(SystemExit, match="runs made with other options"):
        transfer.main([*arguments, "--epochs", "2"])


def test_a_copy_has_the_same_weights_and_other_passages(tmp_path: Path) -> None:
    home, other = (place_of(of, tmp_path / of.name, dev_queries=3) for of in (pages(), texts()))
    encoder = ptg.DualEncoder(tiny.checkpoint(), max_passage_tokens=16, verbose=False)
    model = untrained(home, encoder, weights={"title": 0.5})
    model.network.own.weight.data.normal_()
    used = used_at(model, other)
    docnos = [str(name) for name in other.graph.ids_of(other.graph.passage_nodes)]
    fresh = untrained(other, encoder, weights={"title": 0.5})
    assert np.abs(used.vectors(docnos) - fresh.vectors(docnos)).max() > 0.01
    fresh.network.load_state_dict(model.network.state_dict())
    np.testing.assert_allclose(used.vectors(docnos), fresh.vectors(docnos), atol=1e-6)
    assert model.graph is home.graph and used.folder == other.folder / "vectors"


def test_documents_have_the_score_of_their_best_passage() -> None:
    rows = [("q", "a%p0", 1.0), ("q", "b%p1", 2.0), ("q", "a%p1", 3.0)]
    found = pd.DataFrame(rows, columns=["qid", "docno", "score"])
    passages, documents = (judged_ranking(found, pd.DataFrame({"docno": [docno]}), 100) for docno in ("a%p0", "a"))
    assert passages.sort_values("rank")["docno"].tolist() == ["a%p1", "b%p1", "a%p0"]
    assert documents.sort_values("rank")[["docno", "score"]].values.tolist() == [["a", 3.0], ["b", 2.0]]
