"""The demonstration: the image, fetched or generated, the month, and the page about both."""

from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser

import geopandas
import matplotlib.image
import numpy as np
import pytest
import rasterio
from numpy.testing import assert_array_equal

from undulatus import load_model
from undulatus.errors import DatasetError
from undulatus.products import demo
from undulatus.products.demo import (
    ImageDemo,
    generate_clouds,
    run_image_demo,
    run_month_demo,
    write_demo_page,
    write_example,
)
from undulatus.products.images import fit_image
from undulatus.products.scores import Scores
from undulatus.scenes.files.images import open_image
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.files.opening import open_map, open_scene

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


@pytest.fixture
def quick(monkeypatch):
    """The same demonstration with a small image and a short fit."""
    monkeypatch.setattr(demo, "generate_clouds", partial(generate_clouds, 64, 48))
    monkeypatch.setattr(demo, "CELL", 8)
    short = partial(fit_image, method="rff", n_frequencies=8, n_estimators=1)
    monkeypatch.setattr(demo, "fit_image", short)


@pytest.fixture
def no_index(monkeypatch):
    def fail():
        raise DatasetError("s2cloudless could not be fetched with pip: no index")

    monkeypatch.setattr(demo, "load_sentinel2_clouds", fail)


@pytest.mark.usefixtures("quick", "no_index")
def test_an_image_that_cannot_be_fetched_is_generated_and_called_so(tmp_path):
    lines = []
    result = run_image_demo(tmp_path / "new" / "folder", lines.append, RecordedBars())
    assert result.generated
    assert "GENERATED" in result.source
    assert any("no index" in line for line in lines)
    assert any("GENERATED" in line for line in lines)


@pytest.mark.usefixtures("quick", "no_index")
def test_every_file_of_the_result_is_written(tmp_path):
    result = run_image_demo(tmp_path / "image", lambda line: None, RecordedBars())
    assert set(result.written) == {"image", "labels", "model", "map", "picture"}
    assert matplotlib.image.imread(result.written["picture"]).shape[1] > 1000
    assert result.page.is_file()
    model = load_model(result.written["model"])
    assert list(model.classes_) == ["clear", "cloud"]
    image, data = open_image(result.written["image"]), generate_clouds(64, 48)
    assert_array_equal(image.values.reshape(13, -1).T, data.X)
    # North is up in neither: the map has the rows of the image.
    with rasterio.open(result.written["map"]) as file:
        agreement = np.mean(file.read(1).ravel() == data.y)
    assert agreement > 0.8


@pytest.mark.usefixtures("quick", "no_index")
def test_the_polygons_are_those_of_the_training_half(tmp_path):
    result = run_image_demo(tmp_path / "image", lambda line: None, RecordedBars())
    data = generate_clouds(64, 48)
    found = read_labels(result.written["labels"], open_image(result.written["image"]))
    assert found.row.max() < 32
    labelled = found.row * 48 + found.column
    assert_array_equal(np.array(found.classes)[found.codes] == "cloud", data.y[labelled] == 1)


@pytest.mark.usefixtures("quick", "no_index")
def test_the_classifier_is_scored_beside_two_baselines(tmp_path):
    scores = run_image_demo(tmp_path / "image", lambda line: None, RecordedBars()).scores
    assert set(scores) == {"majority", "logistic regression", "VFF-GPC"}
    assert scores["VFF-GPC"].accuracy > scores["majority"].accuracy
    assert scores["VFF-GPC"].nll < scores["majority"].nll
    assert scores["majority"].auc == 0.5


@pytest.mark.usefixtures("quick")
def test_a_fetched_image_is_not_called_generated(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "load_sentinel2_clouds", lambda: generate_clouds(64, 48))
    lines = []
    result = run_image_demo(tmp_path / "image", lines.append, RecordedBars())
    assert not result.generated
    assert "real Sentinel-2" in result.source
    assert not any("GENERATED" in line for line in lines)


