"""Inputs: what a map records of its data, and what makes it another map."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from undulatus.scenes.files.inputs import Inputs, find_recorded, recorded_path
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
    folder = files / "maps"
    folder.mkdir()
    attrs = json.loads(json.dumps(given.attributes(folder)))
    assert attrs["scene"] == ["../a.nc", "../b.nc"]
    assert str(files) not in json.dumps(attrs)
    found = Inputs.of_map(attrs, folder=folder)
    assert [os.path.realpath(path) for path in (*found.paths, *found.mask)] == [
        os.path.realpath(files / name) for name in ("a.nc", "b.nc", "mask.nc")
    ]
    assert found.options.keys() == given.options.keys()
    assert Inputs.of_map(attrs, files / "c.nc").paths == (files / "c.nc",)
    assert Inputs.of_map({}) is None


def test_one_file_without_options_is_recorded_by_its_path_alone(files, monkeypatch):
    monkeypatch.chdir(files)
    given = Inputs.of("a.nc")
    assert given.attributes() == {"scene": "a.nc"}
    assert given.attributes(files) == {"scene": "a.nc"}
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


def test_recorded_files_are_found_where_they_were_by_their_names_or_as_earlier_versions_wrote(
    files, tmp_path_factory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_recorded("../a.nc", files / "maps") == files / "maps" / ".." / "a.nc"
    assert find_recorded("old/place/a.nc", files) == files / "a.nc"
    assert find_recorded(str(files / "a.nc"), elsewhere) == files / "a.nc"
    assert find_recorded("gone.nc", elsewhere) == elsewhere / "gone.nc"
    assert recorded_path(Path("/data/a.nc"), Path("/home/someone")) == "a.nc"


def test_a_file_that_is_lost_is_named(files):
    given = Inputs((files / "a.nc", files / "b.nc"), mask=(files / "mask.nc",))
    assert given.lost is None
    assert given.name == f"{files / 'a.nc'} (and 1 more)"
    (files / "mask.nc").unlink()
    assert given.lost == files / "mask.nc"
