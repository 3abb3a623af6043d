"""Regimes of a condition: contiguous ranges, each with the features that make sense in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError

Array = npt.NDArray[Any]

MEDIAN = "median"
"""An edge found in ``fit``: the median of the rows in the two regimes that meet there."""


@dataclass(frozen=True)
class Regime:
    """Rows whose condition lies in [low, high), and the features that make sense there.

    ``features`` are names of columns; None is every column but the condition. An edge may be
    ``"median"``: it is then found in ``fit``.
    """

    name: str
    low: float | str
    high: float | str
    features: tuple[str, ...] | None = None

    @property
    def edges(self) -> tuple[float, float]:
        """Both edges as numbers."""
        return float(self.low), float(self.high)


DAYLIGHT = (
    Regime("high", 0.0, MEDIAN),
    Regime("mid", MEDIAN, 80.0),
    Regime("low", 80.0, 90.0),
    Regime("night", 90.0, math.inf, ("BT7", "BT9", "BT10", "BT9_mean3", "BT9_mean5", "BT9_std3")),
)
"""The paper's four regimes of illumination, by solar zenith angle in degrees."""


def resolve(
    regimes: tuple[Regime, ...], condition: Array, names: tuple[str, ...], by: str
) -> tuple[Regime, ...]:
    """Return regimes with every edge a number and every feature named.

    ``names`` are the columns there are; ``by`` names the one whose values are ``condition``.
    """
    _require_order(regimes)
    others = tuple(name for name in names if name != by)
    medians = [
        _median_between(condition, below, above) if below.high == MEDIAN else below.high
        for below, above in pairwise(regimes)
    ]
    edges = [regimes[0].low, *medians, regimes[-1].high]
    resolved = tuple(
        replace(
            regime,
            low=float(edges[index]),
            high=float(edges[index + 1]),
            features=others if regime.features is None else tuple(regime.features),
        )
        for index, regime in enumerate(regimes)
    )
    for regime in resolved:
        absent = [name for name in regime.features or () if name not in names]
        if absent:
            raise InputError(
                f"Regime {regime.name!r} needs columns that X does not have: "
                f"{', '.join(absent)}.\n  found: {', '.join(names)}"
            )
    return resolved


def _require_order(regimes: tuple[Regime, ...]) -> None:
    names = [regime.name for regime in regimes]
    if not regimes or len(set(names)) < len(names):
        raise InputError(f"regimes must have distinct names, got {names}.")
    for below, above in pairwise(regimes):
        if below.high != above.low:
            raise InputError(
                f"regimes must be contiguous from the lowest up, but {below.name!r} ends at "
                f"{below.high!r} and {above.name!r} begins at {above.low!r}."
            )
    known = [edge for regime in regimes for edge in (regime.low, regime.high) if edge != MEDIAN]
    if MEDIAN in (regimes[0].low, regimes[-1].high) or any(
        not later >= earlier for earlier, later in pairwise(map(float, known))
    ):
        raise InputError(f"regimes must have rising edges with numbers at the ends, got {known}.")


def _median_between(condition: Array, below: Regime, above: Regime) -> float:
    if MEDIAN in (below.low, above.high):
        raise InputError(f"Two edges in a row are {MEDIAN!r}: around {below.name!r}.")
    inside = condition[(condition >= float(below.low)) & (condition < float(above.high))]
    if not inside.size:
        raise InputError(
            f"Regimes {below.name!r} and {above.name!r} meet at the median of their rows, but "
            f"there are none from {below.low} to {above.high}. Use data that cover them."
        )
    return float(np.median(inside))
