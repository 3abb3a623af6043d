"""Boxes of longitudes and latitudes, and the windows that they cut out of grids."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.box import Box

EAST, NORTH = np.meshgrid(np.arange(-10.0, 11.0), np.arange(8.0, -9.0, -1.0))
# A grid that is turned a little, as those of satellites are.
LONGITUDE = xr.DataArray(EAST + 0.2 * NORTH, dims=("y", "x"))
LATITUDE = xr.DataArray(NORTH - 0.1 * EAST, dims=("y", "x"))


@given(st.floats(-8, 6), st.floats(-6, 4), st.floats(2, 9), st.floats(2, 9))
def test_a_window_has_all_pixels_of_the_box_and_touches_one_on_each_side(west, south, wide, high):
    box = Box(west, south, west + wide, south + high)
    inside = box.contains(LONGITUDE, LATITUDE).values
    window = box.window(LONGITUDE, LATITUDE)
    cut = inside[window["y"], window["x"]]
    assert cut.sum() == inside.sum() > 0
    assert all(edge.any() for edge in (cut[0], cut[-1], cut[:, 0], cut[:, -1]))


def test_a_box_may_cross_the_180th_meridian():
    longitude = np.array([170.0, 179.0, -179.0, -170.0, 0.0])
    assert_array_equal(Box(175, -10, -175, 10).contains(longitude, np.zeros(5)), [0, 1, 1, 0, 0])


def test_pixels_in_space_lie_in_no_box():
    lost = LONGITUDE.where(EAST > 0)
    assert Box(-10, -8, 10, 8).window(lost, LATITUDE)["x"].start == 11


@pytest.mark.parametrize(
    "given_", ["1,2,3", "a,b,c,d", (1, 2, 3, 4, 5), "0,5,10,-5", "0,0,0,10", "0,-95,10,0",
               "0,0,nan,10", "200,0,210,10", "10,0,400,10"],
)  # fmt: skip
def test_what_is_no_box_is_refused_with_an_example(given_):
    with pytest.raises(SceneError, match=r"WEST,SOUTH,EAST,NORTH.*-17,23,-15\.5,24\.5"):
        Box.of(given_)


def test_a_box_is_written_as_it_is_read():
    assert Box.of(str(Box(-16.3, 23.3, -15.5, 24.1))) == Box(-16.3, 23.3, -15.5, 24.1)


def test_a_box_without_pixels_names_where_pixels_are():
    with pytest.raises(SceneError, match=r"No pixel lies in the box 50,0,60,5.*-11\.6 to 11\.6"):
        Box(50, 0, 60, 5).window(LONGITUDE, LATITUDE)
