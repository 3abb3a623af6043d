r"""The two bounds on the logistic likelihood, each as a Gaussian site of every row.

A *site* is a Gaussian factor :math:`\exp(h f - \tfrac12 c f^2)` that stands for the likelihood
:math:`\psi(\pm f)` of a row. Under a Gaussian :math:`f \sim N(\mu, s)` a bound gives the precision
c of the site and its residual :math:`r = h - c\mu`, the slope of the bound in :math:`\mu`.

Jaakkola and Jordan's bound is quadratic in f (Eqs. 6 and 7): for any :math:`\xi`

.. math:: \log\psi(f) \ge \tfrac12 f - \lambda(\xi)\,(f^2 - \xi^2)
    - \tfrac12\xi - \log(1 + e^{-\xi}),
    \qquad \lambda(\xi) = \frac{\tanh(\xi/2)}{4\xi},

with equality at :math:`f = \pm\xi`; the best one is :math:`\xi^2 = s + \mu^2` (Eq. 10). Its sites
have :math:`c = 2\lambda(\xi)` and :math:`h = \pm\tfrac12`. Learning frequencies with it is fast,
but its parabolas are too steep: the posterior variance is too small.

The expectation :math:`\mathbb E \log\psi(\pm f)` itself is the tighter bound of variational
inference with Gaussians; its natural gradient leads to the sites :math:`c = \mathbb E\,\psi'(f)`
and :math:`r = y - \mathbb E\,\psi(f)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undulatus.gp.backends import HOST, Array, Backend

SMALLEST_PRECISION = 1e-18
"""A floor on E ψ'(f), so that every row keeps some precision."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


class RowSites(NamedTuple):
    """Sites of rows in double precision, (n,) each.

    The precision c, the residual r = h - cμ, and each row's part of the bound.
    """

    precision: Array
    residual: Array
    value: Array


@dataclass(frozen=True)
class Bound:
    r"""A bound on the likelihood.

    ``sites(mean, variance, sign, xp)`` returns the :class:`RowSites` at latent moments in double
    precision, (n,) each. Of a ``conjugate`` bound, the sites are Gaussian factors below the
    likelihood itself, and ``value`` is what they lack, so that
    :math:`\log p \ge h f - \tfrac12 c f^2 +` ``value``; otherwise it is the expectation of the log
    likelihood.
    """

    sites: Callable[[Array, Array, Array, Backend], RowSites]
    conjugate: bool


def lambda_xi(xi: Array, xp: Backend = HOST) -> Array:
    """Return λ(ξ) = tanh(ξ/2) / (4ξ), with its limit 1/8 at zero.

    It equals the paper's (ψ(ξ) - 1/2) / (2ξ), half the slope of the sigmoid's chord from 0 to ξ.
    """
    # tanh form: sigmoid(xi) - 1/2 cancels below 1e-8. tanh(x)/x is 1 to the last digit there.
    xi = xp.maximum(xp.abs(xi), float(xp.finfo(xi.dtype).eps) ** 0.5 / 8)
    return xp.tanh(0.5 * xi) / (4.0 * xi)


def log_sigmoid_offset(xi: Array, xp: Backend = HOST) -> Array:
    """Return λ(ξ)ξ² - ξ/2 - log(1 + exp(-ξ)), the part of the bound that does not contain f.

    It equals log C of the paper, λ(ξ)ξ² + ξ/2 - log(1 + exp(ξ)), and cannot overflow.
    """
    return lambda_xi(xi, xp) * xi**2 - 0.5 * xi - xp.log1p(xp.exp(-xi))


def quadratic_sites(mean: Array, variance: Array, sign: Array, xp: Backend = HOST) -> RowSites:
    """Return the sites of Jaakkola and Jordan's bound at its best ξ (Eqs. 6, 7 and 10)."""
    xi = xp.sqrt(variance + mean**2)
    lam = lambda_xi(xi, xp)
    # As `log_sigmoid_offset`, with λ at hand.
    offset = lam * xi**2 - 0.5 * xi - xp.log1p(xp.exp(-xi))
    return RowSites(2.0 * lam, 0.5 * sign - 2.0 * lam * mean, offset)


def expected_sites(mean: Array, variance: Array, sign: Array, xp: Backend = HOST) -> RowSites:
    """Return the sites of the best Gaussian posterior, by its natural gradient."""
    value, slope, curvature = expected_log_sigmoid(sign * mean, variance, xp)
    return RowSites(curvature, sign * slope, value)


QUADRATIC = Bound(quadratic_sites, conjugate=True)
"""The paper's bound."""

EXPECTED = Bound(expected_sites, conjugate=False)
"""The bound of variational inference with Gaussians."""

POSTERIORS = {"variational": EXPECTED, "bound": QUADRATIC}
"""What ``posterior`` of an estimator may be, and the bound whose posterior it predicts with."""


def expected_log_sigmoid(
    mean: Array, variance: Array, xp: Backend = HOST
) -> tuple[Array, Array, Array]:
    r"""Return :math:`\mathbb E \log\psi(f)` for :math:`f \sim N(\mu, s)`, and its slopes.

    Gauss-Hermite quadrature in double precision.

    Returns
    -------
    value, slope, curvature : (n,) arrays
        The expectation; its derivative in :math:`\mu`, which is
        :math:`\mathbb E\,\psi(-f)`; and -2 times its derivative in :math:`s`, which is
        :math:`\mathbb E\,\psi'(f)` and never negative.
    """
    # Below 1e-6 the nodes are too close for the differences that make the curvature.
    deviation = xp.maximum(xp.sqrt(variance), 1e-6)
    value, slope, curvature = (xp.zeros_like(mean) for _ in range(3))
    for node, weight in zip(_NODES.tolist(), _NODE_WEIGHTS.tolist(), strict=True):
        f = mean + node * deviation
        decay = xp.exp(-xp.abs(f))
        opposite = xp.where(f > 0.0, decay, 1.0) / (1.0 + decay)
        value += weight * (xp.minimum(f, 0.0) - xp.log(1.0 + decay))
        slope += weight * opposite
        # Not the mean of ψ'(f): between nodes that are far apart its peak would be missed.
        curvature -= weight * node * opposite
    # Where ψ is 1 or 0 to the last digit, rounding could make the curvature negative.
    return value, slope, xp.maximum(curvature / deviation, SMALLEST_PRECISION)
