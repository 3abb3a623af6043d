"""Blocks computed by numpy, on one thread each.

Arrays that every block needs are those of the thread's :class:`Workspace`, since fresh pages take
longer to get than BLAS takes to fill them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.special

from undulatus.gp.cholesky import multiply_by_triangle, solve_moments

Array = npt.NDArray[Any]

SINGLE_PHASE_LIMIT = 512.0
"""Largest length of x times w for which a single-precision phase is good to 1e-4."""


class Workspace(threading.local):
    """A thread's arrays for one block: each is overwritten by whoever takes that purpose next.

    ``take("phases", shape, dtype)`` returns an array of that shape in the memory of that purpose:
    a block's "rows" in double precision, "inputs" with a feature that is 1, "phases" (n, D) and
    their "tangents" and "shares", "features" (n, k), these "scaled" by the roots of weights or
    "rotated" by a root, and the "product" (n, k).
    """

    def __init__(self) -> None:
        self._memory: defaultdict[str, Array] = defaultdict(partial(np.empty, 0, dtype=np.uint8))

    def take(
        self, purpose: str, shape: Sequence[int], dtype: npt.DTypeLike, by_column: bool = False
    ) -> Array:
        """Return an uninitialised array, its rows contiguous or, ``by_column``, its columns."""
        dtype = np.dtype(dtype)
        size = prod(shape) * dtype.itemsize
        if len(self._memory[purpose]) < size:
            self._memory[purpose] = np.empty(size, dtype=np.uint8)
        flat = self._memory[purpose][:size].view(dtype)
        return flat.reshape(shape[::-1]).T if by_column else flat.reshape(shape)


@dataclass(frozen=True)
class NumpyBackend:
    """numpy, in one precision. Names that are not here are numpy's.

    ``move`` returns values in their own precision, ``double`` in double precision, ``row_dots``
    the product of each row of one array with that of the other, (..., n), and ``products`` a
    context in which matrices are multiplied with the digits asked for.
    """

    dtype: np.dtype[Any]
    device: ClassVar[None] = None
    on_device: ClassVar[bool] = False
    workspace: ClassVar[Workspace] = Workspace()

    move = staticmethod(np.asarray)
    double = staticmethod(partial(np.asarray, dtype=np.float64))
    products = nullcontext
    row_dots = staticmethod(partial(np.einsum, "...ij,...ij->...i"))
    expit = scipy.special.expit
    log_expit = scipy.special.log_expit
    logsumexp = staticmethod(np.logaddexp.reduce)

    # Arrays here

    def array(self, values: Any) -> Array:
        """Return values in this precision."""
        return np.asarray(values).astype(self.dtype, copy=False)

    def astype(self, values: Any, dtype: npt.DTypeLike) -> Array:
        """Return values in a type of numpy."""
        return np.asarray(values).astype(dtype, copy=False)

    def own_double(self, rows: Any, *, lasts: bool) -> Array:
        """Return a copy of rows in double precision, columns contiguous.

        Standardising goes by column, and is faster so. A copy that need not last is in the
        workspace.
        """
        if lasts:
            return np.array(rows, dtype=np.float64, order="F")
        copy = self.workspace.take("rows", np.shape(rows), np.float64, by_column=True)
        np.copyto(copy, rows, casting="unsafe")
        return copy

    @property
    def spare_bytes(self) -> float:
        """Bytes of memory that can still be taken."""
        from undulatus._system import available_memory

        return available_memory()

    # Features

    def phases(
        self, x: Array, frequencies: Array, delays: Array | None = None, *, by_column: bool = False
    ) -> Array:
        """Return x Wᵗ (- delays), (n, D), in the precision of ``x``, in the workspace.

        Rows whose phases are too large for single precision are computed in double and reduced
        to one turn before rounding.
        """
        w = frequencies.astype(x.dtype, copy=False)
        phase = self.workspace.take("phases", (len(x), len(w)), x.dtype, by_column)
        rows = x
        if delays is not None:
            # As the frequency of a feature that is 1: the product subtracts it on the way.
            rows = self.workspace.take("inputs", (len(x), x.shape[1] + 1), x.dtype, by_column=True)
            rows[:, :-1], rows[:, -1] = x, 1.0
            w = np.column_stack([w, -delays.astype(x.dtype, copy=False)])
        if by_column:
            np.matmul(w, rows.T, out=phase.T)
        else:
            np.matmul(rows, w.T, out=phase)
        if x.dtype == np.float32 and phase.size:
            # Bound by |x||w|, not |x·w|: products that cancel lose as many digits as a large sum.
            limit = far_row(frequencies) ** 2
            # No row is longer than one of largest values throughout, which is cheaper to find.
            if x.shape[1] * float(max(x.max(), -x.min())) ** 2 > limit:
                far = np.flatnonzero(self.row_dots(x, x) > limit)
                exact = x[far].astype(np.float64) @ frequencies.astype(np.float64).T
                if delays is not None:
                    exact -= delays
                phase[far] = np.remainder(exact, 2.0 * np.pi)
        return phase

    def cosines_and_sines(self, phase: Array) -> Array:
        """Return [cos P, sin P], (n, 2D), in the workspace and in the order of the phases.

        In double precision both come from one tangent of the half angle, t = tan(P/2): cos P =
        (1 - t²)/(1 + t²) and sin P = 2t/(1 + t²). Numpy vectorises its double tangent but not
        its double cosine and sine; the absolute error is a few units in the last place of 1.
        """
        n, d = phase.shape
        by_column = not phase.flags.c_contiguous
        out = self.workspace.take("features", (n, 2 * d), phase.dtype, by_column)
        cosine, sine = out[:, :d], out[:, d:]
        if phase.dtype == np.float32:
            np.cos(phase, out=cosine)
            np.sin(phase, out=sine)
            return out
        tangent = self.workspace.take("tangents", phase.shape, phase.dtype, by_column)
        share = self.workspace.take("shares", phase.shape, phase.dtype, by_column)
        np.multiply(phase, 0.5, out=tangent)
        np.tan(tangent, out=tangent)
        np.multiply(tangent, tangent, out=share)
        share += 1.0
        np.divide(2.0, share, out=share)
        np.multiply(tangent, share, out=sine)
        np.subtract(share, 1.0, out=cosine)
        return out

    def cosines(self, phase: Array) -> Array:
        """Overwrite phases by their cosines."""
        if phase.dtype == np.float32:
            return np.cos(phase, out=phase)
        # Half-angle form, as in `cosines_and_sines`: numpy's double cosine is slow.
        phase *= 0.5
        np.tan(phase, out=phase)
        phase *= phase
        phase += 1.0
        np.divide(2.0, phase, out=phase)
        phase -= 1.0
        return phase

    def waves(self, x: Array, frequencies: Array, *, by_column: bool = False) -> Array:
        """Return [cos P, sin P], (n, 2D) or of several estimators (M, n, 2D), in the workspace."""
        if x.ndim == 3:
            (x,), (frequencies,) = x, frequencies
            return self.waves(x, frequencies)[None]
        return self.cosines_and_sines(self.phases(x, frequencies, by_column=by_column))

    # Products

    def multiply(self, z: Array, matrix: Array) -> Array:
        """Return z M, (..., n, k), in the workspace."""
        return np.matmul(z, matrix, out=self.workspace.take("product", z.shape, z.dtype))

    def gram(self, z: Array, weights: Array) -> Array:
        """Return Zᵗ diag(weights) Z, (k, k), in double precision; of one estimator, (1, k, k)."""
        # Square roots on both sides make the product symmetric, which halves the work for BLAS.
        scaled = self.workspace.take("scaled", z.shape, z.dtype)
        np.multiply(z, np.sqrt(weights)[..., None].astype(z.dtype, copy=False), out=scaled)
        return np.matmul(scaled.mT, scaled).astype(np.float64, copy=False)

    def moments(
        self, z: Array, mean: Array, root: Array, *, overwrite: bool = False
    ) -> tuple[Array, Array]:
        """Return zᵗm, (n,), and |Rᵗz|², (n,).

        Rows or columns of z (n, k) are contiguous; it is left as it is unless ``overwrite``. R
        (k, r) is upper triangular: entries below the diagonal that ends in its last row and
        column are zero. Fastest in Fortran order.
        """
        latent = z @ mean
        full_rows = z.shape[1] - root.shape[1]
        rotated = z[:, full_rows:]
        if not overwrite:
            rotated = self.workspace.take("rotated", rotated.shape, z.dtype)
            np.copyto(rotated, z[:, full_rows:])
        root = np.asfortranarray(root)
        multiply_by_triangle(rotated, root[full_rows:])
        if full_rows:
            rotated += z[:, :full_rows] @ root[:full_rows]
        return latent, self.row_dots(rotated, rotated)

    def weight_moments(
        self, precisions: Array, projected: Array, jitter: Any
    ) -> tuple[Array, Array]:
        """Return means A⁻¹b (M, C, k) and covariances A⁻¹ (M, C, k, k).

        The jitter that a matrix needs is found here, whatever ``jitter`` is.
        """
        m, c, k = projected.shape
        means, covariances = np.empty((m, c, k)), np.empty((m, c, k, k))
        for index in np.ndindex(m, c):
            means[index], covariances[index] = solve_moments(precisions[index], projected[index])
        return means, covariances

    # Steps that are repeated

    def repeated(self, function: Callable[[], None], state: Sequence[Any]) -> Callable[[], None]:
        """Return a function of arrays, which it changes, in the form that is fastest to repeat."""
        return function


for _name, _value in vars(np).items():
    if not (_name.startswith("_") or hasattr(NumpyBackend, _name)):
        setattr(NumpyBackend, _name, staticmethod(_value))


def far_row(frequencies: Array) -> float:
    """Return the length of a row beyond which its phases need double precision."""
    return SINGLE_PHASE_LIMIT / max(float(np.linalg.norm(frequencies, axis=1).max()), 1e-12)
