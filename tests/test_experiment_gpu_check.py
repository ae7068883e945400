"""The check of a GPU runs without one, and sees what is wrong."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import tiny
import torch

from experiments import gpu_check

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


def small(path: Path) -> list[str]:
    sizes = ["--passages", "4", "--dimension", "8", "--repeats", "1"]
    return ["--output", str(path), "--encoder", tiny.checkpoint(positions=256), *sizes]


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    table = gpu_check.main(small(tmp_path))
    on_gpu = table["device"] == gpu_check.GPU
    assert (table[on_gpu]["outcome"] == gpu_check.NO_GPU).all()
    assert set(table[on_gpu]["part"]) == {"models", "FAISS", "throughput", "two processes"}
    on_cpu = table[~on_gpu]
    assert set(on_cpu["outcome"]) == {"passed", "measured"} and (on_cpu["value"] >= 0).all()
    assert len(on_cpu[on_cpu["part"] == "models"]) == 2 * len(gpu_check.networks(8))
    assert pd.read_csv(tmp_path / "gpu_check.csv").shape == table.shape
    assert len((tmp_path / "gpu_check.md").read_text("utf-8").splitlines()) == len(table) + 4


def test_a_difference_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> Iterator[dict]:
        return iter(())

    for part in ("faiss_search", "throughput", "sharing"):
        monkeypatch.setattr(gpu_check, part, none)
    right = gpu_check.passes

    def wrong(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, gradients = right(*arguments)  # type: ignore[arg-type]
        return (out, gradients) if arguments[-1] == "float32" else (out, 2 * gradients)

    monkeypatch.setattr(gpu_check, "passes", wrong)
    with pytest.raises(SystemExit, match="backward"):
        gpu_check.main(small(tmp_path))
    assert (tmp_path / "gpu_check.csv").exists()


def test_two_processes() -> None:
    options = Namespace(encoder=tiny.checkpoint(positions=256), passages=4)
    same, speed = gpu_check.sharing(options, gpu_check.CPU)
    assert same["outcome"] == "passed" and speed["value"] > 0
