"""Two maps compared on labelled pixels."""

import json

import numpy as np
import pytest
import xarray as xr

from undulatus.errors import InputError, SceneError
from undulatus.products import compare_maps, fit_image, map_scene
from undulatus.scenes import open_image, write_dataset

SMALL = {"field": "class", "method": "rff", "n_frequencies": 20, "n_estimators": 1}


@pytest.fixture(scope="module")
def maps(image_files, tmp_path_factory):
    """Maps by a model of one band, which two classes share, and by one of all bands."""
    folder = tmp_path_factory.mktemp("maps")
    image = image_files / "image.tif"
    for name, bands in (("poor.tif", ["B03"]), ("good.nc", None)):
        model = fit_image(image, image_files / "fields.gpkg", bands=bands, **SMALL)
        write_dataset(map_scene(model, open_image(image)).compute(), folder / name)
    return folder / "poor.tif", folder / "good.nc"


def test_maps_of_any_format_are_compared_pixel_by_pixel(maps, image_files, small_image):
    found = compare_maps(*maps, image_files / "image.tif", image_files / "fields.gpkg",
                         field="class")  # fmt: skip
    inside = np.zeros((90, 120), bool)
    for row in range(3, 90, 15):
        for column in range(3, 120, 15):
            inside[row : row + 9, column : column + 9] = True
    names = np.array(sorted(small_image.CLASSES))
    shares = []
    for path in maps:
        codes = (
            open_image(path).values[0]
            if path.suffix == ".tif"
            else xr.open_dataset(path)["class"].values.squeeze()
        )
        said = names[codes[inside].astype(int)]
        shares.append(np.mean(said == np.array(small_image.CLASSES)[small_image.truth[inside]]))
    accuracy = found.comparison.accuracy
    assert [accuracy.first, accuracy.second] == pytest.approx(shares)
    assert accuracy.is_beyond_chance
    assert found.comparison.nll is None
    assert len(found.comparison.verdicts) == 1
    assert found.comparison.groups == 48
    assert found.basis.kind == "unknown"
    assert "maps do not say" in found.table().splitlines()[0]
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["against"]["nll"] is None


def test_maps_of_other_classes_or_places_are_refused(maps, image_files, small_image, tmp_path):
    asked = (image_files / "image.tif", image_files / "fields.gpkg")
    polygons = small_image.polygons()
    polygons.loc[polygons["class"] == "water", "class"] = "lake"
    other = fit_image(asked[0], polygons, **SMALL)
    image = open_image(asked[0])
    write_dataset(map_scene(other, image), tmp_path / "lake.tif")
    with pytest.raises(InputError, match=r"only the first map has: water\n.*other map has: lake"):
        compare_maps(maps[0], tmp_path / "lake.tif", *asked, field="class")
    part = fit_image(asked[0], asked[1], **SMALL)
    write_dataset(map_scene(part, image.isel(x=slice(0, 60))), tmp_path / "part.tif")
    with pytest.raises(SceneError, match="is not a map of this image"):
        compare_maps(maps[0], tmp_path / "part.tif", *asked, field="class")
    with pytest.raises(SceneError, match=r"image\.tif is no map of classes"):
        compare_maps(maps[0], *asked[:1], *asked, field="class")


def test_classes_in_another_order_are_matched_by_name(maps, image_files, small_image, tmp_path):
    with xr.open_dataset(maps[1]) as opened:
        good = opened.load()
    codes = good["class"]
    missing = codes.encoding.get("_FillValue", codes.attrs.get("_FillValue"))
    swapped = codes.copy(data=np.where(codes == missing, codes, 2 - codes).astype(codes.dtype))
    words = codes.attrs["flag_meanings"].split()
    swapped.attrs |= {
        "flag_meanings": " ".join(words[::-1]),
        "class_names": json.dumps(json.loads(codes.attrs["class_names"])[::-1]),
    }
    write_dataset(good.assign({"class": swapped}), tmp_path / "swapped.nc")
    found = compare_maps(maps[1], tmp_path / "swapped.nc", image_files / "image.tif",
                         image_files / "fields.gpkg", field="class")  # fmt: skip
    assert found.comparison.accuracy.value == 0.0
    assert found.comparison.accuracy.first > 0.9
    assert "do not differ in any row" in found.comparison.verdicts[0]
