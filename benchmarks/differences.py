"""How often intervals of paired differences of two models hold the true difference.

Groups of rows are drawn from models whose accuracies are known. The two are right in the same rows
for the most part, and each is right in more rows of some groups than of others.

    python -m benchmarks.differences
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.products.comparison import Difference, compare_classes

Array = npt.NDArray[Any]

IN_COMMON = 0.7
"""Share of the rows that are as hard for one model as for the other."""


@dataclass(frozen=True)
class Sample:
    """Groups of rows, and the accuracies of two models."""

    groups: int
    rows: int
    """In a group, on average; half as many to half as many more."""
    first: float
    second: float
    likeness: float
    """Accuracies in groups have a beta distribution: small numbers of it are groups that are wrong
    or right as a whole, and infinity rows drawn by themselves."""

    def draw(self, rng: np.random.Generator) -> Difference:
        """Return the difference of the accuracies in one sample."""
        size = rng.integers((self.rows + 1) // 2, (3 * self.rows) // 2 + 1, self.groups)
        group = np.repeat(np.arange(self.groups), size)
        luck = rng.random(len(group))
        other = np.where(rng.random(len(group)) < IN_COMMON, luck, rng.random(len(group)))
        chances = []
        for accuracy, drawn in ((self.first, luck), (self.second, other)):
            right = drawn < self._in_groups(accuracy, rng)[group]
            chances.append(np.where(right[:, None], [0.9, 0.1], [0.1, 0.9]))
        return compare_classes(np.zeros(len(group), int), *chances, [0, 1], groups=group).accuracy

    def _in_groups(self, accuracy: float, rng: np.random.Generator) -> Array:
        if np.isinf(self.likeness):
            return np.full(self.groups, accuracy)
        a = accuracy * self.likeness
        return rng.beta(a, self.likeness - a, self.groups)


SAMPLES = {
    "40 groups of 20 rows, 0.80 and 0.85": Sample(40, 20, 0.80, 0.85, 5.0),
    "12 groups of 80 rows, 0.90 and 0.93": Sample(12, 80, 0.90, 0.93, 5.0),
    "8 groups of 80 rows, both 0.90": Sample(8, 80, 0.90, 0.90, 5.0),
    "40 groups of 20 rows, both 0.80": Sample(40, 20, 0.80, 0.80, 5.0),
    "100 groups of 20 rows that are much alike, 0.97 and 0.98": Sample(100, 20, 0.97, 0.98, 0.5),
    "300 rows, 0.90 and 0.93": Sample(300, 1, 0.90, 0.93, np.inf),
    "300 rows, both 0.90": Sample(300, 1, 0.90, 0.90, np.inf),
    "12 groups of 80 rows, 0.990 and 0.995": Sample(12, 80, 0.990, 0.995, 3.0),
}


def measure(sample: Sample, repeats: int, seed: int = 0) -> tuple[float, float, float]:
    """Return the shares of intervals that hold the difference, and of samples with a verdict.

    The last is the share of samples that have no interval.
    """
    rng, true = np.random.default_rng(seed), sample.second - sample.first
    found = [sample.draw(rng) for _ in range(repeats)]
    known = [one for one in found if not np.isnan(one.low)]
    held = float(np.mean([one.low <= true <= one.high for one in known]))
    verdicts = sum(one.is_beyond_chance for one in known) / repeats
    return held, verdicts, 1.0 - len(known) / repeats


def main() -> None:
    """Print a line for each kind of sample."""
    for name, sample in SAMPLES.items():
        held, verdicts, none = measure(sample, 2000)
        print(f"{name}: held {held:.1%}, called different {verdicts:.1%}, no interval {none:.1%}")


if __name__ == "__main__":
    main()
