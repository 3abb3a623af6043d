"""How far a fit is: a line on standard error, and records for whoever listens."""

from __future__ import annotations

import logging
import sys
import threading
import time

from undulatus._progress import LOGGER, Work, duration_text, tell


class ProgressLine:
    """Progress of a fit, told to :mod:`undulatus._progress` and, if asked for, to standard error.

    There it is a line per iteration, or one that is rewritten on a terminal. ``verbose`` 0 writes
    nothing; 2 never rewrites. Estimators may report from different threads; their steps are
    counted together.

    Parameters
    ----------
    name : str
    verbose : int
    steps : int
        Of an estimator: the most there may be or, if ``passes_cost`` is given, what is planned.
    estimators : int
    passes_cost : float, optional
        How many steps take as long as the passes over all rows that follow them.
    """

    def __init__(
        self,
        name: str,
        verbose: int,
        steps: int,
        estimators: int = 1,
        *,
        passes_cost: float | None = None,
    ) -> None:
        self._name = name
        self._verbose = verbose
        self._steps = steps
        self._at_most = passes_cost is None
        self._passes_cost = passes_cost or 0.0
        self._done = [0.0] * estimators
        self._earlier: dict[int, int] = {}
        self._lock = threading.Lock()
        self._work = Work("learning")
        self._began = time.monotonic()
        self._rewrites = verbose == 1 and sys.stderr.isatty()

    def __call__(self, step: int, state: str, estimator: int = 0) -> None:
        """Report that an estimator's ``step`` is done, and the state it reached."""
        with self._lock:
            # The first step of a fit that continues another is a later one.
            self._earlier.setdefault(estimator, step - 1)
            limit = f"{'at most' if self._at_most else 'about'} {max(step, self._steps)}"
            self._tell(min(step, self._steps), f"step {step} of {limit}: {state}", estimator)

    def note_pass(self, number: int, usual: int, state: str, estimator: int = 0) -> None:
        """Report a pass over all rows, after an estimator's last step, of ``usual`` ones."""
        with self._lock:
            done = self._steps + self._passes_cost * min(number / usual, 1.0)
            self._tell(done, f"pass {number} over all rows: {state}", estimator)

    def finish(self, estimator: int) -> None:
        """Count an estimator as done, though it took fewer steps than planned."""
        with self._lock:
            self._done[estimator] = self._steps + self._passes_cost

    def close(self) -> None:
        """End the line."""
        if self._verbose and self._rewrites:
            sys.stderr.write("\n")
        self._work.close()

    def _tell(self, done: float, state: str, estimator: int) -> None:
        if not (self._verbose or LOGGER.isEnabledFor(logging.DEBUG)):
            return
        # An estimator that starts anew does not go back.
        self._done[estimator] = max(self._done[estimator], done)
        estimators = len(self._done)
        progress = self._work.measure(
            sum(self._done),
            estimators * (self._steps + self._passes_cost),
            f"estimator {estimator + 1} of {estimators}, {state}" if estimators > 1 else state,
            at_most=self._at_most,
            earlier=sum(self._earlier.values()),
        )
        tell(progress)
        if self._verbose:
            elapsed = duration_text(time.monotonic() - self._began)
            said = [progress.detail, f"{elapsed} elapsed", progress.time_left]
            line = f"{self._name}: {', '.join(filter(None, said))}"
            sys.stderr.write(f"\r{line}\x1b[K" if self._rewrites else f"{line}\n")
            sys.stderr.flush()
