# The public names. They are imported from here when they are used; type checkers read the same lines.

from .document_frequencies import DocumentFrequencies as DocumentFrequencies
from .files import Archive as Archive
from .patents import Patent as Patent
from .patents import read_patent as read_patent
from .transformers import AbstractTerms as AbstractTerms
from .transformers import ClaimsQuery as ClaimsQuery
from .transformers import DocumentCutoff as DocumentCutoff
from .transformers import NotOwnFamily as NotOwnFamily
from .transformers import SharedCodes as SharedCodes

__all__: list[str]
