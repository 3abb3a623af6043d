"""Panels: colours match their bars, text matches the data, coastlines match the land."""

import dask.array as da
import matplotlib
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba_array
from numpy.testing import assert_array_equal

from undulatus.products import views
from undulatus.products.panels import (
    COLOUR_SCALES,
    DARK,
    TITLES,
    Acquisition,
    ColourScale,
    box_ratio,
    caption_lines,
    coastline,
    panel_names,
    read_acquisitions,
    scales_for,
)
from undulatus.products.pictures import CLEAR, CLOUD
from undulatus.products.views import view_scene

NIGHT, DAY = 0, 18


@pytest.fixture(scope="module")
def result(scene):
    """A made-up map: the truth with noise, in two regimes."""
    rng = np.random.default_rng(0)
    dims, shape = scene["IR_108"].dims, scene["IR_108"].shape
    latent = 4.0 * (scene["cloud_truth"].values - 0.5) + rng.normal(size=shape)
    probability = (1.0 / (1.0 + np.exp(-latent))).astype(np.float32)
    night = scene["solar_zenith_angle"].values >= 90.0
    flags = {
        "flag_masks": np.array([8, 16, 16], np.uint8),
        "flag_values": np.array([8, 0, 16], np.uint8),
        "flag_meanings": "missing_channel regime_day regime_night",
    }
    return xr.Dataset(
        {
            "cloud_mask": (dims, (probability > 0.5).astype(np.uint8)),
            "cloud_probability": (dims, probability),
            "cloud_latent_variance": (dims, rng.uniform(0.1, 1.0, shape).astype(np.float32)),
            "quality_flag": (dims, np.where(night, 16, 0).astype(np.uint8), flags),
        },
        coords=scene.coords,
    )


def shown(scene, result, number, scales=COLOUR_SCALES):
    return next(read_acquisitions(view_scene(scene, result), np.array([number]), scales))


def as_bytes(*colours):
    return (to_rgba_array(colours) * 255.0 + 0.5).astype(np.uint8)


def with_missing(dataset, *names, number=DAY, rows=slice(3, 6)):
    """Return the dataset with some rows of an acquisition missing."""
    where = xr.zeros_like(dataset[names[0]], dtype=bool)
    where[number, rows] = True
    return dataset.assign({name: dataset[name].where(~where) for name in names})


@pytest.mark.parametrize("name", COLOUR_SCALES)
def test_a_colour_scale_gives_the_colours_of_its_bar(name):
    scale = COLOUR_SCALES[name]
    values = np.linspace(scale.low, scale.high, 50).reshape(5, 10)
    expected = matplotlib.colormaps[scale.colours](scale.norm(values.ravel()), bytes=True)
    found = scale(values).reshape(-1, 4)
    # A colour map has 256 steps; a value between two steps may get either.
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 6
    assert_array_equal(found[[0, -1]], expected[[0, -1]])


@pytest.mark.parametrize("name", COLOUR_SCALES)
def test_values_outside_a_colour_scale_have_the_colours_of_its_ends(name):
    scale = COLOUR_SCALES[name]
    ends = scale(np.array([scale.low, scale.high]))
    assert_array_equal(scale(np.array([scale.low - 1.0, scale.high * 9.0])), ends)


def test_a_missing_value_is_transparent():
    assert_array_equal(COLOUR_SCALES["ir"](np.array([np.nan, 280.0]))[:, 3], [0, 255])


def test_cold_pixels_are_white():
    assert_array_equal(COLOUR_SCALES["ir"](np.array([150.0]))[0], [255, 255, 255, 255])


def test_the_ticks_of_a_logarithmic_bar_lie_within_it():
    scale = ColourScale("magma", 0.02, 0.7, "", logarithmic=True)
    assert scale.ticks == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5])
    assert COLOUR_SCALES["ir"].ticks is None


def test_the_colour_scale_of_the_uncertainty_spans_nearly_all_of_it(scene, result):
    view = view_scene(scene, result)
    scale = scales_for(view, np.arange(21))["uncertainty"]
    deviation = np.sqrt(result["cloud_latent_variance"].values)
    assert np.mean((deviation >= scale.low) & (deviation <= scale.high)) > 0.97
    assert scale.low > 0.1
    assert scale.high <= 1.0


