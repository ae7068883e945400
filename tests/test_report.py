"""The page of results is that of the stored values, and its program measures every system."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from experiment_tools import pages

from experiments import report, transfer


def test_the_committed_page_is_that_of_the_stored_values() -> None:
    page = report.PAGE.read_text("utf-8")
    assert page == report.page(report.VALUES)
    assert "{" not in page


def test_a_changed_value_changes_the_page(tmp_path: Path) -> None:
    folder = shutil.copytree(report.VALUES, tmp_path / "values")
    file = folder / "cacm.csv"
    table = pd.read_csv(file, dtype={"qid": str})
    table.assign(**{report.INDEX: 0.9}).to_csv(file, index=False)
    table = report.systems(report.read(folder))
    row = next(line for line in table.splitlines() if line.startswith(f"| {report.INDEX} |"))
    assert "| 0.900+ |" in row


def test_significance_is_corrected_over_collections() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 50)
    changes = {"a": noise + 0.2, "b": noise - 0.2, "c": noise - noise.mean(), "d": 0 * noise}
    # alone, p is 0.03 for a mean of 0.31 standard deviations; corrected over five collections it is above 0.05
    changes["e"] = changes["c"] + 0.31 * noise.std(ddof=1)
    tested = report.difference(changes)
    assert (tested.better, tested.worse) == (["a"], ["b"])
    assert report.difference({"e": changes["e"]}).better == ["e"]
    assert tested.mean == pytest.approx(np.mean([part.mean() for part in changes.values()]))


@pytest.mark.slow
def test_all_systems_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "open_collection", lambda _: pages())
    arguments = ["medquad", "--encoder", tiny.checkpoint(positions=256), "--max-tokens", "32"]
    arguments += [
        "--max-query-tokens",
        "32",
        "--cross-encoder",
        tiny.cross_encoder(),
        "--rerankers",
    ]
    arguments += ["--output", str(tmp_path / "out"), "--values", str(tmp_path / "values")]
    table = transfer.main(arguments)["medquad"]
    assert table.notna().all(axis=None)
    fitted = {report.RIVAL, report.INDEX + report.FITTED, report.GNN + report.TRAINED}
    rerankers = {report.MAXSIM, report.HGAT, report.CROSS, report.LGRE}
    assert fitted | rerankers < {*table}
    stored = report.read(tmp_path / "values")["medquad"]
    pd.testing.assert_frame_equal(stored, table.round(4))
    monkeypatch.setattr(transfer.Fold, "_network", lambda *_, **__: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(transfer.main(arguments)["medquad"], table)
