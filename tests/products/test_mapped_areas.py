"""How much is mapped as each class, from maps and by classifying."""

import dask.array as da
import numpy as np
import pyproj
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from rasterio import Affine

from undulatus.errors import SceneError
from undulatus.products import Legend, fit_image, map_scene
from undulatus.products.mapped_areas import (
    ClassMap,
    classify_image,
    mapped_areas,
    open_class_map,
)
from undulatus.scenes import open_image, write_dataset


@pytest.fixture(scope="module")
def image(image_files):
    return open_image(image_files / "image.tif")


@pytest.fixture(scope="module")
def model(image_files):
    return fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", method="rff",
        n_frequencies=20, n_estimators=1,
    )  # fmt: skip


def counts_of(model, image):
    maps = map_scene(model, image).compute()
    return [int(np.sum(maps["class"] == code)) for code in Legend.of(model).codes]


@pytest.mark.parametrize("chunks", [{"y": 90, "x": 120}, {"y": 17, "x": 50}, None])
def test_classifying_by_blocks_counts_every_pixel(model, image, chunks):
    given = image.compute() if chunks is None else image.chunk(chunks)
    told = []
    found = mapped_areas(
        [classify_image(model, given, "image")], 3, lambda *done: told.append(done)
    )
    # Pixels are 10 m wide, a hundredth of a hectare.
    assert_allclose(found.areas, 0.01 * np.array(counts_of(model, image)), rtol=1e-12)
    assert found.unit == "ha"
    assert found.areas.sum() == pytest.approx(108.0)
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("name", ["map.tif", "map.nc", "map.zarr"])
def test_a_map_from_a_file_has_the_same_areas(model, image, name, tmp_path):
    write_dataset(map_scene(model, image), tmp_path / name)
    found = mapped_areas([open_class_map(tmp_path / name, model)], 3)
    assert_allclose(found.areas, 0.01 * np.array(counts_of(model, image)), rtol=1e-12)


def test_a_map_without_a_georeference_is_opened_without_a_warning(model, image, tmp_path):
    names = ["B02", "B03", "B04", "B08"]
    bare = xr.DataArray(image.values, dims=image.dims, coords={"band": names})
    write_dataset(map_scene(model, bare), tmp_path / "map.tif")
    found = mapped_areas([open_class_map(tmp_path / "map.tif", model)], 3)
    assert_array_equal(found.areas, counts_of(model, bare))


@pytest.mark.parametrize("encoding", ["cf", "pps"])
def test_a_cloud_mask_is_a_map_too(image_files, small_image, image, encoding, tmp_path):
    polygons = small_image.polygons()
    polygons["class"] = np.where(polygons["class"] == "field", "cloud", "clear")
    cloudy = fit_image(image_files / "image.tif", polygons, field="class", method="rff",
                       n_frequencies=20, n_estimators=1)  # fmt: skip
    Legend(("clear", "cloud"), cloud="cloud").attach_to(cloudy)
    write_dataset(map_scene(cloudy, image, encoding=encoding), tmp_path / "mask.nc")
    found = mapped_areas([open_class_map(tmp_path / "mask.nc", cloudy)], 2)
    cloud = np.sum(map_scene(cloudy, image)["cloud_mask"].values == 1)
    assert_allclose(found.areas, [0.01 * (90 * 120 - cloud), 0.01 * cloud])


def test_missing_pixels_have_no_area(model, image):
    values = image.compute().copy()
    values[:, :9] = np.nan
    found = mapped_areas([classify_image(model, values, "image")], 3)
    assert found.areas.sum() == pytest.approx(108.0 * 0.9)


def test_several_images_are_added_and_that_is_said(model, image):
    one = classify_image(model, image, "image")
    found = mapped_areas([one, one], 3)
    assert_allclose(found.areas, 2 * mapped_areas([one], 3).areas)
    assert "counts again" in found.notes[0]


def as_map(classes, crs, transform):
    """A map of three classes with pixels at rows and columns of a transform."""
    rows, columns = (np.arange(n) + 0.5 for n in classes.shape)
    places = xr.DataArray(
        da.from_array(classes, chunks=(40, 50)),
        dims=("y", "x"),
        coords={"y": transform.f + transform.e * rows, "x": transform.c + transform.a * columns},
    )
    return ClassMap(places.rio.write_crs(crs), "map")


def geodesic_hectares(classes, crs, transform):
    """The sum over pixels, one by one, of polygons of geodesics."""
    crs = pyproj.CRS(crs)
    to_geographic = pyproj.Transformer.from_crs(crs, crs.geodetic_crs, always_xy=True)
    total, off = np.zeros(3), 0
    for (row, column), place in np.ndenumerate(classes):
        corners = [transform * (column + j, row + i) for i, j in ((0, 0), (0, 1), (1, 1), (1, 0))]
        lon, lat = to_geographic.transform(*np.transpose(corners))
        lat = np.minimum(lat, 90.0)
        if np.isfinite(lon).all():
            total[int(place)] += abs(crs.get_geod().polygon_area_perimeter(lon, lat)[0]) / 1e4
        else:
            off += 1
    return total, off


