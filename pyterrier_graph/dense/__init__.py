"""Dense retrieval: dual-encoders that learn."""

from pyterrier_graph.dense.dual_encoder import DualEncoder

__all__ = ["DualEncoder"]