def test_a_model_without_variance_is_shown_with_a_note(scene, result):
    bare = result.assign(
        cloud_latent_variance=xr.full_like(result["cloud_latent_variance"], np.nan)
    )
    scales = scales_for(view_scene(scene, bare), np.arange(21))
    found = shown(scene, bare, DAY, scales)
    assert found.notes == {"uncertainty": "this model gives none"}
    assert not found.images["uncertainty"].any()


def test_natural_colour_is_stretched_as_in_satpy(scene, result):
    image = shown(scene, result, DAY).images["rgb"]
    for channel, band in enumerate(("IR_016", "VIS008", "VIS006")):
        percent = scene[band].values[DAY].astype(np.float64)
        expected = 255.0 * np.clip(percent / 120.0, 0.0, 1.0) ** (1 / 1.8)
        # Rounded to a byte, from single precision.
        assert np.abs(image[..., channel] - expected).max() <= 0.51
    assert (image[..., 3] == 255).all()


def test_night_is_dark_with_a_note(scene, result):
    found = shown(scene, result, NIGHT)
    assert found.notes == {"rgb": "night: no sunlight"}
    assert_array_equal(np.unique(found.images["rgb"].reshape(-1, 4), axis=0), as_bytes(DARK))
    assert shown(scene, result, DAY).notes == {}


def test_where_day_meets_night_only_the_night_is_dark(scene, result):
    angle = scene["solar_zenith_angle"].copy()
    angle[DAY] = np.linspace(80.0, 100.0, 26, dtype=np.float32)
    found = shown(scene.assign(solar_zenith_angle=angle), result, DAY)
    dark = (found.images["rgb"] == as_bytes(DARK)).all(axis=-1)
    assert_array_equal(dark, angle[DAY].values >= 90.0)
    assert found.notes == {}
    assert found.sun == "solar zenith angle 80 to 100°"


def test_masks_have_two_colours(scene, result):
    found = shown(scene, result, DAY)
    sources = {
        "l2": scene["cloud_mask_l2"],
        "truth": scene["cloud_truth"],
        "model": result["cloud_mask"],
    }
    for name, mask in sources.items():
        assert_array_equal(found.images[name], as_bytes(CLEAR, CLOUD)[mask.values[DAY]])


def test_missing_pixels_are_transparent_in_every_panel(scene, result):
    scene = with_missing(scene, "IR_016", "IR_108", "cloud_mask_l2", "cloud_truth")
    result = with_missing(result, "cloud_mask", "cloud_probability", "cloud_latent_variance")
    found = shown(scene, result, DAY)
    assert set(found.images) == set(TITLES)
    for image in found.images.values():
        assert (image[3:6, :, 3] == 0).all()
        assert (np.delete(image[..., 3], [3, 4, 5], axis=0) == 255).all()


def test_accuracies_are_shares_of_the_known_pixels(scene, result):
    result = with_missing(result, "cloud_mask")
    found = shown(scene, result, DAY).accuracies
    truth = scene["cloud_truth"].values[DAY]
    l2, model = scene["cloud_mask_l2"].values[DAY], result["cloud_mask"].values[DAY]
    known = np.delete(np.arange(20), [3, 4, 5])
    assert found == {
        "L2": pytest.approx(np.mean(l2 == truth), rel=1e-12),
        "model": pytest.approx(np.mean(model[known] == truth[known]), rel=1e-12),
    }


def test_regimes_are_named_from_the_quality_bits_of_pixels_that_are_not_missing(scene, result):
    assert shown(scene, result, NIGHT).regime == "night"
    assert shown(scene, result, DAY).regime == "day"
    quality = result["quality_flag"].copy()
    quality[DAY, :5] |= 16
    mixed = result.assign(quality_flag=quality)
    assert shown(scene, mixed, DAY).regime == "day, night"
    quality[DAY, :5] |= 8
    assert shown(scene, result.assign(quality_flag=quality), DAY).regime == "day"
    bare = result.drop_vars("quality_flag")
    assert shown(scene, bare, DAY).regime == ""


