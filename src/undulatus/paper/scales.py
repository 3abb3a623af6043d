"""What is asked of a run at each scale: which trials, of which sizes, how often.

``quick`` is for a first look (5 minutes on two cores), ``medium`` for the shape of every figure
(an hour), ``paper`` is the whole grid of the paper, with both solvers: weeks on two cores, most of
them for GPC.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from undulatus._daylight import REGIMES

FOURIER = ("rff", "vff")

SCALES = ("quick", "medium", "paper")


@dataclass(frozen=True)
class Grid:
    """Trials of some methods: every size with every number of waves, so many runs of each.

    ``sizes`` are the paper's n, None for all rows there are; ``frequencies`` its D, none for GPC.
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
    """The data a run is made on, and its trials."""

    amount: int
    """Days of the landmark, or spectra, of a twin."""
    runs: int
    """Training sets a regime, or folds."""
    test_rows: int | None
    """Pixels a regime that are tested on at most; a fold is tested whole."""
    seconds: float
    """CPU time of a trial at most."""
    grids: tuple[Grid, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what was asked, as plain values."""
        return asdict(self)

    @property
    def most_rows(self) -> int:
        """The largest n of the grids, but for all rows."""
        return max((n for grid in self.grids for n in grid.sizes if n is not None), default=0)

    @property
    def most_frequencies(self) -> int:
        """The largest D of the grids."""
        return max((D for grid in self.grids for D in grid.frequencies), default=1)


LANDMARKS = {
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

IAVISA = {
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
