r"""A committee: several fits to the same pixels, what each leaves out, and what they say together.

Members differ in their frequencies, in their start, and in the pixels they hold back while
frequencies are learned. Each is a Gaussian process with latent mean :math:`\mu_i` and variance
:math:`s_i`; together they are their mixture,

.. math:: p = \frac1M \sum_i p_i, \qquad \mu = \frac1M \sum_i \mu_i, \qquad
    s = \frac1M \sum_i s_i + \frac1M \sum_i (\mu_i - \mu)^2,

the last by the law of total variance: where members disagree, the committee is less sure than
any of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit

from undulatus.gp.blocks import Array, Pixels
from undulatus.gp.passes import HELD_BACK_ROWS, HELD_BACK_SHARE, FourierFit, Split
from undulatus.gp.posterior import expected_sigmoids

LARGEST_SHARE = 0.5
"""A group with more than this share of the weight is never held back: little would be left."""

INTERRUPT_SECONDS = 0.5
"""How long an interrupt may go unnoticed while members are fitted in other threads."""

FitMember = Callable[[int, int, Callable[[], None]], FourierFit]
"""Fits member number i on so many threads. It calls the function given with every step, which
raises a KeyboardInterrupt when the fit should end."""


# What each member leaves out


def leave_out(pixels: Pixels, n_members: int, rng: np.random.Generator) -> list[Split]:
    """Return the rows that each member learns frequencies from, and those it holds back.

    Groups, or equal rows where there are no groups, lie on a circle in random order, each on an
    arc as long as its weight. Member i holds back those with the middle of their arc in the fifth
    of the circle that begins at i/n_members: five members leave out each row once. A weight of 2
    has the same arc as a row given twice, and the order of rows does not matter.

    Every member learns from both classes, and holds back both where that is possible. The loss
    is computed on a sample of the rows held back, if they are many.
    """
    seed = int(rng.integers(2**63))
    held: list[Array] = []
    if pixels.groups is not None:
        circle = _lay_out(pixels, _shuffle_groups(pixels.groups, seed))
        held = [circle.held_back(member, n_members) for member in range(n_members)]
    if not held or not all(rows.any() for rows in held):
        # There are no groups, or none that can be spared.
        circle = _lay_out(pixels, _number_equal_rows(pixels, seed))
        held = [circle.held_back(member, n_members) for member in range(n_members)]
    return [_split(pixels, rows, [seed, member]) for member, rows in enumerate(held)]


def _shuffle_groups(groups: Array, seed: int) -> Array:
    """Return the groups of the rows, (n,), numbered from 0 in random order."""
    names, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(np.random.default_rng(seed).permutation(len(names))[numbers])


def _number_equal_rows(pixels: Pixels, seed: int) -> Array:
    """Return a number for each row, (n,), the same for equal rows, and random otherwise."""
    steps = range(0, pixels.n_rows, pixels.rows_per_block)
    blocks = (np.asarray(pixels.rows[i : i + pixels.rows_per_block]) for i in steps)
    digests = np.concatenate([digest_rows(block, seed) for block in blocks])
    return np.asarray(np.unique(digests, return_inverse=True)[1])


def digest_rows(rows: Array, seed: int) -> Array:
    """Return 64 pseudo-random bits of each row, (n,), equal for equal values of any type.

    Each column is mixed in by the finaliser of SplitMix64 (Steele et al. 2014,
    doi:10.1145/2660193.2660195).
    """
    # Adding zero turns -0 into 0.
    columns = (np.asarray(rows, dtype=np.float64) + 0.0).T.copy().view(np.uint64)
    state = np.full(len(rows), np.uint64(seed))
    for column in columns:
        state = (state ^ column) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


@dataclass(frozen=True)
class _Circle:
    """Units of rows that leave together, on a circle of circumference 1."""

    units: Array
    """Number of each row's unit, (n,)."""
    holds: Array
    """Whether each unit holds rows of the first and of the second class, (units, 2)."""
    may_leave: Array
    """Whether each unit may be held back, (units,)."""
    middle: Array
    """Where the middle of each unit's arc lies, (units,)."""

    def held_back(self, member: int, n_members: int) -> Array:
        """Return which rows a member holds back, (n,) bool; none if it cannot spare any."""
        begin = member / n_members
        held = self.may_leave & ((self.middle - begin) % 1.0 < HELD_BACK_SHARE)
        centre = begin + 0.5 * HELD_BACK_SHARE
        distance = np.abs((self.middle - centre + 0.5) % 1.0 - 0.5)
        for holders in self.holds.T:
            if held[holders].all():
                # Learn from the unit farthest away, the last one that the window reached.
                held[np.argmax(np.where(holders, distance, -1.0))] = False
        for holders in self.holds.T:
            if not held[holders].any():
                # Hold back the nearest one that leaves both classes to learn from.
                left = np.count_nonzero(self.holds[~held], axis=0)
                spare = (left - self.holds >= 1).all(axis=1) & self.may_leave & holders
                if spare.any():
                    held[np.argmin(np.where(spare, distance, np.inf))] = True
        return np.asarray(held[self.units])


