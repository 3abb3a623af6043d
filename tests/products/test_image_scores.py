"""Scores of labelled pixels of images, and estimates for the whole map."""

import copy
import json
from types import SimpleNamespace

import geopandas
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from rasterio import Affine
from rasterio.crs import CRS
from sklearn.linear_model import LogisticRegression

from undulatus.errors import InputError, MissingBandsError, SceneError
from undulatus.products import Legend, adapt_image, fit_image, map_scene, score_image
from undulatus.products.image_scores import _relative_areas
from undulatus.products.mapped_areas import MappedAreas
from undulatus.products.provenance import Provenance
from undulatus.products.scores import expected_calibration_error, score_classes
from undulatus.scenes import open_image, write_dataset
from undulatus.scenes.labelled_pixels import PixelGrid
from undulatus.scenes.pixel_areas import PixelAreas


@pytest.fixture(scope="module")
def model(image_files):
    """A weak model: of one band, which two of the classes share."""
    return fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", bands=["B03"],
        method="rff", n_frequencies=20, n_estimators=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(model, image_files):
    return score_image(model, image_files / "image.tif")


def held_out_pixels(model, small_image):
    """Rows and columns of the held-out polygons, and their numbers."""
    rows, columns, groups = [], [], []
    for g, (west, south, east, north) in enumerate(Provenance.of(model).held_out_groups.values()):
        top, left = (
            round((small_image.NORTH - north) / 10),
            round((west - small_image.WEST) / 10),
        )
        bottom = round((small_image.NORTH - south) / 10)
        right = round((east - small_image.WEST) / 10)
        row, column = np.mgrid[top:bottom, left:right]
        rows.append(row.ravel())
        columns.append(column.ravel())
        groups.append(np.full(row.size, g))
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(groups)


def test_the_scores_are_those_of_the_held_out_polygons(model, found, small_image):
    row, column, groups = held_out_pixels(model, small_image)
    truth = np.array(small_image.CLASSES, object)[small_image.truth[row, column]]
    table = pd.DataFrame({"B03": small_image.values[1, row, column]})
    expected = score_classes(
        truth, model.predict_proba(table), model.classes_, groups=groups, names=model.classes_
    )
    assert found.basis.kind == "held out"
    assert_array_equal(found.scores.confusion, expected.confusion)
    for name, estimate in expected.overall.items():
        assert getattr(found.scores, name).value == pytest.approx(estimate.value, rel=1e-6)
    assert found.scores.accuracy.low == pytest.approx(expected.accuracy.low, rel=1e-6)
    assert found.scores.groups == len(Provenance.of(model).held_out_groups)


def test_areas_come_from_the_map_and_the_confusion(model, found, small_image, image_files):
    maps = map_scene(model, open_image(image_files / "image.tif")).compute()
    counts = [np.sum(maps["class"].values == code) for code in Legend.of(model).codes]
    assert found.areas.unit == "ha"
    assert_allclose(found.areas.mapped, 0.01 * np.array(counts))
    cells = found.scores.confusion.T
    # Of the two classes that look alike in this band, one may never be predicted.
    shares = np.array(counts) / sum(counts) / np.maximum(cells.sum(axis=1), 1)
    assert_allclose(found.areas.proportions, cells * shares[:, None])
    assert found.areas.design is None
    assert "No sampling design" in found.areas.statement
    assert found.areas.clusters == found.scores.groups


def test_a_map_from_a_file_gives_the_same_areas(model, found, image_files, tmp_path):
    image = image_files / "image.tif"
    write_dataset(map_scene(model, open_image(image)), tmp_path / "map.tif")
    again = score_image(model, image, maps=tmp_path / "map.tif")
    assert again.areas.as_dict() == found.areas.as_dict()
    with pytest.raises(InputError, match="1 images, but 2 maps"):
        score_image(model, image, maps=[tmp_path / "map.tif"] * 2)


def test_an_image_need_not_be_mapped(model, image_files, monkeypatch):
    def refuse(*given, **options):
        raise AssertionError("mapped")

    monkeypatch.setattr("undulatus.products.image_scores.classify_image", refuse)
    assert score_image(model, image_files / "image.tif", areas=False).areas is None


def test_pixels_drawn_by_themselves_are_not_taken_for_polygons(model, image_files):
    pixels = score_image(model, image_files / "image.tif", design="stratified")
    groups = score_image(model, image_files / "image.tif", design="clusters")
    assert any("groups of 81 pixels" in note for note in pixels.areas.notes)
    assert pixels.areas.accuracy.value == pytest.approx(groups.areas.accuracy.value)
    assert pixels.areas.clusters is None


