"""What earlier releases wrote is read by this one, which predicts the same from it.

Every folder in ``tests/golden`` is tested by being there; ``tests/golden/make.py`` says what is in
it, and writes that of the next release.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import load_model
from undulatus.products import Legend
from undulatus.products.maps import map_scene
from undulatus.scenes.files.writing import with_named_labels

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(GOLDEN.glob("*/*.undulatus"))
MAPS = sorted([*GOLDEN.glob("*/*.map.nc"), *GOLDEN.glob("*/*.map.zarr")])
IMAGES = sorted(GOLDEN.glob("*/*.map.tif"))
ABOUT_ROWS = ("rows", "columns", "provenance")

# What a model promises for any order of its sums, and so for any machine.
DOUBLE, SINGLE = 1e-9, 1e-5


def name_of(path):
    return path.name.split(".")[0]


def in_folder(path):
    return str(path.relative_to(GOLDEN))


each_model = pytest.mark.parametrize("path", MODELS, ids=in_folder)
each_map = pytest.mark.parametrize("path", MAPS, ids=in_folder)
each_image = pytest.mark.parametrize("path", IMAGES, ids=in_folder)


@cache
def kept(folder):
    """All arrays of a folder's predictions: a dict by the model's name, of dicts."""
    found = {}
    with np.load(folder / "predictions.npz", allow_pickle=False) as file:
        for key in file.files:
            model, _, what = key.partition("/")
            found.setdefault(model, {})[what] = file[key]
    return found


def expected_of(path):
    return kept(path.parent)[name_of(path)]


def opened(path, **options):
    if path.suffix == ".zarr":
        options |= {"engine": "zarr", "consolidated": False}
    with xr.open_dataset(path, decode_coords="all", **options) as dataset:
        return with_named_labels(dataset.load())


def assert_close(found, expected, tolerance):
    # Rounding in the latent mean z·m is relative to |z| |m|, in the latent variance to the prior
    # variance. Both are of the size of the largest values, so a small one is held to that.
    # Probabilities are below one: they are held to the tolerance itself.
    size = np.maximum(1.0, np.nanmax(np.abs(expected), axis=0))
    assert_allclose(found / size, expected / size, rtol=0.0, atol=tolerance)


def test_every_folder_has_models_and_their_predictions():
    folders = [path for path in GOLDEN.iterdir() if (path / "predictions.npz").exists()]
    assert folders
    for folder in folders:
        assert {name_of(path) for path in MODELS if path.parent == folder} == set(kept(folder))


@each_model
def test_a_model_predicts_what_it_did_when_it_was_written(path):
    model, expected = load_model(path), expected_of(path)
    rows = expected["rows"]
    if "columns" in expected:
        rows = pd.DataFrame(rows, columns=expected["columns"])
    tolerance = SINGLE if "single" in name_of(path) else DOUBLE
    methods = [what for what in expected if what not in ABOUT_ROWS]
    assert {"predict", "predict_proba", "decision_function"} <= set(methods)
    for method in methods:
        found = getattr(model, method)(rows)
        if method == "predict":
            # No row was kept whose probability is within 1e-4 of one half.
            assert_array_equal(found, expected[method])
        else:
            found = np.column_stack(found) if isinstance(found, tuple) else found
            assert_close(found, expected[method], tolerance)


@each_model
def test_a_model_still_knows_what_it_was_fitted_on(path):
    expected = expected_of(path)
    provenance = getattr(load_model(path), "provenance_", None)
    assert provenance == (
        json.loads(str(expected["provenance"])) if "provenance" in expected else None
    )


@each_map
def test_a_map_is_made_again_from_its_scene_and_model(path):
    # Codes as they are in the file: decoded, a mask would be of floats.
    stored = opened(path, mask_and_scale=False)
    scene = opened(path.with_name(f"{name_of(path)}.scene.nc"))
    model = load_model(path.with_name(f"{name_of(path)}.undulatus"))
    if "cloud_mask" in stored and not hasattr(model, "provenance_"):
        # 0.1.0 took the second class for cloud; now a legend says so.
        Legend(tuple(model.classes_.tolist()), cloud=str(model.classes_[1])).attach_to(model)
    again = map_scene(model, scene)
    # Later versions may add layers.
    assert set(again.data_vars) >= set(stored.data_vars)
    for name, expected in stored.data_vars.items():
        found = again[name]
        assert (found.dims, found.dtype) == (expected.dims, expected.dtype)
        if expected.dtype.kind == "f":
            # Features enter a map in single precision, whatever the model's.
            assert_close(found.values.ravel(), expected.values.ravel(), SINGLE)
        else:
            assert_array_equal(found.values, expected.values)
            assert found.attrs["flag_meanings"] == expected.attrs["flag_meanings"]


@each_image
def test_a_geotiff_holds_the_classes_and_layers_that_are_made_again(path):
    scene = opened(path.with_name(f"{name_of(path)}.scene.nc"))
    again = map_scene(load_model(path.with_name(f"{name_of(path)}.undulatus")), scene)
    with rasterio.open(path) as file:
        assert_array_equal(file.read(1), again["class"].values)
        assert file.tags(1)["flag_meanings"] == again["class"].attrs["flag_meanings"]
        # Coordinates are of the middles of pixels, 10 m apart.
        assert file.xy(0, 0) == (scene["x"][0], scene["y"][0])
    with rasterio.open(path.with_name(f"{name_of(path)}.map_layers.tif")) as file:
        found = dict(zip(file.descriptions, file.read(), strict=True))
    for place, name in enumerate(again["class_name"].values):
        expected = again["class_probability"].values[place]
        assert_close(found[f"class_probability_{name}"].ravel(), expected.ravel(), SINGLE)


@each_map
def test_a_stored_map_opens_with_the_places_and_times_of_its_scene(path):
    stored = opened(path)
    scene = opened(path.with_name(f"{name_of(path)}.scene.nc"))
    assert stored.coords
    for name, coordinate in stored.coords.items():
        if name != "class_name":
            assert_array_equal(coordinate.values, scene[name].values)
    codes = "cloud_mask" if "cloud_mask" in stored else "class"
    missing = np.isnan(stored[codes.replace("_mask", "") + "_probability"].values)
    # That of each class, or of cloud alone.
    missing = missing.reshape(-1, *stored[codes].shape)
    assert_array_equal(np.broadcast_to(np.isnan(stored[codes].values), missing.shape), missing)
