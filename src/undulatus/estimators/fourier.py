"""Where a Fourier classifier starts: from its last fit, or from frequencies and a lengthscale.

What a fitted Fourier classifier says of rows: features, waves and the posterior at work.

RFF-GPC and VFF-GPC as scikit-learn classifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions

from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.base import BinaryGaussianProcess, ProgressLine
from undulatus.estimators.checkpoint import Checkpoint, fingerprint
from undulatus.estimators.training import Prepared, column_namer, into_memory, is_chunked, prepare
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
from undulatus.gp.kernels import KERNELS, find_kernel, mean_distance
from undulatus.gp.passes import FourierFit, Start, choose_start
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

LEARNING_SHARE = 0.25
"""Share of a random kernel's best lengthscale from which frequencies are learned."""


def earlier_start(model: Any) -> Start | None:
    """Return where the last fit of ``model`` ended, if it is to go on from there."""
    if not (model.warm_start and hasattr(model, "frequencies_")):
        return None
    unit = model.frequencies_ * model.lengthscale_
    if unit.shape[0] != model.n_frequencies:
        raise InputError(
            f"warm_start=True goes on from {unit.shape[0]} frequencies, but n_frequencies "
            f"is {model.n_frequencies}. Set warm_start=False to fit anew."
        )
    return Start(unit, model.lengthscale_, model.signal_variance_)


def begin(
    model: Any,
    pixels: PixelSource,
    training: Prepared,
    earlier: Start | None,
    rng: np.random.Generator,
    stochastic: bool,
) -> Start:
    """Return the start of a fit, after a look whether any row lies too far out for it."""
    start = earlier or _search(model, pixels, training, rng, stochastic)
    if start.unit_frequencies.shape[1] != pixels.n_features:
        raise InputError(
            f"warm_start=True goes on from {start.unit_frequencies.shape[1]} features, but X has "
            f"{pixels.n_features}. Set warm_start=False to fit anew."
        )
    _require_reach(model, training, start)
    return start


def _search(
    model: Any,
    pixels: PixelSource,
    training: Prepared,
    rng: np.random.Generator,
    stochastic: bool,
) -> Start:
    unit = _unit_frequencies(model, rng)
    distance = mean_distance(training.variances)
    if not stochastic:
        return choose_start(pixels, unit, distance, rng)
    start = choose_start(pixels, unit, distance, rng, LEARNING_VARIANCE_LIMIT)
    if model._learns_frequencies:
        # Frequencies that move reach finer structure than random ones afford to start with.
        return replace(start, lengthscale=LEARNING_SHARE * start.lengthscale)
    return start


def _unit_frequencies(model: Any, rng: np.random.Generator) -> Array:
    shape = (model.n_frequencies, model.n_features_in_)
    if model.frequencies is None:
        return find_kernel(model.kernel).draw(rng, *shape)
    with as_input_errors("frequencies"):
        unit = np.array(model.frequencies, dtype=np.float64)
    if unit.shape != shape:
        raise InputError(
            f"frequencies must have shape {shape} (n_frequencies, features of X), "
            f"got {unit.shape}."
        )
    if not np.isfinite(unit).all():
        raise InputError("frequencies must be finite, but hold NaN or infinity.")
    return unit


def _require_reach(model: Any, training: Prepared, start: Start) -> None:
    # The box of the data tells whether any row could be too far out; then each is looked at.
    summary, frequencies = training.summary, start.frequencies
    box = training.standardisation(np.stack([summary.low, summary.high]), np.float64)
    reach = np.sqrt(np.sum(np.abs(box).max(axis=0) ** 2))
    if reach * np.linalg.norm(frequencies, axis=1).max() > PHASE_LIMIT:
        training.require_phases(frequencies, column_namer(model))


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


DOUBLE_ROWS = 30_000
"""Up to this many training rows, ``precision="auto"`` works in double precision."""

