"""Pages from templates: text is escaped, and a value that is missing is noticed."""

import pytest
from jinja2 import UndefinedError

from undulatus.products import templates
from undulatus.products.templates import render_template


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose folder has the template ``page.html.jinja``."""
    (tmp_path / "page.html.jinja").write_text("<p>{{ text }}, {{ number }}</p>")
    monkeypatch.setattr(templates, "files", {"a.package": tmp_path}.get)
    return "a.package"


def test_text_is_escaped(package):
    page = render_template(package, "page.html.jinja", text="<b> & co", number=3)
    assert page == "<p>&lt;b&gt; &amp; co, 3</p>"


def test_a_missing_value_is_an_error(package):
    with pytest.raises(UndefinedError, match="number"):
        render_template(package, "page.html.jinja", text="")
