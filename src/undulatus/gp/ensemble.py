r"""An ensemble: several fits to the same rows, and what they say together.

Estimators differ in their frequencies, in their start, and in the rows that are left out for
validation while frequencies are learned. Each is a Gaussian process with latent mean
:math:`\mu_i` and variance :math:`s_i`; together they are their mixture,

.. math:: p = \frac1M \sum_i p_i, \qquad \mu = \frac1M \sum_i \mu_i, \qquad
    s = \frac1M \sum_i s_i + \frac1M \sum_i (\mu_i - \mu)^2,

the last by the law of total variance: where estimators disagree, the ensemble is less sure than
any of them.

With more than two classes an estimator has a latent function a class, each against the rest. Its
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
from undulatus.gp.backends import HOST, Array, Backend
from undulatus.gp.posterior import FourierFit, scaled_mean

MATRICES = 14
"""Matrices of the size of a posterior that each estimator under way holds besides its own."""

INTERRUPT_SECONDS = 0.5
"""How long an interrupt may go unnoticed while estimators are fitted in other threads."""

FitOne = Callable[[int, int, Callable[[], None]], FourierFit]
"""Fits estimator number i on so many threads. It calls the function given with every step, which
raises a KeyboardInterrupt when the fit should end."""


# Fitting


def require_memory(
    model: str,
    n_estimators: int,
    n_frequencies: int,
    n_features: int,
    n_latents: int,
    threads: int,
) -> None:
    """Raise if an ensemble's posteriors and frequencies would not fit in memory."""
    posterior = 8.0 * (2.0 * n_frequencies) ** 2
    frequencies = 8.0 * n_frequencies * n_features
    needed = n_estimators * (n_latents * posterior + frequencies)
    needed += min(n_estimators, threads) * MATRICES * posterior
    available = available_memory()
    if needed > available:
        raise NotEnoughMemoryError(
            f"{model} with n_frequencies={n_frequencies}, n_estimators={n_estimators} and "
            f"{n_latents} latent function{'s' if n_latents > 1 else ''}",
            needed,
            available,
            "Ask for fewer frequencies or estimators: memory grows with the square of the "
            "frequencies.",
        )


def fit_ensemble(
    fit: FitOne, n_estimators: int, threads: int, *, interruptible: bool = True
) -> tuple[FourierFit, ...]:
    """Fit several estimators at once, the threads shared out among them.

    A KeyboardInterrupt ends the fits under way, and is raised unless the fit is
    ``interruptible``. Then the estimators finished by then are returned or, if there are none,
    those under way, each the best it has found so far; if there are none of these either, the
    KeyboardInterrupt is raised. A single estimator is fitted in the caller's thread, where its
    solver receives the KeyboardInterrupt.
    """
    if n_estimators == 1:
        return (fit(0, threads, lambda: None),)
    at_once = min(n_estimators, threads)
    in_full_rounds = n_estimators - n_estimators % at_once
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    def end_others(future: Future[FourierFit]) -> None:
        """After an error no other estimator should start, and those under way should end."""
        if not future.cancelled() and future.exception() is not None:
            interrupted.set()
            for other in futures:
                other.cancel()

    futures: list[Future[FourierFit]] = []
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for number in range(n_estimators):
                alongside = at_once if number < in_full_rounds else n_estimators % at_once
                # With the caller's context: settings of numpy, and dask's client.
                context = copy_context()
                future = pool.submit(context.run, fit, number, threads // alongside, check)
                future.add_done_callback(end_others)
                futures.append(future)
            # Not for ever: an interrupt is noticed at the latest when this returns.
            while wait(futures, INTERRUPT_SECONDS, FIRST_EXCEPTION).not_done:
                if interrupted.is_set():
                    break
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
    if not fits or (not interruptible and len(fits) < n_estimators):
        raise KeyboardInterrupt
    return finished or fits


# Prediction, from the moments of M estimators with C latent functions each, (M, C, n)


def pooled_moments(means: Array, variances: Array, xp: Backend = HOST) -> tuple[Array, Array]:
    """Return mean and variance of the mixture, (C, n) each."""
    mean = xp.mean(means, axis=0)
    return mean, xp.mean(variances, axis=0) + xp.mean((means - mean) ** 2, axis=0)


def pooled_probabilities(
    means: Array, variances: Array, shift: Array, xp: Backend = HOST
) -> tuple[Array, ...]:
    """Return the probability of each class, (n,) each.

    ``shift`` is the logarithm of the factor on the odds of the second class, (1,), or with more
    than two classes on the probability of each, (C,), before they are made to sum to one.
    """
    if means.shape[1] > 1:
        return tuple(xp.mean(xp.exp(_log_probabilities(means, variances, shift, xp)), axis=0))
    scaled = scaled_mean(means[:, 0], variances[:, 0], xp) + float(shift[0])
    # By one exponential; neither is one minus the other: that would round a tiny one away.
    shrunk = xp.exp(-xp.abs(scaled))
    larger = 1.0 / (1.0 + shrunk)
    smaller, positive = shrunk * larger, scaled > 0.0
    first, second = xp.where(positive, smaller, larger), xp.where(positive, larger, smaller)
    return xp.mean(first, axis=0), xp.mean(second, axis=0)


def pooled_log_odds(means: Array, variances: Array, shift: Array, xp: Backend = HOST) -> Array:
    """Return the logarithm of the odds of the second of two classes, (n,).

    The probability is the mean of the estimators'. Its logarithm keeps its digits where the
    probability would round to 0 or 1.
    """
    scaled = scaled_mean(means[:, 0], variances[:, 0], xp) + float(shift[0])
    log_sums = [xp.logsumexp(xp.log_expit(sign * scaled), axis=0) for sign in (1.0, -1.0)]
    return log_sums[0] - log_sums[1]


def pooled_log_probabilities(
    means: Array, variances: Array, shift: Array, xp: Backend = HOST
) -> tuple[Array, ...]:
    """Return the logarithm of each class's probability, (n,) each, of more than two classes."""
    logs = _log_probabilities(means, variances, shift, xp)
    return tuple(xp.logsumexp(logs, axis=0) - float(np.log(len(logs))))


def _log_probabilities(means: Array, variances: Array, shift: Array, xp: Backend) -> Array:
    """Return the logarithm of each class's probability by each estimator, (M, C, n)."""
    logs = xp.log_expit(scaled_mean(means, variances, xp)) + xp.double(shift)[:, None]
    return logs - xp.logsumexp(logs, axis=1, keepdims=True)
