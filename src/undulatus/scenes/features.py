r"""The sixteen features of a landmark pixel; six of them need no sunlight.

================  ==========================================  =======  ======
name              formula                                     units    night
================  ==========================================  =======  ======
``R1``            reflectance at 0.6 µm                       %
``R2``            reflectance at 0.8 µm                       %
``R3``            reflectance at 1.6 µm                       %
``R4``            reflectance at 3.9 µm, without the thermal  %
                  part
``BT7``           brightness temperature at 8.7 µm            K        yes
``BT9``           brightness temperature at 10.8 µm           K        yes
``BT10``          brightness temperature at 12.0 µm           K        yes
``cloud_ratio``   R2 / R1                                     1
``snow_index``    (R1 - R3) / (R1 + R3)                       1
``ndvi``          (R2 - R1) / (R2 + R1)                       1
``R1_mean3``      mean of R1 in 3 x 3 pixels                  %
``R1_mean5``      mean of R1 in 5 x 5 pixels                  %
``R1_std3``       standard deviation of R1 in 3 x 3 pixels    %
``BT9_mean3``     mean of BT9 in 3 x 3 pixels                 K        yes
``BT9_mean5``     mean of BT9 in 5 x 5 pixels                 K        yes
``BT9_std3``      standard deviation of BT9 in 3 x 3 pixels   K        yes
================  ==========================================  =======  ======

``R4`` is :func:`undulatus.scenes.radiometry.reflectance_39`.
A window holds the pixels that exist: it is smaller at the image's edge and beside missing pixels.
A missing pixel stays missing. Denominators of ratios are at least 0.1 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.ndimage import correlate1d

from undulatus._daylight import NIGHT
from undulatus.errors import SceneError
from undulatus.scenes.illumination import COSINE_FLOOR
from undulatus.scenes.radiometry import (
    DEFAULT_PLATFORM,
    THERMAL_BANDS,
    reflectance_39,
    sun_earth_distance,
)
from undulatus.scenes.scene import acquisition_time, check_scene

Array = npt.NDArray[Any]

BAND_FEATURES = {
    "R1": "VIS006",
    "R2": "VIS008",
    "R3": "IR_016",
    "R4": "IR_039",
    "BT7": "IR_087",
    "BT9": "IR_108",
    "BT10": "IR_120",
}
"""Features that are a band's values, and the band; ``R4`` is computed from its band."""

RATIOS = ("cloud_ratio", "snow_index", "ndvi")

WINDOW_STATISTICS = ("mean3", "mean5", "std3")
"""Mean and standard deviation, and the width of their window in pixels."""

FEATURES = (
    *BAND_FEATURES,
    *RATIOS,
    *(f"{channel}_{window}" for channel in ("R1", "BT9") for window in WINDOW_STATISTICS),
)

MARGIN = 2
"""Pixels that the largest window extends to either side."""

_DARKEST = 0.1
"""Lower limit of the denominators of ratios, %."""


def landmark_features(scene: xr.Dataset, *, checked: bool = False) -> xr.DataArray:
    """Return the features of every pixel, (time, y, x, feature) or (y, x, feature), float32.

    On dask arrays the result is lazy and does not depend on the chunks, as blocks are given
    their neighbours' margins. At night all but the six night features are missing.

    Parameters
    ----------
    scene : Dataset
        As :func:`undulatus.scenes.scene.check_scene` takes it.
    checked : bool
        The scene comes from ``check_scene``: do not check it again.
    """
    if not checked:
        scene = check_scene(scene)
    channels = [
        _reflectance_39(scene) if name == "R4" else scene[band]
        for name, band in BAND_FEATURES.items()
    ]
    dims = channels[0].dims
    arrays = [array.transpose(*dims).data for array in channels]
    if any(isinstance(array, da.Array) for array in arrays):
        values: Any = with_margins(_features_of, arrays, MARGIN, len(FEATURES))
    else:
        values = _features_of(*arrays)
    kept = {name: c for name, c in scene.coords.items() if set(c.dims) <= set(dims)}
    return xr.DataArray(
        values,
        dims=(*dims, "feature"),
        coords={**kept, "feature": list(FEATURES)},
        name="features",
        attrs={"long_name": "features of a landmark pixel"},
    )


