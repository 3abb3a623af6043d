"""Labels from a visible channel: given where brightness can mean nothing else."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.visible import KINDS, glitter_angle, label_by_brightness, share_at

LAND = np.zeros((18, 36), np.uint8)
LAND[:, 18:] = 100
LAND[:, 0] = 40
"""Land in the east, sea in the west, and a coast at the date line, in cells of 10°."""


def views(**changed):
    """Make views at noon over the open sea; those given by name differ."""
    n = max(np.size(value) for value in changed.values())
    defaults = {
        "visible_radiance": 3.0,
        "latitude": 5.0,
        "longitude": -50.0,
        "solar_zenith_angle": 40.0,
        "satellite_zenith_angle": 0.0,
        "solar_azimuth_angle": 120.0,
        "satellite_azimuth_angle": 90.0,
    }
    values = {
        name: np.resize(value, n).astype(float) for name, value in (defaults | changed).items()
    }
    return xr.Dataset({name: ("sample", value) for name, value in values.items()})


def kinds(**changed):
    labelled = label_by_brightness(views(**changed), LAND)
    return [KINDS[code] for code in labelled["view_kind"].values]


def test_brightness_is_the_radiance_under_an_overhead_sun_and_its_limits_depend_on_the_surface():
    cosine = np.cos(np.radians(40.0))
    labelled = label_by_brightness(views(visible_radiance=[7.9, 10.0, 20.1]) * 1.0, LAND)
    assert_allclose(labelled["brightness"], np.array([7.9, 10.0, 20.1]) / cosine, rtol=1e-6)
    radiance = np.array([7.9, 10.0, 20.1, 28.1]) * cosine
    assert kinds(visible_radiance=radiance) == ["clear", "between", "cloudy", "cloudy"]
    over_land = kinds(visible_radiance=radiance, longitude=50.0)
    assert over_land == ["clear", "clear", "between", "cloudy"]


def test_views_that_brightness_cannot_judge_have_no_label():
    found = label_by_brightness(
        views(
            visible_radiance=[3.0, 3.0, 3.0, np.nan, np.nan, 3.0],
            latitude=[61.0, 5.0, 5.0, 5.0, 5.0, 5.0],
            longitude=[-50.0, -175.0, -50.0, -50.0, -50.0, -50.0],
            solar_zenith_angle=[40.0, 40.0, 70.0, 40.0, 110.0, 20.0],
        ),
        LAND,
    )
    names = [KINDS[code] for code in found["view_kind"].values]
    assert names == ["snow_or_ice", "coast", "low_sun", "missing", "low_sun", "glitter"]
    assert_array_equal(found["cloudy"], 255)
    assert kinds(latitude=46.0, longitude=50.0) == ["snow_or_ice"]
    assert kinds(solar_zenith_angle=20.0, longitude=50.0) == ["clear"]


def test_the_mirrored_sun_is_seen_from_the_opposite_side():
    angles = glitter_angle(
        views(
            solar_zenith_angle=30.0,
            satellite_zenith_angle=[30.0, 30.0, 0.0],
            solar_azimuth_angle=100.0,
            satellite_azimuth_angle=[280.0, 100.0, 0.0],
        )
    )
    assert_allclose(angles, [0.0, 60.0, 30.0], atol=1e-5)


def test_the_share_of_land_is_that_of_the_cell_of_a_place():
    places = np.array([[89.0, -179.0], [-89.9, 179.9], [90.0, 180.0], [5.0, 190.0]])
    assert share_at(LAND, *places.T).tolist() == [40, 100, 40, 0]
    assert share_at(LAND, np.array([np.nan]), np.array([np.nan])).shape == (1,)


def test_spectra_without_a_visible_channel_are_refused():
    with pytest.raises(SceneError, match=r"no visible_radiance.*files of HIRS"):
        label_by_brightness(views(latitude=1.0).drop_vars("visible_radiance"), LAND)
