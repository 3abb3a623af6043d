"""Views of a scene and its map: matched times, upright images, blocks, and comparison of masks."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.products.maps import BLOCK_PIXELS
from undulatus.products.views import (
    acquisitions_between,
    blocks_of_time,
    disagreement,
    most_disputed,
    nearest_acquisitions,
    view_map,
    view_scene,
)
from undulatus.scenes.masks import encode

TWO_HOURS_EAST = timezone(timedelta(hours=2))
TIMES = np.datetime64("2010-01-01", "ns") + np.arange(4) * np.timedelta64(12, "h")


@pytest.fixture(scope="module")
def view(scene, result):
    return view_scene(scene, result)


def test_a_view_has_the_times_that_scene_and_map_share(scene, result):
    view = view_scene(scene.isel(time=slice(0, 9)), result.isel(time=slice(5, 21)))
    assert_array_equal(view.times, scene["time"].values[5:9])
    assert_array_equal(view.layers["IR_108"], scene["IR_108"][5:9])
    assert_array_equal(view.layers["cloud_probability"], result["cloud_probability"][5:9])


def test_a_map_of_other_times_is_refused(scene, result):
    with pytest.raises(SceneError, match="no acquisition in common"):
        view_scene(scene.isel(time=slice(0, 5)), result.isel(time=slice(5, 9)))


@pytest.mark.parametrize("turned", [{"y": -1}, {"x": -1}, {"y": -1, "x": -1}])
def test_images_are_upright_however_they_were_scanned(scene, result, view, turned):
    way = {dim: slice(None, None, step) for dim, step in turned.items()}
    found = view_scene(scene.isel(way), result.isel(way))
    xr.testing.assert_identical(found.layers, view.layers)
    assert_array_equal(found.land, view.land)


def test_a_scene_and_a_map_of_one_acquisition_need_no_dimension_of_time(scene, result, view):
    found = view_scene(scene.isel(time=3), result.isel(time=3))
    xr.testing.assert_equal(found.layers, view.layers.isel(time=[3]))


def test_a_map_of_one_acquisition_is_matched_in_a_scene_of_many(scene, result, view):
    found = view_scene(scene, result.isel(time=3))
    xr.testing.assert_equal(found.layers, view.layers.isel(time=[3]))


def test_a_single_acquisition_may_have_no_time_at_all(scene, result):
    found = view_scene(scene.isel(time=3).drop_vars("time"), result.isel(time=3).drop_vars("time"))
    assert found.span == "time unknown to time unknown"


@pytest.mark.parametrize("encoding", ["cf", "eumetsat-clm", "pps", "nwcsaf-hdf5"])
def test_a_mask_in_any_encoding_is_shown_as_clear_and_cloud(scene, result, encoding):
    mask = result["cloud_mask"]
    coded = encode(mask, encoding, scene["land_mask"])
    view = view_scene(scene, result.assign(cloud_mask=coded))
    assert_array_equal(view.layers["cloud_mask"], mask)


def test_a_dataset_that_is_not_a_map_is_refused(scene):
    with pytest.raises(SceneError, match=r"no cloud_mask, cloud_probability.*map_scene"):
        view_scene(scene, scene)


def test_a_map_of_another_size_is_refused(scene, result):
    with pytest.raises(SceneError, match="20 x 26 pixels, but the map 20 x 25"):
        view_scene(scene, result.isel(x=slice(0, 25)))


def test_a_scene_without_the_bands_that_are_shown_is_refused(scene, result):
    with pytest.raises(SceneError, match="missing: IR_016"):
        view_scene(scene.drop_vars("IR_016"), result)


@pytest.mark.parametrize(
    ("time", "number"),
    [
        ("2010-01-01T06:00", 0),
        ("2010-01-01 06:16", 1),
        ("2010-01-01T05:45", 0),
        ("2010-01-01T11:15", 20),
        (np.datetime64("2010-01-01T07:00"), 4),
        (datetime(2010, 1, 1, 7, 0), 4),
        (datetime(2010, 1, 1, 9, 0, tzinfo=TWO_HOURS_EAST), 4),
        ("2010-01-01T09:00+02:00", 4),
    ],
)
def test_a_time_finds_the_nearest_acquisition(view, time, number):
    assert nearest_acquisitions(view, [time]).tolist() == [number]


@pytest.mark.parametrize("time", ["2010-01-01T05:44", "2010-01-01T11:16", "1999-01-01"])
def test_a_time_outside_the_scene_is_refused_with_what_the_scene_covers(view, time):
    covered = "2010-01-01 06:00 UTC to 2010-01-01 11:00 UTC"
    with pytest.raises(SceneError, match=covered) as caught:
        nearest_acquisitions(view, [time])
    assert time in str(caught.value)


def test_text_that_is_not_a_time_is_refused(view):
    with pytest.raises(SceneError, match="'noon' is not a time"):
        nearest_acquisitions(view, ["noon"])


@pytest.mark.parametrize(
    ("start", "end", "first", "count"),
    [
        (None, None, 0, 21),
        ("2010-01-01T07:00", None, 4, 17),
        (None, "2010-01-01T07:00", 0, 5),
        ("2010-01-01", "2010-01-01", 0, 21),
        ("2010", "2010-01", 0, 21),
        ("2010-01-01T07:00", "2010-01-01T07:00", 4, 1),
    ],
)
def test_both_ends_are_included_and_a_date_is_the_whole_day(view, start, end, first, count):
    assert acquisitions_between(view, start, end).tolist() == list(range(first, first + count))


def test_a_span_without_acquisitions_is_refused_with_what_the_scene_covers(view):
    with pytest.raises(SceneError, match="2010-01-01 06:00 UTC to 2010-01-01 11:00 UTC"):
        acquisitions_between(view, "2011-01-01", "2011-02-01")


@given(st.integers(1, 21), st.integers(1, 21), st.integers(0, 20))
def test_blocks_hold_whole_chunks_or_parts_of_one(chunk, most, first):
    shape = (1, BLOCK_PIXELS // most)
    layers = xr.Dataset({"IR_108": (("time", "y", "x"), np.zeros((21, *shape), np.uint8))})

    class Chunked:
        pass

    view = Chunked()
    view.shape, view.layers = shape, layers.chunk(time=chunk)
    chosen = np.arange(first, 21)
    blocks = blocks_of_time(view, chosen)
    assert_array_equal(np.concatenate(blocks), chosen)
    assert max(map(len, blocks)) <= BLOCK_PIXELS // shape[1]
    if chunk <= most:
        assert all(block[0] % chunk == 0 for block in blocks[1:])


def test_a_map_without_its_scene_is_upright_too(scene, result):
    southward = result.assign_coords(scene.coords)
    flipped = southward.isel(y=slice(None, None, -1), x=slice(None, None, -1))
    view = view_map(flipped)
    assert set(view.layers) == {"cloud_mask", "cloud_probability", "cloud_latent_variance"}
    expected = view_scene(scene, result).layers["cloud_probability"].values
    assert np.array_equal(view.layers["cloud_probability"].values, expected)


def masks(l2, model):
    dims = ("time", "y", "x")
    scene = xr.Dataset({"cloud_mask_l2": (dims, np.uint8(l2))}, {"time": TIMES})
    return scene, xr.Dataset({"cloud_mask": (dims, np.uint8(model))}, {"time": TIMES})


@pytest.mark.parametrize("chunks", [None, {"time": 1}])
def test_pixels_that_one_mask_does_not_know_do_not_count(chunks):
    l2 = [[[0, 1, 1, 0]], [[0, 1, 255, 1]], [[255] * 4], [[1, 1, 1, 1]]]
    model = [[[0, 1, 1, 0]], [[1, 1, 0, 255]], [[0] * 4], [[0, 0, 0, 0]]]
    scene, result = masks(l2, model)
    if chunks:
        scene, result = scene.chunk(chunks), result.chunk(chunks)
    assert_allclose(disagreement(scene, result), [0.0, 0.5, np.nan, 1.0])


def test_the_most_disputed_acquisitions_are_of_different_days_in_order_of_time():
    shares = xr.DataArray([0.2, 0.9, 0.3, np.nan], {"time": TIMES}, ["time"])
    assert_array_equal(most_disputed(shares, 1), TIMES[[1]])
    assert_array_equal(most_disputed(shares, 5), TIMES[[1, 2]])
    assert most_disputed(shares * np.nan, 5).size == 0


# Maps of other classes


def of_classes(result):
    """Return a map of classes by the probabilities of a made-up map, with a missing pixel."""
    p = result["cloud_probability"].values
    probability = np.stack([0.5 * (1.0 - p), p, 0.5 * (1.0 - p)]).astype(np.float32)
    probability[:, 0, 0, 0] = np.nan
    codes = np.array([10, 20, 30], np.uint8)[np.argmax(probability, axis=0)]
    codes[0, 0, 0] = 255
    dims = result["cloud_mask"].dims
    attrs = {
        "flag_values": np.array([10, 20, 30], np.uint8),
        "flag_meanings": "ice open_water land",
        "flag_colors": "#ffffff #0000ff #806040",
        "_FillValue": np.uint8(255),
    }
    each = ("class_name", *dims)
    return xr.Dataset(
        {
            "class": (dims, codes, attrs),
            "class_probability": (each, probability),
            "class_latent_variance": (each, np.stack([p, 2.0 * p, 3.0 * p])),
        },
        coords={"class_name": ["ice", "open water", "land"], "time": result["time"]},
    )


def test_a_map_of_classes_shows_the_class_its_probability_and_its_variance(scene, result):
    made = of_classes(result)
    view = view_scene(scene, made)
    assert [(c.code, c.name, c.colour) for c in view.classes] == [
        (10, "ice", "#ffffff"),
        (20, "open water", "#0000ff"),
        (30, "land", "#806040"),
    ]
    upright = view.layers
    probability = made["class_probability"].max("class_name", skipna=False)
    shown = upright["cloud_probability"].values
    assert_array_equal(np.sort(shown.ravel()), np.sort(probability.values.ravel()))
    water = upright["cloud_mask"].values == 20
    cloudy = upright["cloud_truth"].values == 1
    assert_array_equal(water[np.isfinite(shown)], cloudy[np.isfinite(shown)])
    # The second class has a variance of twice the probability 0.9, the first of 0.1 or its triple.
    assert np.allclose(upright["cloud_latent_variance"].values[water], 1.8)


def test_colours_that_are_none_are_refused_before_anything_is_drawn(result):
    names = ("class_probability", "class_latent_variance")
    forged = result.assign(dict.fromkeys(names, result["cloud_probability"]))
    flags = {
        "flag_values": np.array([0, 1], np.uint8),
        "flag_meanings": "sea land",
        "flag_colors": "#000000 url(https://example.org/x)",
    }
    forged["class"] = result["cloud_mask"].assign_attrs(flags)
    with pytest.raises(SceneError, match="classes that cannot be shown"):
        view_map(forged)
    forged["class"].attrs["flag_colors"] = "#000000 #ffffff"
    assert [each.name for each in view_map(forged).classes] == ["sea", "land"]


def test_two_classes_show_the_probability_of_the_likelier(scene, result):
    made = of_classes(result)
    attrs = made["class"].attrs | {
        "flag_values": [0, 1],
        "flag_meanings": "dry wet",
        "flag_colors": "#ffffff #000000",
    }
    two = xr.Dataset(
        {
            "class": result["cloud_mask"].assign_attrs(attrs),
            "class_probability": result["cloud_probability"],
            "class_latent_variance": result["cloud_latent_variance"],
        }
    )
    view = view_scene(scene, two)
    assert [shown.name for shown in view.classes] == ["dry", "wet"]
    assert np.allclose(view.layers["cloud_probability"].values, 0.9)


def test_all_probabilities_are_those_of_the_map_with_classes_last(scene, result):
    made = of_classes(result)
    view = view_scene(scene, made)
    layer = view.layers["class_probability"]
    assert layer.dims == ("time", "y", "x", "class_name")
    assert_array_equal(layer.max("class_name", skipna=False), view.layers["cloud_probability"])


def test_a_label_of_the_same_classes_is_shown_and_another_is_not(scene, result):
    made = of_classes(result)
    flags = {name: made["class"].attrs[name] for name in ("flag_values", "flag_meanings")}
    label = made["class"].drop_attrs()
    view = view_scene(scene.assign(kinds=label.assign_attrs(flags)), made)
    assert_array_equal(view.layers["class_label"], view.layers["cloud_mask"])
    other = label.assign_attrs(flags | {"flag_meanings": "ice water land"})
    assert "class_label" not in view_scene(scene.assign(kinds=other), made).layers


def test_a_map_of_clouds_has_no_other_classes(view):
    assert view.classes == ()
