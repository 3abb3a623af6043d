"""When a model's mask and the Level-2 mask tell different things."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.landmark_pixels import LABEL
from undulatus.products.views import MODEL

Array = npt.NDArray[Any]


def disagreement(scene: xr.Dataset, result: xr.Dataset) -> xr.DataArray:
    """Return the share of an acquisition's pixels in which the masks differ, (time,).

    Of the pixels that both know; NaN where there are none.
    """
    known = (scene[LABEL] <= 1) & (result[MODEL] <= 1)
    differ = known & (scene[LABEL] != result[MODEL])
    counted = known.sum(["y", "x"])
    return (differ.sum(["y", "x"]) / counted.where(counted > 0)).compute()


def most_disputed(shares: xr.DataArray, count: int) -> Array:
    """Return the times of the largest shares, one a day, sorted."""
    known = shares.dropna("time")
    order = known["time"].values[np.argsort(-known.values, kind="stable")]
    _, first = np.unique(order.astype("datetime64[D]"), return_index=True)
    return np.sort(order[np.sort(first)[:count]])
