r"""The logistic likelihood and the parabola that bounds it from below.

For any :math:`f` and :math:`\xi` (Jaakkola and Jordan),

.. math:: \log\psi(f) \ge \tfrac12 f - \lambda(\xi)\,(f^2 - \xi^2)
    - \tfrac12\xi - \log(1 + e^{-\xi}),
    \qquad \lambda(\xi) = \frac{\tanh(\xi/2)}{4\xi},

with equality at :math:`f = \pm\xi`. It is quadratic in :math:`f`, so a Gaussian
prior on :math:`f` stays Gaussian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Array = npt.NDArray[Any]


def half_slope(xi: Array) -> Array:
    """Return λ(ξ) = tanh(ξ/2) / (4ξ), with its limit 1/8 at zero."""
    # tanh form: sigmoid(xi) - 1/2 cancels below 1e-8. tanh(x)/x is 1 to the last digit there.
    xi = np.maximum(np.abs(xi), np.sqrt(np.finfo(xi.dtype).eps) / 8)
    return np.tanh(0.5 * xi) / (4.0 * xi)


def offset(xi: Array) -> Array:
    """Return λ(ξ)ξ² - ξ/2 - log(1 + exp(-ξ)), the part of the bound that is free of f."""
    return half_slope(xi) * xi**2 - 0.5 * xi - np.log1p(np.exp(-xi))


def log_sigmoid_bound(f: Array, xi: Array) -> Array:
    """Return the lower bound on log ψ(f) that touches it at f = ±ξ (ξ >= 0)."""
    return 0.5 * f - half_slope(xi) * f**2 + offset(xi)


def expected_sigmoid(mean: Array, variance: Array) -> Array:
    r"""Return :math:`\psi\bigl(\mu / \sqrt{1 + \tfrac{\pi}{8} s}\bigr)`, the paper's Eq. test.

    Approximates the mean of :math:`\psi(f)` over :math:`f \sim N(\mu, s)`.
    """
    return np.asarray(expit(mean / np.sqrt(1.0 + np.pi / 8.0 * variance)))
