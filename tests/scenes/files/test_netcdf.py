"""NetCDF files that were cut short."""

import os

import netCDF4
import numpy as np
import pytest
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.files.netcdf import open_netcdf

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF3_64BIT_DATA")
SHAPE = {"time": 3, "y": 5, "x": 7}


def dataset(*names):
    """Return a dataset of variables of odd lengths, so that values need filling up."""
    rng = np.random.default_rng(4)
    made = {
        "bytes": (
            ("time", "y", "x"),
            rng.integers(0, 9, (3, 5, 7)).astype(np.int8),
            {"title": "odd"},
        ),
        "shorts": (("time", "x"), rng.integers(0, 9, (3, 7)).astype(np.int16)),
        "doubles": (("y", "x"), rng.normal(size=(5, 7)), {"limits": np.arange(3, dtype=np.int16)}),
        "floats": (("time",), rng.normal(size=3).astype(np.float32)),
        "scalar": ((), np.int32(7)),
    }
    return xr.Dataset({name: made[name] for name in names}, attrs={"history": "by hand"})


def write(data, path, layout, unlimited=()):
    """Write a dataset; xarray does not know the layout of 64-bit data."""
    with netCDF4.Dataset(path, "w", format=layout) as file:
        file.setncatts(data.attrs)
        for name, size in data.sizes.items():
            file.createDimension(name, None if name in unlimited else size)
        for name, variable in data.variables.items():
            written = file.createVariable(name, variable.dtype, variable.dims)
            written.setncatts(variable.attrs)
            written[...] = variable.values


EVERYTHING = ("bytes", "shorts", "doubles", "floats", "scalar")
ONE_RECORD_VARIABLE = ("bytes", "doubles")
ONLY_RECORDS = ("bytes",)


@pytest.fixture(params=[EVERYTHING, ONE_RECORD_VARIABLE, ONLY_RECORDS], ids=len)
def data(request):
    return dataset(*request.param)


@pytest.mark.parametrize("unlimited", [[], ["time"]], ids=["fixed", "records"])
@pytest.mark.parametrize("layout", [*CLASSIC, "NETCDF4"])
def test_a_whole_file_opens_as_it_was_written_and_a_cut_one_is_named(
    data, layout, unlimited, tmp_path
):
    path = tmp_path / "data.nc"
    write(data, path, layout, unlimited)
    with open_netcdf(path) as opened:
        xr.testing.assert_identical(opened.load(), data)
    whole = path.read_bytes()
    # The last value may be followed by up to three bytes that mean nothing.
    for length in (len(whole) - 4, len(whole) - 40, len(whole) // 2, 60, 8, 4, 3, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(SceneError, match=r"data\.nc"), open_netcdf(path) as opened:
            opened.load()


@pytest.mark.parametrize("layout", CLASSIC)
def test_the_bytes_that_are_there_and_should_be_are_named(layout, tmp_path):
    path = tmp_path / "data.nc"
    write(dataset("doubles"), path, layout)
    length = path.stat().st_size
    os.truncate(path, length - 8)
    with pytest.raises(
        SceneError, match=rf"cut short.* {length:,} bytes.* {length - 8:,}\. Fetch"
    ):
        open_netcdf(path)


@pytest.mark.parametrize("layout", CLASSIC)
def test_a_file_without_records_yet_is_whole(layout, tmp_path):
    path = tmp_path / "data.nc"
    write(dataset("bytes", "doubles").isel(time=[]), path, layout, ["time"])
    with open_netcdf(path) as opened:
        assert opened.sizes == SHAPE | {"time": 0}
