"""Sphinx's settings for the documentation site; ``make docs`` builds it.

The sources are the Markdown files of the repository as they are, README among them, so that they
read the same in an editor and on the site.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from markdown_pages import ROOT, SHOWN
from pygments.lexers.shell import BashLexer
from sphinx.application import Sphinx

project = "fanin"
author = "The fanin authors"
copyright = "2026, the fanin authors"
release = version_of("fanin")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "markdown_pages"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
# Sphinx walks every folder that is not excluded, environments and builds too.
exclude_patterns = [
    *(entry.name for entry in ROOT.iterdir() if entry.name not in SHOWN),
    "docs/site",
]

myst_enable_extensions = ["html_image"]
myst_heading_anchors = 6
suppress_warnings: list[str] = []

smartquotes = False  # they make dashes of the options in commands
default_role = "code"  # as docstrings use single backticks
autodoc_member_order = "bysource"  # the order of __all__
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 60
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fanin {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_copy_source = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def setup(app: Sphinx) -> None:
    """Color console blocks as commands: without prompts, Sphinx would take them for output."""
    app.add_lexer("console", BashLexer)
