"""Graphs over passages for ranking, in PyTerrier pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyterrier_graph import measures as measures

if TYPE_CHECKING:
    from pyterrier_graph.dense.dual_encoder import DualEncoder as DualEncoder
    from pyterrier_graph.dense.gnn_encoder import GNNEncoder as GNNEncoder
    from pyterrier_graph.dense.masked_graph import GNNEncoderTraining as GNNEncoderTraining
    from pyterrier_graph.dense.mean_queries import MeanQueries as MeanQueries
    from pyterrier_graph.documents import StructuredDocument as StructuredDocument
    from pyterrier_graph.graphs import CandidateGraph as CandidateGraph
    from pyterrier_graph.graphs import DocumentGraph as DocumentGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph as QueryPassageGraph
    from pyterrier_graph.model_card import write_card as write_card
    from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig as GNNEncoderConfig
    from pyterrier_graph.models.gnn_encoder import TypedGNNEncoderConfig as TypedGNNEncoderConfig
    from pyterrier_graph.models.lgre_losses import LGReLoss as LGReLoss
    from pyterrier_graph.protocol import by_query_length as by_query_length
    from pyterrier_graph.protocol import cross_validate as cross_validate
    from pyterrier_graph.protocol import folds_of as folds_of
    from pyterrier_graph.protocol import query_folds as query_folds
    from pyterrier_graph.protocol import summarise as summarise
    from pyterrier_graph.rerank import DocumentEvidence as DocumentEvidence
    from pyterrier_graph.rerank import GraphMaxSim as GraphMaxSim
    from pyterrier_graph.rerank import HGATReranker as HGATReranker
    from pyterrier_graph.rerank import LGReReranker as LGReReranker
    from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker as CrossEncoderReranker
    from pyterrier_graph.tokens import TokenEncoder as TokenEncoder
    from pyterrier_graph.tokens import TokenStore as TokenStore
    from pyterrier_graph.training import Training as Training
    from pyterrier_graph.training.dual import DualEncoderTraining as DualEncoderTraining
    from pyterrier_graph.training.mining import ExampleMiner as ExampleMiner
    from pyterrier_graph.training.mining import TrainingExamples as TrainingExamples
    from pyterrier_graph.training.pairs import CrossEncoderTraining as CrossEncoderTraining
    from pyterrier_graph.training.pairs import LGReTraining as LGReTraining

__version__ = "0.1.0"

# A module is imported when its first name is used: importing the package loads neither torch nor PyTerrier. Only the
# measures are registered with ir_measures at once.
_MODULES = {
    "CandidateGraph": "graphs",
    "CrossEncoderReranker": "rerank.cross_encoder",
    "CrossEncoderTraining": "training.pairs",
    "DocumentEvidence": "rerank",
    "DocumentGraph": "graphs",
    "DualEncoder": "dense.dual_encoder",
    "DualEncoderTraining": "training.dual",
    "ExampleMiner": "training.mining",
    "GNNEncoder": "dense.gnn_encoder",
    "GNNEncoderConfig": "models.gnn_encoder",
    "GNNEncoderTraining": "dense.masked_graph",
    "GraphMaxSim": "rerank",
    "HGATReranker": "rerank",
    "LGReLoss": "models.lgre_losses",
    "LGReReranker": "rerank",
    "LGReTraining": "training.pairs",
    "MeanQueries": "dense.mean_queries",
    "QueryPassageGraph": "graphs.query_passage_graph",
    "StructuredDocument": "documents",
    "TokenEncoder": "tokens",
    "TokenStore": "tokens",
    "Training": "training",
    "TrainingExamples": "training.mining",
    "TypedGNNEncoderConfig": "models.gnn_encoder",
    "by_query_length": "protocol",
    "cross_validate": "protocol",
    "folds_of": "protocol",
    "query_folds": "protocol",
    "summarise": "protocol",
    "write_card": "model_card",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
