"""Maps from files to files: what they say they were made from, and that they follow CF."""

import hashlib
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from compliance_checker.runner import CheckSuite
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import RFFGPC, save_model
from undulatus.errors import SceneError
from undulatus.products.images import fit_image
from undulatus.products.map_files import ModelFile, map_of_file
from undulatus.products.mapped_areas import open_class_map
from undulatus.products.maps import map_scene
from undulatus.products.suggest import suggest_labels
from undulatus.scenes import open_image, synthetic_landmark, synthetic_sounder
from undulatus.scenes.files.opening import open_map, open_scene
from undulatus.scenes.files.writing import CONVENTIONS, add_history, write_dataset
from undulatus.scenes.pixel_grid import PixelGrid

UNSIGNED = "Variable is not of type byte, short, or int"
"""CF allows unsigned integers for packed values since version 1.9, but the checker does not."""


TURNS = {
    "rotated": rasterio.Affine.rotation(30) @ rasterio.Affine.shear(10, 0),
    "south up": rasterio.Affine.scale(1, -1),
    "transposed": rasterio.Affine(0, 1, 0, 1, 0, 0),
}


def _passed(result):
    value = result.value
    return value[0] == value[1] if isinstance(value, tuple) else bool(value)


def cf_findings(path):
    """Return what the checker has to say of a file, by section of the conventions."""
    CheckSuite.load_all_available_checkers()
    suite = CheckSuite()
    with suite.load_dataset(str(path)) as dataset:
        checked = suite.run_all(dataset, [f"cf:{CONVENTIONS[3:]}"])
    ((results, errors),) = checked.values()
    assert not errors, errors
    return [
        f"{result.name}: {message}"
        for result in results
        if result.weight >= 2 and not _passed(result)
        for message in result.msgs
        if UNSIGNED not in message
    ]


