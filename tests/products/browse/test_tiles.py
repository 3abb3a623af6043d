"""Files of tiles: what a page unpacks is what was packed."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from undulatus.products.browse.pyramid import TILE, Pyramid
from undulatus.products.browse.tiles import (
    MISSING_NUMBER,
    SpectraWriter,
    TileWriter,
    as_numbers,
    pack,
)
from undulatus.scenes.files.windows import raster_bands


def unpack(text, shape, dtype):
    """Undo ``pack`` number by number, as the page does."""
    data = zlib.decompress(base64.b64decode(text))
    size = np.dtype(dtype).itemsize
    count = len(data) // size
    values = []
    for at in range(count):
        folded = sum(data[part * count + at] << (8 * part) for part in range(size))
        step = (folded >> 1) ^ -(folded & 1)
        before = values[-1] if at % shape[-1] else 0
        values.append((before + step) % 2 ** (8 * size))
    return np.array(values, dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_numbers_of_all_sizes_survive_packing(dtype):
    largest = np.iinfo(dtype).max
    values = np.random.default_rng(0).integers(0, largest + 1, (3, 7, 11)).astype(dtype)
    values[0, 0, :4] = [0, largest, 0, largest]
    assert_array_equal(unpack(pack(values), values.shape, dtype), values)


def test_whole_numbers_are_exact_and_fill_values_missing():
    values = np.array([[7, 0, 60_000], [65_535, 1, 9]], np.uint16)
    numbers, low, step = as_numbers(values, 0.0)
    known = values != 0
    assert_array_equal(low + step * numbers[known], values[known])
    assert_array_equal(numbers == MISSING_NUMBER, ~known)


@pytest.mark.parametrize("fill", [np.nan, -999.0])
def test_other_values_are_right_to_half_a_step(fill):
    values = np.random.default_rng(0).normal(0.2, 3.0, (5, 9)).astype(np.float32)
    values[1, 2], values[3, 3] = fill, np.nan
    numbers, low, step = as_numbers(values, fill)
    known = np.isfinite(values) & (values != fill)
    # Half a step, and the rounding of the sum in double precision.
    assert np.abs(low + step * numbers[known] - values[known]).max() <= 0.5 * step * (1 + 1e-9)
    assert_array_equal(numbers == MISSING_NUMBER, ~known)
    assert_allclose(step, np.ptp(values[known]) / 65_534, rtol=1e-6)


def test_bands_that_are_constant_or_missing_everywhere_are_kept():
    numbers, low, step = as_numbers(np.full((2, 2), 0.3), np.nan)
    assert_allclose(low + step * numbers, 0.3, rtol=1e-12)
    assert (as_numbers(np.full((2, 2), np.nan), np.nan)[0] == MISSING_NUMBER).all()
    wide = np.array([[-2_000_000_000, 2_000_000_000]], np.int64)
    numbers, low, step = as_numbers(wide, np.nan)
    assert_allclose(low + step * numbers, wide, rtol=1e-12)


def test_a_tile_is_a_script_of_values_and_an_image_that_is_transparent_where_missing(tmp_path):
    writer = TileWriter(tmp_path, 2)
    writer.make_folders(Pyramid((TILE, TILE)))
    rng = np.random.default_rng(0)
    planes = np.repeat(rng.integers(0, 255, (5, 1, 1)), TILE * TILE, axis=-1).astype(np.uint8)
    planes = planes.reshape(5, TILE, TILE)
    planes[:, :8] = 255
    writer.write((0, 0, 0), planes)
    text = (tmp_path / "0" / "0_0.js").read_text()
    key, packed = re.fullmatch(r'undulatusTile\("(.*)","(.*)"\);\n', text).groups()
    assert key == "0/0_0"
    assert_array_equal(unpack(packed, (2, TILE, TILE), np.uint8), planes[:2])
    with Image.open(tmp_path / "0" / "0_0.webp") as file:
        image = np.asarray(file.convert("RGBA"))
    assert (image[:8, :, 3] == 0).all()
    assert (image[8:, :, 3] == 255).all()
    # WebP is lossy, and 254 is shown as 255.
    assert np.abs(image[20, 20, :3].astype(int) - planes[2:, 20, 20]).max() <= 4


@pytest.mark.parametrize("step", [1, 4])
def test_spectra_are_those_of_the_image_with_its_scale_and_offset(image, tmp_path, step):
    bands = raster_bands(image)
    rows, columns = slice(256, 300), slice(1024, 1300)
    values = bands.read(rows, columns)
    SpectraWriter(tmp_path, bands, step).write(rows, columns, values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1_4.js", "1_5.js"]
    text = (tmp_path / "1_5.js").read_text()
    pattern = r'undulatusSpectra\("1_5",(\[.*?\]),(\[.*?\]),"(.*)"\);\n'
    lows, steps, packed = re.fullmatch(pattern, text).groups()
    expected = values[:, ::step, 256::step] * 1e-4 - 0.1
    numbers = unpack(packed, expected.shape, np.uint16)
    lows, steps = (np.array(json.loads(each))[:, None, None] for each in (lows, steps))
    assert_allclose(lows + steps * numbers, expected, rtol=1e-12, atol=1e-14)
