"""A made-up corpus of any size: documents, vectors and queries whose numbers are in their texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyterrier_dr import BiEncoder, FlexIndex

from experiments.collections.synthetic_patents import snippets_of
from experiments.harness.cost import random_vectors
from pyterrier_graph import DocumentGraph, QueryPassageGraph
from pyterrier_graph.artifacts import META
from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Node, StructuredDocument
from pyterrier_graph.graphs.array_files import DOCNOS
from pyterrier_graph.graphs.ids import writing_ids
from pyterrier_graph.retrieve.index_identity import encoder_name, vector_space

PASSAGES = 10  # of a document, in two sections
QUERIES = 10  # passages for each query
RETRIEVED = 25  # passages that a query retrieves, the first of which is relevant
DISTINCT = 16_381  # vectors; the vector of a text is that of its number modulo this
AT_ONCE = 4096


def documents(passages: int) -> Iterator[StructuredDocument]:
    """Documents of ten passages in two sections, with three titles; each text ends with its number."""
    snippets = snippets_of(np.random.default_rng(0))
    for number in range(-(-passages // PASSAGES)):
        title = 3 * number
        nodes = [Node(SECTION, f"{snippets[number % len(snippets)][:40]} {title}", NO_PARENT)]
        for place in range(min(PASSAGES, passages - PASSAGES * number)):
            passage = PASSAGES * number + place
            if place % (PASSAGES // 2) == 0:
                title, section = title + 1, len(nodes)
                nodes.append(Node(SECTION, f"{snippets[-passage % len(snippets)][:30]} {title}", 0))
            nodes.append(Node(PASSAGE, f"{snippets[17 * passage % len(snippets)]} {passage}", section))
        yield StructuredDocument(f"d{number}", tuple(nodes))


class NumberEncoder(BiEncoder):
    """Takes the vector of a text from a table, by the number at its end: what is measured is not the encoder."""

    model_name = "numbers"

    def __init__(self, dimension: int = 384) -> None:
        super().__init__()
        self.table = random_vectors(np.random.default_rng(1), DISTINCT, dimension)

    def encode_docs(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """The vectors of some texts."""
        return self.table[[int(text[text.rfind(" ") + 1 :]) % DISTINCT for text in texts]]

    def encode_queries(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """The vectors of some queries; of a text without a number, the first."""
        return self.encode_docs([text if text[-1:].isdigit() else " 0" for text in texts])


def write_vectors(path: Path, passages: int, graph: DocumentGraph, encoder: NumberEncoder) -> FlexIndex:
    """Writes the FlexIndex of a graph's passages as a model without ``vectors=`` would, but takes no time to encode."""
    path.mkdir()
    with writing_ids(path / DOCNOS) as ids:
        for passage in range(passages):
            ids.add(f"d{passage // PASSAGES}%p{passage % PASSAGES}")
    with open(path / "vecs.f4", "wb") as file:
        for start in range(0, passages, DISTINCT):
            file.write(encoder.table[: passages - start].data)
    about = {"type": "dense_index", "format": "flex", "package_hint": "pyterrier_dr"}
    sizes = {"vec_size": encoder.table.shape[1], "doc_count": passages}
    base = {"encoder": encoder_name(encoder), "graph": graph.fingerprint(), "space": vector_space(encoder)}
    (path / META).write_text(json.dumps(about | sizes | {"base": base}), encoding="utf-8")
    return FlexIndex(str(path), verbose=False)


def write_queries(path: Path, passages: int, index: DocumentGraph | FlexIndex) -> QueryPassageGraph:
    """Builds the graph of one query for ten passages; each retrieves random ones, the first of which is relevant."""
    count, random = max(1, passages // QUERIES), np.random.default_rng(2)

    def frames() -> Iterator[pd.DataFrame]:
        for start in range(0, count, AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, count)).repeat(RETRIEVED)
            # spread over the corpus, and different for each query
            first = random.integers(passages, size=len(numbers) // RETRIEVED).repeat(RETRIEVED)
            step = max(1, passages // RETRIEVED)
            found = (first + step * np.tile(np.arange(RETRIEVED), len(numbers) // RETRIEVED)) % passages
            frame: dict[str, Any] = {"qid": [f"q{number}" for number in numbers.tolist()]}
            frame["query"] = [f"query {number}" for number in numbers.tolist()]
            frame["docno"] = [f"d{number // PASSAGES}%p{number % PASSAGES}" for number in found.tolist()]
            results = pd.DataFrame(frame | {"score": 1.0})
            yield results

    found = random.integers(passages, size=count)
    docnos = [f"d{number // PASSAGES}%p{number % PASSAGES}" for number in found.tolist()]
    qrels = pd.DataFrame({"qid": [f"q{number}" for number in range(count)], "docno": docnos, "label": 1})
    return QueryPassageGraph(path).from_results(frames(), index, qrels=qrels, verbose=False)
