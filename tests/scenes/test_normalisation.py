"""Whether reflectances are divided by the sun's cosine is said by them, or not at all."""

import numpy as np
import pytest
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.files.opening import open_scene
from undulatus.scenes.illumination import COSINE_FLOOR
from undulatus.scenes.normalisation import find_problems, find_statement
from undulatus.scenes.scene import BANDS, check_scene
from undulatus.scenes.simulators.landmark import synthetic_landmark

SOLAR = [name for name, band in BANDS.items() if band.units == "%"]


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({}, None),
        ({"standard_name": "toa_bidirectional_reflectance", "units": "%"}, None),
        ({"history": "not corrected for aerosol; a function of the solar zenith angle"}, None),
        ({"sun_normalised": 1}, True),
        ({"sun_normalised": np.int64(0), "modifiers": "sunz_corrected"}, False),
        ({"sun_zenith_angle_correction_applied": "True"}, True),
        ({"sun_zenith_angle_correction_applied": "False"}, False),
        ({"modifiers": ()}, False),
        ({"modifiers": np.array([])}, False),
        ({"modifiers": "sunz_corrected"}, True),
        ({"name": "VIS006_sunz_corrected"}, True),
        ({"long_name": "reflectance, divided by cos(sza)"}, True),
        ({"long_name": "reflectance not normalised by the cosine of the sun's angle"}, False),
        ({"standard_name": "reflectance_without_solar_zenith_correction"}, False),
        ({"long_name": "reflectance times cosine of solar zenith angle"}, False),
        ({"comment": "sun zenith correction: not applied"}, False),
    ],
)
def test_what_attributes_say(attrs, expected):
    found = find_statement(attrs)
    assert (None if found is None else found.normalised) is expected


def test_what_is_asked_for_counts_for_more_than_words_but_not_than_an_attribute():
    words = {"a": find_statement({}, {"history": "Created by pytroll/satpy on 2026-01-01"})}
    attribute = {"a": find_statement({"sun_normalised": 1})}
    assert len(find_problems(words, None)) == 1
    assert find_problems(words, True) == find_problems(words, False) == []
    assert find_problems(attribute, None) == find_problems(attribute, True) == []
    assert "Leave --not-sun-normalised out" in find_problems(attribute, False)[0]


@pytest.fixture(scope="module")
def simulator():
    return synthetic_landmark(1).isel(time=slice(40, 56, 4)).compute()


def written(folder, simulator, name, **attrs):
    changed = simulator.copy()
    for band in SOLAR:
        kept = {key: changed[band].attrs[key] for key in ("units", "standard_name")}
        changed[band] = changed[band].copy()
        changed[band].attrs = kept | attrs
    changed.to_netcdf(folder / name)
    return folder / name


def test_a_stored_scene_that_says_nothing_is_taken_as_divided_and_that_is_said(
    tmp_path, simulator
):
    first = written(tmp_path, simulator.isel(time=[0]), "one.nc")
    second = written(tmp_path, simulator.isel(time=[1]), "two.nc")
    said = []
    with open_scene([first, second], warn=said.append) as opened:
        expected = simulator["VIS006"].isel(time=[0, 1]).astype(np.float32)
        np.testing.assert_array_equal(opened["VIS006"].astype(np.float32), expected)
    assert len(said) == 1
    assert "one.nc and 1 more: taken as divided by the cosine" in said[0]
    assert "if they are not: --not-sun-normalised" in said[0]
    with pytest.warns(UserWarning, match="taken as divided"), open_scene(first):
        pass
    told = []
    with open_scene(written(tmp_path, simulator, "told.nc", sun_normalised=1), warn=told.append):
        assert told == []


@pytest.mark.parametrize(
    ("how", "suffix"),
    [
        ({"sun_normalised": 0}, ".nc"),
        ({"sun_normalised": 0}, ".zarr"),
        ({"modifiers": ""}, ".zarr"),
        ("option", ".nc"),
        ("option", ".zarr"),
    ],
)
def test_a_stored_scene_that_is_not_divided_is_divided(tmp_path, simulator, how, suffix):
    attrs, options = ({}, {"sun_normalised": False}) if how == "option" else (how, {})
    path = written(tmp_path, simulator, "raw.nc", **attrs)
    if suffix == ".zarr":
        xr.load_dataset(path).to_zarr(path.with_suffix(suffix), zarr_format=3, consolidated=False)
        path = path.with_suffix(suffix)
    angle = simulator["solar_zenith_angle"]
    cosine = np.maximum(np.cos(np.radians(angle)), COSINE_FLOOR)
    expected = (simulator["VIS006"] / cosine).where(angle < 90)
    with open_scene(path, **options) as opened:
        assert opened["VIS006"].dims == simulator["VIS006"].dims
        np.testing.assert_allclose(opened["VIS006"], expected, rtol=1e-5)
        assert opened["VIS006"].attrs["sun_normalised"] == 1


def test_a_dataset_in_memory_that_says_it_is_not_divided_is_refused(simulator):
    assert check_scene(simulator) is not None
    raw = simulator.copy()
    raw["VIS006"] = raw["VIS006"].assign_attrs(sun_normalised=0)
    with pytest.raises(SceneError, match="VIS006 is not divided by the cosine") as caught:
        check_scene(raw)
    assert '.attrs["sun_normalised"] = 1' in str(caught.value)
