"""Sentinel-2 products: reflectances on one scale and one grid, whatever the baseline."""

import numpy as np
import pytest
import rasterio
from numpy.testing import assert_allclose, assert_array_equal
from rasterio.transform import from_origin

from undulatus.errors import SceneError
from undulatus.scenes import open_data, open_image
from undulatus.scenes.files.images import band_names
from undulatus.scenes.files.sentinel2 import BANDS

SIZE = 120  # Pixels of 10 m along a side: 60 of 20 m, 20 of 60 m.
RESOLUTION = dict.fromkeys(("B05", "B06", "B07", "B8A", "B11", "B12"), 20) | dict.fromkeys(
    ("B01", "B09", "B10"), 60
)


def write_product(folder, level, baseline, offset, reflectance):
    """Write a SAFE folder as the space agency does: metadata, and a JPEG 2000 file a band."""
    tag, kind = ("", "RADIO") if level == "1C" else ("BOA_", "BOA")
    offsets = "".join(
        f'<{kind}_ADD_OFFSET band_id="{i}">{offset}</{kind}_ADD_OFFSET>' for i in range(13)
    )
    images = folder / "GRANULE" / "L_T32" / "IMG_DATA"
    images.mkdir(parents=True)
    (folder / f"MTD_MSIL{level}.xml").write_text(
        f"<root><PROCESSING_BASELINE>{baseline}</PROCESSING_BASELINE>"
        f"<SPACECRAFT_NAME>Sentinel-2A</SPACECRAFT_NAME>"
        f"<{tag}QUANTIFICATION_VALUE>10000</{tag}QUANTIFICATION_VALUE>"
        f"{offsets if offset else ''}</root>"
    )
    for number, name in enumerate(BANDS):
        if level == "2A" and name == "B10":
            continue
        pixel = RESOLUTION.get(name, 10)
        size = SIZE * 10 // pixel
        rows = np.arange(size)[:, None] * pixel / 10 + np.arange(size) * 0.001
        values = np.rint(10_000 * (reflectance + 0.001 * number + 0.0001 * rows)) - offset
        values[-1, -1] = 0
        where = images if level == "1C" else images / f"R{pixel}m"
        where.mkdir(exist_ok=True)
        ending = "" if level == "1C" else f"_{pixel}m"
        with rasterio.open(
            where / f"T32TMT_20240101T101010_{name}{ending}.jp2", "w", driver="JP2OpenJPEG",
            height=size, width=size, count=1, dtype="uint16", crs="EPSG:32632",
            transform=from_origin(500_000, 5_200_000, pixel, pixel), QUALITY=100, REVERSIBLE="YES",
        ) as file:  # fmt: skip
            file.write(values.astype(np.uint16), 1)
    return folder


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "S2A_OLD.SAFE"
    return write_product(folder, "1C", "02.14", 0, 0.2)


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "S2A_NEW.SAFE"
    return write_product(folder, "1C", "05.09", -1000, 0.2)


def test_products_of_all_baselines_have_the_same_reflectances(old, new):
    first, second = open_image(old), open_image(new)
    assert band_names(first) == list(BANDS)
    assert first.shape == (13, SIZE, SIZE)
    assert_allclose(first.values, second.values, atol=1e-6)
    assert float(first.sel(band="B02")[0, 0]) == pytest.approx(0.201, abs=1e-6)


def test_coarse_bands_are_repeated_and_missing_pixels_are_nan(new):
    image = open_image(new)
    coarse = image.sel(band="B05").values
    assert_array_equal(coarse[0::2, 0::2], coarse[1::2, 1::2])
    assert np.isnan(coarse[-2:, -2:]).all()
    assert np.isnan(image.sel(band="B01").values[-6:, -6:]).all()
    assert np.isfinite(coarse[:-2]).all()


def test_level_2_has_its_finest_bands_and_no_cirrus(tmp_path):
    folder = write_product(tmp_path / "S2B_L2.SAFE", "2A", "05.10", -1000, 0.1)
    image = open_image(folder)
    assert band_names(image) == [name for name in BANDS if name != "B10"]
    assert float(image.sel(band="B08")[0, 0]) == pytest.approx(0.107, abs=1e-6)
    assert "image" in open_data(folder)


def test_a_product_that_does_not_say_its_offset_is_refused(tmp_path):
    folder = write_product(tmp_path / "S2A_X.SAFE", "1C", "05.09", 0, 0.2)
    with pytest.raises(SceneError, match="has an offset, but does not say which"):
        open_image(folder)


def test_a_product_without_its_blue_band_is_refused(tmp_path):
    folder = write_product(tmp_path / "S2A_Y.SAFE", "1C", "02.14", 0, 0.2)
    next(folder.glob("GRANULE/*/IMG_DATA/*_B02.jp2")).unlink()
    with pytest.raises(SceneError, match="lacks the image of band B02"):
        open_image(folder)
