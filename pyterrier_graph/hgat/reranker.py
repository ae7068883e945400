"""HGATReranker: heterogeneous graph attention in a pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from accelerate.utils import send_to_device
from safetensors.torch import load_file, save_file
from torch import Tensor

from pyterrier_graph.checks import QualityWarning, SpeedWarning, check_type, progress
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, precision
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_encoder import TokenEncoder, TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graph_maxsim.graph_reranker import (
    GraphReranker,
    GraphTokens,
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
from pyterrier_graph.graphs.relations import OWN, PAPER_RELATIONS
from pyterrier_graph.hgat.attention import Propagation
from pyterrier_graph.hgat.equations import HGAT, NEIGHBORHOOD, HGATConfig
from pyterrier_graph.hgat.training import (
    Candidates,
    HGATTraining,
    copy_to_train,
    draw_triples,
    train_matches,
    train_on_triples,
)
from pyterrier_graph.storage.artifact import weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.layers import check_same_class, saved_layers
from pyterrier_graph.training.model import ranked
from pyterrier_graph.training.validation import JudgedRun, Validation

WEIGHTS = "hgat.safetensors"
EPOCHS = 2  # of training the layers, by default
MANY_PASSAGES = 50  # from which on computing instead of looking up is worth a warning


class HGATReranker(GraphReranker):
    """Reranks passages by their representation in the context of a graph.

    .. cite:: albarede2023hgat
        :citation: Albarede et al. Heterogeneous graph attention networks for passage retrieval. Information Retrieval
            Journal 26, 2023.
        :link: https://doi.org/10.1007/s10791-023-09424-3

    A passage is encoded into one vector per token. In the layers of the network, its tokens attend to the tokens of its
    neighbors in the graph: titles, the previous and next passage, a claim it refers to, a document it cites. MaxSim
    compares the resulting vectors with the query's. With the default configuration, the untrained network equals
    :class:`~pyterrier_graph.GraphMaxSim` with default weights, and :meth:`fit` moves away from this start as far as
    validation queries support it. ``config=HGATConfig.paper(), training=HGATTraining.paper()`` is the paper's setting.

    By default, the tokens of neighbors are also matched directly, and ``fit`` learns how much each query token counts,
    and how much each relation counts for it, from all candidates of a query
    (:class:`~pyterrier_graph.hgat.equations.NeighborMatches`). ``training=HGATTraining(epochs=2)`` trains the layers as
    well, with pairwise softmax cross-entropy on triples <q, p+, p-> (Sect. 5.2.3), which changed nothing on eight
    collections and takes three to ten times as long. For ``negatives='shared_codes'`` or ``'mixed'`` the training
    queries may have a column ``codes``. An encoder that learns is a copy: the caller's stays unchanged.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        config: Variant and shape of the network, its relations, and the seed of its initial weights.
        tokens: Stored token vectors of the graph's nodes; without them see :class:`~pyterrier_graph.GraphMaxSim`.
        contextualized: The store that :meth:`contextualize` returned for these weights: reranking is then a look-up
            and a MaxSim. Untrained layers change nothing, so there is nothing to store.
        training: Options of :meth:`fit`.
        batch_size: Number of passages represented at once.
        device, dtype, verbose: See :class:`~pyterrier_graph.GraphMaxSim`, which also lists the columns.

    Attributes:
        relations: The relations along which passages aggregate.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the graph does not have a relation, the heads do not divide the dimension, ``tokens`` belong to
            another encoder, or ``contextualized`` to other weights.
    """

    schematic = {"label": "HGAT", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "hgat"
    TRAINING = HGATTraining
    WRITTEN = ()
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"contextualized", "batch_size"}

    _contextualized: TokenStore | None = None

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
        check_type("config", config, HGATConfig, "an HGATConfig, such as HGATConfig.paper()")
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
        shape = {"dimension": self.encoder.dimension, "positions": self.encoder.max_passage_tokens}
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.network = HGAT(config, relations=self.relations, **shape).eval().to(self._device)
        self._check()
        self.contextualized = contextualized
        if graph is not None and config.relations not in (NEIGHBORHOOD, paper_relations(graph)):
            warn_of_missing_edges(graph, relations)

    def __repr__(self) -> str:
        return f"HGATReranker({self.graph!r}, {self.encoder!r}, {self.config.name})"

    def _facts(self) -> dict[str, Any]:
        return {
            "model": f"{self.config.name}, layers: {self.config.layers}, heads: {self.config.heads}",
            "relations": self.relations,
            "contextualized": "no" if self.contextualized is None else repr(self.contextualized),
        }

    @property
    def contextualized(self) -> TokenStore | None:
        """Stored representations of all passages; representations of other passages or weights raise ValueError."""
        return self._contextualized

    @contextualized.setter
    def contextualized(self, store: TokenStore | None) -> None:
        if store is not None:
            check_type(
                "contextualized", store, TokenStore, "what reranker.contextualize(path) returns"
            )
            self._check_passages(store)
            model = self._digest(), self._with_titles
            if (store.meta.get("model_sha256"), store.meta.get("titles")) != model:
                raise ValueError(
                    f"{store!r} was computed with other weights or titles: contextualize again"
                )
        self._contextualized = store

    def _check_passages(self, store: TokenStore) -> None:
        if self.graph is None or store.meta.get("graph_sha256") != self.graph.fingerprint():
            raise ValueError(
                f"{store!r} holds representations of other passages than those of {self.graph!r}"
            )

    def _check(self) -> None:
        super()._check()
        if self.graph is not None:
            check_relations(self.graph, (*self.relations, *(self.config.matches or ())))
        if self.contextualized is not None:
            self._check_passages(self.contextualized)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores passages, as ``GraphMaxSim.transform``; warns if looking up representations would be much faster."""
        out = super().transform(inp)
        passages = out["docno"].nunique()
        computed = self.contextualized is None and not self.network.unchanged()
        if self.graph is not None and computed and passages > MANY_PASSAGES:
            self._warn_once(
                "speed",
                f"HGATReranker computed the representations of {passages} passages to score them, which can be 80 "
                "times slower than looking them up: reranker.contextualized = reranker.contextualize(path) stores them",
                SpeedWarning,
            )
        return out

    @property
    def weights(self) -> dict[str, float]:  # type: ignore[override]
        """Weights of the relations whose neighbors are matched directly, before the query changes them."""
        matches = self.network.matches
        if matches is None:
            return {}
        return dict(zip(matches.relations, matches.weights.tolist(), strict=True))

    def searched_tokens(self) -> TokenStore:
        """Returns what an index can contain: the tokens, or the representations if neighbors are not matched."""
        name = "tokens" if self.config.matches else "contextualized"
        store = getattr(self, name)
        if store is None:
            raise ValueError(f"{self!r} has nothing stored to search: give it {name}=")
        return store

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        for rows, vectors, *represented in self._represented(work):
            with torch.inference_mode(), precision(self.dtype, self._device):
                scores[rows] = self.network.score(vectors, *represented).cpu().numpy()
        return scores

    def _represented(
        self, work: QueryPassages
    ) -> Iterator[tuple[np.ndarray, Tensor, TokenStates, TokenStates, Tensor | None]]:
        """Rows of one query, its vectors, and what ``HGAT.score`` needs of their passages."""
        queries = work.queries.to(self._device)
        if self.contextualized is not None or self.network.unchanged():
            batches = rows_of_each(work.query)
        else:  # each representation is computed once, for all queries
            _, position = np.unique(work.node, return_inverse=True)
            batches = rows_of_each(position // self.batch_size)
        matches = self.network.matches
        for batch in progress(batches, len(batches), "batch", verbose=self.verbose):
            nodes, position = np.unique(work.node[batch], return_inverse=True)
            with torch.inference_mode(), precision(self.dtype, self._device):
                content, in_context = self._in_context(work.graph, work.tokens, nodes)
            for members in rows_of_each(work.query[batch]):
                rows, passages = batch[members], position[members]
                vectors, neighbors = queries[work.query[rows[0]]], None
                selected = torch.from_numpy(passages).to(self._device)
                with torch.inference_mode():
                    if matches is not None:
                        _, neighbors = best_matches(
                            work, vectors, nodes[passages], matches.relations, own=False
                        )
                    states = content.select(selected), in_context.select(selected)
                # outside of inference mode, which would last beyond the yield
                yield rows, vectors, *states, neighbors

    def _in_context(
        self, graph: HeteroGraph, tokens: TokenStore | GraphTokens, nodes: np.ndarray
    ) -> tuple[TokenStates, TokenStates]:
        """Passages as encoded (if they are stored, only the late framework loads these), and in context."""
        if self.contextualized is None:
            propagation = send_to_device(self.network.plan(graph, nodes), self._device)
            inputs = tokens.states(propagation.nodes, self._device)
            return inputs.select(propagation.inputs), self.network(inputs, propagation)
        in_context = self.contextualized.states(nodes, self._device)
        late = self.config.framework == "late"
        return tokens.states(nodes, self._device) if late else in_context, in_context

    # --- training

    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        options = self.training
        if options.epochs is None:
            layers = self.network.matches is None or options.encoder_learning_rate is not None
            options = replace(options, epochs=EPOCHS if layers else 0)
        measure = None if validation is None else Validation(validation, options.measure)
        start = {name: value.clone() for name, value in self.network.state_dict().items()}
        identity = {  # of this training, for checkpoints
            "config": json.loads(json.dumps(self._config_meta())),
            "weights at the start": self._digest() if self.training_log else "untrained",
        }
        try:
            with warnings.catch_warnings():
                if options.epochs:  # the layers may still improve the ranking
                    warnings.simplefilter("ignore", QualityWarning)
                log = self._learn_matches(training, measure, options, identity)
            with warnings.catch_warnings():
                # the direct matches have improved the ranking
                if any("kept" in entry and entry["step"] for entry in log):
                    warnings.simplefilter("ignore", QualityWarning)
                if options.epochs:
                    last = {name: log[-1][name] if log else 0 for name in ("epoch", "step")}
                    for entry in self._learn_layers(training, measure, options, identity):
                        log.append(entry | {name: entry[name] + last[name] for name in last})
            self.training_log, self.contextualized = log, None  # a store has the old weights
        except BaseException:
            self.network.load_state_dict(start)
            raise

    def _learn_matches(
        self,
        training: JudgedRun,
        measure: Validation | None,
        options: HGATTraining,
        identity: dict[str, Any],
    ) -> list[dict[str, float]]:
        """Trains the weights of direct matches, if there are any, and returns the log."""
        matches = self.network.matches
        if matches is None or not options.match_epochs:
            return []
        run, labels = training.rows, training.labels
        qids = run["qid"].unique()
        if options.max_triples is not None and options.max_triples < len(qids):
            random = np.random.default_rng(options.seed)
            drawn = run["qid"].isin(random.choice(qids, options.max_triples, replace=False))
            run, labels = run[drawn].reset_index(drop=True), labels[drawn]
        lists = []
        for candidates in self._candidates(run):
            relevant = torch.from_numpy(labels[candidates.rows] > 0)
            if relevant.any() and not relevant.all():
                lists.append((*candidates[1:], relevant))
        if not lists:
            return []
        texts = run[["qid", "query", "docno"]].to_csv(index=False).encode()
        identity = identity | {
            "encoder": self.encoder.fingerprint(),
            "training candidates": hashlib.sha256(texts + labels.tobytes()).hexdigest(),
        }
        validate = None if measure is None else self._measured_matches(measure)
        return train_matches(matches, lists, options, **self._run(validate, identity))

    def _measured_matches(self, measure: Validation) -> Callable[[], np.ndarray]:
        """A function that measures the present weights of direct matches."""
        matches, candidates = self.network.matches, self._candidates(measure.run)

        def measured() -> np.ndarray:
            scores = np.zeros(len(measure.run))
            with torch.inference_mode():
                for rows, *best in candidates:
                    tensors = [tensor.to(self._device) for tensor in best]
                    scores[rows] = matches(*tensors).cpu().numpy()
            return measure.per_query(scores)

        return measured

    def _candidates(self, run: pd.DataFrame) -> list[Candidates]:
        """The best matches of each query's candidates, which do not depend on the weights of direct matches."""
        candidates = []
        for work in self._work(run):
            batches: dict[int, list[Candidates]] = {}
            for rows, vectors, _, in_context, neighbors in self._represented(work):
                with torch.inference_mode():
                    own = token_maxima(vectors, in_context)
                assert neighbors is not None
                tensors = (tensor.cpu().clone() for tensor in (vectors, own, neighbors))
                batch = Candidates(work.rows[rows], *tensors)
                batches.setdefault(work.query[rows[0]], []).append(batch)
            for of_query in batches.values():
                rows, (vectors, *_), own, neighbors = zip(*of_query, strict=True)
                candidates.append(
                    Candidates(np.concatenate(rows), vectors, torch.cat(own), torch.cat(neighbors))
                )
        return candidates

    def _learn_layers(
        self,
        training: JudgedRun,
        measure: Validation | None,
        options: HGATTraining,
        identity: dict[str, Any],
    ) -> list[dict[str, float]]:
        """Trains the layers, and the encoder if it learns, on triples, and returns the log."""
        learned = options.encoder_learning_rate is not None
        validate = None if measure is None else self._measured_layers(measure, learned=learned)
        queries, graphs, triples = draw_triples(training, options)
        encoder = self.encoder
        if learned:
            encoder = copy_to_train(encoder, options.frozen_encoder_layers)
        digest = hashlib.sha256(json.dumps(queries).encode() + triples.tobytes()).hexdigest()
        identity = identity | {  # checkpoints contain the weights of an encoder that learns
            "encoder": encoder.name if learned else encoder.fingerprint(),
            "training triples": digest,
        }
        names = ("encoder", "config", "titles", "tokens", "_contextualized")
        before = {name: getattr(self, name) for name in names}
        self.contextualized = None  # of the weights that now change
        if learned:
            self._use_copy(encoder)
        try:
            self._keep_tokens = not learned
            tokens = [(graph, self._tokens_of(graph)) for graph in graphs]
            run = self._run(validate, identity)
            return train_on_triples(self.network, encoder, tokens, queries, triples, options, **run)
        except BaseException:  # the trainer has given the network its weights back
            self.__dict__.update(before)
            raise
        finally:
            del self._keep_tokens  # the class attribute is True

    def _measured_layers(self, measure: Validation, *, learned: bool) -> Callable[[], np.ndarray]:
        """A function that measures the present network; queries are encoded once, unless the encoder learns."""
        work = None if learned else [*self._work(measure.run)]

        def measured() -> np.ndarray:
            scores = self._scores(measure.run, work)
            return measure.per_query(ranked(measure.run, scores, self)["score"])

        return measured

    def _use_copy(self, encoder: TokenEncoder) -> None:
        """Takes the copy of the encoder that learns, which stored tokens do not fit."""
        if self.tokens is not None:
            warnings.warn(
                f"fit trains a copy of the encoder: the vectors in {self.tokens!r} are not used any more. To "
                "store new ones: reranker.tokens = TokenStore(path).build(graph, reranker.encoder)",
                SpeedWarning,
                stacklevel=5,
            )
        self.encoder, self.titles, self.tokens = encoder, self._with_titles, None
        self.config = replace(self.config, titles=self.titles)

    def _run(
        self, validate: Callable[[], np.ndarray] | None, identity: dict[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a training besides its options."""
        return {
            "validate": validate,
            "identity": identity,
            "device": self._device,
            "dtype": self.dtype,
            "verbose": self.verbose,
            "random_start": self.random_start,
        }

    # --- representations and explanations

    def contextualize(self, path: str | os.PathLike[str], *, workers: Workers = 1) -> TokenStore:
        """Computes the representations of all passages once, so that reranking is a look-up and a MaxSim (Sect. 5.2.2).

        Give the store to :class:`HGATReranker` as ``contextualized`` (or set that attribute). An interrupted call
        continues when it is repeated, with any number of workers.

        Args:
            path: Folder of the store, which must not exist.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            FileExistsError: If ``path`` exists already.
            ValueError: If the reranker has no document graph.
        """
        if self.graph is None:
            raise ValueError(
                "only the passages of a document graph can be contextualized in advance"
            )
        graph, tokens = self.graph, self.tokens

        def prepare(folder: Path) -> None:
            nonlocal tokens
            if tokens is None:  # every node is encoded once, and none is kept in memory
                tokens = TokenStore(folder / "tokens", verbose=self.verbose)
                if not tokens.built():
                    tokens.build(graph, self.encoder, titles=self.titles, workers=workers)

        def states_of(nodes: np.ndarray) -> TokenStates:
            is_passage = graph.node_type[nodes] == PASSAGE_TYPE
            passages = nodes[is_passage]
            assert tokens is not None
            with torch.inference_mode(), precision(self.dtype, self._device):
                chunks = np.array_split(passages, max(1, -(-len(passages) // self.batch_size)))
                states = [self._in_context(graph, tokens, chunk)[1] for chunk in chunks]
            lengths = torch.zeros(len(nodes), dtype=torch.long)  # 0 for sections
            lengths[torch.from_numpy(is_passage)] = torch.cat([s.lengths.cpu() for s in states])
            return TokenStates(torch.cat([s.values.cpu() for s in states]), offsets(lengths))

        meta = {
            "encoder": self.encoder.name,
            "model": self.config.name,
            "model_sha256": self._digest(),
            "graph_sha256": graph.fingerprint(),
            "titles": self._with_titles,
            "dtype": dtype_name(self.dtype, self._device),
        }
        return TokenStore(path, verbose=self.verbose).write(
            states_of,
            graph.num_nodes,
            self.network.dimension,
            meta,
            identity={
                "encoder_sha256": self.encoder.fingerprint(),
                "batch_size": self.batch_size,
            },
            prepare=prepare,
            task="contextualizing",
            workers=workers,
        )

    def relation_weights(self) -> pd.DataFrame:
        """Importance of each relation per layer (the paper's Table 6); columns add up to 1, SELF included."""
        table = pd.DataFrame(self.network.relation_weights()).T
        table.columns = pd.Index([f"layer {number + 1}" for number in table.columns])
        return table.rename_axis("relation")

    def explain(self, query: str, docno: str, *, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Explains a score: the nodes and tokens that it came from.

        Given the attention weights and the lengths of vectors, a score is a sum over the tokens of all texts that the
        passage aggregates from, directly or through other nodes (plus biases, which belong to no token). With
        ``HGATConfig(attention=...)`` the shares are gradients times inputs, too, but need not add up to the score.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph; by default the graph of the reranker.

        Returns:
            A row per token, the largest shares of the score first, with ``relation`` (of the passage to the node;
            ``'own'`` for the passage, ``''`` for a node that it aggregates from through others), ``source`` (id of the
            node), ``text`` (the token), ``weight`` (NaN: attention has none per token), ``score`` (the token's share:
            gradient times input), ``position`` (of the token in its node).
        """
        graph, target, tokens = self._explained(docno, graph)
        propagation = send_to_device(self.network.plan(graph, target, complete=True), self._device)
        inputs = tokens.states(propagation.nodes, self._device)
        vectors = inputs.values.detach().clone().requires_grad_(True)
        score = self._linear_score(query, inputs.with_values(vectors), propagation)
        # a No self target without neighbors does not depend on any of them
        (gradient,) = torch.autograd.grad(score.sum() + 0 * vectors.sum(), vectors)
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
                "score": (gradient * vectors).sum(1).detach().cpu().numpy(),
                "position": inputs.position.cpu().numpy(),
            }
        )
        return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)

    def _linear_score(self, query: str, states: TokenStates, propagation: Propagation) -> Tensor:
        """Score of the target, shape (1,), whose gradients take attention weights for constants."""
        in_context = self.network(states, propagation, linear=True)
        vectors = self.encoder.encode_queries([query]).to(self._device)[0]
        matches = self.network.matches
        neighbors = None if matches is None else matches.maxima(vectors, states, propagation)
        content = states.select(propagation.inputs)
        return self.network.score(vectors, content, in_context, neighbors)

    def _write(self, folder: Path) -> dict[str, Any]:
        save_file(
            {k: v.contiguous() for k, v in self.network.state_dict().items()}, folder / WEIGHTS
        )
        return super()._write(folder) | {"config": self._config_meta()}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        contextualized = options.pop("contextualized", None)
        layer = about["config"].pop("attention")
        if "config" not in options:
            attention = None if layer is None else saved_layers(layer, "config")
            options["config"] = HGATConfig(**about["config"], attention=attention)
        reranker = super()._read(folder, about, options)
        check_same_class(reranker._config_meta()["attention"], layer, "config")
        reranker.network.load_state_dict(load_file(folder / WEIGHTS))
        reranker.contextualized = contextualized
        return reranker

    def _config_meta(self) -> dict[str, Any]:
        """The configuration as JSON."""
        return self.config.about(self.encoder.dimension)

    def _digest(self) -> str:
        return weights_sha256(
            self.network, before=self.encoder.fingerprint(), after=json.dumps(self._config_meta())
        )
