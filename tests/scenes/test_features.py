"""The sixteen features: against loops over pixels, for any chunks, with missing pixels."""

import math

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus._daylight import NIGHT_FEATURES
from undulatus.errors import SceneError
from undulatus.scenes.features import (
    BAND_FEATURES,
    FEATURES,
    MARGIN,
    landmark_features,
)
from undulatus.scenes.radiometry import (
    DEFAULT_PLATFORM,
    SOLAR_RADIANCE_39,
    THERMAL_BANDS,
    sun_earth_distance,
)
from undulatus.scenes.scene import BANDS, REFLECTANCE

REFLECTANCES = [name for name, band in BANDS.items() if band.quantity == REFLECTANCE]
SHAPE = (3, 7, 6)
SMALL = (2, 5, 4)
TIMES = np.datetime64("2010-06-01T13:00", "ns") + np.arange(3) * np.timedelta64(15, "m")
TIMES.setflags(write=False)


def a_scene(seed=0, shape=SHAPE, missing=0.0):
    """Make random pixels by day, by night and at dusk; a share of the values is missing."""
    rng = np.random.default_rng(seed)
    dims = ("time", "y", "x")

    def values(low, high):
        drawn = rng.uniform(low, high, shape).astype(np.float32)
        drawn[rng.random(shape) < missing] = np.nan
        return drawn

    scene = xr.Dataset(
        {
            name: (dims, values(2.0, 90.0), {"units": "%"})
            if name in REFLECTANCES
            else (dims, values(200.0, 330.0), {"units": "K"})
            for name in BANDS
        },
        coords={"time": TIMES[: shape[0]]},
        attrs={"platform_name": "Meteosat-9"},
    )
    angle = rng.uniform(0.0, 110.0, shape).astype(np.float32)
    return scene.assign(solar_zenith_angle=(dims, angle, {"units": "degree"}))


def by_day(scene):
    return scene.assign(solar_zenith_angle=scene["solar_zenith_angle"] * 0.7)


# The slow oracle, in double precision


def window(image, y, x, reach):
    """Return the finite values around a pixel."""
    around = [
        float(image[row, column])
        for row in range(max(0, y - reach), min(image.shape[0], y + reach + 1))
        for column in range(max(0, x - reach), min(image.shape[1], x + reach + 1))
    ]
    return [value for value in around if math.isfinite(value)]


def mean(values):
    return math.fsum(values) / len(values)


def deviation(values):
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def oracle(scene, t, y, x):
    """Return the features of one pixel, by name."""
    image = {name: scene[band].values[t] for name, band in BAND_FEATURES.items()}
    angle = scene["solar_zenith_angle"].values[t]
    lit = angle < 90.0
    for name in ("R1", "R2", "R3"):
        image[name] = np.where(lit, image[name], np.nan)
    pixel = {name: float(values[y, x]) for name, values in image.items()}
    r1, r2, r3 = pixel["R1"], pixel["R2"], pixel["R3"]
    band = THERMAL_BANDS[DEFAULT_PLATFORM]["IR_039"]
    sunlight = SOLAR_RADIANCE_39 * max(
        math.cos(math.radians(angle[y, x])), math.cos(math.radians(88.0))
    )
    sunlight /= float(sun_earth_distance(scene["time"].values[t])) ** 2
    reflected = float(band.radiance(np.float64(pixel["R4"])))
    reflected -= float(band.radiance(np.float64(pixel["BT9"])))
    pixel["R4"] = 100.0 * reflected / sunlight if lit[y, x] else math.nan

    def ratio(above, below):
        return above / max(below, 0.1) if math.isfinite(below) else math.nan

    pixel["cloud_ratio"] = ratio(r2, r1)
    pixel["snow_index"] = ratio(r1 - r3, r1 + r3)
    pixel["ndvi"] = ratio(r2 - r1, r2 + r1)
    for name in ("R1", "BT9"):
        there = math.isfinite(pixel[name])
        for feature, statistic, reach in (
            ("mean3", mean, 1),
            ("mean5", mean, 2),
            ("std3", deviation, 1),
        ):
            around = window(image[name], y, x, reach)
            pixel[f"{name}_{feature}"] = statistic(around) if there else math.nan
    return pixel


