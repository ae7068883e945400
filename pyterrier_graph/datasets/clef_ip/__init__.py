"""CLEF-IP: a collection of patents, and the task to find passages that are prior art for claims."""

from pyterrier_graph.datasets.clef_ip.layout import Archive
from pyterrier_graph.datasets.clef_ip.patents import Patent, parse_patent, read_patent
from pyterrier_graph.datasets.clef_ip.text_files import (
    Judgment,
    RetrievedPassage,
    Topic,
    read_qrels,
    read_run,
    read_topics,
)

__all__ = [
    "Archive",
    "Judgment",
    "Patent",
    "RetrievedPassage",
    "Topic",
    "parse_patent",
    "read_patent",
    "read_qrels",
    "read_run",
    "read_topics",
]
