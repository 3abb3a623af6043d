"""How matrices lie in memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.storage.kinds import Misfit
from undulatus.storage.memory import ORDERS, in_order, order_of

VALUES = np.arange(12.0).reshape(4, 3)
LAID = {
    "C": VALUES,
    "F": np.asfortranarray(VALUES),
    "-C": VALUES[::-1].copy()[::-1],
    "-F": np.asfortranarray(VALUES[::-1])[::-1],
}


def test_every_order_is_told_from_the_others():
    assert {order: order_of(array) for order, array in LAID.items()} == {o: o for o in ORDERS}


def test_a_part_of_a_matrix_has_the_order_of_the_whole():
    for order, array in LAID.items():
        assert order_of(array[:2, :2]) == order


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("given", LAID.values(), ids=LAID)
def test_values_stay_while_strides_become_those_of_the_order(order, given):
    found = in_order(given, order)
    assert_array_equal(found, VALUES)
    assert found.strides == LAID[order].strides


@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(ORDERS))
def test_products_with_a_matrix_laid_as_another_are_the_same_bits(rows, columns, order):
    rng = np.random.default_rng(rows)
    matrix = in_order(rng.normal(size=(rows, columns)), order)
    again = in_order(np.ascontiguousarray(matrix), order_of(matrix))
    x = rng.normal(size=(7, columns))
    assert_array_equal(x @ again.T, x @ matrix.T)


@pytest.mark.parametrize("order", ["", "c", "--C", "A", None, 7])
def test_an_order_that_is_unknown_is_named(order):
    with pytest.raises(Misfit, match=repr(order)):
        in_order(VALUES, order)
