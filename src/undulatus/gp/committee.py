r"""A committee: several fits to the same pixels, and what they say together.

Members differ in their frequencies, in their start, and in the pixels they hold back while
frequencies are learned. Each is a Gaussian process with latent mean :math:`\mu_i` and variance
:math:`s_i`; together they are their mixture,

.. math:: p = \frac1M \sum_i p_i, \qquad \mu = \frac1M \sum_i \mu_i, \qquad
    s = \frac1M \sum_i s_i + \frac1M \sum_i (\mu_i - \mu)^2,

the last by the law of total variance: where members disagree, the committee is less sure than
any of them.

With more than two classes a member has a latent function a class, each against the rest. Its
probabilities are :math:`p_c = \psi_c / \sum_j \psi_j` with
:math:`\psi_c = \mathbb E\,\psi(f_c)`, which measured better than
:math:`p_c \propto \psi_c / (1 - \psi_c)`: that would be right if the latent functions were
independent, but they share the evidence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context

import numpy as np

from undulatus._system import available_memory
from undulatus.errors import NotEnoughMemoryError
from undulatus.gp.arrays import Array, like, log_expit, log_sum_exp, namespace
from undulatus.gp.passes import FourierFit
from undulatus.gp.posterior import expected_sigmoids, predictive_log_odds

MATRICES = 14
"""Matrices of the size of a posterior that each member under way holds besides its own."""

INTERRUPT_SECONDS = 0.5
"""How long an interrupt may go unnoticed while members are fitted in other threads."""

FitMember = Callable[[int, int, Callable[[], None]], FourierFit]
"""Fits member number i on so many threads. It calls the function given with every step, which
raises a KeyboardInterrupt when the fit should end."""


# Fitting


def require_memory(
    model: str, n_members: int, n_frequencies: int, n_features: int, n_latents: int, threads: int
) -> None:
    """Raise if a committee's posteriors and frequencies would not fit in memory."""
    posterior = 8.0 * (2.0 * n_frequencies) ** 2
    frequencies = 8.0 * n_frequencies * n_features
    needed = n_members * (n_latents * posterior + frequencies)
    needed += min(n_members, threads) * MATRICES * posterior
    available = available_memory()
    if needed > available:
        raise NotEnoughMemoryError(
            f"{model} with n_frequencies={n_frequencies}, n_members={n_members} and "
            f"{n_latents} latent function{'s' if n_latents > 1 else ''}",
            needed,
            available,
            "Ask for fewer frequencies or members (undulatus fit -D, --members): memory grows "
            "with the square of the frequencies.",
        )


def fit_members(
    fit: FitMember, n_members: int, threads: int, *, interruptible: bool = True
) -> tuple[FourierFit, ...]:
    """Fit several members at once, the threads shared out among them.

    A KeyboardInterrupt ends the fits under way, and is raised unless the fit is
    ``interruptible``. Then the members finished by then are returned or, if there are none, those
    under way, each the best it has found so far; if there are none of these either, the
    KeyboardInterrupt is raised. A single member is fitted in the caller's thread, where its solver
    receives the KeyboardInterrupt.
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
            if not interruptible:
                raise
        finally:
            interrupted.set()
            pool.shutdown(cancel_futures=True)
    ended = [future for future in futures if not future.cancelled()]
    for error in [future.exception() for future in ended]:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            raise error
    fits = tuple(future.result() for future in ended if future.exception() is None)
    finished = tuple(fit for fit in fits if fit.outcome != "interrupted")
    if not fits or (not interruptible and len(fits) < n_members):
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
    """Return mean and variance of the mixture of members, (C, n) each, from theirs, (M, C, n)."""
    xp = namespace(means)
    mean = xp.mean(means, axis=0)
    return mean, xp.mean(variances, axis=0) + xp.mean((means - mean) ** 2, axis=0)


def pooled_probabilities(
    means: Array, variances: Array, shift: Array | float = 0.0
) -> tuple[Array, ...]:
    """Return the probability of each class, (n,) each, from the members' moments, (M, C, n).

    With one latent function they are those of both classes, with ``shift`` added to a member's
    log odds of the second. With one a class, a member's probabilities of each class against the
    rest, times exp(``shift``) (C,), are made to sum to one.
    """
    xp = namespace(means)
    if means.shape[1] == 1:
        first, second = expected_sigmoids(means[:, 0], variances[:, 0], np.asarray(shift).item())
        return xp.mean(first, axis=0), xp.mean(second, axis=0)
    return tuple(xp.mean(xp.exp(_member_log_probabilities(means, variances, shift)), axis=0))


def pooled_log_odds(means: Array, variances: Array, shift: Array | float = 0.0) -> Array:
    """Return the logarithm of the odds of the second class, (n,), from moments (M, 1, n).

    ``shift`` is added to each member's. The probability is the mean of the members'. Its logarithm
    keeps its digits where the probability would round to 0 or 1.
    """
    scaled = predictive_log_odds(means[:, 0], variances[:, 0], np.asarray(shift).item())
    log_sums = [log_sum_exp(log_expit(sign * scaled), axis=0) for sign in (1.0, -1.0)]
    return log_sums[0] - log_sums[1]


def pooled_log_probabilities(
    means: Array, variances: Array, shift: Array | float = 0.0
) -> tuple[Array, ...]:
    """Return the logarithm of each class's probability, (n,) each, from moments (M, C, n)."""
    logs = _member_log_probabilities(means, variances, shift)
    return tuple(log_sum_exp(logs, axis=0) - np.log(len(logs)))


def _member_log_probabilities(means: Array, variances: Array, shift: Array | float) -> Array:
    """Return the logarithm of each class's probability by each member, (M, C, n)."""
    logs = log_expit(predictive_log_odds(means, variances))
    logs += like(np.reshape(shift, (-1, 1)), logs)
    logs -= log_sum_exp(logs, axis=1, keepdims=True)
    return logs
