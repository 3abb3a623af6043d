"""RFF-GPC and VFF-GPC, the paper's classifiers over Fourier features, for scikit-learn.

Algorithm 1 is in :mod:`undulatus.gp.batch`, the minibatch solver in
:mod:`undulatus.gp.stochastic`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions

from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.base import (
    JOBS_CONSTRAINT,
    SHARED_CONSTRAINTS,
    BlockFunctions,
    GaussianProcessMixin,
    ProgressLine,
    make_generator,
)
from undulatus.estimators.checkpoint import Checkpoint, fingerprint
from undulatus.estimators.training import (
    TrainingData,
    column_namer,
    into_memory,
    is_chunked,
    prepare_rows,
    spread_out,
)
from undulatus.gp.batch import BatchState, fit_batch
from undulatus.gp.blocks import (
    PHASE_LIMIT,
    Pixels,
    PixelSource,
    block_rows,
    recycling,
    require_phases,
    scratch,
)
from undulatus.gp.fourier import amplitudes_and_delays, fourier_features, sum_of_waves
from undulatus.gp.kernels import find_kernel, mean_distance
from undulatus.gp.passes import LEARNING_SHARE, FourierFit, Start, choose_start
from undulatus.gp.posterior import (
    Posterior,
    StagedRoot,
    latent_moments,
    slabs,
    stage_root,
    tolerant_probability,
    variance_root,
)
from undulatus.gp.stochastic import (
    LEARNING_VARIANCE_LIMIT,
    STEPS_PER_ITERATION,
    Walk,
    fit_stochastic,
)

Array = npt.NDArray[Any]

Class = TypeVar("Class", bound=type)

DOUBLE_ROWS = 30_000
"""Up to this many training rows, ``precision="auto"`` works in double precision."""

DOUBLE_PREDICTION_ROWS = 2_000
"""Up to this many training rows, ``precision="auto"`` also predicts in double precision."""

SINGLE_ERROR = 4e-6
"""Prediction is in single precision if that changes no probability of some training rows by more.
The 1e-5 promised leave room for other rows, where up to 2.6 times the change was measured."""

COMPARED_ROWS = 2_048
"""Training rows at which single and double precision are compared."""

BATCH_ROWS = 2_000
"""Up to this many distinct training rows, ``solver="auto"`` is ``"batch"``."""

SMALL_BATCH, LARGE_BATCH = 512, 2048
"""Rows of a minibatch with ``batch_size="auto"``: the small one for few training rows ..."""

SMALL_BATCH_ROWS = 50_000
"""... up to this many, where it learned as well or better in a third of the time
(``python -m benchmarks.batch_size``)."""

_ROOTS: WeakKeyDictionary[Posterior, dict[tuple[str, float], Any]] = WeakKeyDictionary()
"""Roots of variances by posterior, name and tolerance: each takes an eigendecomposition."""

_PARAMETERS = """\
Parameters
----------
n_frequencies : int, default=100
    Number D of Fourier frequencies; the cost per row grows as D².
kernel : {"rbf", "matern32", "matern52"}, default="rbf"
    Frequencies are drawn from the spectral density of this kernel.
solver : {"auto", "batch", "stochastic"}, default="auto"
    ``"batch"`` is the paper's Algorithm 1, where a weight of 2 equals a repeated row;
    ``"stochastic"`` learns on minibatches, then fits the posterior by exact passes over all
    rows; ``"auto"`` is batch up to 2,000 distinct rows.
frequencies : (D, d) array, default=None
    Starting frequencies w in units of 1/lengthscale (``frequencies_`` are w/lengthscale); drawn
    at random if None.
standardize : bool, default=True
    Scale each feature by its weighted training deviation. Features are centred by their
    weighted training mean either way.
max_iter : int, default=100
    Most outer iterations, of 25 minibatches each for the stochastic solver.
tol : float, default=1e-4
    The fit stops when an iteration raises the bound (batch) or the held-back likelihood
    (stochastic) by less than ``tol`` of its size.
batch_size : int or "auto", default="auto"
    Rows in a minibatch of the stochastic solver; ``"auto"`` is 512 up to 50,000 training rows
    and 2,048 beyond.
