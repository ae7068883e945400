"""Why a passage was found: what each part of a search adds to its score."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pyterrier_graph.folders.snippets import content_stems, stems
from pyterrier_graph.graphs.ids import numbers_of
from pyterrier_graph.retrieve.contextual_index import ContextualIndex
from pyterrier_graph.retrieve.hybrid import Hybrid
from pyterrier_graph.retrieve.index_identity import identity_of


def reasons(found: pd.DataFrame, question: str, index: ContextualIndex, hybrid: Hybrid | None) -> list[str]:
    """A text per result: the parts that add up to its score, and the words of the question that its titles have."""
    similarity = similarities(found["docno"].tolist(), question, index)
    if hybrid is not None:
        parts = hybrid.explain(question).set_index("docno").reindex(found["docno"])[["part_1", "part_2"]]
    wanted, texts = content_stems(question), []
    for place, (title, (_, row)) in enumerate(zip(found["title"], similarity.iterrows(), strict=True)):
        own, *others = row.items()
        added = "".join(
            f" {'+' if value > 0 else '-'} {name} {abs(value):.2f}" for name, value in others if abs(value) >= 0.005
        )
        text = f"similarity {row.sum():.2f}" + (f" = {own[0]} {own[1]:.2f}{added}" if added else "")
        if hybrid is not None:
            words, vectors = parts.iloc[place].fillna(0)
            text = f"words {words:.2f} + meaning {vectors:.2f}; {text}"
        shared = [word for word in dict.fromkeys(title.split()) if wanted.intersection(stems(word))]
        texts.append(text + (f"; title has {', '.join(word.strip('.,:;()') for word in shared)}" if shared else ""))
    return texts


def similarities(docnos: list[str], question: str, index: ContextualIndex) -> pd.DataFrame:
    """What passages, and each relation of theirs, add to the similarity with a question: a column each."""
    ids, vectors, _ = index.flex.payload()
    encoded = index.query_encoder().transform(pd.DataFrame({"qid": ["1"], "query": [question]}))
    query = np.asarray(encoded["query_vec"].iloc[0], dtype=np.float32)
    names = ["passage", *identity_of(index.flex)["relations"]]
    products = np.asarray(vectors[numbers_of(ids, docnos)], dtype=np.float32) * query
    return pd.DataFrame(products.reshape(len(docnos), len(names), -1).sum(2), columns=names)
