"""How many waves spectra need: cross-validation over the paper's grid, by fold and by stratum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold

from undulatus.estimators.reduction import SpectralPCA
from undulatus.products.methods import make_classifier
from undulatus.products.scores import score
from undulatus.products.sounder import (
    LABEL,
    Rows,
    noise_of,
    read_labels,
    score_strata,
    whole_spectra,
)
from undulatus.scenes.spectra import check_spectra

Array = npt.NDArray[Any]

FREQUENCIES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 50, 75, 100, 125, 150)
"""The paper's grid of D."""
FOLDS = 5


@dataclass(frozen=True)
class CrossValidation:
    """What came of it, as tables.

    ``folds`` has a row for each method, number of waves and fold: scores on the fold, accuracy on
    the rest, and CPU seconds; ``strata`` has one for each method, number of waves and stratum:
    scores of every spectrum by the model that had not seen it.
    """

    folds: pd.DataFrame
    strata: pd.DataFrame

    def by_frequencies(self) -> pd.DataFrame:
        """Return the means over folds, a row for each method and number of waves."""
        return self.folds.groupby(["method", "frequencies"]).mean().drop(columns="fold")


def cross_validate(
    spectra: xr.Dataset,
    *,
    methods: Sequence[str] = ("vff", "rff"),
    frequencies: Sequence[int] = FREQUENCIES,
    folds: int = FOLDS,
    components: int = 100,
    label: str = LABEL,
    solver: str = "auto",
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> CrossValidation:
    """Cross-validate classifiers of spectra over numbers of waves.

    The principal components are those of all spectra, as in the paper: labels play no part in
    them. Folds are drawn at random, with as many cloudy spectra in each. ``solver="batch"`` is
    the paper's own way to learn, without early stopping.
    """
    spectra = check_spectra(spectra)
    labels = read_labels(spectra, label)
    chosen = np.flatnonzero(whole_spectra(spectra) & (labels <= 1))
    spectra, y = spectra.isel(sample=chosen), labels[chosen].astype(np.int64)
    rows = Rows(spectra, np.arange(len(y)), progress)
    reduced = SpectralPCA(components, noise=noise_of(spectra)).fit_transform(rows)
    records, strata = [], []
    for method in methods:
        for count in frequencies:
            how: dict[str, Any] = {} if method == "gpc" else {"solver": solver}
            classifier = make_classifier(method, count, seed=seed, **how)
            trials, unseen = _in_folds(classifier, reduced, y, folds, seed)
            told = {"method": method, "frequencies": count}
            records += [told | trial for trial in trials]
            strata += [
                told
                | {"stratum": s.stratum, "value": s.value, "samples": s.samples}
                | s.scores.as_dict()
                for s in score_strata(spectra, label, y, unseen)
            ]
            mean = np.mean([trial["accuracy"] for trial in trials])
            progress(f"{method}, D = {count}: accuracy {mean:.4f}")
    return CrossValidation(pd.DataFrame(records), pd.DataFrame(strata))


def _in_folds(
    classifier: Any, X: Array, y: Array, folds: int, seed: int
) -> tuple[list[dict[str, float]], Array]:
    """Return the scores of each fold, and the probabilities of rows by models without them."""
    unseen = np.empty(len(y))
    trials = []
    split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(X, y)
    for fold, (training, test) in enumerate(split):
        began = process_time()
        with warnings.catch_warnings():
            # How long it was worth to learn is what the table tells.
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(X[training], y[training])
        fitted = process_time()
        unseen[test] = classifier.predict_proba(X[test])[:, 1]
        trials.append(
            {
                "fold": fold,
                "train_accuracy": float(np.mean(classifier.predict(X[training]) == y[training])),
                **score(y[test] == 1, unseen[test]).as_dict(),
                "fit_seconds": fitted - began,
                "predict_seconds": process_time() - fitted,
            }
        )
    return trials, unseen
