"""Sphinx settings."""

import importlib.metadata
from typing import Any

project = "undulatus"
author = "the undulatus developers"
release = version = importlib.metadata.version("undulatus")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autosummary_generate = True
# Types stand in the docstrings, in words.
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
# scikit-learn's routing methods point into its own documentation.
suppress_warnings = ["ref.term", "ref.ref"]
html_theme = "furo"
exclude_patterns = ["_build"]


def skip_fitted(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out properties that a class describes among its attributes already."""
    return True if isinstance(member, property) and name.endswith("_") else None


def setup(app: Any) -> None:
    """Connect the above."""
    app.connect("autodoc-skip-member", skip_fitted)