def tolerance(name):
    """Return (rtol, atol) of a feature in single precision, whose rounding is u = 6e-8."""
    u = 2.0**-24
    if name == "R4":
        # An exponent of 21 known to 2 u gives radiances of up to 3, and their difference, known
        # to 50 u, times 100 / (4.92 cos 88°). The cosine is known to 1.6 u / cos 88°.
        return 100 * u, 50 * u * 6.0 * 100 / (4.92 * 0.0349)
    if name.endswith("std3"):
        # Root of mean square minus squared mean: 20 roundings of 330^2 in double precision.
        return 2 * u, math.sqrt(20 * 1.1e-16 * 330.0**2)
    # A sum, a difference and a quotient; means are rounded once.
    return 4 * u, 1e-12


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.8])
def test_features_agree_with_loops_over_pixels_and_windows(missing):
    scene = a_scene(1, missing=missing)
    found = landmark_features(scene)
    for t, y, x in np.ndindex(SHAPE):
        expected = oracle(scene, t, y, x)
        for name in FEATURES:
            rtol, atol = tolerance(name)
            value = found.sel(feature=name).values[t, y, x]
            assert_allclose(value, expected[name], rtol=rtol, atol=atol, err_msg=name)


def test_the_sixteen_features_are_in_the_papers_order():
    assert list(landmark_features(a_scene())["feature"].values) == [
        *("R1", "R2", "R3", "R4", "BT7", "BT9", "BT10"),
        *("cloud_ratio", "snow_index", "ndvi"),
        *("R1_mean3", "R1_mean5", "R1_std3", "BT9_mean3", "BT9_mean5", "BT9_std3"),
    ]


