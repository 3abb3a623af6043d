"""A classifier of your own image: what it learns from, what it keeps, and maps of other files."""

import json

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import GPC, load_model, save_model
from undulatus.errors import InputError, MissingBandsError, OutsideTrainingError, SceneError
from undulatus.products import Legend, fit_image, map_scene
from undulatus.products.image_pixels import label_pixels, open_images
from undulatus.products.images import MAX_PIXELS, draw_pixels
from undulatus.products.provenance import Provenance
from undulatus.scenes import open_image
from undulatus.scenes.image_features import ImageFeatures
from undulatus.scenes.pixel_grid import PixelGrid

pytest.importorskip("geopandas")

QUICK = {"method": "rff", "n_frequencies": 20, "n_estimators": 2}


@pytest.fixture(scope="module")
def model(image_files):
    return fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", **QUICK
    )


def mapped(model, image):
    maps = map_scene(model, image).compute()
    names = np.array(Legend.of(model).names)
    return names[np.searchsorted(Legend.of(model).codes, maps["class"].values)]


def test_three_lines_from_an_image_and_polygons_to_a_map(small_image, model, image_files):
    classes = mapped(model, open_image(image_files / "image.tif"))
    truth = np.array(small_image.CLASSES)[small_image.truth]
    assert np.mean(classes == truth) > 0.99
    assert list(model.feature_names_in_) == list(small_image.BANDS)


def test_the_model_file_holds_all_that_a_map_needs(model, image_files, tmp_path):
    save_model(model, tmp_path / "fields.undulatus")
    again = load_model(tmp_path / "fields.undulatus")
    image = open_image(image_files / "image.tif")
    assert_array_equal(mapped(model, image), mapped(again, image))
    json.dumps(again.provenance_)  # Plain values alone.


def test_whole_polygons_of_every_class_are_held_out(small_image, model):
    provenance = Provenance.of(model)
    held, trained = provenance.held_out_groups, provenance.training_groups
    assert provenance.group_unit == "polygon"
    assert len(held) + len(trained) == 48
    assert not set(held) & set(trained)
    assert len(held) == pytest.approx(12, abs=2)
    west, north = small_image.WEST, small_image.NORTH
    tested = {
        small_image.truth[int((north - box[3]) / 10) + 1, int((box[0] - west) / 10) + 1]
        for box in held.values()
    }
    assert tested == {0, 1, 2}
    # 36 polygons of 81 pixels, or a few more or less.
    assert sum(provenance.training_pixels.values()) == 81 * len(trained)


def test_the_projection_of_the_labels_does_not_decide_what_is_held_out(
    small_image, model, image_files
):
    held = Provenance.of(model).held_out_groups
    for crs in ("EPSG:4326", "EPSG:32633"):
        labels = small_image.polygons().to_crs(crs)
        again = fit_image(image_files / "image.tif", labels, field="class", **QUICK)
        other = Provenance.of(again).held_out_groups
        assert set(other) == set(held)
        for name, box in held.items():
            assert_allclose(other[name], box, atol=1e-3)


def test_bounds_of_polygons_are_in_the_coordinates_of_the_first_image(small_image, tmp_path):
    small_image.write(tmp_path / "utm.tif")
    bounds = rasterio.warp.transform_bounds(
        small_image.CRS, 4326, *PixelGrid.of(open_image(tmp_path / "utm.tif")).bounds
    )
    degrees = rasterio.transform.from_bounds(*bounds, 120, 90)
    small_image.write(tmp_path / "degrees.tif", crs="EPSG:4326", transform=degrees)
    images = open_images([tmp_path / "utm.tif", tmp_path / "degrees.tif"])
    recipe = ImageFeatures.choose(small_image.BANDS)
    pixels = label_pixels(images, small_image.polygons(), recipe, field="class")
    boxes = np.array([pixels.bounds[name] for name in pixels.group_names])
    assert (boxes[:, [0, 2]] > 499_000).all()
    # Within a metre those of polygons of 90 m: of a rectangle in degrees, bounds are larger.
    assert_allclose(boxes[:, 2] - boxes[:, 0], 90.0, atol=2.0)


def test_the_model_keeps_the_spectra_of_its_classes(small_image, model):
    profiles = Provenance.of(model).class_profiles
    assert profiles["features"] == list(small_image.BANDS)
    for name, spectrum in zip(small_image.CLASSES, small_image.SPECTRA, strict=True):
        quantiles = np.array(profiles["values"][name])
        assert quantiles.shape == (5, 4)
        assert_allclose(quantiles[2], spectrum, atol=0.002)
        # The 5 % quantile of a normal distribution of deviation 0.01.
        assert_allclose(quantiles[2] - quantiles[0], 0.01645, atol=0.003)


