"""Dense retrieval: dual-encoders that learn, and passages that listen before they are indexed."""

from pyterrier_graph.dense.dual_encoder import DualEncoder

__all__ = ["DualEncoder"]
