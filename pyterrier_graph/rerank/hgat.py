"""HGATReranker: heterogeneous graph attention in a pipeline."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.checks import check_number, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType, device_of, dtype_name, precision
from pyterrier_graph.encoders.principal_directions import principal_directions, vocabulary_sample
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import PASSAGE_TYPE
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.relations import PAPER_RELATIONS, check_relations, follow, paper_relations
from pyterrier_graph.models.hgat import HGAT, HGATConfig
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.ranges.workers import Workers
from pyterrier_graph.rerank.base import FreshTokens, GraphReranker, Judged, QueryPassages, SearchTerms, ranked
from pyterrier_graph.training.options import HGATTraining
from pyterrier_graph.training.triples import draw_triples, freeze_first_layers, train_on_triples
from pyterrier_graph.training.validation import Validation, judged
from pyterrier_graph.warning_categories import SpeedWarning

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

WEIGHTS = "hgat.safetensors"
MANY_PASSAGES = 50  # from here on it is worth a warning that they are not looked up


class HGATReranker(GraphReranker):
    """Reranks passages by their representation in the context of a graph.

    .. cite:: albarede2023hgat
        :citation: Albarede et al. Heterogeneous graph attention networks for passage retrieval. Information Retrieval
            Journal 26, 2023.
        :link: https://doi.org/10.1007/s10791-023-09424-3

    A passage is encoded into one vector per token. In the layers of the network, its tokens attend to those of its
    neighbors in the graph (titles, the passages beside it, a claim it refers to, a document it cites). MaxSim compares
    the resulting vectors with the query's.

    The network has 128 dimensions, as in the paper. Longer token vectors of an encoder are projected on the principal
    directions of the vectors of random words of its vocabulary (which depend on the encoder only); the projection is
    trained with the other weights. Stored ``tokens`` are the encoder's, and serve other rerankers, too. With the
    default configuration the untrained network is plain MaxSim of the projected vectors, and :meth:`fit` learns from
    some hundred queries. ``config=HGATConfig.paper(), training=HGATTraining.paper()`` is the publication's setting.
    Training is by pairwise softmax cross-entropy on triples <q, p+, p-> (Sect. 5.2.3); for ``negatives='shared_codes'``
    or ``'mixed'`` the training queries may have a column ``codes``. An encoder that learns is a copy: the caller's
    stays unchanged.

    Args:
        relations: Relations along which passages aggregate, or paths of them (``'title/title'``: the title above the
            nearest title); by default those of ``config``.
        config: Variant and shape of the network.
        contextualized: What :meth:`contextualize` stored for these weights: reranking is then a look-up and a MaxSim.
        training: Options of :meth:`fit`.
        batch_size: Number of passages represented at once.
        tolerance: For No out and No self with more than one layer, in which the state of a section or passage depends
            on the passage that is represented. With a number above 0, a state is computed once for all of them where
            what depends on it is at most that part of the node's neighbors: with 0.05, that of a section with 20
            passages or more. This is an approximation, for contextualizing and scoring; :meth:`fit` does not use it.
        seed: Seed of the initial weights.
        graph, encoder, tokens, titles, device, dtype, verbose: See :class:`~pyterrier_graph.GraphMaxSim`.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the graph does not have a relation, the heads do not divide the dimension, ``tokens`` are of
            another encoder, or ``contextualized`` of other weights.
    """

    schematic = {"label": "HGAT", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "hgat"
    STAGES = {"training": HGATTraining}
    WRITTEN = ("relations", "titles", "tolerance", "seed")
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"contextualized", "batch_size", "tolerance"}

    contextualized: TokenStore | None
    _start_projection = False  # whether the projection has to be set before the network is used

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = DEFAULT,
        *,
        relations: Sequence[str] | None = None,
        config: HGATConfig | None = None,
        tokens: TokenStore | None = None,
        contextualized: TokenStore | None = None,
        titles: bool = False,
        training: HGATTraining | None = None,
        batch_size: int = 64,
        tolerance: float = 0.0,
        seed: int = 0,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, tokens=tokens, titles=titles, device=device, dtype=dtype, verbose=verbose)
        self.config = HGATConfig() if config is None else config
        check_type("config", self.config, HGATConfig, "an HGATConfig, such as HGATConfig.paper()")
        relations = self.config.relations if relations is None else relations
        if relations is None:
            relations = PAPER_RELATIONS if graph is None else paper_relations(graph)
        self.relations = (relations,) if isinstance(relations, str) else tuple(relations)
        if graph is not None:
            check_relations(graph, (*self.relations, *(self.config.matches or ())))
        self.training = HGATTraining() if training is None else training
        self.batch_size = batch_size
        self.tolerance = tolerance
        self.seed = seed
        self.random_start = self.config.init == "random"
        shape = {"dimension": self.encoder.dimension, "positions": self.encoder.max_passage_tokens}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = HGAT(self.config, relations=self.relations, **shape).eval().to(self._device)
        self._start_projection = self.network.projection is not None
        self.contextualized = contextualized

    def __repr__(self) -> str:
        return f"HGATReranker({self.graph!r}, {self.encoder!r}, {self.config.name})"

    def _shown(self) -> tuple[dict[str, Any], list[str]]:
        sizes = {
            "model": f"{self.config.name}, layers: {self.config.layers}, heads: {self.config.heads}",
            "relations": self.relations,
            "contextualized": "no" if self.contextualized is None else repr(self.contextualized),
        }
        store = self.graph is not None and self.contextualized is None
        calls = ["reranker.contextualized = reranker.contextualize(path)"] if store else []
        given = "query, docno" if self.graph is not None else "query, docno, graph"
        plots = ["relation_weights(reranker)", f"contributions(reranker.explain({given}))"]
        return sizes, calls + [f"plots.{plot}" for plot in plots]

    @property
    def network(self) -> HGAT:
        """The network. Its projection starts when it is first used, because texts are encoded for it."""
        if self._start_projection:
            self._start_projection = False
            sample = self.encoder.encode_passages(vocabulary_sample(self.encoder)).values
            projection = cast(nn.Linear, self._network.projection)
            self._network.start_projection_at(principal_directions(sample, projection.out_features))
        return self._network

    @network.setter
    def network(self, network: HGAT) -> None:
        self._network = network

    @property
    def _device(self) -> torch.device:
        return device_of(self.device)

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks stored representations and the tolerance, also when they are set later."""
        if name == "tolerance":
            check_number(name, value, 0, 1)
        elif name == "contextualized" and value is not None:
            check_type(name, value, TokenStore, "what reranker.contextualize(path) returns")
            if self.graph is None or value.meta.get("graph_sha256") != self.graph.fingerprint():
                raise ValueError(f"{value!r} holds representations of other passages than those of {self.graph!r}")
            if (value.meta.get("model_sha256"), value.meta.get("titles")) != (self._digest(), self._with_titles):
                raise ValueError(f"{value!r} was computed with other weights or titles: contextualize again")
        super().__setattr__(name, value)

    def _check_attributes(self) -> None:
        super()._check_attributes()
        if self.graph is not None:
            check_relations(self.graph, (*self.relations, *(self.config.matches or ())))
        self.contextualized = self.contextualized  # checks it

    def _warn_about(self, run: pd.DataFrame) -> None:
        super()._warn_about(run)
        passages = run["docno"].nunique()
        if self.graph is not None and self.contextualized is None and passages > MANY_PASSAGES:
            self._warn_once(
                "speed",
                f"HGATReranker computed the representations of {passages} passages to score them, which can be 80 "
                "times slower than to look them up: reranker.contextualized = reranker.contextualize(path) stores them",
                SpeedWarning,
            )

    def _searched_tokens(self) -> TokenStore:
        """The stored representations, for a :class:`~pyterrier_graph.LateInteractionIndex`."""
        if self.contextualized is None:
            raise ValueError(f"{self!r} has nothing stored to search: reranker.contextualized = contextualize(path)")
        return self.contextualized

    def _search_terms(self, query: torch.Tensor, text: str) -> SearchTerms:
        """The token vectors of a query in the network."""
        with torch.inference_mode():
            states = self.network.project(TokenStates.pack([query.to(self._device)], query[:0].to(self._device)))
        return SearchTerms(states.values, self._searched_tokens(), {})

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        queries = self.network.project(work.queries.to(self._device))
        chunks = self._chunks(np.unique(work.node))
        for nodes in pt.tqdm(
            chunks, desc=self.config.name, unit="batch", delay=1, leave=None, disable=not self.verbose
        ):
            rows = np.flatnonzero((work.node >= nodes[0]) & (work.node <= nodes[-1]))
            position = np.searchsorted(nodes, work.node[rows])
            with torch.inference_mode(), precision(self.dtype, self._device):
                content, in_context = self._in_context(work.graph, work.tokens, nodes)
                for query, members in pd.Series(work.query[rows]).groupby(work.query[rows]).indices.items():
                    passages = torch.from_numpy(position[members]).to(self._device)
                    vectors = queries[query]
                    relevance = self.network.score(vectors, content.select(passages), in_context.select(passages))
                    scores[rows[members]] = relevance.cpu().numpy()
        return scores

    def _chunks(self, nodes: np.ndarray) -> list[np.ndarray]:
        return np.array_split(nodes, max(1, -(-len(nodes) // self.batch_size)))

    def _in_context(
        self, graph: HeteroGraph, tokens: TokenStore | FreshTokens, nodes: np.ndarray
    ) -> tuple[TokenStates, TokenStates]:
        """Some passages as encoded (only if the framework needs them so, where they are stored), and in context."""
        if self.contextualized is not None:
            in_context = self.contextualized.states(nodes, self._device)
            late = self.config.framework == "late"
            return self.network.project(tokens.states(nodes, self._device)) if late else in_context, in_context
        propagation = self.network.plan(graph, nodes, tolerance=self.tolerance).to(self._device)
        inputs = self.network.project(tokens.states(propagation.nodes, self._device))
        return inputs.select(propagation.inputs), self.network(inputs, propagation)

    def _learn(self, training: Judged, validation: Judged | None) -> None:
        options, validate = self.training, None
        if validation:
            measure = Validation(*validation, options.measure, self)
            validate = lambda: measure(ranked(measure.run, self._scores(measure.run), self)["score"])  # noqa: E731
        network = self.network  # its projection starts at directions of the encoder before training
        queries, graphs, triples = draw_triples(*judged(*training, self), self.graph, options)
        encoder, learned = self.encoder, options.encoder_learning_rate is not None
        if learned:
            encoder = copy.copy(encoder)
            encoder.network = copy.deepcopy(encoder.network)
            freeze_first_layers(encoder.network, options.frozen_encoder_layers)
        identity = {  # of this training, for checkpoints; the weights of an encoder that learns are in them
            "config": json.loads(json.dumps(asdict(self.config) | {"relations": self.relations})),
            "seed": self.seed,
            "weights at the start": self._digest() if self.training_log else "untrained",
            "encoder": encoder.name if learned else encoder.fingerprint(),
            "training triples": hashlib.sha256(json.dumps(queries).encode() + triples.tobytes()).hexdigest(),
        }
        before = {name: getattr(self, name) for name in ("encoder", "titles", "tokens", "contextualized")}
        self.contextualized = None  # of the weights that now change
        if learned:
            self.encoder, tokens, self.titles, self.tokens = encoder, self.tokens, self._with_titles, None
            if tokens is not None:
                warnings.warn(
                    f"fit trains a copy of the encoder. The vectors in {tokens!r} are of the old one and not used any "
                    "more. To store new ones: reranker.tokens = TokenStore(path).build(graph, reranker.encoder)",
                    SpeedWarning,
                    stacklevel=4,
                )
        try:
            self.training_log = train_on_triples(
                network,
                encoder,
                [(graph, self._tokens_of(graph)) for graph in graphs],
                queries,
                triples,
                options,
                validate=validate,
                identity=identity,
                device=self._device,
                dtype=self.dtype,
                verbose=self.verbose,
            )
        except BaseException:  # the weights of the network are those of before as well
            self.__dict__.update(before)
            raise

    def contextualize(self, path: str | os.PathLike[str], *, workers: Workers = 1) -> TokenStore:
        """Computes the representations of all passages once, so that reranking is a look-up and a MaxSim (Sect. 5.2.2).

        Give the store to :class:`HGATReranker` as ``contextualized`` (or set that attribute). An interrupted call
        continues when it is repeated, with any number of workers.

        Args:
            path: Folder of the store; nothing may be there yet.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.

        Raises:
            FileExistsError: If something lies at ``path``.
            ValueError: If the reranker has no document graph.
        """
        if self.graph is None:
            raise ValueError("only the passages of a document graph can be contextualized in advance")
        graph, tokens = self.graph, self.tokens

        def prepare(place: Path) -> None:
            nonlocal tokens
            if tokens is None:  # every node is encoded once, and none is kept in memory
                tokens = TokenStore(place / "tokens")
                if not tokens.built():
                    tokens.build(graph, self.encoder, titles=self.titles, workers=workers, verbose=self.verbose)

        def states_of(nodes: np.ndarray) -> tuple[TokenStates, None]:
            is_passage = torch.from_numpy(graph.node_type[nodes] == PASSAGE_TYPE)
            assert tokens is not None
            with torch.inference_mode(), precision(self.dtype, self._device):
                chunks = self._chunks(nodes[is_passage.numpy()])
                parts = [self._in_context(graph, tokens, chunk)[1] for chunk in chunks]
            lengths = torch.zeros(len(nodes), dtype=torch.long)
            lengths[is_passage] = torch.cat([part.lengths.cpu() for part in parts])
            return TokenStates(torch.cat([part.values.cpu() for part in parts]), offsets(lengths)), None

        about: dict[str, Any] = {"encoder": self.encoder.name, "model": self.config.name}
        about |= {"model_sha256": self._digest(), "graph_sha256": graph.fingerprint(), "titles": self._with_titles}
        about |= {"dtype": dtype_name(self.dtype, self._device), "tolerance": self.tolerance}
        identity = {"encoder_sha256": self.encoder.fingerprint(), "batch_size": self.batch_size}
        options: dict[str, Any] = {"task": "contextualizing", "workers": workers, "verbose": self.verbose}
        size = graph.num_nodes, self.network.dimension
        return TokenStore(path).write(states_of, *size, about, identity=identity, prepare=prepare, **options)

    def relation_weights(self) -> pd.DataFrame:
        """Importance of each relation per layer (the paper's Table 6); columns add up to 1, SELF included."""
        table = pd.DataFrame(self.network.relation_weights()).T
        table.columns = pd.Index([f"layer {number + 1}" for number in table.columns])
        return table.rename_axis("relation")

    def explain(self, query: str, docno: str, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Says which nodes and tokens a score came from.

        For given attention weights and lengths of vectors, a score is a sum over the tokens of all texts that the
        passage aggregates from, directly or through other nodes (and over biases, which belong to no token).

        Returns:
            A row per token, with ``node`` (its id), ``relation`` (of the passage to the node; ``'SELF'`` for the
            passage, ``''`` for a node that it aggregates from through others), ``position``, ``token``,
            ``contribution``; largest contributions first. For the arguments see :meth:`GraphMaxSim.explain`.
        """
        graph, target, tokens = self._explained(docno, graph)
        propagation = self.network.plan(graph, target).to(self._device)
        inputs = tokens.states(propagation.nodes, self._device)
        vectors = inputs.values.detach().clone().requires_grad_(True)
        states = self.network.project(inputs.with_values(vectors), linear=True)
        in_context = self.network(states, propagation, linear=True)
        query_vectors = self.network.project(self.encoder.encode_queries([query]).to(self._device))[0]
        score = self.network.score(query_vectors, states.select(propagation.inputs), in_context)
        # a No self target without neighbors does not depend on any of them
        (gradient,) = torch.autograd.grad(score.sum() + 0 * vectors.sum(), vectors)
        relation_of = {int(target[0]): SELF}
        for relation in dict.fromkeys((*self.relations, *(self.config.matches or ()))):
            relation_of = dict.fromkeys(follow(graph, target, relation)[1].tolist(), relation) | relation_of
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

    def _write(self, folder: Path) -> dict[str, Any]:
        save_file({k: v.contiguous() for k, v in self.network.state_dict().items()}, folder / WEIGHTS)
        return super()._write(folder) | {"config": asdict(self.config)}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        contextualized = options.pop("contextualized", None)
        reranker = super()._read(folder, about, {"config": HGATConfig(**about["config"])} | options)
        reranker._start_projection = False
        reranker.network.load_state_dict(load_file(folder / WEIGHTS))
        reranker.contextualized = contextualized
        return reranker

    def _digest(self) -> str:
        config = json.dumps(asdict(self.config))
        return weights_sha256(self.network, before=self.encoder.fingerprint(), after=config)