def test_an_acquisition_names_its_time_and_sun(scene, result):
    found = shown(scene, result, DAY)
    angle = scene["solar_zenith_angle"].values[DAY].mean()
    assert found.time == "2010-01-01 10:30 UTC"
    assert found.sun == f"solar zenith angle {angle:.0f}°"


@pytest.mark.parametrize("absent", [["cloud_mask_l2"], ["cloud_truth"], ["land_mask"]])
def test_a_layer_that_the_scene_lacks_has_no_panel(scene, result, absent):
    view = view_scene(scene.drop_vars(absent), result)
    found = next(read_acquisitions(view, np.array([DAY]), COLOUR_SCALES))
    panel = {"cloud_mask_l2": "l2", "cloud_truth": "truth", "land_mask": ""}[absent[0]]
    assert panel_names(view) == tuple(name for name in TITLES if name != panel)
    assert set(found.images) == set(panel_names(view))
    assert set(found.accuracies) == {"l2": {"model"}, "truth": set()}.get(panel, {"L2", "model"})


@pytest.mark.parametrize("chunk", [1, 4, 21])
def test_chunks_do_not_change_what_is_shown(scene, result, chunk, monkeypatch):
    monkeypatch.setattr(views, "BLOCK_PIXELS", 5 * 520)
    chosen = np.arange(2, 20)
    whole = read_acquisitions(view_scene(scene, result), chosen, COLOUR_SCALES)
    parts = read_acquisitions(
        view_scene(scene.chunk(time=chunk), result.chunk(time=7)), chosen, COLOUR_SCALES
    )
    for one, other in zip(whole, parts, strict=True):
        assert (one.time, one.sun, one.regime, one.notes) == (
            other.time,
            other.sun,
            other.regime,
            other.notes,
        )
        for name, image in one.images.items():
            assert_array_equal(image, other.images[name])


def test_acquisitions_are_yielded_before_later_blocks_are_read(scene, result, monkeypatch):
    monkeypatch.setattr(views, "BLOCK_PIXELS", 3 * 520)
    touched = set()

    def touch(block, block_info=None):
        if block_info:
            touched.add(block_info[0]["chunk-location"][0])
        return block

    probability = result["cloud_probability"].chunk(time=3)
    watched = probability.copy(data=da.map_blocks(touch, probability.data, dtype=np.float32))
    view = view_scene(scene.chunk(time=3), result.assign(cloud_probability=watched))
    acquisitions = read_acquisitions(view, np.arange(21), COLOUR_SCALES)
    next(acquisitions)
    assert touched == {0}
    assert len(list(acquisitions)) == 20
    assert touched == set(range(7))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))
def test_the_coastline_separates_every_land_pixel_from_its_neighbours_at_sea(rows, columns, seed):
    land = np.random.default_rng(seed).random((rows, columns)) > 0.5
    x, y = (part.reshape(-1, 3) for part in coastline(land))
    assert np.isnan(x[:, 2]).all()
    assert np.isnan(y[:, 2]).all()
    found = {((a, c), (b, d)) for a, b, c, d in zip(*x[:, :2].T, *y[:, :2].T, strict=True)}
    expected = set()
    for i in range(rows):
        for j in range(columns):
            if j + 1 < columns and land[i, j] != land[i, j + 1]:
                expected.add(((j + 0.5, i - 0.5), (j + 0.5, i + 0.5)))
            if i + 1 < rows and land[i, j] != land[i + 1, j]:
                expected.add(((j - 0.5, i + 0.5), (j + 0.5, i + 0.5)))
    assert found == expected
    assert len(x) == len(expected)


@pytest.mark.parametrize(
    ("shape", "ratio"), [((20, 26), 20 / 26), ((9, 900), 0.4), ((900, 9), 1.4)]
)
def test_a_panel_has_the_shape_of_the_image_within_limits(shape, ratio):
    assert box_ratio(shape) == pytest.approx(ratio, rel=1e-12)


def test_a_caption_lists_only_what_is_known():
    known = Acquisition("", "sun", "low", {"L2": 0.9, "model": 0.96}, {}, {})
    assert caption_lines(known) == [
        "sun",
        "regime: low",
        "",
        "accuracy against the truth",
        "L2: 90.0 %",
        "model: 96.0 %",
    ]
    assert caption_lines(Acquisition("", "sun", "", {}, {}, {})) == ["sun"]