def test_denominators_are_at_least_a_tenth_of_a_percent():
    scene = by_day(a_scene())
    for name in REFLECTANCES:
        scene[name][:] = 5.0
        scene[name][0, 0, 0] = 0.01
        scene[name][0, 0, 1] = -0.5
    found = landmark_features(scene).sel(feature=["cloud_ratio", "snow_index", "ndvi"])
    assert_allclose(found[0, 0, 0], [0.1, 0.0, 0.0], rtol=1e-6)
    assert_allclose(found[0, 0, 1], [-5.0, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("platform", [*THERMAL_BANDS, None])
def test_a_known_reflectance_at_3_9_micrometres_is_recovered(platform):
    scene = by_day(a_scene(2)).assign_attrs(platform_name=platform)
    band = THERMAL_BANDS.get(platform, THERMAL_BANDS[DEFAULT_PLATFORM])["IR_039"]
    known = np.random.default_rng(3).uniform(0.0, 40.0, SHAPE)
    cosine = np.cos(np.radians(scene["solar_zenith_angle"].values.astype(np.float64)))
    assert cosine.min() > 0.2
    distance = sun_earth_distance(scene["time"].values)[:, None, None]
    radiance = band.radiance(scene["IR_108"].values.astype(np.float64))
    radiance += known / 100.0 * SOLAR_RADIANCE_39 * cosine / distance**2
    scene["IR_039"][:] = band.temperature(radiance)
    found = landmark_features(scene).sel(feature="R4")
    # Radiances up to 5 with 50 roundings of 6e-8, over sunlight of 4.92 * 0.2; and the 3.9 µm
    # temperature is rounded to 330 u K, where a kelvin is 4 % of the radiance.
    atol = 100 * 2.0**-24 * (2 * 50 * 5.0 + 330 * 0.04 * 5.0) / (4.92 * 0.2)
    assert_allclose(found, known, atol=atol)


def test_an_unknown_platform_is_an_error_that_lists_the_known_ones():
    scene = a_scene(2).assign_attrs(platform_name="Himawari-8")
    with pytest.raises(SceneError, match="platform_name is 'Himawari-8'") as error:
        landmark_features(scene)
    assert all(platform in str(error.value) for platform in THERMAL_BANDS)


def test_without_a_time_the_mean_distance_of_the_sun_is_used():
    scene = by_day(a_scene())
    timed, timeless = landmark_features(scene), landmark_features(scene.drop_vars("time"))
    r4 = FEATURES.index("R4")
    assert_allclose(timeless[..., r4], timed[..., r4], rtol=0.034)
    others = [index for index in range(16) if index != r4]
    assert_array_equal(timeless[..., others], timed[..., others])


# Missing pixels


@settings(max_examples=15)
@given(st.integers(0, 6), st.integers(0, 5), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_missing_pixel_stays_missing_and_affects_only_windows_that_hold_it(y, x, value):
    scene = by_day(a_scene(4))
    before = landmark_features(scene)
    for name in BANDS:
        scene[name][1, y, x] = value
    after = landmark_features(scene)
    assert np.isnan(after[1, y, x]).all()
    rows, columns = np.ogrid[:7, :6]
    distance = np.maximum(abs(rows - y), abs(columns - x))
    changed = (before.values != after.values).any(axis=-1)
    assert not changed[[0, 2]].any()
    assert not changed[1][distance > MARGIN].any()
    # Near it windows are smaller and so differ, but nothing else is missing.
    assert changed[1][distance <= MARGIN].all()
    assert np.isfinite(after.values[1][distance > 0]).all()


def test_the_window_of_an_isolated_pixel_is_the_pixel_itself():
    scene = by_day(a_scene(5))
    for name in BANDS:
        kept = float(scene[name][0, 3, 3])
        scene[name][:] = np.nan
        scene[name][0, 3, 3] = kept
    found = landmark_features(scene)
    pixel = {str(name): float(found.sel(feature=name)[0, 3, 3]) for name in FEATURES}
    for channel in ("R1", "BT9"):
        assert pixel[f"{channel}_mean3"] == pixel[f"{channel}_mean5"] == pixel[channel]
        # The root of a difference of squares that agree to within two roundings.
        assert pixel[f"{channel}_std3"] < 330.0 * math.sqrt(4 * 1.1e-16)
    assert np.isnan(found).sum() == found.size - len(FEATURES)


def test_windows_end_at_the_edge_of_the_earths_disc():
    scene = by_day(a_scene(6))
    rows, columns = np.ogrid[:7, :6]
    space = (rows - 3) ** 2 + (columns - 2.5) ** 2 > 8.0
    longitude, latitude = np.meshgrid(np.linspace(-16.0, -15.0, 6), np.linspace(24.0, 23.0, 7))
    scene = scene.drop_vars("solar_zenith_angle").assign_coords(
        longitude=(("y", "x"), np.where(space, np.inf, longitude)),
        latitude=(("y", "x"), np.where(space, np.inf, latitude)),
    )
    for name in BANDS:
        scene[name] = scene[name].where(~xr.DataArray(space, dims=("y", "x")))
        scene[name].attrs["units"] = BANDS[name].units
    found = landmark_features(scene)
    assert np.isnan(found.values[:, space]).all()
    assert np.isfinite(found.values[:, ~space]).all()
    for y, x in np.argwhere(~space):
        around = window(scene["IR_108"].values[0], y, x, 2)
        assert_allclose(found.sel(feature="BT9_mean5")[0, y, x], mean(around), rtol=1.2e-7)


def test_at_night_all_but_the_night_features_are_missing():
    scene = a_scene(7)
    found = landmark_features(scene)
    night = scene["solar_zenith_angle"].values >= 90.0
    assert night.any()
    for name in FEATURES:
        missing = np.isnan(found.sel(feature=name).values)
        assert_array_equal(missing, night if name not in NIGHT_FEATURES else False)


def test_night_features_do_not_depend_on_the_sun():
    scene = a_scene(8)
    dark = scene.assign(solar_zenith_angle=xr.full_like(scene["solar_zenith_angle"], 120.0))
    light, dark = (
        landmark_features(s).sel(feature=list(NIGHT_FEATURES)) for s in (by_day(scene), dark)
    )
    assert_array_equal(light, dark)


# Shapes and chunks


@st.composite
def cuts(draw, size):
    """Draw chunks along a dimension."""
    edges = sorted(draw(st.sets(st.integers(1, size - 1))) if size > 1 else [])
    return tuple(int(n) for n in np.diff([0, *edges, size]))


ONE_PIXEL = tuple((1,) * size for size in SMALL)


@settings(max_examples=10)
@given(st.tuples(*map(cuts, SMALL)), st.integers(0, 3))
@example(ONE_PIXEL, 0)
@example(((2,), (1,) * 5, (4,)), 1)
@example(((2,), (2, 3), (1, 3)), 2)
def test_features_do_not_depend_on_chunks(chunks, seed):
    scene = a_scene(seed, SMALL, missing=0.1)
    lazy = landmark_features(scene.chunk(dict(zip(("time", "y", "x"), chunks, strict=True))))
    assert isinstance(lazy.data, da.Array)
    with dask.config.set(scheduler="synchronous"):
        assert_array_equal(lazy.values, landmark_features(scene).values)


def test_a_block_without_a_value_stays_missing_and_its_neighbours_keep_their_windows():
    scene = by_day(a_scene(9))
    for name in BANDS:
        scene[name][:, :, :3] = np.inf
    lazy = landmark_features(scene.chunk(time=1, y=7, x=3))
    assert_array_equal(lazy.values, landmark_features(scene).values)


def test_bands_in_memory_and_in_chunks_may_be_mixed():
    scene = a_scene(10)
    mixed = scene.assign(IR_108=scene["IR_108"].chunk(x=2), VIS006=scene["VIS006"].chunk(y=3))
    assert_array_equal(landmark_features(mixed), landmark_features(scene))


@pytest.mark.parametrize("chunks", [None, {"y": 2, "x": 3}])
def test_an_image_without_time_has_the_features_of_its_acquisition(chunks):
    scene = a_scene(11)
    image = scene.isel(time=1)
    found = landmark_features(image if chunks is None else image.chunk(chunks))
    assert found.dims == ("y", "x", "feature")
    assert_array_equal(found, landmark_features(scene)[1])


@pytest.mark.parametrize("dims", [("x", "time", "y"), ("y", "x", "time")])
@pytest.mark.parametrize("chunks", [None, 2])
def test_the_order_of_dims_does_not_matter(dims, chunks):
    scene = a_scene(12)
    transposed = scene.transpose(*dims)
    found = landmark_features(transposed if chunks is None else transposed.chunk(chunks))
    assert found.dims == ("time", "y", "x", "feature")
    assert_array_equal(found, landmark_features(scene))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 6), (2, 7, 1), (0, 4, 4)])
