"""Coasts, held-out days, balanced samples and gathered pixels; cells and strata of spectra."""

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.sampling import (
    GUARD,
    N_PARTS,
    STRATA,
    balanced_sample,
    cell_names,
    gather_pixels,
    hold_out_cells,
    hold_out_days,
    near_coast,
    on_days,
    rows_by_stratum,
)

NAMES = ["R1", "BT9", "ndvi"]

seeds = st.integers(0, 2**32 - 1)


def some_features(shape, seed=0):
    values = np.random.default_rng(seed).normal(size=(*shape, 3)).astype(np.float32)
    dims = ("time", "y", "x")[-len(shape) :]
    coords = {dim: np.arange(size) * 10.0 for dim, size in zip(dims, shape, strict=True)}
    return xr.DataArray(values, dims=(*dims, "feature"), coords={**coords, "feature": NAMES})


# Coasts


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1))
)
@pytest.mark.parametrize("width", [0, 1, 2, 3])
def test_a_pixel_is_near_the_coast_if_the_other_surface_is_within_the_width(width, land):
    # Chebyshev's distance, the larger of rows and columns, to every pixel of the other surface.
    places = np.argwhere(np.ones_like(land))
    for y, x in places:
        other = [max(abs(y - row), abs(x - column)) for row, column in places
                 if land[row, column] != land[y, x]]  # fmt: skip
        assert near_coast(land, width)[y, x] == (min(other, default=np.inf) <= width)


def test_the_land_mask_may_be_a_data_array_of_any_dtype():
    land = np.array([[0, 0, 0, 1, 1]])
    expected = [[False, False, True, True, False]]
    for dtype in (bool, np.uint8, np.float32):
        assert near_coast(xr.DataArray(land.astype(dtype)), 1).tolist() == expected
    assert near_coast(xr.DataArray(land).chunk(), 1).tolist() == expected


def test_without_a_coast_no_pixel_is_near_it():
    assert not near_coast(np.ones((4, 5)), 2).any()
    assert not near_coast(np.zeros((4, 5)), 2).any()


# Days


