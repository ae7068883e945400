"""What the GNN-encoder's networks have in common: how they are called."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RETRIEVED
from pyterrier_graph.models.bipartite_attention import BipartiteAttention, Sources, in_chunks
from pyterrier_graph.models.neighbor_batch import NeighborBatch


class Attended(NamedTuple):
    """How much passages attend to the sources of one relation."""

    edges: Tensor  # attention to each source, the mean over heads, in the order of the relation's edges, shape (edges,)
    gate: Tensor  # the factor of the sum over the sources, the mean over dimensions, shape (passages,)


class PassageNetwork(nn.Module, ABC):
    """Base of both networks, so that training and indexing need not know which network it is.

    An index is computed in this order: :meth:`query_states` of all queries once, :meth:`prepare` once, then
    :meth:`passage_states` of a chunk of passages at a time. Training calls the network with a :class:`NeighborBatch`.
    Below, h_q and h_p are vectors of queries and passages, shape (number, d), and each relation has edges with a row
    per target.

    Attributes:
        relations: Names of the relations, which are the keys of ``sources`` and ``edges``.
        dimension: d.
        two_hops: Whether queries aggregate from passages, before passages aggregate from queries.
        edge_features: Whether attention depends on features of the query graph's edges.
        normalizes: Whether the vectors that come out have unit length, or nearly.
    """

    relations: tuple[str, ...]
    dimension: int
    two_hops = False
    edge_features = False
    normalizes = False

    @property
    def width(self) -> int:
        """Dimensions of the vectors that come out."""
        return self.dimension

    def forward(self, batch: NeighborBatch) -> Tensor:
        """h'_p, shape (passages, width)."""
        return self.passage_states(batch.passages, self._sources(batch), batch.edges)

    def _sources(self, batch: NeighborBatch) -> dict[str, Any]:
        """The sources of a batch, after the first hop where there is one."""
        sources: dict[str, Any] = dict(batch.sources)
        if batch.second_hop is not None and batch.to_queries is not None:
            sources[RETRIEVED] = self.query_states(sources[RETRIEVED], batch.second_hop, batch.to_queries)
        return sources

    def attended(self, batch: NeighborBatch) -> dict[str, Attended]:
        """How much passages attend to each source, by relation; relations without edges are left out."""
        sources, names = self._sources(batch), [name for name in self.relations if name in batch.edges]
        return {name: self._attended(name, batch.passages, sources[name], batch.edges[name]) for name in names}

    @abstractmethod
    def _attended(self, relation: str, passages: Tensor, sources: Any, edges: CSR) -> Attended:
        """How much passages attend to each source of a relation."""

    @abstractmethod
    def _attention(self, relation: str) -> BipartiteAttention | None:
        """The attention to the sources of a relation."""

    @abstractmethod
    def _states(self, passages: Tensor, sources: Mapping[str, Any], edges: Mapping[str, CSR]) -> Tensor:
        """The states of some passages, from prepared sources."""

    def query_states(self, queries: Tensor, passages: Tensor, edges: CSR) -> Tensor:
        """h'_q of queries after they have aggregated from passages; here, their vectors unchanged."""
        return queries

    def prepare(self, sources: Mapping[str, Tensor | Sources]) -> dict[str, Tensor | Sources]:
        """Does once what each call of :meth:`passage_states` otherwise does with its sources."""
        self._check_relations(sources)
        prepared = dict(sources)
        for name, vectors in sources.items():
            if (attention := self._attention(name)) is not None:
                prepared[name] = attention.prepare(vectors)
        return prepared

    def passage_states(
        self, passages: Tensor, sources: Mapping[str, Tensor | Sources], edges: Mapping[str, CSR]
    ) -> Tensor:
        """h'_p of passages after they have aggregated from their sources.

        Sources are the output of :meth:`query_states`, other vectors, or the output of :meth:`prepare`. A relation that
        is left out has no edges.
        """
        self._check_relations(edges)
        for relation, rows in edges.items():
            if relation not in sources:
                raise KeyError(f"relation {relation} has edges, but no sources; there are sources of {list(sources)}")
            check_rows("passages", passages, rows)
        prepared = self.prepare(sources)

        def states(part: slice) -> Tensor:
            return self._states(passages[part], prepared, {name: rows.rows(part) for name, rows in edges.items()})

        return in_chunks(states, passages)

    def scalars(self) -> list[nn.Parameter]:
        """The parameters that are single numbers; they may need a higher learning rate than matrices."""
        return []

    def _check_relations(self, by_relation: Mapping[str, Any]) -> None:
        if by_relation.keys() - set(self.relations):
            raise KeyError(f"relations must be among {', '.join(self.relations)}, got {', '.join(by_relation)}")


def check_rows(name: str, targets: Tensor, edges: CSR) -> None:
    """Raises ValueError unless there is a row of edges per target."""
    if len(edges) != len(targets):
        raise ValueError(f"edges must have a row for each of the {len(targets)} {name}, got {len(edges)}")
