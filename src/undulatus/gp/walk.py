"""Where a stochastic ascent stands, and what the losses of held-back rows say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.gp.evidence import Statistics

Array = npt.NDArray[Any]

WINDOW, WINDOW_OF_ONE_SCALE = 16, 2
"""Outer iterations averaged to see whether the held-back likelihood still grows, for learned
frequencies and for a lengthscale alone."""
SMOOTHING = 3
"""Losses averaged to say which place was the best."""
PATIENCE, WORSE = 8, 1.1
"""It gets worse when the median of so many losses after the least is so many times that."""


PLACE = ("frequencies", "lengthscale", "signal_variance", "gram", "projected")
"""What a walk moves, and remembers of its best place as ``best_frequencies`` and so on."""


@dataclass(frozen=True)
class Walk:
    """A stochastic ascent under way: all that is needed to go on from here.

    ``lengthscale`` is that of fixed frequencies, or the one at the start of learned ones;
    ``momentum`` and ``energy`` are Adam's, of the frequencies (D, d) and of the logarithms of
    the features' scales (d,); ``losses`` the mean negative log likelihood of held-back
    rows after each outer iteration; ``anneal_from`` the step from which the step
    size falls, or -1. What begins with ``best`` is from where the smoothed loss was least.

    A walk may begin again, from a coarser start: ``began`` is how many losses are from before.
    """

    step: int
    frequencies: Array
    lengthscale: float
    signal_variance: float
    gram: Array
    projected: Array
    momentum: Array
    energy: Array
    scale_momentum: Array
    scale_energy: Array
    losses: Array
    best_frequencies: Array
    best_signal_variance: float
    best_gram: Array
    best_projected: Array
    best_lengthscale: float
    seed: int
    """Of the rows held back and of the order of minibatches."""
    unit: float
    """Root mean square of the starting frequencies."""
    best_loss: float = np.inf
    best_iter: int = 0
    began: int = 0
    anneal_from: int = -1
    outcome: str = "max_iter"

    @property
    def statistics(self) -> Statistics:
        """The running statistics of the weights."""
        return Statistics(self.gram, self.projected, 0.0)

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.losses)

    @property
    def told(self) -> str:
        """How far it has come, in words."""
        return f"held-back NLL {self.losses[-1]:.4f}"

    def at_its_best(self) -> Walk:
        """Return the walk as it stood where the smoothed loss was least."""
        return replace(self, **{name: getattr(self, f"best_{name}") for name in PLACE})

    def begin_again(self, fresh: Walk) -> Walk:
        """Return another start with what this walk has seen: its losses, and its best place."""
        names = (f"best_{name}" for name in (*PLACE, "loss", "iter"))
        best = {name: getattr(self, name) for name in names}
        return replace(fresh, losses=self.losses, began=self.n_iter, **best)

    @property
    def smoothed(self) -> Array:
        """Means of the last losses after each iteration since it began."""
        losses = self.losses[self.began :]
        ends = range(1, len(losses) + 1)
        return np.array([losses[max(0, end - SMOOTHING) : end].mean() for end in ends])

    def after(self, loss: float) -> Walk:
        """Return the walk with one more loss, and this place remembered if it is the best."""
        state = replace(self, losses=np.append(self.losses, loss))
        last = float(state.smoothed[-1])
        if last >= self.best_loss:
            return state
        return replace(
            state,
            best_loss=last,
            best_iter=state.n_iter,
            **{f"best_{name}": getattr(self, name) for name in PLACE},
        )

    @property
    def worsens(self) -> bool:
        """Whether held-back rows have become less likely, and stay so."""
        smoothed = self.smoothed
        least = int(np.argmin(smoothed))
        since = self.losses[self.began + least + 1 :]
        if len(since) < PATIENCE:
            return False
        # The median: full steps throw up a bad loss now and then.
        return bool(np.median(since[-PATIENCE:]) > WORSE * smoothed[least])

    def stalls(self, window: int, tol: float) -> bool:
        """Say if the mean of so many losses is hardly below that of as many before."""
        losses = self.losses[self.began :]
        if len(losses) < 2 * window:
            return False
        before, now = losses[-2 * window : -window].mean(), losses[-window:].mean()
        return bool(before - now < tol * window * now)

    @property
    def helped(self) -> bool:
        """Whether its present start has led to the best place so far."""
        return self.best_iter > self.began
