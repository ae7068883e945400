# The public names. They are imported from here when they are used; type checkers read the same lines.

from . import clef_ip as clef_ip
from .checks import PyTerrierGraphWarning as PyTerrierGraphWarning
from .documents.document import StructuredDocument as StructuredDocument
from .documents.readers.files import read_html as read_html
from .documents.readers.files import read_markdown as read_markdown
from .documents.readers.files import read_office as read_office
from .documents.records import read_record as read_record
from .encoders.token_encoder import TokenEncoder as TokenEncoder
from .encoders.token_store import TokenStore as TokenStore
from .evaluation import measures as measures
from .evaluation.cross_validation import cross_validate as cross_validate
from .evaluation.cross_validation import query_folds as query_folds
from .evaluation.significance import summarize as summarize
from .gnn_encoder.encoder import GNNEncoder as GNNEncoder
from .gnn_encoder.network import GNNEncoderConfig as GNNEncoderConfig
from .gnn_encoder.training import GNNEncoderTraining as GNNEncoderTraining
from .graph_maxsim.reranker import GraphMaxSim as GraphMaxSim
from .graph_mean.contextual_index import ContextualIndex as ContextualIndex
from .graph_mean.graph_mean import GraphMean as GraphMean
from .graphs.candidate_graph import CandidateGraph as CandidateGraph
from .graphs.document_graph import DocumentGraph as DocumentGraph
from .graphs.query_passage_graph import QueryPassageGraph as QueryPassageGraph
from .hgat.equations import HGATConfig as HGATConfig
from .hgat.reranker import HGATReranker as HGATReranker
from .hgat.training import HGATTraining as HGATTraining
from .lgre.cross_encoder import CrossEncoderReranker as CrossEncoderReranker
from .lgre.equations import LGReConfig as LGReConfig
from .lgre.losses import LGReLoss as LGReLoss
from .lgre.reranker import LGReReranker as LGReReranker
from .lgre.training import CrossEncoderTraining as CrossEncoderTraining
from .lgre.training import LGReTraining as LGReTraining
from .pair.dual_encoder import DualEncoder as DualEncoder
from .pair.mining import HardNegativeMiner as HardNegativeMiner
from .pair.mining import MiningConfig as MiningConfig
from .pair.training import DualEncoderTraining as DualEncoderTraining
from .search.document_evidence import DocumentEvidence as DocumentEvidence
from .search.folder import open_folder as open_folder
from .search.graph_index import GraphIndex as GraphIndex
from .search.hybrid import Hybrid as Hybrid
from .show import plots as plots
from .show.explain import explain as explain
from .training.grid_search import Tuning as Tuning

__version__: str
__all__: list[str]
