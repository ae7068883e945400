"""Settings of the documentation; its pages for PyTerrier's documentation are built as they are there.

``python docs/pages.py OUTPUT``
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "pyterrier_graph"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "pyterrier_directives",
]
html_theme = "furo"  # as PyTerrier's documentation
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_show_copyright = False

autoclass_content = "both"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"member-order": "bysource"}
autodoc_inherit_docstrings = False

# Every reference to this package has to lead somewhere; those to others do in PyTerrier's documentation only.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!pyterrier_graph\.).*")]

smartquotes = False  # options such as --seeds keep their hyphens
nb_execution_mode = "off"  # the outputs are stored
nb_merge_streams = True
