"""Radiances from scores: the products of a written basis, and files that do not fit."""

import netCDF4
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files.eigenvectors import reconstruct_radiances
from undulatus.scenes.radiometry import blackbody_radiance
from undulatus.scenes.spectra import COMPONENTS, check_spectra

FIRST, CHANNELS_OF_BAND = (1, 1998, 5117), (1997, 3119, 3345)


@pytest.fixture(scope="module")
def basis(tmp_path_factory):
    """Files of three bands whose first component is a black body of 270 K, and operators."""
    folder, operators = tmp_path_factory.mktemp("basis"), []
    body = blackbody_radiance(WAVENUMBERS, np.array(270.0)) * 1e-5
    for number, (first, count) in enumerate(zip(FIRST, CHANNELS_OF_BAND, strict=True), start=1):
        operator = (
            np.random.default_rng(number).normal(size=(COMPONENTS[number - 1], count)) * 1e-9
        )
        operator[0] = body[first - 1 : first - 1 + count]
        write(folder / f"IASI_EV{number}.h5", operator, first)
        operators.append(operator)
    return sorted(folder.iterdir(), reverse=True), operators


def write(path, operator, first, **more):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("component", operator.shape[0])
        file.createDimension("channel", operator.shape[1])
        variable = file.createVariable("ReconstructionOperator", "f8", ("component", "channel"))
        variable[:] = operator
        file.setncattr("FirstChannel", first)
        for name, values in more.items():
            file.createVariable(name, "f8", ("channel",))[:] = values
    return path


def scores(count=300):
    values = np.random.default_rng(0).normal(size=(5, count))
    # The first components of the bands are those of the black body.
    values[:, [place for place in (0, 90, 210) if place < count]] = 1.0
    return xr.Dataset({"scores": (("sample", "component"), values)}, attrs={"sensor": "iasi"})


def test_radiances_are_scores_times_operators_band_by_band(basis):
    files, operators = basis
    given = scores()
    found = reconstruct_radiances(given, files)
    parts = np.split(given["scores"].values, [90, 210], axis=1)
    expected = np.hstack([part @ op for part, op in zip(parts, operators, strict=True)])
    # Single precision.
    assert_allclose(found["radiance"], expected, rtol=1e-6)
    checked = check_spectra(found)
    assert_allclose(checked["radiance"], 1e5 * expected, rtol=1e-6)
    lazily = reconstruct_radiances(given.chunk(sample=2), files)
    assert lazily["radiance"].chunks is not None
    assert_array_equal(lazily["radiance"], found["radiance"])
    assert found.sizes == {"sample": 5, "channel": CHANNELS}


def test_files_that_do_not_fit_are_refused(basis, tmp_path):
    files, operators = basis
    with pytest.raises(SceneError, match="have 300 components, but the spectra 305"):
        reconstruct_radiances(scores(305), files)
    with pytest.raises(SceneError, match=r"IASI_EV3\.h5 begins at channel 5117, but channel 1998"):
        reconstruct_radiances(scores(), [files[0], files[2]])
    with pytest.raises(SceneError, match="end at channel 5,116"):
        reconstruct_radiances(scores(210), files[1:])
    older = write(tmp_path / "old.h5", operators[0], 1, Mean=0.0)
    with pytest.raises(SceneError, match=r"old\.h5 is of an older basis"):
        reconstruct_radiances(scores(), [older])
    with netCDF4.Dataset(tmp_path / "other.nc", "w"):
        pass
    with pytest.raises(SceneError, match=r"other\.nc has no ReconstructionOperator"):
        reconstruct_radiances(scores(), [tmp_path / "other.nc"])
    with pytest.raises(SceneError, match=r"absent\.h5 cannot be read"):
        reconstruct_radiances(scores(), [tmp_path / "absent.h5"])
