"""Inputs: what a map records of its data, and what makes it another map."""

import json
import os

import numpy as np
import pytest
import xarray as xr

from undulatus.scenes.files.inputs import Inputs
from undulatus.scenes.files.opening import input_digest


@pytest.fixture
def files(tmp_path):
    for name in ("a.nc", "b.nc", "mask.nc"):
        xr.Dataset({"IR_108": (("y", "x"), np.zeros((2, 2)))}).to_netcdf(tmp_path / name)
    return tmp_path


def test_a_map_finds_its_inputs_again(files):
    given = Inputs(
        (files / "a.nc", files / "b.nc"),
        calibration="GSICS",
        mask=(files / "mask.nc",),
        time=("2010-06",),
        box="0,0,1,1",
    )
    attrs = json.loads(json.dumps(given.attributes()))
    assert Inputs.of_map(attrs) == given
    assert Inputs.of_map(attrs, files / "c.nc").paths == (files / "c.nc",)
    assert Inputs.of_map({}) is None


def test_one_file_without_options_is_recorded_by_its_path_alone(files, monkeypatch):
    monkeypatch.chdir(files)
    given = Inputs.of("a.nc")
    assert given.attributes() == {"scene": str(files / "a.nc")}
    assert given.digest() == input_digest(files / "a.nc")
    assert Inputs.of(given) is given
    assert given.name == "a.nc"


def test_the_digest_changes_with_files_options_and_the_content_of_masks(files):
    one, two, mask = (files / name for name in ("a.nc", "b.nc", "mask.nc"))
    several = [
        Inputs((one,)),
        Inputs((one, two)),
        Inputs((one,), calibration="GSICS"),
        Inputs((one,), time=("2010",)),
        Inputs((one,), box="0,0,1,1"),
        Inputs((one,), mask=(mask,)),
    ]
    before = [each.digest() for each in several]
    assert len(set(before)) == len(before)
    os.utime(mask, ns=(0, 0))
    assert [a == b.digest() for a, b in zip(before, several, strict=True)] == [True] * 5 + [False]


def test_a_file_that_is_lost_is_named(files):
    given = Inputs((files / "a.nc", files / "b.nc"), mask=(files / "mask.nc",))
    assert given.lost is None
    assert given.name == f"{files / 'a.nc'} (and 1 more)"
    (files / "mask.nc").unlink()
    assert given.lost == files / "mask.nc"
