"""RFF-GPC and VFF-GPC, the paper's classifiers over Fourier features, for scikit-learn.

Algorithm 1 is in :mod:`undulatus.gp.batch`, the minibatch solver in
:mod:`undulatus.gp.stochastic`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions

from undulatus._progress import Work
from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.base import (
    JOBS_CONSTRAINT,
    SHARED_CONSTRAINTS,
    make_generator,
)
from undulatus.estimators.checkpoint import Checkpoint, fingerprint, state_sizes
from undulatus.estimators.fourier_prediction import FourierPredictor
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import (
    TrainingData,
    column_namer,
    into_memory,
    is_chunked,
    prepare_rows,
)
from undulatus.estimators.updates import UpdatesMixin, add_to_members, take_from_members
from undulatus.gp.arrays import recycling, to_host
from undulatus.gp.batch import BatchState, fit_batch
from undulatus.gp.blocks import PHASE_LIMIT, Pixels, PixelSource, block_rows
from undulatus.gp.committee import fit_members, require_memory
from undulatus.gp.held_back import leave_out
from undulatus.gp.kernels import find_kernel, mean_distance
from undulatus.gp.passes import (
    VARIANCE_LIMITS,
    FourierFit,
    Start,
    choose_start,
)
from undulatus.gp.stochastic import (
    RACE_FREQUENCIES,
    RACE_SPLITS,
    USUAL_PASSES,
    StochasticFit,
    along_features,
    draw_sample,
    fit_stochastic,
    fit_together,
    race,
)
from undulatus.gp.walk import (
    LEARNING_VARIANCE_LIMIT,
    STEPS_PER_ITERATION,
    Walk,
    planned_iterations,
)

Array = npt.NDArray[Any]

Class = TypeVar("Class", bound=type)

DOUBLE_ROWS = 30_000
"""Up to this many training rows, ``precision="auto"`` works in double precision."""

BATCH_ROWS = 500
"""Up to this many distinct training rows, ``solver="auto"`` is ``"batch"``."""

SMALL_BATCH, LARGE_BATCH = 256, 2048
"""Rows of a minibatch with ``batch_size="auto"``: the small one for few training rows ..."""

SMALL_BATCH_ROWS = 50_000
"""... up to this many, where it learned as well or better in a third of the time
(``python -m benchmarks.batch_size``)."""

SPREAD_OF_ROWS, SPREAD_OF_GROUPS = 0.02, 0.05
"""Spread of frequencies with ``spread="auto"``: without groups, and with them."""

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
    rows; ``"auto"`` is batch up to 500 distinct rows.
n_members : int, default=8
    Members of a committee, each a model with ``n_frequencies`` of its own, learned from its own
    start, with other groups (or rows) held back; every second one starts from waves along one
    feature each. The probability is the mean of theirs; 1 is a single model, which predicts as
    much faster.
frequencies : (n_members D, d) array, default=None
    Starting frequencies w in units of 1/lengthscale (``frequencies_`` are w/lengthscale); drawn
    at random if None.
standardize : bool, default=True
    Scale each feature by its weighted training deviation. Features are centred by their
    weighted training mean either way.
warp : bool, default=True
    Compress the tails of each feature before it is scaled, by asinh((x - median) / mean distance
    from the median), so that a few extreme values do not push all others together. Needs
    ``standardize=True``.
spread : float or "auto", default="auto"
    How uncertain frequencies are, as a share of their size: ``"auto"`` is 0.05 with ``groups``,
    whose model is meant for others, and 0.02 without. Away from the training data waves
    fade the faster the larger it is, and the model returns to its prior: the shares of the classes
    and the variance ``signal_variance_``. 0 lets waves go on for ever, as in the paper.
max_iter : int, default=100
    Most outer iterations, of 25 minibatches each for the stochastic solver.
tol : float, default=1e-4
    The fit stops when an iteration raises the bound (batch) or the held-back likelihood
    (stochastic) by less than ``tol`` of its size.
batch_size : int or "auto", default="auto"
    Rows in a minibatch of the stochastic solver; ``"auto"`` is 256 up to 50,000 training rows
    and 2,048 beyond.
early_stopping : bool or "auto", default="auto"
    Hold back a fifth of the rows (at most 2,048) while frequencies are learned, and keep the
    frequencies under which these rows were likeliest: a guard against fitting noise. The
    posterior is that of all rows. ``"auto"`` does so unless ``solver="batch"``, the paper's
    own; where ``solver="auto"`` picks batch, rows are held back. Has no effect where
    frequencies stay as drawn.
precision : {"auto", "single", "double", "tf32"}, default="auto"
    Precision of the features. ``"auto"`` learns frequencies on minibatches in single, and fits
    the posterior in double up to 30,000 rows. From 2,000 rows on it predicts in single if that
    changes no probability by more than 1e-5. Matrices are always factorised in double. ``"tf32"``
    is single with products of few digits on NVIDIA's cards: faster, and right to 1e-2 or so.
posterior : {"variational", "bound"}, default="variational"
    The posterior handed out, once frequencies are learned: the best Gaussian approximation, of a
    latent function whose level is set by the shares of the classes; or that of the paper's bound,
    whose variance is too small, without a level.
class_weight : dict or "balanced", default=None
    Weights of the classes.
prior_correction : mapping, (k,) array or "training", default=None
    Real class frequencies, to undo balanced sampling or class weights by a shift of the
    log odds; ``"training"`` takes those of ``y`` before ``class_weight``.
variance_tolerance : float, default=0.0
    Largest error in probability allowed for a faster variance; 0 is exact.
checkpoint : path, default=None
    File written at every outer iteration; a fit of the same data with the same settings
    continues from it, any other fit is refused. A committee has a file for each member, with
    ``.1``, ``.2``, ... at the end of its name.
n_jobs : int, default=None
    Threads; None is all cores. The model does not depend on it.
device : str, default=None
    Where to compute: ``"cuda"``, ``"cuda:1"`` or another device of torch, which rows are moved to
    block by block. None is the processor, but for arrays that are on a device: these are used
    where they are, and results stay there (torch's tensors, CuPy's and JAX's arrays). The model
    is the same but for rounding, and knows nothing of the device.
random_state : int, RandomState or None, default=None
    Seed of the frequencies and of minibatches.
warm_start : bool, default=False
    Start from the frequencies and hyperparameters of the last fit, each member from its own.
verbose : int, default=0
    1 shows a line of progress, 2 one line per iteration.
on_interrupt : {"raise", "keep"}, default="raise"
    What Ctrl-C does to a fit: ``"raise"`` ends it without a model, and a later fit continues from
    the ``checkpoint``, if there is one; ``"keep"`` leaves the best model so far with a warning and
    ``fit_report_["stopped"] == "interrupted"``, and whatever called ``fit`` goes on."""

