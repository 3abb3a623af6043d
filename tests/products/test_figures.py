"""Pictures that can be opened, are of a sensible size, and show something."""

import matplotlib.image
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.products.figures import draw_cloud_panels, stretch


def panels(height, width, seed=0):
    rng = np.random.default_rng(seed)
    probability = rng.random((height, width))
    return {
        "rgb": rng.random((height, width, 3)),
        "label": (probability > 0.5).astype(int),
        "probability": probability,
        "uncertainty": rng.random((height, width)),
    }


@pytest.mark.parametrize(("height", "width"), [(40, 60), (90, 50), (20, 26)])
@pytest.mark.parametrize("split_row", [None, 10])
def test_a_picture_is_a_readable_png_of_a_sensible_size(tmp_path, height, width, split_row):
    path = tmp_path / "clouds.png"
    draw_cloud_panels(path, **panels(height, width), title="Clouds", split_row=split_row)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    picture = matplotlib.image.imread(path)
    assert 1000 <= picture.shape[1] <= 4000
    assert 300 <= picture.shape[0] <= 4000
    # Not one colour: panels, a title and keys are on it.
    assert picture[..., :3].std() > 0.05


def test_the_split_is_drawn(tmp_path):
    shown = panels(40, 60)
    pictures = []
    for split_row in (None, 20):
        path = tmp_path / f"{split_row}.png"
        draw_cloud_panels(path, **shown, title="Clouds", split_row=split_row)
        pictures.append(matplotlib.image.imread(path))
    assert pictures[0].shape == pictures[1].shape
    assert not np.array_equal(*pictures)


def test_missing_pixels_are_drawn_around(tmp_path):
    shown = panels(40, 60)
    for name in ("rgb", "probability", "uncertainty"):
        shown[name][:5, :5] = np.nan
    path = tmp_path / "clouds.png"
    draw_cloud_panels(path, **shown, title="Clouds")
    assert path.stat().st_size > 10_000


def test_drawing_opens_no_window_and_keeps_no_figure(tmp_path):
    import matplotlib.pyplot as plt

    draw_cloud_panels(tmp_path / "clouds.png", **panels(20, 26), title="Clouds")
    assert plt.get_fignums() == []


def test_a_stretch_maps_its_percentiles_to_zero_and_one():
    rgb = np.linspace(0.0, 100.0, 300).reshape(10, 10, 3)
    found = stretch(rgb, 10.0, 90.0)
    assert found.shape == rgb.shape
    assert (found.min(), found.max()) == (0.0, 1.0)
    inside = (rgb > 10.0) & (rgb < 90.0)
    assert_allclose(found[inside], (rgb[inside] - 10.0) / 80.0, rtol=1e-12)


def test_an_image_of_one_colour_is_stretched_to_black():
    assert_array_equal(stretch(np.full((4, 4, 3), 7.0)), np.zeros((4, 4, 3)))


def test_a_stretch_leaves_the_image_alone():
    rgb = np.random.default_rng(0).random((4, 4, 3))
    rgb.setflags(write=False)
    stretch(rgb)
