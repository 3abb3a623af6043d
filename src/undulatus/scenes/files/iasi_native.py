"""IASI Level 1C in EUMETSAT's native format, read through CODA a few lines at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from undulatus._daylight import NIGHT
from undulatus.errors import SceneError
from undulatus.scenes.channels import (
    CHANNEL_SPACING,
    CHANNELS,
    FIRST_WAVENUMBER,
    RADIANCE_UNITS,
    WAVENUMBER_ATTRIBUTES,
    WAVENUMBERS,
)

PREFIX = "IASI_xxx_1C"
"""How the names of such files begin."""

LINES_PER_BLOCK = 4
"""Lines of 120 spectra that are read at a time: 16 MB."""

_NUMBERS = round(FIRST_WAVENUMBER / CHANNEL_SPACING) + 1 + np.arange(CHANNELS)
"""Channels as the format counts them."""

_DEFINITIONS = (
    "EPS.codadef (github.com/stcorp/codadef-eps) in the folder that CODA_DEFINITION names"
)

_REMEDY = (
    f"apt-get install python3-coda, or conda-forge's coda (not PyPI's), and put {_DEFINITIONS}."
)

_FIELDS = ["GGeoSondLoc", "GGeoSondAnglesSUN", "GEUMAvhrr1BCldFrac", "OnboardUTC"]

_SPECTRA = ["GS1cSpect", "GQisFlagQual", "IDefNsfirst1b"]

_READING = Lock()
"""CODA is not thread-safe."""


def _fetch(path: Path, names: list[str], lines: Any = None) -> tuple[list[Any], Any, Any]:
    """Return fields of some lines (by default all with spectra), the lines, and the scales."""
    try:
        import coda  # type: ignore[import-not-found]

        failure = coda.CodaError  # PyPI's coda is another package, without it.
    except (ImportError, OSError, AttributeError):
        raise SceneError(f"{path} is read by CODA, which is not installed: {_REMEDY}") from None
    try:
        with _READING, coda.open(str(path)) as product:
            if lines is None:
                # Lost lines have no inner MDR.
                every = range(coda.get_size(product, "MDR")[0])
                lines = [n for n in every if coda.get_field_available(product, "MDR", n, "MDR")]
            if not len(lines):
                raise SceneError(
                    f"{path} has no line with spectra. Fetch it again, or use another."
                )
            where = [("MDR", int(line), "MDR") for line in lines]
            fields = [np.array([coda.fetch(product, *at, name) for at in where]) for name in names]
            return fields, np.array(lines, int), coda.fetch(product, "GIADR_ScaleFactors")
    except failure as error:
        raise SceneError(
            f"{path} cannot be read: {error}. Is it complete, and is {_DEFINITIONS}?"
        ) from error


def open_native(path: Path) -> xr.Dataset:
    """Open a file as lazy spectra; ``cloudy`` says whether AVHRR saw any cloud in a spectrum."""
    (place, sun, cloud, seconds), lines, _ = _fetch(path, _FIELDS)
    blocks = da.from_array(lines, chunks=LINES_PER_BLOCK)
    chunks, meta = (tuple(120 * n for n in blocks.chunks[0]), CHANNELS), np.empty((0, 0), "f4")
    radiance = blocks.map_blocks(partial(_radiances, path), new_axis=1, chunks=chunks, meta=meta)
    percent, zenith = cloud.reshape(-1).astype(np.uint8), sun[..., 0].reshape(-1)
    after = np.repeat(np.round(seconds.reshape(-1) * 1e3), 4).astype("timedelta64[ms]")
    variables = {
        "radiance": (("sample", "channel"), radiance, {"units": RADIANCE_UNITS}),
        "cloudy": ("sample", np.where(percent > 100, 255, percent > 0).astype(np.uint8)),
        "avhrr_cloud_fraction": ("sample", percent, {"units": "percent"}),
        "day": ("sample", (zenith < NIGHT).astype(np.uint8)),
    }
    coords = {
        "longitude": ("sample", place[..., 0].reshape(-1), {"units": "degrees_east"}),
        "latitude": ("sample", place[..., 1].reshape(-1), {"units": "degrees_north"}),
        "time": ("sample", np.datetime64("2000-01-01", "ns") + after),
        "wavenumber": ("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES)),
    }
    return xr.Dataset(variables, coords, {"source": path.name, "sensor": "iasi"})


def _radiances(path: Path, lines: Any) -> Any:
    """Return the radiances of some lines in ``RADIANCE_UNITS``, (120 a line, channels) float32."""
    (counts, flags, first), _, scales = _fetch(path, _SPECTRA, lines)
    last = np.asarray(scales.IDefScaleSondNslast)[: int(scales.IDefScaleSondNbScale)]
    powers = np.asarray(scales.IDefScaleSondScaleFactor)[np.searchsorted(last, _NUMBERS)]
    radiance = counts[..., _NUMBERS - int(first[0])] * 10.0 ** (5.0 - powers)
    bad = flags.reshape(*counts.shape[:3], -1).any(axis=-1, keepdims=True)
    return np.where(bad, np.nan, radiance).reshape(-1, CHANNELS).astype(np.float32)
