"""CLEF-IP: patents, the task to find passages for claims, and the formats of its files."""

from pyterrier_graph.datasets.clef_ip.layout import Archive, PatentIterator
from pyterrier_graph.datasets.clef_ip.patents import Patent, parse_patent, read_patent
from pyterrier_graph.datasets.clef_ip.qrels import Judgment, read_qrels
from pyterrier_graph.datasets.clef_ip.runs import RetrievedPassage, read_run, write_run
from pyterrier_graph.datasets.clef_ip.topics import Topic, read_topics

__all__ = [
    "Archive",
    "Judgment",
    "Patent",
    "PatentIterator",
    "RetrievedPassage",
    "Topic",
    "parse_patent",
    "read_patent",
    "read_qrels",
    "read_run",
    "read_topics",
    "write_run",
]