def test_images_may_be_smaller_than_a_window(shape):
    found = landmark_features(by_day(a_scene(13, shape)))
    assert found.shape == (*shape, 16)
    assert np.isfinite(found).all()


def test_features_are_float32_and_keep_the_coordinates():
    scene = by_day(a_scene(14)).assign_coords(
        longitude=(("y", "x"), np.ones(SHAPE[1:])), spatial_ref=0
    )
    for found in (landmark_features(scene), landmark_features(scene.chunk(y=3))):
        assert found.dtype == np.float32
        assert found.values.dtype == np.float32
        xr.testing.assert_equal(
            found.drop_vars("feature").coords.to_dataset(), scene.coords.to_dataset()
        )


def test_only_the_blocks_around_a_pixel_are_computed():
    made = []

    def value_of(name):
        return 30.0 if name in REFLECTANCES else 280.0

    def record(block, value, name):
        made.append(name)
        return np.full(block.shape, value, np.float32)

    blocks = da.zeros((4, 80, 80), chunks=(1, 40, 40), dtype=np.float32)
    scene = xr.Dataset(
        {
            name: (
                ("time", "y", "x"),
                blocks.map_blocks(record, value_of(name), name, meta=np.empty((0, 0, 0))),
                {"units": band.units},
            )
            for name, band in BANDS.items()
        }
        | {"solar_zenith_angle": (("time", "y", "x"), da.full_like(blocks, 30.0))}
    )
    features = landmark_features(scene)
    made.clear()  # check_scene read a window
    features[2, 70, 70].compute(scheduler="synchronous")
    # The pixel's block and the three neighbours that give it margins; none of another time.
    assert sorted(made) == sorted([*BANDS] * 4)
