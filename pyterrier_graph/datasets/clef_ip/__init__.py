"""CLEF-IP: a collection of patents, and the task to find passages that are prior art for claims."""

from pyterrier_graph.datasets.clef_ip.layout import Archive
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.text_files import RetrievedPassage, read_qrels, read_run
from pyterrier_graph.datasets.clef_ip.topics import read_topics

__all__ = ["Archive", "Patent", "RetrievedPassage", "read_patent", "read_qrels", "read_run", "read_topics"]
