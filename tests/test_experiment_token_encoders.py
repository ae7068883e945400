"""The experiments on token encoders and on late interaction as the first stage, in miniature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import tiny
import torch
from experiment_tools import Matches, pages

import pyterrier_graph as ptg
from experiments import late_interaction_index, token_encoders
from experiments.harness import passage_corpus, projections
from experiments.harness.collection import ALL, Collection
from experiments.harness.passage_corpus import PassageCorpus

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoder(_: object, checkpoint: str = tiny.checkpoint()) -> ptg.TokenEncoder:  # noqa: B008
        return ptg.TokenEncoder(checkpoint, max_passage_tokens=24, max_query_tokens=12, device="cpu")

    for module in (token_encoders, late_interaction_index):
        monkeypatch.setattr(module, "frozen_encoder", encoder)
    for module in (passage_corpus, late_interaction_index):
        monkeypatch.setattr(module, "bm25", Matches)
    monkeypatch.setattr(projections, "BATCH", 2)


def options(folder: Path, *more: str) -> object:
    arguments = ["numpydoc", "medquad=nowhere", "qasper=nowhere", "--dimension", "8", "--epochs", "1"]
    return token_encoders.command_line().parse_args([*arguments, "--output", str(folder), *more])


def opener(folder: Path, seen: list[str]) -> Callable[[str], PassageCorpus]:
    made: dict[str, PassageCorpus] = {}

    def opened(name: str) -> PassageCorpus:
        if name not in made:
            seen.append(name)
            collection: Collection = pages()
            if name in token_encoders.TESTED:
                collection = replace(collection, queries={ALL: collection.queries["test"]})
            made[name] = PassageCorpus(name, collection, folder / "corpora" / name, dev_queries=4)
        return made[name]

    return opened


def test_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path, "--systems", "bare", "directions", "home", "away")
    names = [name for name, _ in chosen.collections]  # type: ignore[attr-defined]
    table = token_encoders.run(names, opener(tmp_path, []), chosen)  # type: ignore[arg-type]
    systems = ["off the shelf", "principal directions", "projection, home", "projection, away"]
    expected = ["BM25", *(f"MaxSim, {system}{more}" for system in systems for more in ("", ", IDF"))]
    assert sorted(table.index) == sorted(expected)
    assert table.loc["MaxSim, projection, home"].isna().tolist() == [False, False, True]
    made = sorted(path.name for path in (tmp_path / "projections").iterdir())
    assert made == ["medquad-0", "numpydoc+medquad-0", "numpydoc-0"]
    monkeypatch.setattr(token_encoders, "train_projection", lambda *_: pytest.fail("trained again"))
    seen: list[str] = []
    tested = options(tmp_path, "--systems", "bare", "home", "--tested", "medquad")
    again = token_encoders.run(names, opener(tmp_path, seen), tested)  # type: ignore[arg-type]
    assert seen == ["medquad"] and [*again.columns] == ["medquad"]
    pd.testing.assert_series_equal(again["medquad"], table.loc[again.index, "medquad"])


def test_a_whole_encoder(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "encoder", "--tested", "qasper")
    names = [name for name, _ in chosen.collections]  # type: ignore[attr-defined]
    table = token_encoders.run(names, opener(tmp_path, []), chosen)  # type: ignore[arg-type]
    assert "MaxSim, encoder, home" in table.index
    folder = str(tmp_path / "encoders" / "numpydoc+medquad-0")
    trained = ptg.TokenEncoder(folder, max_passage_tokens=24, max_query_tokens=12)
    assert trained.dimension == 8


def test_loss_prefers_the_relevant_passage() -> None:
    """A batch of two queries: the loss falls with the score of each one's first passage; others' passages count."""
    queries = torch.eye(4)[:2, None]
    passages = torch.eye(4)[[0, 2, 1, 3], None]
    tokens = torch.ones(4, 1, dtype=torch.bool)
    none = torch.zeros(2, 4, dtype=torch.bool)
    right = projections.maxsim_loss(queries, tokens[:2], passages, tokens, none, 4.0)
    wrong = projections.maxsim_loss(queries, tokens[:2], passages[[1, 0, 2, 3]], tokens, none, 4.0)
    assert right < wrong
    swapped = passages[[1, 0, 3, 2]]  # what is relevant to both queries comes last
    ignored = torch.tensor([[False, True, False, False], [False, False, False, True]])
    assert projections.maxsim_loss(queries, tokens[:2], swapped, tokens, ignored, 4.0) < 1.2


def test_late_interaction_index(tmp_path: Path) -> None:
    arguments = ["pages", "--dimension", "8", "--candidates", "4", "12", "--triples", "8", "--queries", "4"]
    systems = ["--systems", "bm25", "rerank", "index", "hgat"]
    chosen = late_interaction_index.command_line().parse_args([*arguments, *systems, "--output", str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptg, "HGATConfig", lambda **given: ptg.models.hgat.HGATConfig(heads=2, registers=2, **given))
        table = late_interaction_index.run(pages(), chosen).set_index("system")
    costs = pd.read_csv(tmp_path / "cost.csv").set_index("what")["value"]
    assert {"GraphMaxSim, index, 4 candidates", "HGAT, index, 12 candidates", "BM25"} <= set(table.index)
    assert (costs > 0).all() and len(costs) == len(table) + 4
    # all that the index finds is all that there is
    reranked, found = (float(table.loc[name, "nDCG@10"][:5]) for name in REACHING_ALL)
    assert found == pytest.approx(reranked, abs=2e-3)


REACHING_ALL = ("BM25 % 1000 >> GraphMaxSim", "GraphMaxSim, index, 12 candidates")
