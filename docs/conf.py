"""The documentation's site (Sphinx, Markdown by MyST): `scripts/docs` builds it, strictly.

Pages are the Markdown files here. `_ext/reference.py` fills in what is generated: commands, passes, families,
and the notebooks of `notebooks/`. The result opens from the disk, search included, and needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "tvmopt"
copyright = "the tvmopt authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "reference"]
exclude_patterns = ["_build", "_ext", "how-to/nightly-files/**"]

html_theme = "furo"
html_title = "tvmopt"
html_show_sourcelink = False
html_copy_source = False
templates_path: list[str] = []

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "off"  # notebooks are shown as they were committed; the tests execute them
nb_merge_streams = True

default_role = "literal"  # our docstrings write `names` in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the attributes of a dataclass, in its docstring, without a second entry
