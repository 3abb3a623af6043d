"""The contract of a sensor: known by file names, opened lazily, checked; errors name the file.

Every member of ``SENSORS`` needs a sample here: a function that makes one of its files.
"""

import datetime
from functools import cache

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from benchmarks.iasi_writer import NAME, NativeFile, plausible_fields

from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files import opening
from undulatus.scenes.files.opening import SENSORS, Sensor, open_data, open_scene, open_spectra
from undulatus.scenes.radiometry import blackbody_radiance
from undulatus.scenes.scene import BANDS, check_scene
from undulatus.scenes.simulators.landmark import synthetic_landmark
from undulatus.scenes.spectra import check_spectra

# satpy writes bounds of times as fractions of days, and xarray warns about them.
pytestmark = pytest.mark.filterwarnings("ignore:Times can't be serialized:UserWarning")


def seviri_file(folder, monkeypatch):
    satpy, pyresample = pytest.importorskip("satpy"), pytest.importorskip("pyresample")
    start = datetime.datetime(2010, 6, 1, 12)
    projection = "+proj=geos +lon_0=0 +h=35785831 +a=6378169 +b=6356583.8 +units=m"
    extent = (-1_606_000.0, 2_458_000.0, -1_528_000.0, 2_518_000.0)
    area = pyresample.AreaDefinition("dakhla", "Dakhla", "geos", projection, 26, 20, extent)
    x, y = area.get_proj_vectors()
    scene = satpy.Scene()
    for name, band in BANDS.items():
        is_solar = band.units == "%"
        scene[name] = xr.DataArray(
            da.full((20, 26), 30.0 if is_solar else 285.0, dtype=np.float32),
            dims=("y", "x"),
            coords={"y": y, "x": x},
            attrs={
                "name": name,
                "area": area,
                "units": band.units,
                "calibration": "reflectance" if is_solar else "brightness_temperature",
                "sensor": "seviri",
                "platform_name": "Meteosat-9",
                "start_time": start,
                "end_time": start + datetime.timedelta(minutes=15),
                "modifiers": (),
            },
        )
    path = folder / "Meteosat-9-seviri-20100601120000-20100601121500.nc"
    scene.save_datasets(writer="cf", filename=str(path))
    return path


def iasi_file(folder, monkeypatch):
    counts = np.full((1, 120, CHANNELS), 3000, np.int16)
    return NativeFile(counts, plausible_fields(1), scales=([2581], [11041], [7])).write(
        folder / NAME
    )


@cache
def bufr_message():
    """Return a message of one spectrum of IASI, all its channels at 280 K."""
    eccodes = pytest.importorskip("eccodes")
    handle = eccodes.codes_bufr_new_from_samples("BUFR4")
    eccodes.codes_set(handle, "masterTablesVersionNumber", 38)
    eccodes.codes_set_array(handle, "unexpandedDescriptors", [340007])
    for key, value in {"latitude": 50.0, "longitude": 8.0, "solarZenithAngle": 60.0}.items():
        eccodes.codes_set(handle, key, value)
    # The first three ranges are of quality flags.
    for key, value in {"#4#startChannel": 1, "#4#endChannel": CHANNELS}.items():
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set(handle, "#1#channelScaleFactor", 7)
    counts = np.round(blackbody_radiance(WAVENUMBERS, np.array(280.0)) * 100.0)
    for number, count in enumerate(counts.astype(int).tolist(), start=1):
        eccodes.codes_set(handle, f"#{number}#channelNumber", number)
        eccodes.codes_set(handle, f"#{number}#scaledRadiance", count)
    eccodes.codes_set(handle, "pack", 1)
    message = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return message


def bufr_file(folder, monkeypatch):
    path = folder / "W_XX-EUMETSAT-Darmstadt,HYPERSPECT+SOUNDING,METOPA+IASI_C_EUMP_l1.bin"
    path.write_bytes(bufr_message())
    return path


SAMPLES = {
    "SEVIRI": seviri_file,
    "IASI": iasi_file,
    "BUFR of IASI, CrIS, AIRS and HIRS": bufr_file,
}

each_sensor = pytest.mark.parametrize("sensor", SENSORS, ids=lambda sensor: sensor.name)


@pytest.fixture
def path(sensor, tmp_path, monkeypatch):
    """A file of the sensor."""
    return SAMPLES[sensor.name](tmp_path, monkeypatch)


def by_name(sensor):
    """Return the function of ``opening`` that opens files of the sensor."""
    return open_spectra if sensor.is_sounder else open_scene


def test_every_sensor_has_a_sample():
    assert {sensor.name for sensor in SENSORS} == set(SAMPLES)


@each_sensor
def test_a_file_is_recognised_by_its_own_sensor_and_no_other_of_its_kind(sensor, path):
    kind = [other for other in SENSORS if other.is_sounder == sensor.is_sounder]
    assert [other for other in kind if other.recognises(path)] == [sensor]


@each_sensor
def test_a_file_is_opened_by_its_name_alone(sensor, path):
    with sensor.open(path) as expected, open_data(path) as found, by_name(sensor)(path) as named:
        xr.testing.assert_identical(found.drop_attrs(), expected.drop_attrs())
        xr.testing.assert_identical(named.drop_attrs(), expected.drop_attrs())


@each_sensor
def test_what_a_file_measures_is_not_read_when_it_is_opened(sensor, path):
    with sensor.open(path) as opened:
        measured = ["radiance"] if sensor.is_sounder else list(BANDS)
        assert all(isinstance(opened[name].data, da.Array) for name in measured)


@each_sensor
def test_what_is_opened_passes_the_check(sensor, path):
    with sensor.open(path) as opened:
        if sensor.is_sounder:
            assert check_spectra(opened)["radiance"].shape[1] == CHANNELS
        else:
            assert set(BANDS) <= set(check_scene(opened).data_vars)


@each_sensor
def test_a_damaged_file_is_named(sensor, path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for open_file in (sensor.open, open_data, by_name(sensor)):
        with pytest.raises(SceneError) as error:
            open_file(path)
        assert str(path) in str(error.value)


# Adding one


@pytest.fixture
def newcomer(monkeypatch):
    """A sensor that is listed beside the others, and what its files hold."""
    scene = synthetic_landmark(1, first_day=170).isel(time=slice(40, 44))
    sensor = Sensor("ABI", ("OR_ABI-*",), lambda path: scene)
    monkeypatch.setattr(opening, "SENSORS", (*SENSORS, sensor))
    return scene


@pytest.mark.parametrize("name", ["OR_ABI-L1b.dat", "OR_ABI-L1b.nc"])
def test_a_sensor_is_used_as_soon_as_it_is_listed(newcomer, tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".nc":
        xr.Dataset({"Rad": (("y", "x"), np.zeros((3, 4)))}).to_netcdf(path)
    else:
        path.write_bytes(b"anything")
    assert open_scene(path) is newcomer
    assert open_data(path) is newcomer


@pytest.mark.usefixtures("newcomer")
def test_an_unknown_name_is_an_error_that_lists_every_sensor(tmp_path):
    path = tmp_path / "scene.dat"
    path.write_bytes(b"anything")
    with pytest.raises(SceneError) as error:
        open_data(path)
    for word in (str(path), "SEVIRI: *.nat", "ABI: OR_ABI-*"):
        assert word in str(error.value)
