"""GeoTIFF: rasterio reads the values, positions and meanings that were written."""

import itertools
import os
from xml.etree import ElementTree

import dask
import dask.array as da
import numpy as np
import pyproj
import pytest
import rasterio
import rasterio.shutil
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from rasterio.errors import NotGeoreferencedWarning

from undulatus.errors import SceneError
from undulatus.scenes.files import geotiff
from undulatus.scenes.files.geotiff import _checksum, _windows
from undulatus.scenes.files.writing import write_dataset

GEOSTATIONARY = pyproj.CRS.from_dict(
    {"proj": "geos", "h": 35785831, "lon_0": 0, "a": 6378169, "rf": 295.488065897014}
)


def a_map(height=700, width=600, chunks=(256, 200), crs=GEOSTATIONARY):
    """Return a map like that of a scene, over part of the disk, in metres."""
    rng = np.random.default_rng(0)
    probability = rng.random((height, width)).astype(np.float32)
    probability[3:9, 5] = np.nan
    mask = np.where(np.isnan(probability), 255, probability > 0.5).astype(np.uint8)
    quality = rng.integers(0, 256, (height, width)).astype(np.uint8)
    layers = {
        "cloud_mask": (
            mask,
            {
                "_FillValue": np.uint8(255),
                "flag_values": np.array([0, 1], np.uint8),
                "flag_meanings": "clear cloud",
                "long_name": "cloud mask",
            },
        ),
        "cloud_probability": (probability, {"units": "1", "long_name": "probability of cloud"}),
        "quality_flag": (quality, {"long_name": "counts"}),
    }
    found = xr.Dataset(
        {
            name: (("y", "x"), da.from_array(values, chunks=chunks), attrs)
            for name, (values, attrs) in layers.items()
        },
        coords={
            "y": 5_000_000.0 - 3000.0 * np.arange(height),
            "x": -1_000_000.0 + 3000.0 * np.arange(width),
            "time": np.datetime64("2010-06-01T12:15", "ns"),
        },
        attrs={"title": "a map", "history": "one line\nanother", "area": object()},
    )
    if crs is not None:
        found = found.assign_coords(spatial_ref=((), np.int32(0), crs.to_cf()))
        for array in found.data_vars.values():
            array.attrs["grid_mapping"] = "spatial_ref"
    return found


def bands_of(dataset):
    """Return the bands to expect: floats, with NaN where values are missing."""
    bands = [dataset[name].values.astype(np.float32) for name in dataset.data_vars]
    bands[0][bands[0] == 255] = np.nan
    return np.stack(bands)