early_stopping : bool or "auto", default="auto"
    Hold back a fifth of the rows (at most 2,048) while frequencies are learned, and keep the
    frequencies under which these rows were likeliest: a guard against fitting noise. The
    posterior is that of all rows. ``"auto"`` does so unless ``solver="batch"``, the paper's
    own; where ``solver="auto"`` picks batch, rows are held back. Has no effect where
    frequencies stay as drawn.
precision : {"auto", "single", "double"}, default="auto"
    Precision of the features. ``"auto"`` trains in double up to 30,000 rows. From 2,000 rows
    on it predicts in single if that changes no probability by more than 1e-5. Matrices are
    always factorised in double.
class_weight : dict or "balanced", default=None
    Weights of the classes.
prior_correction : mapping, (2,) array or "training", default=None
    Real class frequencies, to undo balanced sampling or class weights by a shift of the
    latent mean; ``"training"`` takes those of ``y`` before ``class_weight``.
variance_tolerance : float, default=0.0
    Largest error in probability allowed for a faster variance; 0 is exact.
checkpoint : path, default=None
    File written at every outer iteration; a fit of the same data with the same settings
    continues from it, any other fit is refused.
n_jobs : int, default=None
    Threads; None is all cores. The model does not depend on it.
random_state : int, RandomState or None, default=None
    Seed of the frequencies and of minibatches.
warm_start : bool, default=False
    Start from the frequencies and hyperparameters of the last fit.
verbose : int, default=0
    1 shows a line of progress, 2 one line per iteration."""

_ATTRIBUTES = """\
Attributes
----------
classes_ : (2,) array
frequencies_ : (D, d) array
    Effective frequencies w/lengthscale, radians per unit of the standardised feature.
lengthscale_, signal_variance_ : float
    The paper's sigma and gamma.
posterior_ : Posterior
    Of the 2 D whitened weights.
bound_ : float
    Bound on the log evidence.
bound_history_ : array
    The bound after each exact pass over all rows or, for the batch solver without early
    stopping, after each outer iteration and at the end.
n_iter_ : int
    Outer iterations done.
fit_report_ : dict
    Solver, precision, precision of predictions, steps, jitter, rows, why the fit stopped,
    and the mean negative log likelihood of held-back rows along the way, if any were held
    back.
feature_quantiles_ : (7, d) array
    Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
