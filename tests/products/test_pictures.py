"""Pictures can be opened, have a sensible size, and show panels and text."""

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import RFFGPC
from undulatus.errors import SceneError
from undulatus.products import Legend, map_scene
from undulatus.products.panels import GROUND, TITLES
from undulatus.products.pictures import draw_acquisitions, draw_cloud_panels, stretch

NIGHT, DAY = "2010-01-01T06:00", "2010-01-01T11:00"


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
    # More than one colour: it has panels, a title and keys.
    assert picture[..., :3].std() > 0.05


def test_the_split_between_training_and_test_is_drawn(tmp_path):
    shown = panels(40, 60)
    pictures = []
    for split_row in (None, 20):
        path = tmp_path / f"{split_row}.png"
        draw_cloud_panels(path, **shown, title="Clouds", split_row=split_row)
        pictures.append(matplotlib.image.imread(path))
    assert pictures[0].shape == pictures[1].shape
    assert not np.array_equal(*pictures)


def test_an_image_with_missing_pixels_can_be_drawn(tmp_path):
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


def test_a_stretch_does_not_change_its_input():
    rgb = np.random.default_rng(0).random((4, 4, 3))
    rgb.setflags(write=False)
    stretch(rgb)


@pytest.fixture(scope="module")
def result(scene):
    """A made-up map: the truth with probabilities of 0.1 and 0.9, wrong in one row."""
    mask = scene["cloud_truth"].copy()
    mask[:, 0] = 1 - mask[:, 0]
    probability = (0.1 + 0.8 * mask).astype(np.float32)
    return xr.Dataset(
        {
            "cloud_mask": mask,
            "cloud_probability": probability,
            "cloud_latent_variance": probability,
        }
    )


