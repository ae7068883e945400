"""LGReReranker: the latent graph recurrent network in a pipeline."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from pyterrier_graph.artifacts import kind_of, read_meta, writing
from pyterrier_graph.models.lgre import (
    Gate,
    Init,
    LGRe,
    LGReConfig,
    LGReOutput,
    Pooling,
    Readout,
    SelfLoops,
    SpecialTokens,
    WordGraph,
)
from pyterrier_graph.rerank.base import query_texts, ranked
from pyterrier_graph.rerank.evaluation import RunEvaluator, judged, judged_ids
from pyterrier_graph.tokens.pairs import PairTokenizer
from pyterrier_graph.training.pairs import LGReTraining, PairCollator, PairModel, QueryPairs
from pyterrier_graph.training.trainer import train

SIDES = ("query", "document")


@dataclasses.dataclass(frozen=True)
class LearntWordGraph:
    """The word graph of a query and a document, as :meth:`LGReReranker.explain` returns it.

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


class LGReReranker(pt.Estimator, pt.Artifact):
    """Reranks documents by a cross-encoder whose word states are refined on a graph of query and document words.

    .. cite.dblp:: conf/dasfaa/DongN21

    Long documents are cut at ``max_length``; to read all of them, rank them by their best passage::

        passages = pt.text.sliding(text_attr="text", length=150, stride=75, prepend_attr=None)
        bm25 >> pt.text.get_text(dataset) >> passages >> lgre >> pt.text.max_passage()

    As passages are recognised by their ids (``docno%pN``), such a pipeline can be trained with judgments of documents.

    Args:
        model: Hugging Face id or folder: any encoder, or a cross-encoder (a model for sequence classification).
        words: Which words are linked: ``'full'``, ``'bipartite'`` (Eq. 4) or ``'bipartite+neighbor'`` (Eq. 5).
        radius: How far apart two words of the document may be to be neighbours.
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
    ARTIFACT_TYPE = "reranker"
    ARTIFACT_FORMAT = "lgre"
    ARTIFACT_PACKAGE_HINT = "pyterrier_graph"
    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    FORMAT_VERSION = 1

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
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.model = str(model)
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
        self.training = training or LGReTraining()
        self.batch_size = batch_size
        self.max_length = max_length
        self.text_field = text_field
        self.seed = seed
        self.device = device
        self.verbose = verbose
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
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
            limit = min(self.tokenizer.limit, getattr(encoder.config, "max_position_embeddings", max_length))
            if max_length > limit:
                raise ValueError(f"{self.model!r} reads at most {limit} tokens: max_length={max_length} is more")
            self.network: LGRe = LGRe(encoder, config).eval()
        self.network.to(_device(device))

    def __repr__(self) -> str:
        return f"LGReReranker({self.model!r}, {self.words!r})"

    @property
    def config(self) -> LGReConfig:
        """Shape of what is on top of the encoder."""
        return self.network.config

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores documents anew; a score does not depend on the other rows.

        Args:
            inp: ``qid, query, docno`` and the column with the text. An empty text is scored as such. The query's may
                stand in some of its rows only.

        Returns:
            The rows with new ``score`` and ``rank``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If a query is empty, or it or a document's text is not a text.
        """
        pt.validate.result_frame(inp, extra_columns=["query", self.text_field], context=self)
        scores = np.zeros(len(inp))
        for rows, output, _ in self._outputs(inp):
            scores[rows] = output.scores.cpu().numpy()
        return ranked(inp, scores, self)

    def _outputs(self, run: pd.DataFrame) -> Iterator[tuple[np.ndarray, LGReOutput, Tensor]]:
        """Batch by batch, documents of similar length together: rows, what the model says of them, and segments."""
        queries, documents = self._texts(run)
        lengths = np.array([len(query) + len(document) for query, document in zip(queries, documents, strict=True)])
        order = np.argsort(-lengths, kind="stable")
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        for rows in pt.tqdm(batches, desc="LGRe", unit="batch", disable=not self.verbose):
            output, batch = self._compute([queries[row] for row in rows], [documents[row] for row in rows])
            yield rows, output, batch["segments"]

    def _compute(
        self, queries: Sequence[str], documents: Sequence[str], **options: bool
    ) -> tuple[LGReOutput, dict[str, Tensor]]:
        device = _device(self.device)
        batch = {name: tensor.to(device) for name, tensor in self.tokenizer(queries, documents).items()}
        with torch.inference_mode():
            return self.network(**batch, **options), batch

    def _texts(self, run: pd.DataFrame) -> tuple[list[str], list[str]]:
        """Query and document of each row."""
        queries = query_texts(run).reindex(run["qid"]).tolist() if len(run) else []
        documents = run[self.text_field].tolist()
        for docno, document in zip(run["docno"], documents, strict=True):
            if not isinstance(document, str):
                raise ValueError(f"document {docno!r} has no text in column {self.text_field!r}: {document!r}")
        return queries, documents

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> LGReReranker:
        """Trains on pairs of a relevant and a less relevant document among those of a query (Sect. 3.3).

        Of passages (``docno%pN``), judgments of documents hold for all of a document's passages, and on the validation
        queries documents are ranked by their best one; unless passages are judged.

        Args:
            topics_or_res_tr: Training queries with their documents, as for :meth:`transform`.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries with their documents: the weights that are best on them are kept.
            qrels_va: Judgments for them.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If there is nothing to learn from, or ``training.output_dir`` holds another training.
        """
        options = self.training
        pt.validate.result_frame(topics_or_res_tr, extra_columns=["query", self.text_field], context=self)
        quality = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            pt.validate.result_frame(topics_or_res_va, extra_columns=["query", self.text_field], context=self)
            quality = self._quality(*judged(topics_or_res_va, qrels_va, self))
        run, qrels = judged(topics_or_res_tr, qrels_tr, self)
        run = run.drop_duplicates(["qid", "docno"])
        queries, documents = self._texts(run)
        labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
        judgments = pd.MultiIndex.from_arrays([run["qid"], judged_ids(run["docno"], qrels)])
        label = labels.reindex(judgments, fill_value=0).to_numpy()
        pairs = QueryPairs(run["qid"].factorize()[0], label, options.pairs_per_epoch, options.seed)
        examples = pd.DataFrame({"query": queries, "document": documents, "label": label})
        identity = {
            "config": dataclasses.asdict(self.config) | {"layers": list(self.network.layers)},
            "seed": self.seed,
            "model": self.model,
            "max_length": self.max_length,
            "examples": hashlib.sha256(pd.util.hash_pandas_object(examples).to_numpy().tobytes()).hexdigest(),
        }
        device = _device(self.device)
        encoder = list(self.network.encoder.parameters())
        others = [p for name, p in self.network.named_parameters() if not name.startswith("encoder.")]
        rates = [(others, options.learning_rate)]
        self.network.encoder.requires_grad_(options.encoder_learning_rate is not None)
        if options.encoder_learning_rate is not None:
            rates.append((encoder, options.encoder_learning_rate))
        self.training_log = train(
            PairModel(self.network, options.loss),
            pairs,
            PairCollator(self.tokenizer, queries, documents),
            options,
            rates=rates,
            quality=quality,
            identity=identity,
            device=device,
            verbose=self.verbose,
        )
        self.network.to(device).eval()
        if any(not torch.isfinite(parameter).all() for parameter in self.network.parameters()):
            raise ValueError("training diverged: the weights are not finite; try smaller learning rates")
        return self

    def _quality(self, run: pd.DataFrame, qrels: pd.DataFrame) -> Callable[[], float]:
        """Measures the model as it is on validation queries."""
        evaluate = RunEvaluator(self.training.measure, qrels)
        ids = judged_ids(run["docno"], qrels)

        def quality() -> float:
            scored = self.transform(run).assign(docno=ids)
            return evaluate(scored.groupby(["qid", "docno"], sort=False, as_index=False)["score"].max())

        return quality

    def explain(self, query: str, text: str) -> LearntWordGraph:
        """The word graph of a query and a document (the paper's Fig. 4), for :func:`pyterrier_graph.plots.word_graph`.

        Args:
            query: The query.
            text: The document.

        Raises:
            ValueError: If the query is empty, or one of them is not a text.
        """
        pair = pd.DataFrame({"qid": ["1"], "query": query, "docno": "1", self.text_field: text})
        output, batch = self._compute(*self._texts(pair), adjacency=True)
        assert output.adjacency is not None
        return LearntWordGraph(
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
            Two rows for each of the run's: ``qid, docno``, ``side`` (``'query'`` or ``'document'``) and ``state``, the
            mean of its words' last hidden states (zeros where there are no words).

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: As for :meth:`transform`.
        """
        pt.validate.result_frame(run, extra_columns=["query", self.text_field], context=self)
        size = self.network.encoder.config.hidden_size
        states = {side: np.zeros((len(run), size), dtype=np.float32) for side in SIDES}
        for rows, output, segments in self._outputs(run):
            for number, side in enumerate(SIDES):
                words = (segments == number).float()
                share = words / words.sum(1, keepdim=True).clamp(min=1)
                states[side][rows] = torch.einsum("bt,btd->bd", share, output.states).cpu().numpy()
        parts = [run[["qid", "docno"]].assign(side=side, state=list(states[side])) for side in SIDES]
        return pd.concat(parts, ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> LGReReranker:
        """Writes the model as an artifact: weights in safetensors, configuration in JSON, the encoder beside it.

        Raises:
            FileExistsError: If something lies at ``path``.
        """
        import pyterrier_graph

        meta = kind_of(self) | {
            "version": pyterrier_graph.__version__,
            "model": self.model,
            "config": dataclasses.asdict(self.config),
            "max_length": self.max_length,
            "text_field": self.text_field,
            "seed": self.seed,
            "sha256": self._fingerprint(),
        }
        with writing(path, meta) as folder:
            self.network.encoder.save_pretrained(folder / "encoder")
            self.tokenizer.save(folder / "encoder")
            weights = self.network.state_dict().items()
            own = {name: tensor.contiguous() for name, tensor in weights if not name.startswith("encoder.")}
            save_file(own, folder / "lgre.safetensors")
        self.path = Path(path)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> LGReReranker:
        """Reads what :meth:`save` wrote; it scores as before.

        Args:
            path: The artifact's folder.
            **options: Those of the constructor that do not shape the model, such as ``device`` or ``batch_size``.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If it is damaged, or of another kind.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        kept = {"max_length": meta["max_length"], "text_field": meta["text_field"]}
        shape = dict(meta["config"])
        words = shape.pop("word_graph")
        try:
            reranker = cls(folder / "encoder", words, seed=meta["seed"], **shape, **kept | options)
            reranker.network.load_state_dict(load_file(folder / "lgre.safetensors"), strict=False)
        except SafetensorError as error:
            raise ValueError(f"{str(folder)!r} is damaged: {error}") from error
        if reranker._fingerprint() != meta["sha256"]:
            raise ValueError(f"{str(folder)!r} is damaged: its weights are not those that were saved")
        reranker.model = meta["model"]
        reranker.path = folder
        return reranker

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def apply_attributes(self, **attributes: Any) -> LGReReranker:
        """A copy with other attributes, as ``pt.inspect`` asks for; one of another shape or length starts anew."""
        if attributes.keys() <= {"training", "batch_size", "text_field", "device", "verbose"}:
            twin = copy.copy(self)
            vars(twin).update(attributes)
            twin.network = copy.deepcopy(self.network).to(_device(twin.device))
            return twin
        names = [attribute.name for attribute in pt.inspect.transformer_attributes(self)]
        return type(self)(**{name: getattr(self, name) for name in names} | attributes)


def _device(name: str | None) -> torch.device:
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


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
