"""Fitted models as functions of standardised rows: weights of features, or functions.

``model.on(xp)`` prepares what blocks of rows need where they are computed. It has ``means(x)``,
the latent means (M, C, n) of M estimators with C latent functions each, and ``moments(x)``, these
and the latent variances, both with tapers and prior means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from undulatus._system import single_threaded_blas
from undulatus.gp.backends import HOST, Array, Backend
from undulatus.gp.backends.numpy import far_row
from undulatus.gp.data import block_rows, device_prediction_rows, longest_row
from undulatus.gp.exact import ExactFit, exact_covariance, exact_moments
from undulatus.gp.features import amplitudes_and_delays, sum_of_waves
from undulatus.gp.kernels import Kernel
from undulatus.gp.posterior import (
    FourierFit,
    LatentFit,
    Posterior,
    StagedRoot,
    share_of_tolerance,
    stage_root,
    tolerant_probability,
    variance_root,
)
from undulatus.gp.taper import Taper, TrainingRange, frequency_deviations, tapered_features

STAGGERED_ROWS = 16
"""A block of predictions has fewer rows: waves a power of two apart share the same cache lines."""

LENGTH_LIMIT = 1e100
"""Squared distances from longer rows than this overflow."""

_ROOTS: WeakKeyDictionary[Posterior, dict[tuple[str, float], Any]] = WeakKeyDictionary()
"""Roots of variances by posterior, name and tolerance: each takes an eigendecomposition."""


class Prepared(Protocol):
    """A model where blocks of rows are computed."""

    xp: Backend
    rows_per_block: int
    longest_row: float
    """Standardised rows that are longer lie too far out to be classified."""
    far_row: float
    """Longer ones need phases in double precision."""
    n_estimators: int
    signal_variance: Array
    """Of each latent function, (M, C, 1): no latent variance is larger."""

    def means(self, x: Array) -> Array:
        """Return latent means, (M, C, n)."""

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances in double precision, (M, C, n) each."""

    def tolerant_probability(self, x: Array) -> Array | None:
        """Return the probability of the second class, (n,), if there is a faster way to it."""


@dataclass(frozen=True)
class WeightModel:
    """Weights of Fourier features, of one estimator or of an ensemble."""

    fits: Sequence[FourierFit]
    training_range: TrainingRange
    variance_tolerance: float = 0.0
    """Largest error in probability by the variance."""
    shift: Array | None = None
    """Of the log odds of the second class, (1,), which the tolerance has to allow for."""
    latent_shift: float = 0.0
    """Of the latent mean, by models of earlier versions."""

    def on(self, xp: Backend) -> PreparedWeights:
        """Return the model where blocks of rows are computed."""
        return PreparedWeights(self, xp)


