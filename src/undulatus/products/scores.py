"""How good probabilities are: accuracy, likelihood, calibration, ranking."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Scores:
    """Scores of probabilities against labels.

    ``accuracy`` and ``auc`` are best at 1; ``nll`` (mean negative log likelihood, nats),
    ``brier`` (mean squared error of the probability) and ``ece`` are best at 0.
    """

    accuracy: float
    nll: float
    ece: float
    brier: float
    auc: float

    def as_dict(self) -> dict[str, float]:
        """Return the scores by name."""
        return asdict(self)


def expected_calibration_error(positive: Array, probability: Array, bins: int = 15) -> float:
    """Return the mean gap between probability and frequency over bins of equal width.

    Each bin is weighted by its share of the rows.
    """
    index = np.minimum((probability * bins).astype(int), bins - 1)
    gap = np.bincount(index, weights=probability - positive, minlength=bins)
    return float(np.abs(gap).sum() / len(probability))


def score(positive: Array, probability: Array) -> Scores:
    """Score the probability of the positive class, (n,), against the truth, (n,) bool.

    ``auc`` is NaN if only one class is present.
    """
    positive = np.asarray(positive, dtype=bool)
    both = np.column_stack([1.0 - probability, probability])
    return Scores(
        accuracy=float(np.mean((probability > 0.5) == positive)),
        nll=float(log_loss(positive, both, labels=[False, True])),
        ece=expected_calibration_error(positive, probability),
        brier=float(brier_score_loss(positive, probability)),
        auc=float(roc_auc_score(positive, probability)) if 0 < positive.mean() < 1 else np.nan,
    )
