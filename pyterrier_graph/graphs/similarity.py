"""Similarity of texts by their words."""

import numpy as np


def most_similar(texts: list[str], k: int) -> np.ndarray:
    """For each text the k others that are most similar, where they share a word at all; shape (pairs, 2)."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.neighbors import NearestNeighbors

    k = min(k, len(texts) - 1)
    if k < 1:
        return np.empty((0, 2), dtype=np.int64)
    # hashing, since it takes texts without any words
    counts = HashingVectorizer(n_features=1 << 18, alternate_sign=False, norm=None).transform(texts)
    vectors = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    distance, neighbor = NearestNeighbors(metric="cosine").fit(vectors).kneighbors(n_neighbors=k)
    row, column = np.nonzero(distance < 1)
    return np.stack([row, neighbor[row, column]], axis=1)
