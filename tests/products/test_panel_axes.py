"""Coastlines, boxes and words of a panel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undulatus.products.panel_axes import box_ratio, coastline, words_of
from undulatus.products.panels import Acquisition


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))
def test_the_coast_runs_between_every_pixel_of_land_and_its_neighbours_at_sea(rows, columns, seed):
    land = np.random.default_rng(seed).random((rows, columns)) > 0.5
    x, y = (part.reshape(-1, 3) for part in coastline(land))
    assert np.isnan(x[:, 2]).all()
    assert np.isnan(y[:, 2]).all()
    found = {((a, c), (b, d)) for a, b, c, d in zip(*x[:, :2].T, *y[:, :2].T, strict=True)}
    due = set()
    for i in range(rows):
        for j in range(columns):
            if j + 1 < columns and land[i, j] != land[i, j + 1]:
                due.add(((j + 0.5, i - 0.5), (j + 0.5, i + 0.5)))
            if i + 1 < rows and land[i, j] != land[i + 1, j]:
                due.add(((j - 0.5, i + 0.5), (j + 0.5, i + 0.5)))
    assert found == due
    assert len(x) == len(due)


@pytest.mark.parametrize(
    ("shape", "ratio"), [((20, 26), 20 / 26), ((9, 900), 0.4), ((900, 9), 1.4)]
)
def test_a_box_has_the_shape_of_the_image_within_limits(shape, ratio):
    assert box_ratio(shape) == pytest.approx(ratio, rel=1e-12)


def test_words_are_of_what_is_known():
    known = Acquisition("", "sun", "low", {"L2": 0.9, "model": 0.96}, {}, {})
    assert words_of(known) == [
        "sun",
        "regime: low",
        "",
        "accuracy against the truth",
        "L2: 90.0 %",
        "model: 96.0 %",
    ]
    assert words_of(Acquisition("", "sun", "", {}, {}, {})) == ["sun"]
