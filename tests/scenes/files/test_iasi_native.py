"""Native IASI files: what is read is what was written, to the bit; bad files are errors.

``benchmarks/iasi_writer.py`` writes the files, and CODA reads them too where it is installed.
"""

import os
import shutil
import struct
from decimal import Decimal
from itertools import pairwise

import dask.array as da
import numpy as np
import pytest
from benchmarks import coda_oracle
from benchmarks.fuzz_native import fuzz
from benchmarks.iasi_writer import (
    FIRST,
    LAST,
    LINE_BYTES,
    NAME,
    POWERS,
    NativeFile,
    counts_of,
    plausible_fields,
)
from numpy.testing import assert_array_equal

from undulatus.datasets import load_iasi_spectra
from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files import iasi_native
from undulatus.scenes.files.opening import open_data, open_spectra
from undulatus.scenes.radiometry import blackbody_radiance
from undulatus.scenes.spectra import as_swath, check_spectra

LINES, LOST = 6, 2
WIDTHS = np.array(LAST) - np.array(FIRST) + 1
SCALES = np.repeat(10.0 ** (5 - np.array(POWERS)), WIDTHS)
"""Radiance of one count in each channel, mW m-2 sr-1 (cm-1)-1."""


def planck_counts(lines):
    temperature = np.linspace(230.0, 300.0, lines * 120).reshape(lines, 120, 1)
    return counts_of(blackbody_radiance(WAVENUMBERS, temperature))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with a line lost, its fields and counts."""
    folder = tmp_path_factory.mktemp("native")
    fields, counts = plausible_fields(LINES), planck_counts(LINES)
    path = NativeFile(counts, fields, lost=(LOST,)).write(folder / NAME)
    return path, fields, counts


@pytest.fixture(scope="module")
def path(written):
    return written[0]


def one_line(folder, **changes):
    """Write a file of one line and return its path."""
    fields = {**plausible_fields(1), **changes.pop("fields", {})}
    return NativeFile(planck_counts(1), fields, **changes).write(folder / NAME)


def message(path):
    with pytest.raises(SceneError) as error:
        open_spectra(path)
    assert str(path) in str(error.value)
    return str(error.value)


def exact(pairs, *shape):
    """Return pairs (power, integer) as numbers, each the nearest to the exact quotient."""
    flat = np.asarray(pairs).reshape(-1, 2)
    return np.array([float(Decimal(int(v)).scaleb(-int(p))) for p, v in flat]).reshape(shape)


# What is read


def test_radiances_are_counts_over_powers_of_ten_to_the_bit(written):
    path, fields, counts = written
    expected = (counts.astype(np.float64) * SCALES).astype(np.float32).reshape(-1, CHANNELS)
    expected[fields["GQisFlagQual"].reshape(-1, 3).any(axis=1)] = np.nan
    assert_array_equal(open_spectra(path)["radiance"].values, expected)


def test_every_count_gives_the_number_nearest_to_its_radiance(tmp_path):
    counts = np.zeros((1, 120, CHANNELS), np.int16)
    every = np.arange(-32767, 32768, dtype=np.int16)
    for first, last in pairwise(np.cumsum([0, *WIDTHS])[:4]):
        band = counts[0, :, first:last]
        band.flat = every[: band.size]
    fields = {**plausible_fields(1), "GQisFlagQual": np.zeros(360, int)}
    path = NativeFile(counts, fields).write(tmp_path / NAME)
    # Numerator and denominator are exact, and double precision is far finer than the result.
    powers = np.repeat(10.0 ** (np.array(POWERS) - 5), WIDTHS)
    expected = (counts[0] / powers).astype(np.float32)
    assert_array_equal(open_spectra(path)["radiance"].values, expected)


def test_other_fields_are_those_that_were_written(written):
    path, fields, _ = written
    found = open_spectra(path).load()
    samples = 120 * LINES
    for name, field, column in (
        ("longitude", "GGeoSondLoc", 0),
        ("latitude", "GGeoSondLoc", 1),
        ("satellite_zenith_angle", "GGeoSondAnglesMETOP", 0),
        ("satellite_azimuth_angle", "GGeoSondAnglesMETOP", 1),
        ("solar_zenith_angle", "GGeoSondAnglesSUN", 0),
        ("solar_azimuth_angle", "GGeoSondAnglesSUN", 1),
    ):
        assert_array_equal(found[name], fields[field][..., column].reshape(-1) / 1e6)
    for name, field in (
        ("quality_detail", "GQisFlagQualDetailed"),
        ("avhrr_cloud_fraction", "GEUMAvhrr1BCldFrac"),
        ("avhrr_land_fraction", "GEUMAvhrr1BLandFrac"),
        ("avhrr_quality", "GEUMAvhrr1BQual"),
        ("avhrr_clusters", "GCcsRadAnalNbClass"),
    ):
        assert_array_equal(found[name], fields[field].reshape(-1))
    for name, field in (
        ("degraded_instrument", "DEGRADED_INST_MDR"),
        ("degraded_processing", "DEGRADED_PROC_MDR"),
    ):
        assert_array_equal(found[name], np.repeat(fields[field].reshape(-1), 120))
    assert_array_equal(found["bad_bands"], fields["GQisFlagQual"].reshape(samples, 3))
    since = found["time"].values - np.datetime64("2000-01-01", "ns")
    milliseconds = since.astype("timedelta64[ms]").astype(np.int64)
    days, parts = np.moveaxis(np.repeat(fields["GEPSDatIasi"].reshape(-1, 2), 4, axis=0), 1, 0)
    assert_array_equal(milliseconds, days * 86_400_000 + parts)


def test_scaled_fields_are_those_that_were_written(written):
    path, fields, _ = written
    found = open_spectra(path)
    for name, field, shape in (
        ("avhrr_cluster_fraction", "GCcsRadAnalWgt", (7,)),
        ("avhrr_cluster_radiance", "GCcsRadAnalMean", (7, 6)),
        ("avhrr_cluster_deviation", "GCcsRadAnalStd", (7, 6)),
    ):
        expected = exact(fields[field], LINES * 120, *shape)
        np.testing.assert_array_almost_equal_nulp(found[name].values, expected, 1)
    for name, field in (
        ("quality_index", "GQisQualIndex"),
        ("quality_index_place", "GQisQualIndexLoc"),
        ("quality_index_radiance", "GQisQualIndexRad"),
        ("quality_index_spectrum", "GQisQualIndexSpect"),
    ):
        expected = np.repeat(exact(fields[field], LINES), 120)
        np.testing.assert_array_almost_equal_nulp(found[name].values, expected, 1)


def test_what_is_opened_passes_the_check_and_says_where_it_is_from(path):
    found = check_spectra(open_data(path))
    assert found["radiance"].shape == (LINES * 120, CHANNELS)
    assert found.attrs["platform_name"] == "Metop-B"
    assert found.attrs["format_version"] == "11.0"
    assert set(found["orbit"].values) == {61734}


def test_spectra_are_read_when_they_are_computed_four_lines_at_a_time(path, monkeypatch):
    found = open_spectra(path)
    assert isinstance(found["radiance"].data, da.Array)
    assert found["radiance"].chunks[0] == (480, 240)
    assert len({array.chunks[0] for array in found.values() if array.chunks}) == 1
    read = []
    monkeypatch.setattr(
        iasi_native.Source, "read", lambda source, file, offset, array: read.append(array.nbytes)
    )
    found["radiance"].isel(sample=500).compute()
    # Two lines of 120 spectra with 8,700 places, and their flags.
    assert sum(read) == 2 * (120 * 8700 * 2 + 360)


def test_lost_lines_are_left_out_and_counted(path):
    found = open_spectra(path)
    assert found.attrs["lines_lost"] == 1
    assert found["line"].values[::120].tolist() == [0, 1, 3, 4, 5, 6]


def test_flagged_spectra_are_missing_and_counted(written):
    path, fields, _ = written
    found = open_spectra(path)
    flagged = fields["GQisFlagQual"].reshape(-1, 3).any(axis=1)
    assert found.attrs["flagged_spectra"] == flagged.sum() > 0
    assert_array_equal(found["flagged"], flagged.ravel())
    assert_array_equal(found["radiance"].isnull().all("channel"), flagged)
    assert_array_equal(found["radiance"].isnull().any("channel"), flagged)


def test_a_count_that_is_missing_is_missing_alone(tmp_path):
    counts = planck_counts(1)
    counts[0, 70, 300] = -32768
    fields = {**plausible_fields(1), "GQisFlagQual": np.zeros(360, int)}
    path = NativeFile(counts, fields).write(tmp_path / NAME)
    missing = np.isnan(open_spectra(path)["radiance"].values)
    assert np.argwhere(missing).tolist() == [[70, 300]]


def test_places_and_angles_that_are_missing_are_not_numbers(tmp_path):
    fields = plausible_fields(1)
    fields["GGeoSondLoc"][0, 0] = -(2**31)
    fields["GGeoSondLoc"][0, 1] = 180_000_001, 90_000_001
    fields["GGeoSondAnglesSUN"][0, 2] = -(2**31)
    fields["GEPSDatIasi"][0, 1] = 65535, 2**32 - 1
    fields["GEUMAvhrr1BCldFrac"][0, :3] = 255, 0, 1
    found = open_spectra(one_line(tmp_path, fields=fields))
    assert np.flatnonzero(found["longitude"].isnull()).tolist() == [0, 1]
    assert np.flatnonzero(found["latitude"].isnull()).tolist() == [0, 1]
    assert np.flatnonzero(found["solar_zenith_angle"].isnull()).tolist() == [2]
    assert found["day"].values[2] == 255
    assert np.flatnonzero(found["time"].isnull()).tolist() == [4, 5, 6, 7]
    assert found["cloudy"].values[:3].tolist() == [255, 0, 1]


def test_clusters_of_iasis_own_imager_are_not_taken_for_avhrrs(tmp_path):
    found = open_spectra(one_line(tmp_path, fields={"IDefCcsMode": [1]}))
    for name in ("avhrr_cluster_fraction", "avhrr_cluster_radiance", "avhrr_cluster_deviation"):
        assert found[name].isnull().all()


@pytest.mark.parametrize(("version", "bands"), [(3, 1), (4, 120), (5, 360)])
def test_each_version_of_the_format_is_read_by_its_own_layout(tmp_path, version, bands):
    fields = plausible_fields(2)
    fields["GQisFlagQual"] = np.zeros((2, bands), int)
    fields["GQisFlagQual"][1, 0] = 1
    counts = planck_counts(2)
    path = NativeFile(counts, fields, version=version).write(tmp_path / NAME)
    found = open_spectra(path)
    flagged = 120 if version == 3 else 1
    assert found.attrs["flagged_spectra"] == flagged
    expected = (counts.astype(np.float64) * SCALES).astype(np.float32).reshape(-1, CHANNELS)
    assert_array_equal(found["radiance"][:120], expected[:120])
    assert found["radiance"][120 + flagged :].notnull().all()
    assert_array_equal(found["latitude"], fields["GGeoSondLoc"][..., 1].reshape(-1) / 1e6)
    assert_array_equal(found["avhrr_clusters"], fields["GCcsRadAnalNbClass"].reshape(-1))
    assert ("cloudy" in found) == ("quality_detail" in found) == (version == 5)


def test_a_spectrum_that_starts_at_another_channel_is_read_from_ours(tmp_path):
    counts = np.concatenate([np.full((1, 120, 100), 7, np.int16), planck_counts(1)], axis=-1)
    counts = np.concatenate([counts, np.zeros((1, 120, 139), np.int16)], axis=-1)
    fields = {
        **plausible_fields(1),
        "GQisFlagQual": np.zeros(360, int),
        "IDefNslast1b": [11041],
    }
    path = NativeFile(counts, fields, first_channel=2481).write(tmp_path / NAME)
    expected = (planck_counts(1)[0].astype(np.float64) * SCALES).astype(np.float32)
    assert_array_equal(open_spectra(path)["radiance"].values, expected)


def test_spectra_come_back_to_the_shape_of_the_swath(written):
    path, fields, _ = written
    found = open_spectra([path, path])
    swath = as_swath(found)
    assert dict(swath.sizes) | {"channel": CHANNELS} == dict(swath.sizes)
    assert swath["radiance"].dims == ("line", "step", "pixel", "channel")
    assert swath["radiance"].shape == (2 * LINES, 30, 4, CHANNELS)
    assert swath["radiance"].chunks[0] == (4, 2, 4, 2)
    assert_array_equal(
        swath["latitude"][:LINES].values.reshape(LINES, 120), fields["GGeoSondLoc"][..., 1] / 1e6
    )
    assert swath["line"].values.tolist() == [0, 1, 3, 4, 5, 6] * 2
    one = {"line": 7, "step": 5, "pixel": 3}
    assert_array_equal(swath["radiance"][one], found["radiance"][7 * 120 + 5 * 4 + 3])


def test_parts_of_lines_have_no_shape(path):
    with pytest.raises(SceneError, match="not whole scan lines of 120"):
        as_swath(open_spectra(path).isel(sample=slice(1, None)))
    with pytest.raises(SceneError, match="have no line and step and pixel"):
        as_swath(open_spectra(path).drop_vars(["line", "step", "pixel"]))


def test_a_folder_stands_for_the_files_in_it(tmp_path):
    (tmp_path / "EOPMetadata.xml").write_text("<xml/>")
    first = one_line(tmp_path)
    assert open_spectra(tmp_path).identical(open_spectra(first))
    other = first.with_name(NAME.replace("20240819", "20240820"))
    shutil.copy(first, other)
    both = open_spectra(tmp_path)
    assert both.identical(open_spectra([first, other]))
    assert both.identical(open_data(tmp_path))
    assert both.attrs["source"] == f"{first.name} to {other.name}"
    other.write_bytes(b"")
    assert other.name in message(tmp_path)


def test_a_file_is_known_by_its_beginning_whatever_its_name(tmp_path):
    path = one_line(tmp_path)
    expected = open_spectra(path)["radiance"].values
    for name in ("spectra", "spectra.nat", "spectra.dat"):
        other = path.rename(tmp_path / name)
        assert_array_equal(open_data(other)["radiance"].values, expected)
        path = other
    damaged = path.read_bytes().replace(b"= IASI\n", b"= AVHR\n")
    path.write_bytes(damaged)
    assert "holds the product AVHR_xxx_1C, not IASI_xxx_1C" in message(path)


# CODA


@pytest.mark.parametrize("version", [3, 4, 5])
def test_coda_reads_the_same_to_the_bit(tmp_path, version):
    why_not = coda_oracle.why_not(tmp_path)
    if why_not:
        pytest.skip(f"{why_not}. To run: apt-get install python3-coda libcoda-dev python3-numpy")
    fields = plausible_fields(2, seed=version)
    # Beyond 22, powers of ten are not exact in double precision, and CODA's are not the nearest.
    fields["GCcsRadAnalMean"][..., 0] = np.arange(2 * 5040).reshape(2, 5040) % 45 - 22
    counts = np.random.default_rng(0).integers(-32767, 32768, (2, 120, 8700)).astype(np.int16)
    path = NativeFile(counts, fields, version=version, lost=(1,)).write(tmp_path / NAME)
    found = open_spectra(path).load()
    names = {
        "longitude": ("GGeoSondLoc", (..., 0)),
        "latitude": ("GGeoSondLoc", (..., 1)),
        "satellite_zenith_angle": ("GGeoSondAnglesMETOP", (..., 0)),
        "satellite_azimuth_angle": ("GGeoSondAnglesMETOP", (..., 1)),
        "solar_zenith_angle": ("GGeoSondAnglesSUN", (..., 0)),
        "solar_azimuth_angle": ("GGeoSondAnglesSUN", (..., 1)),
        "avhrr_clusters": ("GCcsRadAnalNbClass", ...),
        "avhrr_cluster_fraction": ("GCcsRadAnalWgt", ...),
        "avhrr_cluster_radiance": ("GCcsRadAnalMean", ...),
        "avhrr_cluster_deviation": ("GCcsRadAnalStd", ...),
    }
    of_5 = {
        "quality_detail": ("GQisFlagQualDetailed", ...),
        "bad_bands": ("GQisFlagQual", ...),
        "avhrr_cloud_fraction": ("GEUMAvhrr1BCldFrac", ...),
        "avhrr_land_fraction": ("GEUMAvhrr1BLandFrac", ...),
        "avhrr_quality": ("GEUMAvhrr1BQual", ...),
    }
    of_line = {
        "quality_index": "GQisQualIndex",
        "quality_index_place": "GQisQualIndexLoc",
        "quality_index_radiance": "GQisQualIndexRad",
        "quality_index_spectrum": "GQisQualIndexSpect",
        "degraded_instrument": "DEGRADED_INST_MDR",
        "degraded_processing": "DEGRADED_PROC_MDR",
    }
    names |= of_5 if version == 5 else {}
    wanted = {field for field, _ in names.values()} | set(of_line.values())
    wanted |= {"GS1cSpect", "GEPSDatIasi"}
    expected, about = coda_oracle.fetch(path, sorted(wanted), tmp_path)
    assert about["lines"] == [0, 2]
    assert about["ranges"][3][:5] == POWERS
    for name, (field, part) in names.items():
        assert_array_equal(found[name].values, expected[field][part].reshape(found[name].shape))
    for name, field in of_line.items():
        assert_array_equal(found[name].values, np.repeat(expected[field].reshape(-1), 120))
    seconds = np.repeat(expected["GEPSDatIasi"].reshape(-1), 4)
    since = found["time"].values - np.datetime64("2000-01-01", "ns")
    assert_array_equal(since.astype("timedelta64[ms]").astype(np.int64) / 1e3, seconds)
    radiance = (expected["GS1cSpect"][..., :CHANNELS] * SCALES).astype(np.float32)
    radiance = radiance.reshape(-1, CHANNELS)
    radiance[found["bad_bands"].any("spectral_band")] = np.nan
    assert_array_equal(found["radiance"].values, radiance)


# Bad files


def test_an_orbit_without_lines_is_an_error(tmp_path):
    path = NativeFile(np.zeros((0, 120, CHANNELS), np.int16), lost=(0, 1)).write(tmp_path / NAME)
    assert "has no line with spectra: 2 are lost" in message(path)


@pytest.mark.parametrize(
    ("header", "product"),
    [
        ({"PRODUCT_TYPE": "SND", "PROCESSING_LEVEL": "02"}, "IASI_SND_02"),
        ({"PRODUCT_TYPE": "PCS"}, "IASI_PCS_1C"),
        ({"INSTRUMENT_ID": "AVHR", "PROCESSING_LEVEL": "1B"}, "AVHR_xxx_1B"),
    ],
)
def test_another_product_is_named(tmp_path, header, product):
    assert f"holds the product {product}, not IASI_xxx_1C" in message(
        one_line(tmp_path, header=header)
    )


def record_offsets(path):
    found, place = [], 0
    data = path.read_bytes()
    while place < len(data):
        found.append(place)
        place += struct.unpack(">I", data[place + 4 : place + 8])[0]
    return found


def altered(path, offset, content):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)
    return path


def test_an_unknown_version_is_an_error_that_names_it(tmp_path):
    path = one_line(tmp_path)
    start = record_offsets(path)[-1]
    text = message(altered(path, start + 3, b"\x06"))
    assert f"record 9 (at byte {start:,})" in text
    assert "of version 6 (format 11.0), which is not known" in text


def test_a_line_of_another_version_than_the_others_is_an_error(tmp_path):
    path = NativeFile(planck_counts(2), plausible_fields(2)).write(tmp_path / NAME)
    text = message(altered(path, record_offsets(path)[-1] + 3, b"\x04"))
    assert "of version 4, others of version 5" in text


def test_a_line_of_another_size_than_its_version_has_is_an_error(tmp_path):
    path = one_line(tmp_path)
    start = record_offsets(path)[-1]
    with open(path, "ab") as file:
        file.write(b"\0")
    text = message(altered(path, start + 4, struct.pack(">I", LINE_BYTES[5] + 1)))
    assert "it has 2,728,909 bytes; a line of version 5 has 2,728,908" in text


def test_a_line_of_another_kind_is_an_error(tmp_path):
    path = one_line(tmp_path)
    text = message(altered(path, record_offsets(path)[-1] + 2, b"\x01"))
    assert "of group 8 and subclass 1" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"IDefSpectDWn1b": [(0, 50)]},
        {"IDefSpectDWn1b": [(0, -(2**31))]},
        {"IDefNsfirst1b": [2582]},
        {"IDefNsfirst1b": [2300]},
        {"IDefNslast1b": [11040]},
        {"IDefNsfirst1b": [-(2**31)]},
    ],
)
def test_other_channels_are_an_error_that_names_the_record_and_both_ranges(tmp_path, fields):
    path = one_line(tmp_path, fields=fields)
    text = message(path)
    assert f"record 9 (at byte {record_offsets(path)[-1]:,})" in text
    assert "expected 2581 to 11041, 25 per m apart" in text


def test_lines_whose_channels_start_at_different_places_are_an_error(tmp_path):
    fields = {**plausible_fields(2), "IDefNsfirst1b": [[2581], [2580]]}
    path = NativeFile(planck_counts(2), fields).write(tmp_path / NAME)
    assert "in the same places in all lines" in message(path)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        (([], [], []), "for 0 ranges"),
        (([2581], [11040], [7]), "channel 11041 has 0 scale factors"),
        (([2581, 5000], [11041, 6000], [7, 8]), "channel 5000 has 2 scale factors"),
        (([2581], [11041], [300]), "the scale factor 300; expected 5 to 15"),
        (([2581], [11041], [-7]), "the scale factor -7; expected 5 to 15"),
    ],
)
def test_scale_factors_that_cannot_be_are_an_error(tmp_path, scales, expected):
    text = message(one_line(tmp_path, scales=scales))
    assert expected in text
    assert "record 7 (at byte" in text


def test_a_file_without_scale_factors_is_an_error(tmp_path):
    path = one_line(tmp_path)
    text = message(altered(path, record_offsets(path)[6] + 2, b"\x05"))
    assert "has 0 records of scale factors" in text


def test_files_of_two_satellites_are_not_joined(path, tmp_path):
    other = one_line(tmp_path, header={"SPACECRAFT_ID": "M03"})
    with pytest.raises(SceneError, match="several satellites") as error:
        open_spectra([path, other])
    for word in ("Metop-B", "Metop-C", NAME):
        assert word in str(error.value)


def test_counts_of_several_files_are_added(path):
    one, several = open_spectra(path), open_spectra([path, path, path])
    assert several.sizes["sample"] == 3 * LINES * 120
    for name in ("lines_lost", "flagged_spectra"):
        assert several.attrs[name] == 3 * one.attrs[name] > 0


def test_a_file_that_changed_after_it_was_opened_is_not_read(tmp_path):
    path = one_line(tmp_path)
    found = open_spectra(path)
    os.truncate(path, path.stat().st_size - 1000)
    with pytest.raises(SceneError, match="has changed since it was opened"):
        found["radiance"].compute()


def test_mutated_files_are_errors_or_valid_spectra(tmp_path):
    counted = fuzz(150, seed=7, folder=tmp_path)
    assert counted.errors + counted.valid == 150
    assert counted.errors > 50
    assert counted.valid > 20


@pytest.mark.network
def test_real_spectra_come_through_a_native_file_as_they_are_in_bufr(tmp_path, fetched):
    pytest.importorskip("eccodes")
    real = open_spectra(fetched(load_iasi_spectra).iasi)["radiance"].values
    fields = plausible_fields(1) | {"GQisFlagQual": np.zeros(360, int)}
    counts = counts_of(real.astype(np.float64)).reshape(1, 120, CHANNELS)
    path = NativeFile(counts, fields).write(tmp_path / NAME)
    assert_array_equal(check_spectra(open_spectra(path))["radiance"].values, real)
