"""A made-up corpus of any size: documents, vectors and queries whose numbers are in their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pyterrier_dr import BiEncoder

from experiments.harness.cost import random_text, random_vectors
from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Node, StructuredDocument

PASSAGES = 10  # of a document, in two sections
PASSAGES_PER_SECTION = 8  # of ``document``
DISTINCT = 16_381  # vectors; the vector of a text is that of its number modulo this


def snippets_of(
    random: np.random.Generator, count: int = 4096, words: int = 50, vocabulary: int = 30_000
) -> list[str]:
    """Texts of made-up words, whose frequency is about inverse to their rank, as in a language."""
    spelled = [
        "".join(random.choice([*"etaoinshrdlcumwfgypb"], random.integers(2, 11)))
        for _ in range(vocabulary)
    ]
    weights = 1 / (np.arange(vocabulary) + 2.7)
    drawn = random.choice(np.array(spelled), (count, words), p=weights / weights.sum())
    return [" ".join(row) for row in drawn.tolist()]


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
            nodes.append(
                Node(PASSAGE, f"{snippets[17 * passage % len(snippets)]} {passage}", section)
            )
        yield StructuredDocument(f"d{number}", tuple(nodes))


def document(number: int, count: int, words: int, *, flat: bool) -> StructuredDocument:
    """A document with so many passages, eight to a section, or all in one (``flat``)."""
    random = np.random.default_rng([number, count])
    nodes = [Node(SECTION, "array functions", NO_PARENT)]
    section = 0
    for place in range(count):
        if not flat and place % PASSAGES_PER_SECTION == 0:
            section = len(nodes)
            nodes.append(Node(SECTION, f"section {place // PASSAGES_PER_SECTION}", 0))
        nodes.append(Node(PASSAGE, random_text(random, words), section))
    return StructuredDocument(f"d{number}", tuple(nodes))


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
