"""The files of pixels: what is read back from them is what was written."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from undulatus.products.browse.sprites import (
    MISSING_BYTE,
    SeriesWriter,
    Sheet,
    SpriteWriter,
    as_bytes,
)
from undulatus.products.panels import panel_names, read_acquisitions, scales_for
from undulatus.products.views import view_scene

probabilities = st.floats(0.0, 1.0) | st.just(np.nan)


@given(st.lists(probabilities, min_size=1))
def test_bytes_keep_probabilities_to_half_a_level_and_mark_missing_ones(values):
    values = np.array(values)
    coded = as_bytes(values)
    missing = np.isnan(values)
    assert np.array_equal(coded == MISSING_BYTE, missing)
    # Rounded to the nearest of 255 levels; 1e-12 for rounding in double precision.
    assert np.all(np.abs(coded / 254 - values)[~missing] <= 0.5 / 254 + 1e-12)


def test_a_row_holds_the_probabilities_of_its_pixels_in_all_pieces(tmp_path):
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=(7, 3, 5))
    probability[2, 1, 4] = np.nan
    with SeriesWriter(tmp_path, 3) as series:
        series.add(probability[:4])
        series.add(probability[4:])
    for row in range(3):
        text = (tmp_path / f"{row}.js").read_text()
        head, tail = f"undulatusRow({row},[\n", ",\n]);\n"
        assert text.startswith(head)
        assert text.endswith(tail)
        pieces = json.loads(f"[{text.removeprefix(head).removesuffix(tail)}]")
        found = np.concatenate([np.frombuffer(base64.b64decode(p), np.uint8) for p in pieces])
        assert np.array_equal(found.reshape(7, 5), as_bytes(probability[:, row]))


@pytest.mark.parametrize("tile", [(20, 26), (200, 200), (3, 100), (100, 3)])
@pytest.mark.parametrize("count", [1, 2, 95, 96])
def test_tiles_lie_inside_the_sheet_and_do_not_overlap(tile, count):
    sheet = Sheet(tile, count)
    covered = np.zeros(sheet.size, int)
    for index in range(count):
        covered[sheet.place(index)] += 1
        assert covered[sheet.place(index)].shape == tile
    assert covered.max() == 1
    assert covered.sum() == count * tile[0] * tile[1]


def test_sprites_have_exactly_the_colours_of_the_panels(tmp_path, scene, maps):
    view = view_scene(scene, maps)
    chosen = np.arange(80, 92)  # Across midnight: the first day has 86 acquisitions.
    scales = scales_for(view, chosen)
    acquisitions = list(read_acquisitions(view, chosen, scales))
    sheet = Sheet(view.shape, 8)
    dates = [str(time)[:10] for time in view.times[chosen]]
    assert len(set(dates)) == 2
    with SpriteWriter(tmp_path, sheet) as sprites:
        for date, acquisition in zip(dates, acquisitions, strict=True):
            sprites.add(date, acquisition)
    for date in set(dates):
        of_day = [a for a, d in zip(acquisitions, dates, strict=True) if d == date]
        for name in panel_names(view):
            with Image.open(tmp_path / f"{date}-{name}.webp") as file:
                image = np.asarray(file.convert("RGBA"))
            for index, acquisition in enumerate(of_day):
                found, expected = image[sheet.place(index)], acquisition.images[name]
                known = expected[..., 3] > 0
                assert np.array_equal(found[..., 3] > 0, known)
                assert np.array_equal(found[known], expected[known])


def test_a_sheet_that_cannot_be_written_is_an_error(tmp_path, scene, maps):
    view = view_scene(scene, maps)
    chosen = np.arange(2)
    with (  # noqa: PT012
        pytest.raises(OSError, match="nowhere"),
        SpriteWriter(tmp_path / "nowhere", Sheet(view.shape, 2)) as sprites,
    ):
        for acquisition in read_acquisitions(view, chosen, scales_for(view, chosen)):
            sprites.add("2010-01-01", acquisition)
