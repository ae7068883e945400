"""Graphs over passages for ranking, in PyTerrier pipelines."""

import logging

import lazy_loader

from pyterrier_graph.evaluation import measures as measures

logging.getLogger(__name__).addHandler(
    logging.NullHandler()
)  # quiet, unless the program that uses it says otherwise

__version__ = "0.1.0"

# A module is imported when its first name is used: importing the package loads neither torch nor PyTerrier. The names
# are those of __init__.pyi. Only the measures are registered with ir_measures at once.
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name not in ("clef_ip", "measures", "plots")]
