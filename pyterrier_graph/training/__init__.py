"""Learning: negatives, triples, and the glue to ``transformers.Trainer``."""

from pyterrier_graph.training.options import Training

__all__ = ["Training"]
