"""The chain in one call: a few days from images to a page."""

from contextlib import contextmanager
from html.parser import HTMLParser

import pytest

from undulatus import load_model
from undulatus.products import month
from undulatus.products.demo import Demo
from undulatus.products.demo_page import write_page
from undulatus.products.month import run_month
from undulatus.products.scores import Scores
from undulatus.scenes.stores import open_map, open_scene

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Bars:
    def __init__(self):
        self.told = {}

    @contextmanager
    def __call__(self, what):
        yield lambda done, total: self.told.__setitem__(what, (done, total))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "month"
    bars, lines = Bars(), []
    patch = pytest.MonkeyPatch()
    patch.setattr(month, "FREQUENCIES", 5)
    with patch.context():
        found = run_month(folder, lines.append, bars, days=4, pixels=400)
    return found, bars.told, lines


def test_everything_is_there_and_can_be_opened(made):
    found, _, _ = made
    assert all(path.exists() for path in found.written.values())
    assert found.page.name == "index.html"
    model = load_model(found.written["model"])
    assert len(model.provenance_["held_out_days"]) == 1
    with open_scene(found.written["images"]) as scene, open_map(found.written["maps"]) as maps:
        assert scene.sizes["time"] == maps.sizes["time"] == 4 * 96
    assert {score.regime for score in found.scores} == {"high", "mid", "low", "night"}


def test_what_takes_time_is_told(made):
    _, told, lines = made
    assert len(told) == 3
    for done, total in told.values():
        assert done == total > 0
    assert any("training pixels" in line for line in lines)


def test_a_second_month_replaces_the_first(made, monkeypatch, tmp_path):
    (tmp_path / "month").mkdir()
    (tmp_path / "month" / "old").touch()
    monkeypatch.setattr(month, "build_site", lambda *_, **__: tmp_path / "month" / "page")
    monkeypatch.setattr(month, "fit_scene", lambda *_, **__: load_model(made[0].written["model"]))
    run_month(tmp_path / "month", lambda line: None, Bars(), days=2)
    assert not (tmp_path / "month" / "old").exists()


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []
        self.pictures = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "a":
            self.found.append(given["href"])
        if tag == "img":
            self.pictures.append(given)


def test_the_page_leads_to_what_was_made_and_says_what_is_synthetic(made):
    folder = made[0].page.parent.parent.parent
    scores = Scores(0.9, 0.1, 0.01, 0.02, 0.99)
    demo = Demo("an <image>", False, {"VFF-GPC": scores}, {"picture": folder / "clouds.png"})
    page = write_page(folder, demo, made[0], 4)
    text = page.read_text()
    links = Links()
    links.feed(text)
    assert all((folder / link).exists() for link in links.found)
    assert all(picture["alt"] for picture in links.pictures)
    assert (folder / links.pictures[1]["src"]).exists()
    assert "an &lt;image&gt;" in text
    assert "synthetic" in text
    assert "90.0%" in text
    assert "http" not in text
