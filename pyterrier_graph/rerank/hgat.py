"""HGATReranker: heterogeneous graph attention in a pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pyterrier_graph.artifacts import OwnArtifact, check_vacant, kind_of, read_meta, weights_sha256, writing
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.token_encoder import TokenEncoder, open_encoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import PASSAGE_TYPE
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.relations import check_paths, follow
from pyterrier_graph.models.hgat import HGAT, Aggregation, Framework, HGATConfig, Init, Variant
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.plots.model_html import parameters, reranker_html, training_calls, training_sizes
from pyterrier_graph.rerank.base import FreshTokens, GraphReranker, QueryPassages, check_tokens
from pyterrier_graph.training.learned_model import origin_of
from pyterrier_graph.training.options import HGATTraining
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.triple_draws import draw_triples
from pyterrier_graph.training.triples import Examples, TripleCollator, TripleModel
from pyterrier_graph.training.validation import RunEvaluator, judged

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

PAPER_RELATIONS = (
    "order",
    "order_i",
    "structural",
    "structural_i",
    "internal",
    "internal_i",
    "external",
    "external_i",
)


class HGATReranker(GraphReranker, OwnArtifact):
    """Reranks passages by their representation in the context of a graph.

    .. cite:: albarede2023hgat
        :citation: Albarede et al. Heterogeneous graph attention networks for passage retrieval. Information Retrieval
            Journal 26, 2023.
        :link: https://doi.org/10.1007/s10791-023-09424-3

    A passage is encoded into one vector per token; three layers of attention let it listen to what it is related to
    (the next passage, its section, a claim it refers to, a document it cites); MaxSim compares the outcome with the
    query.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        variant: ``BASE``, ``NO``, ``LB``, ``NS``, ``NO_LB``, ``NO_NS``, ``LB_NS`` or ``NO_LB_NS`` (paper: Table 1).
        framework: ``'standard'`` (Eq. 4) or ``'late'`` (Eq. 5); by default Table 2's for the variant.
        layers: Number of layers.
        heads: Attention heads; they must divide the length of a token vector.
        dropout: Dropout on attention weights in training.
        init: ``'random'`` as in the paper; ``'identity'`` starts at plain MaxSim of the encoder, for small training
            sets.
        aggregation: ``'sum'`` over neighbors as in Eq. 1, or the ``'mean'`` over those of each relation.
        slots: Empty rows in every passage's matrix, to hold what neighbors say beside what it says itself; 0 as in
            the paper.
        relations: Relations to listen through, or paths of them (``'structural/structural'``: the section's section)
            which are then heard in one hop; by default all of the graph's relations.
        tokens: Stored token vectors of the graph's nodes; without them texts are encoded as they come.
        contextualized: What :meth:`contextualize` stored for these weights: reranking is then a look-up and a MaxSim.
        training: Options of :meth:`fit`.
        batch_size: Passages contextualized at once.
        seed: Seed of the initial weights.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Columns: see :meth:`transform`.

    Raises:
        ValueError: If an option is unknown, the heads do not divide the dimension, ``tokens`` are of another encoder,
            or ``contextualized`` of other weights.
    """

    schematic = {"label": "HGAT", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "reranker"
    ARTIFACT_FORMAT = "hgat"
    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    GIVEN = ("graph",)

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = "colbert-ir/colbertv2.0",
        variant: Variant = "NO_LB",
        *,
        framework: Framework | None = None,
        layers: int = 3,
        heads: int = 8,
        dropout: float = 0.7,
        init: Init = "random",
        aggregation: Aggregation = "sum",
        slots: int = 0,
        relations: Sequence[str] | None = None,
        tokens: TokenStore | None = None,
        contextualized: TokenStore | None = None,
        training: HGATTraining | None = None,
        batch_size: int = 64,
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.graph = graph
        self.encoder = open_encoder(encoder, device)
        self.variant = variant
        self.framework = framework
        self.layers = layers
        self.heads = heads
        self.dropout = dropout
        self.init = init
        self.aggregation = aggregation
        self.slots = slots
        self.relations = tuple(relations or (graph.relations if graph is not None else PAPER_RELATIONS))
        self.tokens = tokens
        self.training = training or HGATTraining()
        self.batch_size = batch_size
        self.seed = seed
        self.device = device
        self.verbose = verbose
        config = HGATConfig(
            dimension=self.encoder.dimension,
            relations=self.relations,
            variant=variant,
            framework=framework,
            layers=layers,
            heads=heads,
            dropout=dropout,
            positions=self.encoder.max_passage_tokens,
            init=init,
            aggregation=aggregation,
            slots=slots,
        )
        if graph is not None:
            check_paths(graph, self.relations)
        check_tokens(tokens, self.encoder, graph)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model: HGAT = HGAT(config).eval()
        self.model.to(self._device)
        self.contextualized = contextualized

    def __repr__(self) -> str:
        return f"HGATReranker({self.graph!r}, {self.encoder!r}, {self.variant!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = {
            "model": f"{self.config.name}, layers: {self.layers}, heads: {self.heads}",
            "relations": ", ".join(self.relations),
            "parameters": parameters(self.model),
            "encoder": f"{self.encoder.name}, {self.encoder.dimension} dimensions",
            "graph": "of each query's candidates" if self.graph is None else repr(self.graph),
            "contextualized": "no" if self.contextualized is None else repr(self.contextualized),
        }
        calls = training_calls(self)
        if self.graph is not None and self.contextualized is None:
            calls.append("reranker.contextualized = reranker.contextualize(path)")
        calls.append("plots.relation_weights(reranker.relation_weights())")
        calls.append("plots.contributions(reranker.explain(query, docno))")
        return reranker_html(self, sizes | training_sizes(self), calls)

    @property
    def _device(self) -> torch.device:
        return device_of(self.device)

    @property
    def config(self) -> HGATConfig:
        """Shape of the model."""
        return self.model.config

    @property
    def contextualized(self) -> TokenStore | None:
        """What :meth:`contextualize` stored for these weights and this graph."""
        return self._contextualized

    @contextualized.setter
    def contextualized(self, store: TokenStore | None) -> None:
        if store is not None:
            if self.graph is None or store.meta.get("graph_sha256") != self.graph.fingerprint():
                raise ValueError(f"{store!r} holds representations of other passages than those of {self.graph!r}")
            if store.meta.get("model_sha256") != self._fingerprint():
                raise ValueError(f"{store!r} was computed with other weights: contextualize again")
        self._contextualized = store

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        with torch.inference_mode():
            queries = work.queries.to(self._device)
            for nodes, content, in_context in self._in_context(work.graph, work.tokens, np.unique(work.node)):
                rows = np.flatnonzero((work.node >= nodes[0]) & (work.node <= nodes[-1]))
                place = np.searchsorted(nodes, work.node[rows])
                for query, members in pd.Series(work.query[rows]).groupby(work.query[rows]).indices.items():
                    passages = torch.from_numpy(place[members]).to(self._device)
                    relevance = self.model.score(queries[query], content.select(passages), in_context.select(passages))
                    scores[rows[members]] = relevance.cpu().numpy()
        return scores

    def _in_context(
        self, graph: HeteroGraph, tokens: TokenStore | FreshTokens, nodes: np.ndarray
    ) -> Iterator[tuple[np.ndarray, TokenStates, TokenStates]]:
        """Passages chunk by chunk, as encoded and in context."""
        chunks = np.array_split(nodes, max(1, -(-len(nodes) // self.batch_size)))
        for chunk in pt.tqdm(chunks, desc=self.config.name, unit="batch", disable=not self.verbose or len(chunks) < 2):
            if self.contextualized is not None:
                in_context = self.contextualized.states(chunk, self._device)
                late = self.config.framework == "late"
                yield chunk, tokens.states(chunk, self._device) if late else in_context, in_context
                continue
            propagation = self.model.plan(graph, chunk)
            inputs = tokens.states(propagation.nodes, self._device)
            propagation = propagation.to(self._device)
            yield chunk, inputs.select(propagation.inputs), self.model(inputs, propagation)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> HGATReranker:
        """Trains on triples <q, p+, p->, with Adam and pairwise softmax cross-entropy (Sect. 5.2.3).

        Args:
            topics_or_res_tr: Training queries with their passages, as for :meth:`transform`; with ``codes`` of the
                queries where they have some, for ``negatives='shared_codes'`` or ``'mixed'``.
            qrels_tr: Judgments for them: ``qid, docno, label``, docno a passage id.
            topics_or_res_va: Validation queries with their passages: the weights that are best on them are kept.
            qrels_va: Judgments for them.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If no training query is judged, or ``training.output_dir`` holds another training.
        """
        columns = ["query"] if self.graph is not None else ["query", "graph"]
        pt.validate.result_frame(topics_or_res_tr, extra_columns=columns, context=self)
        options = self.training
        quality = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            pt.validate.result_frame(topics_or_res_va, extra_columns=columns, context=self)
            run_va, qrels_va = judged(topics_or_res_va, qrels_va, self)
            evaluate = RunEvaluator(options.measure, qrels_va)
            quality = lambda: evaluate(self.transform(run_va)[["qid", "docno", "score"]])  # noqa: E731
        run, qrels = judged(topics_or_res_tr, qrels_tr, self)
        queries, graphs, triples = draw_triples(run, qrels, self.graph, options)
        stored, self.contextualized = self.tokens, None  # of the weights that now change
        encoder_rate = options.encoder_learning_rate
        learned = encoder_rate is not None
        identity = {
            "config": json.loads(json.dumps(self.config.to_dict())),
            "seed": self.seed,
            # one that learns is in the checkpoint, and may have learned already when training was interrupted
            "encoder": self.encoder.name if learned else self.encoder.fingerprint(),
            "triples": hashlib.sha256(json.dumps(queries).encode() + triples.tobytes()).hexdigest(),
        }
        model = TripleModel(self.model, self.encoder if learned else None, options.frozen_encoder_layers)
        gates = self.model.scalars()
        others = [p for p in self.model.parameters() if all(p is not gate for gate in gates)]
        gate_rate = options.learning_rate if options.scalar_learning_rate is None else options.scalar_learning_rate
        rates = [(others, options.learning_rate), (gates, gate_rate)]
        if encoder_rate is not None:
            self.tokens = None
            rates.append(([p for p in self.encoder.network.parameters() if p.requires_grad], encoder_rate))
        sources = [
            (graph, None if learned else (stored if stored is not None else FreshTokens(graph, self.encoder)))
            for graph in graphs
        ]
        self.training_log = train(
            model,
            Examples(triples),
            TripleCollator(self.model, sources, queries, self.encoder),
            options,
            rates=rates,
            validate=quality,
            identity=identity,
            device=self._device,
            verbose=self.verbose,
        )
        return self

    def contextualize(self, path: str | os.PathLike[str], *, verbose: bool = True) -> TokenStore:
        """Computes the representations of all passages once, so that reranking is a look-up and a MaxSim (Sect. 5.2.2).

        Give the store to :class:`HGATReranker` as ``contextualized`` (or set that attribute).

        Args:
            path: Where the store shall lie.
            verbose: Whether to show progress.

        Raises:
            ValueError: If the reranker has no document graph.
        """
        if self.graph is None:
            raise ValueError("only the passages of a document graph can be contextualized in advance")
        graph = self.graph

        def chunks(tokens: TokenStore) -> Iterator[TokenStates]:
            for nodes in np.array_split(np.arange(graph.num_nodes), max(1, -(-graph.num_nodes // self.batch_size))):
                is_passage = graph.node_type[nodes] == PASSAGE_TYPE
                lengths = torch.zeros(len(nodes), dtype=torch.long)
                values = torch.zeros(0, self.encoder.dimension)
                if is_passage.any():
                    with torch.inference_mode():
                        propagation = self.model.plan(graph, nodes[is_passage])
                        inputs = tokens.states(propagation.nodes, self._device)
                        states = self.model(inputs, propagation.to(self._device)).to("cpu")
                    lengths[torch.from_numpy(is_passage)] = states.lengths
                    values = states.values
                yield TokenStates(values, offsets(lengths))

        about = {"encoder": self.encoder.name, "model": self.config.name, "model_sha256": self._fingerprint()}
        about["graph_sha256"] = graph.fingerprint()
        store = TokenStore(path)
        check_vacant(store.path)
        with tempfile.TemporaryDirectory() as scratch:  # every node is encoded once, and none is kept in memory
            tokens = self.tokens
            if tokens is None:
                tokens = TokenStore(Path(scratch, "tokens")).build(graph, self.encoder, verbose=verbose)
            size = graph.num_nodes, self.encoder.dimension
            return store.write(chunks(tokens), *size, about, task="contextualizing", verbose=verbose)

    def _fingerprint(self) -> str:
        return weights_sha256(self.model, before=self.encoder.fingerprint())

    def relation_weights(self) -> pd.DataFrame:
        """Importance of each relation per layer (the paper's Table 6); columns add up to 1, SELF included."""
        table = pd.DataFrame(self.model.relation_weights()).T
        table.columns = pd.Index([f"layer {number + 1}" for number in table.columns])
        return table.rename_axis("relation")

    def explain(self, query: str, docno: str, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Says which nodes and tokens a score came from.

        With attention weights and lengths of vectors as they are, a score is a sum over the tokens of all texts that
        reached the passage (and over biases, which are no token's): the contributions.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph, where the reranker has none of its own.

        Returns:
            A row per token, with ``node`` (its id), ``relation`` (through which the passage hears the node; ``'SELF'``
            for itself, ``''`` if only through others), ``position``, ``token``, ``contribution``; largest contributions
            first.
        """
        graph = graph if graph is not None else self.graph
        if graph is None:
            raise ValueError("explain needs the graph that the passage is in")
        target = graph.nodes_of([docno])
        propagation = self.model.plan(graph, target)
        tokens = self._fresh_tokens(graph)
        inputs = tokens.states(propagation.nodes, self._device)
        vectors = inputs.values.detach().clone().requires_grad_(True)
        states = inputs.with_values(vectors)
        propagation = propagation.to(self._device)
        vector = self.encoder.encode_queries([query])[0].to(self._device)
        in_context = self.model(states, propagation, linear=True)
        score = self.model.score(vector, states.select(propagation.inputs), in_context)
        # a No self target without neighbors does not depend on any of them
        (gradient,) = torch.autograd.grad(score.sum() + 0 * vectors.sum(), vectors)
        relation_of: dict[int, str] = {}
        for relation in reversed(self.relations):
            relation_of |= dict.fromkeys(follow(graph, target, relation)[1].tolist(), relation)
        relation_of[int(target[0])] = SELF
        nodes = propagation.nodes[inputs.row_index.cpu().numpy()]
        pieces = [self.encoder.tokens(text) if text.strip() else [] for text in tokens.texts(propagation.nodes)]
        return pd.DataFrame(
            {
                "node": graph.ids_of(nodes),
                "relation": [relation_of.get(node, "") for node in nodes.tolist()],
                "position": inputs.position.cpu().numpy(),
                "token": [piece for text in pieces for piece in text],
                "contribution": (gradient * vectors).sum(1).detach().cpu().numpy(),
            }
        ).sort_values("contribution", ascending=False, kind="stable", ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> HGATReranker:
        """Writes the model as an artifact: weights in safetensors, configuration in JSON, the encoder beside it.

        The graph is not part of it: it is given again to :meth:`load`.

        Raises:
            FileExistsError: If something lies at ``path``.
        """
        meta = kind_of(self) | {
            **origin_of(self),
            "config": self.config.to_dict(),
            "seed": self.seed,
            "sha256": self._fingerprint(),
            "encoder": {
                "name": self.encoder.name,
                "sha256": self.encoder.fingerprint(),
                "max_passage_tokens": self.encoder.max_passage_tokens,
                "max_query_tokens": self.encoder.max_query_tokens,
            },
        }
        with writing(path, meta) as folder:
            save_file({k: v.contiguous() for k, v in self.model.state_dict().items()}, folder / "hgat.safetensors")
            self.encoder.network.save(str(folder / "encoder"), create_model_card=False)
        self.path = Path(path)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> HGATReranker:
        """Reads what :meth:`save` wrote; it scores as before.

        Args:
            path: The artifact's folder.
            **options: ``graph``, ``tokens``, ``device`` and others of the constructor that do not shape the model.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If it is damaged, of another kind, or does not fit the encoder that was given.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        about = meta["encoder"]
        encoder = options.pop("encoder", None)
        try:
            weights = load_file(folder / "hgat.safetensors")
            if encoder is None:
                encoder = TokenEncoder(
                    str(folder / "encoder"),
                    max_passage_tokens=about["max_passage_tokens"],
                    max_query_tokens=about["max_query_tokens"],
                    device=options.get("device"),
                )
                encoder.name = about["name"]
        except SafetensorError as error:
            raise ValueError(f"{str(folder)!r} is damaged: {error}") from error
        config = dict(meta["config"])
        dimension, positions = config.pop("dimension"), config.pop("positions")
        if (encoder.dimension, encoder.max_passage_tokens) != (dimension, positions):
            raise ValueError(
                f"the model needs an encoder with {dimension} dimensions and {positions} tokens per passage, "
                f"{encoder!r} has {encoder.dimension} and {encoder.max_passage_tokens}"
            )
        if encoder.fingerprint() != about["sha256"]:
            raise ValueError(f"the model was trained on {about['name']!r}, {encoder!r} has other weights")
        contextualized = options.pop("contextualized", None)
        reranker = cls(encoder=encoder, seed=meta["seed"], **config, **options)
        reranker.model.load_state_dict(weights)
        if reranker._fingerprint() != meta["sha256"]:
            raise ValueError(f"{str(folder)!r} is damaged: its weights are not those that were saved")
        reranker.path = folder
        reranker.contextualized = contextualized
        return reranker

    def apply_attributes(self, **attributes: Any) -> HGATReranker:
        """A copy with other attributes, as ``pt.inspect`` asks for; trained weights are kept where they fit."""
        names = [attribute.name for attribute in pt.inspect.transformer_attributes(self)]
        values = {name: getattr(self, name) for name in names} | attributes
        contextualized = values.pop("contextualized")
        copy = type(self)(**values)
        if copy.config == self.config:
            copy.model.load_state_dict(self.model.state_dict())
            copy.contextualized = contextualized
            if hasattr(self, "training_log"):
                copy.training_log = self.training_log
        return copy
