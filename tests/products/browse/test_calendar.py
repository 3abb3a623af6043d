import numpy as np
import pytest

from undulatus.products.browse.calendar import make_calendar


def times(*, start="2010-01-01", count, minutes):
    return np.datetime64(start, "s") + np.arange(count) * np.timedelta64(minutes, "m")


@pytest.mark.parametrize(("minutes", "steps"), [(15, 96), (5, 288), (60, 24), (1440, 1)])
def test_a_day_has_as_many_columns_as_steps(minutes, steps):
    calendar = make_calendar(times(count=3 * steps, minutes=minutes))
    assert calendar.step == 60 * minutes
    assert calendar.shape == (3, steps)
    table = calendar.table(np.arange(3.0 * steps))
    assert np.array_equal(table.ravel(), np.arange(3.0 * steps))


def test_missing_acquisitions_leave_their_cells_empty():
    whole = times(count=192, minutes=15)
    kept = np.delete(np.arange(192), [5, 6, 100])
    table = make_calendar(whole[kept]).table(np.ones(len(kept)))
    assert np.array_equal(np.flatnonzero(np.isnan(table)), [5, 6, 100])


def test_a_day_without_acquisitions_is_an_empty_row():
    whole = times(count=3 * 96, minutes=15)
    table = make_calendar(np.r_[whole[:96], whole[192:]]).table(np.ones(192))
    assert np.isnan(table[1]).all()
    assert (table[[0, 2]] == 1.0).all()


@pytest.mark.parametrize("offset", [0, 7, 763, 899])
def test_times_that_waver_stay_in_their_columns(offset):
    rng = np.random.default_rng(0)
    # Midnight is no border to cross: days begin with the first acquisition after it.
    waver = rng.integers(0 if offset == 0 else -5, 1 if offset == 899 else 6, 192)
    seconds = np.datetime64("2010-01-01", "s") + 900 * np.arange(192) + offset + waver
    calendar = make_calendar(seconds)
    assert calendar.step == 900
    assert len({*zip(calendar.day.tolist(), calendar.slot.tolist(), strict=True)}) == 192


def test_one_acquisition_has_a_table_of_its_own():
    calendar = make_calendar(np.array(["2010-07-14T12:07"], "datetime64[ns]"))
    assert calendar.shape == (1, 96)
    assert np.isfinite(calendar.table(np.ones(1))).sum() == 1
    assert calendar.dates == ["2010-07-14"]
