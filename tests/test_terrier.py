"""The example of an index that is there already, with a real Terrier index where Terrier can start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from existing_index import rerank

TEXTS = {
    "penguin": "Emperor penguins huddle together, and by turns stand at the warm middle of the huddle.",
    "heater": "A heater keeps a room warm. Set it to the temperature that you like and keep the windows closed.",
    # two windows of 120 words, 60 apart; only the second one has an answer
    "long": "sand " * 140 + "Camels store fat in their humps, which they live on in the desert. " + "sand " * 30,
}
TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["how do penguins keep warm", "what is in the hump of a camel"]})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not pt.java.started():
        try:
            pt.java.init()
        except Exception as error:  # no Java, no network to fetch Terrier over, ...: each raises something of its own
            pytest.skip(f"Terrier cannot start: {error}")
    folder = str(tmp_path_factory.mktemp("terrier") / "index")
    documents = ({"docno": docno, "text": text} for docno, text in TEXTS.items())
    pt.IterDictIndexer(folder, meta={"docno": 20, "text": 4096}).index(documents)
    return pt.IndexFactory.of(folder)


def test_terrier_pipeline(index: Any) -> None:
    bm25 = pt.terrier.Retriever(index, wmodel="BM25", num_results=100)
    found, results = bm25(TOPICS), rerank(bm25, index)(TOPICS)
    pairs = [set(zip(run["qid"], run["docno"], strict=True)) for run in (found, results)]
    assert pairs[0] == pairs[1]
    best = results[results["rank"] == 0].set_index("qid")["docno"].to_dict()
    assert best == {"1": "penguin", "2": "long"}


def test_cached_jars_are_found(tmp_path: Path) -> None:
    """By PyTerrier in the home that tests have, from the home that the user has."""
    jars = ["terrier-assemblies-5.11-jar-with-dependencies.jar", "terrier-python-helper-0.0.8.jar"]
    for jar in jars:
        (tmp_path / jar).write_bytes(jar.encode())
    code = """
import conftest
from pyterrier.java import mavenresolver
mavenresolver.offline()
for name, kind in [("terrier-assemblies", "jar-with-dependencies"), ("terrier-python-helper", "jar")]:
    version = mavenresolver.latest_version_num("org.terrier", name)
    print(mavenresolver.get_package_jar("org.terrier", name, version, artifact=kind))
    print(open(mavenresolver.get_package_jar("org.terrier", name, version, artifact=kind)).read())
"""
    environment = os.environ | {"PYTERRIER_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    lines = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout.splitlines()
    assert [Path(found).name for found in lines[::2]] == lines[1::2] == jars
    assert {Path(found).parent for found in lines[::2]}.isdisjoint({tmp_path})  # nothing is written to the user's home
