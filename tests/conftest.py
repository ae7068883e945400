"""Keeps the tests offline, quiet and away from the user's own files."""

from __future__ import annotations

import gc
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from clef_ip_miniature import Miniature
    from xdist.remote import Producer


gc.disable()  # until all is imported, which leaves no garbage

# Set before any test module is imported: some libraries read their settings when they are.
_HOME = tempfile.TemporaryDirectory(prefix="pyterrier_graph-tests-", ignore_cleanup_errors=True)
os.environ |= {
    "PYTERRIER_HOME": f"{_HOME.name}/pyterrier",
    "IR_DATASETS_HOME": f"{_HOME.name}/ir_datasets",
    "HF_HUB_OFFLINE": "1",
    "PT_TEST_TRANSFORMER_REPORTS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    # On small tensors threads only wait for one another: on a busy machine one thread is five times as fast as two.
    # And processes that are forked have none of their parent's.
    "OMP_NUM_THREADS": "1",
}

os.environ.setdefault("TESTS_CORPORA", f"{_HOME.name}/corpora")  # one folder for all processes

settings.register_profile(
    "tests", max_examples=10, deadline=None, suppress_health_check=[*HealthCheck]
)
settings.load_profile("tests")

# PyTerrier's schematics look every class up in the inventory of its documentation, which they download unless there is
# one already; one that is more than a day old is taken as it is.
_INVENTORY = Path(os.environ["PYTERRIER_HOME"], "documentation", "objects.inv")
_INVENTORY.parent.mkdir(parents=True)
_INVENTORY.write_bytes(
    b"# Sphinx inventory version 2\n# Project: none\n# Version: 0\n# zlib\n" + zlib.compress(b"")
)
os.utime(_INVENTORY, (0, 0))


@pytest.fixture(scope="session", autouse=True)
def _settings() -> Iterator[None]:
    """On every machine torch encodes, in float32, so that the tests see the same numbers."""
    collect = gc.collect
    with pytest.MonkeyPatch.context() as patch:
        # Trainers and tests of significance collect garbage in each call: what is young is enough.
        patch.setattr("gc.collect", lambda generation=2: collect(min(generation, 1)))
        # A card for each checkpoint takes longer than the trainings here.
        card = "sentence_transformers.SentenceTransformer._create_model_card"
        patch.setattr(card, lambda *_, **__: None)
        patch.setattr("pyterrier_graph.encoders.openvino_encoder.find_spec", lambda name: None)
        patch.setattr(
            "pyterrier_graph.encoders.checkpoints.computes_bfloat16", lambda device: False
        )
        yield


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """A small CLEF-IP collection. Tests must not change its files."""
    from clef_ip_miniature import write_miniature

    return write_miniature(tmp_path_factory.mktemp("home") / "clef-ip")


@pytest.fixture
def home(miniature: Miniature, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder, where ir_datasets looks for it."""
    from pyterrier_graph.datasets import provider

    monkeypatch.setenv("IR_DATASETS_HOME", str(miniature.home.parent))
    provider.register()
    return miniature.home


# Files with long tests that share nothing: each test is run by any process, those of other files by one.
DIVIDED = ("test_notebooks.py", "test_documentation.py", "test_experiments.py", "test_examples.py")


class FilesAndTests(LoadFileScheduling):
    """Divides files between processes, and the tests of some files."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.endswith(DIVIDED) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndTests:
    """How tests are divided between processes."""
    return FilesAndTests(config, log)


@pytest.hookimpl(trylast=True)  # without the tests that are not run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks come first, then other slow tests and large files, so that no process waits for another at the end."""
    sizes = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("slow") is None,
            item.path.name not in DIVIDED,
            -sizes[item.path],
        )
    )


def pytest_collection_finish() -> None:
    """A Trainer collects garbage before it starts: going through all that was imported takes longer than training."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def short_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the encoder, with one of its six layers."""
    import shortcuts

    return shortcuts.short_encoder(tmp_path_factory.mktemp("short-encoder"))


@pytest.fixture(autouse=True)
def _shortcuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow tests take them."""
    if request.node.get_closest_marker("slow"):
        import shortcuts

        folder = request.getfixturevalue("short_encoder") / "model"
        monkeypatch.setattr("pyterrier_graph.encoders.names.packaged", lambda: folder)
        monkeypatch.setattr(
            "pyterrier_graph.datasets.numpydoc.build_corpus", shortcuts.stored_corpus
        )


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were encoded."""
    from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

    texts: list[str] = []
    encode = SentenceEncoder.encode_docs

    def counted(self: Any, given: Any, *args: Any, **options: Any) -> Any:
        texts.extend(given)
        return encode(self, given, *args, **options)

    monkeypatch.setattr(SentenceEncoder, "encode_docs", counted)
    return texts
