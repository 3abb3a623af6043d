"""The exact Gaussian-process classifier as a scikit-learn estimator."""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar, Self

import numpy as np

from undulatus._progress import working_on
from undulatus.estimators.adaptation import Prior
from undulatus.estimators.base import SHARED_CONSTRAINTS, GaussianProcessClassifier, worst_outcome
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import Overview, prepare_rows
from undulatus.estimators.validation import column_namer
from undulatus.gp.adapt import SceneConfig, SceneFunctions
from undulatus.gp.backends import Array, Backend
from undulatus.gp.data import require_lengths
from undulatus.gp.exact import (
    ExactFit,
    ExactPosterior,
    Sites,
    blas_threads,
    fit_exact,
    mean_and_root,
    require_memory,
    sites_of,
    with_sites,
)
from undulatus.gp.kernels import find_kernel, mean_distance
from undulatus.gp.likelihood import POSTERIORS
from undulatus.gp.model import LENGTH_LIMIT, FunctionModel
from undulatus.gp.posterior import same_length
from undulatus.gp.update import NewRows, find_sites


class GPC(GaussianProcessClassifier):
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
        The posterior to predict with, once hyperparameters are learned: the best Gaussian
        approximation, of a latent function whose prior mean is set by the shares of the classes;
        or that of the paper's bound, whose variance is too small, with a prior mean of zero.
    class_weight : dict or "balanced", default=None
        Weights of the classes.
    prior_correction : mapping, (k,) array or "training", default=None
        Real class frequencies, to undo balanced sampling or class weights by a shift of
        the log odds; ``"training"`` takes those of ``y`` before ``class_weight``.
    random_state : int, RandomState or None, default=None
        Ignored: the fit is not random. All classifiers here have this parameter.
    verbose : int, default=0
        1 shows a line of progress, 2 one line per iteration.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does to a fit: ``"raise"`` ends it without a model; ``"keep"`` leaves the best
        one so far with a warning and ``fit_report_["stopped"] == "interrupted"``, if every
        latent function has got that far.

    Attributes
    ----------
    classes_ : (k,) array
        Sorted. Two classes have one latent function, more have one a class, against the rest;
        probabilities are made to sum to one.
    training_ : (n, d) array
        Distinct training rows, standardised; after updates, their rows too.
    latents_ : tuple of ExactFit
        The latent functions, each with hyperparameters of its own.
    lengthscale_, signal_variance_ : float, or (k,) array of more than two classes
        Hyperparameters of the kernel, σ and γ in the paper.
    prior_mean_ : float, or (k,) array of more than two classes
        What the latent mean returns to away from the training rows.
    posterior_ : ExactPosterior
        Of the latent function at the training rows; only of two classes.
    lower_bound_ : float
        Lower bound on the log evidence, by the posterior to predict with.
    lower_bounds_ : array
        The bound at the start and after each outer iteration.
    n_iter_ : int
        Outer iterations done.
    fit_report_ : dict
        ``"solver"`` ("exact"), ``"precision"`` ("double"), ``"steps"`` of all latent functions,
        ``"jitter"``, the largest that was added, ``"stopped"`` ("converged", "max_iter" or
        "interrupted"), and ``"rows"``, distinct ones of positive weight.
    feature_quantiles_ : (7, d) array
        Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
    updates_ : tuple of Update
        Rows added by ``update``, with the sites that stand for them; only after an update.
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
        on_interrupt: str = "raise",
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
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows of two classes or more; a weight of 2 equals a row given twice."""
        self._forget_last_fit()
        rows, options = self._check_input(X, merge=True, threads=1)
        data = prepare_rows(rows, y, sample_weight, options)
        self._keep_overview(data.overview)
        n = data.n_rows
        require_memory(n, len(data.overview.log_odds))
        # As files hold it: products of another memory order are rounded otherwise.
        x = np.ascontiguousarray(self.standardisation_(np.asarray(data.rows), np.float64))
        weight = np.ones(n) if data.weight is None else data.weight
        self.training_ = x
        self.latents_ = self._learn(x, data.codes, weight, data.overview)
        outcome = worst_outcome({latent.outcome for latent in self.latents_})
        self.fit_report_ = {
            "solver": "exact",
            "precision": "double",
            "steps": sum(len(latent.bounds) - 1 for latent in self.latents_),
            "jitter": max(latent.posterior.jitter for latent in self.latents_),
            "stopped": outcome,
            "rows": n,
        }
        self._warn_unless_converged(outcome, self.n_iter_)
        return self

    def _learn(
        self, x: Array, codes: Array, weight: Array, overview: Overview
    ) -> tuple[ExactFit, ...]:
        """Return the latent function of each class against the rest, or of the second of two."""
        latents: list[ExactFit] = []
        count = len(overview.log_odds)
        with working_on("learning"):
            for number, log_odds in enumerate(overview.log_odds.tolist()):
                if latents and latents[-1].outcome == "interrupted":
                    # A model lacks the latent functions that are still to be fitted.
                    raise KeyboardInterrupt
                v = np.where(codes if count == 1 else codes == number, 0.5, -0.5)
                name = "learning" if count == 1 else f"class {number + 1} of {count}"
                with working_on(name, number, count):
                    latents.append(self._learn_one(x, v, weight, overview, log_odds))
        return tuple(latents)

    def _learn_one(
        self, x: Array, v: Array, weight: Array, overview: Overview, log_odds: float
    ) -> ExactFit:
        with closing(ProgressLine(type(self).__name__, self.verbose, self.max_iter)) as line:
            return fit_exact(
                x,
                v,
                weight,
                find_kernel(self.kernel),
                mean_distance(overview.variances),
                max_iter=self.max_iter,
                tol=self.tol,
                bound=POSTERIORS[self.posterior],
                log_odds=log_odds,
                interruptible=self._keeps_on_interrupt,
                report=lambda progress: line(progress.n_iter, f"bound {progress.bounds[-1]:.6g}"),
            )

    # Corrections

    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        x, kernel = self.standardisation_(rows, np.float64), find_kernel(self.kernel)
        require_lengths(x, LENGTH_LIMIT, column_namer(self))
        training = np.concatenate([self.training_, x])
        require_memory(len(training), len(self.latents_))
        latents, sites = [], []
        with blas_threads(len(training)):
            for fit, sign in zip(self.latents_, signs, strict=True):
                mean, root = mean_and_root(fit, self.training_, x, kernel)
                seen = NewRows(mean, root, np.zeros(len(x)), sign, weight, fit.signal_variance)
                with blas_threads(root.shape[1]):
                    (own,) = find_sites([seen], POSTERIORS[self.posterior])
                new = Sites(own.precision, own.projected).about(fit.prior_mean)
                earlier = sites_of(fit, self.training_, kernel)
                latents.append(with_sites(fit, training, earlier.join(new), kernel))
                sites.append([own.precision, own.projected])
        fitted = {"training_": training, "latents_": tuple(latents)}
        return fitted, np.array([sites]).transpose(2, 0, 1, 3)

    def _scene_priors(self, rows: Array, config: SceneConfig) -> list[list[Prior]]:
        x, kernel = self.standardisation_(rows, np.float64), find_kernel(self.kernel)
        require_lengths(x, LENGTH_LIMIT, column_namer(self))
        return [[SceneFunctions(fit, self.training_, kernel, x, config) for fit in self.latents_]]

    def _without_rows(self, position: int) -> dict[str, Any]:
        kernel = find_kernel(self.kernel)
        # The rows of updates are the last ones, in their order.
        rows = [len(update.rows) for update in self.updates_[position:]]
        first = len(self.training_) - sum(rows)
        kept = np.delete(np.arange(len(self.training_)), slice(first, first + rows[0]))
        latents = []
        with blas_threads(len(self.training_)):
            for fit in self.latents_:
                sites = sites_of(fit, self.training_, kernel).take(kept)
                latents.append(with_sites(fit, self.training_[kept], sites, kernel))
        return {"training_": self.training_[kept], "latents_": tuple(latents)}

    # What a fit gives, in terms of its latent functions

    @property
    def lengthscale_(self) -> Any:
        """The lengthscale σ; with more than two classes that of each, (k,)."""
        return self._of_each([fit.lengthscale for fit in self.latents_])

    @property
    def signal_variance_(self) -> Any:
        """The signal variance γ; with more than two classes that of each, (k,)."""
        return self._of_each([fit.signal_variance for fit in self.latents_])

    @property
    def prior_mean_(self) -> Any:
        """What the latent mean returns to; with more than two classes that of each, (k,)."""
        return self._of_each([fit.prior_mean for fit in self.latents_])

    @staticmethod
    def _of_each(values: list[float]) -> Any:
        return values[0] if len(values) == 1 else np.array(values)

    @property
    def posterior_(self) -> ExactPosterior:
        """The posterior of the latent function of two classes."""
        if len(self.latents_) > 1:
            raise AttributeError(
                "A model of more than two classes has a posterior a class: see latents_."
            )
        return self.latents_[0].posterior

    @property
    def lower_bound_(self) -> float:
        """The bound on the log evidence, added up over latent functions."""
        return float(sum(fit.bounds[-1] for fit in self.latents_))

    @property
    def lower_bounds_(self) -> Array:
        """The bound along the way; a latent function that ended early keeps its last."""
        return np.asarray(np.sum(same_length([fit.bounds for fit in self.latents_]), axis=0))

    @property
    def n_iter_(self) -> int:
        """Outer iterations done, the most of any latent function."""
        return max(len(fit.bounds) - 1 for fit in self.latents_)

    def _model(self, xp: Backend) -> FunctionModel:
        # An exact process returns to its prior by itself.
        return FunctionModel(
            self.training_,
            find_kernel(self.kernel),
            self.latents_,
            self._prior_shift,
            self._latent_shift,
            self.scene_[0] if hasattr(self, "scene_") else (),
        )
