"""The smallest patch of a map: patches of fewer pixels take the class of their largest neighbour.

The rule is that of GDAL's sieve (``gdal_sieve.py``), which this uses: a patch is a set of pixels
of one class that touch, along sides or also at corners. Pixels without a class stay without one,
and a patch that has no other neighbours stays too. Patches are those of the whole image, so all
codes of an image are in memory at once; the result does not depend on blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from rasterio import features

from undulatus._progress import working_on
from undulatus.errors import InputError, SceneError
from undulatus.products.layers import CLASS, MASK
from undulatus.scenes.files.writing import computing_in_threads

Array = npt.NDArray[Any]

CONNECTIONS = (4, 8)
"""How many pixels around one touch it: those along its sides, or also those at its corners."""


@dataclass(frozen=True)
class Sieve:
    """The smallest patch that stays, in pixels, and whether patches touch at corners too (8)."""

    size: int
    connectivity: int = 4

    def __post_init__(self) -> None:
        if self.size < 2 or self.connectivity not in CONNECTIONS:
            raise InputError(
                f"A smallest patch of {self.size} pixels that touch {self.connectivity} others is "
                f"none: give 2 pixels or more, and 4 or 8."
            )

    def __str__(self) -> str:
        return f"{self.size} pixels, {self.connectivity}-connected"


def sieve_map(maps: xr.Dataset, sieve: Sieve) -> xr.Dataset:
    """Return a map whose classes have no patches of fewer pixels.

    Only codes change: ``class`` and ``cloud_mask``. Probabilities and all other layers say what
    the model says of each pixel. A lazy map is computed here, all its codes once; the other
    layers stay lazy, and compute the pixels again.

    Parameters
    ----------
    maps : Dataset
        The result of :func:`undulatus.products.maps.map_scene`, (y, x) or (time, y, x); each time
        is sieved by itself.
    sieve : Sieve
        The smallest patch.
    """
    names = [name for name in (CLASS, MASK) if name in maps]
    for name in names:
        if not {"y", "x"} <= set(maps[name].dims):
            raise SceneError(
                f"{name} is no image (y, x), so it has no patches. Leave out --sieve."
            )
    if not names:
        raise SceneError(f"A map without {CLASS} or {MASK} has no patches. Leave out --sieve.")
    codes = maps[names]
    if any(codes[name].chunks for name in names):
        with working_on("finding patches") as work, computing_in_threads(work.report):
            codes = codes.compute()
    return maps.assign({name: _sieved(codes[name], sieve, maps[name].chunks) for name in names})


def _sieved(codes: xr.DataArray, sieve: Sieve, chunks: Any) -> xr.DataArray:
    attrs = codes.attrs | {"comment": f"smallest patch of a class: {sieve}"}
    upright = codes.transpose(..., "y", "x")
    values = upright.values.copy()
    known = np.isin(values, np.atleast_1d(attrs["flag_values"]))
    for place in np.ndindex(values.shape[:-2]):
        # An image without any class has no patches.
        if known[place].any():
            values[place] = features.sieve(
                values[place], sieve.size, mask=known[place], connectivity=sieve.connectivity
            )
    found = upright.copy(data=values).transpose(*codes.dims).assign_attrs(attrs)
    return found if chunks is None else found.chunk(dict(zip(codes.dims, chunks, strict=True)))
