"""The sounder experiment's data: components of spectra in folds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from sklearn.model_selection import StratifiedKFold

from undulatus.errors import SceneError
from undulatus.estimators.reduction import SpectralPCA
from undulatus.products.reproduction.problems import write_part
from undulatus.products.reproduction.scales import Scale
from undulatus.products.sounder import AMOUNT, LABEL, Rows, noise_of, read_labels, whole_spectra
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.spectra import check_spectra, open_spectra

COMPONENTS = 100


def open_sounder(path: Path | None, scale: Scale, seed: int) -> xr.Dataset:
    """Return the spectra at a path, or as many of the twin's as a scale asks for."""
    return open_spectra(path) if path is not None else synthetic_sounder(scale.amount, seed=seed)


def prepare_iavisa(
    spectra: xr.Dataset,
    scale: Scale,
    seed: int,
    folder: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the components of spectra, in folds; return the facts of them.

    The components are those of all spectra, as in the paper: labels play no part in them. Folds
    are those of :func:`undulatus.products.cross_validation.cross_validate`; their training rows
    are shuffled, so that the first n are n at random.
    """
    spectra = check_spectra(spectra)
    labels = read_labels(spectra, LABEL)
    whole = np.ones(len(labels), bool)
    if not spectra.attrs.get("sensor", "").endswith("(synthetic)"):
        progress("looking for spectra with missing values")
        whole = whole_spectra(spectra)
    chosen = np.flatnonzero(whole & (labels <= 1))
    y = labels[chosen].astype(np.uint8)
    if min(np.bincount(y, minlength=2)) < scale.runs:
        raise SceneError(
            f"{np.count_nonzero(y == 0)} clear and {np.count_nonzero(y == 1)} cloudy spectra are "
            f"too few for {scale.runs} folds. Use more."
        )
    rows = Rows(spectra, chosen, progress)
    components = min(COMPONENTS, *rows.shape)
    reduced = SpectralPCA(components, noise=noise_of(spectra)).fit_transform(rows)
    split = StratifiedKFold(scale.runs, shuffle=True, random_state=seed).split(reduced, y)
    rng = np.random.default_rng(seed)
    folds = [(rng.permutation(training), test) for training, test in split]
    # As many rows in every fold, or they would be trials of different n.
    least = min(len(training) for training, _ in folds)
    known = {"features": reduced, "labels": y}
    if AMOUNT in spectra:
        known["truth"] = (spectra[AMOUNT].values[chosen] > 0.0).astype(np.uint8)
    write_part(
        folder / "spectra",
        known,
        [(training[:least], test) for training, test in folds],
        most_frequencies=scale.most_frequencies,
        seed=seed,
    )
    return {
        "parts": {
            "spectra": {
                "d": components,
                "rows": least,
                "test_rows": min(len(test) for _, test in folds),
                "cloud_share": float(np.mean(y)),
            }
        },
        "source": str(spectra.attrs.get("source", "")),
        "spectra": len(y),
        "left_out": int(len(labels) - len(y)),
        "folds": scale.runs,
    }
