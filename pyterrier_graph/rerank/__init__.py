"""Rerankers that listen to a graph."""

from pyterrier_graph.rerank.document_evidence import DocumentEvidence
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.rerank.lgre import LGReReranker

__all__ = ["DocumentEvidence", "GraphMaxSim", "HGATReranker", "LGReReranker"]
