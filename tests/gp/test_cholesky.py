"""Products with a triangle, factors and inverses: any layout, and other threads go on."""

import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.cholesky import (
    factorise_in_place,
    invert_from_factor,
    invert_triangle,
    multiply_by_triangle,
)

each_precision = pytest.mark.parametrize("dtype", [np.float32, np.float64])
each_order = pytest.mark.parametrize("order", ["C", "F"])


@each_precision
@each_order
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 1), (9, 6), (300, 101)])
def test_the_product_is_that_with_the_upper_triangle(dtype, order, shape):
    rng = np.random.default_rng(0)
    n, r = shape
    # Below the diagonal there may be anything: it is not read.
    matrix = np.array(rng.normal(size=(r + 2, r)), dtype, order="F")
    matrix[2:][np.tril_indices(r, -1)] = np.nan
    z = np.array(rng.normal(size=(n, r + 3)), dtype, order=order)
    kept, exact = z.copy(), z[:, 3:].astype(np.float64) @ np.triu(matrix[2:]).astype(np.float64)
    multiply_by_triangle(z[:, 3:], matrix[2:])
    # Sums of up to 101 products of size 1, each with a rounding error.
    assert_allclose(z[:, 3:], exact, rtol=0, atol=1e3 * np.finfo(dtype).eps)
    assert_array_equal(z[:, :3], kept[:, :3])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_is_done_without_rows_or_columns(shape):
    multiply_by_triangle(np.empty(shape), np.empty((shape[1], shape[1]), order="F"))


@pytest.mark.parametrize(
    ("z", "triangle"),
    [
        (np.ones((4, 3)), np.ones((2, 2), order="F")),
        (np.ones((4, 3)), np.ones((3, 3), np.float32, order="F")),
        (np.ones((4, 3)), np.ones((3, 3))),
        (np.ones((8, 6))[::2, ::2], np.ones((3, 3), order="F")),
    ],
    ids=["another size", "another precision", "rows contiguous", "nothing contiguous"],
)
def test_an_array_that_blas_would_misread_is_refused(z, triangle):
    with pytest.raises(ValueError, match=r"contiguous|triangle"):
        multiply_by_triangle(z, triangle)


def turns_during(call):
    """How often another thread gets a turn, at most every 0.1 ms, while ``call`` runs."""
    counted, done = 0, threading.Event()
    worker = threading.Thread(target=lambda: (call(), done.set()), daemon=True)
    before = sys.getswitchinterval()
    # With the lock held, this thread would not get a turn before the call is done.
    sys.setswitchinterval(1e-6)
    try:
        worker.start()
        while not done.is_set():
            time.sleep(1e-4)
            counted += 1
    finally:
        sys.setswitchinterval(before)
    worker.join()
    return counted


def test_another_thread_goes_on_during_the_product():
    z, triangle = np.zeros((20_000, 400), np.float32), np.eye(400, dtype=np.float32, order="F")
    # It takes some tens of milliseconds.
    assert turns_during(lambda: multiply_by_triangle(z, triangle)) > 10


# Factors and inverses

each_size = pytest.mark.parametrize("k", [1, 2, 7, 65, 200])


def positive_definite(k):
    root = np.random.default_rng(k).normal(size=(k, k))
    return np.asfortranarray(root @ root.T / k + np.eye(k))


def with_nonsense_above(matrix):
    """A copy in Fortran order, with NaN above the diagonal: it is not read."""
    matrix = np.array(matrix, order="F")
    matrix[np.triu_indices_from(matrix, 1)] = np.nan
    return matrix


@each_size
def test_the_factor_is_that_of_numpy_and_the_half_above_is_left_alone(k):
    matrix = positive_definite(k)
    factor = with_nonsense_above(matrix)
    assert factorise_in_place(factor)
    assert np.isnan(factor[np.triu_indices(k, 1)]).all()
    # The condition of these matrices is below 10: rounding times the size.
    assert_allclose(np.tril(factor), np.linalg.cholesky(matrix), rtol=0, atol=1e-12)


@each_size
def test_the_inverse_from_a_factor_is_that_of_numpy_in_the_lower_half(k):
    matrix = positive_definite(k)
    inverse = with_nonsense_above(np.linalg.cholesky(matrix))
    invert_from_factor(inverse)
    assert np.isnan(inverse[np.triu_indices(k, 1)]).all()
    assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(matrix)), rtol=0, atol=1e-12)


@each_size
def test_the_inverse_of_a_triangle_is_that_of_numpy(k):
    triangle = np.linalg.cholesky(positive_definite(k))
    inverse = with_nonsense_above(triangle)
    invert_triangle(inverse)
    assert np.isnan(inverse[np.triu_indices(k, 1)]).all()
    assert_allclose(np.tril(inverse), np.linalg.inv(triangle), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "matrix",
    [np.diag([1.0, -1.0, 2.0]), np.ones((3, 3)) - np.eye(3), np.zeros((2, 2))],
    ids=["a negative entry", "an indefinite matrix", "zero"],
)
def test_a_matrix_that_is_not_positive_definite_has_no_factor(matrix):
    assert not factorise_in_place(np.array(matrix, order="F"))


each_function = pytest.mark.parametrize(
    "function", [factorise_in_place, invert_from_factor, invert_triangle]
)


@each_function
@pytest.mark.parametrize(
    "matrix",
    [4.0 * np.eye(3), np.eye(3, dtype=np.float32, order="F"), np.eye(6, order="F")[::2, ::2]],
    ids=["rows contiguous", "single precision", "a slice"],
)
def test_a_matrix_that_lapack_would_misread_is_refused_and_left_alone(function, matrix):
    kept = matrix.copy()
    with pytest.raises(ValueError, match="Fortran order"):
        function(matrix)
    assert_array_equal(matrix, kept)


@each_function
def test_another_thread_goes_on_during_lapack(function):
    matrix = np.eye(2500, order="F")
    # It takes a hundred milliseconds or more.
    assert turns_during(lambda: function(matrix)) > 10
