"""How much is mapped as each class, from maps and by classifying."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.products import Legend, fit_image, map_scene
from undulatus.products.mapped_areas import (
    classify_image,
    mapped_areas,
    open_class_map,
    pixel_hectares,
)
from undulatus.scenes import open_image, write_dataset


@pytest.fixture(scope="module")
def image(image_files):
    return open_image(image_files / "image.tif")


@pytest.fixture(scope="module")
def model(image_files):
    return fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", method="rff",
        n_frequencies=20, members=1,
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
                       n_frequencies=20, members=1)  # fmt: skip
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


def test_pixels_that_differ_in_area_are_counted_not_measured(image):
    assert pixel_hectares(image) == (pytest.approx(0.01), None)
    for crs, why in (("EPSG:4326", "degrees"), ("EPSG:3857", "Mercator")):
        size, said = pixel_hectares(image.rio.write_crs(crs))
        assert size is None
        assert why in said
    bare = xr.DataArray(image.values, dims=image.dims)
    assert pixel_hectares(bare)[0] is None
    assert "no georeference" in pixel_hectares(bare)[1]
    # US survey feet: 1200 / 3937 m.
    feet, _ = pixel_hectares(image.rio.write_crs("EPSG:2263"))
    assert feet == pytest.approx(0.01 * (1200 / 3937) ** 2)


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
