"""Zarr read with checks: what was lost or damaged is an error that names it."""

import pickle
import shutil
from pathlib import Path

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from undulatus._files import JsonLines
from undulatus.errors import SceneError
from undulatus.scenes import open_image, open_map
from undulatus.scenes.files.mask_files import open_mask
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.files.zarr_store import MANIFEST_NAME, find_manifest

GOLDEN = Path(__file__).parents[2] / "golden"


def truncated(file):
    file.write_bytes(file.read_bytes()[:-1])


def flipped(file):
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)


DAMAGE = {"truncated": truncated, "flipped": flipped, "deleted": Path.unlink}

each_damage = pytest.mark.parametrize("damage", DAMAGE)


def bands():
    """Return two bands in 2 x 2 chunks; 0 is a valid number of the first, 65535 is missing."""
    values = np.random.default_rng(0).integers(0, 1000, (6, 8))
    counts = da.from_array(values.astype("u2"), chunks=(3, 4))
    return xr.Dataset(
        {
            "counts": (("y", "x"), counts, {"_FillValue": np.uint16(65535)}),
            "kelvin": (("y", "x"), 200 + counts / 10),
            "cloud_mask": (("y", "x"), (counts % 2).astype("u1")),
        },
        coords={"y": np.arange(6.0), "x": np.arange(8.0)},
    )


@pytest.fixture
def ours(tmp_path):
    write_dataset(bands(), tmp_path / "ours.zarr")
    return tmp_path / "ours.zarr"


@pytest.fixture(params=[2, 3])
def foreign(request, tmp_path):
    """A store as xarray writes it, in either format of Zarr."""
    path = tmp_path / "foreign.zarr"
    bands().to_zarr(path, zarr_format=request.param, consolidated=False)
    return path


def chunk_of(store, index):
    """Return the file and the key of a chunk of ``counts``."""
    name = "/".join(["c", *index]) if (store / "zarr.json").exists() else ".".join(index)
    return store / "counts" / name, name


# Stores of undulatus


@pytest.mark.parametrize("blocks", [{}, None], ids=["lazy", "loaded"])
def test_what_is_whole_is_read_as_it_was_written(ours, blocks):
    xr.testing.assert_equal(open_zarr(ours, chunks=blocks).compute(), bands().compute())


@each_damage
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("counts/c/1/0", "chunk c/1/0 of counts"),
        ("y/c/0", "chunk c/0 of y"),
        ("kelvin/zarr.json", "the metadata kelvin/zarr.json"),
        ("zarr.json", "the metadata zarr.json"),
    ],
)
def test_damage_is_an_error_that_names_it_with_its_remedy(ours, damage, key, name):
    DAMAGE[damage](ours / key)
    with pytest.raises(SceneError, match=f"{name} is (missing|damaged)") as refused:
        open_zarr(ours, chunks={}).compute()
    assert str(ours / key) in str(refused.value)
    assert "Restore it from a copy, or make the store again" in str(refused.value)


def test_what_is_lost_or_cut_short_is_found_when_the_store_is_opened(ours):
    (ours / "counts/c/1/1").unlink()
    truncated(ours / "kelvin/c/0/0")
    with pytest.raises(SceneError, match="one of 2 that are not as they were written"):
        open_zarr(ours)


def test_only_what_is_read_is_held_against_its_checksum(ours):
    flipped(ours / "counts/c/1/1")
    opened = open_zarr(ours, chunks={})
    expected = bands()["counts"][:3].compute()
    np.testing.assert_array_equal(opened["counts"][:3], expected)
    with pytest.raises(SceneError, match="c/1/1 of counts"):
        opened["counts"][3:].compute()


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_chunks_are_checked_in_other_processes_too(ours, damage):
    sent = pickle.loads(pickle.dumps(open_zarr(ours, chunks={})))
    DAMAGE[damage](ours / "counts/c/0/1")
    with pytest.raises(SceneError, match="chunk c/0/1 of counts") as failed:
        sent["counts"].compute()
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
    with dask.config.set(scheduler="processes", num_workers=1), pytest.raises(SceneError):
        sent["counts"].compute()


def test_a_relative_path_holds_in_another_folder(ours, tmp_path, monkeypatch):
    monkeypatch.chdir(ours.parent)
    opened = open_zarr(Path(ours.name), chunks={})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    xr.testing.assert_equal(opened.compute(), bands().compute())


def test_images_and_masks_are_checked(ours):
    flipped(ours / "counts/c/0/0")
    flipped(ours / "cloud_mask/c/0/0")
    with pytest.raises(SceneError, match=r"c/0/0 of (counts|cloud_mask) is damaged"):
        open_image(ours).compute()
    with pytest.raises(SceneError, match="c/0/0 of cloud_mask is damaged"):
        open_mask(ours).compute()


