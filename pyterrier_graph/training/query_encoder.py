"""Training of a query encoder for contextual passages that stay as they are."""

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from pyterrier_graph.models.gnn_encoder import in_batch_loss
from pyterrier_graph.training.masked_graph import LossQueries
from pyterrier_graph.training.masked_graph_model import encoded


class QueryEncoderModel(nn.Module):
    """A query encoder that learns to find contextual passages (000, Sect. 4.3)."""

    def __init__(self, encoder: SentenceTransformer, scale: float) -> None:
        super().__init__()
        self.encoder, self.scale = encoder, scale

    def forward(self, texts: list[str], passages: Tensor, positives: Tensor) -> dict[str, Tensor]:
        """Eq. 12 of 000 in Eq. 2: ``{'loss': ...}``, of queries and fixed h'_p of their positives and negatives."""
        queries = encoded(self.encoder, texts, "query")
        return {"loss": in_batch_loss(queries, passages, positives, scale=self.scale)}


class QueryCollator:
    """Makes batches of queries and the contextual vectors h'_p of passages, shape (passages, d)."""

    def __init__(self, queries: LossQueries, vectors: np.ndarray) -> None:
        self.queries, self.vectors = queries, vectors

    def __call__(self, rows: Sequence[int]) -> dict[str, object]:
        """The batch of some queries."""
        passages, positives = self.queries.passages(np.asarray(rows))
        vectors = torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32))
        return {"texts": [self.queries.texts[row] for row in rows], "passages": vectors, "positives": positives}
