"""Sphinx settings."""

import importlib.metadata
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from docutils import nodes

# Boosting's threads would otherwise spin for each other while something else runs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "undulatus"
author = "the undulatus developers"
release = version = importlib.metadata.version("undulatus")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "measured",
    "native_math",
]
html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autosummary_generate = True
# Types stand in the docstrings, in words.
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
# scikit-learn's routing methods point into its own documentation.
suppress_warnings = ["ref.term", "ref.ref", "config.cache"]
exclude_patterns = ["_build", "lessons/*.ipynb"]

html_theme = "pydata_sphinx_theme"
html_title = f"undulatus {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_theme_options = {
    "logo": {
        "text": "undulatus",
        "alt_text": "undulatus",
        "image_light": "_static/logo-light.svg",
        "image_dark": "_static/logo-dark.svg",
    },
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "changelog": []}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "lessons",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "curriculum.Curriculum",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "capture_repr": (),
    "min_reported_time": 0,
    "default_thumb_file": str(HERE / "_static" / "card.png"),
    "image_scrapers": ("matplotlib",),
    "abort_on_example_error": True,
    "plot_gallery": os.environ.get("LESSONS", "1"),
}


LONGEST_WORD = 36
"""Letters of code that fit beside each other on a phone."""


def skip_fitted(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out properties that a class describes among its attributes already."""
    return True if isinstance(member, property) and name.endswith("_") else None


def mark_long_code(app: Any, doctree: Any, page: str) -> None:
    """Let code wrap whose longest word is wider than a phone."""
    for literal in doctree.findall(nodes.literal):
        if max(map(len, literal.astext().split()), default=0) > LONGEST_WORD:
            literal["classes"].append("long")


def add_card(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Name the picture that a link to a page shows elsewhere."""
    context["metatags"] = context.get("metatags", "") + (
        f'<meta property="og:title" content="{context.get("title", project)}">'
        f'<meta property="og:image" content="{context["pathto"]("_static/card.png", 1)}">'
        '<meta name="twitter:card" content="summary_large_image">'
    )


def setup(app: Any) -> None:
    """Connect the above."""
    # Of libraries about their own future: nothing that a reader of a lesson can change.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    app.connect("autodoc-skip-member", skip_fitted)
    app.connect("doctree-resolved", mark_long_code)
    app.connect("html-page-context", add_card)
