"""Native IASI files through CODA: what is read, when, and the errors.

CODA is not on PyPI, so a module with the same functions stands in for it; its names, shapes and
scales are those of the product's definition, as CODA 2.24 gives them.
"""

import sys
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files.opening import open_spectra
from undulatus.scenes.radiometry import blackbody_radiance
from undulatus.scenes.spectra import check_spectra

NAME = "IASI_xxx_1C_M01_20240819103856Z_20240819104152Z_N_C_20240819112911Z.nat"
FIRST, LAST = [2581, 5921, 9009, 9541, 10721], [5920, 9008, 9540, 10720, 11041]
POWERS = [7, 8, 9, 8, 9]
STEPS = np.repeat(10.0 ** (5 - np.array(POWERS)), np.array(LAST) - np.array(FIRST) + 1)
"""Radiance of one count in each channel, mW m-2 sr-1 (cm-1)-1."""
LINES, LOST = 7, 2
TEMPERATURES = 230.0 + np.arange(LINES * 120).reshape(LINES, 30, 4) * 0.08


def a_line(line):
    """Return the fields of one line."""
    counts = np.full((30, 4, 8700), -32768, np.int16)
    radiance = blackbody_radiance(WAVENUMBERS, TEMPERATURES[line][..., None])
    counts[..., :CHANNELS] = np.round(radiance / STEPS)
    flags = np.zeros((30, 4, 3), np.uint8)
    flags[3, 1, 2] = 1
    angle = np.full((30, 4, 2), 60.0)
    angle[15:, :, 0] = 95.0
    percent = np.full((30, 4), 40, np.uint8)
    percent[0] = 0
    percent[1] = 255
    return {
        "GS1cSpect": counts,
        "GQisFlagQual": flags,
        "IDefNsfirst1b": 2581,
        "GGeoSondLoc": np.stack(np.broadcast_arrays(10.0 + line, np.full((30, 4), -20.0)), -1),
        "GGeoSondAnglesSUN": angle,
        "GEUMAvhrr1BCldFrac": percent,
        "OnboardUTC": 777_000_000.25 + 8.0 * line + 0.2 * np.arange(30),
    }


class FakeError(Exception):
    """What CODA raises."""


class Product:
    def __enter__(self):
        return self

    def __exit__(self, *given):
        return None


class FakeCoda:
    """The functions of CODA that are called, for one product of seven lines, one of them lost."""

    CodaError = FakeError

    def __init__(self):
        self.fetched = []
        self.lost = {LOST}

    def open(self, path):
        if not path.endswith(NAME):
            raise FakeError("coda_open(): unsupported product")
        return Product()

    def get_size(self, product, *path):
        assert path == ("MDR",)
        return [LINES]

    def get_field_available(self, product, *path):
        mdr, line, inner = path
        assert (mdr, inner) == ("MDR", "MDR")
        return line not in self.lost

    def fetch(self, product, *path):
        self.fetched.append(path)
        if path == ("GIADR_ScaleFactors",):
            padding = [0] * 5
            return SimpleNamespace(
                IDefScaleSondNbScale=5,
                IDefScaleSondNsfirst=np.array(FIRST + padding, np.int16),
                IDefScaleSondNslast=np.array(LAST + padding, np.int16),
                IDefScaleSondScaleFactor=np.array(POWERS + padding, np.int16),
            )
        mdr, line, inner, name = path
        assert (mdr, inner) == ("MDR", "MDR")
        assert isinstance(line, int)
        assert line not in self.lost
        return a_line(line)[name]


@pytest.fixture
def coda(monkeypatch):
    fake = FakeCoda()
    monkeypatch.setitem(sys.modules, "coda", fake)
    return fake


@pytest.fixture
def path(tmp_path):
    (tmp_path / NAME).write_bytes(b"native")
    return tmp_path / NAME