def test_other_orders_types_scales_and_nodata_give_the_same_classes(
    small_image, model, image_files, tmp_path
):
    expected = mapped(model, open_image(image_files / "image.tif"))
    order = [2, 0, 3, 1]
    stored = np.rint((small_image.values[order] + 0.1) / 0.00001).astype(np.int32) - 20_000
    stored = stored.astype(np.int16)
    path = small_image.write(
        tmp_path / "other.tif", values=stored, names=tuple(small_image.BANDS[i] for i in order),
        nodata=-32_768, scale=(0.00001, 0.1),
    )  # fmt: skip
    assert np.mean(mapped(model, open_image(path)) == expected) > 0.999
    bands = {
        name: (("y", "x"), band)
        for name, band in zip(small_image.BANDS, small_image.values, strict=True)
    }
    assert_array_equal(mapped(model, xr.Dataset(bands)), expected)


def test_indices_and_windows_are_made_again_for_maps(small_image, image_files, tmp_path):
    model = fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class",
        indices=["ndvi"], windows=[3], bands=["B04", "B08"], **QUICK,
    )  # fmt: skip
    names = ["B04", "B08", "NDVI", "B04_mean3", "B08_mean3", "B04_std3", "B08_std3"]
    assert list(model.feature_names_in_) == names
    save_model(model, tmp_path / "rich.undulatus")
    again = load_model(tmp_path / "rich.undulatus")
    image = open_image(image_files / "image.tif")
    chunked = image.chunk({"y": 31, "x": 47})
    assert_array_equal(mapped(again, image), mapped(again, chunked))
    truth = np.array(small_image.CLASSES)[small_image.truth]
    assert np.mean(mapped(again, image) == truth) > 0.9


def test_several_images_share_polygons_or_are_groups_themselves(
    small_image, image_files, tmp_path
):
    brighter = small_image.write(tmp_path / "later.tif", values=small_image.values + 0.002)
    both = [image_files / "image.tif", brighter]
    model = fit_image(both, small_image.polygons(), field="class", **QUICK)
    facts = Provenance.of(model)
    # A polygon is held out in both images, or in none.
    assert len(facts.training_groups) + len(facts.held_out_groups) == 48
    assert sum(facts.training_pixels.values()) == 2 * 81 * len(facts.training_groups)
    bare = {"crs": None, "transform": None}
    both = [small_image.write(tmp_path / f"{i}.tif", **bare) for i in range(2)]
    truth = small_image.write(tmp_path / "truth.tif", values=small_image.truth, names=None, **bare)
    by_raster = fit_image(both, truth, **QUICK, max_pixels=900)
    assert Provenance.of(by_raster).group_unit == "image"
    assert set(Provenance.of(by_raster).held_out_groups) < {path.name for path in both}


def test_a_raster_of_labels_holds_out_squares(image_files):
    model = fit_image(
        image_files / "image.tif", image_files / "truth.tif", **QUICK, max_pixels=900
    )
    facts = Provenance.of(model)
    assert facts.group_unit == "square"
    assert len(facts.held_out_groups) == pytest.approx(20, abs=5)
    assert sum(facts.training_pixels.values()) <= 900


def test_balanced_classes_are_corrected_for_their_shares(small_image, image_files):
    polygons = small_image.polygons()
    rare = polygons[(polygons["class"] != "water") | (np.arange(len(polygons)) < 24)]
    options = {"field": "class", "max_pixels": 600, **QUICK}
    even = fit_image(image_files / "image.tif", rare, balance=True, **options)
    counts = Provenance.of(even).training_pixels
    assert len(set(counts.values())) == 1
    shares = list(Provenance.of(even).class_shares.values())
    assert_allclose(even.prior_correction, shares)
    plain = fit_image(image_files / "image.tif", rare, **options)
    taken = np.array(list(Provenance.of(plain).training_pixels.values()))
    assert_allclose(taken / taken.sum(), shares, atol=0.05)


@given(st.integers(0, 2**32 - 1), st.integers(20, 500), st.booleans())
def test_a_draw_has_at_most_so_many_pixels_of_every_class(seed, most, balance):
    rng = np.random.default_rng(seed)
    codes = rng.choice(3, 1000, p=[0.8, 0.15, 0.05])
    drawn = draw_pixels(codes, np.bincount(codes, minlength=3), most, balance, rng)
    each = np.bincount(codes[drawn], minlength=3)
    assert len(set(drawn.tolist())) == len(drawn)
    assert (each > 0).all()
    assert len(drawn) <= most + 1  # Rounding.
    if balance:
        assert len(set(each.tolist())) == 1


def test_the_exact_classifier_learns_from_fewer_pixels(image_files, monkeypatch):
    monkeypatch.setitem(MAX_PIXELS, "gpc", 300)
    labels = image_files / "fields.gpkg"
    model = fit_image(image_files / "image.tif", labels, field="class", method="gpc")
    assert isinstance(model, GPC)
    assert sum(Provenance.of(model).training_pixels.values()) == pytest.approx(300, abs=3)


