"""LGReReranker: the latent graph recurrent network in a pipeline."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.pair_tokenizer import PairTokenizer
from pyterrier_graph.models.lgre import (
    Gate,
    Init,
    LGRe,
    LGReConfig,
    Pooling,
    Readout,
    SelfLoops,
    SpecialTokens,
    WordGraph,
)
from pyterrier_graph.rerank.text_reranker import TextReranker, check_length
from pyterrier_graph.training.pairs import LGReTraining, PairModel

SIDES = ("query", "document")
ENCODER = "encoder"
WEIGHTS = "lgre.safetensors"


@dataclasses.dataclass(frozen=True)
class LearnedWordGraph:
    """The word graph of a query and a document, as :meth:`pyterrier_graph.LGReReranker.explain` returns it.

    Attributes:
        tokens: The word pieces, special tokens included.
        segments: 0 for the query's words, 1 for the document's, -1 for special tokens; shape (tokens,).
        layers: The hidden states that have a graph.
        adjacency: How much word i hears from word j in each of them, shape (layers, tokens, tokens); rows add up to 1,
            and words that are not linked have 0.
        layer_scores: s_l, shape (layers,).
        score: The pair's score.
    """

    tokens: list[str]
    segments: np.ndarray
    layers: tuple[int, ...]
    adjacency: np.ndarray
    layer_scores: np.ndarray
    score: float


class LGReReranker(TextReranker):
    """Reranks documents by a cross-encoder whose word states are refined on a graph of query and document words.

    .. cite:: dong2021lgre
        :citation: Dong and Niu. Latent graph recurrent network for document ranking. DASFAA 2021.
        :link: https://doi.org/10.1007/978-3-030-73197-7_6

    Long documents are cut at ``max_length``; to read all of them, rank them by their best passage::

        passages = pt.text.sliding(text_attr="text", length=150, stride=75, prepend_attr=None)
        bm25 >> pt.text.get_text(dataset) >> passages >> lgre >> pt.text.max_passage()

    As passages are recognized by their ids (``docno%pN``), such a pipeline can be trained with judgments of documents.

    Args:
        model: Hugging Face id or folder: any encoder, or a cross-encoder (a model for sequence classification).
        words: Which words are linked: ``'full'``, ``'bipartite'`` (Eq. 4) or ``'bipartite+neighbor'`` (Eq. 5).
        radius: How far apart two words of the document may be to be neighbors.
        layers: Hidden states that have a graph, 0 being the embeddings and -1 the last; None takes all.
        steps: Steps of propagation.
        init: ``'random'`` as the authors have it, or ``'identity'``, which starts at the scores of a cross-encoder with
            one label, for small training sets.
        gate: See :class:`~pyterrier_graph.models.lgre.LGReConfig`, as for all down to ``dropout``.
        readout: Likewise.
        pooling: Likewise.
        special_tokens: Likewise.
        self_loops: Likewise.
        per_layer: Likewise.
        dropout: Likewise.
        training: Options of :meth:`fit`.
        batch_size: Documents scored at once.
        max_length: Tokens of query and document together; the longer of the two is cut.
        text_field: Column of the document's text.
        seed: Seed of the initial weights.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Columns: see :meth:`transform`.

    Raises:
        ValueError: If an option is unknown, the encoder does not read ``max_length`` tokens, or ``init='identity'`` is
            asked for without a cross-encoder.
    """

    schematic = {"label": "LGRe", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "lgre"

    def __init__(
        self,
        model: str | os.PathLike[str] = "bert-base-uncased",
        words: WordGraph = "bipartite+neighbor",
        *,
        radius: int = 1,
        layers: Sequence[int] | None = None,
        steps: int = 2,
        init: Init = "random",
        gate: Gate = "ggnn",
        readout: Readout = "gated",
        pooling: Pooling = "mean",
        special_tokens: SpecialTokens = "alone",
        self_loops: SelfLoops = "all",
        per_layer: bool = True,
        dropout: float = 0.1,
        training: LGReTraining | None = None,
        batch_size: int = 32,
        max_length: int = 512,
        text_field: str = "text",
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            batch_size=batch_size,
            max_length=max_length,
            text_field=text_field,
            seed=seed,
            device=device,
            verbose=verbose,
        )
        self.words = words
        self.radius = radius
        self.layers = layers
        self.steps = steps
        self.init = init
        self.gate = gate
        self.readout = readout
        self.pooling = pooling
        self.special_tokens = special_tokens
        self.self_loops = self_loops
        self.per_layer = per_layer
        self.dropout = dropout
        self.training: LGReTraining = training or LGReTraining()
        config = LGReConfig(
            word_graph=words,
            radius=radius,
            special_tokens=special_tokens,
            self_loops=self_loops,
            layers=None if layers is None else tuple(layers),
            per_layer=per_layer,
            steps=steps,
            gate=gate,
            readout=readout,
            pooling=pooling,
            dropout=dropout,
            init=init,
        )
        self.tokenizer = PairTokenizer(self.model, max_length)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            encoder = _cross_encoder(self.model) if init == "identity" else _encoder(self.model)
            check_length(self.model, max_length, self.tokenizer, encoder.config)
            self.network = LGRe(encoder, config).eval()
        self.network.to(device_of(device))

    def __repr__(self) -> str:
        return f"LGReReranker({checkpoint_name(self.model)!r}, {self.words!r})"

    @property
    def config(self) -> LGReConfig:
        """Shape of what is on top of the encoder."""
        return self.network.config

    @property
    def encoder(self) -> PreTrainedModel:
        """What is below word graphs and, with ``init='identity'``, below the cross-encoder's head."""
        return cast(PreTrainedModel, self.network.encoder.base_model)

    def _sizes(self) -> dict[str, Any]:
        layers = ", ".join(str(layer) for layer in self.network.layers)
        return {"word graph": f"{self.words}, of hidden states {layers}", "steps": self.steps}

    def _explanations(self) -> list[str]:
        return ["plots.word_graph(reranker.explain(query, text))", "plots.state_map(reranker.states(run), qrels)"]

    def _scores(self, batch: dict[str, Tensor]) -> Tensor:
        return self.network(**batch).scores

    def _learner(self) -> PairModel:
        return PairModel(self.network, self.training.loss)

    def _shape(self) -> dict[str, Any]:
        return dataclasses.asdict(self.config) | {"layers": list(self.network.layers)}

    def explain(self, query: str, text: str) -> LearnedWordGraph:
        """The word graph of a query and a document (the paper's Fig. 4), for :func:`pyterrier_graph.plots.word_graph`.

        Args:
            query: The query.
            text: The document.

        Raises:
            ValueError: If the query is empty, or one of them is not a text.
        """
        pair = pd.DataFrame({"qid": ["1"], "query": query, "docno": "1", self.text_field: text})
        batch = self._tokens(*self._texts(pair))
        with torch.inference_mode():
            output = self.network(**batch, adjacency=True)
        assert output.adjacency is not None
        return LearnedWordGraph(
            self.tokenizer.tokens(batch["input_ids"][0]),
            batch["segments"][0].cpu().numpy(),
            self.network.layers,
            output.adjacency[0].cpu().numpy(),
            output.layer_scores[0].cpu().numpy(),
            output.scores.item(),
        )

    def states(self, run: pd.DataFrame) -> pd.DataFrame:
        """E^q and E^d, what the distances of Eq. 13 are between, for :func:`pyterrier_graph.plots.state_map` (Fig. 5).

        Both depend on each other, for the encoder reads them together: a query has a state beside each document.

        Args:
            run: As for :meth:`transform`.

        Returns:
            Two rows for each of the run's, with ``qid, docno``, ``side`` (``'query'`` or ``'document'``) and ``state``,
            the mean of its words' last hidden states (zeros where there are no words).

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: As for :meth:`transform`.
        """
        pt.validate.result_frame(run, extra_columns=["query", self.text_field], context=self)
        size = self.encoder.config.hidden_size
        states = {side: np.zeros((len(run), size), dtype=np.float32) for side in SIDES}
        for rows, batch in self._batches(run):
            with torch.inference_mode():
                output = self.network(**batch)
            for number, side in enumerate(SIDES):
                words = (batch["segments"] == number).float()
                share = words / words.sum(1, keepdim=True).clamp(min=1)
                states[side][rows] = torch.einsum("bt,btd->bd", share, output.states).cpu().numpy()
        parts = [run[["qid", "docno"]].assign(side=side, state=list(states[side])) for side in SIDES]
        return pd.concat(parts, ignore_index=True)

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.encoder.save_pretrained(folder / ENCODER)
        self.tokenizer.save(folder / ENCODER)
        weights = self.network.state_dict().items()
        own = {name: tensor.contiguous() for name, tensor in weights if not name.startswith("encoder.")}
        save_file(own, folder / WEIGHTS)
        return {"config": dataclasses.asdict(self.config)}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> LGReReranker:
        shape = dict(about["config"])
        reranker = cls(folder / ENCODER, shape.pop("word_graph"), **shape, **options)
        reranker.network.load_state_dict(load_file(folder / WEIGHTS), strict=False)
        return reranker


def _encoder(model: str) -> PreTrainedModel:
    return AutoModel.from_pretrained(model, dtype=torch.float32)


def _cross_encoder(model: str) -> PreTrainedModel:
    """A model with its score.

    Raises:
        ValueError: If it has none, and one would have to be invented.
    """
    if not any("ForSequenceClassification" in name for name in AutoConfig.from_pretrained(model).architectures or ()):
        raise ValueError(
            f"init='identity' starts at the scores of a cross-encoder, but {model!r} has no trained score: "
            "use a cross-encoder, or init='random'"
        )
    return AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
