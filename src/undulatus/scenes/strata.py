"""Which spectra belong together: strata to hold out whole, and to score one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.spectra import MISSING

Array = npt.NDArray[Any]

STRATA = ("surface_type", "climate_zone", "season", "day")
"""What divides spectra, where it is known of them."""
PARTS = 100
"""Runs of consecutive spectra, where neither strata nor times are known."""


def cells(spectra: xr.Dataset) -> Array:
    """Return the name of the cell each spectrum lies in, (sample,) str.

    A cell is what has one surface type, climate zone, season, and day or night, such as
    ``surface_type=17 climate_zone=1 season=2 day=1``. Of spectra without strata it is the day they
    were taken on, or else a hundredth of the samples, one after the other.
    """
    samples = spectra.sizes["sample"]
    known = [name for name in STRATA if name in spectra]
    if known:
        parts = [np.char.add(f"{name}=", spectra[name].values.astype(str)) for name in known]
        found = parts[0]
        for part in parts[1:]:
            found = np.char.add(np.char.add(found, " "), part)
        return np.asarray(found)
    if "time" in spectra.coords and spectra["time"].dims == ("sample",):
        return spectra["time"].values.astype("datetime64[D]").astype(str)
    number = np.arange(samples) * PARTS // samples
    return np.array([f"part {part} of {PARTS} of {samples} samples" for part in range(PARTS)])[
        number
    ]


def hold_out_cells(spectra: xr.Dataset, share: float, seed: int) -> tuple[Array, list[str]]:
    """Return which spectra are held out, (sample,) bool, and the names of their cells.

    Whole cells are drawn at random until they hold ``share`` of the spectra, so that what is
    tested is another place, season or hour than any that was learned from.
    """
    names, cell, counts = np.unique(cells(spectra), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    filled = np.cumsum(counts[order])
    # As near to the share as whole cells come, with one at least on either side.
    count = int(np.argmin(np.abs(filled - share * len(cell)))) + 1
    if len(names) < 2:
        raise SceneError(
            f"All {len(cell)} spectra lie in one cell ({names[0]}), so none can be held out. Use "
            f"spectra of more strata or days."
        )
    chosen = np.sort(order[: min(count, len(names) - 1)])
    return np.isin(cell, chosen), [str(name) for name in names[chosen]]


def each_stratum(spectra: xr.Dataset) -> dict[tuple[str, str], Array]:
    """Return the spectra of every surface, zone, season, day and night, (sample,) bool each.

    Keys are the stratum and its value, by name where the variable tells it
    (``flag_meanings``), such as ``("season", "winter")``.
    """
    found = {}
    for stratum in STRATA:
        if stratum not in spectra:
            continue
        codes, attrs = spectra[stratum].values, spectra[stratum].attrs
        told = str(attrs.get("flag_meanings", "")).split()
        values = np.atleast_1d(attrs.get("flag_values", []))
        meanings = dict(zip(values.tolist(), told, strict=False))
        for code in np.unique(codes[codes != MISSING]).tolist():
            found[stratum, meanings.get(code, str(code))] = np.asarray(codes == code)
    return found
