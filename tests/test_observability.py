"""Categories of warnings, and quiet logs."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.checks import DataWarning, QualityWarning, SpeedWarning


def test_categories_can_be_filtered() -> None:
    for category in (DataWarning, QualityWarning, SpeedWarning):
        assert issubclass(category, ptg.PyTerrierGraphWarning) and issubclass(category, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ptg.PyTerrierGraphWarning)
        with pytest.raises(ptg.PyTerrierGraphWarning, match="reset"):
            ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {})(
                tiny.run(1).assign(query="applypipeline:off x")
            )
        warnings.warn("of another library", UserWarning, stacklevel=1)


def test_the_package_is_quiet() -> None:
    assert any(
        isinstance(handler, logging.NullHandler)
        for handler in logging.getLogger("pyterrier_graph").handlers
    )
    code = "import logging, pyterrier_graph; logging.getLogger('pyterrier_graph.graphs.builder').warning('told')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
    process = subprocess.run(
        [sys.executable, "-c", f"import logging; logging.basicConfig(); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "WARNING:pyterrier_graph.graphs.builder:told" in process.stderr
