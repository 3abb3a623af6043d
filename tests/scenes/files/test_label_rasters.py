"""Labels in rasters and arrays: by their places, or by row and column if there are none."""

import numpy as np
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from rasterio.windows import Window

from undulatus.errors import SceneError
from undulatus.scenes import open_image
from undulatus.scenes.files import label_rasters
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.pixel_grid import PixelGrid, reproject


@pytest.fixture(scope="module")
def image(image_files):
    return open_image(image_files / "image.tif")


def codes(found):
    return np.array(found.classes)[found.codes]


def test_an_array_in_any_order_labels_the_same_pixels(small_image, image):
    labels = image.isel(band=0, drop=True).copy(data=small_image.truth)
    for turned in (labels[::-1], labels[:, ::-1], labels.T, labels.rio.reproject("EPSG:4326")):
        found = read_labels(turned, image)
        # Reprojected labels have other pixels: at the edges of squares the nearest may differ.
        right = codes(found) == small_image.truth[found.row, found.column]
        assert np.mean(right) == 1.0 if turned.rio.crs == image.rio.crs else np.mean(right) > 0.95


def test_an_array_that_is_shifted_labels_where_it_lies(small_image, image):
    labels = image.isel(band=0, drop=True).copy(data=small_image.truth)
    found = read_labels(labels.assign_coords(x=labels["x"] + 300.0), image)
    assert found.column.min() == 30
    assert_array_equal(codes(found), small_image.truth[found.row, found.column - 30])


def test_an_array_on_a_part_of_the_image_labels_that_part(small_image, image):
    labels = image.isel(band=0, drop=True).copy(data=small_image.truth)[20:50:2, 7:31:3]
    found = read_labels(labels, image)
    # Every pixel lies in one of 20 m x 30 m.
    assert len(found.row) == 30 * 24
    nearest = (found.row - 19) // 2 * 2 + 20, (found.column - 6) // 3 * 3 + 7
    assert_array_equal(codes(found), small_image.truth[nearest])


def test_without_coordinates_an_array_is_refused_and_told_how_to_get_them(small_image, image):
    labels = xr.DataArray(small_image.truth, dims=("y", "x"), name="cover")
    with pytest.raises(SceneError, match=r"cover has no georeference.*assign_coords\(y=image\.y"):
        read_labels(labels, image)
    found = read_labels(labels.assign_coords(y=image["y"], x=image["x"]), image)
    assert_array_equal(codes(found), small_image.truth.ravel())


def test_rows_and_columns_count_only_where_neither_has_a_place_and_that_is_said(small_image):
    image = xr.DataArray(small_image.values, dims=("band", "y", "x"))
    labels = xr.DataArray(small_image.truth, dims=("y", "x"))
    found = read_labels(labels.T, image)
    assert_array_equal(codes(found), small_image.truth.ravel())
    assert "neither the labels nor the image has a georeference" in found.notes[0]
    with pytest.raises(SceneError, match=r"different rows and columns \(90 x 119, 90 x 120\)"):
        read_labels(labels[:, 1:], image)
    with pytest.raises(SceneError, match="but the labels has one"):
        read_labels(labels.assign_coords(y=np.arange(90), x=np.arange(120)), image)


def test_a_raster_without_reference_is_taken_where_it_has_the_coordinates_of_the_image(
    small_image, image, tmp_path
):
    path = small_image.write(tmp_path / "a.tif", values=small_image.truth, names=None, crs=None)
    found = read_labels(path, image)
    assert_array_equal(codes(found), small_image.truth.ravel())
    assert "is taken to be in EPSG:32632" in found.notes[0]
    moved = small_image.transform @ type(small_image.transform).translation(30, 0)
    small_image.write(path, values=small_image.truth, names=None, crs=None, transform=moved)
    with pytest.raises(SceneError, match="their bounds are not the same"):
        read_labels(path, image)
    small_image.write(path, values=small_image.truth, names=None, crs=None, transform=None)
    with pytest.raises(SceneError, match=r"a\.tif has no georeference, but .*image\.tif has one"):
        read_labels(path, image)


def test_labels_that_are_finer_or_larger_than_strips_give_the_same(
    small_image, image, tmp_path, monkeypatch
):
    fine = np.kron(small_image.truth, np.ones((9, 7), np.uint8))
    scale = type(small_image.transform).scale(1 / 7, 1 / 9)
    path = small_image.write(
        tmp_path / "fine.tif", values=fine, names=None, transform=small_image.transform @ scale
    )
    monkeypatch.setattr(label_rasters, "STRIP_PIXELS", 200)
    assert_array_equal(codes(read_labels(path, image)), small_image.truth.ravel())


def test_arrays_with_other_dimensions_are_refused(small_image, image):
    with pytest.raises(SceneError, match="with the dimensions y and x"):
        read_labels(xr.DataArray(small_image.truth), image)


@pytest.mark.parametrize("without", [(), ("y",), ("y", "x")])
def test_a_variable_of_the_image_labels_its_pixels_whatever_is_known_of_their_places(
    small_image, image, without
):
    uneven = image.isel(y=np.r_[:40, 60:90])
    truth = small_image.truth[np.r_[:40, 60:90]]
    dataset = uneven.to_dataset(name="image").assign(cover=(("y", "x"), truth))
    dataset = dataset.drop_vars(without)
    assert PixelGrid.of(dataset["image"]).problem
    found = read_labels(dataset["cover"], dataset["image"])
    assert_array_equal(codes(found), truth.ravel())
    other = dataset["cover"].drop_vars([*dataset["cover"].coords])
    with pytest.raises(SceneError, match=r"not regular|cannot be told"):
        read_labels(other, dataset["image"])


@pytest.mark.parametrize("pixel", [10.0, 3_000.0])
def test_interpolated_places_are_the_exact_ones(pixel):
    system = rasterio.crs.CRS.from_epsg(32632)
    transform = rasterio.Affine(pixel, 0, 500_000, 0, -pixel, 5_200_000)
    grid = PixelGrid(system, transform, (150, 170), "image")
    degrees = rasterio.Affine(1e-5 * pixel, 0, 9, 0, -1e-5 * pixel, 47)
    own = PixelGrid(rasterio.crs.CRS.from_epsg(4326), degrees, (150, 170), "labels")
    window = Window(7, 11, 150, 130)
    rows, columns = np.ix_(np.arange(11, 141), np.arange(7, 157))
    exact = reproject(*grid.centre_of(rows, columns), system, "EPSG:4326")
    found = label_rasters._centres(window, grid, own)
    # Of large pixels the curvature shows: then all are reprojected.
    assert_allclose(found, exact, rtol=0, atol=0.01 * own.pixel if pixel == 10.0 else 1e-12)
