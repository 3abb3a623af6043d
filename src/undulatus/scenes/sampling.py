"""Which pixels and spectra to learn from and which to test on, drawn and gathered.

Pixels are held out by whole days and drawn in balance from those away from coasts. Spectra are
held out by whole *cells*, one combination of strata each, and scored stratum by stratum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.ndimage import binary_dilation, generate_binary_structure

from undulatus.errors import SceneError
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

COAST_WIDTH = 2
"""Pixels on either side of a coastline where a mask's clouds are not trusted."""

GUARD = np.timedelta64(3, "h")
"""Training keeps this far from held-out days, since clouds live on past midnight."""

STRATA = ("surface_type", "climate_zone", "season", "day")
"""Variables that divide spectra, where they are known."""

N_PARTS = 100
"""Cells of consecutive spectra, where neither strata nor times are known."""

STRETCH = np.timedelta64(5, "m")
"""Length of a cell in time, where all spectra are of one day: a satellite flies 2,000 km."""

_BLOCKS_AT_ONCE = 8
"""Blocks of features computed together, so that a year of them is never in memory at once."""


def near_coast(land: Any, width: int = COAST_WIDTH) -> Array:
    """Return which pixels lie within ``width`` pixels of a coastline, (y, x) bool.

    These are the pixels that both land and water reach when dilated ``width`` times with a
    3 x 3 square.
    """
    land = np.asarray(land) > 0
    if width <= 0:
        return np.zeros(land.shape, bool)
    square = generate_binary_structure(2, 2)
    return np.asarray(
        binary_dilation(land, square, iterations=width)
        & binary_dilation(~land, square, iterations=width)
    )


def hold_out_days(time: Any, share: float, seed: int) -> tuple[Array, Array, list[str]]:
    """Split acquisitions by whole days (UTC), so that no cloud is on both sides.

    Returns
    -------
    training, held_out : (n,) bool arrays
        Acquisitions to learn from and to test on. Those of training days within three hours of
        a held-out day are in neither.
    days : list of str
        The held-out days, YYYY-MM-DD.
    """
    when = np.asarray(time, dtype="datetime64[s]")
    days = np.unique(when.astype("datetime64[D]"))
    count = round(share * len(days))
    if share == 0.0:
        return np.ones(len(when), bool), np.zeros(len(when), bool), []
    if not 0 < count < len(days):
        raise SceneError(
            f"A share of {share:g} of {len(days)} days holds out {count}: at least one day is "
            f"needed on either side. Use a scene of more days, or another share."
        )
    chosen = np.sort(np.random.default_rng(seed).choice(days, count, replace=False))
    held_out = on_days(when, chosen)
    begins = chosen.astype("datetime64[s]")
    ends = (chosen + np.timedelta64(1, "D")).astype("datetime64[s]")
    near = np.zeros(len(when), bool)
    for begin, end in zip(begins, ends, strict=True):
        near |= (when > begin - GUARD) & (when < end + GUARD)
    return ~near, held_out, [str(day) for day in chosen]


def on_days(time: Any, days: Any) -> Array:
    """Return which acquisitions were taken on given days (UTC, YYYY-MM-DD), (n,) bool."""
    return np.isin(
        np.asarray(time, dtype="datetime64[D]"), np.asarray(days, dtype="datetime64[D]")
    )


def balanced_sample(
    label: Array,
    groups: Mapping[str, Array],
    size: int,
    rng: np.random.Generator,
    classes: Sequence[Any] = (0, 1),
) -> dict[str, Array]:
    """Draw equally many pixels of each class from each group, and return their flat indices.

    Of two classes, equally many are drawn. Of more, a class that has less than its part gives all
    its pixels and the others their parts: one rare class does not leave few of all.

    Parameters
    ----------
    label : array
        Values of the classes; others are missing.
    groups : mapping of bool arrays
        Which pixels each group may draw from, of the label's shape.
    size : int
        Pixels of a group; fewer where a class has less than its part of that.
    classes : sequence of numbers
        Values of the label to draw from.

    Returns
    -------
    dict of (n,) int arrays
        Sorted, so that the data are read in one pass.
    """
    drawn = {}
    for name, allowed in groups.items():
        rows_of = [np.flatnonzero(allowed & (label == value)) for value in classes]
        part = size // len(classes)
        if len(classes) == 2:
            part = min(part, *map(len, rows_of))
        picked = [
            rng.choice(which, min(part, len(which)), replace=False, shuffle=False)
            for which in rows_of
        ]
        drawn[name] = np.sort(np.concatenate(picked))
    return drawn