_ATTRIBUTES = """\
Attributes
----------
classes_ : (k,) array
    Sorted. Two classes have one latent function, more have one a class, against the rest, over
    the same frequencies; a member's probabilities are made to sum to one.
members_ : tuple of FourierFit
    The members of the committee; a single model is its only member.
frequencies_ : (n_members D, d) array
    Effective frequencies w/lengthscale, radians per unit of the standardised feature, one
    member's after the other's.
lengthscale_, signal_variance_ : float
    The paper's sigma and gamma; of a committee, the geometric mean of the members' sigma and the
    mean of their gamma; of more than two classes, the mean of theirs.
posterior_ : Posterior
    Of the 2 D whitened weights; only of a single model of two classes.
bound_ : float
    Bound on the log evidence, by the posterior handed out; of a committee, the mean of the
    members'.
bound_history_ : array
    The bound after each exact pass over all rows or, for the paper's own model by the batch
    solver, after each outer iteration and at the end; of a committee, the mean, in which a
    member that ended early keeps its last.
n_iter_ : int
    Outer iterations done; of a committee, the most of any member.
fit_report_ : dict
    Solver, precision, precision of predictions, steps, jitter, rows, why the fit stopped,
    and the mean negative log likelihood of held-back rows along the way, if any were held
    back; of a committee, a list of these for each member.
feature_quantiles_ : (7, d) array
    Smallest, 1, 25, 50, 75, 99 % quantile and largest value of each feature.
updates_ : tuple of Update
    Rows added by ``update``, with the factors that stand for them; only after an update.
n_features_in_ : int
feature_names_in_ : array of str
    Only if ``X`` has named columns."""


