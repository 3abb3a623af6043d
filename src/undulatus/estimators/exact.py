"""The exact Gaussian-process classifier as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin

from undulatus.estimators.base import (
    SHARED_CONSTRAINTS,
    BlockFunctions,
    GaussianProcessMixin,
    LatentFunction,
    ProgressLine,
)
from undulatus.estimators.training import column_namer, prepare_rows
from undulatus.gp.blocks import block_rows, require_lengths
from undulatus.gp.damping import Fading
from undulatus.gp.exact import exact_covariance, exact_moments, fit_exact, require_memory
from undulatus.gp.kernels import find_kernel, mean_distance

Array = npt.NDArray[Any]

LENGTH_LIMIT = 1e100
"""Squared distances from longer rows than this overflow."""


class GPC(GaussianProcessMixin, ClassifierMixin, BaseEstimator):
    """Exact Gaussian-process classifier: the baseline for RFFGPC and VFFGPC.

    Uses the same bounds as they do, with the whole n x n kernel matrix: cost O(n³),
    memory O(n²). Signal variance and lengthscale are learned.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"}, default="rbf"
        The covariance function; ``"rbf"`` is the squared exponential.
    standardize : bool, default=True
        Scale each feature by its weighted training deviation. Features are centred by their
        weighted training mean either way.
    warp : bool, default=True
        Compress the tails of each feature before it is scaled, by asinh((x - median) / mean
        distance from the median). Needs ``standardize=True``.
    max_iter : int, default=100
        Most outer iterations.
    tol : float, default=1e-4
        The fit stops when an iteration raises the bound by less than ``tol`` of its size.
    posterior : {"variational", "bound"}, default="variational"
        The posterior handed out, once hyperparameters are learned: the best Gaussian
        approximation, of a latent function whose level is set by the shares of the classes; or
        that of the paper's bound, whose variance is too small, without a level.
    class_weight : dict or "balanced", default=None
        Weights of the classes.
    prior_correction : mapping, (2,) array or "training", default=None
        Real class frequencies, to undo balanced sampling or class weights by a shift of
        the latent mean; ``"training"`` takes those of ``y`` before ``class_weight``.
    random_state : int, RandomState or None, default=None
        Ignored: the fit is not random. All classifiers here have this parameter.
    verbose : int, default=0
        1 shows a line of progress, 2 one line per iteration.

    Attributes
    ----------
    classes_ : (2,) array
    training_ : (n, d) array
        Distinct training rows, standardised.
    lengthscale_, signal_variance_ : float
        Hyperparameters of the kernel, σ and γ in the paper.
    level_ : float
        What the latent mean returns to away from the training rows.
    posterior_ : ExactPosterior
        Of the latent function at the training rows.
    bound_ : float
        Bound on the log evidence, by the posterior handed out.
    bound_history_ : array
        The bound at the start and after each outer iteration.
    n_iter_ : int
        Outer iterations done.
    fit_report_ : dict
        Solver, precision, steps, jitter, rows, and why the fit stopped.
    feature_quantiles_ : (7, d) array
        Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if ``X`` has named columns.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from undulatus import GPC
    >>> X, y = make_moons(60, noise=0.2, random_state=0)
    >>> model = GPC(tol=1e-3).fit(X, y)
    >>> model.predict_proba(X).shape
    (60, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = SHARED_CONSTRAINTS

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        standardize: bool = True,
        warp: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        posterior: str = "variational",
        class_weight: dict[Any, float] | str | None = None,
        prior_correction: Any = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.standardize = standardize
        self.warp = warp
        self.max_iter = max_iter
        self.tol = tol
        self.posterior = posterior
        self.class_weight = class_weight
        self.prior_correction = prior_correction
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from labelled rows of two classes; a weight of 2 equals a row given twice."""
        self._forget_last_fit()
        rows, options = self._check_input(X, merge=True, threads=1)
        data = prepare_rows(rows, y, sample_weight, options)
        self._keep_overview(data.overview)
        n = data.n_rows
        require_memory(n)
        x = self.standardisation_(np.asarray(data.rows), np.float64)
        line = ProgressLine(type(self).__name__, self.verbose, self.max_iter)
        fit = fit_exact(
            x,
            np.where(data.positive, 0.5, -0.5),
            np.ones(n) if data.weight is None else data.weight,
            find_kernel(self.kernel),
            mean_distance(data.overview.variances),
            max_iter=self.max_iter,
            tol=self.tol,
            variational=self.posterior == "variational",
            log_odds=data.overview.log_odds,
            report=lambda climb: line(climb.n_iter, f"bound {climb.bounds[-1]:.6g}"),
        )
        line.close()
        self.training_ = x
        self.lengthscale_ = fit.lengthscale
        self.signal_variance_ = fit.signal_variance
        self.level_ = fit.level
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
        self._warn_unless_converged(fit.outcome, self.n_iter_)
        return self

    def _block_functions(self) -> BlockFunctions:
        columns = column_namer(self)
        return BlockFunctions(
            dtype=np.dtype(np.float64),
            rows_per_block=block_rows(len(self.training_), 8),
            threads=1,
            require_in_range=lambda x, first: require_lengths(x, LENGTH_LIMIT, columns, first),
            members=(LatentFunction(self._make_mean, self._make_moments),),
            # An exact process returns to its prior by itself.
            fading=Fading(
                np.zeros(1), None, self.signal_variance_, self.level_, self._prior_shift
            ),
        )

    def _make_mean(self) -> Callable[[Array], Array]:
        kernel = find_kernel(self.kernel)

        def mean(x: Array) -> Array:
            cross = exact_covariance(
                x, self.training_, kernel, self.signal_variance_, self.lengthscale_
            )
            return np.asarray(cross @ self.posterior_.alpha)

        return mean

    def _make_moments(self) -> Callable[[Array], tuple[Array, Array]]:
        kernel = find_kernel(self.kernel)
        return lambda x: exact_moments(
            x, self.training_, kernel, self.signal_variance_, self.lengthscale_, self.posterior_
        )
