"""The fit by minibatches: frequencies learned on some rows, then the posterior of all rows.

An optimisation (:mod:`undulatus.gp.minibatch`) that has learned nothing is begun again from half
the lengthscale. The posterior at the frequencies found is that of all rows, by passes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from undulatus._system import count_cores
from undulatus.gp.backends import Array, to_host
from undulatus.gp.data import Pixels, PixelSource
from undulatus.gp.inference import PosteriorConfig, WeightSpace, fit_posteriors
from undulatus.gp.likelihood import Bound
from undulatus.gp.minibatch import Config, Start, State, Task, optimise
from undulatus.gp.posterior import FourierFit
from undulatus.gp.search import along_features, choose_taper
from undulatus.gp.splits import Split, shares_entropy
from undulatus.gp.taper import frequency_deviations

SAMPLE_ROWS = 1_000_000
"""Frequencies are learned on at most this many rows, drawn at random ..."""

SAMPLE_BYTES = 256 * 2**20
"""... and on at most this many bytes of them, in single precision."""

USUAL_PASSES, MOST_PASSES = 12, 25
"""Passes after the frequencies were learned: how many there usually are, and at most."""

CHANCE_LEVEL = 0.98
"""An optimisation has learned nothing if its best loss is more than this share of what the shares
of the classes alone give ..."""

RESTARTS = 2
"""... and then is begun again from half the lengthscale, so often at most. If none has learned
anything, the best of them counts."""


@dataclass
class MinibatchFit:
    """One estimator's fit: the optimisations it takes, and the posterior at their end.

    ``pixels`` may be too many for memory: the frequencies are learned on ``sample``, and ``split``
    says which rows of it are for validation. With early stopping, the frequencies with the lowest
    loss on these are used. Features are tapered by ``config.taper``, or by more if groups left
    out say so. ``log_odds`` (C,) set the prior means.
    """

    pixels: PixelSource
    sample: Pixels
    split: Split
    start: Start
    config: Config
    posterior: PosteriorConfig
    log_odds: Array
    seed: int
    resume: State | None = None
    interruptible: bool = True
    report: Callable[[State], None] = lambda state: None
    report_pass: Callable[[int, float], None] = lambda done, bound: None

    def task(self, halvings: int) -> Task:
        """Return the optimisation from a lengthscale that was halved so often."""
        lengthscale = 0.5**halvings * self.start.lengthscale
        unit = self.start.unit_frequencies
        start = Start(
            along_features(unit) if halvings else unit, lengthscale, self.start.signal_variance
        )
        # Learned frequencies keep the lengthscale they started from: it tells which optimisation
        # was interrupted. Those before it are repeated, since they may have been better.
        resume = self.resume
        if resume is not None and self.config.learn_frequencies:
            resume = resume if resume.parameters.lengthscale == lengthscale else None
        return Task(self.sample, self.split, start, self.config, self.seed, resume)

    def is_enough(self, end: State) -> bool:
        """Return whether no other optimisation should follow."""
        if not self.config.early_stopping or end.outcome == "interrupted":
            return True
        chance = shares_entropy(self.sample.block(self.split[1]))
        return end.best_loss <= CHANCE_LEVEL * chance

    def finish(self, ends: Sequence[State]) -> FourierFit:
        """Return the fit, with the posterior of all rows at the best end."""
        end = ends[-1]
        if not self.is_enough(end):
            end = min(ends, key=lambda end: end.best_loss)
        stops_early, taper = self.config.early_stopping, self.config.taper
        learned = to_host(end.best if stops_early else end.parameters)
        interrupted = end.outcome == "interrupted"
        if stops_early and self.sample.groups is not None and not interrupted:
            taper = choose_taper(self.sample, self.split, learned, taper, self.pixels.n_rows)
        deviations = frequency_deviations(learned.frequencies, taper)
        latents, interrupted = fit_posteriors(
            WeightSpace(self.pixels, learned.frequencies, deviations, self.log_odds.tolist()),
            learned.gaussians(),
            self.posterior,
            interrupted=interrupted,
            interruptible=self.interruptible,
            report=self.report_pass,
        )
        return FourierFit(
            learned.frequencies,
            learned.lengthscale,
            latents,
            end.n_iter,
            "interrupted" if interrupted else end.outcome,
            tuple(end.losses.tolist()),
            taper,
        )


def fit_minibatch(fits: Sequence[MinibatchFit]) -> list[FourierFit]:
    """Return the fits of estimators to the same rows, which learn together on a device.

    After an interrupt those that have been finished are returned, if there are any.
    """
    ends: list[list[State]] = [[] for _ in fits]
    going = list(range(len(fits)))
    with ThreadPoolExecutor(min(count_cores(), len(fits))) as pool:
        # Work on the host is done at once; that of one estimator stays in this thread.
        run = pool.map if len(fits) > 1 else map
        for halvings in range(1 + RESTARTS):
            tasks = [fits[i].task(halvings) for i in going]
            found = optimise(
                tasks,
                list(run(Task.first_state, tasks)),
                max_iter=fits[0].config.max_iter,
                interruptible=fits[0].interruptible,
                reports=[fits[i].report for i in going],
            )
            for i, end in zip(going, found, strict=True):
                ends[i].append(end)
            going = [i for i in going if not fits[i].is_enough(ends[i][-1])]
            if not going:
                break
        return list(run(MinibatchFit.finish, fits, ends))


def draw_sample(pixels: PixelSource, rng: np.random.Generator) -> Pixels:
    """Return the rows to learn frequencies on: all, or a random sample if there are many."""
    limit = min(SAMPLE_ROWS, SAMPLE_BYTES // (pixels.n_features * 4))
    if pixels.n_rows <= limit:
        return pixels.gather()
    # A sorted draw without replacement whose memory does not grow with the rows.
    gaps = rng.exponential(size=limit + 1)
    places = np.cumsum(gaps)[:-1] / gaps.sum()
    chosen = np.unique((places * pixels.n_rows).astype(np.int64))
    return pixels.take(chosen)


def minibatch_posterior(bound: Bound, tol: float) -> PosteriorConfig:
    """Return how the posterior is found after frequencies were learned on minibatches."""
    # A pass costs as much as hundreds of minibatches, and the last ones change little.
    return PosteriorConfig(bound, max_passes=MOST_PASSES, tol=3.0 * tol)
