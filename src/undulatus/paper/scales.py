"""The size of each experiment: how much data, which trials, how many runs of each.

``quick`` is for a first look (5 minutes on two cores), ``medium`` for the shape of every figure
(an hour), ``paper`` is the whole grid of the paper, with both solvers: weeks on two cores, most of
them for GPC. A new scale is an entry in :data:`LANDMARK_SCALES` or :data:`SOUNDER_SCALES`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from undulatus._daylight import REGIMES

LANDMARKS, SOUNDER = "landmarks", "iavisa"
"""The experiments, by the names users see; IAVISA is the paper's set of sounder spectra."""

FOURIER = ("rff", "vff")
"""The methods that have frequencies."""


@dataclass(frozen=True)
class Grid:
    """Trials of some methods: every size with every number of frequencies, ``runs`` times each.

    ``sizes`` are the paper's n, None for all rows; ``frequencies`` are its D, empty for GPC.
    """

    methods: tuple[str, ...]
    solver: str
    sizes: tuple[int | None, ...]
    frequencies: tuple[int, ...] = ()
    runs: int = 1
    regimes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        exact = self.solver == "exact"
        if exact != (self.methods == ("gpc",)) or exact == bool(self.frequencies):
            raise ValueError(f"{self.methods} with {self.solver!r} and D in {self.frequencies}")


@dataclass(frozen=True)
class Scale:
    """The size of an experiment: its data and its trials."""

    amount: int
    """Days or spectra to take from the simulator."""
    runs: int
    """Training sets for each regime, or folds."""
    test_rows: int | None
    """Most test pixels for each regime; None where whole folds are tested."""
    seconds: float
    """Most CPU time of a trial."""
    grids: tuple[Grid, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can hold."""
        return dict(json.loads(json.dumps(asdict(self))))

    @property
    def most_rows(self) -> int:
        """The largest n that the grids name; all rows do not count."""
        return max((n for grid in self.grids for n in grid.sizes if n is not None), default=0)

    @property
    def most_frequencies(self) -> int:
        """The largest D of the grids."""
        return max((D for grid in self.grids for D in grid.frequencies), default=1)


LANDMARK_SCALES = {
    "quick": Scale(
        amount=60,
        runs=2,
        test_rows=10_000,
        seconds=120.0,
        grids=(
            Grid(FOURIER, "stochastic", (2_000, 10_000), (10, 50), 1, REGIMES),
            Grid(FOURIER, "stochastic", (10_000,), (100,), 1, REGIMES),
            Grid(FOURIER, "stochastic", (10_000,), (10, 50), 2, REGIMES),
            Grid(FOURIER, "stochastic", (50_000,), (50, 100), 1, ("high", "night")),
            Grid(FOURIER, "batch", (2_000,), (10, 50), 1, REGIMES),
            Grid(("gpc",), "exact", (250, 500), (), 1, REGIMES),
            Grid(("gpc",), "exact", (1_000,), (), 1, ("high",)),
            Grid(("rff",), "stochastic", (1_000,), (10, 50, 100), 1, ("high",)),
        ),
    ),
    "medium": Scale(
        amount=365,
        runs=2,
        test_rows=20_000,
        seconds=1_800.0,
        grids=(
            Grid(FOURIER, "stochastic", (10_000, 50_000), (10, 50, 100, 200), 2, REGIMES),
            Grid(FOURIER, "stochastic", (100_000,), (10, 50, 100, 200), 1, REGIMES),
            Grid(FOURIER, "stochastic", (300_000,), (100, 200), 1, REGIMES),
            Grid(FOURIER, "batch", (2_000, 10_000), (10, 25, 50), 2, REGIMES),
            Grid(FOURIER, "batch", (2_000, 10_000), (100,), 1, REGIMES),
            Grid(FOURIER, "batch", (50_000,), (10, 25, 50), 1, ("high", "night")),
            Grid(("rff",), "batch", (2_000,), (200,), 1, REGIMES),
            Grid(("gpc",), "exact", (500, 1_000), (), 2, REGIMES),
            Grid(("gpc",), "exact", (2_000,), (), 1, REGIMES),
            Grid(("rff",), "stochastic", (2_000,), (10, 50, 100, 200), 1, REGIMES),
        ),
    ),
    "paper": Scale(
        amount=365,
        runs=5,
        test_rows=50_000,
        seconds=1e6,
        grids=(
            *(
                Grid(
                    FOURIER,
                    solver,
                    (10_000, 50_000, 100_000, 300_000),
                    (10, 25, 50, 100, 150, 200),
                    5,
                    REGIMES,
                )
                for solver in ("stochastic", "batch")
            ),
            Grid(("gpc",), "exact", (5_000, 10_000, 15_000), (), 5, REGIMES),
        ),
    ),
}
"""The landmark experiment by scale."""

SOUNDER_SCALES = {
    "quick": Scale(
        amount=5_000,
        runs=5,
        test_rows=None,
        seconds=120.0,
        grids=(
            Grid(FOURIER, "stochastic", (None,), (1, 2, 3, 5, 7, 10, 25, 50, 100), 3),
            Grid(FOURIER, "batch", (None,), (1, 2, 3, 5, 7, 10, 25, 50), 2),
            Grid(("gpc",), "exact", (500, 1_000), (), 3),
            Grid(("gpc",), "exact", (2_000,), (), 1),
        ),
    ),
    "medium": Scale(
        amount=24_923,
        runs=5,
        test_rows=None,
        seconds=1_800.0,
        grids=(
            Grid(FOURIER, "stochastic", (None,), (1, 2, 3, 5, 7, 10, 15, 25, 50, 100, 150), 5),
            Grid(FOURIER, "stochastic", (5_000,), (1, 2, 3, 5, 7, 10, 25, 50, 100, 150), 3),
            Grid(FOURIER, "batch", (None,), (1, 2, 3, 5, 7, 10, 15, 25, 50, 100), 3),
            Grid(FOURIER, "batch", (5_000,), (1, 2, 3, 5, 7, 10, 25, 50, 100), 3),
            Grid(("gpc",), "exact", (1_000,), (), 5),
            Grid(("gpc",), "exact", (5_000,), (), 2),
        ),
    ),
    "paper": Scale(
        amount=24_923,
        runs=5,
        test_rows=None,
        seconds=1e6,
        grids=(
            *(
                Grid(
                    FOURIER,
                    solver,
                    (None,),
                    (*range(1, 11), 15, 20, 25, 50, 75, 100, 125, 150),
                    5,
                )
                for solver in ("stochastic", "batch")
            ),
            Grid(("gpc",), "exact", (1_000, 5_000, 10_000, 15_000, None), (), 5),
        ),
    ),
}
"""The sounder experiment by scale."""
