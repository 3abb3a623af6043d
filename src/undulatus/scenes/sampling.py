"""From scenes to tables of pixels and back; which pixels to learn from, and which to test on.

Which spectra belong together: strata to hold out whole, and to score one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy.ndimage import binary_dilation, generate_binary_structure

from undulatus.errors import SceneError
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

COAST_WIDTH = 2
"""Pixels on either side of a coastline where masks are not trusted to see cloud."""

GUARD = np.timedelta64(3, "h")
"""Training keeps this far from held-out days: clouds outlive midnight."""


def to_table(features: xr.DataArray, **columns: xr.DataArray) -> pd.DataFrame:
    """Return one row a pixel, in the image's order, with the features as named columns.

    Parameters
    ----------
    features : DataArray
        With a dimension ``feature`` that names them.
    **columns : DataArray
        More columns, such as ``solar_zenith_angle``, of the features' other dims.
    """
    features = features.transpose(..., "feature")
    dims = features.dims[:-1]
    table = pd.DataFrame(
        np.asarray(features.values).reshape(-1, features.sizes["feature"]),
        columns=[str(name) for name in features["feature"].values],
    )
    shape = xr.Dataset({"shape": features.isel(feature=0, drop=True)})
    for name, array in columns.items():
        table[name] = array.broadcast_like(shape["shape"]).transpose(*dims).values.ravel()
    return table


def to_image(values: Any, like: xr.DataArray) -> xr.DataArray:
    """Return a column of a table as an image, with the dims and coordinates of ``like``.

    ``like`` is the features' DataArray, or any image of the same pixels.
    """
    image = like.isel(feature=0, drop=True) if "feature" in like.dims else like
    column = np.asarray(values)
    if column.size != image.size:
        raise SceneError(
            f"A column of {column.size} values cannot fill an image of {image.size} pixels "
            f"({dict(image.sizes)}). Give every pixel a row, as to_table does."
        )
    return image.copy(data=column.reshape(image.shape))


def near_coast(land: Any, width: int = COAST_WIDTH) -> Array:
    """Return which pixels lie within ``width`` pixels of a coastline, (y, x) bool.

    The coastline is where land meets water; a pixel is near it if both grow over it: land
    dilated by ``width`` and water dilated by ``width``, with a 3 x 3 square.
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
    """Return which acquisitions were taken on some days (UTC, YYYY-MM-DD), (n,) bool."""
    return np.isin(
        np.asarray(time, dtype="datetime64[D]"), np.asarray(days, dtype="datetime64[D]")
    )


def balanced_sample(
    label: Array, groups: Mapping[str, Array], size: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Draw pixels group by group, as many of either class, and return their flat indices.

    Parameters
    ----------
    label : array
        1 cloud, 0 clear, 255 missing.
    groups : mapping of bool arrays
        Which pixels each group may draw from, of the label's shape.
    size : int
        Pixels a group at most; twice the rarer class where there are fewer.

    Returns
    -------
    dict of (n,) int arrays
        Sorted, so that reading them goes through the data once.
    """
    drawn = {}
    for name, allowed in groups.items():
        members = [np.flatnonzero(allowed & (label == value)) for value in (0, 1)]
        each = min(size // 2, *map(len, members))
        picked = [rng.choice(which, each, replace=False, shuffle=False) for which in members]
        drawn[name] = np.sort(np.concatenate(picked))
    return drawn


def gather_pixels(
    features: xr.DataArray, indices: Array, progress: Callable[[int, int], None] | None = None
) -> Array:
    """Return the features of some pixels, (n, features), computing block after block.

    Parameters
    ----------
    features : DataArray
        (time, y, x, feature); lazy ones are computed by blocks of time, and only those
        that hold a pixel asked for. Memory is that of a few blocks and the result.
    indices : (n,) int array
        Flat indices over (time, y, x), sorted.
    """
    if not isinstance(features.data, da.Array):
        return np.asarray(features.values.reshape(-1, features.sizes["feature"])[indices])
    pixels = int(np.prod(features.shape[1:-1]))
    edges = np.concatenate([[0], np.cumsum(features.data.chunks[0])])
    cuts = np.searchsorted(indices, edges * pixels)
    found = np.empty((len(indices), features.sizes["feature"]), np.float32)
    tasks, places = [], []
    for block in range(len(edges) - 1):
        rows = slice(cuts[block], cuts[block + 1])
        if rows.start < rows.stop:
            start, end = edges[block], edges[block + 1]
            within = indices[rows] - start * pixels
            tasks.append(dask.delayed(_rows)(features.data[start:end], within))
            places.append(rows)
    # A few blocks at a time, so that a year of them is never held at once.
    turn = 8
    for first in range(0, len(tasks), turn):
        taken = dask.compute(*tasks[first : first + turn])
        for rows, values in zip(places[first : first + turn], taken, strict=True):
            found[rows] = values
        if progress is not None:
            progress(min(first + turn, len(tasks)), len(tasks))
    return found


def _rows(block: Array, within: Array) -> Array:
    return block.reshape(-1, block.shape[-1])[within]


STRATA = ("surface_type", "climate_zone", "season", "day")
"""What divides spectra, where it is known of them."""

N_PARTS = 100
"""Runs of consecutive spectra, where neither strata nor times are known."""


def cell_names(spectra: xr.Dataset) -> Array:
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
    number = np.arange(samples) * N_PARTS // samples
    return np.array([f"part {part} of {N_PARTS} of {samples} samples" for part in range(N_PARTS)])[
        number
    ]


def hold_out_cells(spectra: xr.Dataset, share: float, seed: int) -> tuple[Array, list[str]]:
    """Return which spectra are held out, (sample,) bool, and the names of their cells.

    Whole cells are drawn at random until they hold ``share`` of the spectra, so that what is
    tested is another place, season or hour than any that was learned from.
    """
    names, cell, counts = np.unique(cell_names(spectra), return_inverse=True, return_counts=True)
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


def rows_by_stratum(spectra: xr.Dataset) -> dict[tuple[str, str], Array]:
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
        for code in np.unique(codes[codes != MISSING_CODE]).tolist():
            found[stratum, meanings.get(code, str(code))] = np.asarray(codes == code)
    return found
