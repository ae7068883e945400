"""Graphs over passages for ranking, in PyTerrier pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyterrier_graph.evaluation import measures as measures

if TYPE_CHECKING:
    from pyterrier_graph.documents import StructuredDocument as StructuredDocument
    from pyterrier_graph.encoders.token_encoder import TokenEncoder as TokenEncoder
    from pyterrier_graph.encoders.token_store import TokenStore as TokenStore
    from pyterrier_graph.evaluation.cross_validation import cross_validate as cross_validate
    from pyterrier_graph.evaluation.folds import by_query_length as by_query_length
    from pyterrier_graph.evaluation.folds import folds_of as folds_of
    from pyterrier_graph.evaluation.folds import query_folds as query_folds
    from pyterrier_graph.evaluation.model_card import write_card as write_card
    from pyterrier_graph.evaluation.significance import summarize as summarize
    from pyterrier_graph.graphs.candidate_graph import CandidateGraph as CandidateGraph
    from pyterrier_graph.graphs.document_graph import DocumentGraph as DocumentGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph as QueryPassageGraph
    from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig as GNNEncoderConfig
    from pyterrier_graph.models.hgat import HGATConfig as HGATConfig
    from pyterrier_graph.models.lgre import LGReConfig as LGReConfig
    from pyterrier_graph.models.lgre_losses import LGReLoss as LGReLoss
    from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker as CrossEncoderReranker
    from pyterrier_graph.rerank.document_evidence import DocumentEvidence as DocumentEvidence
    from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim as GraphMaxSim
    from pyterrier_graph.rerank.hgat import HGATReranker as HGATReranker
    from pyterrier_graph.rerank.lgre import LGReReranker as LGReReranker
    from pyterrier_graph.retrieve.contextual_index import ContextualIndex as ContextualIndex
    from pyterrier_graph.retrieve.dual_encoder import DualEncoder as DualEncoder
    from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder as GNNEncoder
    from pyterrier_graph.retrieve.graph_mean import GraphMean as GraphMean
    from pyterrier_graph.retrieve.hybrid import Hybrid as Hybrid
    from pyterrier_graph.training.dual import DualEncoderTraining as DualEncoderTraining
    from pyterrier_graph.training.masked_graph import GNNEncoderTraining as GNNEncoderTraining
    from pyterrier_graph.training.mining import HardNegativeMiner as HardNegativeMiner
    from pyterrier_graph.training.mining import TrainingExamples as TrainingExamples
    from pyterrier_graph.training.options import HGATTraining as HGATTraining
    from pyterrier_graph.training.pairs import CrossEncoderTraining as CrossEncoderTraining
    from pyterrier_graph.training.pairs import LGReTraining as LGReTraining

__version__ = "0.1.0"

# A module is imported when its first name is used: importing the package loads neither torch nor PyTerrier. Only the
# measures are registered with ir_measures at once.
_MODULES = {
    "CandidateGraph": "graphs.candidate_graph",
    "ContextualIndex": "retrieve.contextual_index",
    "CrossEncoderReranker": "rerank.cross_encoder",
    "CrossEncoderTraining": "training.pairs",
    "DocumentEvidence": "rerank.document_evidence",
    "DocumentGraph": "graphs.document_graph",
    "DualEncoder": "retrieve.dual_encoder",
    "DualEncoderTraining": "training.dual",
    "GNNEncoder": "retrieve.gnn_encoder",
    "GNNEncoderConfig": "models.gnn_encoder",
    "GNNEncoderTraining": "training.masked_graph",
    "GraphMaxSim": "rerank.graph_maxsim",
    "GraphMean": "retrieve.graph_mean",
    "HGATConfig": "models.hgat",
    "HGATReranker": "rerank.hgat",
    "HGATTraining": "training.options",
    "HardNegativeMiner": "training.mining",
    "Hybrid": "retrieve.hybrid",
    "LGReConfig": "models.lgre",
    "LGReLoss": "models.lgre_losses",
    "LGReReranker": "rerank.lgre",
    "LGReTraining": "training.pairs",
    "QueryPassageGraph": "graphs.query_passage_graph",
    "StructuredDocument": "documents",
    "TokenEncoder": "encoders.token_encoder",
    "TokenStore": "encoders.token_store",
    "TrainingExamples": "training.mining",
    "by_query_length": "evaluation.folds",
    "cross_validate": "evaluation.cross_validation",
    "folds_of": "evaluation.folds",
    "query_folds": "evaluation.folds",
    "summarize": "evaluation.significance",
    "write_card": "evaluation.model_card",
}
_PACKAGES = ("patents", "plots")
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