def _reflectance_39(scene: xr.Dataset) -> xr.DataArray:
    platform = scene.attrs.get("platform_name") or DEFAULT_PLATFORM
    if platform not in THERMAL_BANDS:
        raise SceneError(
            f"The scene's platform_name is {platform!r}, whose response at 3.9 µm is not known, "
            f"but R4 needs it. Known: {', '.join(THERMAL_BANDS)}.\n"
            f"Correct this attribute of the file (ncatted; in Python "
            f'scene.attrs["platform_name"] = ...); without it, the scene is taken for one of '
            f"{DEFAULT_PLATFORM}."
        )
    time = acquisition_time(scene)
    # Without a time, the mean distance is used: an error of 3.3 % at most in reflectance.
    distance: Any = 1.0
    if time is not None:
        distance = xr.apply_ufunc(
            sun_earth_distance, time, dask="parallelized", output_dtypes=[np.float64]
        )

    def reflectance(warm: Array, cold: Array, angle: Array, distance: Array) -> Array:
        cosine = np.maximum(np.cos(np.radians(angle)), COSINE_FLOOR)
        lit = np.where(angle < NIGHT, cosine, np.nan)
        return reflectance_39(warm, cold, lit, distance, platform).astype(np.float32)

    return xr.apply_ufunc(
        reflectance,
        scene["IR_039"],
        scene["IR_108"],
        scene["solar_zenith_angle"],
        distance,
        dask="parallelized",
        output_dtypes=[np.float32],
    )


def with_margins(
    function: Callable[..., Array], arrays: list[Any], margin: int, n_features: int
) -> da.Array:
    """Apply a function of images to dask arrays by blocks, with a margin of pixels around each.

    Parameters
    ----------
    function : callable
        Takes one block of each array, (..., y, x), and returns (..., y, x, feature) float32.
    arrays : list of dask arrays
        Of one shape, (..., y, x).
    margin : int
        Pixels to either side that a pixel's features depend on.
    n_features : int
    """
    rows, columns = arrays[0].ndim - 2, arrays[0].ndim - 1
    pairs = [item for array in arrays for item in (array, range(rows + 2))]
    _, arrays = da.core.unify_chunks(*pairs)
    depth = {
        axis: margin if axis in (rows, columns) and len(arrays[0].chunks[axis]) > 1 else 0
        for axis in range(arrays[0].ndim)
    }
    chunks = tuple(
        da.overlap.ensure_minimum_chunksize(margin, sizes) if depth[axis] else sizes
        for axis, sizes in enumerate(arrays[0].chunks)
    )
    wide = [da.overlap.overlap(array.rechunk(chunks), depth, "none") for array in arrays]
    values = da.map_blocks(
        function,
        *wide,
        dtype=np.float32,
        new_axis=rows + 2,
        chunks=(*wide[0].chunks, (n_features,)),
        meta=np.empty((0,) * (rows + 3), np.float32),
    )
    return da.overlap.trim_internal(values, depth | {rows + 2: 0}, "none")


def _features_of(
    r1: Array, r2: Array, r3: Array, r4: Array, bt7: Array, bt9: Array, bt10: Array
) -> Array:
    features = np.empty((*r1.shape, len(FEATURES)), np.float32)

    def put(name: str, values: Array) -> None:
        features[..., FEATURES.index(name)] = values

    for name, channel in zip(BAND_FEATURES, (r1, r2, r3, r4, bt7, bt9, bt10), strict=True):
        put(name, channel)
    put("cloud_ratio", r2 / np.maximum(r1, _DARKEST))
    put("snow_index", (r1 - r3) / np.maximum(r1 + r3, _DARKEST))
    put("ndvi", (r2 - r1) / np.maximum(r2 + r1, _DARKEST))
    for name, channel in (("R1", r1), ("BT9", bt9)):
        for window, filtered in zip(WINDOW_STATISTICS, _windows(channel), strict=True):
            put(f"{name}_{window}", filtered)
    return features


def _windows(image: Array) -> tuple[Array, Array, Array]:
    """Return the means in 3 x 3 and 5 x 5 and the standard deviation in 3 x 3 pixels."""
    present = np.isfinite(image)
    if not present.any():
        return image, image, image
    values = np.where(present, image, 0.0).astype(np.float64)
    count = present.astype(np.float64)
    mean3 = window_sums(values, 3) / np.maximum(n3 := window_sums(count, 3), 1.0)
    mean5 = window_sums(values, 5) / np.maximum(window_sums(count, 5), 1.0)
    square = window_sums(values**2, 3) / np.maximum(n3, 1.0)
    deviation = np.sqrt(np.maximum(square - mean3**2, 0.0))
    missing = np.where(present, 0.0, np.nan)
    return mean3 + missing, mean5 + missing, deviation + missing


def window_sums(image: Array, width: int) -> Array:
    """Return sums over squares of ``width`` pixels around each pixel, zero beyond the edges."""
    # Not uniform_filter, whose running sums carry rounding errors along the whole line.
    ones = np.ones(width)
    rows = correlate1d(image, ones, axis=-2, mode="constant")
    return np.asarray(correlate1d(rows, ones, axis=-1, mode="constant"))