n_features_in_ : int
feature_names_in_ : array of str
    Only if ``X`` has named columns."""


def _fill_in_docstring(cls: Class) -> Class:
    text = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = text.replace("{parameters}", _PARAMETERS).replace("{attributes}", _ATTRIBUTES)
    return cls


class FourierGPC(GaussianProcessMixin, ClassifierMixin, BaseEstimator):
    """A Bayesian linear classifier over Fourier features; see RFFGPC and VFFGPC."""

    _learns_frequencies: ClassVar[bool]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SHARED_CONSTRAINTS,
        "n_frequencies": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions({"auto", "batch", "stochastic"})],
        "frequencies": ["array-like", None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "precision": [StrOptions({"auto", "single", "double"})],
        "variance_tolerance": [Interval(Real, 0, None, closed="left")],
        "checkpoint": [str, PathLike, None],
        "n_jobs": JOBS_CONSTRAINT,
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_frequencies: int = 100,
        *,
        kernel: str = "rbf",
        solver: str = "auto",
        frequencies: npt.ArrayLike | None = None,
        standardize: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        batch_size: int | str = "auto",
        early_stopping: bool | str = "auto",
        precision: str = "auto",
        class_weight: dict[Any, float] | str | None = None,
        prior_correction: Any = None,
        variance_tolerance: float = 0.0,
        checkpoint: str | PathLike[str] | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.n_frequencies = n_frequencies
        self.kernel = kernel
        self.solver = solver
        self.frequencies = frequencies
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.precision = precision
        self.class_weight = class_weight
        self.prior_correction = prior_correction
        self.variance_tolerance = variance_tolerance
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Learn from labelled rows.

        Parameters
        ----------
        X : (n, d) array, table with named columns, memory map, or anything 2-D to slice
            Features; never copied whole. A dask array, or an xarray DataArray of one, is read
            by chunks where dask computes, on threads or on the workers of an active
            ``distributed.Client``: frequencies are learned here on a sample, and the passes
            over all rows send back sums only. The model does not depend on the scheduler or
            its workers, and depends on the chunks by rounding only.
        y : (n,) array
            Two classes, of any type; a dask array only if ``X`` is one.
        sample_weight : (n,) array, optional
            Weights >= 0; a weight of 2 equals a row given twice.
        groups : (n,) array, optional
            Which rows belong together, such as the day or the image they are from. With
            ``early_stopping`` whole groups are held back, so that learning stops where it no
            longer carries over to new days or images. A single group counts as none.
        """
        earlier = self._end_of_last_fit()
        self._forget_last_fit()
        threads = count_threads(self.n_jobs)
        if is_chunked(X) and self.solver == "auto" and X.shape[0] <= BATCH_ROWS:
            X, y, sample_weight, groups = map(into_memory, (X, y, sample_weight, groups))
        data = self._prepare(X, y, sample_weight, groups, threads)
        rng = make_generator(self.random_state)
        dtype = self._choose_dtype(data.n_rows)
        pixels = data.pixels(dtype, block_rows(2 * self.n_frequencies, dtype.itemsize), threads)
        stochastic = is_chunked(X) or self._is_stochastic(pixels.n_rows)
        with single_threaded_blas(), recycling():
            start = earlier or self._choose_start(pixels, data, rng, stochastic)
            self._require_usable(start, data, pixels.n_features)
            line = ProgressLine(type(self).__name__, self.verbose, self.max_iter)
            fit = self._learn(pixels, data, start, rng, line, stochastic)
            line.close()
        self._keep(fit, pixels, start, stochastic)
        self.fit_report_["prediction_precision"] = self._choose_prediction_precision(pixels)
        self._warn_unless_converged(fit.outcome)
        return self

    # The steps of a fit, in order

    def _end_of_last_fit(self) -> Start | None:
        """Return where the last fit ended, if ``warm_start`` continues from there."""
        if not (self.warm_start and hasattr(self, "frequencies_")):
            return None
        unit = self.frequencies_ * self.lengthscale_
        if unit.shape[0] != self.n_frequencies:
            raise InputError(
                f"warm_start=True continues with {unit.shape[0]} frequencies, but n_frequencies "
                f"is {self.n_frequencies}. Set warm_start=False to start again."
            )
        return Start(unit, self.lengthscale_, self.signal_variance_)

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, threads: int
    ) -> TrainingData:
        rows, options = self._check_input(X, merge=self.solver != "stochastic", threads=threads)
        data: TrainingData
        if is_chunked(rows):
            from undulatus.estimators.training_dask import prepare_chunks

            if self.solver == "batch":
                raise InputError(
                    'solver="batch" needs the data in memory, but X is a dask array. Pass '
                    'X.compute(), or set solver="stochastic".'
                )
            data = prepare_chunks(rows, y, sample_weight, options, groups)
        else:
            data = prepare_rows(rows, y, sample_weight, options, groups)
        self._keep_overview(data.overview)
        return data

    def _choose_dtype(self, n_rows: int) -> np.dtype[Any]:
        if self.precision == "auto":
            return np.dtype(np.float64 if n_rows <= DOUBLE_ROWS else np.float32)
        return np.dtype(np.float64 if self.precision == "double" else np.float32)

    def _is_stochastic(self, n_rows: int) -> bool:
        if self.solver == "auto":
            return n_rows > BATCH_ROWS
        return self.solver == "stochastic"

    def _minibatch_rows(self, n_rows: int) -> int:
        if self.batch_size == "auto":
            return SMALL_BATCH if n_rows <= SMALL_BATCH_ROWS else LARGE_BATCH
        return int(self.batch_size)

    def _choose_start(
        self,
        pixels: PixelSource,
        data: TrainingData,
        rng: np.random.Generator,
        stochastic: bool,
    ) -> Start:
        unit = self._unit_frequencies(rng)
        distance = mean_distance(data.overview.variances)
        if not stochastic:
            return choose_start(pixels, unit, distance, rng)
        start = choose_start(pixels, unit, distance, rng, LEARNING_VARIANCE_LIMIT)
        if self._learns_frequencies:
            # Learned frequencies can start finer than random ones, and find finer structure.
            return replace(start, lengthscale=LEARNING_SHARE * start.lengthscale)
        return start

    def _unit_frequencies(self, rng: np.random.Generator) -> Array:
        """Return the starting frequencies times the lengthscale, drawn or given, (D, d)."""
        shape = (self.n_frequencies, self.n_features_in_)
        if self.frequencies is None:
            return find_kernel(self.kernel).draw(rng, *shape)
        with as_input_errors("frequencies"):
            unit = np.array(self.frequencies, dtype=np.float64)
        if unit.shape != shape:
            raise InputError(
                f"frequencies must have shape {shape} (n_frequencies, features of X), "
                f"got {unit.shape}."
            )
        if not np.isfinite(unit).all():
            raise InputError("frequencies must be finite, but hold NaN or infinity.")
        return unit

    def _require_usable(self, start: Start, data: TrainingData, n_features: int) -> None:
        """Raise unless ``start`` suits the features, and phases of all rows keep their digits."""
        if start.unit_frequencies.shape[1] != n_features:
            raise InputError(
                f"warm_start=True continues with {start.unit_frequencies.shape[1]} features, but "
                f"X has {n_features}. Set warm_start=False to start again."
            )
        # Rows are read only if a corner of the box around them would be too far out.
        summary, frequencies = data.overview.summary, start.frequencies
        corners = np.stack([summary.low, summary.high])
        box = data.overview.standardisation(corners, np.float64)
        longest_row = np.sqrt(np.sum(np.abs(box).max(axis=0) ** 2))
        if longest_row * np.linalg.norm(frequencies, axis=1).max() > PHASE_LIMIT:
            data.require_phases(frequencies, column_namer(self))

    def _learn(
        self,
        pixels: PixelSource,
        data: TrainingData,
        start: Start,
        rng: np.random.Generator,
        line: ProgressLine,
        stochastic: bool,
    ) -> FourierFit:
        checkpoint = self._open_checkpoint(data, Walk if stochastic else BatchState)

        def report(state: Walk | BatchState) -> None:
            if checkpoint is not None:
                checkpoint.save(state)
            line(state.n_iter, state.progress_text)

        common: dict[str, Any] = {
            "learn_frequencies": self._learns_frequencies,
            "max_iter": self.max_iter,
            "tol": self.tol,
            "early_stopping": self._stops_early(),
            "rng": rng,
            "resume": None if checkpoint is None else checkpoint.load(),
            "report": report,
        }
        if not stochastic:
            assert isinstance(pixels, Pixels)
            return fit_batch(pixels, start, **common)
        return fit_stochastic(
            pixels,
            start,
            batch_size=self._minibatch_rows(pixels.n_rows),
            report_pass=lambda done, bound: line.note(f"exact pass {done}, bound {bound:.6g}"),
            **common,
        )

    def _open_checkpoint(
        self, data: TrainingData, state: type[Walk | BatchState]
    ) -> Checkpoint[Any] | None:
        if self.checkpoint is None:
            return None
        ignored = ("checkpoint", "n_jobs", "verbose", "max_iter", "variance_tolerance")
        settings = {
            name: np.asarray(value).tolist() if name == "frequencies" else value
            for name, value in self.get_params().items()
            if name not in ignored
        }
        settings["class"] = type(self).__name__
        return Checkpoint(self.checkpoint, fingerprint(data, settings), state)

    def _stops_early(self) -> bool:
        if self.early_stopping == "auto":
            return self.solver != "batch"
        return bool(self.early_stopping)

    def _keep(self, fit: FourierFit, pixels: PixelSource, start: Start, stochastic: bool) -> None:
        self.frequencies_ = fit.frequencies
        self.lengthscale_ = fit.lengthscale
        self.signal_variance_ = fit.signal_variance
        self.posterior_ = fit.posterior
        self.bound_ = fit.bounds[-1]
        self.bound_history_ = np.array(fit.bounds)
        self.n_iter_ = fit.n_iter
        self.fit_report_ = {
            "solver": "stochastic" if stochastic else "batch",
            "precision": "single" if pixels.dtype == np.float32 else "double",
            "steps": fit.n_iter * (STEPS_PER_ITERATION if stochastic else 1),
            "jitter": fit.posterior.jitter,
            "stopped": fit.outcome,
            "rows": pixels.n_rows,
            # Learned frequencies keep the lengthscale they started from, after any doubling.
            "starting_lengthscale": start.lengthscale
            if not self._learns_frequencies
            else fit.lengthscale,
            "held_back_nll": list(fit.held_back_losses),
        }

    def _choose_prediction_precision(self, pixels: PixelSource) -> str:
        """Return ``"single"`` if that is as good as double, unless the user chose."""
        trained = str(self.fit_report_["precision"])
        if trained == "single" or self.precision != "auto":
            return trained
        if pixels.n_rows <= DOUBLE_PREDICTION_ROWS:
            return trained
        some = pixels.take(spread_out(pixels.n_rows, COMPARED_ROWS))
        x = some.block(slice(0, some.n_rows)).x
        single, double = (
            self._make_probabilities_and_variance(self._block_functions(dtype))(x.astype(dtype))[1]
            for dtype in (np.dtype(np.float32), np.dtype(np.float64))
        )
        return "single" if np.abs(single - double).max() <= SINGLE_ERROR else trained

    # Prediction

    def _block_functions(self, dtype: np.dtype[Any] | None = None) -> BlockFunctions:
        """Return how the latent function is evaluated, in the model's precision or ``dtype``."""
        dtype, columns = dtype or self._dtype(), column_namer(self)
        return BlockFunctions(
            dtype=dtype,
            rows_per_block=block_rows(2 * len(self.frequencies_), dtype.itemsize),
            threads=count_threads(self.n_jobs),
            require_in_range=lambda x, first: require_phases(x, self.frequencies_, columns, first),
            make_mean=self._make_mean,
            make_moments=partial(self._make_moments, dtype),
            make_probability=partial(self._make_probability, dtype),
        )

    def _make_mean(self) -> Callable[[Array], Array]:
        amplitudes, delays = amplitudes_and_delays(self.posterior_.mean, self.signal_variance_)
        return lambda x: sum_of_waves(x, self.frequencies_, amplitudes, delays)

    def _make_moments(self, dtype: np.dtype[Any]) -> Callable[[Array], tuple[Array, Array]]:
        mean = self.posterior_.mean.astype(dtype)
        root = slabs(self._root("root", variance_root), dtype)
        return lambda x: latent_moments(self._features(x), mean, root)

    def _make_probability(self, dtype: np.dtype[Any]) -> Callable[[Array], Array] | None:
        if self.variance_tolerance == 0.0:
            return None
        root: StagedRoot | None = self._root("staged", stage_root, dtype)
        if root is None:
            return None
        staged, mean = root, self.posterior_.mean.astype(dtype)
        return lambda x: tolerant_probability(
            self._features(x), mean, self._prior_shift, staged, self.variance_tolerance
        )

    def _dtype(self) -> np.dtype[Any]:
        # Models of 0.1.0 predict in the precision that they were trained in.
        report = self.fit_report_
        precision = report.get("prediction_precision", report["precision"])
        return np.dtype(np.float32 if precision == "single" else np.float64)

    def _features(self, x: Array) -> Array:
        z = scratch("z", (len(x), 2 * len(self.frequencies_)), x.dtype)
        return fourier_features(x, self.frequencies_, self.signal_variance_, out=z)

    def _root(self, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return a root of the variance, made once for a posterior and a tolerance."""
        roots = _ROOTS.setdefault(self.posterior_, {})
        key = (name, self.variance_tolerance)
        if key not in roots:
            with single_threaded_blas():
                roots[key] = make(
                    self.posterior_, self.signal_variance_, self.variance_tolerance, *arguments
                )
        return roots[key]


@_fill_in_docstring
class VFFGPC(FourierGPC):
    """Gaussian-process classifier that learns its Fourier frequencies.

    Starts from the random features of :class:`RFFGPC` and moves the frequencies to raise the
    evidence bound: a kernel fitted to the data.

    {parameters}

    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from undulatus import VFFGPC
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = VFFGPC(n_frequencies=10, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (200, 2)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _learns_frequencies = True


@_fill_in_docstring
class RFFGPC(FourierGPC):
    """Gaussian-process classifier over random Fourier features, which stay as drawn.

    Approximates :class:`GPC` as ``n_frequencies`` grows, at a cost linear in the rows.

    {parameters}

    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from undulatus import RFFGPC
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = RFFGPC(n_frequencies=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (200, 2)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _learns_frequencies = False