def test_rasterio_reads_the_values_positions_and_meanings_that_were_written(tmp_path):
    made = a_map()
    write_dataset(made, tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as found:
        np.testing.assert_array_equal(found.read(), bands_of(made))
        assert found.dtypes == ("float32",) * 3
        assert np.isnan(found.nodatavals).all()
        assert found.descriptions == ("cloud_mask", "cloud_probability", "quality_flag")
        assert found.units[1] == "1"
        assert pyproj.CRS(found.crs.to_wkt()) == GEOSTATIONARY
        assert found.xy(0, 0) == (-1_000_000.0, 5_000_000.0)
        assert found.xy(699, 599) == (made["x"].values[-1], made["y"].values[-1])
        mask, tags = found.tags(1), found.tags()
    assert mask["flag_values"] == "0 1"
    assert mask["flag_meanings"] == "clear cloud"
    assert mask["long_name"] == "cloud mask"
    assert tags["title"] == "a map"
    assert tags["history"] == "one line\nanother"
    assert tags["time"] == "2010-06-01T12:15:00"
    assert tags["TIFFTAG_DATETIME"] == "2010:06:01 12:15:00"
    assert "area" not in tags
    assert os.listdir(tmp_path) == ["map.tif"]


def test_the_file_is_cloud_optimised(tmp_path):
    made = a_map(height=1100, width=1030)
    write_dataset(made, tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as found:
        structure = found.tags(ns="IMAGE_STRUCTURE")
        assert structure["LAYOUT"] == "COG"
        assert structure["COMPRESSION"] == "DEFLATE"
        assert found.block_shapes == [(512, 512)] * 3
        assert [found.overviews(band) for band in (1, 2, 3)] == [[2, 4]] * 3
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as overview:
        codes = overview.read(1)
    # Nearest pixels: no values between the codes.
    assert set(np.unique(codes[~np.isnan(codes)])) == {0.0, 1.0}


@pytest.mark.parametrize(("up", "left"), [(True, False), (False, True), (True, True)])
def test_north_is_up_and_west_is_left_whatever_the_order_of_coordinates(tmp_path, up, left):
    made = a_map(60, 50, (20, 30))
    turned = made.isel(
        y=slice(None, None, -1 if up else 1), x=slice(None, None, -1 if left else 1)
    )
    write_dataset(turned, tmp_path / "turned.tif")
    with rasterio.open(tmp_path / "turned.tif") as found:
        np.testing.assert_array_equal(found.read(), bands_of(made))
        assert found.transform.a > 0 > found.transform.e
        assert found.xy(0, 0) == (-1_000_000.0, 5_000_000.0)


def test_the_order_of_dimensions_and_a_single_time_make_no_difference(tmp_path):
    made = a_map(60, 50, (20, 30))
    write_dataset(made.expand_dims("time").transpose("x", "time", "y"), tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as found:
        np.testing.assert_array_equal(found.read(), bands_of(made))
        assert found.tags()["time"] == "2010-06-01T12:15:00"


def test_an_image_in_memory_and_a_single_pixel_can_be_written(tmp_path):
    made = a_map(600, 50, (20, 30)).load()
    write_dataset(made, tmp_path / "map.tif")
    write_dataset(made.isel(y=[1], x=[1]), tmp_path / "pixel.tif")
    with rasterio.open(tmp_path / "map.tif") as found:
        np.testing.assert_array_equal(found.read(), bands_of(made))
    with rasterio.open(tmp_path / "pixel.tif") as found:
        np.testing.assert_array_equal(found.read(), bands_of(made)[:, 1:2, 1:2])
        assert found.xy(0, 0) == (-997_000.0, 4_997_000.0)


def test_without_a_projection_pixels_are_placed_by_their_coordinates(tmp_path):
    write_dataset(a_map(60, 50, crs=None), tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as found:
        assert found.crs is None
        assert found.xy(0, 0) == (-1_000_000.0, 5_000_000.0)


def test_without_coordinates_pixels_are_numbered(tmp_path):
    made = a_map(60, 50, crs=None).drop_vars(["y", "x"])
    write_dataset(made, tmp_path / "map.tif")
    with pytest.warns(NotGeoreferencedWarning):
        found = rasterio.open(tmp_path / "map.tif")
    with found:
        assert found.transform.is_identity
        np.testing.assert_array_equal(found.read(), bands_of(made))


def test_every_block_is_computed_once_and_progress_counts_pixels(tmp_path):
    computed, reported = [], []

    def count(values, block_info=None):
        if block_info:
            computed.append(block_info[0]["chunk-location"])
        return values

    made = a_map(60, 50, (20, 30))
    probability = made["cloud_probability"].data.map_blocks(count, meta=np.empty((0, 0), "f4"))
    # Two layers from one computation, and one in other chunks.
    made["cloud_probability"].data = probability
    made["cloud_mask"].data = (probability > 0.5).astype(np.uint8)
    made["quality_flag"] = made["quality_flag"].chunk(y=30)
    write_dataset(made, tmp_path / "map.tif", lambda *counts: reported.append(counts))
    assert len(set(computed)) == len(computed) == 6
    assert reported[-1] == (3000, pytest.approx(3000 / 0.9))
    computed.clear()
    reported.clear()
    write_dataset(
        made.drop_vars("quality_flag"), tmp_path / "two.tif", lambda *n: reported.append(n)
    )
    assert len(set(computed)) == len(computed) == 6
    assert {1000, 2000, 3000} <= {done for done, _ in reported}
    assert reported == sorted(reported)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: xr.concat([m, m], "time"), r"one time, but the dataset has 2\. Choose one"),
        (lambda m: m.assign(level=("z", np.ones(2))), r"level is not an image \(y, x\).*'z': 2"),
        (lambda m: m.assign(ids=m["quality_flag"].astype(int)), "ids is of type int64"),
        (lambda m: m.assign(when=m["quality_flag"].astype("M8[ns]")), "when is of type datetime"),
        (lambda m: m.assign_coords(x=m["x"] ** 3), "coordinate x is not regular"),
        (lambda m: m.assign_coords(x=m["x"] * np.nan), "coordinate x is not regular"),
        (lambda m: m[["y", "x"]], "only coordinates"),
        (
            lambda m: m.assign_coords(spatial_ref=((), 0, {"grid_mapping_name": "flat"})),
            "spatial_ref describes, that is not a known one",
        ),
        (
            lambda m: m.assign_coords(spatial_ref=((), 0, {"crs_wkt": "nonsense"})),
            "spatial_ref describes, that is not a known one",
        ),
    ],
    ids=["times", "dims", "int64", "dates", "irregular", "nan", "empty", "mapping", "wkt"],
)
def test_what_a_geotiff_cannot_hold_is_refused_with_a_remedy(tmp_path, change, message):
    with pytest.raises(SceneError, match=message):
        write_dataset(change(a_map(60, 50)), tmp_path / "map.tif")
    assert not os.listdir(tmp_path)


def test_a_file_that_reads_back_differently_is_an_error(tmp_path, monkeypatch):
    copy = geotiff.rasterio.shutil.copy

    def careless(tiles, result, **options):
        with rasterio.open(tiles, "r+") as opened:
            pixel = opened.read(2, window=((50, 51), (40, 41)))
            opened.write(pixel + 1, 2, window=((50, 51), (40, 41)))
        copy(tiles, result, **options)

    monkeypatch.setattr(geotiff.rasterio.shutil, "copy", careless)
    with pytest.raises(SceneError, match="could not be written: it reads back differently"):
        write_dataset(a_map(60, 50), tmp_path / "map.tif")
    assert not os.listdir(tmp_path)


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".map.unfinished.scratch").mkdir()
    (tmp_path / ".map.unfinished.scratch" / "tiles.tif").write_text("half")
    with dask.config.set(scheduler="synchronous"):
        write_dataset(a_map(60, 50), tmp_path / "map.tif")
    assert os.listdir(tmp_path) == ["map.tif"]


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_checksums_of_windows_add_up_and_tell_any_change(seed, row, column):
    rng = np.random.default_rng(seed)
    band = rng.normal(size=(9, 10)).astype(np.float32)
    parts = [
        _checksum(np.ascontiguousarray(part), top, left)
        for top, rows in ((0, band[:row]), (row, band[row:]))
        for left, part in ((0, rows[:, :column]), (column, rows[:, column:]))
    ]
    whole = _checksum(band, 0, 0)
    assert sum(parts) % 2**64 == whole
    changed = band.copy()
    changed.view(np.uint32)[row, column] ^= 1 << int(rng.integers(32))
    swapped = band.copy()
    swapped[row, column], swapped[0, 0] = band[0, 0], band[row, column]
    assert whole not in (_checksum(changed, 0, 0), _checksum(swapped, 0, 0))


