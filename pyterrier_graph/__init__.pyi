# The public names. They are imported from here when they are used; type checkers read the same lines.

from . import patents as patents
from . import plots as plots
from .documents import StructuredDocument as StructuredDocument
from .encoders.token_encoder import TokenEncoder as TokenEncoder
from .encoders.token_store import TokenStore as TokenStore
from .evaluation import measures as measures
from .evaluation.cross_validation import cross_validate as cross_validate
from .evaluation.folds import by_query_length as by_query_length
from .evaluation.folds import folds_of as folds_of
from .evaluation.folds import query_folds as query_folds
from .evaluation.model_card import write_card as write_card
from .evaluation.significance import summarize as summarize
from .folders.search import open_folder as open_folder
from .graphs.candidate_graph import CandidateGraph as CandidateGraph
from .graphs.document_graph import DocumentGraph as DocumentGraph
from .graphs.query_passage_graph import QueryPassageGraph as QueryPassageGraph
from .models.gnn_encoder import GNNEncoderConfig as GNNEncoderConfig
from .models.hgat import HGATConfig as HGATConfig
from .models.lgre import LGReConfig as LGReConfig
from .models.lgre_losses import LGReLoss as LGReLoss
from .plots.explaining import explain as explain
from .readers.html import read_html as read_html
from .readers.jats import read_jats as read_jats
from .readers.markdown import read_markdown as read_markdown
from .readers.records import read_record as read_record
from .readers.rst import read_rst as read_rst
from .rerank.cross_encoder import CrossEncoderReranker as CrossEncoderReranker
from .rerank.document_evidence import DocumentEvidence as DocumentEvidence
from .rerank.graph_maxsim import GraphMaxSim as GraphMaxSim
from .rerank.hgat import HGATReranker as HGATReranker
from .rerank.lgre import LGReReranker as LGReReranker
from .retrieve.contextual_index import ContextualIndex as ContextualIndex
from .retrieve.dual_encoder import DualEncoder as DualEncoder
from .retrieve.gnn_encoder import GNNEncoder as GNNEncoder
from .retrieve.graph_mean import GraphMean as GraphMean
from .retrieve.hybrid import Hybrid as Hybrid
from .retrieve.late_interaction_index import LateInteractionIndex as LateInteractionIndex
from .training.dual import DualEncoderTraining as DualEncoderTraining
from .training.masked_graph import GNNEncoderTraining as GNNEncoderTraining
from .training.mining import HardNegativeMiner as HardNegativeMiner
from .training.mining import TrainingExamples as TrainingExamples
from .training.options import HGATTraining as HGATTraining
from .training.pairs import CrossEncoderTraining as CrossEncoderTraining
from .training.pairs import LGReTraining as LGReTraining
from .warning_categories import PyTerrierGraphWarning as PyTerrierGraphWarning

__version__: str
__all__: list[str]
