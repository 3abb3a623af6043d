"""The parameters of RFFGPC and VFFGPC, and what a fit gives in terms of its estimators."""

from __future__ import annotations

import inspect
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions

from undulatus.estimators.base import (
    JOBS_CONSTRAINT,
    SHARED_CONSTRAINTS,
    GaussianProcessClassifier,
)
from undulatus.gp.backends import Array
from undulatus.gp.posterior import FourierFit, Posterior, mean_of, same_length

Class = TypeVar("Class", bound=type)


class FourierParameters(GaussianProcessClassifier):
    """Classifiers over Fourier features, before they say how they fit.

    Parameters
    ----------
    n_frequencies : int, default=100
        Number D of Fourier frequencies; the cost per row grows as D².
    kernel : {"rbf", "matern32", "matern52"}, default="rbf"
        Frequencies are drawn from the spectral density of this kernel.
    solver : {"auto", "batch", "stochastic"}, default="auto"
        ``"batch"`` is the paper's Algorithm 1, where a weight of 2 equals a repeated row;
        ``"stochastic"`` learns on minibatches, then fits the posterior by passes over all
        rows; ``"auto"`` is batch up to 500 distinct rows.
    n_estimators : int, default=8
        Estimators of an ensemble, each a model with ``n_frequencies`` of its own, learned from its
        own start, with other groups (or rows) for validation; every second one starts from
        frequencies along one feature each. The probability is the mean of theirs; 1 is a single
        model, which predicts as much faster.
    init_frequencies : (n_estimators D, d) array, default=None
        Starting frequencies w in units of 1/lengthscale (``frequencies_`` are w/lengthscale);
        drawn at random if None.
    standardize : bool, default=True
        Scale each feature by its weighted training deviation. Features are centred by their
        weighted training mean either way.
    warp : bool, default=True
        Compress the tails of each feature before it is scaled, by asinh((x - median) / mean
        distance from the median), so that a few extreme values do not push all others together.
        Needs ``standardize=True``.
    taper : float or "auto", default="auto"
        How uncertain frequencies are, as a share of their size: ``"auto"`` is 0.05 with
        ``groups``, whose model is meant for others, and 0.02 without. The larger it is, the sooner
        the model returns to its prior away from the training data: to the shares of the classes
        and the variance ``signal_variance_``. 0 lets features go on for ever, as in the paper.
    max_iter : int, default=100
        Most outer iterations, of 25 minibatches each for the stochastic solver.
    tol : float, default=1e-4
        The fit stops when an iteration raises the bound (batch) or the validation likelihood
        (stochastic) by less than ``tol`` of its size.
    batch_size : int or "auto", default="auto"
        Rows in a minibatch of the stochastic solver; ``"auto"`` is 256 up to 50,000 training rows
        and 2,048 beyond.
    early_stopping : bool or "auto", default="auto"
        Leave out a fifth of the rows (at most 2,048) for validation while frequencies are learned,
        and keep the frequencies under which these rows were likeliest: a guard against fitting
        noise. The posterior is that of all rows. ``"auto"`` does so unless ``solver="batch"``, the
        paper's own; where ``solver="auto"`` picks batch, rows are left out. Has no effect where
        frequencies stay as drawn.
    precision : {"auto", "single", "double", "tf32"}, default="auto"
        Precision of the features. ``"auto"`` learns frequencies on minibatches in single, and fits
        the posterior in double up to 30,000 rows. From 2,000 rows on it predicts in single if that
        changes no probability by more than 1e-5. Matrices are always factorised in double.
        ``"tf32"`` is single with products of few digits on NVIDIA's GPUs: faster, and right to
        1e-2 or so.
    posterior : {"variational", "bound"}, default="variational"
        The posterior to predict with, once frequencies are learned: the best Gaussian one, of a
        latent function whose prior mean is set by the shares of the classes; or that of the
        paper's bound, whose variance is too small, with a prior mean of zero.
    class_weight : dict or "balanced", default=None
        Weights of the classes.
    prior_correction : mapping, (k,) array or "training", default=None
        Real class frequencies, to undo balanced sampling or class weights by a shift of the
        log odds; ``"training"`` takes those of ``y`` before ``class_weight``.
    variance_tolerance : float, default=0.0
        Largest error in probability allowed for a faster variance; 0 is exact.
    checkpoint : path, default=None
        File written at every outer iteration; a fit of the same data with the same settings
        continues from it, any other fit is refused. An ensemble has a file for each estimator,
        with ``.1``, ``.2``, ... at the end of its name.
    n_jobs : int, default=None
        Threads; None is all cores. The model does not depend on it.
    device : str, default=None
        Where to compute: ``"cuda"``, ``"cuda:1"`` or another device of torch, which rows are moved
        to block by block. None is the processor, but for arrays that are on a device: these are
        used where they are, and results stay there (torch's tensors, CuPy's and JAX's arrays). The
        model is the same but for rounding, and knows nothing of the device.
    random_state : int, RandomState or None, default=None
        Seed of the frequencies and of minibatches.
    warm_start : bool, default=False
        Start from the frequencies and hyperparameters of the last fit, each estimator from its
        own.
    verbose : int, default=0
        1 shows a line of progress, 2 one line per iteration and pass.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does to a fit: ``"raise"`` ends it without a model, and a later fit continues
        from the ``checkpoint``, if there is one; ``"keep"`` leaves the best model so far with a
        warning and ``fit_report_["stopped"] == "interrupted"``, and whatever called ``fit`` goes
        on.

    Attributes
    ----------
    classes_ : (k,) array
        Sorted. Two classes have one latent function, more have one a class, against the rest, over
        the same frequencies; an estimator's probabilities are made to sum to one.
    estimators_ : tuple of FourierFit
        The estimators of the ensemble; a single model is its only one.
    frequencies_ : (n_estimators D, d) array
        Effective frequencies w/lengthscale, radians per unit of the standardised feature, one
        estimator's after the other's.
    lengthscale_, signal_variance_ : float
        The paper's sigma and gamma; of an ensemble, the geometric mean of the estimators' sigma
        and the mean of their gamma; of more than two classes, the mean of theirs.
    posterior_ : Posterior
        Of the 2 D whitened weights; only of a single model of two classes.
    lower_bound_ : float
        Lower bound on the log evidence, by the posterior to predict with; of an ensemble, the mean
        of the estimators'.
    lower_bounds_ : array
        The bound after each pass over all rows or, for the paper's own model by the batch
        solver, after each outer iteration and at the end; of an ensemble, the mean, in which an
        estimator that ended early keeps its last.
    n_iter_ : int
        Outer iterations done; of an ensemble, the most of any estimator.
    fit_report_ : dict
        One dict, of an ensemble too: ``"solver"`` ("batch" or "stochastic"); ``"precision"`` and
        ``"prediction_precision"`` ("single" or "double"); ``"steps"``, outer iterations or
        minibatches of all estimators; ``"jitter"``, the largest that was added; ``"stopped"``
        ("converged", "max_iter" or "interrupted"); ``"rows"`` of positive weight, distinct ones
        where equal rows were merged; ``"starting_lengthscale"``; and ``"validation_nll"``, a list
        of the mean negative log likelihood of validation rows along the way, empty if there were
        none. Of an ensemble the last two are lists of these, one for each estimator.
    feature_quantiles_ : (7, d) array
        Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
    updates_ : tuple of Update
        Rows added by ``update``, with the sites that stand for them; only after an update.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if ``X`` has named columns.
    """

    estimators_: tuple[FourierFit, ...]
    device: str | None
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SHARED_CONSTRAINTS,
        "n_frequencies": [Interval(Integral, 1, None, closed="left")],
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions({"auto", "batch", "stochastic"})],
        "init_frequencies": ["array-like", None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "precision": [StrOptions({"auto", "single", "double", "tf32"})],
        "device": [str, None],
        "variance_tolerance": [Interval(Real, 0, None, closed="left")],
        "checkpoint": [str, PathLike, None],
        "n_jobs": JOBS_CONSTRAINT,
        "taper": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_frequencies: int = 100,
        *,
        n_estimators: int = 8,
        kernel: str = "rbf",
        solver: str = "auto",
        init_frequencies: npt.ArrayLike | None = None,
        standardize: bool = True,
        warp: bool = True,
        taper: float | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        batch_size: int | str = "auto",
        early_stopping: bool | str = "auto",
        precision: str = "auto",
        posterior: str = "variational",
        class_weight: dict[Any, float] | str | None = None,
        prior_correction: Any = None,
        variance_tolerance: float = 0.0,
        checkpoint: str | PathLike[str] | None = None,
        n_jobs: int | None = None,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        verbose: int = 0,
        on_interrupt: str = "raise",
    ) -> None:
        self.n_frequencies = n_frequencies
        self.n_estimators = n_estimators
        self.kernel = kernel
        self.solver = solver
        self.init_frequencies = init_frequencies
        self.standardize = standardize
        self.warp = warp
        self.taper = taper
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.precision = precision
        self.posterior = posterior
        self.class_weight = class_weight
        self.prior_correction = prior_correction
        self.variance_tolerance = variance_tolerance
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.device = device
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.on_interrupt = on_interrupt

    # What a fit gives, in terms of its estimators

    @property
    def frequencies_(self) -> Array:
        """Effective frequencies, one estimator's after the other's, (n_estimators D, d)."""
        if len(self.estimators_) == 1:
            return self.estimators_[0].frequencies
        return np.concatenate([fit.frequencies for fit in self.estimators_])

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the whitened weights of a single model of two classes."""
        if len(self.estimators_) > 1:
            raise AttributeError(
                "An ensemble has no posterior_ of its own: see those of its estimators_."
            )
        if len(self.estimators_[0].latents) > 1:
            raise AttributeError(
                "More than two classes have a posterior each: see estimators_[0].latents."
            )
        return self.estimators_[0].latents[0].posterior

    @property
    def signal_variance_(self) -> float:
        """The signal variance γ, or the mean of the estimators'."""
        return mean_of([fit.signal_variance for fit in self.estimators_])

    @property
    def lengthscale_(self) -> float:
        """The lengthscale σ, or the geometric mean of the estimators'."""
        scales = [fit.lengthscale for fit in self.estimators_]
        return scales[0] if len(scales) == 1 else float(np.exp(np.mean(np.log(scales))))

    @property
    def lower_bound_(self) -> float:
        """The bound on the log evidence, or the mean of the estimators'.

        By Jensen's inequality the mean is a bound on the logarithm of their mean evidence.
        """
        return mean_of([fit.bounds[-1] for fit in self.estimators_])

    @property
    def lower_bounds_(self) -> Array:
        """The bound along the way; an estimator that ended early keeps its last."""
        return np.asarray(np.mean(same_length([fit.bounds for fit in self.estimators_]), axis=0))

    @property
    def n_iter_(self) -> int:
        """Outer iterations done, the most of any estimator."""
        return max(fit.n_iter for fit in self.estimators_)


def fill_in_docstring(cls: Class) -> Class:
    """Put the parameters and attributes into the docstring of a class."""
    shared = inspect.cleandoc(FourierParameters.__doc__ or "").partition("\n\n")[2]
    cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace("{parameters}", shared)
    return cls
