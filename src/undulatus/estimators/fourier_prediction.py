"""What a fitted model over Fourier features says of rows, and of itself, by its members.

How a prediction goes through blocks of rows is in :mod:`undulatus.estimators.base`; here are the
functions of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from undulatus._system import count_threads, single_threaded_blas
from undulatus.estimators.base import (
    BlockFunctions,
    GaussianProcessMixin,
    Member,
    RowFunction,
)
from undulatus.estimators.training import spread_out
from undulatus.gp.arrays import (
    Array,
    Place,
    double,
    empty_like,
    find_device,
    like,
    namespace,
    to_host,
)
from undulatus.gp.blocks import PixelSource, block_rows, card_prediction_rows, longest_row
from undulatus.gp.damping import Fading, TrainingRange, spreads
from undulatus.gp.fourier import (
    amplitudes_and_delays,
    far_row,
    fourier_features,
    sum_of_waves,
    waves,
)
from undulatus.gp.passes import FourierFit, LatentFit, mean_of
from undulatus.gp.posterior import (
    Posterior,
    StagedRoot,
    latent_moments,
    share_of_tolerance,
    stage_root,
    tolerant_probability,
    variance_root,
)

DOUBLE_PREDICTION_ROWS = 2_000
"""Up to this many training rows, ``precision="auto"`` also predicts in double precision."""

SINGLE_ERROR = 4e-6
"""Prediction is in single precision if that changes no probability of some training rows by more.
The 1e-5 promised leave room for other rows, where up to 2.6 times the change was measured."""

COMPARED_ROWS = 512
"""Training rows at which single and double precision are compared."""

RANGE_AND_QUARTILES = [0, 2, 4, 6]
"""Rows of ``feature_quantiles_`` with the smallest value, the quartiles and the largest."""

STAGGERED_ROWS = 16
"""A block of predictions has fewer rows: waves a power of two apart share the same cache lines."""

_ROOTS: WeakKeyDictionary[Posterior, dict[tuple[str, float], Any]] = WeakKeyDictionary()
"""Roots of variances by posterior, name and tolerance: each takes an eigendecomposition."""


class FourierPredictor(GaussianProcessMixin):
    """A fitted Bayesian linear classifier over Fourier features, or a committee of them."""

    device: str | None
    precision: str
    variance_tolerance: float
    n_jobs: int | None
    members_: tuple[FourierFit, ...]
    fit_report_: dict[str, Any]

    # What a fit gives, in terms of its members

    @property
    def frequencies_(self) -> Array:
        """Effective frequencies, one member's after the other's, (n_members D, d)."""
        if len(self.members_) == 1:
            return self.members_[0].frequencies
        return np.concatenate([fit.frequencies for fit in self.members_])

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the whitened weights of a single model of two classes."""
        if len(self.members_) > 1:
            raise AttributeError(
                "A committee has no posterior_ of its own: see the posterior of its members_."
            )
        if len(self.members_[0].latents) > 1:
            raise AttributeError(
                "More than two classes have a posterior each: see members_[0].latents."
            )
        return self.members_[0].posterior

    @property
    def signal_variance_(self) -> float:
        """The signal variance γ, or the mean of the members'."""
        return mean_of([fit.signal_variance for fit in self.members_])

    @property
    def lengthscale_(self) -> float:
        """The lengthscale σ, or the geometric mean of the members'."""
        scales = [fit.lengthscale for fit in self.members_]
        return scales[0] if len(scales) == 1 else float(np.exp(np.mean(np.log(scales))))

    @property
    def bound_(self) -> float:
        """The bound on the log evidence, or the mean of the members'.

        By Jensen's inequality the mean is a bound on the logarithm of their mean evidence.
        """
        return mean_of([fit.bounds[-1] for fit in self.members_])

    @property
    def bound_history_(self) -> Array:
        """The bound along the way; a member that ended early keeps its last."""
        longest = max(len(fit.bounds) for fit in self.members_)
        histories = [
            np.pad(fit.bounds, (0, longest - len(fit.bounds)), mode="edge")
            for fit in self.members_
        ]
        return np.asarray(np.mean(histories, axis=0))

    @property
    def n_iter_(self) -> int:
        """Outer iterations done, the most of any member."""
        return max(fit.n_iter for fit in self.members_)

    # Prediction

    def member_disagreement(self, X: Any) -> Array:
        """Return the standard deviation of the latent mean over the members, (n,) or (n, k).

        Zero for a single model. Where it is large, what the committee says depends on which rows
        and which start a member happened to have. With more than two classes, that of each.
        """

        def make(blocks: BlockFunctions) -> RowFunction:
            means = self._make_member_means(blocks)
            return lambda x: (*namespace(x).std(double(means(x)), axis=0),)

        return self._per_latent(self._evaluate(X, make, self._n_latents))

    def _find_device(self, X: Any) -> str | None:
        return find_device(self.device, X)

    def _block_functions(
        self, device: str | None = None, dtype: np.dtype[Any] | None = None
    ) -> BlockFunctions:
        """Return how the latent functions are evaluated, in the model's precision or ``dtype``."""
        place = Place(dtype or self._dtype(), device, self.precision == "tf32")
        d, itemsize = len(self.members_[0].frequencies), place.dtype.itemsize
        on_host = block_rows(2 * d, itemsize) - STAGGERED_ROWS
        return BlockFunctions(
            place=place,
            rows_per_block=on_host if device is None else card_prediction_rows(d, place),
            threads=count_threads(self.n_jobs),
            longest_row=longest_row(self.frequencies_),
            far_row=far_row(self.frequencies_),
            members=tuple(
                Member(
                    partial(self._make_mean, fit, place), partial(self._make_moments, fit, place)
                )
                for fit in self.members_
            ),
            fading=self._fading(place.dtype).on(place),
            make_probability=partial(self._make_probability, place),
        )

    def _fading(self, dtype: npt.DTypeLike = np.float64) -> Fading:
        """Return how the members' latent functions return to their prior, for rows in ``dtype``.

        The ends of the range are rounded as rows are: none at an end counts as beyond it.
        """
        ends = self.standardisation_(self.feature_quantiles_[RANGE_AND_QUARTILES], dtype)
        members = self.members_
        return Fading(
            np.array([spreads(fit.frequencies, fit.spread) for fit in members]),
            TrainingRange.from_quantiles(*ends),
            np.array([[[own.signal_variance] for own in fit.latents] for fit in members]),
            np.array([[[own.level] for own in fit.latents] for fit in members]),
            self._latent_shift,
        )

    def _make_mean(self, fit: FourierFit, place: Place) -> Callable[[Array], Array]:
        frequencies = place.move(fit.frequencies)
        latents = [
            amplitudes_and_delays(own.posterior.mean, own.signal_variance) for own in fit.latents
        ]
        if len(latents) == 1:
            amplitudes, delays = map(place.move, latents[0])
            return lambda x: sum_of_waves(x, frequencies, amplitudes, delays)[None]
        d = len(fit.frequencies)
        scaled = place.move(
            np.array(
                [np.sqrt(own.signal_variance / d) * own.posterior.mean for own in fit.latents]
            )
        )
        return lambda x: like(scaled, x) @ waves(x, frequencies).T

    def _make_moments(
        self, fit: FourierFit, place: Place
    ) -> Callable[[Array], tuple[Array, Array]]:
        # The scale of the features goes into mean and root, rather than into every feature.
        scaled = []
        for own in fit.latents:
            scale = np.sqrt(own.signal_variance / len(fit.frequencies))
            root = scale * self._root(own, "root", variance_root)
            scaled.append((place.array(scale * own.posterior.mean), place.fortran(root)))
        last, frequencies = len(scaled) - 1, place.move(fit.frequencies)

        def moments(x: Array) -> tuple[Array, Array]:
            z = waves(x, frequencies)
            found = [
                latent_moments(z, mean, root, overwrite=latent == last)
                for latent, (mean, root) in enumerate(scaled)
            ]
            means, variances = zip(*found, strict=True)
            return namespace(x).stack(means), namespace(x).stack(variances)

        return moments

    def _make_probability(self, place: Place) -> Callable[[Array], Array] | None:
        # A committee's labels depend on the variances too, and must agree with its probabilities:
        # both come from the truncated roots.
        if self.variance_tolerance == 0.0 or len(self.members_) > 1 or self._n_latents > 1:
            return None
        (fit,) = self.members_
        root: StagedRoot | None = self._root(fit.latents[0], "staged", stage_root, place.dtype)
        if root is None:
            return None
        staged = replace(root, first=place.array(root.first), rest=place.array(root.rest))
        mean, fading = place.array(fit.posterior.mean), self._fading(place.dtype).on(place)
        frequencies, log_ratio = place.move(fit.frequencies), float(self._prior_shift[0])

        def probability(x: Array) -> Array:
            z, share = _features(x, frequencies, fit.signal_variance), fading.share(x)
            if share is None:
                share = like(np.ones((1, 1, len(x))), x)
            z *= share[0].T
            fresh = fading.fresh_variance(share)
            shift, fresh = fading.offset(fresh)[0, 0], fresh[0, 0]
            return tolerant_probability(
                z, mean, shift, staged, self.variance_tolerance, fresh, log_ratio
            )

        return probability

    def _dtype(self) -> np.dtype[Any]:
        # Models of 0.1.0 predict in the precision that they were trained in.
        report = self.fit_report_
        precision = report.get("prediction_precision", report["precision"])
        return np.dtype(np.float32 if precision == "single" else np.float64)

    def _root(self, own: LatentFit, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return a root of the variance, made once for a posterior and a tolerance."""
        roots = _ROOTS.setdefault(own.posterior, {})
        tolerance = self.variance_tolerance
        if self._n_latents == 1:
            tolerance *= share_of_tolerance(float(self._prior_shift[0]))
        key = (name, tolerance)
        if key not in roots:
            with single_threaded_blas():
                roots[key] = make(own.posterior, own.signal_variance, tolerance, *arguments)
        return roots[key]

    def _choose_prediction_precision(self, pixels: PixelSource) -> str:
        """Return ``"single"`` if that is as good as double, unless the user chose."""
        trained = str(self.fit_report_["precision"])
        if trained == "single" or self.precision != "auto":
            return trained
        if pixels.n_rows <= DOUBLE_PREDICTION_ROWS:
            return trained
        some = pixels.take(spread_out(pixels.n_rows, COMPARED_ROWS))
        x = to_host(some.block(slice(0, some.n_rows)).x)
        functions = {
            dtype: self._make_probabilities_and_variance(self._block_functions(None, dtype))
            for dtype in (np.dtype(np.float32), np.dtype(np.float64))
        }
        columns = slice(1, len(self.classes_))
        single, double = (f(x.astype(dtype))[columns] for dtype, f in functions.items())
        error = max(np.abs(a - b).max() for a, b in zip(single, double, strict=True))
        return "single" if error <= SINGLE_ERROR else trained


def _features(x: Array, frequencies: Array, signal_variance: float) -> Array:
    z = empty_like("z", (len(x), 2 * len(frequencies)), x)
    return fourier_features(x, frequencies, signal_variance, out=z)