def test_areas_from_training_data_are_said_to_be_such(model, image_files, small_image):
    for polygon in small_image.polygons().iloc[:8].index:
        one = small_image.polygons().loc[[polygon]]
        found = score_image(model, image_files / "image.tif", one, field="class")
        warned = any("was trained on this sample" in note for note in found.areas.notes)
        assert warned == (found.basis.kind == "training")


def test_areas_of_a_random_sample_are_near_the_truth(model, image_files, small_image):
    rng = np.random.default_rng(0)
    row, column = rng.integers(0, 90, 800), rng.integers(0, 120, 800)
    points = pd.DataFrame(
        {
            "row": row,
            "column": column,
            "class": np.array(small_image.CLASSES)[small_image.truth[row, column]],
        }
    )
    # The fit learned from three quarters of the image, but with one band it learned little: here
    # the areas are at issue, so that its memory is taken away.
    forgetful = fit_image(image_files / "image.tif", points.iloc[:200], field="class",
                          bands=["B03"], method="rff", n_frequencies=20,
                          n_estimators=1)  # fmt: skip
    forgetful.provenance_ = {**forgetful.provenance_, "training_groups": {}, "held_out_groups": {}}
    found = score_image(forgetful, image_files / "image.tif", points, design="simple").areas
    truth = [0.01 * np.sum(small_image.truth == small_image.CLASSES.index(name))
             for name in found.classes]  # fmt: skip
    for estimate, area in zip(found.areas, truth, strict=True):
        # Where the sample shows no error there is no standard error, but an area of a few pixels.
        assert abs(estimate.value - area) < np.nanmax([4 * estimate.standard_error, 0.2])
    # The map alone is far off: water and forest are alike in this band.
    assert np.max(np.abs(found.mapped - truth)) > 5.0
    assert np.max(np.abs([e.value for e in found.areas] - np.array(truth))) < 5.0


def test_reliability_has_all_pixels_and_the_calibration_error(found):
    top, *classes = found.reliability
    assert [one.name for one in classes] == ["field", "forest", "water"]
    for one, scored in zip(classes, found.scores.by_class, strict=True):
        assert one.rows.sum() == found.scores.samples
        gaps = np.nansum(np.abs(one.probability - one.frequency) * one.rows)
        assert gaps / one.rows.sum() == pytest.approx(scored.ece.value, abs=1e-9)
    gaps = np.nansum(np.abs(top.probability - top.frequency) * top.rows) / top.rows.sum()
    assert gaps == pytest.approx(found.scores.ece.value, abs=1e-9)
    assert expected_calibration_error(np.array([True]), np.array([1.0])) == 0.0


def test_everything_is_plain_and_says_first_what_was_scored(found):
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["basis"] == "held out"
    assert plain["statement"] == found.basis.statement == found.table().splitlines()[0]
    area = plain["areas"]["by_class"][0]["area"]
    assert area["low"] is None or area["low"] <= area["value"] <= area["high"]
    assert [len(one["rows"]) > 0 for one in plain["reliability"]] == [True] * 4


def test_pixels_without_data_are_left_out_and_counted(model, small_image, tmp_path):
    values = small_image.values.copy()
    row, column, _ = held_out_pixels(model, small_image)
    values[:, row[:40], column[:40]] = -9.0
    small_image.write(tmp_path / "image.tif", values=values, nodata=-9.0)
    holey = score_image(model, tmp_path / "image.tif", small_image.polygons(), field="class",
                        areas=False)  # fmt: skip
    assert holey.scores.samples == len(row) - 40
    assert holey.notes == ("40 labelled pixels without data are left out.",)
    small_image.write(tmp_path / "none.tif", values=np.full_like(values, -9.0), nodata=-9.0)
    with pytest.raises(SceneError, match="are missing"):
        score_image(model, tmp_path / "none.tif", small_image.polygons(), field="class")


def test_labels_of_one_class_can_be_scored(model, image_files, small_image):
    water = small_image.polygons().query("`class` == 'water'")
    found = score_image(model, image_files / "image.tif", water, field="class", areas=False)
    assert found.scores.confusion.sum(axis=1).tolist()[:2] == [0, 0]


