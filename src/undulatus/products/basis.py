"""What scores rest on: data held out of the fit, data that the model learned from, or new ones.

A model remembers the days, cells or groups that it learned from and those that were held out.
:func:`scoring_basis` compares data with that, so that scores on training data are never taken for
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.provenance import Provenance
from undulatus.scenes.sampling import cell_names
from undulatus.scenes.spectra import is_spectra

Array = npt.NDArray[Any]

Kind = Literal["held out", "training", "new", "unknown"]


@dataclass(frozen=True)
class Basis:
    """What data are to a model, and a sentence that says so."""

    kind: Kind
    """``"unknown"`` if the model does not say what it learned from."""
    statement: str

    def as_dict(self) -> dict[str, str]:
        """Return both as fields of a row, ``basis`` and ``statement``."""
        return {"basis": self.kind, "statement": self.statement}


def scoring_basis(model: Any, dataset: xr.Dataset) -> Basis:
    """Return on what ``score_scene`` scores a model, or ``score_spectra`` for spectra.

    Parameters
    ----------
    model : classifier
        With ``provenance_`` as ``fit_scene`` and ``fit_spectra`` set it; other models do not say
        what they learned from.
    dataset : Dataset
        The scene or the spectra to be scored.
    """
    return (scored_spectra if is_spectra(dataset) else scored_times)(model, dataset)[0]


def scored_times(model: Any, scene: xr.Dataset) -> tuple[Basis, Array]:
    """Return the basis of scores, and which acquisitions of a scene they are of, (time,) bool.

    Scored are held-out days; of a scene without any, days that were not learned from; and if
    there are none either, all.
    """
    provenance = Provenance.of(model)
    days = np.asarray(scene["time"].values, dtype="datetime64[D]").astype(str)
    return _choose(
        days, provenance.held_out_days, provenance.training_days, "acquisition", "day", "days"
    )


def scored_spectra(model: Any, spectra: xr.Dataset) -> tuple[Basis, Array]:
    """Return the basis of scores, and which spectra they are of, (sample,) bool.

    Scored are held-out cells of strata (:func:`undulatus.scenes.sampling.cell_names`); of spectra
    without any, cells that were not learned from; and if there are none either, all.
    """
    provenance = Provenance.of(model)
    cells = cell_names(spectra)
    return _choose(
        cells,
        provenance.held_out_cells,
        provenance.training_cells,
        "spectrum",
        "cell of strata",
        "strata",
    )


def _choose(
    keys: Array,
    held_out: list[str] | None,
    training: list[str] | None,
    row: str,
    group: str,
    elsewhere: str,
) -> tuple[Basis, Array]:
    known = _within(keys, held_out or [])
    everything = np.ones(len(keys), bool)

    def amount(chosen: Array) -> str:
        return (
            f"{counted(int(np.count_nonzero(chosen)), row)} of "
            f"{counted(len(np.unique(keys[chosen])), group)}"
        )

    if known.any():
        return Basis("held out", f"Scored on {amount(known)} held out of the fit."), known
    if training is None:
        return unknown_basis(amount(everything)), everything
    learned = _within(keys, training) | np.isin(keys, [cell.split(" ")[0] for cell in training])
    if learned.all():
        return training_basis(amount(learned), elsewhere), everything
    statement = f"Scored on {amount(~learned)} that the model has not seen"
    if learned.any():
        statement += f" (left out: {amount(learned)} that it was trained on)"
    return Basis("new", f"{statement}."), ~learned


def _within(keys: Array, cells: list[str]) -> Array:
    """Return which cells are among others, or are stretches of days that are, (n,) bool."""
    return np.isin(keys, cells) | np.isin(np.char.partition(keys, " ")[:, 0], cells)


def training_basis(amount: str, elsewhere: str) -> Basis:
    """Return the basis of scores on training data, and what they say nothing about."""
    return Basis(
        "training",
        f"Scored on data that the model was TRAINED on: {amount}. These scores say nothing about "
        f"other {elsewhere}.",
    )


def unknown_basis(amount: str, why: str = "it does not say what it learned from") -> Basis:
    """Return the basis of scores where nobody can tell whether the model knows the data."""
    return Basis(
        "unknown",
        f"Scored on {amount}. Whether the model was trained on them is unknown: {why}.",
    )


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, such as ``2 polygons``.

    A noun of the form ``site=`` is a field of labels, whose values are the things.
    """
    if noun.endswith("="):
        return f"{number:,} group{'' if number == 1 else 's'} by {noun[:-1]}"
    if number == 1:
        return f"1 {noun}"
    first, *others = noun.split(" ")
    plural = {"spectrum": "spectra"}.get(first, f"{first}s")
    return " ".join([f"{number:,} {plural}", *others])
