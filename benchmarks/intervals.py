"""How often confidence intervals of scores and areas hold the truth, in simulated tables.

    python -m benchmarks.intervals [--tables 300] [--kind NAME ...] [--seed 0]

Of each kind so many samples are drawn from a map whose truth is known, and scored. Printed is, for
each estimate and class, its true value and the share of the intervals that hold it, with how many
were printed if not all; those outside of 92 to 98 % are marked. The exit code is 1 if an interval
of 95 % holds the truth in less than 92 %, allowing for five standard errors of so few tables.
Intervals of more than 98 % are too long, not wrong; they are where a sample shows few errors:
no interval is shorter where there is nothing to tell the truth from a perfect map.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from undulatus.products.area import estimate_areas
from undulatus.products.scores import score_classes

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Named = Iterator[tuple[str, float, float, float]]

LEAST, MOST = 0.92, 0.98

EVEN = np.array([[0.17, 0.02, 0.01], [0.03, 0.30, 0.02], [0.01, 0.04, 0.40]])
"""Shares of a map of three classes of like areas, by true and mapped class."""


def confusing(shares: list[float], accuracies: list[float]) -> Array:
    """Return the shares of a map whose errors are spread evenly over the other classes."""
    k = len(shares)
    right = np.eye(k, dtype=bool)
    wrong = (1.0 - np.array(accuracies)) / (k - 1)
    return np.array(shares)[:, None] * np.where(right, accuracies, wrong[:, None])


RARE = confusing([0.6, 0.28, 0.1, 0.02], [0.98, 0.95, 0.9, 0.8])
"""A class of 2 %, and accuracies of which 50 samples show one error, or none."""

GOOD = confusing([0.68, 0.3, 0.02], [0.995, 0.99, 0.9])
"""A map of which most samples show no error in two of three strata."""


# Samples of a map, by true and mapped class


def rows(n: int) -> Callable[[Array, Rng], Array]:
    """Draw n pixels from all of the map, (1, k, k)."""
    return lambda joint, rng: rng.multinomial(n, joint.ravel()).reshape(1, *joint.shape)


def stratified(n: int) -> Callable[[Array, Rng], Array]:
    """Draw n pixels of each mapped class, (1, k, k)."""
    return lambda joint, rng: rng.multinomial(n, joint.T / joint.sum(axis=0)[:, None]).T[None]


def clusters(m: int, alike: float, most: int = 60) -> Callable[[Array, Rng], Array]:
    """Draw m clusters of up to 60 pixels, (m, k, k): each has shares of its own.

    They are Dirichlet's around those of the map, such that two pixels of a cluster are in the same
    cell by more than chance in a share ``alike``.
    """

    def draw(joint: Array, rng: Rng) -> Array:
        sizes = rng.integers(most // 3, most + 1, m)
        own = rng.dirichlet((1.0 / alike - 1.0) * joint.ravel(), m)
        own /= own.sum(axis=1, keepdims=True)
        return rng.multinomial(sizes, own).reshape(m, *joint.shape)

    return draw


def whole(m: int, alike: float, most: int = 60) -> Callable[[Array, Rng], Array]:
    """Draw m clusters of up to 60 pixels, (m, k, k), a part of which is in one cell."""

    def draw(joint: Array, rng: Rng) -> Array:
        sizes = rng.integers(most // 3, most + 1, m)
        common = np.rint(alike * sizes).astype(int)
        cells = rng.multinomial(sizes - common, joint.ravel())
        cells[np.arange(m), rng.choice(joint.size, m, p=joint.ravel())] += common
        return cells.reshape(m, *joint.shape)

    return draw


# What is estimated from them


def scores_of(joint: Array, cells: Array) -> Named:
    """Yield the scores of rows, with groups if there are several."""
    group, true, said = (
        np.repeat(at, cells.ravel()) for at in np.indices(cells.shape).reshape(3, -1)
    )
    k = len(joint)
    groups = group if len(cells) > 1 else None
    found = score_classes(true, np.eye(k)[said], range(k), groups=groups)
    right, of, as_ = np.diag(joint), joint.sum(axis=1), joint.sum(axis=0)
    chance = float(of @ as_)
    for name, truth in (
        ("accuracy", right.sum()), ("kappa", (right.sum() - chance) / (1.0 - chance))
    ):  # fmt: skip
        estimate = getattr(found, name)
        yield name, truth, estimate.low, estimate.high
    for name, truths in (
        ("producers_accuracy", right / of), ("users_accuracy", right / as_),
        ("f1", 2.0 * right / (of + as_)),
    ):  # fmt: skip
        for c, truth in enumerate(truths):
            estimate = getattr(found.by_class[c], name)
            yield f"{name} {c}", truth, estimate.low, estimate.high


def areas_of(design: Any) -> Callable[[Array, Array], Named]:
    """Return what yields the estimates for the whole map, of a sampling design."""

    def estimates(joint: Array, cells: Array) -> Named:
        mapped, right = joint.sum(axis=0), np.diag(joint)
        by_map = cells.swapaxes(1, 2)
        names = [str(c) for c in range(len(joint))]
        found = estimate_areas(
            by_map if design == "clusters" else by_map.sum(axis=0), mapped, names, design=design
        )
        yield "accuracy", right.sum(), found.accuracy.low, found.accuracy.high
        for name, truths in (
            ("areas", joint.sum(axis=1)), ("users_accuracy", right / mapped),
            ("producers_accuracy", right / joint.sum(axis=1)),
        ):  # fmt: skip
            for c, truth in enumerate(truths):
                estimate = getattr(found, name)[c]
                yield f"{name} {c}", truth, estimate.low, estimate.high

    return estimates


@dataclass(frozen=True)
class Kind:
    """Tables of one kind: a map, how it is sampled, and what is estimated."""

    joint: Array
    draw: Callable[[Array, Rng], Array]
    estimates: Callable[[Array, Array], Named]


KINDS = {
    "scores of 300 rows": Kind(EVEN, rows(300), scores_of),
    "scores of 300 rows, a class of 2 %": Kind(RARE, rows(300), scores_of),
    "scores of 50 rows": Kind(EVEN, rows(50), scores_of),
    "scores of 1,000 rows, hardly an error": Kind(GOOD, rows(1000), scores_of),
    "scores of 40 clusters": Kind(EVEN, clusters(40, 0.1), scores_of),
    "scores of 100 clusters, a class of 2 %": Kind(RARE, clusters(100, 0.1), scores_of),
    "scores of 20 clusters, very alike": Kind(EVEN, clusters(20, 0.25), scores_of),
    "scores of 80 clusters, half in one cell": Kind(EVEN, whole(80, 0.5), scores_of),
    "simple, 300 pixels": Kind(EVEN, rows(300), areas_of("simple")),
    "simple, 300 pixels, a class of 2 %": Kind(RARE, rows(300), areas_of("simple")),
    "stratified, 50 a stratum": Kind(EVEN, stratified(50), areas_of("stratified")),
    "stratified, 50 a stratum, a class of 2 %": Kind(RARE, stratified(50), areas_of("stratified")),
    "stratified, 50 a stratum, hardly an error": Kind(
        GOOD, stratified(50), areas_of("stratified")
    ),
    "40 clusters": Kind(EVEN, clusters(40, 0.1), areas_of("clusters")),
    "100 clusters, a class of 2 %": Kind(RARE, clusters(100, 0.1), areas_of("clusters")),
    "20 clusters, very alike": Kind(EVEN, clusters(20, 0.25), areas_of("clusters")),
    "80 clusters, half in one cell": Kind(EVEN, whole(80, 0.5), areas_of("clusters")),
}


@dataclass(frozen=True)
class Coverage:
    """How many intervals of an estimate there were, and how many held its true value."""

    truth: float
    printed: int
    held: int

    @property
    def share(self) -> float:
        """The share of the intervals that hold the truth; NaN of none."""
        return self.held / self.printed if self.printed else float("nan")


def measure(kind: Kind, tables: int, seed: int = 0) -> dict[str, Coverage]:
    """Draw tables of a kind, and return how often the interval of each estimate held the truth."""
    rng = np.random.default_rng(seed)
    found: dict[str, Coverage] = {}
    for _ in range(tables):
        for name, truth, low, high in kind.estimates(kind.joint, kind.draw(kind.joint, rng)):
            old = found.get(name, Coverage(truth, 0, 0))
            there = np.isfinite(low)
            held = there and low - 1e-12 <= truth <= high + 1e-12
            found[name] = Coverage(truth, old.printed + int(there), old.held + int(held))
    return found


def too_rare(one: Coverage) -> bool:
    """Whether an interval holds the truth less often than it may, by five standard errors."""
    if not one.printed:
        return False
    return one.share < LEAST - 5.0 * float(np.sqrt(LEAST * (1.0 - LEAST) / one.printed))


def main() -> None:
    """Print the coverage of every kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--kind", action="append", help="those whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failed = False
    for name, kind in KINDS.items():
        if asked.kind and not any(name.startswith(given) for given in asked.kind):
            continue
        found = measure(kind, asked.tables, asked.seed)
        shares = np.array([one.share for one in found.values()])
        print(f"## {name}: {np.nanmin(shares):.1%} to {np.nanmax(shares):.1%}, "
              f"{np.nanmean(shares):.1%} in the mean", flush=True)  # fmt: skip
        for estimate, one in found.items():
            mark = "" if LEAST <= one.share <= MOST else " <" if one.share < LEAST else " >"
            printed = "" if one.printed == asked.tables else f" of {one.printed} printed"
            print(f"   {estimate:22} {one.truth:.3f}  {one.share:.1%}{printed}{mark}")
            failed |= too_rare(one)
    sys.exit(failed)


if __name__ == "__main__":
    main()