def test_a_classifier_of_scikit_learn_is_scored_by_the_names_of_its_bands(
    image_files, small_image
):
    rng = np.random.default_rng(0)
    row, column = rng.integers(0, 90, 300), rng.integers(0, 120, 300)
    table = pd.DataFrame(small_image.values[:, row, column].T, columns=small_image.BANDS)
    truth = np.array(small_image.CLASSES)[small_image.truth[row, column]]
    plain = LogisticRegression(C=1e4, max_iter=1000).fit(table, truth)
    found = score_image(plain, image_files / "image.tif", image_files / "fields.gpkg",
                        field="class")  # fmt: skip
    assert found.basis.kind == "unknown"
    assert found.scores.accuracy.value > 0.95
    nameless = LogisticRegression(max_iter=1000).fit(table.to_numpy(), truth)
    with pytest.raises(InputError, match="without names of features"):
        score_image(nameless, image_files / "image.tif", image_files / "fields.gpkg",
                    field="class")  # fmt: skip


def test_what_cannot_be_scored_is_said(model, image_files, small_image, tmp_path):
    image = image_files / "image.tif"
    with pytest.raises(SceneError, match="has no field 'crop'"):
        score_image(model, image, image_files / "fields.gpkg", field="crop")
    small_image.write(tmp_path / "two.tif", values=small_image.values[:1], names=("B02",))
    with pytest.raises(MissingBandsError, match="B03"):
        score_image(model, tmp_path / "two.tif", small_image.polygons(), field="class")
    far = geopandas.GeoDataFrame(
        {"class": ["water"]}, geometry=[small_image.box(5000, 5000)], crs=small_image.CRS
    )
    with pytest.raises(SceneError, match="do not overlap the image"):
        score_image(model, image, far)
    lost = fit_image(image, small_image.polygons(), field="class", method="rff", n_frequencies=5,
                     n_estimators=1)  # fmt: skip
    with pytest.raises(InputError, match="does not say which labels"):
        score_image(lost, image)
    lost.provenance_["label"] = str(tmp_path / "gone.gpkg")
    with pytest.raises(SceneError, match=r"gone\.gpkg, are not found"):
        score_image(lost, image)


@pytest.mark.parametrize(("step", "whole"), [(1.0, False), (1e-4, True)])
def test_labelled_pixels_count_by_their_areas_where_these_differ(step, whole):
    grid = PixelGrid(CRS.from_epsg(4326), Affine(step, 0, 10, 0, -step, 60), (60, 20), "image")
    mapped = MappedAreas(np.ones(2), "ha", of_pixels=(PixelAreas.of(grid),))
    row = np.arange(60)
    pixels = SimpleNamespace(row=row, column=row % 20, image=np.zeros(60, int))
    found = _relative_areas(mapped, pixels)
    assert found.mean() == pytest.approx(1.0)
    # Areas of squares of degrees go with the cosine of the latitude, but for the ellipsoid's 1 %.
    expected = np.cos(np.radians(60 - step * (row + 0.5)))
    assert_allclose(found, expected / expected.mean(), rtol=0.01)
    assert (found == 1.0).all() == whole


# Another model on the same pixels

SMALL = {"field": "class", "method": "rff", "n_frequencies": 20, "n_estimators": 1}


@pytest.fixture(scope="module")
def better(image_files):
    """A model of all bands, which holds out other polygons."""
    return fit_image(image_files / "image.tif", image_files / "fields.gpkg", seed=3, **SMALL)


def test_two_models_are_compared_where_neither_has_learned(
    model, better, image_files, small_image
):
    image = image_files / "image.tif"
    found = score_image(model, image, against=better, areas=False)
    row, column, groups = held_out_pixels(model, small_image)
    theirs = set(zip(*(part.tolist() for part in held_out_pixels(better, small_image)[:2]),
                     strict=True))  # fmt: skip
    shared = np.array([pixel in theirs for pixel in zip(row.tolist(), column.tolist(),
                                                        strict=True)])  # fmt: skip
    row, column, groups = row[shared], column[shared], groups[shared]
    assert 0 < len(row) == found.scores.samples == found.comparison.samples
    truth = np.array(small_image.CLASSES, object)[small_image.truth[row, column]]
    table = pd.DataFrame(small_image.values[:, row, column].T, columns=small_image.BANDS)
    right = [one.predict(table[list(one.feature_names_in_)]) == truth for one in (model, better)]
    assert found.comparison.accuracy.first == pytest.approx(right[0].mean())
    assert found.comparison.accuracy.second == pytest.approx(right[1].mean())
    assert found.comparison.accuracy.first == found.scores.accuracy.value
    assert found.comparison.nll.first == pytest.approx(found.scores.nll.value)
    assert found.comparison.groups == len(np.unique(groups))
    assert found.basis.kind == "held out"
    count = f"Scored on {len(row)} pixels of {len(np.unique(groups))} polygons that neither model"
    assert found.basis.statement.startswith(count)
    assert "as learned from: 36 polygons by the first, 36 polygons by the other" in (
        found.basis.statement
    )
    assert found.as_dict()["against"]["names"] == ["first", "other"]


