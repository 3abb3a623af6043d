import numpy as np
import pytest
from PIL import Image

from undulatus.products.browse.sprites import Sheet, SpriteWriter
from undulatus.products.panels import panels_of, read, scales_for
from undulatus.products.views import pair


@pytest.mark.parametrize("tile", [(20, 26), (200, 200), (3, 100), (100, 3)])
@pytest.mark.parametrize("count", [1, 2, 95, 96])
def test_tiles_lie_inside_the_sheet_and_apart(tile, count):
    sheet = Sheet(tile, count)
    covered = np.zeros(sheet.size, int)
    for index in range(count):
        covered[sheet.place(index)] += 1
        assert covered[sheet.place(index)].shape == tile
    assert covered.max() == 1
    assert covered.sum() == count * tile[0] * tile[1]


def test_sprites_have_exactly_the_colours_of_the_panels(tmp_path, seen, maps):
    view = pair(seen, maps)
    chosen = np.arange(80, 92)  # Across midnight: the first day lacks ten.
    scales = scales_for(view, chosen)
    acquisitions = list(read(view, chosen, scales))
    sheet = Sheet(view.shape, 8)
    dates = [str(time)[:10] for time in view.times[chosen]]
    assert len(set(dates)) == 2
    with SpriteWriter(tmp_path, sheet) as sprites:
        for date, acquisition in zip(dates, acquisitions, strict=True):
            sprites.add(date, acquisition)
    for date in set(dates):
        inside = [a for a, d in zip(acquisitions, dates, strict=True) if d == date]
        for name in panels_of(view):
            with Image.open(tmp_path / f"{date}-{name}.webp") as file:
                image = np.asarray(file.convert("RGBA"))
            for index, acquisition in enumerate(inside):
                found, expected = image[sheet.place(index)], acquisition.images[name]
                there = expected[..., 3] > 0
                assert np.array_equal(found[..., 3] > 0, there)
                assert np.array_equal(found[there], expected[there])


def test_a_sheet_that_cannot_be_written_is_an_error(tmp_path, seen, maps):
    view = pair(seen, maps)
    chosen = np.arange(2)
    with (  # noqa: PT012
        pytest.raises(OSError, match="nowhere"),
        SpriteWriter(tmp_path / "nowhere", Sheet(view.shape, 2)) as sprites,
    ):
        for acquisition in read(view, chosen, scales_for(view, chosen)):
            sprites.add("2010-01-01", acquisition)
