"""A site as files: everything the page loads is there, with the numbers of the map."""

import base64
import json
import re

import numpy as np
import pytest

from undulatus.errors import SceneError
from undulatus.products.browse import build_site, site


def data_of(page):
    text = (page.parent / "data.js").read_text()
    return json.loads(re.search(r"undulatusData = (.*);\n", text).group(1))


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope="module")
def page(tmp_path_factory, maps, scene):
    return build_site(maps, scene, tmp_path_factory.mktemp("browse") / "site", title="a <map>")


def test_the_folder_has_the_page_and_everything_it_loads(page):
    text = page.read_text()
    for source in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert source == "data:," or (page.parent / source).is_file()
    assert "http" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    assert len(list((page.parent / "days").iterdir())) == 3 * 7
    assert len(list((page.parent / "rows").iterdir())) == 20


def test_the_page_says_that_the_data_are_synthetic_and_where_they_come_from(page):
    text = page.read_text()
    assert "Synthetic data." in text
    assert "no satellite took these images" in text
    assert "278 acquisitions of 20 x 26 pixels, every 15 minutes, from a &lt;map&gt;" in text


def test_times_and_the_share_of_cloud_are_those_of_the_map(page, maps):
    data = data_of(page)
    seconds = data["first"] + numbers(data["seconds"], "<u4").astype(np.int64)
    assert np.array_equal(seconds.astype("datetime64[s]"), maps["time"].values)
    known = maps["cloud_mask"].where(maps["cloud_mask"] != 255)
    cloud = numbers(data["shares"]["cloud"], "<f4")
    # Single precision.
    assert np.allclose(cloud, known.mean(("y", "x")), rtol=1e-6)


def test_a_map_of_other_classes_is_refused_with_what_to_do(maps, scene, tmp_path):
    flags = {"flag_values": [0, 1], "flag_meanings": "dry wet", "flag_colors": "#000000 #ffffff"}
    other = maps.rename(
        cloud_mask="class",
        cloud_probability="class_probability",
        cloud_latent_variance="class_latent_variance",
    )
    other["class"].attrs = flags
    with pytest.raises(SceneError, match=r"other classes: dry, wet\. Draw it .*--picture"):
        build_site(other, scene, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_list_of_differences_begins_with_the_largest(page, maps, scene):
    data = data_of(page)
    both = (maps["cloud_mask"] != 255) & scene["cloud_mask_l2"].isin([0, 1])
    differ = (maps["cloud_mask"] != scene["cloud_mask_l2"]).where(both).mean(("y", "x"))
    assert data["differences"][0] == np.argmax(differ.values)


def test_the_page_opens_in_sunlight_on_the_first_day(page, scene):
    opening = data_of(page)["opening"]
    shown = scene.isel(time=opening)
    assert shown["solar_zenith_angle"].max() < 90.0
    assert shown["time"].values < scene["time"].values[0] + np.timedelta64(1, "D")


def test_a_map_without_its_scene_has_fewer_panels_and_the_page_says_so(tmp_path, maps):
    page = build_site(maps, None, tmp_path / "site", end="2010-01-01")
    assert "Made without the scene" in page.read_text()
    assert {path.stem[11:] for path in (page.parent / "days").iterdir()} == {
        "model",
        "probability",
        "uncertainty",
    }
    assert data_of(page)["differences"] == []


def test_images_of_any_size_step_and_order_are_shown(tmp_path, maps, scene):
    hourly = slice(None, None, 4)
    window = {"y": slice(0, 7), "x": slice(3, 26)}
    maps, scene = (each.isel(window).isel(time=hourly) for each in (maps, scene))
    shuffled = np.random.default_rng(0).permutation(maps.sizes["time"])
    page = build_site(maps.isel(time=shuffled), scene.isel(time=shuffled), tmp_path / "site")
    data = data_of(page)
    assert data["shape"] == [7, 23]
    assert data["step"] == 3600
    assert data["table"] == [3, 24]
    assert (np.diff(numbers(data["seconds"], "<u4").astype(int)) > 0).all()


def test_progress_counts_up_to_all_acquisitions(tmp_path, maps, scene):
    calls = []
    build_site(maps, scene, tmp_path / "site", progress=lambda *done: calls.append(done))
    assert calls[-1] == (278, 278)


def test_an_existing_folder_is_left_alone(tmp_path, maps):
    with pytest.raises(SceneError, match="exists already"):
        build_site(maps, None, tmp_path)


def test_a_site_that_fails_leaves_nothing_behind(tmp_path, maps, monkeypatch):
    def fail(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(site, "write_page", fail)
    with pytest.raises(SceneError, match="No space left"):
        build_site(maps, None, tmp_path / "site")
    assert not list(tmp_path.iterdir())


def test_too_many_pixels_are_an_error_that_says_how_many_days_fit(tmp_path, maps, monkeypatch):
    monkeypatch.setattr(site, "MOST_PIXELS", 3 * 520 * 200)
    with pytest.raises(SceneError, match=r"at most 2 of 3 days .*--span"):
        build_site(maps, None, tmp_path / "site")
    assert not list(tmp_path.iterdir())


def test_a_map_without_times_is_an_error_that_says_so(tmp_path, maps):
    with pytest.raises(SceneError, match="without a time"):
        build_site(maps.isel(time=0, drop=True), None, tmp_path / "site")


def test_a_map_of_spectra_is_an_error_that_says_so(tmp_path, maps):
    spectra = maps.isel(time=0).stack(sample=("y", "x"))
    with pytest.raises(SceneError, match="only images"):
        build_site(spectra, None, tmp_path / "site")