@pytest.fixture
def drawn(monkeypatch):
    """The saved figures, in order."""
    figures = []
    save = Figure.savefig

    def keep(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def texts(figure):
    return {text.get_text() for text in figure.findobj(Text)} - {""}


def titled(figure, title):
    return next(axis for axis in figure.axes if axis.get_title() == title)


def picture_of(path, axis):
    """Return the part of a picture that the axes cover, (h, w, 3)."""
    picture = matplotlib.image.imread(path)[..., :3]
    left, bottom, right, top = np.round(axis.get_window_extent().extents).astype(int)
    height = len(picture)
    return picture[height - top : height - bottom, left:right]


def test_acquisitions_are_a_readable_png_of_a_sensible_size(tmp_path, scene, result):
    path = tmp_path / "rows.png"
    draw_acquisitions(path, scene, result, [NIGHT, DAY], title="Two")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    picture = matplotlib.image.imread(path)
    assert 1500 <= picture.shape[1] <= 3000
    assert 500 <= picture.shape[0] <= 1000
    assert picture[..., :3].std() > 0.05


def test_acquisitions_can_be_a_pdf(tmp_path, scene, result):
    path = tmp_path / "rows.pdf"
    draw_acquisitions(path, scene, result, DAY, title="One")
    assert path.read_bytes()[:5] == b"%PDF-"


def test_each_row_names_time_sun_and_accuracies_and_the_footnote_names_the_simulator(
    tmp_path, scene, result, drawn
):
    draw_acquisitions(tmp_path / "rows.png", scene, result, [NIGHT, DAY], title="Two")
    shown = texts(drawn[0])
    assert {"Two", "2010-01-01 06:00 UTC", "2010-01-01 11:00 UTC", *TITLES.values()} <= shown
    assert "Synthetic landmark (simulator): no satellite took these images" in shown
    angle = scene["solar_zenith_angle"].sel(time=DAY).values.mean()
    beside = next(words for words in shown if f"solar zenith angle {angle:.0f}°" in words)
    # One row of twenty is wrong.
    assert "model: 95.0 %" in beside
    assert {"missing", "coastline", "clear", "cloud", "brightness temperature, K"} <= shown


def test_a_night_has_the_note_no_sunlight(tmp_path, scene, result, drawn):
    for number, time in enumerate((NIGHT, DAY)):
        draw_acquisitions(tmp_path / f"{number}.png", scene, result, time, title="One")
    notes = [[text.get_text() for text in titled(figure, TITLES["rgb"]).texts] for figure in drawn]
    assert notes == [["night: no sunlight"], [""]]
    night = picture_of(tmp_path / "0.png", titled(drawn[0], TITLES["rgb"]))
    assert np.median(night) < 0.2


def test_missing_pixels_are_hatched_and_others_are_not(tmp_path, scene, result, drawn):
    gone = xr.zeros_like(scene["IR_108"], dtype=bool)
    gone[:, 5:10] = True
    bands = scene.assign(VIS006=scene["VIS006"].where(~gone).assign_attrs(units="%"))
    path = tmp_path / "rows.png"
    draw_acquisitions(path, bands, result.where(~gone), DAY, title="One")
    for name in ("rgb", "model", "probability", "uncertainty"):
        panel = picture_of(path, titled(drawn[0], TITLES[name]))
        ground = np.abs(panel - to_rgb(GROUND)).max(axis=-1) < 0.01
        quarter = len(panel) // 4
        # A quarter of the panel is missing; hatches and coast cover less than half of it.
        assert ground[quarter + 2 : 2 * quarter - 2].mean() > 0.5
        assert ground[2 * quarter + 2 :].mean() < 0.01


def test_a_scene_without_masks_has_fewer_panels(tmp_path, scene, result, drawn):
    bare = scene.drop_vars(["cloud_mask_l2", "cloud_truth", "land_mask"])
    draw_acquisitions(tmp_path / "rows.png", bare, result, DAY, title="One")
    absent = {TITLES["l2"], TITLES["truth"], "coastline"}
    assert absent.isdisjoint(texts(drawn[0]))
    assert set(TITLES.values()) - absent <= texts(drawn[0])


def test_a_scene_of_one_acquisition_needs_no_times(tmp_path, scene, result, drawn):
    draw_acquisitions(tmp_path / "a.png", scene.isel(time=20), result.isel(time=20), title="One")
    assert "2010-01-01 11:00 UTC" in texts(drawn[0])


@pytest.mark.parametrize("times", ["2010-02-01", [DAY, "2010-02-01"]])
def test_a_time_outside_the_scene_is_refused_and_leaves_no_file(tmp_path, scene, result, times):
    with pytest.raises(SceneError, match="covers 2010-01-01 06:00 UTC to 2010-01-01 11:00 UTC"):
        draw_acquisitions(tmp_path / "rows.png", scene, result, times, title="One")
    assert list(tmp_path.iterdir()) == []


def test_too_many_or_no_acquisitions_are_refused(tmp_path, scene, result):
    for times in ([], [DAY] * 25):
        with pytest.raises(SceneError, match=f"but {len(times)} were chosen"):
            draw_acquisitions(tmp_path / "rows.png", scene, result, times, title="One")


def test_a_picture_that_fails_leaves_no_file(tmp_path, scene, result, monkeypatch):
    def fail(figure, path, **options):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(SceneError, match="No space left"):
        draw_acquisitions(tmp_path / "rows.png", scene, result, DAY, title="One")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_of_another_file_type_is_refused(tmp_path, scene, result):
    with pytest.raises(SceneError, match=r"\.png or \.pdf"):
        draw_acquisitions(tmp_path / "rows.jpg", scene, result, DAY, title="One")


# Maps of other classes


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes_are_drawn_in_the_colours_and_names_of_their_legend(scene, tmp_path, drawn):
    bands = pd.DataFrame({name: scene[name].values.ravel() for name in ("IR_087", "IR_108")})
    kinds = np.array(["sea", "sand", "high cloud"])
    colours = ("#112233", "#445566", "#778899")
    y = kinds[np.digitize(bands["IR_108"], bands["IR_108"].quantile([0.3, 0.6]))]
    model = RFFGPC(5, n_estimators=1, max_iter=3, random_state=0).fit(bands, y)
    legend = Legend(("sea", "sand", "high cloud"), colours=colours)
    result = map_scene(model, scene, legend=legend)
    path = tmp_path / "classes.png"
    draw_acquisitions(path, scene, result, "2010-01-01T11:00", title="Kinds")
    shown = texts(drawn[0])
    assert {"model classes", "probability of the class", *kinds} <= shown
    assert TITLES["model"] not in shown
    codes = result["class"].sel(time="2010-01-01T11:00", method="nearest").values
    image = next(i for i in titled(drawn[0], "model classes").images).get_array()
    for code, colour in zip(
        result["class"].attrs["flag_values"],
        result["class"].attrs["flag_colors"].split(),
        strict=True,
    ):
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        found = (np.asarray(image)[..., :3] == rgb).all(axis=-1)
        # Pictures may be turned upright.
        assert found.sum() == (codes == code).sum()
