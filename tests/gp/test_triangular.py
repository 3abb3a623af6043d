"""Products with a triangle: any layout, only what is asked for, and other threads go on."""

import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.triangular import multiply_by_triangle

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


def test_another_thread_goes_on_during_the_product():
    z, triangle = np.zeros((20_000, 400), np.float32), np.eye(400, dtype=np.float32, order="F")
    counted, done = 0, threading.Event()
    worker = threading.Thread(
        target=lambda: (multiply_by_triangle(z, triangle), done.set()), daemon=True
    )
    before = sys.getswitchinterval()
    # With the lock held, this thread would not get a turn before the product is done.
    sys.setswitchinterval(1e-6)
    try:
        worker.start()
        while not done.is_set():
            time.sleep(1e-4)
            counted += 1
    finally:
        sys.setswitchinterval(before)
    worker.join()
    # It takes some tens of milliseconds.
    assert counted > 10