def test_new_labels_tell_which_of_two_models_is_better(model, better, image_files, small_image):
    # Strips between the polygons of the fits.
    corners = [(r, c) for r in range(0, 90, 15) for c in range(0, 120, 15)]
    new = geopandas.GeoDataFrame(
        {"class": [small_image.CLASSES[small_image.truth[corner]] for corner in corners]},
        geometry=[small_image.box(row, column, 3, 15) for row, column in corners],
        crs=small_image.CRS,
    )
    asked = (image_files / "image.tif", new)
    found = score_image(model, *asked, against=better, areas=False)
    assert found.basis.kind == "new"
    assert found.comparison.groups == len(corners)
    assert [" other is better by 0." in verdict for verdict in found.comparison.verdicts] == [
        True,
        True,
    ]
    assert found.table().splitlines()[-2:] == list(found.comparison.verdicts)
    alone = score_image(better, *asked, areas=False).scores
    assert found.comparison.nll.second == pytest.approx(alone.nll.value)
    assert found.comparison.by_class[0].users_accuracy.second == pytest.approx(
        alone.by_class[0].users_accuracy.value
    )
    # Pixels that were drawn one by one are independent.
    drawn = score_image(model, *asked, against=better, areas=False, design="simple").comparison
    assert drawn.groups is None
    assert drawn.accuracy.value == pytest.approx(found.comparison.accuracy.value)
    assert drawn.accuracy.standard_error < found.comparison.accuracy.standard_error


def test_what_a_model_was_adapted_by_is_left_out_of_its_comparison(
    better, image_files, small_image
):
    corners = [(r, c) for r in range(0, 90, 15) for c in range(0, 120, 15)]
    new = geopandas.GeoDataFrame(
        {"class": [small_image.CLASSES[small_image.truth[corner]] for corner in corners]},
        geometry=[small_image.box(row, column, 3, 15) for row, column in corners],
        crs=small_image.CRS,
    )
    image = image_files / "image.tif"
    adapted = adapt_image(better, image, new.iloc[:10])
    found = score_image(better, image, new, against=adapted, areas=False)
    assert found.comparison.groups == len(corners) - 10
    assert "0 polygons by the first, 10 polygons by the other" in found.basis.statement
    with pytest.raises(SceneError, match="no polygon of the labels in common that neither"):
        score_image(better, image, new.iloc[:10], against=adapted)


def test_pixels_that_one_of_two_models_cannot_score_are_left_out(
    model, better, small_image, tmp_path
):
    values = small_image.values.copy()
    # The first model does not need this band.
    values[3] = np.where(np.arange(120) < 60, values[3], -9.0)
    small_image.write(tmp_path / "image.tif", values=values, nodata=-9.0)
    asked = (tmp_path / "image.tif", small_image.polygons())
    found = score_image(model, *asked, field="class", against=better, areas=False)
    west = score_image(model, *asked, field="class", areas=False)
    assert found.scores.samples < west.scores.samples
    assert "without data are left out" in found.notes[0]


def test_models_that_cannot_be_compared_are_refused(
    model, better, image_files, small_image, tmp_path
):
    image = image_files / "image.tif"
    with pytest.raises(InputError, match="against is a str, but a fitted classifier is needed"):
        score_image(model, image, against="other.undulatus")
    polygons = small_image.polygons()
    polygons.loc[polygons["class"] == "water", "class"] = "lake"
    other = fit_image(image, polygons, **SMALL)
    with pytest.raises(InputError, match=r"only the model has: water\n.*--against\) has: lake"):
        score_image(model, image, against=other)
    small_image.write(tmp_path / "two.tif", values=small_image.values[:2], names=("B02", "B03"))
    with pytest.raises(SceneError, match=r"other model \(--against\) cannot be .*\n.*B04, B08"):
        score_image(model, tmp_path / "two.tif", small_image.polygons(), field="class",
                    against=better)  # fmt: skip
    with pytest.raises(InputError, match="counts by the area of the mapped class"):
        score_image(model, image, against=better, design="stratified")


def test_a_model_that_does_not_say_what_it_learned_from_is_compared_with_a_doubt(
    model, better, image_files
):
    forgetful = copy.deepcopy(better)
    forgetful.provenance_ = {
        name: value for name, value in better.provenance_.items() if "groups" not in name
    }
    found = score_image(model, image_files / "image.tif", against=forgetful, areas=False)
    assert found.basis.kind == "unknown"
    assert "one of the two does not say what it learned from" in found.basis.statement
    assert found.comparison.groups == len(Provenance.of(model).held_out_groups)
