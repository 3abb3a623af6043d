"""Fits that learn nothing where there is something to learn, counted.

    python -m benchmarks.chance [--problems 200] [--seeds 10] [--n-estimators N] [-D N]

First y ~ 3 sin(6 x0) with three features and 5,000 rows, uniform or normal, D=20 unless ``-D``
says otherwise; then random problems of eight kinds with 1 to 10 features and 600 to 8,000 rows. A
fit fails if its NLL on fresh rows is above 0.98 of the entropy of the classes' shares where a
random forest is below 0.9 of it. VFF-GPC has its defaults otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import entr, expit
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from undulatus import VFFGPC

Array = np.ndarray[Any, Any]
Draw = Callable[[int], tuple[Array, Array]]

TEST_ROWS = 4_000
LEARNED_NOTHING, CAN_BE_LEARNED = 0.98, 0.9
"""Shares of the entropy: a fit above the first has failed if a forest is below the second."""


def ripple(seed: int, normal: bool) -> Draw:
    """Return how to draw rows of the three-feature problem."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> tuple[Array, Array]:
        X = rng.normal(size=(n, 3)) if normal else rng.uniform(size=(n, 3))
        return X, rng.uniform(size=n) < expit(3.0 * np.sin(6.0 * X[:, 0]))

    return draw


def checks(u: Array, v: Array, turns: float) -> Array:
    """Return a checkerboard of two features."""
    return np.sign(np.sin(0.6 * turns * u) * np.sin(0.6 * turns * v))


def random_problem(seed: int) -> tuple[str, Draw]:
    """Return the kind of a random problem, and how to draw its rows."""
    rng = np.random.default_rng([7, seed])
    d, law = int(rng.integers(1, 11)), int(rng.integers(3))
    mixing = rng.normal(size=(d, d)) / np.sqrt(d) if rng.uniform() < 0.5 else np.eye(d)
    turns, strength = np.exp(rng.uniform(np.log([1.0, 1.0]), np.log([8.0, 5.0])))
    offset, phase, split = 0.8 * rng.normal(), rng.normal(), 0.5 * rng.normal(size=2)
    first, second = rng.integers(0, d, 2)
    weights, centres = rng.normal(size=d), rng.normal(size=(12, d))
    of_centre = 2 * rng.integers(0, 2, 12) - 1

    def rows(n: int) -> Array:
        plain = [rng.normal(size=(n, d)), rng.uniform(-1.7, 1.7, (n, d)), rng.normal(size=(n, d))]
        return np.asarray((np.exp(plain[law]) if law == 2 else plain[law]) @ mixing)

    some = rows(4_000)
    middle, deviation = np.median(some, axis=0), some.std(axis=0)

    def nearest(u: Array) -> Array:
        return np.asarray(of_centre[((u[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)])

    kinds: dict[str, Callable[[Array], Array]] = {
        "sine": lambda u: np.sin(turns * u[:, first] + phase),
        "quadrants": lambda u: np.sign(u[:, first] * (u[:, second] + 0.7 * (first == second))),
        "ring": lambda u: 3.0 * np.abs(np.linalg.norm(u[:, :2], axis=1) - 1.0) - 1.0,
        "checks": lambda u: checks(u[:, first], u[:, second], turns),
        "plane": lambda u: u @ weights,
        "product": lambda u: u[:, first] * u[:, second] - 0.5,
        "cells": nearest,
        "tree": lambda u: np.where(u[:, first] > split[0], np.sign(u[:, second] - split[1]), -1.0),
    }
    kind = list(kinds)[seed % len(kinds)]

    def draw(n: int) -> tuple[Array, Array]:
        X = rows(n)
        logit = strength * kinds[kind]((X - middle) / deviation) + offset
        return X, rng.uniform(size=n) < expit(logit)

    return kind, draw


def measure(name: str, draw: Draw, rows: int, model: VFFGPC) -> dict[str, Any]:
    """Compare a fit with a forest, print both, and return whether it failed."""
    (X, y), (X_test, y_test) = draw(rows), draw(TEST_ROWS)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.perf_counter() - began
    forest = RandomForestClassifier(200, min_samples_leaf=5, random_state=0, n_jobs=-1).fit(X, y)
    share = y_test.mean()
    known = float(entr(share) + entr(1.0 - share))
    ours, trees = (
        log_loss(y_test, np.clip(m.predict_proba(X_test)[:, 1], 1e-7, 1.0 - 1e-7)) / known
        for m in (model, forest)
    )
    failed = ours > LEARNED_NOTHING and trees < CAN_BE_LEARNED
    print(
        f"{name}, {X.shape[1]} features, {rows:,} rows: {ours:.3f} of the entropy, forest "
        f"{trees:.3f}, {seconds:.1f} s{', FAILED' if failed else ''}",
        flush=True,
    )
    warned = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    return {"failed": failed, "ahead": ours < trees, "seconds": seconds, "warned": warned}


def summarise(title: str, found: list[dict[str, Any]]) -> int:
    """Print how many fits failed, and return it."""
    count = {name: sum(r[name] for r in found) for name in ("failed", "ahead", "warned")}
    longest = max((r["seconds"] for r in found), default=0.0)
    print(
        f"## {title}: {count['failed']} of {len(found)} fits failed; {count['ahead']} ahead of a "
        f"forest; {count['warned']} with a ConvergenceWarning; {longest:.1f} s at most"
    )
    return count["failed"]


def main() -> None:
    """Run both parts; the exit code is 1 if a fit failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=200, help="random problems")
    parser.add_argument("--seeds", type=int, default=10, help="seeds of the sine")
    parser.add_argument("--n-estimators", type=int, help="n_estimators")
    parser.add_argument("-D", type=int, dest="frequencies", help="n_frequencies")
    asked = parser.parse_args()

    def model(seed: int, frequencies: int) -> VFFGPC:
        members = {} if asked.members is None else {"n_estimators": asked.members}
        return VFFGPC(asked.frequencies or frequencies, random_state=seed, **members)

    ripples = [
        measure(f"{name} sine {seed}", ripple(seed, name == "normal"), 5_000, model(seed, 20))
        for seed in range(asked.seeds)
        for name in ("uniform", "normal")
    ]
    others = []
    for seed in range(asked.problems):
        kind, draw = random_problem(seed)
        rows = int(np.exp(np.random.default_rng(seed).uniform(np.log(600), np.log(8_000))))
        others.append(measure(f"{kind} {seed}", draw, rows, model(seed, 100)))
    failures = summarise("y ~ 3 sin(6 x0)", ripples) + summarise("random problems", others)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