def test_radiances_are_counts_scaled_by_the_power_of_their_channels(coda, path):
    found = check_spectra(open_spectra(path))
    assert found["radiance"].shape == ((LINES - 1) * 120, CHANNELS)
    kept = np.delete(TEMPERATURES, LOST, axis=0).reshape(-1)
    values = found["radiance"].isel(sample=slice(470, 490)).values
    expected = blackbody_radiance(WAVENUMBERS, kept[470:490, None])
    # Half a step of rounding, and single precision.
    assert (np.abs(values - expected) <= 0.5 * STEPS + 1e-6 * expected).all()


def test_spectra_are_read_when_they_are_computed_four_lines_at_a_time(coda, path):
    found = open_spectra(path)
    assert isinstance(found["radiance"].data, da.Array)
    assert found["radiance"].chunks[0] == (480, 240)
    assert not any("GS1cSpect" in names for names in coda.fetched)
    found["radiance"].isel(sample=500).compute()
    read = [names[1] for names in coda.fetched if "GS1cSpect" in names]
    assert read == [5, 6]


def test_lost_lines_are_left_out(coda, path):
    found = open_spectra(path)
    lines = found["longitude"].values.reshape(-1, 120)[:, 0] - 10.0
    assert lines.tolist() == [0, 1, 3, 4, 5, 6]
    assert_array_equal(found["latitude"], np.full((LINES - 1) * 120, -20.0))


def test_spectra_of_bad_quality_are_missing(coda, path):
    values = open_spectra(path)["radiance"].isel(sample=slice(0, 120)).values
    bad = np.isnan(values).all(axis=1)
    assert np.flatnonzero(bad).tolist() == [3 * 4 + 1]
    assert np.isfinite(values[~bad]).all()


def test_cloudy_is_what_avhrr_saw_and_missing_where_it_saw_nothing(coda, path):
    found = check_spectra(open_spectra(path))
    first = found["cloudy"].values[:12]
    assert first.tolist() == [0] * 4 + [255] * 4 + [1] * 4
    assert found["avhrr_cloud_fraction"].values[11] == 40
    assert found["day"].values[:120].tolist() == [1] * 60 + [0] * 60


def test_four_fields_of_view_share_a_time(coda, path):
    time = open_spectra(path)["time"].values
    since = (time - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "s")
    assert_allclose(since[:8], 777_000_000.25 + np.repeat([0.0, 0.2], 4), rtol=0, atol=1e-3)


def test_several_files_are_concatenated(coda, path, tmp_path):
    other = tmp_path / "again" / NAME
    other.parent.mkdir()
    other.write_bytes(b"native")
    found = open_spectra([path, other])
    assert found.sizes["sample"] == 2 * (LINES - 1) * 120
    assert found["wavenumber"].dims == ("channel",)


def test_an_orbit_without_lines_is_an_error(coda, path):
    coda.lost = set(range(LINES))
    with pytest.raises(SceneError, match=r"\.nat has no line with spectra\. Fetch it again"):
        open_spectra(path)


def test_a_file_that_coda_cannot_read_is_named_with_what_may_be_missing(coda, tmp_path):
    path = tmp_path / "seviri.nat"
    path.write_bytes(b"another thing")
    with pytest.raises(SceneError, match=r"seviri\.nat cannot be read: coda_open\(\)") as error:
        open_spectra(path)
    assert "EPS.codadef" in str(error.value)
    assert "CODA_DEFINITION" in str(error.value)


@pytest.mark.parametrize("installed", [None, SimpleNamespace(__name__="coda")])
def test_without_coda_the_error_says_how_to_install_it(monkeypatch, path, installed):
    # None makes the import fail; PyPI's module has none of CODA's functions.
    monkeypatch.setitem(sys.modules, "coda", installed)
    with pytest.raises(SceneError, match="which is not installed") as error:
        open_spectra(path)
    assert "apt-get install python3-coda" in str(error.value)
    assert "not PyPI's" in str(error.value)
    assert str(path) in str(error.value)
