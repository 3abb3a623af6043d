"""The pages of a map of one image: what is written, and what they say."""

import json

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from undulatus.errors import SceneError
from undulatus.products.browse import image_site
from undulatus.products.browse.image_map import open_picture, raster_map
from undulatus.products.browse.image_site import build_image_site, class_profiles

BANDS = ["B02", "B03", "B04", "B08"]


@pytest.fixture(scope="module")
def inputs(class_map, image):
    maps = raster_map(class_map)
    return maps, open_picture(image, maps)


def model_of(names, profiles):
    """Return a fitted classifier of three classes that remembers profiles."""
    model = DummyClassifier().fit(np.zeros((len(names), 1)), names)
    model.provenance_ = {} if profiles is None else {"class_profiles": profiles}
    return model


PROFILES = {
    "features": ["B08", "B02"],
    "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95],
    "values": {
        name: [[10.0 * q + n, 20.0 * q + n] for q in range(5)]
        for n, name in enumerate(["ice", "land"])
    },
}


def data_of(page):
    text = page.with_name("data.js").read_text()
    return json.loads(text.removeprefix("window.undulatusMap = ").removesuffix(";\n"))


def test_the_folder_has_every_tile_and_the_spectra_of_the_first_level(inputs, tmp_path):
    done = []
    page = build_image_site(
        *inputs, tmp_path / "site", title="a map", progress=lambda *each: done.append(each)
    )
    assert page == tmp_path / "site" / "index.html"
    names = {str(path.relative_to(page.parent)) for path in page.parent.rglob("*.*")}
    tiles = {
        f"tiles/{level}/{row}_{column}"
        for level, (down, across) in enumerate([(2, 6), (1, 3), (1, 2), (1, 1)])
        for row in range(down)
        for column in range(across)
    }
    spectra = {f"spectra/{row}_{column}.js" for row in range(2) for column in range(6)}
    assets = {"index.html", "data.js", *image_site.ASSETS}
    both = {f"{tile}{end}" for tile in tiles for end in (".js", ".webp")}
    assert names == both | spectra | assets
    assert done == [(1, 2), (2, 2)]


def test_the_page_names_the_classes_with_their_shares(inputs, classes, tmp_path):
    page = build_image_site(*inputs, tmp_path / "site", title="<b> & map.tif", spectra_step=0)
    text = page.read_text()
    assert "&lt;b&gt; &amp; map.tif" in text
    assert "300 x 1,300 pixels, 300 of them without a class." in text
    assert "WGS 84 / UTM zone 30N (EPSG:32630)" in text
    codes = classes["class"].values
    for code, name in ((10, "open water"), (20, "land"), (30, "ice")):
        share = 100.0 * np.mean(codes[codes != 255] == code)
        row = f'<span class="name">{name}</span><span class="value">{share:.1f} %</span>'
        assert row in text
    assert not (page.parent / "spectra").exists()
    assert "Made without" not in text


def test_the_scale_of_the_uncertainty_spans_that_of_the_map(inputs, classes, tmp_path):
    page = build_image_site(*inputs, tmp_path / "site")
    scale = data_of(page)["deviation"]
    p = classes["class_probability"]
    shown = classes["class_latent_variance"].where(p == p.max("class_name")).max("class_name")
    low, high = np.nanquantile(np.sqrt(shown), [0.01, 0.99])
    # Bytes are right to 2.3 %, and the ends are rounded outwards to one digit.
    assert 0.5 * low <= scale["low"] <= 1.03 * low
    assert 0.97 * high <= scale["high"] <= 2.0 * high


def test_profiles_are_matched_by_the_names_of_bands_and_classes(inputs):
    model = model_of(["ice", "land", "water"], PROFILES)
    # The classes of the map are in the order of the model's.
    found, reason = class_profiles(model, *inputs)
    assert reason == ""
    assert found["quantiles"] == PROFILES["quantiles"]
    assert found["values"][0] == [[20.0 * q, None, None, 10.0 * q] for q in range(5)]
    assert found["values"][1] == [[20.0 * q + 1, None, None, 10.0 * q + 1] for q in range(5)]
    assert found["values"][2] is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (None, "model of the map was not found"),
        (model_of(["ice", "land", "water"], None), "does not know the training spectra"),
        (model_of(["ice", "land"], PROFILES), "are not those of the map"),
        (model_of(["ice", "land", "water"], PROFILES | {"features": ["x"]}), "are not those"),
    ],
    ids=["no model", "no profiles", "other classes", "other features"],
)
def test_without_profiles_the_page_says_why(inputs, tmp_path, model, reason):
    found, said = class_profiles(model, *inputs)
    assert found is None
    assert reason in said
    page = build_image_site(*inputs, tmp_path / "site", model=model, spectra_step=16)
    assert reason in page.read_text()
    assert data_of(page)["profiles"] is None


def test_a_map_without_image_and_layers_shows_classes_and_says_so(class_map, tmp_path):
    (tmp_path / "alone.tif").write_bytes(class_map.read_bytes())
    page = build_image_site(raster_map(tmp_path / "alone.tif"), None, tmp_path / "site")
    text = page.read_text()
    assert "Made without the image of the map" in text
    assert "Made without probabilities" in text
    assert 'data-pane="class"' in text
    assert 'data-pane="probability"' not in text
    assert 'data-pane="image"' not in text
    assert not list(page.parent.rglob("*.webp"))


def test_a_folder_that_exists_is_left_alone(inputs, tmp_path):
    (tmp_path / "site").mkdir()
    with pytest.raises(SceneError, match="exists already"):
        build_image_site(*inputs, tmp_path / "site")


def test_a_site_that_cannot_be_finished_leaves_nothing(inputs, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_site.SpectraWriter, "write", fail)
    with pytest.raises(SceneError, match="could not be written"):
        build_image_site(*inputs, tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_an_error_before_anything_is_written(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(SceneError, match="does not fit on its disk"):
        build_image_site(*inputs, tmp_path / "site")