GEOS = "+proj=geos +h=35785831 +lon_0=0 +a=6378169 +b=6356583.8 +units=m"


@pytest.mark.parametrize(
    ("crs", "transform", "flat"),
    [
        # What pixels have in the projection by what they have on the Earth.
        (GEOS, Affine(40_000, 0, 1_500_000, 0, -40_000, 5_000_000), 0.45),
        ("+proj=eqc +lat_ts=0", Affine(1000, 0, 0, 0, -1000, 6_750_000), 2.02),
        ("EPSG:3413", Affine(10_000, 0, -1e6, 0, -10_000, -1.5e6), 0.9),
        ("EPSG:3857", Affine(1000, 0, 0, 0, -1000, 8_400_000), 4.0),
        ("EPSG:32633", Affine(1000, 0, 0, 0, -1000, 6e6), 1.003),
        ("EPSG:4326", Affine(0.05, 0, 178, 0, -0.05, 61), None),
        ("EPSG:4326", Affine(0.05, 0, 10, 0, -0.05, 90.025), None),
    ],
)
def test_hectares_are_those_of_the_ellipsoid_in_any_projection(crs, transform, flat):
    classes = np.random.default_rng(0).integers(0, 3, (60, 70)).astype(np.float32)
    found = mapped_areas([as_map(classes, crs, transform)], 3)
    total, off = geodesic_hectares(classes, crs, transform)
    # Interpolation costs 1e-4 at most, edges of pixels of 40 km as much again.
    assert_allclose(found.areas, total, rtol=2e-4)
    assert found.unit == "ha"
    assert "on the Earth's ellipsoid" in found.notes[0]
    if flat is not None:
        plane = abs(transform.determinant) / 1e4 * np.bincount(classes.ravel().astype(int))
        assert_allclose(plane.sum() / total.sum(), flat, rtol=0.15)
    assert (f"{off:,} mapped pixels reach over the edge" in found.notes[-1]) == (off > 0)


@pytest.mark.parametrize(
    ("crs", "hectares"), [("EPSG:32633", 1.0), ("EPSG:3035", 1.0), ("EPSG:6933", 1.0),
                          ("EPSG:2263", (1200 / 3937) ** 2)],
)  # fmt: skip
def test_projections_that_keep_areas_have_pixels_of_one_size(crs, hectares):
    place = {"EPSG:32633": (300_000, 6e6), "EPSG:2263": (9e5, 2e5)}.get(crs, (4e6, 3e6))
    transform = Affine(100, 0, place[0], 0, -100, place[1])
    found = mapped_areas([as_map(np.ones((50, 60), np.float32), crs, transform)], 3)
    assert_allclose(found.areas, [0, 3000 * hectares, 0], rtol=1e-12)
    assert found.notes == ()


def test_without_a_georeference_areas_are_pixels(image):
    places = xr.DataArray(da.zeros((20, 30), np.float32), dims=("y", "x"))
    found = mapped_areas([ClassMap(places, "map")], 3)
    assert_array_equal(found.areas, [600, 0, 0])
    assert found.unit == "pixels"
    assert "no georeference" in found.notes[0]


def test_a_map_by_another_model_is_refused(model, image, small_image, tmp_path):
    made = open_made = tmp_path / "map.tif"
    write_dataset(map_scene(model, image), made)
    found = open_class_map(open_made, model)
    row, column = np.divmod(np.arange(0, 90 * 120, 7), 120)
    said = found.places.values[row, column]
    assert_array_equal(said, 2 - small_image.truth[row, column])
    found.require_made_by(image, row, column, said)
    with pytest.raises(SceneError, match="not a map of this image by this model"):
        found.require_made_by(image, row, column, (said + 1) % 3)


def test_what_is_no_map_of_the_classes_is_refused(model, image, image_files, tmp_path):
    with pytest.raises(SceneError, match="no map of classes"):
        open_class_map(image_files / "image.tif", model)
    with pytest.raises(SceneError, match=r"give the \.tif, \.nc or \.zarr"):
        open_class_map(tmp_path / "map.png", model)
    named = Legend(model.classes_, names=("a", "b", "c"))
    write_dataset(map_scene(model, image, legend=named), tmp_path / "other.nc")
    with pytest.raises(SceneError, match="those of the model are field, forest, water"):
        open_class_map(tmp_path / "other.nc", model)
