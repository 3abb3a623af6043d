"""Fitted models as functions of standardised rows: weights of features, or functions.

A :class:`Model` has latent means and variances (M, C, n) of M estimators with C latent functions
each, with tapers and prior means, and what follows from these: columns, (n,) each, of
probabilities, of scores, and of the moments of the mixture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from undulatus.gp.adapt import LabelledScene
from undulatus.gp.backends import HOST, Array, Backend
from undulatus.gp.data import block_rows, device_prediction_rows, longest_row
from undulatus.gp.ensemble import (
    pooled_log_odds,
    pooled_log_probabilities,
    pooled_moments,
    pooled_probabilities,
)
from undulatus.gp.exact import ExactFit, exact_covariance
from undulatus.gp.features import amplitudes_and_delays, sum_of_waves
from undulatus.gp.kernels import Kernel
from undulatus.gp.posterior import (
    FourierFit,
    Posterior,
    scaled_mean,
    share_of_tolerance,
    variance_root,
)
from undulatus.gp.taper import EDGE_SLOPE, Taper, frequency_deviations

STAGGERED_ROWS = 16
"""A block of predictions has fewer rows: waves a power of two apart share the same cache lines."""

LENGTH_LIMIT = 1e100
"""Squared distances from longer rows than this overflow."""

_ROOTS: WeakKeyDictionary[Posterior, dict[float, Array]] = WeakKeyDictionary()
"""Roots of variances by posterior and tolerance, which all predictions of a model share."""

Columns = tuple[Array, ...]
"""Of a block of n rows, (n,) each."""


class Model(ABC):
    """A fitted model where blocks of rows are computed, and what follows from its moments."""

    xp: Backend
    rows_per_block: int
    longest_row: float
    """Standardised rows that are longer lie too far out to be classified."""
    n_estimators: int
    n_latents: int
    largest_variance: Array
    """Of each latent function anywhere, (M, C, 1)."""
    shift: Array
    """Of the log odds of the second class, (1,), or of the logarithm of each probability, (k,)."""

    @abstractmethod
    def means(self, x: Array) -> Array:
        """Return latent means, (M, C, n)."""

    @abstractmethod
    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances in double precision, (M, C, n) each."""

    def probabilities(self, x: Array) -> Columns:
        """Return the probability of each class."""
        return pooled_probabilities(*self.moments(x), self.shift, self.xp)

    def scores(self, x: Array) -> Columns:
        """Return the log odds of the second class, or the logarithm of each probability.

        Of a single model of two classes without a shift it is the latent mean, which has their
        sign.
        """
        if self.n_latents > 1:
            return pooled_log_probabilities(*self.moments(x), self.shift, self.xp)
        if self._mean_decides:
            return (self.means(x)[0, 0],)
        return (pooled_log_odds(*self.moments(x), self.shift, self.xp),)

    def signs(self, x: Array) -> Columns:
        """Return numbers with the sign of the log odds of the second of two classes."""
        xp, means = self.xp, self.means(x)[:, 0]
        if self._mean_decides:
            return (means[0],)
        shift = float(self.shift[0])
        # An estimator's log odds lie between these.
        ends = [means + shift, scaled_mean(means, self.largest_variance[:, 0], xp) + shift]
        positive = xp.concatenate(ends) > 0
        # Probabilities on one side of 1/2 have their mean there: no variance is needed.
        result = 2.0 * xp.double(positive.all(0)) - 1.0
        unclear = xp.flatnonzero(positive.any(0) & ~positive.all(0))
        if len(unclear):
            result[unclear] = pooled_log_odds(*self.moments(x[unclear]), self.shift, xp)
        return (result,)

    @property
    def _mean_decides(self) -> bool:
        """Whether the latent mean of two classes has the sign of the log odds."""
        return self.n_estimators == 1 and not self.shift.any()

    def mean(self, x: Array) -> Columns:
        """Return the mean of each latent function."""
        return tuple(self.xp.mean(self.means(x), axis=0))

    def deviation(self, x: Array) -> Columns:
        """Return the standard deviation of each latent mean over the estimators."""
        return tuple(self.xp.std(self.xp.double(self.means(x)), axis=0))

    def mean_and_variance(self, x: Array) -> Columns:
        """Return the mean of each latent function, then the variance of each."""
        mean, variance = pooled_moments(*self.moments(x), self.xp)
        return (*mean, *variance)

    def probabilities_and_variance(self, x: Array) -> Columns:
        """Return the probability of each class, and the variance of each latent function."""
        means, variances = self.moments(x)
        probabilities = pooled_probabilities(means, variances, self.shift, self.xp)
        return (*probabilities, *pooled_moments(means, variances, self.xp)[1])

    def everything(self, x: Array) -> Columns:
        """Return probabilities, means, variances, and the deviation of the likeliest class."""
        xp, (means, variances) = self.xp, self.moments(x)
        probabilities = pooled_probabilities(means, variances, self.shift, xp)
        mean, variance = pooled_moments(means, variances, xp)
        deviation = xp.std(means, axis=0)
        likeliest = xp.stack(probabilities).argmax(0), np.arange(len(x))
        of_likeliest = deviation[likeliest] if len(mean) > 1 else deviation[0]
        return (*probabilities, *mean, *variance, of_likeliest)


