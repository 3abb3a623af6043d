"""RFF-GPC and VFF-GPC, the paper's classifiers over Fourier features, for scikit-learn.

Algorithm 1 is in :mod:`undulatus.gp.batch`, the fit by minibatches in
:mod:`undulatus.gp.learning`, the posterior of both in :mod:`undulatus.gp.inference`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from undulatus._progress import Work
from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, PhaseTooLargeError, as_input_errors
from undulatus.estimators.adaptation import Prior
from undulatus.estimators.base import make_generator, worst_outcome
from undulatus.estimators.checkpoint import Checkpoint, fingerprint
from undulatus.estimators.fourier_parameters import FourierParameters, fill_in_docstring
from undulatus.estimators.prediction import per_latent
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import (
    TrainingData,
    prepare_chunks,
    prepare_rows,
    spread_out,
)
from undulatus.estimators.updates import add_to_ensemble, own_features, take_from_ensemble
from undulatus.estimators.validation import (
    column_namer,
    is_chunked,
    require_even_weights,
    warn_of_groups_for_splits_alone,
)
from undulatus.gp.adapt import SceneConfig, SceneWeights
from undulatus.gp.backends import Array, Backend, make_backend, to_host
from undulatus.gp.batch import BatchConfig, BatchFit, BatchState, batch_posterior, fit_batch
from undulatus.gp.data import PHASE_LIMIT, Pixels, PixelSource, block_rows, require_phases
from undulatus.gp.ensemble import fit_ensemble, require_memory
from undulatus.gp.inference import VARIANCE_LIMITS
from undulatus.gp.kernels import find_kernel, mean_distance
from undulatus.gp.learning import (
    USUAL_PASSES,
    MinibatchFit,
    draw_sample,
    fit_minibatch,
    minibatch_posterior,
)
from undulatus.gp.likelihood import POSTERIORS
from undulatus.gp.minibatch import Config, Start, State
from undulatus.gp.model import Model, WeightModel
from undulatus.gp.posterior import FourierFit
from undulatus.gp.search import along_features, choose_lengthscale, choose_start
from undulatus.gp.splits import Split, leave_out
from undulatus.gp.taper import EARLIER_EDGE_SLOPE, EDGE_SLOPE

DOUBLE_ROWS = 30_000
"""Up to this many training rows, ``precision="auto"`` works in double precision."""

BATCH_ROWS = 500
"""Up to this many distinct training rows, ``solver="auto"`` is ``"batch"``."""

SMALL_BATCH, LARGE_BATCH = 256, 2048
"""Rows of a minibatch with ``batch_size="auto"``: the small one for few training rows ..."""

SMALL_BATCH_ROWS = 50_000
"""... up to this many, where it learned as well or better in a third of the time
(``python -m benchmarks.batch_size``)."""

TAPER_OF_ROWS, TAPER_OF_GROUPS = 0.02, 0.05
"""Taper with ``taper="auto"``: without groups, and with them."""

VALIDATION_ROWS = 30
"""With fewer rows than this, the batch solver leaves none out for validation."""

DOUBLE_PREDICTION_ROWS = 2_000
"""Up to this many training rows, ``precision="auto"`` also predicts in double precision."""

SINGLE_ERROR = 4e-6
"""Prediction is in single precision if that changes no probability of some training rows by more.
The 1e-5 promised leave room for other rows, where up to 2.6 times the change was measured."""

COMPARED_ROWS = 512
"""Training rows at which single and double precision are compared."""

RANGE_AND_QUARTILES = [0, 2, 4, 6]
"""Rows of ``feature_quantiles_`` with the smallest value, the quartiles and the largest."""


@dataclass
class _Plan:
    """What a fit has decided before it learns; a list has an entry an estimator."""

    data: TrainingData
    pixels: PixelSource
    stochastic: bool
    threads: int
    taper: float = 0.0
    sample: Pixels | None = None
    """The rows that frequencies are learned on by minibatches."""
    splits: list[Split | None] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    rngs: list[np.random.Generator] = field(default_factory=list)
    config: Config | None = None
    """Of minibatches."""


class FourierGPC(FourierParameters):
    """A Bayesian linear classifier over Fourier features; see RFFGPC and VFFGPC."""

    _learns_frequencies: ClassVar[bool]
    _edge_slope = EARLIER_EDGE_SLOPE
    # With metadata routing, groups that a search or a Pipeline is given reach fit unasked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

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
            ``early_stopping`` whole groups are left out for validation, so that learning stops
            where it no longer carries over to new days or images. Estimators of an ensemble leave
            out different groups, or different rows where there are no groups. A single group
            counts as none.
        """
        if groups is None:
            warn_of_groups_for_splits_alone(type(self).__name__)
        earlier = self._starts_of_last_fit()
        self._forget_last_fit()
        device = self._find_device(X)
        plan = self._read(X, y, sample_weight, groups)
        rng = make_generator(self.random_state)
        # One estimator draws from the stream itself, each of several from its own.
        plan.rngs = [rng] if self.n_estimators == 1 else rng.spawn(self.n_estimators)
        with single_threaded_blas():
            self._leave_out(plan, rng, device)
            self._configure(plan)
            self._move_rows(plan, device)
            self._choose_starts(plan, earlier)
            fits = self._learn(plan)
        self._keep(fits, plan)
        return self

    # The steps of a fit, in order

    def _starts_of_last_fit(self) -> list[Start]:
        """Return where the last fit ended, each estimator; none without ``warm_start``."""
        if not (self.warm_start and hasattr(self, "estimators_")):
            return []
        fits, frequencies = self.estimators_, len(self.estimators_[0].frequencies)
        differs = ""
        if frequencies != self.n_frequencies:
            differs = f"{frequencies} frequencies, but n_frequencies is {self.n_frequencies}"
        # An ensemble that was interrupted may lack estimators: these start afresh.
        elif len(fits) > self.n_estimators:
            differs = f"{len(fits)} estimators, but n_estimators is {self.n_estimators}"
        if differs:
            raise InputError(
                f"warm_start=True continues with {differs}. Set warm_start=False to start again."
            )
        return [
            Start(fit.frequencies * fit.lengthscale, fit.lengthscale, fit.signal_variance)
            for fit in fits
        ]

    def _read(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> _Plan:
        """Check what was given; return the rows, ready to learn from."""
        threads = count_threads(self.n_jobs)
        rows, options = self._check_input(X, merge=self.solver != "stochastic", threads=threads)
        data: TrainingData
        if is_chunked(rows):
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
            self.n_estimators,
            self.n_frequencies,
            self.n_features_in_,
            len(data.overview.log_odds),
            threads,
        )
        pixels = self._pixels(data, threads)
        stochastic = self.solver == "stochastic" or not isinstance(pixels, Pixels)
        if self.solver == "auto":
            stochastic |= pixels.n_rows > BATCH_ROWS
        return _Plan(data, pixels, stochastic, threads)

    def _pixels(self, data: TrainingData, threads: int) -> PixelSource:
        single = self.precision in ("single", "tf32")
        if self.precision == "auto":
            single = data.n_rows > DOUBLE_ROWS
        xp = make_backend(np.float32 if single else np.float64)
        size = block_rows(2 * self.n_frequencies, xp.dtype.itemsize)
        return data.pixels(xp, size, threads)

    def _leave_out(self, plan: _Plan, rng: np.random.Generator, device: str | None) -> None:
        """Decide which rows minibatches are drawn from, and which rows are for validation."""
        pixels = plan.pixels
        if plan.stochastic:
            # Minibatches are noisier than single precision.
            dtype = pixels.dtype if self.precision == "double" else np.dtype(np.float32)
            drawn = draw_sample(pixels, rng)
            if device is not None:
                drawn = replace(drawn, xp=make_backend(dtype))
                drawn = drawn.on(device, self.precision == "tf32", self.n_frequencies)
            plan.sample = drawn.standardised(dtype)
            plan.splits = list(leave_out(plan.sample, self.n_estimators, rng))
        elif self._learns_frequencies and self._stops_early and pixels.n_rows >= VALIDATION_ROWS:
            assert isinstance(pixels, Pixels)
            plan.splits = list(leave_out(pixels, self.n_estimators, rng))
        else:
            plan.splits = [None] * self.n_estimators

    def _configure(self, plan: _Plan) -> None:
        """Decide the taper, and how frequencies are learned on minibatches, if they are."""
        pixels = plan.pixels
        groups = getattr(plan.sample or pixels, "groups", None)
        plan.taper = TAPER_OF_ROWS if groups is None else TAPER_OF_GROUPS
        if self.taper != "auto":
            plan.taper = float(self.taper)
        if plan.stochastic:
            usual = SMALL_BATCH if pixels.n_rows <= SMALL_BATCH_ROWS else LARGE_BATCH
            plan.config = Config(
                batch_size=usual if self.batch_size == "auto" else int(self.batch_size),
                max_iter=self.max_iter,
                tol=self.tol,
                n_total=pixels.n_rows,
                learn_frequencies=self._learns_frequencies,
                early_stopping=self._learns_frequencies and self._stops_early,
                taper=plan.taper,
            )

    def _move_rows(self, plan: _Plan, device: str | None) -> None:
        """Move the rows of passes to the device, if there is one."""
        pixels, sample = plan.pixels, plan.sample
        if device is None:
            return
        if sample is not None and (sample.n_rows, sample.dtype) == (pixels.n_rows, pixels.dtype):
            # All rows are there already.
            plan.pixels = sample
        else:
            plan.pixels = pixels.on(device, self.precision == "tf32", self.n_frequencies)

    @property
    def _stops_early(self) -> bool:
        if self.early_stopping == "auto":
            return self.solver != "batch"
        return bool(self.early_stopping)

    def _choose_starts(self, plan: _Plan, earlier: list[Start]) -> None:
        """Decide where each estimator starts: where it ended last time, or at a lengthscale.

        That is chosen by the bound or, if frequencies are learned on minibatches, by short
        optimisations. In that case every second estimator starts from twice that, and with
        frequencies along one feature each: the ensemble is more diverse so.
        """
        first = len(earlier)
        rngs = plan.rngs[first:]
        units = [self._unit_frequencies(first + i, rng) for i, rng in enumerate(rngs)]
        plan.starts = list(earlier)
        if units and self._learns_frequencies and plan.sample is not None and plan.config:
            Work("learning").report(0, detail="choosing the starting lengthscale")
            lengthscale = choose_lengthscale(
                plan.sample,
                units,
                mean_distance(plan.data.overview.variances),
                [split for split in plan.splits[first:] if split is not None],
                replace(plan.config, learn_frequencies=True, early_stopping=True),
                int(rngs[0].integers(2**63)),
            )
            for number, unit in enumerate(units, first):
                if number % 2 and self.init_frequencies is None:
                    unit = along_features(unit)
                plan.starts.append(Start(unit, (1.0 + number % 2) * lengthscale))
        elif units:
            best = choose_start(
                plan.pixels,
                units[0],
                mean_distance(plan.data.overview.variances),
                rngs[0],
                plan.config.variance_limit if plan.config else VARIANCE_LIMITS[1],
            )
            plan.starts += [replace(best, unit_frequencies=unit) for unit in units]
        for start in plan.starts:
            self._require_usable(start, plan.data, plan.pixels.n_features)

    def _unit_frequencies(self, number: int, rng: np.random.Generator) -> Array:
        """Return an estimator's starting frequencies times the lengthscale, (D, d)."""
        d, features = self.n_frequencies, self.n_features_in_
        if self.init_frequencies is None:
            return find_kernel(self.kernel).draw(rng, d, features)
        with as_input_errors("init_frequencies"):
            unit = np.array(self.init_frequencies, dtype=np.float64)
        shape = (self.n_estimators * d, features)
        if unit.shape != shape:
            each = "" if self.n_estimators == 1 else "n_estimators * "
            raise InputError(
                f"init_frequencies must have shape {shape} ({each}n_frequencies, features of X), "
                f"got {unit.shape}."
            )
        if not np.isfinite(unit).all():
            raise InputError("init_frequencies must be finite, but hold NaN or infinity.")
        return unit[number * d : (number + 1) * d]

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

    def _learn(self, plan: _Plan) -> tuple[FourierFit, ...]:
        """Return the fitted estimators: together on a device, else on threads of their own."""
        checkpoints = self._open_checkpoints(plan)
        resumed = [None if own is None else own.load() for own in checkpoints]
        line = self._progress_line(plan)
        on_device = plan.pixels.xp.on_device

        def prepare(
            number: int, threads: int, check: Callable[[], None]
        ) -> MinibatchFit | BatchFit:
            def report(state: State | BatchState) -> None:
                checkpoint = checkpoints[number]
                if checkpoint is not None:
                    checkpoint.save(to_host(state))
                line(state.n_iter, state.progress_text, number)
                check()

            def report_pass(done: int, bound: float) -> None:
                line.note_pass(done, USUAL_PASSES, f"lower bound {bound:.6g}", number)
                check()

            predicts_by = POSTERIORS[self.posterior]
            log_odds = plan.data.overview.log_odds
            pixels = plan.pixels if on_device else self._pixels(plan.data, threads)
            split, start, resume = plan.splits[number], plan.starts[number], resumed[number]
            if plan.config is None:
                assert isinstance(pixels, Pixels)
                return BatchFit(
                    pixels,
                    start,
                    BatchConfig(self.max_iter, self.tol),
                    self._learns_frequencies,
                    batch_posterior(predicts_by, self.tol),
                    log_odds,
                    plan.taper,
                    split,
                    resume,
                    self._keeps_on_interrupt,
                    report,
                    report_pass,
                )
            assert plan.sample is not None
            assert split is not None
            return MinibatchFit(
                pixels,
                replace(plan.sample, threads=threads),
                split,
                start,
                plan.config,
                minibatch_posterior(predicts_by, self.tol),
                log_odds,
                int(plan.rngs[number].integers(2**63)) if resume is None else resume.seed,
                resume,
                self._keeps_on_interrupt,
                report,
                report_pass,
            )

        def fit(number: int, threads: int, check: Callable[[], None]) -> FourierFit:
            prepared = prepare(number, threads, check)
            if isinstance(prepared, BatchFit):
                fitted = fit_batch(prepared)
            else:
                (fitted,) = fit_minibatch([prepared])
            line.finish(number)
            return fitted

        with closing(line):
            if plan.stochastic and on_device:
                every = [prepare(number, 1, lambda: None) for number in range(self.n_estimators)]
                return tuple(
                    fit_minibatch([own for own in every if isinstance(own, MinibatchFit)])
                )
            return fit_ensemble(
                fit,
                self.n_estimators,
                1 if on_device else plan.threads,
                interruptible=self._keeps_on_interrupt,
            )

    def _progress_line(self, plan: _Plan) -> ProgressLine:
        name, config = type(self).__name__, plan.config
        if config is None or plan.splits[0] is None:
            return ProgressLine(name, self.verbose, self.max_iter, self.n_estimators)
        learning = len(plan.splits[0][0])
        steps = config.planned_steps(config.epochs, learning) // config.steps_per_iteration
        # A row of a pass takes about as long as one of a minibatch.
        rows = min(config.batch_size, learning) * config.steps_per_iteration
        cost = USUAL_PASSES * plan.pixels.n_rows / rows
        return ProgressLine(name, self.verbose, steps, self.n_estimators, passes_cost=cost)

    def _open_checkpoints(self, plan: _Plan) -> list[Checkpoint[Any] | None]:
        """Return each estimator's checkpoint, if there is to be one."""
        if self.checkpoint is None:
            return [None] * self.n_estimators
        # The posterior is fitted after the last checkpoint.
        ignored = {"checkpoint", "n_jobs", "device", "verbose", "on_interrupt"}
        ignored |= {"posterior", "variance_tolerance"}
        if not plan.stochastic:
            ignored.add("max_iter")
        settings = {
            name: np.asarray(value).tolist() if name == "init_frequencies" else value
            for name, value in self.get_params().items()
            if name not in ignored
        }
        settings["class"] = type(self).__name__
        known_by = fingerprint(plan.data, settings)
        path = os.fspath(self.checkpoint)
        D, d, C = self.n_frequencies, self.n_features_in_, len(plan.data.overview.log_odds)
        t = C + (D * d if self._learns_frequencies else 1)
        sizes = {"D": D, "d": d, "k": 2 * D, "C": C, "n": plan.data.n_rows, "t": t}
        numbers = range(1, self.n_estimators + 1)
        paths = [path] if self.n_estimators == 1 else [f"{path}.{number}" for number in numbers]
        kind = State if plan.stochastic else BatchState
        return [Checkpoint(Path(own), known_by, kind, sizes) for own in paths]

    def _keep(self, fits: tuple[FourierFit, ...], plan: _Plan) -> None:
        self.estimators_, self._edge_slope = fits, EDGE_SLOPE
        # Learned frequencies keep the lengthscale they started from, after any doubling.
        lengthscales = [
            fit.lengthscale if self._learns_frequencies else start.lengthscale
            for fit, start in zip(fits, plan.starts, strict=False)
        ]
        losses = [list(fit.validation_losses) for fit in fits]
        n_iter = sum(fit.n_iter for fit in fits)
        outcome = worst_outcome({fit.outcome for fit in fits})
        if len(fits) < self.n_estimators:
            outcome = "interrupted"
        self.fit_report_ = {
            "solver": "stochastic" if plan.stochastic else "batch",
            "precision": "single" if plan.pixels.dtype == np.float32 else "double",
            "steps": n_iter * (plan.config.steps_per_iteration if plan.config else 1),
            "jitter": max(own.posterior.jitter for fit in fits for own in fit.latents),
            "stopped": outcome,
            "rows": plan.pixels.n_rows,
            "starting_lengthscale": lengthscales[0] if self.n_estimators == 1 else lengthscales,
            "validation_nll": losses[0] if self.n_estimators == 1 else losses,
        }
        self.fit_report_["prediction_precision"] = self._choose_prediction_precision(plan.pixels)
        found = "the best found so far"
        if len(fits) < self.n_estimators:
            found = f"an ensemble of {len(fits)} estimators, of {self.n_estimators} asked for"
        self._warn_unless_converged(outcome, self.n_iter_, found)

    # Prediction

    @property
    def _estimators_here(self) -> tuple[FourierFit, ...]:
        """The estimators, or those of the scene that the model was adapted to."""
        if not hasattr(self, "scene_"):
            return self.estimators_
        pairs = zip(self.estimators_, self.scene_, strict=True)
        return tuple(replace(fit, latents=latents) for fit, latents in pairs)

    def _model(self, xp: Backend) -> WeightModel:
        return WeightModel(
            self._estimators_here,
            # Rounded as rows are: none at an end of the range counts as beyond it.
            self.standardisation_(self.feature_quantiles_[RANGE_AND_QUARTILES], xp.dtype),
            xp,
            self._prior_shift,
            self.variance_tolerance,
            self._latent_shift,
            self._edge_slope,
        )

    def _choose_prediction_precision(self, pixels: PixelSource) -> str:
        """Return ``"single"`` if that is as good as double, unless the user chose."""
        trained = str(self.fit_report_["precision"])
        if trained == "single" or self.precision != "auto":
            return trained
        if pixels.n_rows <= DOUBLE_PREDICTION_ROWS:
            return trained
        some = pixels.take(spread_out(pixels.n_rows, COMPARED_ROWS))
        x = to_host(some.block(slice(0, some.n_rows)).x)
        single, double = (
            np.array(self._model(make_backend(dtype)).probabilities(x.astype(dtype)))
            for dtype in (np.float32, np.float64)
        )
        return "single" if np.abs(single - double).max() <= SINGLE_ERROR else trained

    def ensemble_std(self, X: Any) -> Array:
        """Return the standard deviation of the latent mean over the estimators, (n,) or (n, k).

        Zero for a single model. Where it is large, what the ensemble says depends on which rows
        and which start an estimator happened to have. With more than two classes, that of each.
        """
        return per_latent(self._at(X).columns(Model.deviation, self._n_latents))

    # Corrections

    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        fits, sites = add_to_ensemble(
            self.estimators_,
            self._near_rows(rows),
            signs,
            weight,
            POSTERIORS[self.posterior],
            self.n_jobs,
        )
        return {"estimators_": fits}, sites

    def _scene_priors(self, rows: Array, config: SceneConfig) -> list[list[Prior]]:
        x = self._near_rows(rows)
        with single_threaded_blas():
            return [
                [SceneWeights(own, z, untapered, config) for own in fit.latents]
                for fit in self.estimators_
                for z, untapered in [own_features(fit, x)]
            ]

    def _near_rows(self, rows: Array) -> Array:
        """Return standardised rows; raise if one lies too far out."""
        x = self.standardisation_(rows, np.float64)
        require_phases(x, self.frequencies_, column_namer(self))
        return x

    def _without_rows(self, position: int) -> dict[str, Any]:
        gone = self.updates_[position]
        x = self.standardisation_(gone.rows, np.float64)
        return {"estimators_": take_from_ensemble(self.estimators_, x, gone, self.n_jobs)}


@fill_in_docstring
class VFFGPC(FourierGPC):
    """Gaussian-process classifier that learns its Fourier frequencies.

    Starts from the random features of :class:`RFFGPC` and moves the frequencies to raise the
    evidence bound: a kernel fitted to the data.

    {parameters}

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