@pytest.mark.parametrize("workers", [1, 2])
def test_windows_hold_two_chunks_a_worker_and_each_chunk_once(workers):
    image = xr.Dataset({"a": (("y", "x"), da.zeros((5, 23), chunks=((2, 3), (5, 5, 5, 5, 3))))})
    image["b"] = ("y", "x"), da.zeros((5, 23), chunks=((2, 1, 2), 5))
    with dask.config.set(num_workers=workers):
        windows = _windows(image)
    width = 10 * workers
    edges = [*range(0, 23, width), 23]
    assert windows == [
        (slice(*rows), slice(*columns))
        for rows in ((0, 2), (2, 5))
        for columns in itertools.pairwise(edges)
    ]


# Classes, bits, and other formats of GDAL


def classes(**attrs):
    """Return a small map of three classes with bits of quality and a layer of floats."""
    rng = np.random.default_rng(3)
    codes = rng.choice(np.array([1, 2, 9, 255], np.uint8), (40, 50))
    legend = {
        "flag_values": np.array([1, 2, 9], np.uint8),
        "flag_meanings": "foret eau ville",
        "flag_colors": "#0072b2 #e69f00 #009e73",
        "class_names": '["forêt", "eau & <vase>", "ville"]',
    }
    grid = {"y": 5e6 - 10.0 * np.arange(40), "x": 4e5 + 10.0 * np.arange(50)}
    bits = rng.integers(0, 65_536, (40, 50)).astype(np.uint16)
    probability = rng.random((40, 50)).astype(np.float32)
    probability[codes == 255] = np.nan
    made = xr.Dataset(
        {
            "class": (("y", "x"), codes, legend | {"_FillValue": np.uint8(255)} | attrs),
            "class_probability": (("y", "x"), probability),
            "quality_flag": (("y", "x"), bits, {"flag_masks": np.array([1, 2], np.uint16)}),
        },
        coords=grid,
    )
    return made.rio.write_crs("EPSG:32632")


