"""How PyTerrier and ir_datasets find this package's datasets without an explicit import: entry points.

A second dataset provider named ``irds`` would be no safe way to the ids that begin with ``irds:``. PyTerrier takes the
first of that name, and which one is first depends on the order in which the operating system lists a folder.
An entry point of the group ``pyterrier.modules`` runs with ``import pyterrier``, whatever the order. It must be quick
and must not import ir_datasets, which makes a folder in the user's home when it is imported; so it leaves a hook.
"""

# PyTerrier is imported in functions only: it imports this module while it is being imported itself.

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

if TYPE_CHECKING:
    import ir_datasets
    import pyterrier as pt

NAMESPACE = "pyterrier-graph"
CLEF_IP = "clef-ip"


def load_module() -> ModuleType:
    """Entry point ``graph`` of the group ``pyterrier.modules``: what ``pt.graph`` is, which is this package."""
    wrapt.register_post_import_hook(lambda _: register(), "ir_datasets")
    return sys.modules[__name__.partition(".")[0]]


@functools.cache
def register() -> None:
    """Makes the ids ``pyterrier-graph/...`` and ``clef-ip/...`` known to ir_datasets. A second call does nothing."""
    import ir_datasets

    ir_datasets.registry.register_pattern(rf"{NAMESPACE}/numpydoc/(.*)$", _numpydoc)
    ir_datasets.registry.register_pattern(rf"{CLEF_IP}(?:/.*)?$", _clef_ip)


def _numpydoc(_: str, groups: Sequence[str]) -> ir_datasets.Dataset:
    from pyterrier_graph.datasets import numpydoc

    return numpydoc.dataset(groups[0])


def _clef_ip(name: str, _: Sequence[str]) -> ir_datasets.Dataset:
    from pyterrier_graph.datasets.clef_ip import collection

    return collection.dataset(name)


class GraphDatasetProvider:
    """Entry point ``pyterrier-graph`` of the group ``pyterrier.dataset_provider``.

    ``pt.get_dataset("pyterrier-graph:numpydoc/numpy")`` is ``pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy")``,
    ``pt.get_dataset("pyterrier-graph:clef-ip")`` is ``pt.get_dataset("irds:clef-ip")``.
    """

    def get_dataset(self, name: str) -> pt.datasets.Dataset:
        """The dataset of that name.

        Raises:
            KeyError: If there is none.
        """
        import pyterrier as pt

        register()
        return pt.get_dataset(f"irds:{name}" if name.split("/")[0] == CLEF_IP else f"irds:{NAMESPACE}/{name}")

    def list_dataset_names(self) -> Iterable[str]:
        """The names of all datasets of this package."""
        from pyterrier_graph.datasets import numpydoc
        from pyterrier_graph.datasets.clef_ip import collection

        return [*(f"numpydoc/{name}" for name in numpydoc.dataset_names()), *collection.dataset_names()]