def _fill_in_docstring(cls: Class) -> Class:
    text = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = text.replace("{parameters}", _PARAMETERS).replace("{attributes}", _ATTRIBUTES)
    return cls


class FourierGPC(UpdatesMixin, FourierPredictor, ClassifierMixin, BaseEstimator):
    """A Bayesian linear classifier over Fourier features; see RFFGPC and VFFGPC."""

    _learns_frequencies: ClassVar[bool]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SHARED_CONSTRAINTS,
        "n_frequencies": [Interval(Integral, 1, None, closed="left")],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions({"auto", "batch", "stochastic"})],
        "frequencies": ["array-like", None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "precision": [StrOptions({"auto", "single", "double", "tf32"})],
        "device": [str, None],
        "variance_tolerance": [Interval(Real, 0, None, closed="left")],
        "checkpoint": [str, PathLike, None],
        "n_jobs": JOBS_CONSTRAINT,
        "spread": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_frequencies: int = 100,
        *,
        n_members: int = 8,
        kernel: str = "rbf",
        solver: str = "auto",
        frequencies: npt.ArrayLike | None = None,
        standardize: bool = True,
        warp: bool = True,
        spread: float | str = "auto",
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
        self.n_members = n_members
        self.kernel = kernel
        self.solver = solver
        self.frequencies = frequencies
        self.standardize = standardize
        self.warp = warp
        self.spread = spread
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
            Two classes or more, of any type; a dask array only if ``X`` is one.
        sample_weight : (n,) array, optional
            Weights >= 0; a weight of 2 equals a row given twice.
        groups : (n,) array, optional
            Which rows belong together, such as the day or the image they are from. With
            ``early_stopping`` whole groups are held back, so that learning stops where it no
            longer carries over to new days or images. Members of a committee hold back
            different groups, or different rows where there are no groups. A single group counts
            as none.
        """
        earlier = self._ends_of_last_fit()
        self._forget_last_fit()
        threads = count_threads(self.n_jobs)
        if is_chunked(X) and self.solver == "auto" and X.shape[0] <= BATCH_ROWS:
            X, y, sample_weight, groups = map(into_memory, (X, y, sample_weight, groups))
        device = self._find_device(X)
        data = self._prepare(X, y, sample_weight, groups, threads)
        rng = make_generator(self.random_state)
        # One member draws from the stream itself, each of several from its own.
        rngs = [rng] if self.n_members == 1 else rng.spawn(self.n_members)
        pixels = self._pixels(data, threads)
        stochastic = is_chunked(X) or self._is_stochastic(pixels.n_rows)
        with single_threaded_blas(), recycling():
            parts, pixels = self._leave_out(pixels, rng, stochastic, device)
            spread = self._choose_spread(parts[0].get("sample", pixels))
            starts = earlier + self._choose_starts(
                pixels, data, rngs[len(earlier) :], parts[len(earlier) :], spread
            )
            for start in starts:
                self._require_usable(start, data, pixels.n_features)
            members = self._learn(data, pixels, starts, rngs, parts, threads, stochastic, spread)
        self._keep(members, pixels, starts, stochastic)
        self.fit_report_["prediction_precision"] = self._choose_prediction_precision(pixels)
        found = "the best found so far"
        if len(members) < self.n_members:
            found = f"a committee of {len(members)} members, of {self.n_members} asked for"
        self._warn_unless_converged(self.fit_report_["stopped"], self.n_iter_, found)
        return self

    # The steps of a fit, in order

    def _ends_of_last_fit(self) -> list[Start]:
        """Return where the members of the last fit ended, if ``warm_start`` continues there."""
        if not (self.warm_start and hasattr(self, "members_")):
            return []
        members, frequencies = len(self.members_), len(self.members_[0].frequencies)
        differs = ""
        if frequencies != self.n_frequencies:
            differs = f"{frequencies} frequencies, but n_frequencies is {self.n_frequencies}"
        # A committee that was interrupted may lack members: these start afresh.
        elif members > self.n_members:
            differs = f"{members} members, but n_members is {self.n_members}"
        if differs:
            raise InputError(
                f"warm_start=True continues with {differs}. Set warm_start=False to start again."
            )
        return [
            Start(fit.frequencies * fit.lengthscale, fit.lengthscale, fit.signal_variance)
            for fit in self.members_
        ]

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
        require_memory(
            type(self).__name__,
            self.n_members,
            self.n_frequencies,
            self.n_features_in_,
            len(data.overview.log_odds),
            threads,
        )
        return data

    def _pixels(self, data: TrainingData, threads: int) -> PixelSource:
        dtype = self._choose_dtype(data.n_rows)
        return data.pixels(dtype, block_rows(2 * self.n_frequencies, dtype.itemsize), threads)

    def _choose_dtype(self, n_rows: int) -> np.dtype[Any]:
        if self.precision == "auto":
            return np.dtype(np.float64 if n_rows <= DOUBLE_ROWS else np.float32)
        return np.dtype(np.float64 if self.precision == "double" else np.float32)

    def _is_stochastic(self, n_rows: int) -> bool:
        if self.solver == "auto":
            return n_rows > BATCH_ROWS
        return self.solver == "stochastic"

    def _choose_spread(self, pixels: Pixels) -> float:
        if self.spread == "auto":
            return SPREAD_OF_ROWS if pixels.groups is None else SPREAD_OF_GROUPS
        return float(self.spread)

    def _minibatch_rows(self, n_rows: int) -> int:
        if self.batch_size == "auto":
            return SMALL_BATCH if n_rows <= SMALL_BATCH_ROWS else LARGE_BATCH
        return int(self.batch_size)

    def _choose_starts(
        self,
        pixels: PixelSource,
        data: TrainingData,
        rngs: list[np.random.Generator],
        parts: list[dict[str, Any]],
        spread: float,
    ) -> list[Start]:
        """Return where the last members start, each with frequencies of its own.

        Their lengthscale is found by the bound or, if frequencies are learned on minibatches, by
        a race of short walks; then every second member starts from twice that, and with waves
        along one feature each.
        """
        first = self.n_members - len(rngs)
        units = [self._unit_frequencies(first + i, rng) for i, rng in enumerate(rngs)]
        if not units:
            return []
        distance = mean_distance(data.overview.variances)
        if not (self._learns_frequencies and "sample" in parts[0]):
            limit = LEARNING_VARIANCE_LIMIT if "sample" in parts[0] else VARIANCE_LIMITS[1]
            best = choose_start(pixels, units[0], distance, rngs[0], limit)
            return [replace(best, unit_frequencies=unit) for unit in units]
        Work("learning").report(0, detail="choosing the starting lengthscale")
        lengthscale = race(
            parts[0]["sample"],
            [unit[:RACE_FREQUENCIES] for unit in units[:RACE_SPLITS]],
            distance,
            [part["split"] for part in parts[:RACE_SPLITS]],
            batch_size=self._minibatch_rows(pixels.n_rows),
            seed=int(rngs[0].integers(2**63)),
            n_total=pixels.n_rows,
            spread=spread,
        )
        starts = [Start(unit, lengthscale) for unit in units]
        return [
            self._vary(start) if member % 2 else start
            for member, start in enumerate(starts, first)
        ]

    def _vary(self, start: Start) -> Start:
        """Return the start of every second member, which makes members more different."""
        unit = start.unit_frequencies
        return Start(
            along_features(unit) if self.frequencies is None else unit, 2.0 * start.lengthscale
        )

    def _unit_frequencies(self, member: int, rng: np.random.Generator) -> Array:
        """Return a member's starting frequencies times the lengthscale, drawn or given, (D, d)."""
        own, d = self.n_frequencies, self.n_features_in_
        if self.frequencies is None:
            return find_kernel(self.kernel).draw(rng, own, d)
        with as_input_errors("frequencies"):
            unit = np.array(self.frequencies, dtype=np.float64)
        shape = (self.n_members * own, d)
        if unit.shape != shape:
            each = "" if self.n_members == 1 else "n_members * "
            raise InputError(
                f"frequencies must have shape {shape} ({each}n_frequencies, features of X), "
                f"got {unit.shape}."
            )
        if not np.isfinite(unit).all():
            raise InputError("frequencies must be finite, but hold NaN or infinity.")
        return unit[member * own : (member + 1) * own]

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

    def _leave_out(
        self, pixels: PixelSource, rng: np.random.Generator, stochastic: bool, device: str | None
    ) -> tuple[list[dict[str, Any]], PixelSource]:
        """Return what each member's solver gets to know of the rows to hold back, and the pixels.

        These are on the device then, if there is one.
        """
        tf32, d = self.precision == "tf32", self.n_frequencies
        if stochastic:
            # Minibatches are noisier than single precision.
            dtype = pixels.dtype if self.precision == "double" else np.dtype(np.float32)
            drawn = draw_sample(pixels, rng)
            if device is not None:
                drawn = replace(drawn, dtype=dtype).on(device, tf32, d)
            sample = drawn.standardised(dtype)
            splits = leave_out(sample, self.n_members, rng)
            if device is not None:
                all_there = (sample.n_rows, sample.dtype) == (pixels.n_rows, pixels.dtype)
                pixels = sample if all_there else pixels.on(device, tf32, d)
            return [{"sample": sample, "split": split} for split in splits], pixels
        assert isinstance(pixels, Pixels)
        parts: list[dict[str, Any]] = [{}] * self.n_members
        if self._learns_frequencies and self._stops_early():
            parts = [{"split": split} for split in leave_out(pixels, self.n_members, rng)]
        return parts, pixels if device is None else pixels.on(device, tf32, d)

    def _learn(
        self,
        data: TrainingData,
        pixels: PixelSource,
        starts: list[Start],
        rngs: list[np.random.Generator],
        parts: list[dict[str, Any]],
        threads: int,
        stochastic: bool,
        spread: float,
    ) -> tuple[FourierFit, ...]:
        checkpoints = self._open_checkpoints(data, Walk if stochastic else BatchState)
        resumed = [checkpoint and checkpoint.load() for checkpoint in checkpoints]
        line = self._progress_line(pixels, parts, stochastic)
        on_device = pixels.place.on_card

        def options(member: int, threads: int, check: Callable[[], None]) -> dict[str, Any]:
            def report(state: Walk | BatchState) -> None:
                checkpoint = checkpoints[member]
                if checkpoint is not None:
                    checkpoint.save(to_host(state))
                line(state.n_iter, state.progress_text, member)
                check()

            def report_pass(done: int, bound: float) -> None:
                line.note_pass(done, USUAL_PASSES, f"lower bound {bound:.6g}", member)
                check()

            part = parts[member]
            if "sample" in part:
                part = part | {
                    "sample": replace(part["sample"], threads=threads),
                    "batch_size": self._minibatch_rows(pixels.n_rows),
                    "report_pass": report_pass,
                }
            return part | {
                "pixels": pixels if on_device else self._pixels(data, threads),
                "start": starts[member],
                "rng": rngs[member],
                "resume": resumed[member],
                "report": report,
                "log_odds": data.overview.log_odds,
                "spread": spread,
                "learn_frequencies": self._learns_frequencies,
                "max_iter": self.max_iter,
                "tol": self.tol,
                "early_stopping": self._stops_early(),
                "variational": self.posterior == "variational",
                "interruptible": self._keeps_on_interrupt,
            }

        def fit(member: int, threads: int, check: Callable[[], None]) -> FourierFit:
            solve = fit_stochastic if stochastic else fit_batch
            fitted = solve(**options(member, threads, check))
            line.finish(member)
            return fitted

        with closing(line):
            if stochastic and on_device:
                members = range(self.n_members)
                return fit_together(
                    [StochasticFit(**options(member, 1, lambda: None)) for member in members]
                )
            return fit_members(
                fit,
                self.n_members,
                1 if on_device else threads,
                interruptible=self._keeps_on_interrupt,
            )

    def _progress_line(
        self, pixels: PixelSource, parts: list[dict[str, Any]], stochastic: bool
    ) -> ProgressLine:
        name, members = type(self).__name__, self.n_members
        if not stochastic:
            return ProgressLine(name, self.verbose, self.max_iter, members)
        learning = len(parts[0]["split"][0])
        batch = min(self._minibatch_rows(pixels.n_rows), learning)
        steps = planned_iterations(learning, batch, self.max_iter)
        # A row of a pass takes about as long as one of a minibatch.
        cost = USUAL_PASSES * pixels.n_rows / (batch * STEPS_PER_ITERATION)
        return ProgressLine(name, self.verbose, steps, members, passes_cost=cost)

    def _open_checkpoints(
        self, data: TrainingData, state: type[Walk | BatchState]
    ) -> list[Checkpoint[Any] | None]:
        """Return each member's checkpoint, if there is to be one."""
        if self.checkpoint is None:
            return [None] * self.n_members
        # The posterior is fitted after the last checkpoint.
        ignored = {"checkpoint", "n_jobs", "device", "verbose", "on_interrupt"}
        ignored |= {"posterior", "variance_tolerance"}
        if state is BatchState:
            ignored.add("max_iter")
        settings = {
            name: np.asarray(value).tolist() if name == "frequencies" else value
            for name, value in self.get_params().items()
            if name not in ignored
        }
        settings["class"] = type(self).__name__
        known_by = fingerprint(data, settings)
        path = os.fspath(self.checkpoint)
        sizes = state_sizes(
            self.n_frequencies,
            self.n_features_in_,
            len(data.overview.log_odds),
            data.n_rows,
            learns=self._learns_frequencies,
        )
        members = range(1, self.n_members + 1)
        paths = [path] if self.n_members == 1 else [f"{path}.{member}" for member in members]
        return [Checkpoint(own, known_by, state, sizes) for own in paths]

    def _stops_early(self) -> bool:
        if self.early_stopping == "auto":
            return self.solver != "batch"
        return bool(self.early_stopping)

    def _keep(
        self,
        members: tuple[FourierFit, ...],
        pixels: PixelSource,
        starts: list[Start],
        stochastic: bool,
    ) -> None:
        self.members_ = members
        # Learned frequencies keep the lengthscale they started from, after any doubling.
        lengthscales = [
            fit.lengthscale if self._learns_frequencies else start.lengthscale
            for fit, start in zip(members, starts, strict=False)
        ]
        losses = [list(fit.held_back_losses) for fit in members]
        n_iter = sum(fit.n_iter for fit in members)
        self.fit_report_: dict[str, Any] = {
            "solver": "stochastic" if stochastic else "batch",
            "precision": "single" if pixels.dtype == np.float32 else "double",
            "steps": n_iter * (STEPS_PER_ITERATION if stochastic else 1),
            "jitter": max(own.posterior.jitter for fit in members for own in fit.latents),
            "stopped": self._outcome(),
            "rows": pixels.n_rows,
            "starting_lengthscale": lengthscales[0] if self.n_members == 1 else lengthscales,
            "held_back_nll": losses[0] if self.n_members == 1 else losses,
        }

    def _outcome(self) -> str:
        outcomes = {fit.outcome for fit in self.members_}
        if len(self.members_) < self.n_members:
            return "interrupted"
        return next(name for name in ("interrupted", "max_iter", "converged") if name in outcomes)

    # Corrections

    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        members, factors = add_to_members(self, rows, signs, weight)
        return {"members_": members}, factors

    def _without_rows(self, position: int) -> dict[str, Any]:
        return {"members_": take_from_members(self, self.updates_[position])}


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
