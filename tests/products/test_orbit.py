"""A real orbit: which views are compared on, in which stretches, and the globe."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.utils import Bunch

from undulatus import datasets
from undulatus.products.orbit import (
    NO_VALUE_COLOUR,
    GlobePanel,
    LabelledViews,
    draw_globes,
    labelled_orbit,
    project,
)

LAND = Bunch(
    share=np.pad(np.full((600, 300), 100, np.uint8), ((600, 600), (1200, 2100))),
    latitude=89.95 - 0.1 * np.arange(1800),
    longitude=-179.95 + 0.1 * np.arange(3600),
)
"""Land in a rectangle."""


@pytest.fixture
def orbit():
    """40 views over 20 minutes, a label for all but ten, one without a channel."""
    times = np.datetime64("2018-11-22T12:00", "ns") + np.arange(40) * np.timedelta64(30, "s")
    values = np.full((40, 3), 280.0, np.float32)
    values[5, 1] = np.nan
    return xr.Dataset(
        {
            "brightness_temperature": (("sample", "channel"), values),
            "cloudy": ("sample", np.resize([0, 1, 255, 1], 40).astype(np.uint8)),
            "land_share": ("sample", np.resize([0, 100], 40).astype(np.uint8)),
        },
        {
            "time": ("sample", times),
            "latitude": ("sample", np.linspace(-50.0, 50.0, 40)),
            "longitude": ("sample", np.linspace(-60.0, -20.0, 40)),
        },
    )


def test_views_without_a_label_or_a_channel_are_left_out_and_stretches_are_held_out_whole(orbit):
    views = LabelledViews.of(orbit)
    assert len(views.y) == 29
    assert 5 not in views.rows
    tested = []
    for name, learn, test in views.folds():
        assert name not in views.stretch[learn]
        assert set(views.stretch[test]) == {name}
        tested += test.tolist()
    assert sorted(tested) == list(range(29))
    assert len(set(views.stretch)) == 4


def test_scores_are_given_by_surface_and_latitude(orbit):
    views = LabelledViews.of(orbit)
    parts = views.parts()
    assert list(parts)[:4] == ["all", "sea", "land", "60° S to 30° S"]
    assert_array_equal(parts["sea"], ~parts["land"])
    scores = views.scores(np.where(views.land, views.y, 0.5).astype(float))
    assert scores["land"].accuracy == 1.0
    assert_allclose(scores["sea"].nll, np.log(2.0))


def test_the_globe_is_seen_from_above_its_centre():
    x, y, seen = project(
        np.array([20.0, 90.0, -20.0]), np.array([-40.0, 7.0, 140.0]), (20.0, -40.0)
    )
    assert_allclose(np.hypot(x, y), [0.0, np.cos(np.radians(20.0)), 0.0], atol=1e-12)
    assert y[1] > 0
    assert seen.tolist() == [True, True, False]


def test_globes_are_drawn_with_coasts_and_views(orbit, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_land_share", lambda: LAND)
    panel = GlobePanel("cloud", np.linspace(0, 1, 40), "gray", 0.0, 1.0, "p", {0.5: "half"})
    draw_globes(tmp_path / "globe.png", orbit, [panel, panel], (0.0, -40.0))
    with Image.open(tmp_path / "globe.png") as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape[1] == 1056
    # The globe's edge, coasts and views are darker than its face.
    assert np.count_nonzero(pixels < 100) > 1000


def test_views_without_a_value_have_a_colour_of_their_own(orbit, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_land_share", lambda: LAND)
    values = np.where(np.arange(40) < 20, np.linspace(0, 1, 40), np.nan)
    panel = GlobePanel("cloud", values, "gray", 0.0, 1.0, "p", None, "missing", np.arange(40) < 30)
    for name, shown in (("with", panel), ("without", replace(panel, belongs=None))):
        draw_globes(tmp_path / f"{name}.png", orbit, [shown], (0.0, -40.0))
        with Image.open(tmp_path / f"{name}.png") as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        drawn = (pixels == [int(NO_VALUE_COLOUR[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=1)
        assert drawn.any() == (name == "with")


@pytest.mark.network
def test_the_real_orbit_is_labelled_by_day_and_both_classes_are_common(fetched):
    orbit = fetched(labelled_orbit)
    views = LabelledViews.of(orbit)
    assert len(views.y) == 7942
    assert 0.4 < views.y.mean() < 0.5
    assert len(set(views.stretch)) == 7
    window = views.X[:, orbit["channel_number"].values == 8][:, 0]
    # Cloud tops are colder than the surface below them.
    assert np.median(window[views.y == 1]) < np.median(window[views.y == 0]) - 15.0
