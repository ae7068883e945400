"""What fuses an index has in common, whether it is a rule or a network."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.vector_files import VectorsOf
from pyterrier_graph.graphs.ids import numbers_of
from pyterrier_graph.models.gnn_encoder import RELEVANT, GNNEncoderNetwork, PassageNetwork, Paths
from pyterrier_graph.retrieve.index_writer import fused_identity, write_fused
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler, name_of
from pyterrier_graph.training.grid_search import WEIGHTS, Numbers, coordinate_search
from pyterrier_graph.training.validation import RunEvaluator, documents_of, judged, judged_ids

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

logger = logging.getLogger(__name__)
QUERIES_AT_ONCE = 4096
ISOLATED_NORM = "isolated_norm"
ISOLATED_NORMS = (1.0, 1.05, 1.1, 1.15, 1.2)
Result = TypeVar("Result")


class FusedEncoder(pt.Estimator):
    """Makes vectors of passages that have listened to what is around them.

    Attributes:
        encoder: The dual-encoder.
        index: Its vectors of the passages.
        queries: The graph of training queries and passages.
        documents: The graph of the passages' documents.
        network: Makes the vectors.
        folder: Where vectors of queries and titles are kept.
        candidates: Passages per validation query; each is ranked among the candidates of all.
        device: As torch names it.
        verbose: Whether to show progress.
    """

    encoder: BiEncoder
    index: FlexIndex | None
    queries: QueryPassageGraph | None
    documents: HeteroGraph | None
    network: PassageNetwork
    folder: str | os.PathLike[str] | None
    candidates: int
    device: str | None
    verbose: bool
    _last: tuple[tuple[Any, ...], NeighborSampler] | None = None

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries, for the retrievers of a fused index.

        Args:
            inp: ``qid, query``.

        Returns:
            The same with ``query_vec``.
        """
        return self.query_encoder().transform(inp)

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries, for the retrievers of a fused index: ``query`` to ``query_vec``."""
        return self.encoder.query_encoder()

    def fuse(
        self,
        base_index: FlexIndex,
        fused_index: FlexIndex,
        *,
        previous: FlexIndex | None = None,
        passages_at_once: int = 16_384,
    ) -> FlexIndex:
        """Writes the index of what passages are after they have listened.

        It is an ordinary ``FlexIndex`` with the passages of the base index, those that hear nothing included. Queries
        are computed once, then passages chunk by chunk: memory does not grow with the passages. Until the index is
        complete there is none; a call that was killed goes on when it is repeated.

        Args:
            base_index: The dual-encoder's vectors.
            fused_index: Where to write; nothing may be there yet.
            previous: An index that the same network has made before queries were added (``QueryPassageGraph.add``):
                only passages that the new queries touch are computed, all others copied from it.
            passages_at_once: Passages per chunk.

        Returns:
            ``fused_index``.

        Raises:
            FileExistsError: If something lies at its path.
            FileNotFoundError: If there is no base index.
            ValueError: If the base index has other passages than the graphs or other dimensions than the network, or
                ``previous`` was made by another network, of another base index, or before other queries.
        """
        sampler = self._sampler(base_index)
        identity = {"network": self._digest(), "vectors": sampler.vectors_digest()} | self._heard()
        changed = None if previous is None else (previous, self._changed(previous, identity))
        return write_fused(
            base_index,
            fused_index,
            self._vectors_of(sampler),
            identity=identity,
            previous=changed,
            passages_at_once=passages_at_once,
            verbose=self.verbose,
        )

    def vectors(self, docnos: Sequence[str]) -> np.ndarray:
        """What passages are after they have listened: float32 of shape (passages, d).

        Raises:
            KeyError: If a passage is not in the index.
        """
        sampler = self._sampler(self.index)
        return self._vectors_of(sampler)(_numbers_of(sampler, docnos))

    def explain(self, docno: str) -> pd.DataFrame:
        """Says what a passage listened to, and how much.

        Args:
            docno: The passage.

        Returns:
            A row per source, the most heard first: ``qid`` (of a query, or id of a node), ``query`` (its text),
            ``weight`` (attention, mean over heads: within a channel they add up to 1, the passage itself included where
            it is a source), ``edge`` (the channel), ``gate`` (what the channel's sum is multiplied by, mean over
            dimensions). For ``plots.passage_queries``.

        Raises:
            KeyError: If the passage is not in the index.
        """
        sampler = self._sampler(self.index)
        neighborhood, queries, nodes = sampler.sample(_numbers_of(sampler, [docno]))
        with torch.inference_mode():
            attended = self.network.attended(neighborhood.to(self._device))
        rows = []
        for channel, (weights, gate) in attended.items():
            place = neighborhood.edges[channel].indices.numpy()
            if channel in nodes:
                documents = sampler.documents
                assert documents is not None
                numbers = nodes[channel][place]
                ids, texts = [*map(str, documents.ids_of(numbers))], documents.texts(numbers)
            else:
                graph = sampler.queries
                assert graph is not None
                ids, texts = graph.qids_of(queries[place]), graph.texts(queries[place])
            about = {"qid": ids, "query": texts, "weight": weights.cpu().numpy(), "edge": channel, "gate": float(gate)}
            rows.append(pd.DataFrame(about))
        columns = ["qid", "query", "weight", "edge", "gate"]
        heard = pd.concat(rows) if rows else pd.DataFrame(columns=columns)
        return heard[columns].sort_values("weight", ascending=False, kind="stable").reset_index(drop=True)

    def tune(self, topics: pd.DataFrame, qrels: pd.DataFrame, *, measure: str = "nDCG@10") -> Self:
        """Sets the numbers of a typed network: the weights of its channels, and ``isolated_norm``.

        Each in turn takes the value of a grid that is best by ``measure``, in two sweeps; that of known queries and
        ``isolated_norm`` as a pair: the more is heard, the more falls behind. All else that the network has learned stays.

        Args:
            topics: Validation queries: ``qid, query``. They should not be in the graph: a query finds what listens to
                it.
            qrels: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            measure: What is maximized.

        Raises:
            ValueError: If none of the queries is judged, or the network is not a typed one.
        """
        network = self.network
        if not isinstance(network, GNNEncoderNetwork):
            raise ValueError(f"{self!r} has no weights of channels: the network must be a typed one")
        sampler = self._sampler(self.index)
        paths_of = self._computed(sampler, network.paths)
        kept: dict[int, Paths] = {}

        @torch.inference_mode()
        def vectors_of(passages: np.ndarray) -> np.ndarray:
            first = int(passages[0])
            if first not in kept:
                kept[first] = paths_of(passages)
            return network.joined(kept[first]).cpu().numpy()

        numbers = dict(zip(network.channels, network.scalars(), strict=True)) | {ISOLATED_NORM: network.isolated_norm}
        quality = self._quality(sampler, topics, qrels, measure, lambda: vectors_of)

        def assign(values: Numbers) -> float:
            with torch.no_grad():
                for name, value in values.items():
                    numbers[name].fill_(value)
            return quality()

        grid: list[Numbers] = []
        for name in network.channels:
            if name == RELEVANT:
                grid += [{name: w, ISOLATED_NORM: n} for w in WEIGHTS for n in ISOLATED_NORMS if w or n == 1]
            else:
                grid += [{name: w} for w in WEIGHTS]
        start = {name: float(number) for name, number in numbers.items()}
        best = coordinate_search(start, grid, assign, verbose=self.verbose)
        with torch.no_grad():
            for name, value in best.items():
                numbers[name].fill_(value)
        return self

    @property
    def _channels(self) -> Sequence[str]:
        """What is listened to."""
        return self.network.channels

    @property
    def _device(self) -> torch.device:
        return device_of(self.device)

    def _sampler(self, index: FlexIndex | None) -> NeighborSampler:
        """Passages of an index, with all that the network listens to; the last ones are kept, as queries are encoded.

        Raises:
            FileNotFoundError: If there is no index at its path.
            ValueError: If there is none at all, or it does not fit.
        """
        if index is None:
            raise ValueError("the passages' vectors are needed: give index=FlexIndex(...)")
        config: Any = self.network.config
        key = (index, self.encoder, name_of(self.encoder), self.queries, self.documents, *self._channels, self.folder)
        if self._last is not None and len(key) == len(self._last[0]) and all(map(_same, key, self._last[0])):
            return self._last[1]
        sampler = NeighborSampler(
            index,
            self.encoder,
            self._channels,
            self.queries,
            self.documents,
            two_hops=self.network.two_hops,
            edge_features=bool(getattr(config, "edge_features", None)),
            folder=None if self.folder is None else Path(self.folder),
            verbose=self.verbose,
        )
        if sampler.vectors.shape[1] != config.dimension:
            raise ValueError(
                f"{index!r} has vectors of {sampler.vectors.shape[1]} dimensions, "
                f"the network is made for {config.dimension}"
            )
        self._last = (key, sampler)
        return sampler

    def _vectors_of(self, sampler: NeighborSampler) -> VectorsOf:
        """Computes any passages; what queries are is computed now."""
        states_of = self._computed(sampler, self.network.passage_states)
        return lambda passages: states_of(passages).cpu().numpy()

    def _computed(self, sampler: NeighborSampler, function: Callable[..., Result]) -> Callable[[np.ndarray], Result]:
        """Gives a function of the network what it takes for any passages."""
        network = self.network.to(self._device).eval()
        device, graph = self._device, sampler.queries
        ready: dict[str, Any] = {}
        if graph is not None and sampler.query_channels:
            with torch.inference_mode():
                states = torch.from_numpy(np.array(sampler.query_vectors))
                if network.two_hops:
                    for start in range(0, len(states), QUERIES_AT_ONCE):
                        part = np.arange(start, min(start + QUERIES_AT_ONCE, len(states)))
                        heard, edges = sampler.heard_by(part, graph)
                        own = states[part].to(device)
                        states[part] = network.query_states(own, heard.to(device), edges.to(device)).cpu()
                ready = network.prepare(dict.fromkeys(sampler.query_channels, states.to(device)))

        @torch.inference_mode()
        def computed(passages: np.ndarray) -> Result:
            sources, edges = dict(ready), {}
            if graph is not None:
                for channel in ready:
                    edges[channel] = sampler.query_edges(graph, passages, channel).to(device)
            for relation in sampler.relations:
                _, vectors, lists = sampler.related(passages, relation)
                sources[relation], edges[relation] = vectors.to(device), lists.to(device)
            own = sampler.own(passages).to(device)
            return function(own, sources, edges)

        return computed

    def _quality(
        self,
        sampler: NeighborSampler,
        topics: pd.DataFrame,
        qrels: pd.DataFrame | None,
        measure: str,
        compute: Callable[[], VectorsOf] | None = None,
        encode: Callable[[list[str]], Any] | None = None,
    ) -> Callable[[], float]:
        """What measures the model as it is, by what each query finds among the candidates of all.

        The candidates are what the dual-encoder finds for any of the queries, and all relevant passages. With those of
        the query alone nothing could show that what listens comes up where it should not.

        Args:
            sampler: The passages.
            topics: ``qid, query``.
            qrels: Judgments for them.
            measure: What is measured.
            compute: Makes what computes passages, by default by the network as it then is.
            encode: Encodes queries, where that changes from one call to the next.
        """
        topics, qrels = judged(topics.assign(docno=""), qrels, self)
        qrels = qrels[qrels["qid"].isin(topics["qid"])]
        queries = query_texts(topics)
        graph = sampler.queries
        if graph is not None and sampler.query_channels:
            inside = int((numbers_of(graph.qids, queries.index.tolist()) >= 0).sum())
            if inside:
                logger.warning("%d of %d validation queries are in the graph: these are too easy", inside, len(queries))
        retriever = sampler.index.np_retriever(num_results=self.candidates)
        vectors = np.asarray(self.encoder.encode_queries(queries.tolist()), dtype=np.float32)
        found = retriever(pd.DataFrame({"qid": queries.index, "query": queries.tolist(), "query_vec": [*vectors]}))
        docnos = pd.concat([found["docno"], passages_of(sampler, qrels)[0]["docno"]]).unique()
        numbers = sampler.numbers_of([*docnos])
        order = numbers.argsort()
        numbers, ids = numbers[order], np.asarray(judged_ids(pd.Series(docnos), qrels), dtype=object)[order]
        evaluate = RunEvaluator(measure, qrels)
        count = min(self.candidates, len(numbers))
        qids = np.repeat(queries.index.to_numpy(), count)

        def quality() -> float:
            vectors_of = compute() if compute is not None else self._vectors_of(sampler)
            parts = (numbers[start : start + QUERIES_AT_ONCE] for start in range(0, len(numbers), QUERIES_AT_ONCE))
            states = torch.from_numpy(np.concatenate([vectors_of(part) for part in parts]))
            current = vectors if encode is None else np.asarray(encode(queries.tolist()), dtype=np.float32)
            best = [(part @ states.T).topk(count) for part in torch.from_numpy(current).split(QUERIES_AT_ONCE // 64)]
            scores, places = (torch.cat(parts).flatten().numpy() for parts in zip(*best, strict=True))
            run = pd.DataFrame({"qid": qids, "docno": ids[places], "score": scores})
            return evaluate(run.groupby(["qid", "docno"], as_index=False, sort=False)["score"].max())

        return quality

    def _digest(self) -> str:
        config: Any = self.network.config
        return weights_sha256(self.network, before=repr(sorted(config.to_dict().items())))

    def _heard(self) -> dict[str, Any]:
        """What is listened to, for telling one fused index from another."""
        heard: dict[str, Any] = {"encoder": name_of(self.encoder), "channels": list(self._channels)}
        if self.queries is not None:
            heard |= {"graph": self.queries.fingerprint(), "queries": self.queries.num_queries}
            heard["query_ids"] = _digest_of_queries(self.queries, self.queries.num_queries)
        if self.documents is not None:
            heard["documents"] = self.documents.fingerprint()
        return heard

    def _changed(self, previous: FlexIndex, identity: dict[str, Any]) -> np.ndarray:
        """Numbers of the passages that queries touch which were added since an index was fused."""
        before, graph = fused_identity(previous), self.queries
        if graph is None or "queries" not in before:
            raise ValueError("previous= is for added queries, but there is no graph of queries")
        fixed = ("network", "encoder", "channels", "vectors", "documents")
        differing = [name for name in fixed if before.get(name) != identity.get(name)]
        if differing:
            raise ValueError(f"{previous!r} was fused with another {' and '.join(differing)}: fuse without previous=")
        old = before["queries"]
        if old > graph.num_queries or _digest_of_queries(graph, old) != before["query_ids"]:
            raise ValueError(f"{previous!r} was fused with other queries than the first {old} of {graph!r}")
        new = np.arange(old, graph.num_queries)
        found = [graph.edges_of_queries(new, edge_type).indices for edge_type in graph.edge_types]
        return np.unique(np.concatenate(found))


def passages_of(sampler: NeighborSampler, qrels: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The relevant passages of queries: judgments of documents are those of all their passages.

    Args:
        sampler: Knows the passages.
        qrels: ``qid, docno, label``, ids as text.

    Returns:
        ``qid, docno`` of passages in the index, and whether it was documents that were judged.

    Raises:
        KeyError: If no relevant passage is in the index.
    """
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    known = sampler.numbers_of(relevant["docno"].tolist()) >= 0
    if known.any():
        return relevant[known].reset_index(drop=True), False
    parts = []
    for docnos in sampler.docnos_in_parts():
        passages = pd.DataFrame({"passage": pd.Series(docnos, dtype=object)})
        parts.append(relevant.merge(passages.assign(docno=documents_of(passages["passage"])), on="docno"))
    joined = pd.concat(parts, ignore_index=True)[["qid", "passage"]].rename(columns={"passage": "docno"})
    if not len(joined):
        raise KeyError("no relevant passage is in the index: are the judgments of another corpus?")
    return joined, True


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, str) and one == other)


def _digest_of_queries(graph: QueryPassageGraph, count: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, count, QUERIES_AT_ONCE):
        qids = graph.qids_of(np.arange(start, min(start + QUERIES_AT_ONCE, count)))
        digest.update("\n".join(qids).encode() + b"\n")
    return digest.hexdigest()


def _numbers_of(sampler: NeighborSampler, docnos: Sequence[str]) -> np.ndarray:
    numbers = sampler.numbers_of(docnos)
    if (numbers < 0).any():
        raise KeyError(f"{docnos[int((numbers < 0).argmax())]!r} is not a passage of the index")
    return numbers
