import base64
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from undulatus.errors import SceneError
from undulatus.products.browse import build_site, site
from undulatus.products.browse.sprites import (
    MISSING_BYTE,
    SeriesWriter,
    Sheet,
    SpriteWriter,
    as_bytes,
)
from undulatus.products.panels import panel_names, read_acquisitions, scales_for
from undulatus.products.views import view_scene

probabilities = st.floats(0.0, 1.0) | st.just(np.nan)


@given(st.lists(probabilities, min_size=1))
def test_bytes_tell_probabilities_to_half_a_step_and_what_is_missing(values):
    values = np.array(values)
    coded = as_bytes(values)
    missing = np.isnan(values)
    assert np.array_equal(coded == MISSING_BYTE, missing)
    # Rounded to the nearest of 255 levels; a little more for rounding in double precision.
    assert np.all(np.abs(coded / 254 - values)[~missing] <= 0.5 / 254 + 1e-12)


def test_a_row_holds_the_probabilities_of_its_pixels_through_all_pieces(tmp_path):
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=(7, 3, 5))
    probability[2, 1, 4] = np.nan
    with SeriesWriter(tmp_path, 3) as series:
        series.add(probability[:4])
        series.add(probability[4:])
    for row in range(3):
        text = (tmp_path / f"{row}.js").read_text()
        head, tail = f"undulatusRow({row},[\n", ",\n]);\n"
        assert text.startswith(head)
        assert text.endswith(tail)
        pieces = json.loads(f"[{text.removeprefix(head).removesuffix(tail)}]")
        found = np.concatenate([np.frombuffer(base64.b64decode(p), np.uint8) for p in pieces])
        assert np.array_equal(found.reshape(7, 5), as_bytes(probability[:, row]))


@pytest.mark.parametrize("tile", [(20, 26), (200, 200), (3, 100), (100, 3)])
@pytest.mark.parametrize("count", [1, 2, 95, 96])
def test_tiles_lie_inside_the_sheet_and_apart(tile, count):
    sheet = Sheet(tile, count)
    covered = np.zeros(sheet.size, int)
    for index in range(count):
        covered[sheet.place(index)] += 1
        assert covered[sheet.place(index)].shape == tile
    assert covered.max() == 1
    assert covered.sum() == count * tile[0] * tile[1]


def test_sprites_have_exactly_the_colours_of_the_panels(tmp_path, seen, maps):
    view = view_scene(seen, maps)
    chosen = np.arange(80, 92)  # Across midnight: the first day lacks ten.
    scales = scales_for(view, chosen)
    acquisitions = list(read_acquisitions(view, chosen, scales))
    sheet = Sheet(view.shape, 8)
    dates = [str(time)[:10] for time in view.times[chosen]]
    assert len(set(dates)) == 2
    with SpriteWriter(tmp_path, sheet) as sprites:
        for date, acquisition in zip(dates, acquisitions, strict=True):
            sprites.add(date, acquisition)
    for date in set(dates):
        inside = [a for a, d in zip(acquisitions, dates, strict=True) if d == date]
        for name in panel_names(view):
            with Image.open(tmp_path / f"{date}-{name}.webp") as file:
                image = np.asarray(file.convert("RGBA"))
            for index, acquisition in enumerate(inside):
                found, expected = image[sheet.place(index)], acquisition.images[name]
                there = expected[..., 3] > 0
                assert np.array_equal(found[..., 3] > 0, there)
                assert np.array_equal(found[there], expected[there])


def test_a_sheet_that_cannot_be_written_is_an_error(tmp_path, seen, maps):
    view = view_scene(seen, maps)
    chosen = np.arange(2)
    with (  # noqa: PT012
        pytest.raises(OSError, match="nowhere"),
        SpriteWriter(tmp_path / "nowhere", Sheet(view.shape, 2)) as sprites,
    ):
        for acquisition in read_acquisitions(view, chosen, scales_for(view, chosen)):
            sprites.add("2010-01-01", acquisition)


def year_of(page):
    text = (page.parent / "year.js").read_text()
    return json.loads(re.search(r"undulatusYear = (.*);\n", text).group(1))


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope="module")
def page(tmp_path_factory, maps, seen):
    return build_site(maps, seen, tmp_path_factory.mktemp("browse") / "site", title="a <map>")


def test_the_page_and_all_that_it_loads_are_in_the_folder(page):
    text = page.read_text()
    for source in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert source == "data:," or (page.parent / source).is_file()
    assert "http" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    assert len(list((page.parent / "days").iterdir())) == 3 * 7
    assert len(list((page.parent / "rows").iterdir())) == 20


