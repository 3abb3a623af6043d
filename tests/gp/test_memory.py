"""Arrays used over and over: whose they are, how long, and that nobody else writes to them."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.gp.memory import give_back, recycling, scratch, spare


def in_another_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


# Scratch


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 4), (12,), (0, 4), (1, 1, 5)])
def test_scratch_has_the_shape_and_dtype_that_are_asked_for(shape, dtype):
    found = scratch("test", shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.flags.c_contiguous
    assert found.flags.aligned
    found[...] = 1.0


def test_scratch_of_one_name_is_one_array_and_of_another_another():
    one = scratch("test one", (4, 5), np.float64)
    again, smaller = scratch("test one", (4, 5), np.float64), scratch("test one", (3,), np.float32)
    other = scratch("test other", (4, 5), np.float64)
    assert np.shares_memory(one, again)
    assert np.shares_memory(one, smaller)
    assert not np.shares_memory(one, other)


def test_scratch_that_has_to_grow_leaves_the_smaller_array_alone():
    small = scratch("test growing", (2,), np.float64)
    small[...] = 7.0
    large = scratch("test growing", (2000,), np.float64)
    large[...] = 0.0
    assert_array_equal(small, [7.0, 7.0])


def test_every_thread_has_its_own_scratch():
    mine = scratch("test", (8,), np.float64)
    theirs = in_another_thread(lambda: scratch("test", (8,), np.float64))
    assert not np.shares_memory(mine, theirs)


# Spares


def test_what_was_given_back_is_handed_out_again():
    with recycling():
        first = spare((3, 3))
        give_back(first)
        assert spare((3, 3)) is first


def test_a_spare_has_one_owner():
    with recycling():
        one, other = spare((3, 3)), spare((3, 3))
        assert not np.shares_memory(one, other)
        give_back(one)
        assert spare((3, 3)) is one
        assert spare((3, 3)) is not one


def test_a_spare_is_of_the_shape_that_is_asked_for_and_in_double_precision():
    with recycling():
        give_back(spare((3, 3)))
        found = spare((9,))
        assert (found.shape, found.dtype) == ((9,), np.float64)


def test_a_spare_may_be_given_back_by_another_thread():
    with recycling():
        first = in_another_thread(lambda: spare((3, 3)))
        give_back(first)
        assert in_another_thread(lambda: spare((3, 3))) is first


def test_nothing_is_kept_unless_it_is_recycled():
    first = spare((3, 3))
    give_back(first)
    assert spare((3, 3)) is not first


def test_nothing_is_kept_for_longer_than_the_last_who_recycles():
    with recycling():
        with recycling():
            first = spare((3, 3))
            give_back(first)
        assert spare((3, 3)) is first
        give_back(first)
    assert spare((3, 3)) is not first


def test_an_error_ends_recycling_too():
    first = np.empty((3, 3))

    def fail():
        give_back(first)
        raise LookupError

    with pytest.raises(LookupError), recycling():
        fail()
    assert spare((3, 3)) is not first


def test_no_more_than_a_few_are_kept():
    with recycling():
        many = [spare((2, 2)) for _ in range(100)]
        for array in many:
            give_back(array)
        kept = [spare((2, 2)) for _ in range(100)]
        assert sum(any(one is other for other in many) for one in kept) <= 16
