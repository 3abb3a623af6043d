"""A line on standard error that says how far a fit has come."""

from __future__ import annotations

import sys
import time


class ProgressLine:
    """Prints one line an iteration, or rewrites a single one on a terminal."""

    def __init__(self, name: str, verbose: int, total: int) -> None:
        self._name = name
        self._verbose = verbose
        self._total = total
        self._began = time.monotonic()
        self._rewrites = verbose == 1 and sys.stderr.isatty()

    def __call__(self, step: int, bound: float) -> None:
        """Say that ``step`` is done, and the bound it reached."""
        if not self._verbose:
            return
        elapsed = time.monotonic() - self._began
        left = elapsed / step * (self._total - step)
        line = (
            f"{self._name}: step {step} of at most {self._total}, bound {bound:.6g}, "
            f"{elapsed:.0f} s elapsed, at most {left:.0f} s left"
        )
        sys.stderr.write(f"\r{line}\x1b[K" if self._rewrites else f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._verbose and self._rewrites:
            sys.stderr.write("\n")