def test_the_page_says_that_data_are_synthetic_and_where_they_are_from(page):
    text = page.read_text()
    assert "Synthetic data." in text
    assert "no satellite took these images" in text
    assert "278 acquisitions of 20 x 26 pixels, every 15 minutes, from a &lt;map&gt;" in text


def test_times_and_the_share_of_cloud_are_those_of_the_map(page, maps):
    year = year_of(page)
    seconds = year["first"] + numbers(year["seconds"], "<u4").astype(np.int64)
    assert np.array_equal(seconds.astype("datetime64[s]"), maps["time"].values)
    known = maps["cloud_mask"].where(maps["cloud_mask"] != 255)
    cloud = numbers(year["shares"]["cloud"], "<f4")
    # Single precision.
    assert np.allclose(cloud, known.mean(("y", "x")), rtol=1e-6)


def test_all_times_are_told_how_far_they_differ_and_the_worst_is_first(page, maps, seen):
    year = year_of(page)
    both = (maps["cloud_mask"] != 255) & seen["cloud_mask_l2"].isin([0, 1])
    differ = (maps["cloud_mask"] != seen["cloud_mask_l2"]).where(both).mean(("y", "x"))
    assert year["differing"][0] == np.argmax(differ.values)


def test_the_first_acquisition_shown_is_of_the_first_day_in_sunlight(page, seen):
    opening = year_of(page)["opening"]
    shown = seen.isel(time=opening)
    assert shown["solar_zenith_angle"].max() < 90.0
    assert shown["time"].values < seen["time"].values[0] + np.timedelta64(1, "D")


def test_without_its_scene_a_map_has_fewer_panels_and_the_page_says_so(tmp_path, maps):
    page = build_site(maps, None, tmp_path / "site", end="2010-01-01")
    assert "Made without the scene" in page.read_text()
    assert {path.stem[11:] for path in (page.parent / "days").iterdir()} == {
        "model",
        "probability",
        "uncertainty",
    }
    assert year_of(page)["differing"] == []


def test_other_sizes_steps_and_orders_of_time_are_shown_too(tmp_path, maps, seen):
    hourly = slice(None, None, 4)
    window = {"y": slice(0, 7), "x": slice(3, 26)}
    less, part = (each.isel(window).isel(time=hourly) for each in (maps, seen))
    shuffled = np.random.default_rng(0).permutation(less.sizes["time"])
    page = build_site(less.isel(time=shuffled), part.isel(time=shuffled), tmp_path / "site")
    year = year_of(page)
    assert year["shape"] == [7, 23]
    assert year["step"] == 3600
    assert year["size"] == [3, 24]
    assert (np.diff(numbers(year["seconds"], "<u4").astype(int)) > 0).all()


def test_progress_ends_when_all_acquisitions_are_done(tmp_path, maps, seen):
    told = []
    build_site(maps, seen, tmp_path / "site", progress=lambda *done: told.append(done))
    assert told[-1] == (278, 278)


def test_a_folder_that_is_there_is_left_alone(tmp_path, maps):
    with pytest.raises(SceneError, match="exists already"):
        build_site(maps, None, tmp_path)


def test_nothing_is_left_of_a_site_that_fails(tmp_path, maps, monkeypatch):
    def fail(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(site, "write_page", fail)
    with pytest.raises(SceneError, match="No space left"):
        build_site(maps, None, tmp_path / "site")
    assert not list(tmp_path.iterdir())


def test_too_much_for_a_browser_is_told_with_what_would_fit(tmp_path, maps, monkeypatch):
    monkeypatch.setattr(site, "MOST_PIXELS", 3 * 520 * 200)
    with pytest.raises(SceneError, match=r"at most 2 of 3 days .*--span"):
        build_site(maps, None, tmp_path / "site")
    assert not list(tmp_path.iterdir())


def test_a_map_without_times_is_told_what_it_lacks(tmp_path, maps):
    with pytest.raises(SceneError, match="without a time"):
        build_site(maps.isel(time=0, drop=True), None, tmp_path / "site")


def test_a_map_of_spectra_is_told_that_only_images_can_be_shown(tmp_path, maps):
    spectra = maps.isel(time=0).stack(sample=("y", "x"))
    with pytest.raises(SceneError, match="only images can be shown"):
        build_site(spectra, None, tmp_path / "site")
