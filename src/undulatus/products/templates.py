"""HTML pages from the package's jinja templates: one way to fill them in."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render_template(package: str, name: str, **values: Any) -> str:
    """Fill in a template and return the page as text.

    Parameters
    ----------
    package : str
        Where the template is, such as ``"undulatus.products"``.
    name : str
        Its file name.
    **values
        What the template refers to. Text is escaped for HTML; a missing value is an error.
    """
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    return _ENVIRONMENT.from_string(text).render(**values)
