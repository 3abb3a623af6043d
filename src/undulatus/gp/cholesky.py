"""Cholesky factors, their inverses, and products with them, while other threads go on.

SciPy's wrappers of BLAS and LAPACK hold Python's global lock, so that the estimators of an
ensemble, or blocks on other threads, would wait for each other. Here the same functions, as SciPy
offers them to compiled code, are called without the lock.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cython_blas, cython_lapack
from scipy.linalg.lapack import dormqr, dsytrd

from undulatus.errors import NumericalError

Array = npt.NDArray[Any]

JITTER_LADDER = (0.0, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
"""Shares of the mean diagonal added in turn until a matrix can be factorised."""


def _load(library: Any, name: str, n_arguments: int) -> Any:
    """Return a function of SciPy's compiled BLAS or LAPACK that takes pointers."""
    capsule, python = library.__pyx_capi__[name], ctypes.pythonapi
    find_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    find_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    signature = find_name(("PyCapsule_GetName", python))(capsule)
    address = find_address(("PyCapsule_GetPointer", python))(capsule, signature)
    # Unlike PYFUNCTYPE, CFUNCTYPE releases the lock.
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


_TRMM = {
    np.dtype(np.float32): (_load(cython_blas, "strmm", 11), ctypes.c_float),
    np.dtype(np.float64): (_load(cython_blas, "dtrmm", 11), ctypes.c_double),
}

_POTRF, _POTRI = (_load(cython_lapack, name, 5) for name in ("dpotrf", "dpotri"))

_TRTRI = _load(cython_lapack, "dtrtri", 6)


def factorise(matrix: Array) -> tuple[Array, float]:
    """Return the lower Cholesky factor of a symmetric matrix, and the jitter added to it.

    The matrix is converted to double precision. The jitter is an absolute number, zero
    whenever the matrix is numerically positive definite.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    mean_diagonal = float(np.mean(np.diagonal(matrix)))
    if np.isfinite(mean_diagonal):
        for share in JITTER_LADDER:
            jitter = share * mean_diagonal
            factor = np.array(matrix, order="F")
            factor[np.diag_indices_from(factor)] += jitter
            if factorise_in_place(factor) and np.isfinite(factor[-1, -1]):
                np.copyto(factor, 0.0, where=_above_diagonal(len(factor)))
                return factor, jitter
    raise NumericalError(len(matrix))


def solve_moments(precision: Array, projected: Array) -> tuple[Array, Array]:
    """Return A⁻¹b (k,) and A⁻¹ (k, k) of a precision A (k, k) and b = ``projected`` (k,)."""
    inverse, _ = factorise(precision)
    mean = cho_solve((inverse, True), projected)
    invert_from_factor(inverse)
    # Below the diagonal is the inverse, above it are zeros.
    inverse += np.tril(inverse, -1).T
    return mean, inverse


@lru_cache(maxsize=8)
def _above_diagonal(k: int) -> Array:
    """Return which entries of a (k, k) matrix are above its diagonal."""
    return ~np.tri(k, dtype=bool)


def factorise_in_place(matrix: Array) -> bool:
    """Overwrite a symmetric matrix (k, k) by its lower Cholesky factor; return whether it has one.

    The matrix is in double precision and Fortran order; entries above the diagonal are neither
    read nor written.
    """
    return _call(_POTRF, matrix)


def invert_from_factor(factor: Array) -> None:
    """Overwrite the lower factor of a matrix (k, k) by the lower half of the matrix's inverse."""
    _call(_POTRI, factor)


def invert_triangle(factor: Array) -> None:
    """Overwrite a lower triangular matrix (k, k) by its inverse."""
    _call(_TRTRI, factor, b"N")


def _call(function: Any, matrix: Array, *options: bytes) -> bool:
    """Call a LAPACK function on a lower triangle; return whether it succeeded."""
    if matrix.dtype != np.float64 or not matrix.flags.f_contiguous:
        raise ValueError("the matrix must be in double precision and Fortran order")
    # SciPy's integers have 32 or 64 bits: read as either, these are the same (little-endian).
    n, info = ctypes.c_int64(len(matrix)), ctypes.c_int64(0)
    function(
        *map(ctypes.c_char_p, (b"L", *options)),
        ctypes.byref(n),
        matrix.ctypes.data,
        ctypes.byref(n),
        ctypes.byref(info),
    )
    return info.value == 0


def tridiagonalise(matrix: Array, vectors: Array) -> tuple[Array, Array, Array]:
    """Return Qᵗ A Q, which is tridiagonal, and Qᵗ V, for a symmetric A (k, k) and V (k, m).

    Returns its diagonal (k,), the entries beside that (k - 1,), and the vectors (k, m).
    """
    k = len(matrix)
    if k == 1:
        return matrix[0], np.empty(0), vectors
    reflectors, diagonal, beside, factors, _ = dsytrd(matrix, lower=1)
    rotated = np.array(vectors, order="F")
    # Each reflector leaves the first entry as it is.
    own, tail = np.asfortranarray(reflectors[1:, :-1]), np.asfortranarray(vectors[1:])
    rotated[1:], _, _ = dormqr("L", "T", own, factors, tail, lwork=64 * k)
    return diagonal, beside, rotated


def multiply_by_triangle(z: Array, triangle: Array) -> None:
    """Overwrite ``z`` (n, r) by its product with an upper triangular (r, r) matrix.

    BLAS does so in little more than half the time of a full product.

    Parameters
    ----------
    z : (n, r) array
        Its rows or its columns must be contiguous, as those of slices of columns are.
    triangle : (r, r) array
        In the precision of ``z``, its columns contiguous. Entries below the diagonal are not
        read.
    """
    (n, r), itemsize = z.shape, z.itemsize
    if n == 0 or r == 0:
        return
    if triangle.shape != (r, r) or triangle.dtype != z.dtype or triangle.strides[0] != itemsize:
        raise ValueError("triangle must be (r, r), in the precision of z, with whole columns")
    trmm, real = _TRMM[z.dtype]
    if z.strides[1] == itemsize:
        # Fortran sees zᵗ, and multiplies it by the transposed triangle from the left.
        side, transposed, shape, stride = b"L", b"T", (r, n), z.strides[0]
    elif z.strides[0] == itemsize:
        side, transposed, shape, stride = b"R", b"N", (n, r), z.strides[1]
    else:
        raise ValueError("neither the rows nor the columns of z are contiguous")
    # A single column may have any stride, but Fortran wants at least the length.
    steps = max(triangle.strides[1] // itemsize, r), max(stride // itemsize, shape[0])
    # SciPy's integers have 32 or 64 bits: read as either, these are the same (little-endian).
    rows, columns, triangle_step, z_step = map(ctypes.c_int64, (*shape, *steps))
    trmm(
        *map(ctypes.c_char_p, (side, b"U", transposed, b"N")),
        ctypes.byref(rows),
        ctypes.byref(columns),
        ctypes.byref(real(1.0)),
        triangle.ctypes.data,
        ctypes.byref(triangle_step),
        z.ctypes.data,
        ctypes.byref(z_step),
    )