class WeightModel(Model):
    """Weights of Fourier features, of one estimator or of an ensemble.

    ``ends`` (4, d) are the smallest value, the quartiles and the largest value of standardised
    features. ``variance_tolerance`` is the largest error in probability by the variance.
    ``latent_shift`` is added to the latent mean by models of earlier versions. ``edge_slope`` is
    that of :mod:`undulatus.gp.taper`.
    """

    def __init__(
        self,
        fits: Sequence[FourierFit],
        ends: Array,
        xp: Backend,
        shift: Array,
        variance_tolerance: float = 0.0,
        latent_shift: float = 0.0,
        edge_slope: float = EDGE_SLOPE,
    ) -> None:
        self.fits, self.xp, self.shift = fits, xp, shift
        self.n_estimators, self.n_latents = len(fits), len(fits[0].latents)
        d = len(fits[0].frequencies)
        on_host = block_rows(2 * d, xp.dtype.itemsize) - STAGGERED_ROWS
        self.rows_per_block = device_prediction_rows(d, xp) if xp.on_device else on_host
        self.longest_row = longest_row(np.concatenate([fit.frequencies for fit in fits]))
        self._frequencies = [xp.move(fit.frequencies) for fit in fits]
        gammas = xp.array([[[own.signal_variance] for own in fit.latents] for fit in fits])
        prior_means = xp.array([[[own.prior_mean] for own in fit.latents] for fit in fits])
        each = [frequency_deviations(fit.frequencies, fit.taper) for fit in fits]
        zeros, deviations = np.zeros(len(ends[0])), None
        if any(own is not None for own in each):
            deviations = xp.array(np.array([zeros if own is None else own for own in each]))
        self.taper = Taper(
            xp, deviations, xp.array(ends), gammas, prior_means, latent_shift, edge_slope
        )
        self._levels, self.largest_variance = None, gammas
        if fits[0].latents[0].level is not None:
            self._levels = SceneLevels(fits, xp)
            self.largest_variance = gammas + self._levels.prior_variance
        self._tolerance = variance_tolerance
        if variance_tolerance and len(shift) == 1:
            self._tolerance *= share_of_tolerance(float(shift[0]))

    @cached_property
    def _waves(self) -> list[tuple[Any, Any]]:
        """Amplitudes and delays of each estimator of two classes, (D,) each."""
        waves = []
        for fit in self.fits:
            (own,) = fit.latents
            pair = amplitudes_and_delays(own.posterior.mean, own.signal_variance)
            waves.append((self.xp.move(pair[0]), self.xp.move(pair[1])))
        return waves

    @cached_property
    def _weights(self) -> list[Any]:
        """Weights of cosines and sines of each estimator, (C, 2D)."""
        weights = []
        for fit in self.fits:
            gammas = np.array([[own.signal_variance] for own in fit.latents])
            means = np.array([own.posterior.mean for own in fit.latents])
            weights.append(self.xp.array(np.sqrt(gammas / len(fit.frequencies)) * means))
        return weights

    @cached_property
    def _roots(self) -> list[list[Any]]:
        """Roots of the variance of each estimator's latent functions, for cosines and sines."""
        roots: list[list[Any]] = [[] for _ in self.fits]
        for fit, of_fit in zip(self.fits, roots, strict=True):
            for own in fit.latents:
                # Each is an eigendecomposition if there is a tolerance: of a posterior, one.
                known = _ROOTS.setdefault(own.posterior, {})
                if self._tolerance not in known:
                    known[self._tolerance] = variance_root(
                        own.posterior, own.signal_variance, self._tolerance
                    )
                root = known[self._tolerance]
                scale = np.sqrt(own.signal_variance / len(fit.frequencies))
                # By columns, as BLAS multiplies triangles.
                of_fit.append(self.xp.array(np.asfortranarray(scale * root)))
        return roots

    def means(self, x: Array) -> Array:
        """Return latent means, (M, C, n)."""
        xp = self.xp
        if self.n_latents == 1:
            pairs = zip(self._frequencies, self._waves, strict=True)
            means = xp.stack([sum_of_waves(x, w, *own, xp) for w, own in pairs])[:, None]
        else:
            pairs = zip(self._frequencies, self._weights, strict=True)
            means = xp.stack([own @ xp.waves(x, w, by_column=True).T for w, own in pairs])
        if self._levels is not None:
            means = means + self._levels.mean
        return self.taper.moments(self.taper.share(x), means, 0.0)[0]

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances in double precision, (M, C, n) each."""
        xp, levels, found = self.xp, self._levels, []
        slopes: list[Array] = []
        for w, weights, roots in zip(self._frequencies, self._weights, self._roots, strict=True):
            z = xp.cosines_and_sines(xp.phases(x, w, by_column=True))
            if levels is not None:
                slopes.append(levels.slopes[len(slopes)] @ z.T)
            for number, (mean, root) in enumerate(zip(weights, roots, strict=True), 1):
                # The last latent function may overwrite the features.
                found.append(xp.moments(z, mean, root, overwrite=number == len(roots)))
        shape = (self.n_estimators, -1, len(x))
        means, variances = (xp.stack(own).reshape(shape) for own in zip(*found, strict=True))
        if levels is not None:
            means = means + levels.mean
            variances = xp.maximum(variances + xp.stack(slopes) + levels.variance, 0.0)
        mean, variance = self.taper.moments(self.taper.share(x), means, variances)
        return xp.double(mean), xp.double(variance)


class SceneLevels:
    """Levels ℓ of a scene beside its weights: var(√γ zᵗu + ℓ) = γ zᵗSz + 2 √γ zᵗcov(u, ℓ) + var ℓ.

    ``mean``, ``variance`` and ``prior_variance`` are (M, C, 1); ``slopes`` (C, 2D) of each
    estimator weigh cosines and sines.
    """

    def __init__(self, fits: Sequence[FourierFit], xp: Backend) -> None:
        levels = [[own.level for own in fit.latents if own.level is not None] for fit in fits]
        self.mean, self.variance, self.prior_variance = (
            xp.array([[[getattr(own, name)] for own in of_fit] for of_fit in levels])
            for name in ("mean", "variance", "prior_variance")
        )
        self.slopes = []
        for fit, of_fit in zip(fits, levels, strict=True):
            gammas = np.array([[own.signal_variance] for own in fit.latents])
            covariances = np.array([own.covariance for own in of_fit])
            self.slopes.append(
                xp.array(2.0 * np.sqrt(gammas / len(fit.frequencies)) * covariances)
            )


class FunctionModel(Model):
    """Latent functions at the training rows, the exact process, on the processor."""

    xp = HOST
    longest_row = LENGTH_LIMIT
    n_estimators = 1

    def __init__(
        self,
        training: Array,
        kernel: Kernel,
        fits: Sequence[ExactFit],
        shift: Array,
        latent_shift: float = 0.0,
        scenes: Sequence[LabelledScene] = (),
    ) -> None:
        self.training, self.kernel, self.fits, self.shift = training, kernel, fits, shift
        self.rows_per_block = block_rows(len(training), 8)
        self.scenes, self.n_latents = scenes, len(fits)
        added = scenes[0].prior_variance if scenes else 0.0
        self.largest_variance = np.array([[[fit.signal_variance + added] for fit in fits]])
        self._prior_means = np.array([[fit.prior_mean] for fit in fits]) + latent_shift

    def _covariance(self, x: Array, fit: ExactFit) -> Array:
        return exact_covariance(
            x, self.training, self.kernel, fit.signal_variance, fit.lengthscale
        )

    def means(self, x: Array) -> Array:
        """Return latent means, (1, C, n)."""
        if self.scenes:
            return self.moments(x)[0]
        means = [self._covariance(x, fit) @ fit.posterior.alpha for fit in self.fits]
        return (np.array(means) + self._prior_means)[None]

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances, (1, C, n) each."""
        found = [
            fit.posterior.moments(self._covariance(x, fit).T, fit.signal_variance)
            for fit in self.fits
        ]
        if self.scenes:
            found = [own.moments(x, *pair) for own, pair in zip(self.scenes, found, strict=True)]
        means, variances = (np.array(own) for own in zip(*found, strict=True))
        return (means + self._prior_means)[None], variances[None]