BATCH_ROWS = 2_000
"""Up to this many distinct training rows, ``solver="auto"`` is ``"batch"``."""


class FourierGPC(FourierPredictor):
    """A Bayesian linear classifier over Fourier features; see RFFGPC and VFFGPC."""

    _learns_frequencies: ClassVar[bool]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FourierPredictor._parameter_constraints,
        "n_frequencies": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions(set(KERNELS))],
        "solver": [StrOptions({"auto", "batch", "stochastic"})],
        "frequencies": ["array-like", None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "precision": [StrOptions({"auto", "single", "double"})],
        "variance_tolerance": [Interval(Real, 0, None, closed="left")],
        "checkpoint": [str, PathLike, None],
        "n_jobs": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Integral, None, -1, closed="right"),
            None,
        ],
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
        batch_size: int = 2048,
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
            ``distributed.Client``: frequencies are learned here on a sample, and only
            sums come back of the passes over all rows. The model does not depend on
            the scheduler or its workers, and on the chunks by rounding alone.
        y : (n,) array
            Two classes, of any type; of any kind of array if ``X`` is a dask array.
        sample_weight : (n,) array, optional
            Weights >= 0; a weight of 2 equals a row given twice.
        groups : (n,) array, optional
            What rows belong together, such as the day or the image they are from. With
            ``early_stopping`` whole groups are held back, so that learning stops where it no
            longer carries over to new days or images. One group alone is as good as none.
        """
        earlier = earlier_start(self)
        self._start_again()
        threads = count_threads(self.n_jobs)
        if is_chunked(X) and self.solver == "auto" and X.shape[0] <= BATCH_ROWS:
            X, y, sample_weight, groups = map(into_memory, (X, y, sample_weight, groups))
        training = self._prepare(
            self._reader(X),
            X,
            y,
            sample_weight,
            merge=self.solver != "stochastic",
            threads=threads,
            groups=groups,
        )
        rng = self._generator()
        dtype = self._choose_dtype(training.n_rows)
        rows_per_block = block_rows(2 * self.n_frequencies, dtype.itemsize)
        pixels = training.pixels(dtype, rows_per_block, threads)
        stochastic = is_chunked(X) or self._wants_minibatches(pixels.n_rows)
        with single_threaded_blas(), recycling():
            start = begin(self, pixels, training, earlier, rng, stochastic)
            line = ProgressLine(type(self).__name__, self.verbose, self.max_iter)
            fit = self._climb(pixels, training, start, rng, line, stochastic)
            line.close()
        self._keep(fit, pixels, start, stochastic)
        return self

    def _reader(self, X: Any) -> Callable[..., Prepared]:
        if not is_chunked(X):
            return prepare
        from undulatus.estimators.training_dask import prepare_chunks

        return prepare_chunks

    def _wants_minibatches(self, n_rows: int) -> bool:
        if self.solver == "auto":
            return n_rows > BATCH_ROWS
        return self.solver == "stochastic"

    def _stops_early(self) -> bool:
        if self.early_stopping == "auto":
            return self.solver != "batch"
        return bool(self.early_stopping)

    def _climb(
        self,
        pixels: PixelSource,
        training: Prepared,
        start: Start,
        rng: np.random.Generator,
        line: ProgressLine,
        stochastic: bool,
    ) -> FourierFit:
        checkpoint = self._open_checkpoint(training, Walk if stochastic else BatchState)

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
            batch_size=self.batch_size,
            report_pass=lambda done, bound: line.note(f"exact pass {done}, bound {bound:.6g}"),
            **common,
        )

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
            "starting_lengthscale": start.lengthscale
            if not self._learns_frequencies
            else fit.lengthscale,
            "held_back_nll": list(fit.held_back_losses),
        }
        self._warn_about(fit.outcome)

    def _choose_dtype(self, n_rows: int) -> np.dtype[Any]:
        if self.precision == "auto":
            return np.dtype(np.float64 if n_rows <= DOUBLE_ROWS else np.float32)
        return np.dtype(np.float64 if self.precision == "double" else np.float32)

    def _open_checkpoint(
        self, training: Prepared, state: type[Walk | BatchState]
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
        return Checkpoint(self.checkpoint, fingerprint(training, settings), state)


class VFFGPC(FourierGPC):
    """Gaussian-process classifier that learns its Fourier frequencies.

    Starts from the random features of :class:`RFFGPC` and moves the frequencies to
    raise the evidence bound: a kernel fitted to the data.

    Parameters
    ----------
    n_frequencies : int
        Number D of Fourier frequencies; cost grows as D² a row.
    kernel : {"rbf", "matern32", "matern52"}
        Whose spectral density the frequencies are drawn from.
    solver : {"auto", "batch", "stochastic"}
        ``"batch"`` is the paper's Algorithm 1, where a weight of 2 equals a repeated row;
        ``"stochastic"`` learns frequencies on minibatches, then the posterior by exact
        passes over all rows; ``"auto"`` is batch up to 2,000 distinct rows.
    frequencies : (D, d) array, optional
        Starting frequencies in units of 1/lengthscale; drawn at random when absent.
    standardize : bool
        Centre and scale each feature by its weighted training mean and deviation.
    max_iter, tol : int, float
        Most outer iterations (of 25 minibatches each for the stochastic solver); the fit
        stops when one raises the bound (the likelihood of held-back rows) by less
        than ``tol`` of its size.
    batch_size : int
        Rows in a minibatch of the stochastic solver.
    early_stopping : bool or "auto"
        Hold back a fifth of the rows (at most 2,048) while frequencies are learned, and take
        the frequencies under which those rows were likeliest: a guard against fitting
        noise. The posterior is that of all rows. ``"auto"`` does so unless the solver was
        set to ``"batch"``, the paper's own. RFF-GPC has no frequencies to guard.
    precision : {"auto", "single", "double"}
        Of the features; ``"auto"`` is double up to 30,000 training rows. Matrices
        are factorised in double always.
    class_weight : dict or "balanced", optional
        Weights of the classes.
    prior_correction : mapping, (2,) array or "training", optional
        Real class frequencies, to undo balanced sampling or class weights by a shift of
        the latent mean; ``"training"`` are those of ``y`` before ``class_weight``.
    variance_tolerance : float
        Largest error in probability allowed for a faster variance; 0 is exact.
    checkpoint : path, optional
        File written at every outer iteration, and continued from when it fits the data.
    n_jobs : int, optional
        Threads; all cores when absent. The model does not depend on it.
    random_state : int, RandomState or None
        Seed of the frequencies.
    warm_start : bool
        Start from the frequencies and hyperparameters of the last fit.
    verbose : int
        1 shows a line of progress, 2 a line an iteration.

    Attributes
    ----------
    classes_ : (2,) array
    frequencies_ : (D, d) array
        Effective frequencies, radians per unit of the standardised feature.
    lengthscale_, signal_variance_ : float
        The paper's σ and γ.
    posterior_ : Posterior
        Of the 2 D whitened weights.
    bound_, bound_history_ : float, array
        Bound on the log evidence, at the end and after each outer iteration (batch) or
        exact pass (stochastic).
    n_iter_ : int
    fit_report_ : dict
        Solver, precision, steps, jitter, why it stopped, and the mean negative log
        likelihood of held-back rows along the way, where some were.
    feature_quantiles_ : (7, d) array
        Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
    n_features_in_, feature_names_in_
    """

    _learns_frequencies = True


class RFFGPC(FourierGPC):
    """Gaussian-process classifier over random Fourier features, which stay as drawn.

    Approximates :class:`GPC` as ``n_frequencies`` grows, at a cost linear in rows.
    Parameters and attributes are those of :class:`VFFGPC`.
    """

    _learns_frequencies = False
