"""Level-2 cloud masks: the codes of each product, decoded to labels and encoded again.

================  ===============================================================================
encoding          codes
================  ===============================================================================
``eumetsat-clm``  0 clear over water, 1 clear over land, 2 cloud, 3 no data (MSG and MTG CLM)
``pps``           0 cloud free, 1 cloudy, 2 cloud contaminated, 3 snow or ice, 255 no data (NWC
                  SAF netCDF: PPS, and the binary masks of GEO, which write 0 and 1 alone)
``nwcsaf-hdf5``   0 not processed, 1 cloud free, 2 cloud contaminated, 3 cloud filled, 4 snow or
                  ice, 5 undefined (NWC SAF MSG until v2013)
``cf``            0 clear, 1 cloud, 255 missing (``cloud_binary_mask``), our own
================  ===============================================================================

A contaminated pixel holds some cloud, so it counts as cloud. Snow and ice are visible only where
no cloud hides them, so they count as clear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.scene import MISSING_CODE, acquisition_time

Array = npt.NDArray[Any]

CLEAR, CLOUD = 0, 1
"""Labels; ``MISSING_CODE`` is the third."""

CF_NAME = "cloud_binary_mask"
"""The only name of a mask in CF's table; other names are read, but not written."""

LAND_COLOUR, SNOW_COLOUR, NO_DATA_COLOUR = "#c8a165", "#bfe6f5", "#808080"
"""Colours of codes beside those of clear and cloud."""

_UNKNOWN = 254
"""Stands for values that are not codes of the product."""


@dataclass(frozen=True)
class Encoding:
    """The codes of a product and their meanings, by label; the first of each is the one we write.

    ``land`` is the code of clear land, if the product distinguishes it from clear water, and
    ``standard_name`` what files of the product call it.
    """

    name: str
    clear: Mapping[int, str]
    cloud: Mapping[int, str]
    missing: Mapping[int, str]
    land: int | None = None
    standard_name: str | None = None

    @property
    def codes(self) -> dict[int, str]:
        """The meaning of every code, sorted by code."""
        return dict(sorted({**self.clear, **self.cloud, **self.missing}.items()))

    @property
    def flags(self) -> dict[str, Any]:
        """The CF attributes that describe the codes."""
        listed = {code: meaning for code, meaning in self.codes.items() if code != MISSING_CODE}
        attrs: dict[str, Any] = {
            "long_name": "cloud mask",
            "flag_values": np.array(list(listed), np.uint8),
            "flag_meanings": " ".join(listed.values()),
        }
        if self.standard_name == CF_NAME:
            attrs["standard_name"] = self.standard_name
        if MISSING_CODE in self.missing:
            attrs["_FillValue"] = np.uint8(MISSING_CODE)
        return attrs

    def flag_colors(self, clear: str, cloud: str) -> str:
        """Return a colour for each of ``flag_values``, separated by spaces."""
        found = []
        for code in self.flags["flag_values"].tolist():
            kind = clear if code in self.clear else cloud if code in self.cloud else NO_DATA_COLOUR
            snow = "snow" in self.codes[code]
            found.append(LAND_COLOUR if code == self.land else SNOW_COLOUR if snow else kind)
        return " ".join(found)

    def __str__(self) -> str:
        return ", ".join(f"{code} {meaning}" for code, meaning in self.codes.items())


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        Encoding(
            "eumetsat-clm",
            clear={0: "clear_sky_over_water", 1: "clear_sky_over_land"},
            cloud={2: "cloudy"},
            missing={3: "no_data"},
            land=1,
            standard_name="cloud_classification",
        ),
        Encoding(
            "pps",
            clear={0: "cloud_free", 3: "snow_ice"},
            cloud={1: "cloudy", 2: "cloud_contaminated"},
            missing={255: "no_data"},
        ),
        Encoding(
            "nwcsaf-hdf5",
            clear={1: "cloud_free", 4: "snow_ice_contaminated"},
            cloud={3: "cloud_filled", 2: "cloud_contaminated"},
            missing={0: "not_processed", 5: "undefined"},
        ),
        Encoding(
            "cf",
            clear={0: "clear"},
            cloud={1: "cloud"},
            missing={255: "missing"},
            standard_name=CF_NAME,
        ),
    )
}


