"""Rare classes: which weights of the classes, with or without a correction, measure best.

``python -m benchmarks.rare [DRAWS]`` fits krummholz (class 7 of Covertype) against the rest, one
row of it to 1,000 and to 100 others, and scores other rows with the same shares. For each way to
weigh the classes it prints means over the draws of rows, and their deviations: of the average
precision, the negative log likelihood (in thousandths), and the mean probability over the share of
the class.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score, log_loss

from undulatus import VFFGPC, datasets

ROWS, TEST_ROWS, DRAWS = 20_000, 100_000, 5
"""Rows to learn from and to score, and how often they are drawn."""

RARE = 7
"""The class of Covertype that is made rare."""


def ways(ratio: int) -> dict[str, dict[str, Any]]:
    """Return the parameters of each way, for a class with one row to so many others."""
    corrected = {"prior_correction": "training"}
    return {
        "defaults": {},
        "square root of balanced, corrected": {
            "class_weight": {0: 1.0, 1: np.sqrt(ratio)},
            **corrected,
        },
        "balanced, corrected": {"class_weight": "balanced", **corrected},
        "balanced, not corrected": {"class_weight": "balanced"},
    }


def draw(data: Any, ratio: int, seed: int) -> list[tuple[Any, Any]]:
    """Return rows and labels to learn from, and others to score, one of the class to ``ratio``."""
    rng = np.random.default_rng(seed)
    pools = [rng.permutation(np.flatnonzero((data.y == RARE) == own)) for own in (False, True)]
    parts = []
    for rows in (ROWS, TEST_ROWS):
        rare = round(rows / (ratio + 1))
        counts = (rows - rare, rare)
        chosen = np.concatenate([pool[:count] for pool, count in zip(pools, counts, strict=True)])
        pools = [pool[count:] for pool, count in zip(pools, counts, strict=True)]
        parts.append((data.X[chosen], (data.y[chosen] == RARE).astype(int)))
    return parts


def main() -> None:
    """Print the table of each ratio."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS
    data = datasets.load_covertype()
    for ratio in (1_000, 100):
        found: dict[str, list[list[float]]] = {}
        for seed in range(draws):
            (X, y), (X_test, y_test) = draw(data, ratio, seed)
            for name, options in ways(ratio).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    model = VFFGPC(random_state=seed, **options).fit(X, y)
                p = model.predict_proba(X_test)[:, 1]
                scores = [
                    float(average_precision_score(y_test, p)),
                    1e3 * float(log_loss(y_test, p)),
                    float(p.mean() / y_test.mean()),
                ]
                found.setdefault(name, []).append(scores)
                print(f"1:{ratio}, draw {seed}, {name}: {np.round(scores, 3)}", file=sys.stderr)
        columns = "average precision, NLL times 1000, mean probability over the share"
        print(f"\n## 1:{ratio:,}: {columns}")
        for name, each in found.items():
            means, deviations = np.mean(each, axis=0), np.std(each, axis=0)
            cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(means, deviations, strict=True)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