@pytest.mark.usefixtures("quick", "no_index")
def test_the_demonstration_prints_nothing_itself(tmp_path, capsys):
    run_image_demo(tmp_path / "image", lambda line: None, RecordedBars())
    assert capsys.readouterr() == ("", "")


def test_generated_clouds_have_the_form_of_the_real_image():
    data = generate_clouds(32, 24)
    assert data.X.shape == (32 * 24, 13)
    assert data.X.dtype == np.float32
    assert data.shape == (32, 24)
    assert set(np.unique(data.y)) == {0, 1}
    assert_array_equal(np.sort(np.concatenate([data.train, data.test])), np.arange(32 * 24))
    assert data.row[data.train].max() < 16 <= data.row[data.test].min()
    assert_array_equal(data.row * 24 + data.column, np.arange(32 * 24))


def test_one_seed_generates_one_image():
    one, same, other = (generate_clouds(32, 24, seed) for seed in (0, 0, 1))
    assert_array_equal(one.X, same.X)
    assert not np.array_equal(one.X, other.X)


class RecordedBars:
    """A progress bar that keeps the last numbers of each task."""

    def __init__(self):
        self.last = {}

    @contextmanager
    def __call__(self, what):
        yield lambda done, total: self.last.__setitem__(what, (done, total))


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "month"
    bars, lines = RecordedBars(), []
    patch = pytest.MonkeyPatch()
    patch.setattr(demo, "MONTH_FREQUENCIES", 5)
    with patch.context():
        result = run_month_demo(folder, lines.append, bars, days=4, pixels=400)
    return result, bars.last, lines


def test_every_file_of_the_month_can_be_opened(month):
    result, _, _ = month
    assert all(path.exists() for path in result.written.values())
    assert result.page.name == "index.html"
    model = load_model(result.written["model"])
    assert len(model.provenance_["held_out_days"]) == 1
    with open_scene(result.written["images"]) as scene, open_map(result.written["maps"]) as maps:
        assert scene.sizes["time"] == maps.sizes["time"] == 4 * 96
    assert {score.regime for score in result.scores} == {"high", "mid", "low", "night"}


def test_long_tasks_report_their_progress(month):
    _, progress, lines = month
    assert len(progress) == 3
    for done, total in progress.values():
        assert done == total > 0
    assert any("training pixels" in line for line in lines)


def test_a_second_month_replaces_the_first(month, monkeypatch, tmp_path):
    (tmp_path / "month").mkdir()
    (tmp_path / "month" / "old").touch()
    monkeypatch.setattr(demo, "build_site", lambda *_, **__: tmp_path / "month" / "page")
    monkeypatch.setattr(demo, "fit_scene", lambda *_, **__: load_model(month[0].written["model"]))
    run_month_demo(tmp_path / "month", lambda line: None, RecordedBars(), days=2)
    assert not (tmp_path / "month" / "old").exists()


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links = []
        self.pictures = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "a":
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given)


def test_the_page_links_to_the_results_and_says_what_is_synthetic(month):
    folder = month[0].page.parent.parent.parent
    scores = Scores(0.9, 0.1, 0.01, 0.02, 0.99)
    written = {"picture": folder / "clouds.png"}
    image = ImageDemo("an <image>", False, {"VFF-GPC": scores}, written, month[0].page)
    page = write_demo_page(folder, image, month[0])
    text = page.read_text()
    parsed = Links()
    parsed.feed(text)
    assert all((folder / link).exists() for link in parsed.links)
    assert all(picture["alt"] for picture in parsed.pictures)
    assert (folder / parsed.pictures[1]["src"]).exists()
    assert "an &lt;image&gt;" in text
    assert "synthetic" in text
    assert "90.0%" in text
    assert "http" not in text


def test_the_example_is_an_image_of_named_bands_and_polygons_of_two_classes(tmp_path):
    image, labels = write_example(tmp_path / "new", generate_clouds())
    assert (image.name, labels.name) == ("image.tif", "labels.gpkg")
    assert open_image(image).attrs["long_name"][:2] == ("B01", "B02")
    assert set(geopandas.read_file(labels)["class"]) == {"clear", "cloud"}
