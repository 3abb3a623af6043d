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

    def __call__(self, step: int, state: str) -> None:
        """Say that ``step`` is done, and the state it reached."""
        elapsed = time.monotonic() - self._began
        left = elapsed / step * (self._total - step)
        self._write(
            f"step {step} of at most {self._total}, {state}, {elapsed:.0f} s elapsed, "
            f"at most {left:.0f} s left"
        )

    def note(self, state: str) -> None:
        """Say what is being done after the last step."""
        self._write(f"{state}, {time.monotonic() - self._began:.0f} s elapsed")

    def close(self) -> None:
        """End the line."""
        if self._verbose and self._rewrites:
            sys.stderr.write("\n")

    def _write(self, text: str) -> None:
        if not self._verbose:
            return
        line = f"{self._name}: {text}"
        sys.stderr.write(f"\r{line}\x1b[K" if self._rewrites else f"{line}\n")
        sys.stderr.flush()
