"""What a few labels of a new scene are worth: before, adapted, updated, and Platt's two numbers.

    python -m benchmarks.new_scene [--data FILE --group-key KEY --place-key KEY --folds N]
        [--labels 3,10,30] [--choice random,balanced,wrong] [--seeds 0,1,2] [--rows N]

Of an .npz with X, y and an array of groups, folds of whole groups are left out in turn; without
``--data``, Covertype without one of its areas. Each place left out (a group, unless
``--place-key`` names an array of larger places) gives a few labels, and its other rows are scored:
the NLL, and that after over that before. Labels are drawn at random, equally many of each class,
or where the model was wrong, as people click them. ``--rows`` limits the rows of a fit.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from benchmarks.elsewhere import covertype_areas
from undulatus import VFFGPC

Array = np.ndarray[Any, Any]

DRAWS = 6
"""Draws of labels if there is one place alone."""

LIMIT = 1e-7
"""Probabilities below are taken for this."""


def choose(kind: str, y: Array, right: Array, n: int, rng: np.random.Generator) -> Array:
    """Return the numbers of the rows of a place that are labelled, n at most."""
    if kind == "random":
        return rng.choice(len(y), n, replace=False)
    if kind == "wrong":
        wrong = np.flatnonzero(~right)
        return rng.choice(wrong, min(n, len(wrong)), replace=False)
    classes = np.unique(y)
    of_class = [np.flatnonzero(y == label) for label in classes]
    each = max(1, n // len(classes))
    return np.concatenate(
        [rng.choice(rows, min(each, len(rows)), replace=False) for rows in of_class]
    )


def platt(p: Array, given: Array, y: Array) -> Array:
    """Return the probability after a slope N(1, 1/4) and a shift N(0, 9/4) of its logit."""
    f, sign = logit(np.clip(p, 1e-6, 1 - 1e-6)), 2.0 * y - 1.0

    def loss(v: Array) -> float:
        misfit = np.logaddexp(0.0, -sign * (v[0] * f[given] + v[1])).sum()
        return float(misfit + 2.0 * (v[0] - 1.0) ** 2 + v[1] ** 2 / 4.5)

    slope, shift = minimize(loss, [1.0, 0.0]).x
    return np.asarray(expit(slope * f + shift))


def losses(p: Array, y: Array) -> Array:
    """Return minus the logarithm of the probability of each row's class, (n,)."""
    return -np.log(np.clip(p[np.arange(len(y)), y], LIMIT, 1.0))


def folds_of(asked: argparse.Namespace) -> Iterator[tuple[Array, ...]]:
    """Yield training rows with labels and groups, and rows left out with labels and places."""
    if asked.data is None:
        X, y, area = covertype_areas()
        for left_out in (0, 2, 3):
            rest, test = np.flatnonzero(area != left_out), np.flatnonzero(area == left_out)
            yield X[rest], y[rest], area[rest], X[test], y[test], area[test]
        return
    from sklearn.model_selection import GroupKFold

    with np.load(asked.data) as arrays:
        X, y, groups = (arrays[name] for name in ("X", "y", asked.group_key))
        place = arrays[asked.place_key or asked.group_key]
    X, y = np.nan_to_num(X.astype(np.float64)), np.unique(y, return_inverse=True)[1]
    for rest, test in GroupKFold(asked.folds, shuffle=True, random_state=0).split(X, y, groups):
        yield X[rest], y[rest], groups[rest], X[test], y[test], place[test]


def measure(asked: argparse.Namespace) -> dict[tuple[str, int], dict[str, list[Array]]]:
    """Return the losses of rows by choice and number of labels, and by what was done."""
    found: dict[tuple[str, int], dict[str, list[Array]]] = {}
    for seed in asked.seeds:
        for number, (X, y, groups, X_new, y_new, place) in enumerate(folds_of(asked)):
            print(f"seed {seed}, fold {number + 1}: {len(y):,} rows", file=sys.stderr)
            rng = np.random.default_rng([seed, number])
            some = rng.permutation(len(y))[: asked.rows]
            model = VFFGPC(random_state=seed).fit(X[some], y[some], groups=groups[some])
            places = np.unique(place)
            for name in places:
                rows = np.flatnonzero(place == name)
                p = model.predict_proba(X_new[rows])
                for kind in asked.choice:
                    for n in asked.labels:
                        if len(rows) < 3 * n:
                            continue
                        for _ in range(DRAWS if len(places) == 1 else 1):
                            given = choose(kind, y_new[rows], p.argmax(1) == y_new[rows], n, rng)
                            if len(given):
                                own = found.setdefault((kind, n), {})
                                score_place(model, X_new[rows], y_new[rows], p, given, own)
    return found


def score_place(
    model: VFFGPC, X: Array, y: Array, p: Array, given: Array, found: dict[str, list[Array]]
) -> None:
    """Add the losses of the rows of a place that were not labelled."""
    rest = np.setdiff1d(np.arange(len(y)), given)
    adapted = model.adapt(X[given], y[given]).predict_proba(X[rest])
    updated = model.update(X[given], y[given], np.full(len(given), 20.0)).predict_proba(X[rest])
    each = {"before": p[rest], "adapt": adapted, "update, weight 20": updated}
    if p.shape[1] == 2:
        second = platt(p[:, 1], given, y[given])[rest]
        each["Platt"] = np.stack([1.0 - second, second], axis=1)
    for name, own in each.items():
        found.setdefault(name, []).append(losses(own, y[rest]))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--data", type=Path)
    parser.add_argument("--group-key", default="groups")
    parser.add_argument("--place-key")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--labels", type=numbers, default=[3, 10, 30])
    parser.add_argument("--choice", type=lambda t: t.split(","), default=["random"])
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--rows", type=int)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| labels | | places | NLL before | after over before |")
    print("|---|---|---|---|---|")
    for (kind, n), own in measure(asked).items():
        before = float(np.concatenate(own["before"]).mean())
        ratios = ", ".join(
            f"{name} {np.concatenate(values).mean() / before:.3f}"
            for name, values in own.items()
            if name != "before"
        )
        print(f"| {n} | {kind} | {len(own['before'])} | {before:.4f} | {ratios} |")


if __name__ == "__main__":
    main()
