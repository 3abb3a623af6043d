"""Scores in files: JSON, CSV and a page."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version

import numpy as np
import pytest

from undulatus.errors import InputError
from undulatus.products.area import estimate_areas
from undulatus.products.basis import Basis
from undulatus.products.image_scores import ImageScores, Reliability
from undulatus.products.score_report import WRITERS, table_rows, write_report
from undulatus.products.scores import score_classes

NAMES = ("field", "forest & <bush>", "water", "snow")


@pytest.fixture(scope="module")
def found():
    """Scores of 300 made-up pixels of four classes, of which one never occurs."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 300)
    probability = rng.dirichlet(np.ones(4), 300) + 0.4 * np.eye(4)[truth]
    probability /= probability.sum(axis=1, keepdims=True)
    scores = score_classes(truth, probability, range(4), groups=np.arange(300) // 10, names=NAMES)
    cells = scores.confusion.T
    areas = estimate_areas(cells, [10.0, 20.0, 30.0, 0.0], NAMES, unit="ha")
    bins = np.linspace(0.0, 1.0, 15)
    some = np.where(np.arange(15) > 7, 10, 0)
    gaps = np.where(some > 0, bins, np.nan)
    return ImageScores(
        Basis("training", "Scored on data that the model was TRAINED on: 30 polygons."),
        scores,
        areas,
        tuple(Reliability(name, gaps, gaps, some) for name in ("most probable class", *NAMES)),
        ("#aabbcc",) * 4,
        ("image.tif",),
        "fields.gpkg",
        ("3 pixels left out.",),
    )


def test_json_has_everything(found, tmp_path):
    write_report(found, tmp_path / "scores.json", origin={"model": "m.undulatus"})
    read = json.loads((tmp_path / "scores.json").read_text())
    assert read.pop("origin") == {"version": version("undulatus"), "model": "m.undulatus"}
    assert read == json.loads(json.dumps(found.as_dict()))
    assert read["basis"] == "training"
    assert read["scores"]["by_class"][3]["producers_accuracy"]["value"] is None


def test_no_cell_of_a_table_is_a_formula(found, tmp_path):
    names = ("=1+1", "@x", "\x1b[2Jwater", "-snow")
    by_class = tuple(
        replace(one, name=name) for one, name in zip(found.scores.by_class, names, strict=True)
    )
    forged = replace(found, scores=replace(found.scores, by_class=by_class))
    write_report(forged, tmp_path / "scores.csv")
    text = (tmp_path / "scores.csv").read_text()
    assert "\x1b" not in text
    rows = list(csv.DictReader(text.splitlines()))
    listed = ["'=1+1", "'@x", "\\x1b[2Jwater", "'-snow", "all"]
    assert [row["class"] for row in rows] == listed
    cells = [cell for row in rows for cell in row.values() if cell]
    assert all(cell[0] not in "=@+" for cell in cells)


def test_a_table_has_a_row_for_each_class_and_one_for_all(found, tmp_path):
    write_report(found, tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [*NAMES, "all"]
    assert {row["basis"] for row in rows} == {"training"}
    assert {row["statement"] for row in rows} == {found.basis.statement}
    assert float(rows[0]["area"]) == pytest.approx(found.areas.areas[0].value)
    assert float(rows[0]["area_standard_error"]) > 0.0
    assert float(rows[-1]["accuracy"]) == pytest.approx(found.scores.accuracy.value)
    assert rows[0]["accuracy"] == rows[3]["producers_accuracy"] == rows[-1]["f1"] == ""
    assert sum(float(row["rows"]) for row in rows[:-1]) == float(rows[-1]["rows"]) == 300
    assert all(set(row) == set(rows[-1]) for row in rows)


def test_a_table_without_areas_has_no_columns_of_them(found):
    bare = ImageScores(**(vars(found) | {"areas": None}))
    assert not [name for name in table_rows(bare)[-1] if "area" in name or "adjusted" in name]


class Page(HTMLParser):
    """Collects what a page loads, and whether its tags are closed."""

    EMPTY = ("meta", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.loaded, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_alone_and_begins_with_what_was_scored(found, tmp_path):
    write_report(found, tmp_path / "scores.html", "Scores of fields")
    text = (tmp_path / "scores.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loaded == page.open == []
    assert "http" not in text
    body = text[text.index("<body>") :]
    statement, overall = body.index(found.basis.statement), body.index("<h2>Overall")
    assert statement < overall
    assert 'class="statement training"' in body
    assert "prefers-color-scheme: dark" in text
    assert "nan" not in page.text.lower().replace("undulatus", "")
    assert "forest &amp; &lt;bush&gt;" in text
    assert f"{found.areas.areas[0].text(1)}" in page.text


def test_bars_and_dots_lie_within_their_frames(found, tmp_path):
    write_report(found, tmp_path / "scores.html")
    text = (tmp_path / "scores.html").read_text(encoding="utf-8")
    ends = re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%", text)
    assert len(ends) >= 9
    assert all(float(left) + float(width) <= 100.01 for left, width in ends)
    # Eight bins of each of five diagrams have pixels.
    places = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text)
    assert len(places) == 5 * int(np.count_nonzero(found.reliability[0].rows))
    assert all(0.0 <= float(v) <= 100.0 for place in places for v in place)


def test_a_page_without_areas_does_not_speak_of_them(found, tmp_path):
    write_report(ImageScores(**(vars(found) | {"areas": None})), tmp_path / "scores.html")
    assert "whole map" not in (tmp_path / "scores.html").read_text()


def test_other_endings_are_refused(found, tmp_path):
    with pytest.raises(InputError, match=r"written as \.json, \.csv, \.html"):
        write_report(found, tmp_path / "scores.pdf")
    assert list(WRITERS) == [".json", ".csv", ".html"]
