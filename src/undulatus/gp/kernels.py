r"""Stationary kernels, each with the spectral density its frequencies are drawn from.

By Bochner's theorem a stationary correlation :math:`k(x - x')` is the Fourier transform of a
probability density over frequencies. A kernel here is three functions: a draw from that
density, the correlation itself (for the exact GPC), and its slope (for the gradient in the
lengthscale).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from undulatus.errors import InputError
from undulatus.gp.backends import Array


@dataclass(frozen=True)
class Kernel:
    r"""A stationary correlation of unit variance and unit lengthscale.

    Attributes
    ----------
    draw : callable ``(rng, D, d) -> (D, d) array``
        Frequencies from the spectral density; the first rows do not depend on ``D``.
    correlation : callable
        :math:`k(s)` as a function of the squared scaled distance :math:`s`.
    slope : callable
        :math:`dk / ds`, finite also at :math:`s = 0`, where the gradient in the lengthscale
        evaluates it. So the exponential kernel (Matérn-1/2) cannot be added.
    """

    draw: Callable[[np.random.Generator, int, int], Array]
    correlation: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _draw_normal(rng: np.random.Generator, n_frequencies: int, n_features: int) -> Array:
    return rng.standard_normal((n_frequencies, n_features))


def _draw_student(freedom: int, rng: np.random.Generator, D: int, d: int) -> Array:
    # The radii have their own generator, so that a larger D only appends frequencies.
    normal = _draw_normal(rng, D, d)
    (radial,) = rng.spawn(1)
    return normal / np.sqrt(radial.chisquare(freedom, size=(D, 1)) / freedom)


def _matern32(s: Array) -> Array:
    r = np.sqrt(3.0 * s)
    return (1.0 + r) * np.exp(-r)


def _matern52(s: Array) -> Array:
    r = np.sqrt(5.0 * s)
    return (1.0 + r + r**2 / 3.0) * np.exp(-r)


def _matern52_slope(s: Array) -> Array:
    r = np.sqrt(5.0 * s)
    return -5.0 / 6.0 * (1.0 + r) * np.exp(-r)


def _matern32_slope(s: Array) -> Array:
    return -1.5 * np.exp(-np.sqrt(3.0 * s))


KERNELS: dict[str, Kernel] = {
    "rbf": Kernel(_draw_normal, lambda s: np.exp(-0.5 * s), lambda s: -0.5 * np.exp(-0.5 * s)),
    # A Matérn kernel of smoothness ν has a Student-t spectrum with 2ν degrees of freedom.
    "matern32": Kernel(partial(_draw_student, 3), _matern32, _matern32_slope),
    "matern52": Kernel(partial(_draw_student, 5), _matern52, _matern52_slope),
}


def find_kernel(name: str) -> Kernel:
    """Return the kernel called ``name``, or raise with the list of kernels."""
    if name not in KERNELS:
        raise InputError(f"No kernel is called {name!r}; choose one of {', '.join(KERNELS)}.")
    return KERNELS[name]


def mean_distance(variances: Array) -> float:
    r"""Return the root-mean-square distance between rows, :math:`\sqrt{2\sum_j \sigma_j^2}`.

    ``variances`` are those of the columns. If all rows are equal, the result is 1.
    """
    distance = float(np.sqrt(2.0 * np.sum(variances)))
    return distance if distance > 0.0 else 1.0
