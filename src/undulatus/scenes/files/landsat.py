"""Landsat Collection 2, Level 1 and Level 2: folders as reflectances and temperatures.

The coefficients are those of the ``_MTL.txt`` beside the bands. Level 1 reflectances are divided
by the sine of the sun's elevation; thermal bands of either level are in kelvin. The panchromatic
band and the quality bands are left out.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import rioxarray
import xarray as xr

from undulatus.errors import SceneError, unreadable

Array = npt.NDArray[Any]

BLOCK = 1024
"""Rows and columns that are read at a time."""

NO_DATA = 0
"""The number of pixels that were not measured."""


def recognises(path: Path) -> bool:
    """Return whether a folder is a Landsat product, with the coefficients of its bands."""
    return path.is_dir() and any(path.glob("L*_MTL.txt"))


def open_folder(folder: Path) -> xr.DataArray:
    """Open the bands of a folder, (band, y, x) float32, lazy; NaN where nothing was measured.

    Names are the producer's: ``SR_B2`` and ``ST_B10`` in Level 2, ``B2`` and ``B10`` in Level 1.
    """
    (path, *_) = sorted(folder.glob("L*_MTL.txt"))
    facts = _read_metadata(path)
    opened = {}
    for name, file in sorted(_band_files(folder, path).items(), key=lambda item: _number(item[0])):
        convert = _conversion(name, facts)
        if convert is not None:
            band = _open_band(file)
            opened[name] = band.copy(data=_measured(band.data, convert))
    if not opened:
        raise SceneError(
            f"{folder} holds no band whose coefficients are in {path.name}. Fetch the product "
            "again."
        )
    shapes = {array.shape for array in opened.values()}
    if len(shapes) > 1:
        raise SceneError(
            f"The bands of {folder} have different sizes: "
            f"{', '.join(f'{n} {a.shape[0]} x {a.shape[1]}' for n, a in opened.items())}."
        )
    first = next(iter(opened.values()))
    return xr.DataArray(
        da.stack([array.data for array in opened.values()]).rechunk({0: -1}),
        dims=("band", "y", "x"),
        coords={
            "band": np.array(list(opened), object),
            **{name: c for name, c in first.coords.items() if name != "band"},
        },
        attrs={"platform_name": facts.get("SPACECRAFT_ID", ""), "long_name": tuple(opened)},
    )


def _read_metadata(path: Path) -> dict[str, str]:
    """Return the values of an MTL file by name; of a name that recurs, the first."""
    facts: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, ". Fetch the product again.") from error
    for line in lines:
        name, equals, value = line.partition("=")
        if equals:
            facts.setdefault(name.strip(), value.strip().strip('"'))
    return facts


def _band_files(folder: Path, metadata: Path) -> dict[str, Path]:
    product = metadata.name.removesuffix("_MTL.txt")
    found = {}
    for path in folder.glob(f"{product}_*.TIF"):
        name = path.stem.removeprefix(f"{product}_")
        if re.fullmatch(r"(?:S[RT]_)?B\d+", name):
            found[name] = path
    return found


def _number(name: str) -> int:
    return int(name.rpartition("B")[2])


def _conversion(name: str, facts: dict[str, str]) -> Any:
    """Return the function from numbers to reflectance or temperature, None if it has none."""
    number = _number(name)

    def fact(key: str) -> float | None:
        value = facts.get(key)
        return None if value is None else float(value)

    if name.startswith("ST_"):
        gain, offset = fact(f"TEMPERATURE_MULT_BAND_{name}"), fact(f"TEMPERATURE_ADD_BAND_{name}")
        return None if gain is None or offset is None else lambda dn: gain * dn + offset
    if name == "B8":
        return None  # Panchromatic, on a finer grid.
    k1, k2 = (fact(f"K{i}_CONSTANT_BAND_{number}") for i in (1, 2))
    if name.startswith("B") and k1 is not None and k2 is not None:
        gain, offset = (fact(f"RADIANCE_{what}_BAND_{number}") for what in ("MULT", "ADD"))
        if gain is None or offset is None:
            return None
        return lambda dn: k2 / np.log(k1 / (gain * dn + offset) + 1.0)
    gain, offset = (fact(f"REFLECTANCE_{what}_BAND_{number}") for what in ("MULT", "ADD"))
    if gain is None or offset is None:
        return None
    sun = 1.0
    if not name.startswith("SR_"):
        elevation = fact("SUN_ELEVATION")
        if elevation is None or elevation <= 0.0:
            return None
        sun = math.sin(math.radians(elevation))
    return lambda dn: (gain * dn + offset) / sun


def _open_band(path: Path) -> xr.DataArray:
    try:
        opened = rioxarray.open_rasterio(path, chunks={"y": BLOCK, "x": BLOCK})
    except (OSError, ValueError) as error:
        raise unreadable(path, error, ". Fetch the product again.") from error
    assert isinstance(opened, xr.DataArray)
    return opened.isel(band=0, drop=True)


def _measured(numbers: da.Array, convert: Any) -> da.Array:
    def block(values: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            converted = convert(values.astype(np.float64)).astype(np.float32)
        return np.where(values == NO_DATA, np.float32(np.nan), converted)

    return da.map_blocks(block, numbers, dtype=np.float32, meta=np.empty((0, 0), np.float32))