FORMATS = [".tif", ".gtif", ".img", ".dat"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_holds_classes_floats_and_bits_in_their_own_types(tmp_path, suffix):
    made = classes()
    write_dataset(made, tmp_path / f"map{suffix}")
    with rasterio.open(tmp_path / f"map{suffix}") as found:
        assert found.dtypes == ("uint8",)
        assert found.nodata == 255
        np.testing.assert_array_equal(found.read(1), made["class"])
        assert found.colormap(1)[9] == (0x00, 0x9E, 0x73, 255)
        assert found.tags(1)["flag_meanings"] == "foret eau ville"
        assert found.crs.to_epsg() == 32632
        assert found.xy(0, 0) == (4e5, 5e6)
    with rasterio.open(tmp_path / f"map_layers{suffix}") as found:
        assert found.descriptions == ("class_probability",)
        assert np.isnan(found.nodata)
        np.testing.assert_array_equal(found.read(1), made["class_probability"])
    with rasterio.open(tmp_path / f"map_quality_flag{suffix}") as found:
        # Bits survive: every value of 16 bits may be one, and none is nodata.
        assert found.dtypes == ("uint16",)
        assert found.nodata is None
        np.testing.assert_array_equal(found.read(1), made["quality_flag"])


@pytest.mark.parametrize("suffix", FORMATS)
def test_names_of_classes_are_where_gdal_and_qgis_look_for_them(tmp_path, suffix):
    write_dataset(classes(), tmp_path / f"map{suffix}")
    # A VRT has what GDAL knows of a file, wherever the format keeps it.
    rasterio.shutil.copy(tmp_path / f"map{suffix}", tmp_path / "all.vrt", driver="VRT")
    band = ElementTree.parse(tmp_path / "all.vrt").find("VRTRasterBand")
    names = [each.text or "" for each in band.find("CategoryNames")]
    assert [names[code] for code in (1, 2, 9)] == ["forêt", "eau & <vase>", "ville"]
    style = ElementTree.parse(tmp_path / "map.qml").getroot()
    entries = [entry.attrib for entry in style.iter("paletteEntry")]
    assert [(each["value"], each["color"], each["label"]) for each in entries] == [
        ("1", "#0072b2", "forêt"),
        ("2", "#e69f00", "eau & <vase>"),
        ("9", "#009e73", "ville"),
    ]
    assert style.find("pipe/rasterrenderer").attrib["type"] == "paletted"


def test_a_geotiff_has_an_attribute_table_of_its_classes(tmp_path):
    write_dataset(classes(), tmp_path / "map.tif")
    table = ElementTree.parse(tmp_path / "map.tif.aux.xml").find(".//GDALRasterAttributeTable")
    rows = [[cell.text for cell in row] for row in table.findall("Row")]
    assert rows[0] == ["1", "forêt", "0", "114", "178"]
    assert len(rows) == 3


def test_control_characters_in_names_do_not_spoil_the_files(tmp_path):
    write_dataset(classes(class_names='["a\\u0000b", "\\u001b[31m", "c"]'), tmp_path / "map.tif")
    style = ElementTree.parse(tmp_path / "map.qml").getroot()
    assert next(style.iter("paletteEntry")).attrib["label"] == "a b"


@pytest.mark.parametrize(
    "name", ["map.tif", "map_layers.tif", "map_quality_flag.tif", "map_cloud_mask.tif", "map.qml"]
)
def test_a_map_is_not_mixed_with_what_is_there_of_another(tmp_path, name):
    (tmp_path / name).write_text("someone's")
    with pytest.raises(SceneError, match=rf"{name} exists already"):
        write_dataset(classes(), tmp_path / "map.tif")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    write_dataset(classes()[["class"]], tmp_path / "map.tif", overwrite=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"map.tif", "map.tif.aux.xml", "map.qml"}
    with rasterio.open(tmp_path / "map.tif") as found:
        np.testing.assert_array_equal(found.read(1), classes()["class"])


def test_two_formats_may_share_a_style(tmp_path):
    write_dataset(classes(), tmp_path / "map.tif")
    write_dataset(classes(), tmp_path / "map.img")
    with pytest.raises(SceneError, match=r"map\.qml exists already"):
        write_dataset(classes(flag_colors="#000000 #111111 #222222"), tmp_path / "map.dat")


def test_what_gdal_kept_of_an_earlier_file_is_not_read_with_the_new_one(tmp_path):
    (tmp_path / "map_layers.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
    (tmp_path / "map_layers.tif.msk").write_text("a mask")
    write_dataset(classes(), tmp_path / "map.tif")
    assert not (tmp_path / "map_layers.tif.aux.xml").exists()
    assert not (tmp_path / "map_layers.tif.msk").exists()


def test_what_there_was_stays_when_an_overwrite_fails(tmp_path, monkeypatch):
    write_dataset(classes(), tmp_path / "map.tif")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(geotiff.rasterio.shutil, "copy", fail)
    with pytest.raises(SceneError, match="could not be written"):
        write_dataset(classes(), tmp_path / "map.tif", overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
