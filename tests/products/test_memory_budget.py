"""Memory limits: sizes as users write them, and blocks that fit."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from undulatus.errors import InputError, SceneError
from undulatus.products.memory_budget import (
    PROCESS_BYTES,
    _block_bytes,
    parse_size,
    plan_blocks,
    within_memory,
)

GB = 10**9


def image(chunk, size=4096, bands=4):
    lazy = da.zeros((size, size), chunks=chunk, dtype=np.uint16)
    return xr.Dataset({f"B{i}": (("y", "x"), lazy) for i in range(bands)})


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * GB), ("512 MiB", 2**29), ("1.5GB", 3 * GB // 2), ("1e9", GB)]
)
def test_sizes_are_parsed_as_people_write_them(text, size):
    assert parse_size(text) == size


def test_bands_of_an_image_in_one_array_are_of_the_same_pixels():
    lazy = da.zeros((13, 1024, 1024), chunks=(13, 512, 512), dtype=np.float32)
    stacked = xr.Dataset({"image": (("band", "y", "x"), lazy)})
    apart = xr.Dataset({f"B{i}": (("y", "x"), lazy[i]) for i in range(13)})
    sizes = {"band": 13, "y": 512, "x": 512}
    assert _block_bytes(stacked, sizes) == _block_bytes(apart, sizes)
    assert plan_blocks(stacked, parse_size("600MB")).workers >= 1


@pytest.mark.parametrize("text", ["much", "-1GB", "0", "1e999GB", "inf", "", " ", "GB"])
def test_text_that_is_not_a_size_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"not a size.*2GB"):
        parse_size(text)


@given(
    st.sampled_from([64, 100, 512, 1000, 2048]),
    st.integers(700 * 10**6, 8 * GB),
    st.integers(1, 20),
)
def test_blocks_fit_into_memory_and_are_made_of_whole_chunks(chunk, memory_limit, bands):
    dataset = image(chunk, bands=bands)
    try:
        plan = plan_blocks(dataset, memory_limit)
    except SceneError:
        assert PROCESS_BYTES + _block_bytes(dataset, {"y": chunk, "x": chunk}) > memory_limit
        return
    sizes = {dim: max(s) for dim, s in plan.dataset.chunksizes.items()}
    assert PROCESS_BYTES + plan.workers * _block_bytes(dataset, sizes) <= memory_limit
    for dim, size in sizes.items():
        assert size % chunk == 0 or size == dataset.sizes[dim]


def test_a_chunk_that_is_too_large_is_refused_with_the_memory_it_needs():
    with pytest.raises(SceneError, match=r"too little.*smaller chunks"):
        plan_blocks(image(4096, bands=13), 600 * 10**6)


def test_fewer_blocks_run_at_a_time_if_memory_is_short():
    dataset = image(2048, bands=4)
    least = _block_bytes(dataset, {"y": 2048, "x": 2048})
    with dask.config.set(num_workers=4):
        assert plan_blocks(dataset, PROCESS_BYTES + 4 * least).workers == 4
        assert plan_blocks(dataset, PROCESS_BYTES + 2 * least).workers == 2
        assert plan_blocks(dataset, PROCESS_BYTES + least).workers == 1
        with within_memory(str(PROCESS_BYTES + 2 * least), dataset):
            assert dask.config.get("num_workers") == 2
        assert dask.config.get("num_workers") == 4


def test_blocks_are_smaller_or_fewer_if_a_map_has_many_classes():
    dataset = image(512, bands=2)
    memory_limit = PROCESS_BYTES + 10**9

    def pixels_at_once(n_classes):
        plan = plan_blocks(dataset, memory_limit, n_classes)
        return plan.workers * np.prod([max(sizes) for sizes in plan.dataset.chunksizes.values()])

    assert pixels_at_once(100) < pixels_at_once(2)


def test_without_a_limit_the_dataset_stays_as_it_is():
    dataset = image(512)
    with within_memory(None, dataset) as same:
        assert same is dataset
