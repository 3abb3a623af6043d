"""The sounder chain: from spectra to a model of their principal components, and its scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.pipeline import Pipeline

from undulatus._progress import working_on
from undulatus.errors import InputError, SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.estimators.pca import SpectralPCA
from undulatus.products.basis import scored_spectra
from undulatus.products.classes import (
    find_label,
    is_scored_as_mask,
    label_legend,
    label_shares,
    read_classes,
    require_dims,
    require_mask,
)
from undulatus.products.maps import class_probabilities, cloud_probability
from undulatus.products.memory_budget import PROCESS_BYTES
from undulatus.products.provenance import Provenance
from undulatus.products.scores import ManyClassScores, Scores, score, score_classes
from undulatus.scenes.channels import NOISE_TEMPERATURE
from undulatus.scenes.files.writing import TaskCount
from undulatus.scenes.radiometry import radiance_slope
from undulatus.scenes.sampling import cell_names, hold_out_cells, rows_by_stratum
from undulatus.scenes.scene import CLOUD_TRUTH, MISSING_CODE
from undulatus.scenes.spectra import (
    BRIGHTNESS_TEMPERATURE,
    CHANNEL_SET,
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

COVARIANCES = 1.5
"""Memory of a reduction, in covariance matrices of the channels in double precision."""

EXACT_ROWS = 5_000
"""The most spectra that the exact process learns from."""


def fit_spectra(
    spectra: xr.Dataset,
    *,
    method: str = "vff",
    n_frequencies: int = 5,
    n_estimators: int = 8,
    components: int = 100,
    label: str = CLOUDY,
    holdout: float = 0.25,
    seed: int = 0,
    memory_limit: int | None = None,
    checkpoint: Path | None = None,
    device: str | None = None,
    verbose: int = 0,
    progress: Progress = lambda line: None,
) -> Pipeline:
    """Fit a Pipeline of principal components and a classifier to spectra.

    Parameters
    ----------
    spectra : Dataset
        As :func:`undulatus.scenes.spectra.check_spectra` takes them, with a label; read twice,
        block by block. Spectra with a missing value are left out.
    method : {"vff", "rff", "gpc"}
    n_frequencies : int
        Number D of frequencies, of each estimator. Spectra need few: with more, the model fits
        the noise.
    n_estimators : int
        Estimators of the ensemble, which validate on different cells.
    components : int
        Number of principal components, computed in units of the noise where that is known.
    label : str
        The variable to learn from, whose values are classes: two or more whole numbers, 255 and
        NaN and the attribute ``_FillValue`` missing, such as ``cloudy`` or ``cloud_class``.
        ``flag_values`` and ``flag_meanings`` name them. Of 0 and 1 the model records that 1 is
        cloud if the variable's name or its attributes mention cloud; of more, a class that the
        flags call cloud or cloudy is, if no other mentions cloud.
    holdout : float
        Share of the spectra kept for :func:`score_spectra`, as whole cells
        (:func:`undulatus.scenes.sampling.cell_names`). The model records which.
    memory_limit : int, optional
        Memory limit in bytes; an error says if it is too small.
    checkpoint : path, optional
        File in which the classifier's fit is saved as it goes, and from which it resumes.
    device : str, optional
        Where to compute, such as ``"cuda"`` (see :class:`~undulatus.VFFGPC`).
    """
    classifier = make_classifier(
        method,
        n_frequencies,
        n_estimators=n_estimators,
        seed=seed,
        verbose=verbose,
        checkpoint=checkpoint,
        device=device,
    )
    spectra = check_spectra(spectra)
    _require_memory(spectra, components, memory_limit)
    _require_label(spectra, label)
    labels = np.asarray(require_dims(spectra[label], "sample").values)
    legend = label_legend(spectra[label], labels)
    held_out, held_out_cells = hold_out_cells(spectra, holdout, seed)
    progress("looking for spectra with missing values")
    complete = complete_spectra(spectra)
    chosen = np.flatnonzero(complete & ~held_out & np.isin(labels, legend.classes))
    if method == "gpc" and len(chosen) > EXACT_ROWS:
        drawn = np.random.default_rng(seed).choice(chosen, EXACT_ROWS, replace=False)
        chosen = np.sort(drawn)
    y = labels[chosen].astype(np.int64)
    shares = dict(
        zip(
            legend.names,
            label_shares(
                legend,
                y,
                f"The training spectra have no {label!r}",
                "Use more spectra, or hold out fewer",
            ),
            strict=True,
        )
    )
    _require_components(components, spectra, len(y))
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    progress(f"learning from {len(y):,} spectra: {listed}")
    reduction = SpectralPCA(components, noise=channel_noise(spectra))
    model = Pipeline([("reduce", reduction), ("classify", classifier)])
    # Early stopping holds whole cells back: learning should carry over to other strata.
    cells = cell_names(spectra)[chosen]
    groups = {} if method == "gpc" else {"classify__groups": cells}
    model.fit(ChosenSpectra(spectra, chosen), y, **groups)
    forget_checkpoint(classifier)
    array = spectra[measurement(spectra)]
    model.provenance_ = Provenance(
        chain="sounder",
        method=method,
        label=label,
        legend=legend.as_dict(),
        measurement=str(array.name),
        units=str(array.attrs.get("units", "1")),
        channels=array.shape[1],
        channel_set=spectra.attrs.get(CHANNEL_SET),
        wavenumbers=spectra["wavenumber"].values.tolist()
        if CHANNEL_SET in spectra.attrs
        else None,
        training_spectra=len(y),
        spectra_with_missing_values=int(np.count_nonzero(~complete)),
        cloud_share=None if legend.cloud is None else shares[legend.cloud],
        class_shares=None if legend.cloud is not None and len(shares) == 2 else shares,
        held_out_cells=held_out_cells,
        training_cells=np.unique(cells).tolist(),
        seed=seed,
        source=str(spectra.attrs.get("source", "")),
    ).as_dict()
    return model


def read_labels(spectra: xr.Dataset, label: str) -> Array:
    """Return a mask of checked spectra, (sample,) uint8: 0, 1, and 255 for missing."""
    _require_label(spectra, label)
    require_mask(spectra[label])
    values = np.asarray(spectra[label].values)
    return np.where(np.isfinite(values), values, MISSING_CODE).astype(np.uint8)


def _require_label(spectra: xr.Dataset, label: str) -> None:
    if label not in spectra:
        present = [name for name in CODES if name in spectra] or ["none"]
        raise SceneError(
            f"The spectra have no {label!r} to learn from. They have these labels and strata: "
            f"{', '.join(present)}. Add it, or name another label."
        )


def complete_spectra(spectra: xr.Dataset) -> Array:
    """Return which of checked spectra have no missing value, (sample,) bool."""
    with working_on("looking for missing values") as work, TaskCount(work.report):
        return np.asarray(spectra[measurement(spectra)].notnull().all(axis=1).values)


def channel_noise(spectra: xr.Dataset) -> Array | None:
    """Return the noise of each channel in the units of checked spectra, (channel,), if known."""
    measured = measurement(spectra)
    if NOISE not in spectra or measured == SCORES:
        return None  # Scores are sent in units of the noise.
    noise = spectra[NOISE].values.astype(np.float64)
    if measured == BRIGHTNESS_TEMPERATURE:
        wavenumber = spectra["wavenumber"].values
        noise = noise / radiance_slope(wavenumber, np.asarray(NOISE_TEMPERATURE))
    return np.asarray(noise)


def _require_components(components: int, spectra: xr.Dataset, rows: int) -> None:
    most = min(rows, spectra[measurement(spectra)].shape[1])
    if components > most:
        raise InputError(
            f"{components} principal components were asked for, but {rows:,} spectra have at "
            f"most {most}. Ask for fewer (--components)."
        )


def _require_memory(spectra: xr.Dataset, components: int, memory_limit: int | None) -> None:
    samples, channels = spectra[measurement(spectra)].shape
    needed = (
        PROCESS_BYTES
        + COVARIANCES * 8 * min(channels, 4 * samples) ** 2
        + 16 * samples * components
    )
    if memory_limit is not None and memory_limit < needed:
        raise SceneError(
            f"{memory_limit / 1e9:.2g} GB of memory are too little for the covariance of "
            f"{channels:,} channels: allow {needed / 1e9:.2g} GB."
        )


class ChosenSpectra:
    """Rows of spectra that are read from their source when they are sliced."""

    def __init__(self, spectra: xr.Dataset, chosen: Array) -> None:
        self._array = spectra[measurement(spectra)].data
        self._chosen = chosen
        self.shape = (len(chosen), self._array.shape[1])
        self.dtype = self._array.dtype

    def __getitem__(self, rows: slice) -> Array:
        wanted = self._chosen[rows]
        # One slice from the first row to the last: dask reads that faster than a list of rows.
        first, last = int(wanted[0]), int(wanted[-1]) + 1
        part = self._array[first:last]
        block = part.compute() if isinstance(part, da.Array) else part
        return np.asarray(block[wanted - first])


@dataclass(frozen=True)
class StratumScores:
    """Scores of one stratum of the held-out spectra against one reference.

    ``stratum`` is ``"all"``, or a variable such as ``"season"``, of which ``value`` is the value.
    Models of other classes than a mask's have :class:`ManyClassScores`.
    """

    stratum: str
    value: str
    reference: str
    samples: int
    scores: Scores | ManyClassScores


def score_spectra(
    model: Any,
    spectra: xr.Dataset,
    *,
    label: str | None = None,
    progress: Progress = lambda line: None,
) -> list[StratumScores]:
    """Score a model on the held-out spectra, over all of them and by stratum.

    The reference is the label, and for a simulator also the truth: whether there is any cloud. Of
    spectra that share no cell with the held-out ones, those of cells that were not learned from
    are scored, and if there are none, all: :func:`undulatus.products.basis.scoring_basis` says
    which.

    A model of other classes than a mask's is scored against the label alone, class by class, with
    intervals from whole cells of strata.

    Parameters
    ----------
    label : str, optional
        Variable of the spectra to score against; the one that the model learned from if absent.
    """
    spectra = check_spectra(spectra)
    provenance = Provenance.of(model)
    _, chosen = scored_spectra(model, spectra)
    if not chosen.all():
        spectra = spectra.isel(sample=np.flatnonzero(chosen))
    if not is_scored_as_mask(model):
        return _score_by_class(model, spectra, find_label(model, spectra, label), progress)
    if label is not None:
        find_label(model, spectra, label)
    label = label or provenance.label or CLOUDY
    references = {label: read_labels(spectra, label)} if label in spectra else {}
    if CLOUD_AMOUNT in spectra:
        references[CLOUD_TRUTH] = (spectra[CLOUD_AMOUNT].values > 0.0).astype(np.uint8)
    if not references:
        raise SceneError(f"The spectra have no {label!r} to score against.")
    progress(f"classifying {spectra.sizes['sample']:,} spectra")
    probability = cloud_probability(model, spectra)
    return [
        scores
        for name, labels in references.items()
        for scores in _score_strata(spectra, name, labels, probability)
    ]


def _score_strata(
    spectra: xr.Dataset, reference: str, labels: Array, probability: Array
) -> list[StratumScores]:
    known = np.isfinite(probability) & (labels <= 1)
    strata = {("all", ""): np.ones(len(labels), bool), **rows_by_stratum(spectra)}
    rows = []
    for (stratum, value), inside in strata.items():
        chosen = known & inside
        if chosen.any():
            scores = score(labels[chosen] == 1, probability[chosen].astype(np.float64))
            rows.append(StratumScores(stratum, value, reference, int(chosen.sum()), scores))
    return rows


# Scores class by class


def _score_by_class(
    model: Any, spectra: xr.Dataset, label: str, progress: Progress
) -> list[StratumScores]:
    truth = read_classes(require_dims(spectra[label], "sample"), model.classes_)
    progress(f"classifying {spectra.sizes['sample']:,} spectra")
    probability = class_probabilities(model, spectra)
    known = np.isfinite(probability[:, 0]) & (truth.codes >= 0)
    cells = cell_names(spectra)
    strata = {("all", ""): np.ones(len(known), bool), **rows_by_stratum(spectra)}
    rows = []
    for (stratum, value), inside in strata.items():
        chosen = known & inside
        if chosen.any():
            scores = score_classes(
                model.classes_[truth.codes[chosen]],
                probability[chosen],
                model.classes_,
                names=truth.names,
                groups=cells[chosen],
            )
            rows.append(StratumScores(stratum, value, label, int(chosen.sum()), scores))
    return rows
