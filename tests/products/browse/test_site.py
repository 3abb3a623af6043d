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


@pytest.fixture(scope="module")
def class_page(tmp_path_factory, class_maps, labelled_scene):
    folder = tmp_path_factory.mktemp("classes") / "site"
    return build_site(class_maps, labelled_scene, folder)


def test_a_page_of_classes_has_the_share_of_each_in_model_and_label(
    class_page, class_maps, labelled_scene
):
    data = data_of(class_page)
    assert data["classes"] == ["sea", "land", "cloud"]
    known = class_maps["class"] != 255
    for place, code in enumerate((2, 3, 9)):
        share = (class_maps["class"] == code).where(known).mean(("y", "x"))
        # Single precision.
        assert np.allclose(numbers(data["shares"][f"model-{place}"], "<f4"), share, rtol=1e-6)
        share = (labelled_scene["surface"] == code).mean(("y", "x"))
        assert np.allclose(numbers(data["shares"][f"label-{place}"], "<f4"), share, rtol=1e-6)
    # Where land lies never changes.
    assert data["opening_share"] == "model-2"


def test_differences_of_classes_are_from_the_label_of_the_same_classes(
    class_page, class_maps, labelled_scene
):
    differ = (class_maps["class"] != labelled_scene["surface"]).where(class_maps["class"] != 255)
    assert data_of(class_page)["differences"][0] == np.argmax(differ.mean(("y", "x")).values)
    assert "Where model and label differ most" in class_page.read_text()


def test_a_page_of_classes_names_them_with_their_colours_and_says_nothing_of_cloud_masks(
    class_page,
):
    text = class_page.read_text()
    assert "<h1>Class maps" in text
    assert re.findall(r'background:(#\w+)"></i>(land|sea)<', text)[:2] == [
        ("#0072b2", "sea"),
        ("#c8a165", "land"),
    ]
    assert "the mask says cloud" not in text


def test_a_row_of_a_page_of_classes_has_the_probabilities_of_each(class_page, class_maps):
    text = (class_page.parent / "rows" / "5.js").read_text()
    pieces = re.findall(r'"([^"]+)"', text)
    values = np.concatenate([numbers(piece, np.uint8) for piece in pieces]).reshape(278, 26, 3)
    expected = class_maps["class_probability"].isel(y=5).transpose("time", "x", "class_name")
    # Half a step of the 255 levels.
    assert np.abs(values / 254 - expected.values).max() <= 0.5 / 254 + 1e-6


@pytest.mark.parametrize("change", ["other codes", "other names", "no flags"])
def test_a_label_of_other_classes_is_not_compared(
    tmp_path, class_maps, labelled_scene, class_flags, change
):
    flags = {
        "other codes": class_flags | {"flag_values": [2, 3, 4]},
        "other names": class_flags | {"flag_meanings": "sea land fog"},
        "no flags": {},
    }[change]
    label = labelled_scene["surface"].drop_attrs().assign_attrs(flags)
    some = {"time": slice(40, 50)}
    scene = labelled_scene.assign(surface=label).isel(some)
    page = build_site(class_maps.isel(some), scene, tmp_path / "site")
    assert "agreement" not in data_of(page)["shares"]
    assert "The scene has no label with the flag_values" in page.read_text()


def test_two_classes_have_a_page_with_the_probabilities_of_both(tmp_path, maps, scene):
    flags = {"flag_values": [0, 1], "flag_meanings": "dry wet", "flag_colors": "#000000 #ffffff"}
    other = maps.rename(
        cloud_mask="class",
        cloud_probability="class_probability",
        cloud_latent_variance="class_latent_variance",
    )
    other["class"].attrs = flags
    some = {"time": slice(40, 50)}
    page = build_site(other.isel(some), scene.isel(some), tmp_path / "site")
    assert data_of(page)["classes"] == ["dry", "wet"]
    text = (page.parent / "rows" / "5.js").read_text()
    values = numbers(re.search(r'"([^"]+)"', text).group(1), np.uint8).reshape(10, 26, 2)
    # Each is rounded to a byte.
    assert np.abs(values.astype(int).sum(axis=-1) - 254).max() <= 1


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
