"""The entry point that lets PyTerrier and ir_datasets find the datasets of this package without an import.

PyTerrier imports this module during its own import, so it must be fast. Importing ir_datasets would make a folder in
the user's home; therefore a hook registers the datasets after somebody else has imported it.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import wrapt


def load_module() -> ModuleType:
    """Entry point ``graph`` of the group ``pyterrier.modules``: makes ``pt.graph`` this package."""
    wrapt.register_post_import_hook(lambda _: register(), "ir_datasets")
    return sys.modules[__name__.partition(".")[0]]


@functools.cache
def register() -> None:
    """Registers the ids ``pyterrier-graph/...`` and ``clef-ip/...`` in ir_datasets. A second call does nothing."""
    import ir_datasets

    ir_datasets.registry.register_pattern("pyterrier-graph/numpydoc/", _numpydoc)
    ir_datasets.registry.register_pattern("clef-ip", _clef_ip)


def _numpydoc(name: str, _: tuple[str, ...]) -> Any:
    from pyterrier_graph.datasets import numpydoc

    return numpydoc.datasets()[name]


def _clef_ip(name: str, _: tuple[str, ...]) -> Any:
    from pyterrier_graph.clef_ip import collection

    return collection.datasets()[name]
