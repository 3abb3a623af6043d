r"""The Gaussian posterior of the weights that is nearest to the true one.

The bound of :mod:`undulatus.gp.bound` is quadratic in the latent function, which makes learning
frequencies fast, but its parabolas are too steep: the variance of its posterior is too small.
The passes here start from that posterior and maximise, over all Gaussians
:math:`q = N(m, A^{-1})` of the whitened weights, the tighter bound

.. math:: \log F = \sum_i s_i\, \mathbb E_q \log\psi(\pm f_i) - \mathrm{KL}(q \,\|\, N(0, I)).

With :math:`c_i = \mathbb E_q\,\psi'(f_i)` and residuals
:math:`r_i = y_i - \mathbb E_q\,\psi(f_i)`, its natural gradient leads to

.. math:: A = I + Z^\top \mathrm{diag}(s c) Z, \qquad A m = Z^\top s (r + c \mu),

where :math:`\mu_i` is the latent mean under :math:`q`: the products of the other bound with other
numbers a pixel. A full step is nearly Newton's. It is halved when it lowers the bound, so that
the bound never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from undulatus.gp.blocks import Array, Block, PixelSource
from undulatus.gp.bound import (
    Statistics,
    best_variance_ratio,
    block_features,
    sum_statistics,
    weighted_gram,
)
from undulatus.gp.passes import PosteriorFit, fit_posterior, stall_limit, variance_ratio_limits
from undulatus.gp.posterior import Posterior, latent_moments

START_PASSES = 3
"""Passes with the quadratic bound before the first step from its posterior."""

MAX_PASSES = 25
"""Most passes, those that were taken back included."""

SMALLEST_SHARE = 1.0 / 64.0
"""The fit ends when a smaller share of a step would be needed to raise the bound."""

SMALLEST_CURVATURE = 1e-18
"""A floor on E ψ'(f), so that every pixel keeps some precision."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


# Expectations under a Gaussian


