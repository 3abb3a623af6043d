"""Maps in a chain of pytroll: from a satpy Scene to layers with their area, and back."""

import datetime

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus import RFFGPC, save_model
from undulatus.errors import SceneError
from undulatus.products import map_scene
from undulatus.products.pytroll import classify
from undulatus.scenes import open_map, to_satpy, write_dataset
from undulatus.scenes.files.seviri import open_scene

satpy = pytest.importorskip("satpy")
pyresample = pytest.importorskip("pyresample")

pytestmark = [
    pytest.mark.filterwarnings("ignore:No orbit polynomial valid:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

BANDS = ("VIS006", "IR_108")


def fitted(classes):
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(0, 60, 300), rng.normal(285, 20, 300)]
    y = np.digitize(X[:, 0], [20, 40])
    model = RFFGPC(n_frequencies=5, n_estimators=1, random_state=0)
    model.fit(X, np.array(["sea", "land", "cloud"])[y] if classes == 3 else y > 0)
    model.feature_names_in_ = np.array(BANDS, object)
    return model


@pytest.fixture(scope="module")
def native(tmp_path_factory, seviri_files):
    """A native file of a small image."""
    rng = np.random.default_rng(2)
    counts = rng.integers(100, 500, (16, 11, 20))
    path = tmp_path_factory.mktemp("native") / seviri_files.native_name()
    return seviri_files.write_native(path, counts)


@pytest.fixture
def scene(native):
    made = satpy.Scene([str(native)], reader="seviri_l1b_native")
    made.load(list(BANDS), upper_right_corner="NE")
    return made


def test_a_map_of_bands_of_satpy_keeps_their_area_in_every_form(scene):
    model, area = fitted(2), scene["VIS006"].attrs["area"]
    bands = xr.concat([scene[name] for name in BANDS], "band", combine_attrs="override")
    forms = {
        "array": bands.assign_coords(band=list(BANDS)),
        "bands": xr.Dataset({name: scene[name].reset_coords(drop=True) for name in BANDS}),
        "dataset": scene.to_xarray_dataset(),
    }
    for form, data in forms.items():
        found = map_scene(model, data, allow_outside=True)
        assert found.attrs["area"] == area, form
        assert found.attrs["start_time"] == scene.start_time, form
        assert {array.attrs["area"] for array in found.data_vars.values()} == {area}, form


def test_a_map_without_an_area_is_as_it_was(scene):
    bare = xr.Dataset({n: scene[n].reset_coords(drop=True).drop_attrs() for n in BANDS})
    found = map_scene(fitted(2), bare, allow_outside=True)
    assert "area" not in found.attrs
    assert not [n for n, array in found.data_vars.items() if "area" in array.attrs]


@pytest.mark.parametrize("suffix", [None, ".nc", ".zarr"])
def test_a_map_goes_back_into_a_scene_with_its_area_from_memory_and_from_disk(
    scene, tmp_path, suffix
):
    opened = open_scene(scene, bands=BANDS)
    maps = map_scene(fitted(3), opened, allow_outside=True)
    if suffix is not None:
        write_dataset(maps, tmp_path / f"map{suffix}")
        maps = open_map(tmp_path / f"map{suffix}")
    back = to_satpy(maps)
    area = scene["VIS006"].attrs["area"]
    names = {data_id["name"] for data_id in back.keys()}  # noqa: SIM118 - a Scene iterates values
    assert {"class", "quality_flag", "class_probability_sea"} <= names
    for name in names:
        found = back[name].attrs["area"]
        assert found.shape == area.shape
        # A float32 step of 3 km over the disc is exact to less than a metre.
        np.testing.assert_allclose(found.area_extent, area.area_extent, atol=1.0)
        assert back[name].attrs["start_time"] == scene.start_time
        assert back[name].attrs["platform_name"] == "Meteosat-9"
    assert_array_equal(back["class"], maps["class"])
    part = maps["class_probability"].sel(class_name="sea")
    assert_array_equal(back["class_probability_sea"], part)
    # satpy itself takes it: half the pixels by nearest neighbours.
    half = area.copy(width=10, height=8)
    resampled = back.resample(half, resampler="nearest")
    assert resampled["class"].shape == (8, 10)
    assert set(np.unique(resampled["class"])) <= {0, 1, 2}
    back.save_dataset("class_probability_sea", filename=str(tmp_path / "sea.tif"), enhance=False)
    assert (tmp_path / "sea.tif").exists()


def test_a_worker_of_trollflow2_adds_layers_that_are_products_like_others(native, tmp_path):
    path = tmp_path / "m.undulatus"
    save_model(fitted(2), path)
    job = {"scene": satpy.Scene([str(native)], reader="seviri_l1b_native")}
    classify(job, model=str(path), layers=["cloud_mask", "quality_flag"], bands=BANDS,
             allow_outside=True)  # fmt: skip
    # What load_composites and resample do.
    job["scene"].load(["cloud_mask"], resolution="*", generate=False)
    assert job["scene"]["cloud_mask"].attrs["area"] == job["scene"]["VIS006"].attrs["area"]
    expected = map_scene(fitted(2), open_scene(job["scene"], bands=BANDS), allow_outside=True)
    assert_array_equal(job["scene"]["cloud_mask"], expected["cloud_mask"])
    assert "cloud_probability" not in job["scene"]


def test_what_is_no_map_of_one_place_and_time_is_refused(scene):
    maps = map_scene(fitted(2), open_scene(scene, bands=BANDS), allow_outside=True)
    later = maps.assign_coords(time=maps["time"] + np.timedelta64(15, "m"))
    with pytest.raises(SceneError, match="of one time, but this map has 2"):
        to_satpy(xr.concat([maps, later], "time"))
    nowhere = maps.drop_vars(["longitude", "latitude", "spatial_ref"]).drop_attrs()
    with pytest.raises(SceneError, match="does not say where it is"):
        to_satpy(nowhere)
    gap = maps.isel(x=[0, 1, 5]).drop_attrs(deep=False)
    with pytest.raises(SceneError, match="not equally far apart"):
        to_satpy(gap)


def test_a_map_without_a_projection_is_a_swath(scene):
    maps = map_scene(fitted(2), open_scene(scene, bands=BANDS), allow_outside=True)
    swath = maps.drop_vars("spatial_ref")
    del swath.attrs["area"]
    area = to_satpy(swath)["cloud_mask"].attrs["area"]
    assert isinstance(area, pyresample.SwathDefinition)
    assert area.shape == (16, 20)
    assert isinstance(to_satpy(swath).start_time, datetime.datetime)