def test_a_store_whose_list_lost_a_line_is_not_trusted(ours):
    log = JsonLines(find_manifest(ours))
    log.rewrite([record for record in log.read() if record.get("key") != "counts/c/0/0"])
    with pytest.raises(SceneError, match="c/0/0 of counts is not in the list"):
        open_zarr(ours)
    log.rewrite([record for record in log.read() if "grids" not in record])
    flipped(ours / "counts/c/1/1")
    with pytest.raises(SceneError, match="c/1/1 of counts is damaged"):
        open_zarr(ours, chunks={}).compute()


def test_a_store_that_was_changed_on_purpose_is_read_without_its_list(ours):
    with xr.open_zarr(ours, consolidated=False) as opened:
        changed = opened.compute() * 2
    changed.drop_encoding().to_zarr(ours, mode="a", consolidated=False)
    with pytest.raises(SceneError, match="on purpose, remove") as refused:
        open_zarr(ours, chunks={}).compute()
    assert str(find_manifest(ours)) in str(refused.value)
    find_manifest(ours).unlink()
    xr.testing.assert_equal(open_zarr(ours).compute(), changed)


def test_other_readers_take_a_lost_chunk_for_missing_values(ours):
    for name in ("counts", "kelvin"):
        (ours / name / "c/0/0").unlink()
    with xr.open_zarr(ours) as opened:
        for name in ("counts", "kelvin"):
            assert np.isnan(opened[name][:3, :4]).all()
            assert opened[name][3:].notnull().all()


@pytest.mark.parametrize("store", sorted(GOLDEN.glob("*/*.zarr")), ids=lambda path: path.name)
def test_stores_of_earlier_versions_are_read_and_checked(tmp_path, store):
    with xr.open_zarr(store, consolidated=False, decode_coords="all") as expected:
        xr.testing.assert_identical(open_map(store).compute(), expected.compute())
    copy = shutil.copytree(store, tmp_path / store.name)
    flipped(min(file for file in copy.glob("cloud_mask/c/**/*") if file.is_file()))
    with pytest.raises(SceneError, match="of cloud_mask is damaged"):
        open_map(copy).compute()


# Stores of other programs


def test_a_chunk_that_was_never_written_has_fill_values(foreign):
    file, _ = chunk_of(foreign, "00")
    file.unlink()
    assert find_manifest(foreign) is None
    assert not list(foreign.rglob(MANIFEST_NAME))
    xr.testing.assert_equal(
        open_zarr(foreign).compute(), xr.open_zarr(foreign, consolidated=False).compute()
    )


def test_a_chunk_that_vanishes_after_opening_is_an_error(foreign):
    opened = open_zarr(foreign, chunks={})
    file, name = chunk_of(foreign, "01")
    file.unlink()
    with pytest.raises(SceneError, match=f"chunk {name} of counts is missing"):
        opened["counts"].compute()


@pytest.mark.parametrize("index", [slice(None), [0, 4], 5], ids=["all", "some rows", "one row"])
def test_a_chunk_that_cannot_be_decoded_is_named(foreign, index):
    file, name = chunk_of(foreign, "11")
    file.write_bytes(file.read_bytes()[:9])
    with pytest.raises(SceneError, match=f"chunk {name} of counts cannot be decoded") as failed:
        open_zarr(foreign)["counts"][index].compute()
    assert str(file) in str(failed.value)


@pytest.mark.parametrize(
    "bytes_left", [0, 15, -1, None], ids=["none", "header", "one less", "more"]
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_of_blosc_is_as_long_as_it_says(tmp_path, zarr_format, bytes_left):
    """Blosc reads on beyond the end of one that was cut, and now and then finds the rest there."""
    store, blosc = tmp_path / "foreign.zarr", [zarr.codecs.BloscCodec(), numcodecs.Blosc()]
    encoding = {"counts": {"compressors": blosc[zarr_format == 2]}}
    bands().to_zarr(store, zarr_format=zarr_format, consolidated=False, encoding=encoding)
    xr.testing.assert_equal(open_zarr(store).compute(), bands().compute())
    file, name = chunk_of(store, "10")
    content = file.read_bytes()
    file.write_bytes(content + b"0" if bytes_left is None else content[:bytes_left])
    opened = pickle.loads(pickle.dumps(open_zarr(store, chunks={})))
    with pytest.raises(SceneError, match=f"chunk {name} of counts cannot be decoded"):
        opened.compute()


def test_a_file_that_may_not_be_read_is_named(foreign, monkeypatch):
    opened = open_zarr(foreign, chunks={})
    file, name = chunk_of(foreign, "10")
    read_bytes = Path.read_bytes

    def fail(path):
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(SceneError, match=f"chunk {name} of counts cannot be read"):
        opened["counts"].compute()


def test_metadata_that_are_torn_are_an_error(foreign):
    for file in [*foreign.glob("counts/zarr.json"), *foreign.glob("counts/.zarray")]:
        truncated(file)
    with pytest.raises(SceneError, match="cannot be read"):
        open_zarr(foreign)
