"""What a fitted Fourier classifier says of rows: features, waves and the posterior at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from undulatus.estimators.classifier import BinaryGaussianProcess
from undulatus.estimators.rows import column_namer
from undulatus.gp.blocks import (
    block_rows,
    count_threads,
    require_phases,
    single_threaded_blas,
)
from undulatus.gp.fourier import (
    amplitudes_and_delays,
    fourier_features,
    sum_of_waves,
)
from undulatus.gp.memory import scratch
from undulatus.gp.posterior import (
    Posterior,
    StagedRoot,
    latent_moments,
    slabs,
    stage_root,
    tolerant_probability,
    variance_root,
)

Array = npt.NDArray[Any]

_ROOTS: WeakKeyDictionary[Posterior, dict[tuple[str, float], Any]] = WeakKeyDictionary()


class FourierPredictor(BinaryGaussianProcess):
    """Prediction from Fourier features and the posterior of their weights.

    How they are found is left to :class:`undulatus.estimators.fourier.FourierGPC`.
    """

    frequencies_: Array
    signal_variance_: float
    posterior_: Posterior
    fit_report_: dict[str, Any]
    variance_tolerance: float
    n_jobs: int | None

    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.fit_report_["precision"] == "single" else np.float64)

    def _block_plan(self) -> tuple[np.dtype[Any], int, int]:
        dtype = self._dtype()
        rows = block_rows(2 * len(self.frequencies_), dtype.itemsize)
        return dtype, rows, count_threads(self.n_jobs)

    def _check_reach(self, x: Array, first_row: int) -> None:
        require_phases(x, self.frequencies_, column_namer(self), first_row)

    def _kept(self, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return what takes an eigendecomposition, made once for a posterior and a tolerance."""
        of_posterior = _ROOTS.setdefault(self.posterior_, {})
        key = (name, self.variance_tolerance)
        if key not in of_posterior:
            with single_threaded_blas():
                of_posterior[key] = make(
                    self.posterior_, self.signal_variance_, self.variance_tolerance, *arguments
                )
        return of_posterior[key]

    def _probabilities(self) -> Callable[[Array], tuple[Array, Array]]:
        root: StagedRoot | None = None
        if self.variance_tolerance > 0.0:
            root = self._kept("staged", stage_root, self._dtype())
        if root is None:
            return super()._probabilities()
        staged, mean = root, self.posterior_.mean.astype(self._dtype())

        def probabilities(x: Array) -> tuple[Array, Array]:
            second = tolerant_probability(
                self._features(x), mean, self._prior_shift, staged, self.variance_tolerance
            )
            return 1.0 - second, second

        return probabilities

    def _features(self, x: Array) -> Array:
        z = scratch("z", (len(x), 2 * len(self.frequencies_)), x.dtype)
        return fourier_features(x, self.frequencies_, self.signal_variance_, out=z)

    def _latent_mean(self) -> Callable[[Array], Array]:
        amplitudes, delays = amplitudes_and_delays(self.posterior_.mean, self.signal_variance_)
        return lambda x: sum_of_waves(x, self.frequencies_, amplitudes, delays)

    def _latent_moments(self) -> Callable[[Array], tuple[Array, Array]]:
        dtype = self._dtype()
        mean = self.posterior_.mean.astype(dtype)
        parts = slabs(self._kept("root", variance_root), dtype)

        def moments(x: Array) -> tuple[Array, Array]:
            return latent_moments(self._features(x), mean, parts)

        return moments
