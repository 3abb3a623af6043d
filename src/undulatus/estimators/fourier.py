"""RFF-GPC and VFF-GPC, the paper's classifiers over Fourier features, for scikit-learn.

Algorithm 1 is in :mod:`undulatus.gp.batch`, the minibatch solver in
:mod:`undulatus.gp.stochastic`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions

from undulatus._progress import Work
from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, PhaseTooLargeError, as_input_errors
from undulatus.estimators.base import (
    JOBS_CONSTRAINT,
    SHARED_CONSTRAINTS,
    make_generator,
)
from undulatus.estimators.checkpoint import Checkpoint, fingerprint, state_sizes
from undulatus.estimators.fourier_parameters import fill_in_docstring
from undulatus.estimators.fourier_prediction import FourierPredictor
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import (
    TrainingData,
    column_namer,
    is_chunked,
    prepare_rows,
    require_even_weights,
    warn_of_groups_for_splits_alone,
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


class FourierGPC(UpdatesMixin, FourierPredictor, ClassifierMixin, BaseEstimator):
    """A Bayesian linear classifier over Fourier features; see RFFGPC and VFFGPC."""

    _learns_frequencies: ClassVar[bool]
    # With metadata routing, groups that a search or a Pipeline is given reach fit unasked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}
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
            its workers, and depends on the chunks by rounding only. Up to 100,000 rows and
            4,000,000 values are taken into memory, unless ``solver="stochastic"``, and give the
            model of an array of these rows.
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
        if groups is None:
            warn_of_groups_for_splits_alone(type(self).__name__)
        earlier = self._ends_of_last_fit()
        self._forget_last_fit()
        threads = count_threads(self.n_jobs)
        device = self._find_device(X)
        data = self._prepare(X, y, sample_weight, groups, threads)
        rng = make_generator(self.random_state)
        # One member draws from the stream itself, each of several from its own.
        rngs = [rng] if self.n_members == 1 else rng.spawn(self.n_members)
        pixels = self._pixels(data, threads)
        stochastic = not isinstance(pixels, Pixels) or self._is_stochastic(pixels.n_rows)
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
            try:
                data.require_phases(frequencies, column_namer(self))
            except PhaseTooLargeError as error:
                require_even_weights(getattr(data, "weight", None), error)
                raise

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


@fill_in_docstring
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


@fill_in_docstring
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