@pytest.fixture(scope="module")
def surfaces():
    """An ensemble that tells three classes of two bands apart."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(90, 2)), columns=["B1", "B2"])
    y = np.array(["water", "forest", "dry field"])[np.arange(90) % 3]
    return RFFGPC(5, n_estimators=2, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def cover(image_files):
    """A model of water, forest and field in the small image."""
    few = {"method": "rff", "n_frequencies": 20, "n_estimators": 1, "field": "class"}
    return fit_image(image_files / "image.tif", image_files / "fields.gpkg", **few)


@pytest.fixture
def clouds(model, days, tmp_path):
    """The model of clouds and some hours of a scene in files, and a map of them."""
    scene = days.isel(time=slice(40, 44))
    write_dataset(scene.assign_attrs(history="made by hand"), tmp_path / "scene.nc")
    save_model(model, tmp_path / "clouds.undulatus")

    def write(name, **options):
        loaded = ModelFile.load(tmp_path / "clouds.undulatus")
        with map_of_file(loaded, tmp_path / "scene.nc", **options) as mapped:
            mapped.write(tmp_path / name)
        return tmp_path / name

    return write


# What a map says it was made from


def test_the_history_of_a_map_says_when_how_and_from_what_it_was_made(clouds, tmp_path):
    path = clouds("map.nc", command="undulatus map clouds.undulatus scene.nc -o map.nc")
    model = tmp_path / "clouds.undulatus"
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    attrs = open_map(path).attrs
    assert attrs["model_sha256"] == digest
    first, made = attrs["history"].splitlines()
    assert first == "made by hand"
    stamp, _, rest = made.partition(" ")
    age = datetime.now(UTC) - datetime.fromisoformat(stamp)
    assert abs(age.total_seconds()) < 600
    assert rest == (
        f"undulatus {version('undulatus')}: undulatus map clouds.undulatus scene.nc -o map.nc "
        f"(scene scene.nc, model clouds.undulatus, model_sha256 {digest})"
    )
    # A simulator is named as such.
    assert "Synthetic" in attrs["title"]


def test_an_image_that_has_no_title_gives_its_map_one(small_image, tmp_path):
    small_image.write(tmp_path / "image.tif")
    bands = ["B02", "B03", "B04", "B08"]
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(40, len(bands))), columns=bands)
    save_model(RFFGPC(5, random_state=0).fit(X, np.arange(40) % 3), tmp_path / "m.undulatus")
    loaded = ModelFile.load(tmp_path / "m.undulatus")
    with map_of_file(loaded, tmp_path / "image.tif", allow_outside=True) as mapped:
        mapped.write(tmp_path / "map.tif")
        mapped.write(tmp_path / "map.nc")
    for name in ("map.tif", "map_layers.tif"):
        with rasterio.open(tmp_path / name) as file:
            tags = file.tags()
            assert tags["title"] == "Map of image.tif by m.undulatus"
            assert tags["model_sha256"] == loaded.sha256
            assert f"model_sha256 {loaded.sha256}" in tags["history"]
    assert cf_findings(tmp_path / "map.nc") == []


# CF


@pytest.mark.parametrize("encoding", ["cf", "eumetsat-clm", "pps"])
def test_maps_of_clouds_follow_cf(clouds, encoding):
    assert cf_findings(clouds("map.nc", encoding=encoding)) == []


@pytest.mark.parametrize(("make", "size"), [(synthetic_landmark, 1), (synthetic_sounder, 20)])
def test_simulators_follow_cf(make, size, tmp_path):
    simulator = make(size)
    write_dataset(
        simulator.assign_attrs(add_history(simulator.attrs, "by hand")), tmp_path / "simulator.nc"
    )
    assert cf_findings(tmp_path / "simulator.nc") == []


@pytest.mark.parametrize("crs", ["EPSG:32630", "EPSG:4326", None])
def test_maps_of_classes_follow_cf(surfaces, crs, tmp_path):
    values = np.random.default_rng(1).normal(size=(8, 9)).astype(np.float32)
    image = xr.Dataset(dict.fromkeys(("B1", "B2"), (("y", "x"), values)))
    if crs is not None:
        image = image.assign_coords(x=30.0 + np.arange(9), y=40.0 - np.arange(8))
        image = image.rio.write_crs(crs)
    maps = map_scene(surfaces, image.assign_attrs(title="An image"), allow_outside=True)
    write_dataset(maps, tmp_path / "map.nc")
    assert cf_findings(tmp_path / "map.nc") == []
    found = open_map(tmp_path / "map.nc")
    for name, layer in maps.data_vars.items():
        assert_array_equal(found[name], layer, strict=name != "class")


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_coordinates_have_no_fill_value_and_all_values_are_read_back(days, tmp_path, suffix):
    scene = days.isel(time=slice(3)).compute()
    write_dataset(scene, tmp_path / f"scene{suffix}")
    found = open_scene(tmp_path / f"scene{suffix}")
    for name in ("time", "y", "x"):
        assert found[name].encoding.get("_FillValue") is None
        assert found[name].attrs["axis"] == name[0].upper()
        assert_array_equal(found[name], scene[name], strict=True)
    # Written again, what was read has no fill value either.
    write_dataset(found, tmp_path / f"again{suffix}")
    again = open_scene(tmp_path / f"again{suffix}")
    assert again["x"].encoding.get("_FillValue") is None
    assert_array_equal(again["IR_108"], found["IR_108"], strict=True)


# Places


@pytest.mark.parametrize("name", ["map.tif", "map.nc", "map.zarr"])
@pytest.mark.parametrize("kind", ["rotated", "south up", "transposed"])
def test_a_map_lies_where_its_image_does(small_image, cover, tmp_path, kind, name):
    transform = small_image.transform @ TURNS[kind]
    small_image.write(tmp_path / "image.tif", transform=transform)
    save_model(cover, tmp_path / "cover.undulatus")
    model = ModelFile.load(tmp_path / "cover.undulatus")
    with map_of_file(model, tmp_path / "image.tif") as made:
        made.write(tmp_path / name)
    codes = open_class_map(tmp_path / name, cover).places.compute()
    grid = PixelGrid.of(codes)
    assert grid.crs == small_image.CRS
    # Each pixel of the image is found where it lies, though rows may be in another order.
    rows, columns = np.mgrid[:90, :120]
    found = grid.pixel_at(*(transform * (columns + 0.5, rows + 0.5)))
    agreeing = codes.values[found] == np.array([2, 1, 0])[small_image.truth]
    assert agreeing.mean() > 0.99
    if kind != "south up":
        assert_allclose(grid.transform, transform, rtol=1e-12, atol=1e-6)
        gdal = f"netcdf:{tmp_path / name}:class" if name.endswith("nc") else tmp_path / name
        with rasterio.open(gdal) if not name.endswith("zarr") else nullcontext() as file:
            assert file is None or file.transform.almost_equals(transform, 1e-6)


@pytest.mark.parametrize("kind", ["rotated", "south up", "transposed"])
def test_points_are_suggested_where_their_pixels_lie(small_image, cover, tmp_path, kind):
    transform = small_image.transform @ TURNS[kind]
    small_image.write(tmp_path / "image.tif", transform=transform)
    points = suggest_labels(cover, tmp_path / "image.tif", 5)
    column, row = ~transform * (points.geometry.x.to_numpy(), points.geometry.y.to_numpy())
    assert_allclose(row, points["row"] + 0.5, atol=1e-6)
    assert_allclose(column, points["column"] + 0.5, atol=1e-6)


def test_an_irregular_image_has_a_map_with_its_coordinates_and_no_geotiff(
    small_image, cover, tmp_path
):
    image = open_image(small_image.write(tmp_path / "image.tif"))
    uneven = image.isel(y=np.r_[0:40, 60:90])
    scene = uneven.to_dataset(name="image")
    maps = map_scene(cover, scene)
    write_dataset(maps, tmp_path / "map.nc")
    assert_array_equal(open_map(tmp_path / "map.nc")["y"], uneven["y"])
    with pytest.raises(SceneError, match=r"map\.tif cannot say where.*y is not regular"):
        write_dataset(maps, tmp_path / "map.tif")
    points = suggest_labels(cover, uneven, 5)
    assert not hasattr(points, "geometry")
