"""How many files a reader crosses: the modules that the first programs of README import, each in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

DOCUMENTS = """
import pyterrier_graph as ptg
docs = [{"docno": word, "title": word, "text": f"{word} mu.\\n\\nkappa {word}."} for word in ("alpha", "beta")]
graph = ptg.DocumentGraph("corpus.graph").index(docs, passage_words=2)
"""
GRAPH_MEAN = """
import sys
index = ptg.GraphMean(graph, CHECKPOINT).index("corpus.flex")
index.retriever().search("alpha")
modules = [module for name, module in sys.modules.items() if name.startswith("pyterrier_graph.")]
print(*(module.__name__ for module in modules if not module.__file__.endswith("__init__.py")))
"""
HGAT = """
import pandas as pd
run = pd.DataFrame([("1", "alpha", f"{word}%p{number}") for word in ("alpha", "beta") for number in (0, 1)])
run = run.set_axis(["qid", "query", "docno"], axis=1)
qrels = pd.DataFrame([("1", "alpha%p0", 1)], columns=["qid", "docno", "label"])
encoder = ptg.TokenEncoder(CHECKPOINT, max_passage_tokens=24, max_query_tokens=12)
hgat = ptg.HGATReranker(graph, encoder, training=ptg.HGATTraining(epochs=1))
crossed = set()
sys.setprofile(lambda frame, *_: crossed.add(frame.f_code.co_filename) if frame.f_code.co_name != "<module>" else None)
hgat.fit(run, qrels, run, qrels)
hgat(run)
sys.setprofile(None)
print(*(name.rpartition("pyterrier_graph/")[2] for name in crossed if "/pyterrier_graph/" in name))
"""


def run(code: str, folder: Path) -> list[set[str]]:
    """The names that a program prints in its last two lines."""
    root = Path(__file__).parents[1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    }
    code = code.replace("CHECKPOINT", repr(tiny.checkpoint()))
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return [{*line.split()} for line in done.stdout.strip().splitlines()[-2:]]


@pytest.mark.slow
def test_first_programs(tmp_path: Path) -> None:
    """Documents to GraphMean to search, then HGAT's fit and reranking."""
    imported, crossed = run(DOCUMENTS + GRAPH_MEAN + HGAT, tmp_path)
    assert len(imported) <= 22, sorted(imported)
    assert not [
        name
        for name in imported
        if name.split(".")[1] in ("training", "pair", "gnn_encoder", "hgat", "lgre")
    ]
    crossed -= {"evaluation/measures.py"}  # ir_measures calls its LevelProvider
    assert len(crossed) <= 18, sorted(crossed)
