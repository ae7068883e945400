"""HGATReranker: heterogeneous graph attention in a pipeline."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import torch
from accelerate.utils import send_to_device
from safetensors.torch import load_file, save_file
from torch import Tensor

from pyterrier_graph.checks import progress
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, precision
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.encoders.token_store import GraphTokens, TokenStore
from pyterrier_graph.graph_maxsim.graph_reranker import (
    GraphReranker,
    QueryPassages,
    best_matches,
    rows_of_each,
    token_maxima,
)
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.hetero_graph import (
    PASSAGE_TYPE,
    HeteroGraph,
    check_relations,
    paper_relations,
    warn_of_missing_edges,
)
from pyterrier_graph.graphs.relations import OWN, PAPER_RELATIONS, SELF
from pyterrier_graph.hgat.attention import Propagation
from pyterrier_graph.hgat.equations import HGAT, NEIGHBORHOOD, HGATConfig
from pyterrier_graph.hgat.training import (
    HGATTraining,
    TripleCollator,
    copy_to_train,
    draw_triples,
    train_matches,
    train_on_triples,
)
from pyterrier_graph.storage.artifact import frame_sha256, weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.layers import layer_meta, saved_layers
from pyterrier_graph.training.trainer import restored_on_error
from pyterrier_graph.training.validation import JudgedRun, Validation

WEIGHTS = "hgat.safetensors"
EPOCHS = 2  # default for training the layers


class PassageBatch(NamedTuple):
    """Passages of one query, as :meth:`HGAT.score` needs them."""

    rows: np.ndarray  # rows of the run, shape (passages,)
    query: Tensor  # token vectors of the query, shape (query tokens, d)
    content: TokenStates  # token vectors of the passages as encoded, E_p
    in_context: TokenStates  # token vectors of the passages after the last layer, h_p
    neighbors: Tensor | None  # best matches in neighbors, shape (passages, relations, query tokens)


class HGATReranker(GraphReranker):
    """Reranks passages by their representation in the context of a graph.

    .. cite:: albarede2023hgat
        :citation: Albarede et al. Heterogeneous graph attention networks for passage retrieval. Information Retrieval
            Journal 26, 2023.
        :link: https://doi.org/10.1007/s10791-023-09424-3

    Every passage is encoded into one vector per token. In the layers of the network, the tokens of a passage attend to
    the tokens of its neighbors in the graph: titles, the previous and next passage, a claim it refers to, a document it
    cites. MaxSim compares the resulting vectors with the query's. With the default configuration, the untrained network
    equals :class:`~pyterrier_graph.GraphMaxSim` with default weights; :meth:`fit` leaves this start only where
    validation queries support it. ``config=HGATConfig.paper(), training=HGATTraining.paper()`` is the paper's setting.

    By default, query tokens are also matched directly with the tokens of neighbors. From all candidates of a query,
    ``fit`` learns the importance of each query token, and of each relation for this token
    (:class:`~pyterrier_graph.hgat.equations.NeighborMatches`). ``training=HGATTraining(epochs=2)`` also trains the
    layers, on a document graph, with pairwise softmax cross-entropy on triples <q, p+, p-> (Sect. 5.2.3); on eight
    collections this changed nothing and took three to ten times as long. For ``negatives='shared_codes'`` or
    ``'mixed'``, the training queries may have a column ``codes``. An encoder that learns is a copy: the caller's
    encoder stays unchanged, and stored tokens are no longer used.

    Args:
        graph: The document graph; by default the graphs in the column ``graph`` (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        config: Variant and shape of the network, its relations, and the seed of its initial weights.
        tokens: Stored token vectors of the graph's nodes; without them see :class:`~pyterrier_graph.GraphMaxSim`.
        contextualized: The store that :meth:`contextualize` returned for these weights. Reranking then looks vectors up
            and computes MaxSim. Untrained layers change nothing, so they need no store.
        training: Options of :meth:`fit`.
        batch_size: Number of passages that the network represents at once.
        device, dtype, verbose: See :class:`~pyterrier_graph.GraphMaxSim`, which also lists the columns.

    Attributes:
        relations: The relations along which passages aggregate.

    Raises:
        ValueError: If the graph lacks a relation, the heads do not divide the dimension, ``tokens`` belong to another
            encoder, or ``contextualized`` belongs to other weights.
    """

    schematic = {"label": "HGAT", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "hgat"
    TRAINING = HGATTraining
    WRITTEN = ()
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"contextualized", "batch_size"}

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = DEFAULT,
        *,
        config: HGATConfig | None = None,
        tokens: TokenStore | None = None,
        contextualized: TokenStore | None = None,
        training: HGATTraining | None = None,
        batch_size: int = 64,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        config = HGATConfig() if config is None else config
        options: dict[str, Any] = {"device": device, "dtype": dtype, "verbose": verbose}
        super().__init__(graph, encoder, tokens=tokens, titles=config.titles, **options)
        relations = config.relations
        if relations is None:
            relations = PAPER_RELATIONS if graph is None else paper_relations(graph)
            config = replace(config, relations=relations)
        self.config = config
        self.relations: tuple[str, ...] = relations
        self.training = HGATTraining() if training is None else training
        self.batch_size = batch_size
        self.random_start = config.init == "random"
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            network = HGAT(
                config,
                dimension=self.encoder.dimension,
                relations=relations,
                positions=self.encoder.max_passage_tokens,
            )
        self.network = network.eval().to(self._device)
        self.contextualized = contextualized
        self._check()
        if graph is not None and config.relations not in (NEIGHBORHOOD, paper_relations(graph)):
            warn_of_missing_edges(graph, relations)

    def __repr__(self) -> str:
        return f"HGATReranker({self.graph!r}, {self.encoder!r}, {self.config.name})"

    def _check(self) -> None:
        super()._check()
        if self.graph is not None:
            check_relations(self.graph, (*self.relations, *(self.config.matches or ())))
        store = self.contextualized
        if store is not None and not self._origin().items() <= store.meta.items():
            raise ValueError(
                f"{store!r} was computed with other weights, titles or passages: contextualize again"
            )

    def _origin(self) -> dict[str, Any]:
        """What the representations of passages depend on."""
        if self.graph is None:
            raise ValueError("only the passages of a document graph can be contextualized")
        return {
            "model_sha256": self._digest(),
            "graph_sha256": self.graph.fingerprint(),
            "titles": self._with_titles,
        }

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        for batch in self._batches(work):
            with torch.inference_mode(), precision(self.dtype, self._device):
                scores[batch.rows] = self.network.score(*batch[1:]).cpu().numpy()
        return scores

    @torch.inference_mode()
    def _batches(self, work: QueryPassages, *, by_query: bool = False) -> Iterator[PassageBatch]:
        """Represents the passages in their context, in batches of one query each."""
        queries = work.queries.to(self._device)
        if by_query or self.contextualized is not None or self.network.unchanged():
            groups = rows_of_each(work.query)
        else:  # each representation is computed once, for all queries
            _, position = np.unique(work.node, return_inverse=True)
            groups = rows_of_each(position // self.batch_size)
        for group in progress(groups, len(groups), "batch", verbose=self.verbose):
            group = group[np.argsort(work.node[group], kind="stable")]
            nodes, position = np.unique(work.node[group], return_inverse=True)
            content, in_context = self._in_context(work.graph, work.tokens, nodes)
            for members in rows_of_each(work.query[group]):
                rows = group[members]
                query = queries[work.query[rows[0]]]
                index = torch.from_numpy(position[members]).to(self._device)
                context = in_context.select(index)
                own = context if content is in_context else content.select(index)
                yield PassageBatch(rows, query, own, context, self._matches(work, query, rows))

    def _matches(self, work: QueryPassages, query: Tensor, rows: np.ndarray) -> Tensor | None:
        """The best direct matches of one query; they do not change while layers learn, so ``work`` keeps them."""
        if self.network.matches is None:
            return None
        key, relations = rows.tobytes(), self.network.matches.relations
        if key not in work.matches:
            work.matches[key] = best_matches(work, query, work.node[rows], relations, own=False)[1]
        return work.matches[key]

    def _in_context(
        self, graph: HeteroGraph, tokens: TokenStore | GraphTokens, nodes: np.ndarray
    ) -> tuple[TokenStates, TokenStates]:
        """Returns E_p and h_p: token vectors of passages as encoded, and in context.

        Only the late framework reads E_p (Eq. 5). In the standard framework h_p is returned twice.
        """
        late = self.config.framework == "late"
        if self.contextualized is not None:
            in_context = self.contextualized.states(nodes, self._device)
            content = tokens.states(nodes, self._device) if late else in_context
            return content, in_context
        propagation = send_to_device(self.network.plan(graph, nodes), self._device)
        inputs = tokens.states(propagation.nodes, self._device)
        with precision(self.dtype, self._device):
            in_context = self.network(inputs, propagation)
        content = inputs.select(propagation.inputs) if late else in_context
        return content, in_context

    # --- training

    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        options = self.training
        if options.epochs is None:
            train_layers = self.network.matches is None or options.encoder_learning_rate is not None
            options = replace(options, epochs=EPOCHS if train_layers else 0)
        measure = None if validation is None else Validation(validation, options.measure)
        with restored_on_error(self.network):
            log = self._learn_matches(training, measure, options)
            if options.epochs:
                # epochs and steps continue those of the direct matches
                last = log[-1] if log else {"epoch": 0, "step": 0}
                for entry in self._learn_layers(training, measure, options):
                    epoch, step = entry["epoch"] + last["epoch"], entry["step"] + last["step"]
                    log.append(entry | {"epoch": epoch, "step": step})
        self.training_log = log
        self.contextualized = None  # a store has the old weights

    def _learn_matches(
        self, training: JudgedRun, measure: Validation | None, options: HGATTraining
    ) -> list[dict[str, float]]:
        """Trains the weights of direct matches, if there are any, and returns the log."""
        matches = self.network.matches
        if matches is None or not options.match_epochs:
            return []
        run = training.rows
        labels = training.labels
        qids = run["qid"].unique()
        if options.max_triples is not None and options.max_triples < len(qids):
            random = np.random.default_rng(options.seed)
            drawn = run["qid"].isin(random.choice(qids, options.max_triples, replace=False))
            run = run[drawn].reset_index(drop=True)
            labels = labels[drawn]
        lists = []
        for rows, *best in self._candidates(run):
            relevant = torch.from_numpy(labels[rows] > 0)
            if relevant.any() and not relevant.all():
                lists.append((*best, relevant))
        if not lists:
            return []
        examples = run[["qid", "query", "docno"]].assign(label=labels)
        validate = None if measure is None else self._measured_matches(measure)
        about = self._run(validate, {"training candidates": frame_sha256(examples)})
        return train_matches(matches, lists, options, about)

    def _measured_matches(self, measure: Validation) -> Callable[[], np.ndarray]:
        """Returns a function that measures the present weights of direct matches."""
        matches, candidates = self.network.matches, self._candidates(measure.run)

        @torch.inference_mode()
        def measured() -> np.ndarray:
            scores = np.zeros(len(measure.run))
            for rows, *best in candidates:
                scores[rows] = matches(*send_to_device(best, self._device)).cpu().numpy()
            return measure.per_query(scores)

        return measured

    def _candidates(self, run: pd.DataFrame) -> list[tuple[Any, ...]]:
        """The rows of each query's candidates, its vectors, and the best matches in candidates and neighbors.

        The weights of direct matches do not change them.
        """
        candidates = []
        for work in self._work(run):
            for batch in self._batches(work, by_query=True):
                with torch.inference_mode():
                    own = token_maxima(batch.query, batch.in_context)
                assert batch.neighbors is not None
                tensors = (tensor.cpu().clone() for tensor in (batch.query, own, batch.neighbors))
                candidates.append((work.rows[batch.rows], *tensors))
        return candidates

    def _learn_layers(
        self, training: JudgedRun, measure: Validation | None, options: HGATTraining
    ) -> list[dict[str, float]]:
        """Trains the layers, and the encoder if it learns, on triples, and returns the log."""
        queries, triples = draw_triples(training, options)
        model = copy.copy(self)  # with the same network
        model.contextualized = None  # of the weights that now change
        learns = options.encoder_learning_rate is not None
        if learns:  # stored tokens are the original encoder's
            model.encoder = copy_to_train(self.encoder, options.frozen_encoder_layers)
            model.titles, model.tokens, model._keep_tokens = self._with_titles, None, False
        validate = None
        if measure is not None:
            work = None if learns else [*model._work(measure.run)]
            validate = lambda: measure.per_query(model._scores(measure.run, work))  # noqa: E731
        assert self.graph is not None
        tokens = model._tokens_of(self.graph)
        encoder = None if learns else model.encoder
        collator = TripleCollator(self.network, self.graph, tokens, queries, encoder)
        digest = hashlib.sha256(json.dumps(queries).encode() + triples.tobytes()).hexdigest()
        run = self._run(validate, {"training triples": digest})
        log = train_on_triples(self.network, model.encoder, collator, triples, options, run)
        if learns:
            self.encoder, self.titles, self.tokens = model.encoder, model.titles, None
            self.config = replace(self.config, titles=self.titles)
        return log

    # --- representations and explanations

    def contextualize(self, path: str | os.PathLike[str], *, workers: Workers = 1) -> TokenStore:
        """Stores the representations of all passages, so that reranking is a look-up and a MaxSim (Sect. 5.2.2).

        Pass the store to :class:`HGATReranker` as ``contextualized``, or set this attribute. An interrupted call
        continues when it is repeated, with any number of workers.

        Args:
            path: Folder of the store, which must not exist.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            FileExistsError: If ``path`` exists already.
            ValueError: If the reranker has no document graph.
        """
        meta = self._origin() | {
            "encoder": self.encoder.name,
            "model": self.config.name,
            "batch_size": self.batch_size,
            "dtype": dtype_name(self.dtype, self._device),
        }
        graph = cast(HeteroGraph, self.graph)
        return TokenStore(path, verbose=self.verbose).write(
            partial(self._states_of, graph, self._tokens_of(graph)),
            graph.num_nodes,
            self.network.dimension,
            meta,
            task="contextualizing",
            workers=workers,
        )

    def _states_of(
        self, graph: HeteroGraph, tokens: TokenStore | GraphTokens, nodes: np.ndarray
    ) -> TokenStates:
        """Representations of the passages among some nodes; sections have none."""
        is_passage = graph.node_type[nodes] == PASSAGE_TYPE
        passages = nodes[is_passage]
        chunks = np.array_split(passages, max(1, -(-len(passages) // self.batch_size)))
        with torch.inference_mode():
            states = [self._in_context(graph, tokens, chunk)[1].to("cpu") for chunk in chunks]
        lengths = torch.zeros(len(nodes), dtype=torch.long)
        lengths[torch.from_numpy(is_passage)] = torch.cat([chunk.lengths for chunk in states])
        return TokenStates(torch.cat([chunk.values for chunk in states]), offsets(lengths))

    def relation_weights(self) -> pd.DataFrame:
        """Importance of each relation per layer (the paper's Table 6); columns add up to 1, SELF included."""
        table = pd.DataFrame(self.network.relation_weights()).T
        table.columns = pd.Index([f"layer {number + 1}" for number in table.columns])
        return table.rename_axis("relation")

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains a score: the nodes and tokens that it came from.

        With attention weights and lengths of vectors taken as constants, a score is a sum over the tokens of all
        texts that the passage aggregates from, directly or through other nodes (plus biases, which belong to no token).
        With ``HGATConfig(attention=...)`` the gradients are not linear, so shares need not add up to the score.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph; by default the graph of the reranker.

        Returns:
            A row per token, with the largest shares of the score first: ``relation`` (from the passage to the node;
            ``'own'`` for the passage, ``''`` for a node that it reaches through others), ``source`` (id of the node),
            ``text`` (the token), ``weight`` (NaN: attention has none per token), ``score`` (the token's share: gradient
            times input), ``position`` (of the token in its node).
        """
        graph, target, tokens = self._explained(docno, graph)
        propagation = send_to_device(self.network.plan(graph, target, complete=True), self._device)
        inputs = tokens.states(propagation.nodes, self._device)
        vectors = inputs.values.detach().clone().requires_grad_(True)
        score = self._linear_score(query, inputs.with_values(vectors), propagation)
        # a No self target without neighbors does not depend on any of them
        (gradient,) = torch.autograd.grad(score.sum() + 0 * vectors.sum(), vectors)
        shares = (gradient * vectors).sum(1).detach()  # (tokens,)
        relation_of = {int(target[0]): OWN}
        for relation in dict.fromkeys((*self.relations, *(self.config.matches or ()))):
            for node in graph.neighbors(target, relation)[1].tolist():
                relation_of.setdefault(node, relation)
        nodes = propagation.nodes[inputs.row_index.cpu().numpy()]
        texts = [text for text in tokens.texts(propagation.nodes) if text.strip()]
        frame = pd.DataFrame(
            {
                "relation": [relation_of.get(node, "") for node in nodes.tolist()],
                "source": graph.ids_of(nodes),
                "text": [token for text in texts for token in self.encoder.tokens(text)],
                "weight": np.nan,
                "score": shares.cpu().numpy(),
                "position": inputs.position.cpu().numpy(),
            }
        )
        return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)

    def _linear_score(self, query: str, states: TokenStates, propagation: Propagation) -> Tensor:
        """Score of the target, shape (1,); its gradients take attention weights as constants."""
        in_context = self.network(states, propagation, linear=True)
        vectors = self.encoder.encode_queries([query]).to(self._device)[0]
        matches = self.network.matches
        neighbors = None if matches is None else matches.maxima(vectors, states, propagation)
        content = states.select(propagation.inputs)
        return self.network.score(vectors, content, in_context, neighbors)

    def _write(self, folder: Path) -> dict[str, Any]:
        save_file(self.network.state_dict(), folder / WEIGHTS)
        return super()._write(folder) | {"config": self._config_meta()}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        contextualized = options.pop("contextualized", None)
        layer = about["config"].pop("attention")
        if "config" not in options:
            attention = None if layer is None else saved_layers(layer, "config")
            options["config"] = HGATConfig(**about["config"], attention=attention)
        reranker = super()._read(folder, about, options)
        reranker.network.load_state_dict(load_file(folder / WEIGHTS))
        reranker.contextualized = contextualized
        reranker._check()
        return reranker

    def _config_meta(self) -> dict[str, Any]:
        """The configuration as JSON, with class and arguments of the layers."""
        meta = asdict(replace(self.config, attention=None))
        if self.config.attention is not None:
            attention = self.network.layers[0].attention[SELF]
            meta["attention"] = layer_meta(attention.layer)
        return meta

    def _digest(self) -> str:
        config = json.dumps(self._config_meta())
        return weights_sha256(self.network, before=self.encoder.fingerprint(), after=config)
