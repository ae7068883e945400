"""HGATReranker: heterogeneous graph attention in a pipeline."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

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
    QueryMatches,
    QueryPassages,
    best_matches,
    normalized,
    rows_of_each,
)
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.hetero_graph import (
    PASSAGE_TYPE,
    HeteroGraph,
    check_relations,
    paper_relations,
)
from pyterrier_graph.graphs.relations import PAPER_RELATIONS, SELF
from pyterrier_graph.hgat.equations import HGAT, HGATConfig
from pyterrier_graph.hgat.training import (
    HGATTraining,
    collate_triples,
    copy_to_train,
    draw_triples,
    train_matches,
    train_on_triples,
)
from pyterrier_graph.storage.artifact import frame_sha256, weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.layers import layer_meta, saved_layers
from pyterrier_graph.training.model import Log
from pyterrier_graph.training.trainer import restored_on_error
from pyterrier_graph.training.validation import JudgedRun, Validation

WEIGHTS = "hgat.safetensors"
EPOCHS = 2  # default for training the layers


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

    Raises:
        ValueError: If the graph lacks a relation, ``tokens`` belong to another encoder, or ``contextualized`` belongs
            to other weights.
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
        config = config or HGATConfig()
        super().__init__(graph, encoder, tokens, config.titles, device, dtype, verbose)
        if config.relations is None:
            relations = PAPER_RELATIONS if graph is None else paper_relations(graph)
            config = replace(config, relations=relations)
        self.config = config
        self.training = training or HGATTraining()
        self.batch_size = batch_size
        self.contextualized = contextualized
        self.random_start = config.init == "random"
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            network = HGAT(config, self.encoder.dimension, self.encoder.max_passage_tokens)
        self.network = network.eval().to(self._device)
        self._check()

    def __repr__(self) -> str:
        return f"HGATReranker({self.graph!r}, {self.encoder!r}, {self.config.name})"

    def _check(self) -> None:
        super()._check()
        if self.graph is not None:
            matched = self.config.matches or ()
            check_relations(self.graph, [*self.network.relations, *matched])
        store = self.contextualized
        if store is None:
            return
        is_current = self._origin().items() <= store.meta.items()
        if not is_current:
            raise ValueError(
                f"{store!r} was computed with other weights, titles or passages: contextualize again"
            )

    def _origin(self) -> dict[str, Any]:
        """What the representations of passages depend on."""
        assert self.graph is not None
        return {
            "model_sha256": self._digest(),
            "graph_sha256": self.graph.fingerprint(),
            "titles": self._with_titles,
        }

    def _matches_of(self, work: QueryPassages) -> Iterator[QueryMatches]:
        queries = work.queries.to(self._device)
        own = self._own_matches(work, queries)
        relations = self.config.matches or ()
        for rows in rows_of_each(work.query):
            number = work.query[rows[0]]
            query = queries[number]  # (query tokens, d)
            passages = work.node[rows]
            _, context = best_matches(work, query, passages, relations, own=False)
            own_of_query = own[rows, : len(query)]  # (passages, query tokens)
            yield QueryMatches(work.rows[rows], query, own_of_query, context)

    @torch.no_grad()
    def _own_matches(self, work: QueryPassages, queries: TokenStates) -> Tensor:
        """Best matches of each row's query in its passage in context, shape (rows, tokens of the longest query)."""
        if self.contextualized is not None or self.network.unchanged():
            groups = rows_of_each(work.query)
        else:  # each representation is computed once, for all queries
            _, position = np.unique(work.node, return_inverse=True)
            groups = rows_of_each(position // self.batch_size)
        longest = int(queries.lengths.max())
        own = torch.zeros(len(work.rows), longest, device=self._device)
        for group in progress(groups, len(groups), "batch", verbose=self.verbose):
            for rows, matches in self._own_matches_of_batch(work, queries, group):
                query_tokens = matches.shape[1]
                own[rows, :query_tokens] = matches
        return own

    def _own_matches_of_batch(
        self, work: QueryPassages, queries: TokenStates, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """The rows of each query among ``rows``, and its best matches in them, shape (passages, query tokens)."""
        order = np.argsort(work.node[rows], kind="stable")
        rows = rows[order]  # ascending nodes, for which select copies nothing
        nodes, position = np.unique(work.node[rows], return_inverse=True)
        in_context = self._in_context(work.graph, work.tokens, nodes)
        content = in_context
        if self.config.framework == "late":
            content = work.tokens.states(nodes, self._device)
        for members in rows_of_each(work.query[rows]):
            number = work.query[rows[members[0]]]
            query = queries[number]  # (query tokens, d)
            index = torch.from_numpy(position[members]).to(self._device)
            member_context = in_context.select(index)
            member_content = member_context
            if content is not in_context:
                member_content = content.select(index)
            matches = self.network.own_matches(query, member_content, member_context)
            yield rows[members], matches

    def _match_weights(self, query: Tensor) -> tuple[Sequence[str], Tensor, Tensor]:
        matches = self.network.matches
        if matches is None:
            tokens = len(query)
            return (), query.new_zeros(0, tokens), query.new_ones(tokens)
        weights, importance = matches.token_weights(query)
        return matches.relations, weights, importance

    @torch.no_grad()
    def _score(self, matches: QueryMatches) -> Tensor:
        return self.network.score(matches.query, matches.own, matches.context)

    def _in_context(
        self, graph: HeteroGraph, tokens: TokenStore | GraphTokens, nodes: np.ndarray
    ) -> TokenStates:
        """Token vectors h_p of passages, which are distinct and ascending nodes, in their context."""
        if self.contextualized is not None:
            return self.contextualized.states(nodes, self._device)
        if self.network.unchanged():
            return normalized(tokens.states(nodes, self._device))
        plan = self.network.plan(graph, nodes)
        propagation = send_to_device(plan, self._device)
        inputs = tokens.states(propagation.nodes, self._device)
        with precision(self.dtype, self._device):
            return self.network(inputs, propagation)

    # --- training

    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        options = self.training
        if options.epochs is None:
            encoder_learns = options.encoder_learning_rate is not None
            train_layers = self.network.matches is None or encoder_learns
            options = replace(options, epochs=EPOCHS if train_layers else 0)
        measure = None if validation is None else Validation(validation, options.measure)
        with restored_on_error(self.network):
            log = self._learn_matches(training, measure, options)
            if options.epochs:
                # epochs and steps continue those of the direct matches
                last = log[-1] if log else {"epoch": 0, "step": 0}
                for entry in self._learn_layers(training, measure, options):
                    entry["epoch"] += last["epoch"]
                    entry["step"] += last["step"]
                    log.append(entry)
        self.training_log = log
        self.contextualized = None  # a store has the old weights

    def _learn_matches(
        self, training: JudgedRun, measure: Validation | None, options: HGATTraining
    ) -> Log:
        """Trains the weights of direct matches, if there are any, and returns the log."""
        matches = self.network.matches
        if matches is None:
            return []
        candidates = training.rows.assign(label=training.labels)
        qids = candidates["qid"].unique()
        if options.max_triples is not None and options.max_triples < len(qids):
            random = np.random.default_rng(options.seed)
            qids = random.choice(qids, options.max_triples, replace=False)
            is_drawn = candidates["qid"].isin(qids)
            candidates = candidates[is_drawn].reset_index(drop=True)
        labels = candidates["label"].to_numpy()
        is_relevant = torch.from_numpy(labels > 0)  # (rows,)
        lists = []
        for rows, query, own, context in self._matches(candidates):
            relevant = is_relevant[rows]  # (passages,)
            if relevant.any() and not relevant.all():
                matched = query.cpu(), own.cpu(), context.cpu(), relevant
                lists.append(matched)
        if not lists:
            return []
        validate = None
        if measure is not None:
            fixed = [*self._matches(measure.run)]  # the weights do not change the matches
            validate = partial(self._measured, measure, lambda: fixed)
        examples = candidates[["qid", "query", "docno", "label"]]
        identity = {"training candidates": frame_sha256(examples)}
        run = self._run(validate, identity)
        return train_matches(matches, lists, options, run)

    def _measured(
        self, measure: Validation, matches: Callable[[], Iterable[QueryMatches]]
    ) -> np.ndarray:
        """The measure of each validation query, with the present weights and the matches that these give."""
        scores = self._scores_of(matches(), len(measure.run))
        return measure.per_query(scores)

    def _learn_layers(
        self, training: JudgedRun, measure: Validation | None, options: HGATTraining
    ) -> Log:
        """Trains the layers, and the encoder if it learns, on triples, and returns the log."""
        queries, triples = draw_triples(training, options)
        model = copy.copy(self)  # with the same network
        model.contextualized = None  # of the weights that now change
        learns = options.encoder_learning_rate is not None
        if learns:
            model.encoder = copy_to_train(self.encoder, options.frozen_encoder_layers)
            model.tokens = None  # of the original encoder
            model._keep_tokens = False
            model.titles = self._with_titles
        validate = None
        if measure is not None:
            matches = partial(model._matches, measure.run)
            if not learns:  # the queries are encoded once
                work = next(model._work(measure.run))
                matches = partial(model._matches_of, work)
            validate = partial(model._measured, measure, matches)
        assert self.graph is not None
        tokens = model._tokens_of(self.graph)
        inputs: TokenStates | list[str] = queries
        if not learns:
            inputs = model.encoder.encode_queries(queries).to("cpu")
        collate = partial(collate_triples, self.network, self.graph, tokens, inputs)
        digest = hashlib.sha256(json.dumps(queries).encode())
        digest.update(triples.tobytes())
        identity = {"training triples": digest.hexdigest()}
        run = self._run(validate, identity)
        encoder = model.encoder if learns else None
        log = train_on_triples(self.network, encoder, collate, triples, options, run)
        if learns:
            self.encoder = model.encoder
            self.titles = model.titles
            self.tokens = None
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
        """
        assert self.graph is not None
        meta = self._origin()
        meta["dtype"] = dtype_name(self.dtype, self._device)
        tokens = self._tokens_of(self.graph)
        store = TokenStore(path, verbose=self.verbose)
        return store.write(
            partial(self._states_of, self.graph, tokens),
            self.graph.num_nodes,
            self.encoder.dimension,
            meta,
            task="contextualizing",
            workers=workers,
        )

    @torch.inference_mode()
    def _states_of(
        self, graph: HeteroGraph, tokens: TokenStore | GraphTokens, nodes: np.ndarray
    ) -> TokenStates:
        """Representations of the passages among some nodes; sections have none."""
        is_passage = graph.node_type[nodes] == PASSAGE_TYPE
        passages = nodes[is_passage]
        count = max(1, math.ceil(len(passages) / self.batch_size))
        states = []
        for batch in np.array_split(passages, count):
            in_context = self._in_context(graph, tokens, batch)
            states.append(in_context.to("cpu"))
        values = torch.cat([batch.values for batch in states])  # (tokens, d)
        passage_lengths = torch.cat([batch.lengths for batch in states])
        lengths = torch.zeros(len(nodes), dtype=torch.long)
        lengths[torch.from_numpy(is_passage)] = passage_lengths
        return TokenStates(values, offsets(lengths))

    def relation_weights(self) -> pd.DataFrame:
        """Importance of each relation per layer (the paper's Table 6); columns add up to 1, SELF included."""
        layers = {}
        for number, layer in enumerate(self.network.layers, start=1):
            layers[f"layer {number}"] = layer.importance()
        relations = [*self.network.relations, SELF]
        return pd.DataFrame(layers, index=relations).rename_axis("relation")

    def _write(self, folder: Path) -> dict[str, Any]:
        save_file(self.network.state_dict(), folder / WEIGHTS)
        meta = super()._write(folder)
        meta["config"] = self._config_meta()
        return meta

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
        without_layers = replace(self.config, attention=None)
        meta = asdict(without_layers)
        if self.config.attention is not None:
            attention = self.network.layers[0].attention[SELF]
            meta["attention"] = layer_meta(attention.layer, self.encoder.dimension)
        return meta

    def _digest(self) -> str:
        encoder = self.encoder.fingerprint()
        config = json.dumps(self._config_meta())
        return weights_sha256(self.network, before=encoder, after=config)
