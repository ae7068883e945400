"""Transformers for prior-art search: they prepare the topics and filter the results of CLEF-IP.

The pipeline is that of Albarede et al. 2023, Sect. 5.1.2 and 5.2.2.
"""

from pyterrier_graph.patents.document_frequencies import DocumentFrequencies
from pyterrier_graph.patents.official_runs import read_official_run, write_official_run
from pyterrier_graph.patents.transformers import AbstractTerms, ClaimsQuery, DocumentCutoff, NotOwnFamily, SharedCodes

__all__ = [
    "AbstractTerms",
    "ClaimsQuery",
    "DocumentCutoff",
    "DocumentFrequencies",
    "NotOwnFamily",
    "SharedCodes",
    "read_official_run",
    "write_official_run",
]