def expected_log_sigmoid(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    r"""Return :math:`\mathbb E \log\psi(f)` for :math:`f \sim N(\mu, s)`, and its slopes.

    Gauss-Hermite quadrature in double precision.

    Returns
    -------
    value, slope, curvature : (n,) arrays
        The expectation; its derivative in :math:`\mu`, which is
        :math:`\mathbb E\,\psi(-f)`; and -2 times its derivative in :math:`s`, which is
        :math:`\mathbb E\,\psi'(f)` and never negative.
    """
    mean = mean.astype(np.float64)
    # Below 1e-6 the nodes are too close for the differences that make the curvature.
    deviation = np.maximum(np.sqrt(variance.astype(np.float64)), 1e-6)
    value, slope, curvature = (np.zeros(len(mean)) for _ in range(3))
    for node, weight in zip(_NODES, _NODE_WEIGHTS, strict=True):
        f = mean + node * deviation
        decay = np.exp(-np.abs(f))
        opposite = np.where(f > 0.0, decay, 1.0) / (1.0 + decay)
        value += weight * (np.minimum(f, 0.0) - np.log(1.0 + decay))
        slope += weight * opposite
        # Not the mean of ψ'(f): between nodes that are far apart its peak would be missed.
        curvature -= weight * node * opposite
    # Where ψ is 1 or 0 to the last digit, rounding could make the curvature negative.
    return value, slope, np.maximum(curvature / deviation, SMALLEST_CURVATURE)


# Steps that never lower the bound


class HasBound(Protocol):
    """A state of an ascent whose bound is known."""

    @property
    def bound(self) -> float:
        """The bound on the log evidence (nats)."""
        ...


State = TypeVar("State", bound=HasBound)


def ascend_naturally(
    start: State,
    advance: Callable[[State, float], State],
    *,
    max_passes: int,
    tol: float,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> Iterator[State]:
    """Yield ``start``, and the state after each step that did not lower the bound.

    ``advance(state, share)`` makes a share of a full step; the share is halved whenever the
    bound falls. The ascent ends when a step changes the bound by less than ``tol`` of its
    size, when a small share does not help, or after ``max_passes`` states, ``start`` and those
    that were taken back included.
    """
    current, share = start, 1.0
    yield current
    for done in range(1, max_passes):
        report(done, current.bound)
        following = advance(current, share)
        growth = following.bound - current.bound
        if growth >= 0.0:
            current = following
            yield current
        else:
            share *= 0.5
        if abs(growth) < stall_limit(current.bound, tol) or share < SMALLEST_SHARE:
            return


# Passes over all pixels


def fit_final_posterior(
    pixels: PixelSource,
    frequencies: Array,
    signal_variance: float,
    xi: Array | None,
    *,
    variational: bool,
    bound_passes: int,
    bound_tol: float,
    tol: float,
    initial_posterior: Posterior | None = None,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> PosteriorFit:
    """Return the posterior to predict with, by interruptible passes at the final frequencies.

    It is that of the quadratic bound, after at most ``bound_passes``, or, if ``variational``,
    that of :func:`fit_variational` to the tolerance ``tol``, started from a few such passes.
    """
    fit = fit_posterior(
        pixels,
        frequencies,
        signal_variance,
        xi,
        max_passes=START_PASSES if variational else bound_passes,
        tol=bound_tol,
        initial_posterior=initial_posterior,
        interruptible=True,
        report=report,
    )
    if not variational or fit.interrupted:
        return fit
    done_before = len(fit.bounds)
    return fit_variational(
        pixels,
        frequencies,
        fit,
        tol=tol,
        interruptible=True,
        report=lambda done, bound: report(done_before + done, bound),
    )


@dataclass(frozen=True)
class _Evaluated:
    """A posterior with the statistics it came from, its bound, and where a full step leads."""

    signal_variance: float
    statistics: Statistics
    posterior: Posterior
    target: Statistics
    bound: float


def fit_variational(
    pixels: PixelSource,
    frequencies: Array,
    start: PosteriorFit,
    *,
    max_passes: int = MAX_PASSES,
    tol: float = 0.0,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> PosteriorFit:
    """Maximise the bound over Gaussian posteriors and γ at fixed frequencies, from ``start``.

    Each pass reads the pixels once. The returned bounds are those of ``start``, then that of
    its posterior here, then that after each step that was kept: they never fall. The fit ends
    when a step changes the bound by less than ``tol`` of its size. If ``interruptible``, a
    KeyboardInterrupt ends it at the last step that was kept.
    """
    fit = start
    try:
        report(0, start.bounds[-1])
        first = _evaluate(pixels, frequencies, start)
        for kept in ascend_naturally(
            first,
            lambda last, share: _evaluate(pixels, frequencies, _step(last, share)),
            max_passes=max_passes,
            tol=tol,
            report=report,
        ):
            fit = PosteriorFit(
                kept.signal_variance, kept.statistics, kept.posterior, (*fit.bounds, kept.bound)
            )
    except KeyboardInterrupt:
        if not interruptible:
            raise
        fit = replace(fit, interrupted=True)
    return fit


def _evaluate(pixels: PixelSource, frequencies: Array, fit: PosteriorFit) -> _Evaluated:
    """Return the bound of a posterior and where a full step leads, by one pass."""
    posterior = fit.posterior
    sums = pixels.total(
        _block_sums,
        sum_statistics,
        frequencies,
        fit.signal_variance,
        posterior.mean.astype(pixels.dtype),
        posterior.root.T.astype(pixels.dtype, order="F"),
    )
    # Zᵗ(scμ) from the sum over all pixels: in single precision it would drown Zᵗ(sr).
    target = replace(sums, projected=sums.projected + sums.gram @ posterior.mean)
    bound = sums.offset - posterior.divergence
    return _Evaluated(fit.signal_variance, fit.statistics, posterior, target, bound)


def _block_sums(
    block: Block, frequencies: Array, signal_variance: float, mean: Array, root: Array
) -> Statistics:
    """Return Zᵗ diag(sc) Z, Zᵗ(sr) and the expected log likelihood of one block."""
    z = block_features(block, frequencies, signal_variance)
    latent, variance = latent_moments(z, mean, root)
    sign = np.where(block.v > 0.0, 1.0, -1.0)
    value, slope, curvature = expected_log_sigmoid(sign * latent, variance)
    weight = block.weight.astype(np.float64)
    residual = (weight * sign * slope).astype(z.dtype)
    return Statistics(
        weighted_gram(z, (weight * curvature).astype(z.dtype)),
        (z.T @ residual).astype(np.float64),
        float(weight @ value),
    )


def _step(current: _Evaluated, share: float) -> PosteriorFit:
    """Return the posterior and γ after a share of a step."""
    old, new, variance = current.statistics, current.target, current.signal_variance
    mixed = Statistics(
        (1.0 - share) * old.gram + share * new.gram,
        (1.0 - share) * old.projected + share * new.projected,
        0.0,
    )
    ratio = best_variance_ratio(mixed, *variance_ratio_limits(variance)) ** share
    rescaled = mixed.rescale(ratio)
    return PosteriorFit(variance * ratio, rescaled, rescaled.posterior(), ())
