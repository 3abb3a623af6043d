"""The exact Gaussian-process classifier as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import StrOptions

from undulatus.estimators.base import BinaryGaussianProcess, ProgressLine
from undulatus.estimators.training import column_namer, prepare
from undulatus.gp.blocks import block_rows, require_lengths
from undulatus.gp.exact import exact_covariance, exact_moments, fit_exact, require_memory
from undulatus.gp.kernels import KERNELS, find_kernel, mean_distance

Array = npt.NDArray[Any]


class GPC(BinaryGaussianProcess):
    """Exact Gaussian-process classifier: the baseline that RFFGPC and VFFGPC are measured against.

    The same logistic bound as theirs, with the whole n x n kernel matrix: cost O(n³),
    memory O(n²). Signal variance and lengthscale are learned.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"}
        The covariance function; ``"rbf"`` is the squared exponential.
    standardize : bool
        Centre and scale each feature by its weighted training mean and deviation.
    max_iter, tol : int, float
        Most outer iterations; the fit stops when one raises the bound by less than
        ``tol`` of its size.
    class_weight : dict or "balanced", optional
        Weights of the classes.
    prior_correction : mapping, (2,) array or "training", optional
        Real class frequencies, to undo balanced sampling or class weights.
    random_state : ignored
        The fit draws nothing; kept so that the classifiers can be exchanged.
    verbose : int
        1 shows a line of progress, 2 a line an iteration.

    Attributes
    ----------
    classes_ : (2,) array
    training_ : (n, d) array
        Distinct training rows, standardised.
    lengthscale_, signal_variance_, bound_, bound_history_, n_iter_, fit_report_
    feature_quantiles_, n_features_in_, feature_names_in_
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BinaryGaussianProcess._parameter_constraints,
        "kernel": [StrOptions(set(KERNELS))],
    }

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        standardize: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        class_weight: dict[Any, float] | str | None = None,
        prior_correction: Any = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.prior_correction = prior_correction
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from labelled rows, two classes of any type; a weight of 2 equals a row twice."""
        self._start_again()
        training = self._prepare(prepare, X, y, sample_weight, merge=True, threads=1)
        n = training.rows.shape[0]
        require_memory(n)
        x = training.standardisation(np.asarray(training.rows), np.float64)
        line = ProgressLine(type(self).__name__, self.verbose, self.max_iter)
        fit = fit_exact(
            x,
            np.where(training.positive, 0.5, -0.5),
            np.ones(n) if training.weight is None else training.weight,
            find_kernel(self.kernel),
            mean_distance(training.variances),
            max_iter=self.max_iter,
            tol=self.tol,
            report=lambda climb: line(climb.n_iter, f"bound {climb.bounds[-1]:.6g}"),
        )
        line.close()
        self.training_ = x
        self.lengthscale_ = fit.lengthscale
        self.signal_variance_ = fit.signal_variance
        self.posterior_ = fit.posterior
        self.bound_ = fit.bounds[-1]
        self.bound_history_ = np.array(fit.bounds)
        self.n_iter_ = len(fit.bounds) - 1
        self.fit_report_ = {
            "solver": "exact",
            "precision": "double",
            "steps": self.n_iter_,
            "jitter": fit.posterior.jitter,
            "stopped": fit.outcome,
            "rows": n,
        }
        self._warn_about(fit.outcome)
        return self

    def _block_plan(self) -> tuple[np.dtype[Any], int, int]:
        return np.dtype(np.float64), block_rows(len(self.training_), 8), 1

    def _check_reach(self, x: Array, first_row: int) -> None:
        # Beyond this squared distances overflow.
        require_lengths(x, 1e100, column_namer(self), first_row)

    def _latent_mean(self) -> Callable[[Array], Array]:
        kernel = find_kernel(self.kernel)

        def mean(x: Array) -> Array:
            cross = exact_covariance(
                x, self.training_, kernel, self.signal_variance_, self.lengthscale_
            )
            return np.asarray(cross @ self.posterior_.alpha)

        return mean

    def _latent_moments(self) -> Callable[[Array], tuple[Array, Array]]:
        kernel = find_kernel(self.kernel)
        return lambda x: exact_moments(
            x, self.training_, kernel, self.signal_variance_, self.lengthscale_, self.posterior_
        )