def decode(mask: xr.DataArray, encoding: str | None = None) -> xr.DataArray:
    """Return a product's mask as labels, uint8: 0 clear, 1 cloud, 255 missing.

    Parameters
    ----------
    mask : DataArray
        Codes of the product, as integers or as floats with NaN for missing. Fill values given
        in its attributes, and values that are not codes, become missing.
    encoding : str, optional
        One of ``ENCODINGS``; by default it is read from the attributes.

    Raises
    ------
    SceneError
        If more than half of the values are not codes, so that the encoding must be another. On
        dask arrays this is checked block by block, when the mask is computed.
    """
    chosen = _find_encoding(mask, encoding)
    table = np.full(256, _UNKNOWN, np.uint8)
    table[list(chosen.clear)] = CLEAR
    table[list(chosen.cloud)] = CLOUD
    table[list(chosen.missing)] = MISSING_CODE
    fills = [
        float(holder[key])
        for holder in (mask.attrs, mask.encoding)
        for key in ("_FillValue", "missing_value")
        if holder.get(key) is not None
    ]
    labels = xr.apply_ufunc(
        lambda values: _labels(values, table, fills, chosen),
        mask,
        dask="parallelized",
        output_dtypes=[np.uint8],
        keep_attrs=False,
    )
    labels = labels.assign_attrs(ENCODINGS["cf"].flags)
    time = acquisition_time(mask.to_dataset(name="mask"))
    if time is not None and "time" not in labels.coords:
        labels = labels.assign_coords(time=time.drop_vars(time.coords))
    return labels


def _labels(values: Array, table: Array, fills: list[float], encoding: Encoding) -> Array:
    codes = np.asarray(values, np.float64)
    there = np.isfinite(codes) & ~np.isin(codes, fills)
    whole = there & (codes >= 0) & (codes <= 255) & (codes == np.round(codes))
    labels = table[np.where(whole, codes, 0).astype(np.uint8)]
    unknown = there & (~whole | (labels == _UNKNOWN))
    if 2 * np.count_nonzero(unknown) > codes.size:
        found = ", ".join(f"{code:g}" for code in np.unique(codes[unknown])[:8])
        raise SceneError(
            f"More than half of the mask's values are not codes of the encoding "
            f"{encoding.name!r}.\n  found: {found}\n  expected: {encoding}\n"
            f"Choose another encoding: {', '.join(ENCODINGS)}."
        )
    return np.where(there & ~unknown, labels, np.uint8(MISSING_CODE))


def _find_encoding(mask: xr.DataArray, encoding: str | None) -> Encoding:
    name = guess_encoding(mask) if encoding is None else encoding
    if name in ENCODINGS:
        return ENCODINGS[name]
    problem = (
        "The mask's attributes do not say how it is encoded."
        if name is None
        else f"There is no encoding {name!r}."
    )
    known = "\n".join(f"  {each.name}: {each}" for each in ENCODINGS.values())
    raise SceneError(f"{problem}\nChoose its encoding:\n{known}")


def encode(
    mask: xr.DataArray, encoding: str, land_mask: xr.DataArray | None = None
) -> xr.DataArray:
    """Return labels in a product's codes: the inverse of :func:`decode`.

    Parameters
    ----------
    mask : DataArray
        0 clear, 1 cloud; any other value is missing.
    encoding : str
        One of ``ENCODINGS``.
    land_mask : DataArray, optional
        1 land, 0 water; for encodings that distinguish clear land from clear water.
    """
    chosen = _find_encoding(mask, encoding)
    if chosen.land is not None and land_mask is None:
        raise SceneError(
            f"The encoding {encoding!r} distinguishes clear land from clear water, but no land "
            f"mask was given. Pass land_mask (1 land, 0 water), or use the encoding 'cf'."
        )
    clear, cloud, missing = (
        next(iter(codes)) for codes in (chosen.clear, chosen.cloud, chosen.missing)
    )

    def code(labels: Array, land: Array) -> Array:
        unclouded = np.where(land > 0, chosen.land, clear) if chosen.land is not None else clear
        return np.where(
            labels == CLEAR, unclouded, np.where(labels == CLOUD, cloud, missing)
        ).astype(np.uint8)

    codes = xr.apply_ufunc(
        code,
        mask,
        0 if land_mask is None else land_mask,
        dask="parallelized",
        output_dtypes=[np.uint8],
        keep_attrs=False,
    )
    return codes.transpose(*mask.dims).rename(mask.name).assign_attrs(chosen.flags)


def guess_encoding(mask: xr.DataArray) -> str | None:
    """Return the encoding that fits a mask's flags or standard name, or None."""
    meanings = _plain_meanings(mask.attrs.get("flag_meanings", ()))
    values = np.atleast_1d(mask.attrs.get("flag_values", np.arange(len(meanings))))
    flags = dict(zip((int(value) for value in values), meanings, strict=False))
    for encoding in ENCODINGS.values():
        # Missing values have many names: undefined, no data, not processed.
        known = {code: name for code, name in flags.items() if code not in encoding.missing}
        if known and known.items() <= encoding.codes.items():
            return encoding.name
    name = mask.attrs.get("standard_name", "")
    return next((each.name for each in ENCODINGS.values() if each.standard_name == name), None)


def _plain_meanings(meanings: Any) -> list[str]:
    parts = meanings.split() if isinstance(meanings, str) else meanings
    return [re.sub(r"[^a-z0-9]+", "_", str(part).lower()).strip("_") for part in parts]