def acquisitions(days, minutes=15):
    step = np.timedelta64(minutes, "m")
    return np.datetime64("2010-03-01T00:00", "ns") + np.arange(days * 1440 // minutes) * step


@settings(max_examples=15)
@given(st.integers(3, 40), st.floats(0.1, 0.9), seeds)
def test_whole_days_are_held_out_and_training_keeps_three_hours_away(days, share, seed):
    times = acquisitions(days, 60)
    count = round(share * days)
    if not 0 < count < days:
        with pytest.raises(SceneError, match="at least one day is needed on either side"):
            hold_out_days(times, share, seed)
        return
    training, held_out, names = hold_out_days(times, share, seed)
    day = times.astype("datetime64[D]")
    assert len(names) == len(set(names)) == count
    assert names == sorted(names)
    assert not (training & held_out).any()
    assert_array_equal(held_out, np.isin(day.astype(str), names))
    for index, moment in enumerate(times):
        # Time to the nearest held-out day.
        begins = [np.datetime64(name, "ns") for name in names]
        away = min(
            max(begin - moment, moment - (begin + np.timedelta64(1, "D")), np.timedelta64(0, "ns"))
            for begin in begins
        )
        assert training[index] == (away >= GUARD and not held_out[index])


def test_acquisitions_exactly_three_hours_from_a_held_out_day_are_kept():
    times = acquisitions(3)
    for seed in range(20):
        training, _, (day,) = hold_out_days(times, 0.34, seed)
        if day == "2010-03-02":
            break
    kept = times[training].astype("datetime64[m]")
    assert kept[kept < np.datetime64("2010-03-02")].max() == np.datetime64("2010-03-01T21:00")
    assert kept[kept > np.datetime64("2010-03-02")].min() == np.datetime64("2010-03-03T03:00")


def test_the_seed_determines_the_held_out_days():
    times = acquisitions(30)
    first, again, other = (hold_out_days(times, 0.3, seed) for seed in (1, 1, 2))
    assert first[2] == again[2] != other[2]
    assert_array_equal(first[0], again[0])


def test_the_order_and_type_of_times_do_not_matter():
    times = acquisitions(5)
    training, held_out, days = hold_out_days(times, 0.4, 0)
    reverse = hold_out_days(xr.DataArray(times[::-1], dims="time"), 0.4, 0)
    assert reverse[2] == days
    assert_array_equal(reverse[0][::-1], training)
    assert_array_equal(reverse[1][::-1], held_out)


def test_nothing_is_held_out_of_a_share_of_nothing():
    times = acquisitions(1)
    training, held_out, days = hold_out_days(times, 0.0, 0)
    assert training.all()
    assert not held_out.any()
    assert days == []
    spectra = synthetic_sounder(30, seed=0)
    held_out, cells = hold_out_cells(spectra, 0.0, 0)
    assert held_out.shape == (30,)
    assert not held_out.any()
    assert cells == []


@pytest.mark.parametrize("share", [0.01, 0.99, 1.0, 1.5, -0.5])
def test_a_share_that_leaves_one_side_empty_is_refused(share):
    with pytest.raises(SceneError, match=r"of 5 days .* another share"):
        hold_out_days(acquisitions(5), share, 0)


def test_acquisitions_are_selected_by_day():
    times = acquisitions(3)
    found = on_days(times, ["2010-03-02", "2011-01-01"])
    assert_array_equal(found, np.repeat([False, True, False], 96))
    assert not on_days(times, []).any()


# Samples


@given(seeds, st.integers(0, 60))
def test_a_sample_is_balanced_within_its_group_and_has_no_repetitions(seed, size):
    rng = np.random.default_rng(seed)
    label = rng.choice([0, 1, 255], size=(4, 5, 6), p=[0.5, 0.3, 0.2]).astype(np.uint8)
    groups = {"low": rng.random(label.shape) < 0.5, "high": rng.random(label.shape) < 0.3}
    drawn = balanced_sample(label, groups, size, np.random.default_rng(seed))
    assert list(drawn) == ["low", "high"]
    for name, allowed in groups.items():
        rows = drawn[name]
        rarer = min(np.count_nonzero(allowed & (label == value)) for value in (0, 1))
        assert len(rows) == 2 * min(size // 2, rarer)
        assert (np.diff(rows) > 0).all()
        assert allowed.ravel()[rows].all()
        assert np.bincount(label.ravel()[rows], minlength=2).tolist() == [len(rows) // 2] * 2


@given(seeds, st.integers(0, 60))
def test_of_many_classes_each_gives_its_part_or_all_that_it_has(seed, size):
    label = np.random.default_rng(seed).choice([3, 7, 9, 255], size=90, p=[0.5, 0.3, 0.1, 0.1])
    everywhere = {"all": np.ones(90, bool)}
    drawn = balanced_sample(label, everywhere, size, np.random.default_rng(seed), (3, 7, 9))
    rows = drawn["all"]
    assert (np.diff(rows) > 0).all()
    for value in (3, 7, 9):
        expected = min(size // 3, np.count_nonzero(label == value))
        assert np.count_nonzero(label[rows] == value) == expected


def test_a_group_with_one_class_gives_an_empty_sample():
    drawn = balanced_sample(
        np.array([1, 1, 255]), {"all": np.ones(3, bool)}, 10, np.random.default_rng(0)
    )
    assert drawn["all"].size == 0


def test_the_seed_determines_the_sample():
    label = np.tile([0, 1], 200)
    everywhere = {"all": np.ones(400, bool)}
    first, again, other = (
        balanced_sample(label, everywhere, 50, np.random.default_rng(seed))["all"]
        for seed in (0, 0, 1)
    )
    assert_array_equal(first, again)
    assert first.tolist() != other.tolist()


def test_every_pixel_of_a_class_is_equally_likely_to_be_drawn():
    label, rng = np.tile([0, 1], 10), np.random.default_rng(5)
    repeats = 4000
    counts = np.zeros(20)
    for _ in range(repeats):
        counts[balanced_sample(label, {"all": np.ones(20, bool)}, 10, rng)["all"]] += 1
    # Half of each class is drawn each time: five standard errors of a share of 1/2.
    assert abs(counts / repeats - 0.5).max() < 5.0 * 0.5 / np.sqrt(repeats)


# Gathering


@settings(max_examples=25)
@given(st.data(), seeds)
@pytest.mark.parametrize("shape", [(7, 3, 4), (6, 5)], ids=["(time, y, x)", "(y, x)"])
def test_gathered_pixels_do_not_depend_on_chunks(shape, data, seed):
    features = some_features(shape, seed)
    pixels = int(np.prod(shape))
    indices = np.array(sorted(data.draw(st.lists(st.integers(0, pixels - 1)))), dtype=np.int64)
    expected = features.values.reshape(-1, 3)[indices]
    assert_array_equal(gather_pixels(features, indices), expected)
    sizes = {dim: data.draw(st.integers(1, size)) for dim, size in features.sizes.items()}
    assert_array_equal(gather_pixels(features.chunk(sizes), indices), expected)


def recorded_features(made):
    """Make features of ten blocks of time; ``made`` lists the blocks that are computed."""

    def make(block, block_info=None):
        if block_info:
            made.append(block_info[0]["chunk-location"][0])
        return block

    features = some_features((20, 3, 4))
    blocks = da.from_array(features.values, chunks=(2, 3, 4, 3))
    return features.copy(data=blocks.map_blocks(make, meta=np.empty((0,) * 4, np.float32)))


def test_only_blocks_with_a_pixel_are_computed_and_each_once():
    made = []
    indices = np.array([0, 23, 100, 101, 239])  # 24 pixels a block
    gather_pixels(recorded_features(made), indices)
    assert sorted(made) == [0, 4, 9]


def test_for_no_pixels_no_block_is_computed():
    made = []
    assert gather_pixels(recorded_features(made), np.array([], dtype=int)).shape == (0, 3)
    assert not made


def test_progress_is_reported_to_the_end():
    reports = []
    gather_pixels(
        recorded_features([]), np.arange(240), lambda done, total: reports.append((done, total))
    )
    assert reports == [(8, 10), (10, 10)]


def test_blocks_may_be_computed_in_other_processes():
    # As on a cluster: what a task writes into its arguments is not seen here.
    def elsewhere(graph, keys, **options):
        return dask.get(cloudpickle.loads(cloudpickle.dumps(graph)), keys)

    features = some_features((4, 2, 3)).chunk(time=2)
    with dask.config.set(scheduler=elsewhere):
        found = gather_pixels(features, np.arange(24))
    assert_array_equal(found, features.values.reshape(-1, 3))


# Cells and strata


@pytest.fixture(scope="module")
def spectra():
    """2,000 synthetic spectra; their radiances stay lazy."""
    return synthetic_sounder(2000, seed=3)


def test_spectra_share_a_cell_if_and_only_if_they_agree_in_every_stratum(spectra):
    names = cell_names(spectra)
    codes = np.column_stack([spectra[name].values for name in STRATA])
    for cell in np.unique(names)[:20]:
        assert len(np.unique(codes[names == cell], axis=0)) == 1
    assert len(np.unique(names)) == len(np.unique(codes, axis=0))


@given(st.floats(0.05, 0.9), st.integers(0, 20))
def test_whole_cells_are_held_out_in_about_the_given_share(share, seed):
    spectra = synthetic_sounder(2000, seed=3)
    held_out, names = hold_out_cells(spectra, share, seed)
    own = cell_names(spectra)
    assert not set(own[~held_out]) & set(own[held_out])
    assert set(names) == set(own[held_out])
    largest = np.unique(own, return_counts=True)[1].max()
    assert abs(held_out.sum() - share * 2000) <= largest


def test_the_seed_determines_the_held_out_cells(spectra):
    assert hold_out_cells(spectra, 0.25, 1)[1] == hold_out_cells(spectra, 0.25, 1)[1]
    assert hold_out_cells(spectra, 0.25, 1)[1] != hold_out_cells(spectra, 0.25, 2)[1]


def test_spectra_without_strata_are_held_out_by_days(spectra):
    bare = spectra.drop_vars(STRATA)
    assert_array_equal(
        cell_names(bare), spectra["time"].values.astype("datetime64[D]").astype(str)
    )


def test_spectra_of_one_day_are_held_out_in_stretches_of_five_minutes():
    times = np.datetime64("2018-11-22T11:48", "ns") + np.arange(60) * np.timedelta64(20, "s")
    orbit = xr.Dataset({"day": ("sample", np.ones(60, np.uint8))}, {"time": ("sample", times)})
    names, counts = np.unique(cell_names(orbit), return_counts=True)
    # Day and night alone are no strata.
    assert names.tolist() == [
        f"2018-11-22 {at}" for at in ("11:45", "11:50", "11:55", "12:00", "12:05")
    ]
    assert counts.tolist() == [6, 15, 15, 15, 9]
    later = orbit.assign_coords(time=("sample", times + np.arange(60) * np.timedelta64(12, "h")))
    assert set(np.char.str_len(cell_names(later))) == {len("2018-11-22")}


def test_spectra_without_strata_or_time_are_held_out_in_runs(spectra):
    bare = spectra.drop_vars([*STRATA, "time"])
    names = cell_names(bare)
    assert len(np.unique(names)) == N_PARTS
    # Consecutive: each name occurs in one run.
    assert np.count_nonzero(names[1:] != names[:-1]) == N_PARTS - 1
    other = xr.Dataset(coords={"sample": np.arange(1999)})
    assert not set(cell_names(other)) & set(names)


def test_a_single_cell_cannot_be_held_out(spectra):
    same = spectra.isel(sample=np.flatnonzero(cell_names(spectra) == cell_names(spectra)[0]))
    with pytest.raises(SceneError, match="lie in one cell"):
        hold_out_cells(same, 0.25, 0)


def test_every_spectrum_has_one_named_value_of_each_stratum(spectra):
    found = rows_by_stratum(spectra)
    for stratum in STRATA:
        members = sum(rows.astype(int) for (name, _), rows in found.items() if name == stratum)
        assert_array_equal(members, 1)
    assert ("season", "winter") in found
    assert_array_equal(found["surface_type", "water"], spectra["surface_type"].values == 17)


def test_missing_codes_are_in_no_stratum_and_unnamed_codes_are_numbers(spectra):
    codes = spectra["season"].values.copy()
    codes[:10] = 255
    found = rows_by_stratum(xr.Dataset({"season": ("sample", codes)}))
    assert set(found) == {("season", str(code)) for code in (1, 2, 3, 4)}
    assert not any(rows[:10].any() for rows in found.values())
