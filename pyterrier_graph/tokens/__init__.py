"""Token-level (late-interaction) representations of passages and queries."""

from pyterrier_graph.tokens.encoder import TokenEncoder
from pyterrier_graph.tokens.states import TokenStates
from pyterrier_graph.tokens.store import TokenStore

__all__ = ["TokenEncoder", "TokenStates", "TokenStore"]
