"""How long trials take and how much memory, before they are run: to order them, and to wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from undulatus.products.reproduction.trials import DONE, Trial

MATRICES = 6
"""Arrays of n x n doubles that an exact fit holds at its worst moment."""
PROCESS_BYTES = 300e6
"""What a process holds besides."""
GPC_LEAST, GPC_SECONDS, GPC_ROWS = 0.5, 30.0, 1000
"""Least, and more seconds of an exact fit on so many rows, as measured on a core of a server."""
PASS_SECONDS = 1.2e-10
"""Of a row and a pair of features, in a pass over the data; likewise."""
STOCHASTIC_SECONDS, STEPS_ROWS, PASSES = 1.0, 2_000_000, 20
"""Least, rows the stochastic solver draws, and passes it takes over all rows afterwards."""
BATCH_SECONDS, BATCH_PASSES = 2.0, 2_000
"""Least, and passes of the batch solver."""


def expected_seconds(trial: Trial) -> float:
    """Return a rough guess of the CPU seconds a trial takes.

    Within a method the guesses are in proportion, which is all that is asked of them: trials that
    are done tell by how much they are off (:func:`time_left`).
    """
    if trial.method == "gpc":
        return float(GPC_LEAST + GPC_SECONDS * (trial.n / GPC_ROWS) ** 3)
    features = 2.0 * int(trial.frequencies or 1)
    pairs = features * (features + trial.d)
    if trial.solver == "batch":
        return BATCH_SECONDS + PASS_SECONDS * BATCH_PASSES * trial.n * pairs
    return STOCHASTIC_SECONDS + PASS_SECONDS * (STEPS_ROWS + PASSES * trial.n) * pairs


def expected_bytes(trial: Trial) -> float:
    """Return a guess of the memory a trial's process holds at its worst moment."""
    if trial.method == "gpc":
        return PROCESS_BYTES + 8.0 * MATRICES * trial.n**2
    return PROCESS_BYTES + 12.0 * trial.n * trial.d + 200.0 * float(trial.frequencies or 1) ** 2


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Return cheap trials first, first runs before others, regimes side by side.

    A later run of a trial waits until what is as dear as all its runs so far has had its turn.
    """

    def turn(trial: Trial) -> tuple[float, int]:
        return expected_seconds(trial) * (1 + trial.run), trial.run

    return sorted(trials, key=turn)


def time_left(
    left: Iterable[Trial], records: Iterable[Mapping[str, Any]], known: Mapping[str, Trial]
) -> float:
    """Return the seconds one process needs for some trials, by what others of their kind took."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        trial = known.get(record["id"])
        if trial is not None and record["status"] == DONE:
            took = record["fit_seconds"] + record["predict_seconds"]
            ratios.setdefault((trial.method, trial.solver), []).append(
                took / expected_seconds(trial)
            )
    overall = median([r for found in ratios.values() for r in found]) if ratios else 1.0

    def ratio(trial: Trial) -> float:
        # Of many, those done last are most like those to come: small trials are mostly overhead.
        found = ratios.get((trial.method, trial.solver))
        return median(found[-7:]) if found else overall

    return sum(expected_seconds(trial) * ratio(trial) for trial in left)
