"""Pages lead somewhere, hold small pictures, and say what the package says."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from tests.docs.pages import DOCS, PAGES, ROOT

from undulatus import RFFGPC, VFFGPC, save_model
from undulatus.products.predict import quality_attributes

BY_PATH = {page.path.resolve(): page for page in PAGES}

LESSONS = sorted((ROOT / "examples").glob("*.py"))


def read_as_module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors_of(page):
    """Return the anchors of a page's headings, as they are made of their words."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.text)
    headings = re.findall(r"(?m)^#{1,4} (.+)$", text)
    plain = (re.sub(r"[`*$]", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def links_of(page):
    text = re.sub(r"(?ms)^```.*?^```$", "", page.text)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for link in links_of(page):
        name, _, place = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if "/lessons" in str(target) and DOCS in target.parents:
            assert target.stem in {"index", *(lesson.stem for lesson in LESSONS)}, link
            continue
        found = next((t for t in (target, target.with_suffix(".md")) if t.exists()), None)
        assert found, f"{page.name}: {link}"
        if place and found in BY_PATH:
            assert place in anchors_of(BY_PATH[found]), f"{page.name}: {link}"


def test_tests_and_benchmarks_that_are_named_exist():
    for page in PAGES:
        for name in re.findall(r"`((?:tests|benchmarks|examples)/[\w/.]+)`", page.text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_pictures_are_small():
    pictures = [p for p in DOCS.rglob("*") if p.suffix in {".png", ".jpg", ".svg"}]
    written = [p for p in pictures if not set(p.parts) & {"_build", "lessons", "api"}]
    assert written
    assert all(picture.stat().st_size < 400_000 for picture in written)


def test_every_page_is_in_the_contents():
    listed = {"index"}
    for page in PAGES:
        for body in page.blocks("{toctree}"):
            names = [x.strip() for x in body.splitlines() if x.strip() and x[0] not in ":"]
            folder = page.path.parent
            listed |= {str((folder / name).resolve().relative_to(DOCS)) for name in names}
    pages = {
        str(p.path.relative_to(DOCS).with_suffix("")) for p in PAGES if DOCS in p.path.parents
    }
    assert pages <= listed


PYTHON = [(page.name, block) for page in PAGES for block in page.blocks("python")]


@pytest.mark.parametrize(("name", "block"), PYTHON, ids=[name for name, _ in PYTHON])
def test_blocks_of_python_can_be_read_and_import_what_there_is(name, block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("undulatus"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


def test_every_lesson_has_its_place():
    order = read_as_module(DOCS / "extensions" / "curriculum.py").LESSONS
    assert sorted(order) == [lesson.stem for lesson in LESSONS]


def messages_of_the_source():
    """Return every text in the source, with an ellipsis for what is put into it."""
    texts = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "..." for p in node.values)
                texts.append("".join(parts))
    return "\n".join(texts)


def test_messages_of_the_page_on_errors_are_those_of_the_source():
    source = messages_of_the_source()
    text = (DOCS / "reference" / "errors.md").read_text()
    quoted = re.findall(r"(?m)^\*\*`(.+)`\*\*$", text)
    assert len(quoted) > 20
    for message in quoted:
        pieces = [piece.strip(" .") for piece in message.split("...")]
        missing = [piece for piece in pieces if piece and piece not in source]
        assert not missing, message


def test_the_table_of_quality_flags_is_that_of_the_package(moons):
    attributes = quality_attributes(object())
    table = (DOCS / "reference" / "names.md").read_text()
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)`", table)
    named = zip(attributes["flag_values"], attributes["flag_meanings"].split(), strict=True)
    assert rows == [(str(value), name) for value, name in named]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
def test_a_model_is_read_by_the_program_of_the_page_as_by_the_package(kind, classes, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1.0, 100.0, 0.01]
    y = np.digitize(X[:, 0], [-0.3, 0.5][: classes - 1])
    shares = dict(enumerate(np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()))
    model = kind(
        6, n_estimators=2, random_state=0, precision="double", prior_correction=shares, tol=1e-2
    ).fit(X, y)
    save_model(model, tmp_path / "m.undulatus")
    program = read_as_module(DOCS / "howto" / "read_model.py")
    rows = np.vstack([X[:5], 4.0 * X[:3]])
    header, arrays = program.read(tmp_path / "m.undulatus")
    found = [program.probabilities(header, arrays, row) for row in rows]
    np.testing.assert_allclose(found, model.predict_proba(rows), rtol=1e-9)


def test_links_of_built_pages_are_checked(tmp_path):
    check = read_as_module(DOCS / "check_links.py").broken_links
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="https://x.org">2</a>')
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a.html#nowhere">3</a>')
    assert check(Path(tmp_path)) == (["b.html: a.html#nowhere"], 2, 1)
    (tmp_path / "c.html").write_text('<img src="lost.png">')
    assert "c.html: lost.png" in check(Path(tmp_path))[0]
