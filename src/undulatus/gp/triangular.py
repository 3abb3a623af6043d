"""Products with a triangular matrix, in place, while other threads go on.

BLAS multiplies by a triangle (``trmm``) in little more than half the time of a full product.
SciPy's wrapper of it holds Python's global lock meanwhile, so that blocks on other threads would
wait. Here the same function, as SciPy offers it to compiled code, is called without the lock.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cython_blas

Array = npt.NDArray[Any]


def _load(name: str) -> Any:
    """Return a function of ``scipy.linalg.cython_blas`` that takes pointers."""
    capsule, python = cython_blas.__pyx_capi__[name], ctypes.pythonapi
    find_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    find_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    signature = find_name(("PyCapsule_GetName", python))(capsule)
    address = find_address(("PyCapsule_GetPointer", python))(capsule, signature)
    # Unlike PYFUNCTYPE, CFUNCTYPE releases the lock.
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 11)(address)


_TRMM = {
    np.dtype(np.float32): (_load("strmm"), ctypes.c_float),
    np.dtype(np.float64): (_load("dtrmm"), ctypes.c_double),
}


def multiply_by_triangle(z: Array, triangle: Array) -> None:
    """Overwrite ``z`` (n, r) by its product with an upper triangular (r, r) matrix.

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