def _lay_out(pixels: Pixels, units: Array) -> _Circle:
    """Return the circle of units, numbered from 0 for each row, in the order of their numbers.

    Units of the first class only, of the second only, and of both are spread evenly among each
    other, so that every part of the circle has its share of each.
    """
    weight = np.ones(pixels.n_rows) if pixels.weight is None else pixels.weight
    by_class = [
        np.bincount(units, weights=np.where(own, weight, 0.0))
        for own in (~pixels.positive, pixels.positive)
    ]
    total = by_class[0] + by_class[1]
    may_leave = total <= LARGEST_SHARE * total.sum()
    arcs = np.where(may_leave, total, 0.0)
    first, second = (amount > 0 for amount in by_class)
    middle = np.empty(len(total))
    for of_kind in (first & ~second, second & ~first, first & second):
        middle[of_kind] = _middles(arcs[of_kind])
    order = np.argsort(middle, kind="stable")
    middle[order] = _middles(arcs[order])
    return _Circle(units, np.stack([first, second], axis=1), may_leave, middle)


def _middles(arcs: Array) -> Array:
    """Return the middle of each of consecutive arcs, as a share of their sum."""
    ends = np.cumsum(arcs)
    return np.asarray((ends - 0.5 * arcs) / max(arcs.sum(), np.finfo(np.float64).tiny))


def _split(pixels: Pixels, is_held: Array, seed: list[int]) -> Split:
    if not is_held.any():
        # Hardly any distinct rows: the same ones must do for both.
        is_held = np.ones(pixels.n_rows, bool)
        return np.arange(pixels.n_rows), _sample(pixels.positive, is_held, seed)
    return np.flatnonzero(~is_held), _sample(pixels.positive, is_held, seed)


def _sample(positive: Array, is_held: Array, seed: list[int]) -> Array:
    """Return at most ``HELD_BACK_ROWS`` of the rows held back, sorted, of each class its share."""
    held = np.flatnonzero(is_held)
    if len(held) <= HELD_BACK_ROWS:
        return held
    rng = np.random.default_rng(seed)
    by_class = [held[~positive[held]], held[positive[held]]]
    counts = [-(-HELD_BACK_ROWS * len(rows) // len(held)) for rows in by_class]
    drawn = [rng.choice(rows, n, replace=False) for rows, n in zip(by_class, counts, strict=True)]
    return np.sort(np.concatenate(drawn))


# Fitting


def fit_members(fit: FitMember, n_members: int, threads: int) -> tuple[FourierFit, ...]:
    """Fit several members at once, the threads shared out among them.

    A KeyboardInterrupt ends the fits under way. The members finished by then are returned or, if
    there are none, those under way, each the best it has found so far; if there are none of these
    either, the KeyboardInterrupt is raised. A single member is fitted in the caller's thread,
    where its solver receives the KeyboardInterrupt.
    """
    if n_members == 1:
        return (fit(0, threads, lambda: None),)
    at_once = min(n_members, threads)
    in_full_rounds = n_members - n_members % at_once
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    def fit_one(member: int) -> FourierFit:
        alongside = at_once if member < in_full_rounds else n_members % at_once
        try:
            check()
            return fit(member, threads // alongside, check)
        except BaseException:
            # No other member should start, and those under way should end.
            interrupted.set()
            raise

    futures: list[Future[FourierFit]] = []
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for member in range(n_members):
                # With the caller's context: settings of numpy, and dask's client.
                futures.append(pool.submit(copy_context().run, fit_one, member))
            _wait(futures)
        except KeyboardInterrupt:
            pass
        finally:
            interrupted.set()
            pool.shutdown(cancel_futures=True)
    ended = [future for future in futures if not future.cancelled()]
    for error in [future.exception() for future in ended]:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            raise error
    fits = tuple(future.result() for future in ended if future.exception() is None)
    finished = tuple(fit for fit in fits if fit.outcome != "interrupted")
    if not fits:
        raise KeyboardInterrupt
    return finished or fits


def _wait(futures: list[Future[FourierFit]]) -> None:
    """Wait until all members are fitted, or one has failed."""
    failed, left = False, set(futures)
    while left and not failed:
        # Not for ever: an interrupt is noticed at the latest when this returns.
        done, left = wait(futures, INTERRUPT_SECONDS, FIRST_EXCEPTION)
        failed = any(future.exception() is not None for future in done)


# Prediction


def pooled_moments(means: Array, variances: Array) -> tuple[Array, Array]:
    """Return mean and variance of the mixture of members, (n,) each, from theirs, (M, n)."""
    mean = np.mean(means, axis=0)
    return mean, np.mean(variances, axis=0) + np.mean((means - mean) ** 2, axis=0)


def pooled_probabilities(means: Array, variances: Array) -> tuple[Array, Array]:
    """Return the probabilities of both classes, (n,) each, from the members' moments, (M, n)."""
    first, second = expected_sigmoids(means, variances)
    return np.mean(first, axis=0), np.mean(second, axis=0)


def pooled_log_odds(means: Array, variances: Array) -> Array:
    """Return the logarithm of the odds of the second class, (n,), from moments (M, n).

    The probability is the mean of the members'. Its logarithm keeps its digits where the
    probability would round to 0 or 1.
    """
    scaled = means / np.sqrt(1.0 + np.pi / 8.0 * variances)
    log_sums = [np.logaddexp.reduce(log_expit(sign * scaled), axis=0) for sign in (1.0, -1.0)]
    return np.asarray(log_sums[0] - log_sums[1])
