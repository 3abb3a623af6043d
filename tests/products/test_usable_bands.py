"""Bands that are empty, fill values and constants: left out of what is learned, and said."""

import re

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus import load_model, save_model
from undulatus.errors import SceneError
from undulatus.products import fit_image, map_scene, score_image
from undulatus.products.new_labels import update_image
from undulatus.products.predict import MISSING
from undulatus.products.provenance import Provenance
from undulatus.scenes import open_image
from undulatus.scenes.image_features import ImageFeatures, find_fill_values

pytest.importorskip("geopandas")

QUICK = {"method": "rff", "n_frequencies": 10, "n_estimators": 1, "field": "class"}


@pytest.fixture
def written(small_image, tmp_path):
    """A function that writes the image with changed bands, and returns its path."""

    def write(values, names=None, name="changed.tif", **profile):
        return small_image.write(tmp_path / name, values=values, names=names, **profile)

    return write


def fit(path, labels, **options):
    """Return a model of an image, and what was said."""
    said = []
    model = fit_image(path, labels, progress=said.append, **QUICK | options)
    return model, "\n".join(said)


def some_probabilities(*models):
    """Return what models of as many features say of the same rows."""
    rows = np.random.default_rng(0).uniform(0, 0.3, (9, models[0].n_features_in_))
    return [
        model.predict_proba(pd.DataFrame(rows, columns=model.feature_names_in_))
        for model in models
    ]


def is_missing(model, path):
    return (map_scene(model, open_image(path))["quality_flag"].values & MISSING) > 0


# Fill values that no file declares


@pytest.mark.parametrize("fill", [-9999.0, 0.0, -32768.0, 65535.0, 1e20, 3.4e38])
@pytest.mark.parametrize("windows", [(), (3,)])
def test_a_fill_value_in_all_bands_is_neither_learned_nor_mapped(
    small_image, written, tmp_path, fill, windows
):
    values = small_image.values.copy()
    values[:, :, :50] = fill
    path = written(values, small_image.BANDS)
    model, said = fit(path, small_image.polygons(), windows=windows)
    assert f"hold {np.float32(fill):g} in" in said
    assert "which no file declares as nodata" in said
    save_model(model, tmp_path / "m.undulatus")
    missing = is_missing(load_model(tmp_path / "m.undulatus"), path)
    assert_array_equal(missing, np.broadcast_to(np.arange(120) < 50, (90, 120)))
    # What was learned is what would be if the file declared the value.
    declared = written(values, small_image.BANDS, "declared.tif", nodata=fill)
    other, said = fit(declared, small_image.polygons(), windows=windows)
    assert "declares" not in said
    assert_array_equal(*some_probabilities(model, other))
    found = score_image(model, path, small_image.polygons(), areas=False)
    assert "labelled pixels without data are left out" in " ".join(found.notes)


def test_an_update_does_not_learn_a_fill_value_either(small_image, written):
    polygons = small_image.polygons()
    path = written(small_image.values, small_image.BANDS)
    model, _ = fit(path, polygons[:36], holdout=0.0)
    values = small_image.values.copy()
    values[:, 75:, :60] = -9999.0
    said = []
    update_image(model, written(values, small_image.BANDS), polygons[36:], progress=said.append)
    text = "\n".join(said)
    assert "324 labelled pixels hold -9999, which no file declares as nodata: they are" in text
    added = model.provenance_["training_pixels"]
    assert sum(added.values()) == 36 * 81
    assert "pixels added" in text
    assert sum(int(n) for n in re.findall(r" (\d+)", text.split("pixels added:")[1])) == 8 * 81


def test_a_fill_value_with_scale_and_offset_is_found(small_image, written):
    stored = np.rint((small_image.values + 0.1) * 10_000).astype(np.uint16)
    stored[:, :, :50] = 0
    path = written(stored, small_image.BANDS, scale=(0.0001, -0.1))
    model, said = fit(path, small_image.polygons())
    assert "hold -0.1 in all bands" in said
    assert is_missing(model, path)[:, :50].all()


def test_values_are_kept_if_they_are_said_to_be_values(small_image, written):
    values = small_image.values.copy()
    values[:, :, :50] = 0.0
    path = written(values, small_image.BANDS)
    model, said = fit(path, small_image.polygons(), nodata=())
    assert "nodata" not in said
    assert not is_missing(model, path).any()
    values[:, :, :50] = 77.0
    path = written(values, small_image.BANDS)
    model, said = fit(path, small_image.polygons(), nodata=(77,))
    assert is_missing(model, path)[:, :50].all()
    assert not is_missing(model, path)[:, 50:].any()


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_values_as_instruments_give_them_are_no_fill_values(seed, bands):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 256, (500, bands)).astype(np.float32)
    decibels = rng.normal(-15, 6, (500, bands)).astype(np.float32)
    one_dark = np.where(np.arange(bands) == 0, counts, 0.0)
    assert find_fill_values(counts) == find_fill_values(decibels) == ()
    assert find_fill_values(one_dark if bands > 1 else counts) == ()


# Bands without a value, or with one