class PreparedWeights:
    """A :class:`WeightModel` where blocks of rows are computed."""

    def __init__(self, model: WeightModel, xp: Backend) -> None:
        self.model, self.xp = model, xp
        fits = model.fits
        d = len(fits[0].frequencies)
        on_host = block_rows(2 * d, xp.dtype.itemsize) - STAGGERED_ROWS
        self.rows_per_block = device_prediction_rows(d, xp) if xp.on_device else on_host
        every = np.concatenate([fit.frequencies for fit in fits])
        self.longest_row, self.far_row = longest_row(every), far_row(every)
        self.n_estimators = len(fits)
        self._frequencies = [xp.move(fit.frequencies) for fit in fits]
        self.signal_variance = xp.array(
            [[[own.signal_variance] for own in fit.latents] for fit in fits]
        )
        deviations = [frequency_deviations(fit.frequencies, fit.taper) for fit in fits]
        tapered = any(own is not None for own in deviations)
        self.taper = Taper(
            xp,
            xp.array(
                np.array([np.zeros(every.shape[1]) if own is None else own for own in deviations])
            )
            if tapered
            else None,
            model.training_range.on(xp) if tapered else None,
            self.signal_variance,
            xp.array([[[own.prior_mean] for own in fit.latents] for fit in fits]),
            model.latent_shift,
        )

    # Means

    @cached_property
    def _waves(self) -> list[tuple[Any, Any]]:
        """Amplitudes and delays of each estimator of two classes, (D,) each."""
        pairs = [
            amplitudes_and_delays(own.posterior.mean, own.signal_variance)
            for fit in self.model.fits
            for own in fit.latents
        ]
        return [(self.xp.move(amplitudes), self.xp.move(delays)) for amplitudes, delays in pairs]

    @cached_property
    def _weights(self) -> list[Any]:
        """Weights of cosines and sines of each estimator, (C, 2D)."""
        return [
            self.xp.array([_scale(own, fit) * own.posterior.mean for own in fit.latents])
            for fit in self.model.fits
        ]

    def means(self, x: Array) -> Array:
        """Return latent means, (M, C, n)."""
        xp = self.xp
        if len(self.model.fits[0].latents) == 1:
            pairs = zip(self._frequencies, self._waves, strict=True)
            means = xp.stack([sum_of_waves(x, w, *own, xp) for w, own in pairs])[:, None]
        else:
            pairs = zip(self._frequencies, self._weights, strict=True)
            means = xp.stack([own @ xp.waves(x, w, by_column=True).T for w, own in pairs])
        return self.taper.mean(x, means)

    # Variances

    @cached_property
    def _roots(self) -> list[list[tuple[Any, Any]]]:
        """Mean and root of each latent function of each estimator, for waves without a scale."""
        prepared = []
        for fit in self.model.fits:
            own_roots = [(_scale(own, fit), own) for own in fit.latents]
            prepared.append(
                [
                    (
                        self.xp.array(scale * own.posterior.mean),
                        self.xp.array(
                            np.asfortranarray(scale * self._root(own, "root", variance_root))
                        ),
                    )
                    for scale, own in own_roots
                ]
            )
        return prepared

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances in double precision, (M, C, n) each."""
        xp, means, variances = self.xp, [], []
        for w, roots in zip(self._frequencies, self._roots, strict=True):
            z, last = xp.waves(x, w, by_column=True), len(roots) - 1
            found = [
                xp.moments(z, mean, root, overwrite=i == last)
                for i, (mean, root) in enumerate(roots)
            ]
            means.append(xp.stack([mean for mean, _ in found]))
            variances.append(xp.stack([variance for _, variance in found]))
        mean, variance = self.taper.moments(x, xp.stack(means), xp.stack(variances))
        return xp.double(mean), xp.double(variance)

    def _root(self, own: LatentFit, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return a root of the variance, made once for a posterior and a tolerance."""
        roots = _ROOTS.setdefault(own.posterior, {})
        tolerance = self.model.variance_tolerance
        if self.model.shift is not None and len(self.model.shift) == 1:
            tolerance *= share_of_tolerance(float(self.model.shift[0]))
        key = (name, tolerance)
        if key not in roots:
            with single_threaded_blas():
                roots[key] = make(own.posterior, own.signal_variance, tolerance, *arguments)
        return roots[key]

    @cached_property
    def _staged(self) -> StagedRoot | None:
        # An ensemble's labels depend on the variances too, and must agree with its probabilities:
        # both come from the truncated roots.
        (fit, *others), tolerance = self.model.fits, self.model.variance_tolerance
        if tolerance == 0.0 or others or len(fit.latents) > 1:
            return None
        found: StagedRoot | None = self._root(fit.latents[0], "staged", stage_root, self.xp.dtype)
        if found is None:
            return None
        return StagedRoot(self.xp.array(found.first), self.xp.array(found.rest), found.remainder)

    def tolerant_probability(self, x: Array) -> Array | None:
        """Return the probability of the second class, (n,), if there is a faster way to it."""
        if self._staged is None:
            return None
        xp, (own,) = self.xp, self.model.fits[0].latents
        z, _ = tapered_features(x, self._frequencies[0], None, xp)
        z *= float(np.sqrt(own.signal_variance))
        share = self.taper.share(x)
        ones = xp.ones_like(x[:, 0])
        if share is not None:
            ones = share[0, 0]
            z *= ones[:, None]
        untapered = (1.0 - ones**2) * own.signal_variance
        prior = self.taper.mean(x, 0.0 * ones[None, None])[0, 0]
        shift = 0.0 if self.model.shift is None else float(self.model.shift[0])
        return tolerant_probability(
            z,
            xp.array(own.posterior.mean),
            prior,
            self._staged,
            self.model.variance_tolerance,
            untapered,
            shift,
            xp,
        )


def _scale(own: LatentFit, fit: FourierFit) -> float:
    """Return what features of a latent function have before cosines and sines, √(γ/D)."""
    return float(np.sqrt(own.signal_variance / len(fit.frequencies)))


@dataclass(frozen=True)
class FunctionModel:
    """Latent functions at the training rows: the exact process."""

    training: Array
    kernel: Kernel
    fits: Sequence[ExactFit]
    latent_shift: float = 0.0

    def on(self, xp: Backend) -> PreparedFunctions:
        """Return the model where blocks of rows are computed."""
        return PreparedFunctions(self)


class PreparedFunctions:
    """A :class:`FunctionModel` in double precision on the processor."""

    xp = HOST
    longest_row = far_row = LENGTH_LIMIT
    n_estimators = 1

    def __init__(self, model: FunctionModel) -> None:
        self.model = model
        self.rows_per_block = block_rows(len(model.training), 8)
        self.signal_variance = np.array([[[fit.signal_variance] for fit in model.fits]])
        self._prior_means = np.array([[fit.prior_mean] for fit in model.fits]) + model.latent_shift

    def means(self, x: Array) -> Array:
        """Return latent means, (1, C, n)."""
        training, kernel = self.model.training, self.model.kernel
        means = [
            exact_covariance(x, training, kernel, fit.signal_variance, fit.lengthscale)
            @ fit.posterior.alpha
            for fit in self.model.fits
        ]
        return (np.array(means) + self._prior_means)[None]

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return latent means and variances, (1, C, n) each."""
        found = [
            exact_moments(
                x,
                self.model.training,
                self.model.kernel,
                fit.signal_variance,
                fit.lengthscale,
                fit.posterior,
            )
            for fit in self.model.fits
        ]
        means, variances = (np.array(own) for own in zip(*found, strict=True))
        return (means + self._prior_means)[None], variances[None]

    def tolerant_probability(self, x: Array) -> Array | None:
        """Return None: there is no faster way to the probability."""
        return None