def test_an_unknown_method_is_named(image_files):
    with pytest.raises(InputError, match="method must be one of vff, rff, gpc"):
        fit_image(image_files / "image.tif", image_files / "fields.gpkg", method="svm")


# What cannot be used


def test_more_classes_than_a_map_has_codes_for_are_refused_before_the_fit(image_files):
    row, column = np.divmod(np.arange(1200), 40)
    numbers = pd.DataFrame({"row": row, "column": column, "class": np.arange(1200) % 300})
    with pytest.raises(SceneError, match="300 classes, but a map has at most 255"):
        fit_image(image_files / "image.tif", numbers, **QUICK)


def test_one_class_is_not_enough(small_image, image_files):
    water = small_image.polygons().query("`class` == 'water'")
    with pytest.raises(SceneError, match="only one class on the image, 'water'"):
        fit_image(image_files / "image.tif", water, field="class", **QUICK)


def test_codes_that_are_nodata_are_no_labels(small_image, image_files, tmp_path):
    two = np.where(small_image.truth == 0, 0, 1).astype(np.uint8)
    path = small_image.write(tmp_path / "two.tif", values=two, names=None, nodata=0)
    with pytest.raises(SceneError, match="pixels with its nodata value have no label"):
        fit_image(image_files / "image.tif", path, **QUICK)


def test_an_image_that_is_all_missing_is_refused(small_image, image_files, tmp_path):
    empty = np.full(small_image.values.shape, -1.0, np.float32)
    path = small_image.write(tmp_path / "empty.tif", values=empty, nodata=-1.0)
    with pytest.raises(SceneError, match="All 3,888 labelled pixels are missing"):
        fit_image(path, image_files / "fields.gpkg", field="class", **QUICK)


def test_images_of_different_bands_are_refused(small_image, image_files, tmp_path):
    fewer = small_image.write(
        tmp_path / "fewer.tif", values=small_image.values[:3], names=small_image.BANDS[:3]
    )
    labels = image_files / "fields.gpkg"
    with pytest.raises(SceneError, match=r"other bands than(.|\n)*missing: B08"):
        fit_image([image_files / "image.tif", fewer], labels, field="class", **QUICK)
    with pytest.raises(InputError, match=r"other bands than are asked for(.|\n)*missing: B99"):
        fit_image(image_files / "image.tif", labels, field="class", bands=["B99"], **QUICK)
    shared = fit_image(
        [image_files / "image.tif", fewer], labels, field="class", bands=["B02", "B04"], **QUICK
    )
    assert list(shared.feature_names_in_) == ["B02", "B04"]


def test_maps_of_bands_that_are_missing_renamed_twice_or_of_another_scale(
    small_image, model, tmp_path
):
    def other(**changes):
        return open_image(small_image.write(tmp_path / "changed.tif", **changes))

    with pytest.raises(MissingBandsError, match="missing: B08"):
        map_scene(model, other(values=small_image.values[:3], names=small_image.BANDS[:3]))
    with pytest.raises(MissingBandsError, match="missing: B02, B03, B04, B08"):
        map_scene(model, other(names=("b1", "b2", "b3", "b4")))
    with pytest.raises(SceneError, match="several bands with the same name"):
        map_scene(model, other(names=("B02", "B02", "B04", "B08")))
    with pytest.raises(OutsideTrainingError, match="other units or scale"):
        map_scene(model, other(values=small_image.values * 10_000))


def test_baselines_are_known_to_the_model(small_image, image_files, tmp_path):
    numbers = np.rint(small_image.values * 10_000).astype(np.int16)
    paths = {}
    for baseline, offset in (("02.14", 0), ("05.09", 1000)):
        paths[baseline] = small_image.write(tmp_path / f"{baseline}.tif", values=numbers + offset)
        with rasterio.open(paths[baseline], "r+") as file:
            file.update_tags(PROCESSING_BASELINE=baseline)
    labels = image_files / "fields.gpkg"
    with pytest.raises(SceneError, match=r"baselines 02\.14, 05\.09"):
        fit_image(list(paths.values()), labels, field="class", **QUICK)
    model = fit_image(paths["02.14"], labels, field="class", **QUICK)
    assert Provenance.of(model).processing_baseline == "02.14"
    with pytest.raises(SceneError, match="numbers are larger by 1000"):
        map_scene(model, open_image(paths["05.09"]))


def test_shares_that_cannot_be_held_out_are_refused(image_files):
    with pytest.raises(InputError, match="holdout is a share from 0 up to 1"):
        fit_image(image_files / "image.tif", image_files / "fields.gpkg", holdout=1.0, **QUICK)
    whole = fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", holdout=0.0, **QUICK
    )
    assert Provenance.of(whole).held_out_groups == {}
