"""Entry points by which PyTerrier and ir_datasets find this package's datasets without an explicit import.

The ids that begin with ``irds:`` need an entry point of the group ``pyterrier.modules``, which runs with ``import
pyterrier``. (A second dataset provider named ``irds`` would not do: PyTerrier takes the first of that name, and the
order depends on the file system.) The entry point must be fast and must not import ir_datasets, which makes a folder
in the user's home when it is imported. Therefore the datasets are registered by a hook, after ir_datasets is imported.
"""

# PyTerrier is imported in functions only, because it imports this module during its own import.

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

if TYPE_CHECKING:
    import ir_datasets

NAMESPACE = "pyterrier-graph"
CLEF_IP = "clef-ip"


def load_module() -> ModuleType:
    """Entry point ``graph`` of the group ``pyterrier.modules``: makes ``pt.graph`` this package."""
    wrapt.register_post_import_hook(lambda _: register(), "ir_datasets")
    return sys.modules[__name__.partition(".")[0]]


@functools.cache
def register() -> None:
    """Registers the ids ``pyterrier-graph/...`` and ``clef-ip/...`` in ir_datasets. A second call does nothing."""
    import ir_datasets

    ir_datasets.registry.register_pattern(rf"{NAMESPACE}/numpydoc/(.*)$", _numpydoc)
    ir_datasets.registry.register_pattern(rf"{CLEF_IP}(?:/.*)?$", _clef_ip)


def _numpydoc(_: str, groups: Sequence[str]) -> ir_datasets.Dataset:
    from pyterrier_graph.datasets import numpydoc

    return numpydoc.dataset(groups[0])


def _clef_ip(name: str, _: Sequence[str]) -> ir_datasets.Dataset:
    from pyterrier_graph.clef_ip import collection

    return collection.dataset(name)
