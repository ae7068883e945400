"""Graphs over passages: stored, in memory, and made in a pipeline."""

from pyterrier_graph.graphs.candidate_graph import CandidateGraph
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, SECTION_TYPE, HeteroGraph, MemoryGraph
from pyterrier_graph.graphs.relations import inverse

__all__ = [
    "PASSAGE_TYPE",
    "SECTION_TYPE",
    "CSR",
    "CandidateGraph",
    "DocumentGraph",
    "MemoryGraph",
    "HeteroGraph",
    "inverse",
]
