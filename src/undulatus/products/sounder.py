"""The sounder chain: from spectra to a model of their components, and its scores by stratum.

How many waves spectra need: cross-validation over the paper's grid, by fold and by stratum.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline

from undulatus.errors import InputError, SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.estimators.pca import SpectralPCA
from undulatus.products.maps import map_scene
from undulatus.products.memory_budget import BASE
from undulatus.products.scores import Scores, score
from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import radiance_slope
from undulatus.scenes.sampling import cell_names, hold_out_cells, rows_by_stratum
from undulatus.scenes.scene import CLOUD_TRUTH
from undulatus.scenes.spectra import (
    BRIGHTNESS_TEMPERATURE,
    CLOUD_AMOUNT,
    CLOUDY,
    CODES,
    NOISE,
    SCORES,
    check_spectra,
    measurement,
)

Array = npt.NDArray[Any]

Progress = Callable[[str], None]

NOISE_TEMPERATURE = 280.0
"""Scene temperature (K) at which noise of radiance is told as noise of temperature, by custom."""

COVARIANCES = 1.5
"""Memory of a reduction, in covariances of the channels in double precision."""

EXACT_ROWS = 5_000
"""Spectra the exact process learns from at most."""


def fit_spectra(
    spectra: xr.Dataset,
    *,
    method: str = "vff",
    n_frequencies: int = 5,
    components: int = 100,
    label: str = CLOUDY,
    holdout: float = 0.25,
    seed: int = 0,
    ram: int | None = None,
    checkpoint: Path | None = None,
    verbose: int = 0,
    progress: Progress = lambda line: None,
) -> Pipeline:
    """Return a Pipeline of principal components and a classifier, fitted on spectra.

    Parameters
    ----------
    spectra : Dataset
        As :func:`undulatus.scenes.spectra.check_spectra` has them, with a label; read twice, block
        by block. Spectra with a missing value are left out.
    method : {"vff", "rff", "gpc"}
    n_frequencies : int
        Number D of waves. Spectra need few: more learn the noise of few thousand spectra.
    components : int
        Principal components of the spectra in units of their noise, where that is known.
    label : str
        The variable to learn from: 1 cloudy, 0 clear, anything else missing.
    holdout : float
        Share kept for :func:`score_spectra`, as whole cells
        (:func:`undulatus.scenes.sampling.cell_names`); they are recorded in the model.
    ram : int, optional
        Bytes of memory to stay below; an error says if they are too few.
    checkpoint : path, optional
        Where the classifier's fit is kept under way, and gone on from.
    """
    classifier = make_classifier(
        method, n_frequencies, seed=seed, verbose=verbose, checkpoint=checkpoint
    )
    spectra = check_spectra(spectra)
    _require_room(spectra, components, ram)
    labels = read_labels(spectra, label)
    held_out, names = hold_out_cells(spectra, holdout, seed)
    progress("looking for spectra with missing values")
    whole = whole_spectra(spectra)
    chosen = np.flatnonzero(whole & ~held_out & (labels <= 1))
    if method == "gpc" and len(chosen) > EXACT_ROWS:
        drawn = np.random.default_rng(seed).choice(chosen, EXACT_ROWS, replace=False)
        chosen = np.sort(drawn)
    y = labels[chosen].astype(np.int64)
    _require_both(y, label)
    progress(f"learning from {len(y):,} spectra, {np.mean(y):.0%} of them cloudy")
    reduce = SpectralPCA(_fitting(components, spectra, len(y)), noise=noise_of(spectra))
    model = Pipeline([("reduce", reduce), ("classify", classifier)])
    # Learning has gone far enough when it no longer carries over to other strata.
    apart = {} if method == "gpc" else {"classify__groups": cell_names(spectra)[chosen]}
    model.fit(ChosenSpectra(spectra, chosen, progress), y, **apart)
    forget_checkpoint(classifier)
    array = spectra[measurement(spectra)]
    model.provenance_ = {
        "chain": "sounder",
        "method": method,
        "label": label,
        "measurement": str(array.name),
        "units": str(array.attrs.get("units", "1")),
        "channels": array.shape[1],
        "training_spectra": len(y),
        "spectra_with_missing_values": int(np.count_nonzero(~whole)),
        "cloud_share": float(np.mean(y)),
        "held_out_cells": names,
        "seed": seed,
        "source": str(spectra.attrs.get("source", "")),
    }
    return model


def read_labels(spectra: xr.Dataset, label: str) -> Array:
    """Return the labels of checked spectra, (sample,): 0, 1, and anything else for missing."""
    if label not in spectra:
        there = [name for name in CODES if name in spectra] or ["none"]
        raise SceneError(
            f"The spectra have no {label!r} to learn from. Labels and strata they have: "
            f"{', '.join(there)}. Add it, or name another label."
        )
    values = np.asarray(spectra[label].values)
    many = np.unique(values[np.isfinite(values) & (values != 255)])
    if len(many) > 2 or not set(many.tolist()) <= {0, 1}:
        raise SceneError(
            f"{label!r} has the values {', '.join(f'{v:g}' for v in many[:6])}, where 0 (clear) "
            f"and 1 (cloudy) are due: recode it, or learn from {CLOUDY!r}."
        )
    return np.where(np.isfinite(values), values, 255).astype(np.uint8)


def whole_spectra(spectra: xr.Dataset) -> Array:
    """Return which of checked spectra have no missing value, (sample,) bool."""
    return np.asarray(spectra[measurement(spectra)].notnull().all(axis=1).values)


def noise_of(spectra: xr.Dataset) -> Array | None:
    """Return the noise of each channel in the units of checked spectra, (channel,), if known."""
    measured = measurement(spectra)
    if NOISE not in spectra or measured == SCORES:
        return None  # Scores are in units of the noise as they are sent.
    noise = spectra[NOISE].values.astype(np.float64)
    if measured == BRIGHTNESS_TEMPERATURE:
        noise = noise / radiance_slope(WAVENUMBERS, np.asarray(NOISE_TEMPERATURE))
    return np.asarray(noise)


def _fitting(components: int, spectra: xr.Dataset, rows: int) -> int:
    most = min(rows, spectra[measurement(spectra)].shape[1])
    if components > most:
        raise InputError(
            f"{components} principal components were asked for, but {rows:,} spectra have at "
            f"most {most}. Ask for fewer (--components)."
        )
    return components


def _require_both(y: Array, label: str) -> None:
    clouds = int(np.count_nonzero(y))
    if not 0 < clouds < len(y):
        raise SceneError(
            f"{label!r} is cloudy in {clouds} and clear in {len(y) - clouds} of the training "
            f"spectra: both are needed. Use more spectra, or hold out fewer."
        )


def _require_room(spectra: xr.Dataset, components: int, ram: int | None) -> None:
    samples, channels = spectra[measurement(spectra)].shape
    needed = BASE + COVARIANCES * 8 * min(channels, 4 * samples) ** 2 + 16 * samples * components
    if ram is not None and ram < needed:
        raise SceneError(
            f"{ram / 1e9:.2g} GB of memory are too little for the covariance of {channels:,} "
            f"channels: allow {needed / 1e9:.2g} GB."
        )


class ChosenSpectra:
    """Some spectra, read from wherever they are when they are sliced, and told of."""

    def __init__(
        self, spectra: xr.Dataset, chosen: Array, progress: Progress = lambda line: None
    ) -> None:
        self._array = spectra[measurement(spectra)].data
        self._chosen = chosen
        self._progress = progress
        self._read = 0
        self._told = 0
        self.shape = (len(chosen), self._array.shape[1])
        self.dtype = self._array.dtype

    def __getitem__(self, rows: slice) -> Array:
        wanted = self._chosen[rows]
        # From the first row to the last: dask takes a slice for less than a list of rows.
        first, last = int(wanted[0]), int(wanted[-1]) + 1
        part = self._array[first:last]
        block = part.compute() if isinstance(part, da.Array) else part
        self._read += len(wanted)
        if self._read * 10 >= (self._told + 1) * self.shape[0]:
            self._told = self._read * 10 // self.shape[0]
            self._progress(f"spectra read: {self._read:,}")
        return np.asarray(block[wanted - first])


@dataclass(frozen=True)
class StratumScores:
    """Scores of one stratum of the held-out spectra against one reference.

    ``stratum`` is ``"all"``, or a variable such as ``"season"``; ``value`` says which.
    """

    stratum: str
    value: str
    reference: str
    samples: int
    scores: Scores


def score_spectra(
    model: Any, spectra: xr.Dataset, *, progress: Progress = lambda line: None
) -> list[StratumScores]:
    """Score a model on the held-out spectra, over all and by stratum.

    Against the label, and of a twin, against the truth: whether there is any cloud. Spectra that
    share no cell with the held-out ones are all scored.
    """
    spectra = check_spectra(spectra)
    provenance = getattr(model, "provenance_", {})
    label = provenance.get("label", CLOUDY)
    held_out = np.isin(cell_names(spectra), provenance.get("held_out_cells", []))
    if held_out.any():
        spectra = spectra.isel(sample=np.flatnonzero(held_out))
    references = {label: read_labels(spectra, label)} if label in spectra else {}
    if CLOUD_AMOUNT in spectra:
        references[CLOUD_TRUTH] = (spectra[CLOUD_AMOUNT].values > 0.0).astype(np.uint8)
    if not references:
        raise SceneError(f"The spectra have no {label!r} to score against.")
    progress(f"classifying {spectra.sizes['sample']:,} spectra")
    probability = np.asarray(map_scene(model, spectra)["cloud_probability"].values)
    return [
        scored
        for name, labels in references.items()
        for scored in score_strata(spectra, name, labels, probability)
    ]


def score_strata(
    spectra: xr.Dataset, reference: str, labels: Array, probability: Array
) -> list[StratumScores]:
    """Score probabilities of cloud (sample,) against labels, over all spectra and by stratum."""
    known = np.isfinite(probability) & (labels <= 1)
    strata = {("all", ""): np.ones(len(labels), bool), **rows_by_stratum(spectra)}
    found = []
    for (stratum, value), members in strata.items():
        chosen = known & members
        if chosen.any():
            scores = score(labels[chosen] == 1, probability[chosen].astype(np.float64))
            found.append(StratumScores(stratum, value, reference, int(chosen.sum()), scores))
    return found


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
    label: str = CLOUDY,
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
    rows = ChosenSpectra(spectra, np.arange(len(y)), progress)
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
