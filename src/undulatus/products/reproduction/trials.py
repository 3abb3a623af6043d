"""What a trial is: one classifier, fitted on so many rows and scored on others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DONE = "done"
OVER_TIME = "over time budget"
OVER_MEMORY = "over memory budget"
FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One fit and what it is fitted on; ``frequencies`` is the paper's D, which GPC has not."""

    experiment: str
    method: str
    solver: str
    n: int
    d: int
    run: int
    seed: int
    frequencies: int | None = None
    regime: str | None = None
    whole: bool = False
    """Whether these are all rows there are."""

    @property
    def id(self) -> str:
        """A name that stays the same from one session to the next."""
        parts = [self.regime, self.method, self.solver, f"n{self.n}"]
        if self.frequencies is not None:
            parts.append(f"D{self.frequencies}")
        parts.append(f"{'run' if self.regime else 'fold'}{self.run}")
        return "-".join(part for part in parts if part)

    @property
    def part(self) -> str:
        """The folder of the data it is fitted on."""
        return self.regime or "spectra"

    def asked(self) -> dict[str, Any]:
        """Return the part of its record that is known before it is run."""
        record: dict[str, Any] = {"id": self.id, "experiment": self.experiment}
        if self.regime:
            record["regime"] = self.regime
        record |= {"method": self.method, "solver": self.solver, "n": self.n}
        if self.whole:
            record["all"] = True
        return record | {"D": self.frequencies, "d": self.d, "run": self.run, "seed": self.seed}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, to be sent to another process."""
        return asdict(self)


@dataclass(frozen=True)
class Budgets:
    """What a trial may take before it is stopped: seconds of CPU time, and bytes of memory."""

    seconds: float
    bytes: float
