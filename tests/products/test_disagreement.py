"""How far two masks differ, and when they do most."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.products.disagreement import disagreement, most_disputed

TIMES = np.datetime64("2010-01-01", "ns") + np.arange(4) * np.timedelta64(12, "h")


def masks(l2, model):
    dims = ("time", "y", "x")
    scene = xr.Dataset({"cloud_mask_l2": (dims, np.uint8(l2))}, {"time": TIMES})
    return scene, xr.Dataset({"cloud_mask": (dims, np.uint8(model))}, {"time": TIMES})


@pytest.mark.parametrize("chunks", [None, {"time": 1}])
def test_pixels_that_either_mask_does_not_know_do_not_count(chunks):
    l2 = [[[0, 1, 1, 0]], [[0, 1, 255, 1]], [[255] * 4], [[1, 1, 1, 1]]]
    model = [[[0, 1, 1, 0]], [[1, 1, 0, 255]], [[0] * 4], [[0, 0, 0, 0]]]
    scene, result = masks(l2, model)
    if chunks:
        scene, result = scene.chunk(chunks), result.chunk(chunks)
    assert_allclose(disagreement(scene, result), [0.0, 0.5, np.nan, 1.0])


def test_the_most_disputed_are_of_different_days_and_in_the_order_of_time():
    shares = xr.DataArray([0.2, 0.9, 0.3, np.nan], {"time": TIMES}, ["time"])
    assert_array_equal(most_disputed(shares, 1), TIMES[[1]])
    assert_array_equal(most_disputed(shares, 5), TIMES[[1, 2]])
    assert most_disputed(shares * np.nan, 5).size == 0