def test_empty_and_constant_bands_are_named_and_left_out(small_image, written):
    empty = np.full((6, 90, 120), np.nan, np.float32)
    same = np.full((1, 90, 120), 7.0, np.float32)
    path = written(np.concatenate([empty[:2], small_image.values, same, empty[2:]]))
    model, said = fit(path, small_image.polygons(), windows=(3,))
    assert "without a value at any labelled pixel: band_1, band_2, band_8, band_9" in said
    assert "with the same value at all labelled pixels: band_7 (7)" in said
    assert Provenance.of(model).image_features["bands"] == [f"band_{i}" for i in (3, 4, 5, 6)]
    # It is the model of the image without them, and maps images with other values of them.
    plain, _ = fit(written(small_image.values, name="plain.tif"), small_image.polygons(),
                   windows=(3,))  # fmt: skip
    assert_array_equal(*some_probabilities(model, plain))
    assert not is_missing(model, path).any()


def test_a_constant_band_beside_a_fill_value_hides_neither(small_image, written):
    values = np.concatenate([small_image.values, np.full((1, 90, 120), 7.0, np.float32)])
    values[:, :, :50] = 0.0
    _, said = fit(written(values), small_image.polygons())
    assert "hold 0 in all bands" in said
    assert "same value at all labelled pixels: band_5 (7)" in said


def test_what_indices_need_is_not_left_out(small_image, written):
    values = small_image.values.copy()
    values[2] = 0.1
    path = written(values, small_image.BANDS)
    model, _ = fit(path, small_image.polygons(), indices=["ndvi"])
    assert list(model.feature_names_in_) == [*small_image.BANDS, "NDVI"]
    values[2] = np.nan
    with pytest.raises(SceneError, match="NDVI need B04, without a value at any"):
        fit(written(values, small_image.BANDS), small_image.polygons(), indices=["ndvi"])


def test_bands_that_tell_nothing_at_all_are_refused(small_image, written):
    with pytest.raises(SceneError, match=r"same value at all labelled pixels.*band_2 \(3\)"):
        fit(written(np.full((2, 90, 120), 3.0, np.float32)), small_image.polygons())


def test_bands_that_pixels_lack_are_named_where_they_differ(small_image, written):
    values = small_image.values.copy()
    values[0, :, :60], values[1, :, 60:] = np.nan, np.nan
    with pytest.raises(SceneError, match=r"missing .* \(B02 at 1,944, B03 at 1,944\)"):
        fit(written(values, small_image.BANDS), small_image.polygons())


def test_a_class_without_a_pixel_in_the_image_is_left_out_and_named(small_image, written):
    values = small_image.values.copy()
    values[:, small_image.truth == 0] = np.nan
    model, said = fit(written(values, small_image.BANDS), small_image.polygons())
    assert "left out, with all pixels missing in the image: water" in said
    assert model.classes_.tolist() == ["field", "forest"]


def test_alpha_is_said_to_be_no_band(small_image, written):
    shown = np.full((1, 90, 120), 255, np.uint8)
    shown[:, :, :50] = 0
    values = np.clip(small_image.values[1:] * 255, 0, 255).astype(np.uint8)
    path = written(np.concatenate([values, shown]))
    model, said = fit(path, small_image.polygons())
    assert "band_4 of" in said
    assert "is alpha" in said
    assert model.n_features_in_ == 3
    assert is_missing(model, path)[:, :50].all()


# Windows on pixels of another size


def test_windows_on_pixels_of_another_size_are_refused(small_image, written, tmp_path):
    model, _ = fit(written(small_image.values, small_image.BANDS), small_image.polygons(),
                   windows=(3,))  # fmt: skip
    save_model(model, tmp_path / "m.undulatus")
    again = load_model(tmp_path / "m.undulatus")

    def scaled(factor, **profile):
        transform = small_image.transform * rasterio.Affine.scale(factor)
        return open_image(
            written(small_image.values, small_image.BANDS, transform=transform, **profile)
        )

    for factor in (0.5, 2.0):
        with pytest.raises(SceneError, match="learned from windows of pixels of 10 x 10 m"):
            map_scene(again, scaled(factor))
    map_scene(again, scaled(1.1))
    plain, _ = fit(written(small_image.values, small_image.BANDS), small_image.polygons())
    map_scene(plain, scaled(2.0))


def test_pixels_are_compared_by_their_size_on_the_ground(small_image):
    """A pixel of 1/11,131.9 degrees of latitude is 10 m high, and cos 60 as wide."""
    degrees = 10.0 / 111_412.0
    image = xr.DataArray(
        small_image.values,
        dims=("band", "y", "x"),
        coords={
            "band": np.array(small_image.BANDS, object),
            "y": 60.0 - degrees * np.arange(90),
            "x": 9.0 + 1.998 * degrees * np.arange(120),
        },
    ).rio.write_crs("EPSG:4326")
    recipe = ImageFeatures(small_image.BANDS, windows=(3,), pixel_size=(10.0, 10.0, "m"))
    recipe.of(image)
    with pytest.raises(SceneError, match=r"of 10 x 10 m.* of 30 x 30 m"):
        ImageFeatures(small_image.BANDS, windows=(3,), pixel_size=(30.0, 30.0, "m")).of(image)
    unknown = image.drop_vars(["spatial_ref", "y", "x"])
    recipe.of(unknown)
    numbers = image.drop_vars("spatial_ref").assign_coords(x=np.arange(120.0), y=np.arange(90.0))
    recipe.of(numbers)
    with pytest.raises(SceneError, match=r"pixels of 1 x 1, but .* of 2 x 2,"):
        ImageFeatures(small_image.BANDS, windows=(3,), pixel_size=(2.0, 2.0, "")).of(numbers)
