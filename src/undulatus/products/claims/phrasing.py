"""Numbers in words, for tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from undulatus.products.claims.contrasts import Estimate, Reckoned


def count(number: int) -> str:
    """Return 15000 as ``15,000``."""
    return f"{number:,}"


def span(numbers: Iterable[int]) -> str:
    """Return numbers as ``10``, ``10 and 25`` or ``10 to 200``."""
    known = sorted({int(number) for number in numbers})
    if len(known) <= 2:
        return " and ".join(count(number) for number in known)
    return f"{count(known[0])} to {count(known[-1])}"


def points(difference: Estimate) -> str:
    """Return a difference of shares as percentage points, with its error: ``+1.20 ± 0.10``."""
    percent = difference.times(100.0)
    error = "" if np.isnan(percent.error) else f" ± {percent.error:.2f}"
    return f"{percent.mean:+.2f}{error}".replace("-", "\N{MINUS SIGN}")


def factor(log: Estimate) -> str:
    """Return an estimate of a ratio's logarithm as ``2.9 times``, with the factor of its error."""
    error = "" if np.isnan(log.error) else f" (within a factor {np.exp(log.error):.2f})"
    return f"{digits(float(np.exp(log.mean)))} times{error}"


def share(value: float) -> str:
    """Return 0.8534 as ``85.3 %``."""
    return f"{100.0 * value:.1f} %"


def repeats(numbers: Iterable[int], noun: str = "run") -> str:
    """Return how many runs or folds settings had, and what one of them leaves unknown."""
    known = sorted(set(numbers))
    if known == [1]:
        return f"1 {noun}, so no standard error"
    unknown = ", no error where it was 1" if known[0] == 1 else ""
    return f"{span(known).replace('and', 'or')} {noun}s{unknown}"


def digits(value: float) -> str:
    """Return a positive number to two digits, never as a power of ten up to a hundred million."""
    if not np.isfinite(value):
        return "not known"
    if value >= 100.0:
        step = 10 ** (int(np.floor(np.log10(value))) - 1)
        return f"{round(value / step) * step:,}"
    return f"{value:.2g}"


def seconds(value: float) -> str:
    """Return seconds to two digits, with their unit."""
    return f"{digits(value)} s"


def source(reckoned: Reckoned) -> str:
    """Return how seconds at a size came about: measured, or by which growth from which sizes."""
    if not reckoned.extrapolated:
        return f"n = {count(reckoned.n)}"
    return (
        f"n = {count(reckoned.n)}, extrapolated as n^{reckoned.exponent:.1f} "
        f"from {span(reckoned.sizes)}"
    )
