"""Builds pyterrier_graph's pages of PyTerrier's documentation by themselves, with the settings that they have there.

``sphinx-build -W -c docs pyterrier_graph/pt_docs OUTPUT``
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "pyterrier_graph"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "pyterrier_directives"]
html_theme = "alabaster"
html_show_copyright = False

autoclass_content = "both"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"member-order": "bysource"}
autodoc_inherit_docstrings = False

# Every reference to this package has to lead somewhere; those to others do in PyTerrier's documentation only.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!pyterrier_graph\.).*")]
