"""Input from strangers: no code, no network, no surprise; what fuzzing found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_dual_encoder import checkpoint as bi_encoder
from tiny import cross_encoder

import pyterrier_graph as ptg
from pyterrier_graph.graphs.passages import Fold, Passages
from pyterrier_graph.pair.dual_encoder import DualEncoder

RUN = tiny.run(2).assign(score=1.0, text="alpha")


# --- checkpoints


def test_a_checkpoint_cannot_name_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a checkpoint was run')", "utf-8")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules), "utf-8")
    with pytest.raises(ValueError, match="evil.Evil"):
        ptg.TokenEncoder(str(tmp_path), device="cpu")


def pickled(checkpoint: str, folder: Path, part: str = "") -> str:
    """A copy of a checkpoint whose weights are pickled."""
    shutil.copytree(checkpoint, folder)
    weights = folder / part / "model.safetensors"
    (folder / part).mkdir(exist_ok=True)
    torch.save(load_file(folder / "model.safetensors"), weights.with_name("pytorch_model.bin"))
    weights.unlink(missing_ok=True)
    return str(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    message = "pytorch_model.bin' holds pickled weights, which are not read; if you trust them, convert them: "
    texts, pairs = (
        pickled(bi_encoder(), tmp_path / "texts"),
        pickled(cross_encoder(), tmp_path / "pairs"),
    )
    for load in (ptg.TokenEncoder, DualEncoder):
        with pytest.raises(ValueError, match=message):
            load(texts, device="cpu")
    for load in (ptg.CrossEncoderReranker, ptg.LGReReranker):
        with pytest.raises(ValueError, match=message):
            load(pairs, device="cpu", max_tokens=8)
    projected = pickled(bi_encoder(), tmp_path / "projected", "2_Dense")
    listed = json.loads((tmp_path / "projected" / "modules.json").read_text("utf-8"))
    listed.append(listed[-1] | {"idx": 2, "name": "2", "path": "2_Dense"})
    (tmp_path / "projected" / "modules.json").write_text(json.dumps(listed), "utf-8")
    with pytest.raises(ValueError, match=f"2_Dense.{message}"):
        DualEncoder(projected, device="cpu")


# --- frames


def test_frames_that_cannot_be_computed_with() -> None:
    for transformer in (
        ptg.DocumentEvidence(),
        Passages(tiny.graph()),
        Fold(tiny.graph(), "document"),
    ):
        with pytest.raises(ValueError, match="12 rows have no score") as raised:
            transformer.transform(RUN.assign(score=np.nan))
        assert type(transformer).__name__ in str(raised.value)
