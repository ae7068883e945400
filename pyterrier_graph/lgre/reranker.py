"""LGReReranker: the latent graph recurrent network in a pipeline."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from pyterrier_graph.encoders.checkpoints import (
    SAFE_WEIGHTS,
    DType,
    loading,
    precision,
    score_in_full_precision,
)
from pyterrier_graph.lgre.cross_encoder import TextReranker
from pyterrier_graph.lgre.equations import LGRe, LGReConfig
from pyterrier_graph.lgre.losses import mean_words
from pyterrier_graph.lgre.training import Batch, LGReTraining

ENCODER = "encoder"
WEIGHTS = "lgre.safetensors"


@dataclasses.dataclass(frozen=True)
class LearnedWordGraph:
    """The word graph of a query and a document.

    Row i of each layer's ``adjacency`` holds the weights with which word i aggregates from each word. They add up to 1;
    words that are not linked have 0.
    """

    tokens: list[str]  # the word pieces, special tokens included
    # 0 for the query's words, 1 for the document's, -1 for special tokens; shape (tokens,)
    segments: np.ndarray
    layers: tuple[int, ...]  # the hidden states that have a graph
    adjacency: np.ndarray  # shape (layers, tokens, tokens)
    score: float  # of the pair


class LGReReranker(TextReranker):
    """Reranks documents by a cross-encoder whose word states are refined on a graph of query and document words.

    .. cite:: dong2021lgre
        :citation: Dong and Niu. Latent graph recurrent network for document ranking. DASFAA 2021.
        :link: https://doi.org/10.1007/978-3-030-73197-7_6

    On a cross-encoder the model starts at the scores of the cross-encoder. On any other encoder scores are random
    before training. :meth:`fit` trains on pairs of documents of a query: a relevant one and a less relevant one. The
    score of a row does not depend on the other rows.

    A document is cut at ``max_tokens``. To use the whole document, split it into passages and take the best one. Such a
    pipeline can be trained with judgments of documents, because passages are recognized by their ids (``docno%pN``)::

        passages = pt.text.sliding(text_attr="text", length=150, stride=75, prepend_attr=None)
        bm25 >> pt.text.get_text(dataset) >> passages >> lgre >> pt.text.max_passage()

    Args:
        encoder: Name or folder of a checkpoint: a cross-encoder (a model for sequence classification), or any encoder.
        config: Shape of the model; :meth:`LGReConfig.paper` returns the paper's.
        training: Options of :meth:`fit`; :meth:`LGReTraining.paper` returns the paper's.
        max_tokens: Maximum number of tokens of query and document together, or as many as the encoder can read if
            these are fewer. The longer text is cut.
        batch_size: Documents scored at once.
        device: Name of a torch device; by default a GPU if there is one.
        dtype: The precision of the network in scoring and training; see :mod:`~pyterrier_graph.encoders.checkpoints`.
        verbose: Whether to show progress.

    Columns in: ``qid, query, docno, text``; a document's text may be empty, and one row of a query has the query's.
    Columns out: those, with new ``score`` and ``rank``.

    Raises:
        IndexError: If the encoder lacks a layer of the configuration.
        ValueError: If the encoder is not a cross-encoder although ``config.init`` is ``'identity'``.
    """

    schematic = {"label": "LGRe", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "lgre"
    TRAINING = LGReTraining

    def __init__(
        self,
        encoder: str | os.PathLike[str],
        *,
        config: LGReConfig | None = None,
        training: LGReTraining | None = None,
        max_tokens: int = 512,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(encoder, training, max_tokens, batch_size, device, dtype, verbose)
        self.config = config or LGReConfig()
        with_head = self._is_cross_encoder and self.config.init != "random"
        with torch.random.fork_rng(), loading(self.encoder):
            torch.manual_seed(self.config.seed)
            kind = AutoModelForSequenceClassification if with_head else AutoModel
            model = kind.from_pretrained(self.checkpoint, **SAFE_WEIGHTS)
            if with_head:
                score_in_full_precision(model)
            self.network = LGRe(model, self.config).eval()
        self.random_start = self.network.config.init == "random"
        self.network.to(self._device)

    def _scores_of(self, batch: Batch) -> Tensor:
        return self.network(**batch).scores

    def word_graph(self, query: str, text: str) -> LearnedWordGraph:
        """The word graph of a query and the text of a document, for :func:`~pyterrier_graph.show.plots.word_graph`."""
        batch = self._tokens([query], [text])
        with torch.inference_mode(), precision(self.dtype, self._device):
            output = self.network(**batch, adjacency=True)
        assert output.adjacency is not None
        ids = batch["input_ids"][0].tolist()
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        return LearnedWordGraph(
            tokens=list(tokens),
            segments=batch["segments"][0].cpu().numpy(),
            layers=self.network.layers,
            adjacency=output.adjacency[0].float().cpu().numpy(),
            score=output.scores.item(),
        )

    def representations(self, inp: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Representations of the query and of the document in each row of a run (the paper's Fig. 5).

        They are the means of unit-length word states of the last layer. Their dot product is the similarity that the
        distances of the loss compare (Eq. 13). The paper draws them by t-SNE, as ``sklearn.manifold.TSNE`` does.

        Returns:
            The vectors of queries and of documents, both of shape (rows, d).
        """
        inp = self._checked(inp)

        def means(batch: Batch) -> Tensor:
            states = self.network(**batch).states  # (batch, tokens, d)
            query, document = mean_words(states, batch["segments"])  # (batch, d) each
            return torch.stack([query, document], 1)

        queries, documents = self._texts(inp)
        vectors = self._compute(means, queries, documents)  # (rows, 2, d)
        return vectors[:, 0], vectors[:, 1]

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.encoder.save_pretrained(folder / ENCODER)
        self.tokenizer.save_pretrained(folder / ENCODER)
        weights = {}
        for name, tensor in self.network.state_dict().items():
            if not name.startswith("encoder."):
                weights[name] = tensor
        save_file(weights, folder / WEIGHTS)
        return {"config": dataclasses.asdict(self.network.config)}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        config = LGReConfig(**about["config"])
        reranker = cls(folder / ENCODER, config=config, **options)
        reranker.network.load_state_dict(load_file(folder / WEIGHTS), strict=False)
        return reranker