def gather_pixels(
    features: xr.DataArray, indices: Array, progress: Callable[[int, int], None] | None = None
) -> Array:
    """Return the features of some pixels, (n, features), computed block by block.

    Parameters
    ----------
    features : DataArray
        (time, y, x, feature). Of lazy features, only the blocks of time that hold one of the
        pixels are computed; memory is that of a few blocks and the result.
    indices : (n,) int array
        Flat indices over (time, y, x), sorted.
    progress : callable, optional
        Called with the number of blocks done and their total.
    """
    if not isinstance(features.data, da.Array):
        return np.asarray(features.values.reshape(-1, features.sizes["feature"])[indices])
    pixels = int(np.prod(features.shape[1:-1]))
    edges = np.concatenate([[0], np.cumsum(features.data.chunks[0])])
    cuts = np.searchsorted(indices, edges * pixels)
    gathered = np.empty((len(indices), features.sizes["feature"]), np.float32)
    tasks, targets = [], []
    for block in range(len(edges) - 1):
        rows = slice(cuts[block], cuts[block + 1])
        if rows.start < rows.stop:
            start, end = edges[block], edges[block + 1]
            within = indices[rows] - start * pixels
            tasks.append(dask.delayed(_rows)(features.data[start:end], within))
            targets.append(rows)
    for first in range(0, len(tasks), _BLOCKS_AT_ONCE):
        turn = slice(first, first + _BLOCKS_AT_ONCE)
        for rows, values in zip(targets[turn], dask.compute(*tasks[turn]), strict=True):
            gathered[rows] = values
        if progress is not None:
            progress(min(turn.stop, len(tasks)), len(tasks))
    return gathered


def _rows(block: Array, within: Array) -> Array:
    return block.reshape(-1, block.shape[-1])[within]


def cell_names(spectra: xr.Dataset) -> Array:
    """Return the name of each spectrum's cell, (sample,) str.

    The spectra of a cell share surface type, climate zone, season, and day or night, such as
    ``surface_type=17 climate_zone=1 season=2 day=1``. Without strata, or with day and night
    alone, a cell is the day on which spectra were taken, or, where all are of one day, a stretch
    of five minutes, such as ``2018-11-22 11:45``. Without times it is one of a hundred runs of
    consecutive spectra.
    """
    samples = spectra.sizes["sample"]
    known = [name for name in STRATA if name in spectra]
    has_times = "time" in spectra.coords and spectra["time"].dims == ("sample",)
    if known and not (known == ["day"] and has_times):
        labels = [np.char.add(f"{name}=", spectra[name].values.astype(str)) for name in known]
        names = labels[0]
        for label in labels[1:]:
            names = np.char.add(np.char.add(names, " "), label)
        return np.asarray(names)
    if has_times:
        times = spectra["time"].values
        days = times.astype("datetime64[D]").astype(str)
        if samples and (days != days[0]).any():
            return days
        stretch = times.astype("datetime64[m]").astype(np.int64) // STRETCH.astype(np.int64)
        starts = (stretch * STRETCH.astype(np.int64)).astype("datetime64[m]").astype(str)
        return np.char.replace(starts, "T", " ")
    number = np.arange(samples) * N_PARTS // samples
    parts = [f"part {part} of {N_PARTS} of {samples} samples" for part in range(N_PARTS)]
    return np.array(parts)[number]


def hold_out_cells(spectra: xr.Dataset, share: float, seed: int) -> tuple[Array, list[str]]:
    """Return which spectra are held out, (sample,) bool, and the names of their cells.

    Whole cells are drawn at random until they hold about ``share`` of the spectra, so that
    held-out spectra come from other surfaces, seasons or times of day than training ones.
    """
    if share == 0.0:
        return np.zeros(spectra.sizes["sample"], bool), []
    names, cell, counts = np.unique(cell_names(spectra), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise SceneError(
            f"All {len(cell)} spectra lie in one cell ({names[0]}), so none can be held out. Use "
            f"spectra of more strata or days."
        )
    order = np.random.default_rng(seed).permutation(len(names))
    filled = np.cumsum(counts[order])
    # As close to the share as whole cells allow, with at least one on either side.
    count = int(np.argmin(np.abs(filled - share * len(cell)))) + 1
    chosen = np.sort(order[: min(count, len(names) - 1)])
    return np.isin(cell, chosen), [str(name) for name in names[chosen]]


def rows_by_stratum(spectra: xr.Dataset) -> dict[tuple[str, str], Array]:
    """Return the spectra of each surface type, climate zone, season, and day or night.

    Keys are the stratum and its value, by name where the variable has ``flag_meanings``, such as
    ``("season", "winter")``. Values are (sample,) bool arrays.
    """
    rows = {}
    for stratum in STRATA:
        if stratum not in spectra:
            continue
        codes, attrs = spectra[stratum].values, spectra[stratum].attrs
        meanings = str(attrs.get("flag_meanings", "")).split()
        values = np.atleast_1d(attrs.get("flag_values", []))
        names = dict(zip(values.tolist(), meanings, strict=False))
        for code in np.unique(codes[codes != MISSING_CODE]).tolist():
            rows[stratum, names.get(code, str(code))] = np.asarray(codes == code)
    return rows
