"""From EUMETSAT's principal components back to radiances, with its eigenvector files.

EUMETSAT publishes one HDF5 file for each of IASI's three bands (``IASI_EV1_...`` to ``EV3``).
With the basis that has been in use since 2021 (EUMETSAT, *Changes to PC compressed IASI L1C data*)
there is no mean to add: a band's radiances are its scores times ``ReconstructionOperator``,
(components, channels), from the channel ``FirstChannel`` on, in W m⁻² sr⁻¹ (m⁻¹)⁻¹.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBER_ATTRIBUTES, WAVENUMBERS
from undulatus.scenes.spectra import RADIANCE, SCORES

Array = npt.NDArray[Any]

UNITS = "W m-2 sr-1 (m-1)-1"
"""Of the radiances that the operators give."""


@dataclass(frozen=True)
class _Band:
    path: Path
    first: int
    """Number of its first channel, counted from 1."""
    operator: Array
    """(components, channels)."""


def reconstruct_radiances(
    spectra: xr.Dataset, files: Sequence[str | os.PathLike[str]]
) -> xr.Dataset:
    """Return spectra with radiances of all channels in place of their scores; lazy if they are.

    Parameters
    ----------
    spectra : Dataset
        With ``scores`` (sample, component), those of the three bands one after the other.
    files : list of paths
        The eigenvector files of the three bands, in any order. They must be those of the basis
        that the scores were computed with, which the files of scores name.
    """
    bands = sorted((_read_band(Path(path)) for path in files), key=lambda band: band.first)
    place = 1
    for band in bands:
        if band.first != place:
            raise SceneError(
                f"{band.path} begins at channel {band.first}, but channel {place} comes next: "
                f"give the eigenvector files of all three bands once."
            )
        place += band.operator.shape[1]
    components = sum(len(band.operator) for band in bands)
    if SCORES not in spectra or spectra.sizes.get("component") != components:
        raise SceneError(
            f"The eigenvector files have {components} components, but the spectra "
            f"{spectra.sizes.get('component', 'no scores')}: leave local components out, or give "
            f"the files of the basis that the scores were computed with."
        )
    if place - 1 != CHANNELS:
        raise SceneError(
            f"The eigenvector files end at channel {place - 1:,} of {CHANNELS:,}: give the files "
            f"of all three bands."
        )
    radiance = xr.apply_ufunc(
        _multiply,
        spectra[SCORES].transpose("sample", "component"),
        kwargs={"operators": [band.operator for band in bands]},
        input_core_dims=[["component"]],
        output_core_dims=[["channel"]],
        dask="parallelized",
        dask_gufunc_kwargs={"output_sizes": {"channel": CHANNELS}, "allow_rechunk": True},
        output_dtypes=[np.float32],
    )
    rebuilt = spectra.drop_vars(SCORES).assign({RADIANCE: radiance.assign_attrs(units=UNITS)})
    return rebuilt.assign_coords(wavenumber=("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES)))


def _multiply(scores: Array, operators: list[Array]) -> Array:
    edges = np.cumsum([len(operator) for operator in operators])[:-1]
    parts = np.split(np.asarray(scores, np.float64), edges, axis=-1)
    bands = [part @ operator for part, operator in zip(parts, operators, strict=True)]
    return np.concatenate(bands, axis=-1).astype(np.float32)


def _read_band(path: Path) -> _Band:
    try:
        with netCDF4.Dataset(path) as file:
            if "Mean" in file.variables:
                raise SceneError(
                    f"{path} is of an older basis, with a mean, which is not read here. Give the "
                    f"files of the basis since 2021."
                )
            if "ReconstructionOperator" not in file.variables:
                raise SceneError(
                    f"{path} has no ReconstructionOperator: it is no eigenvector file of IASI "
                    f"(IASI_EV1_..., IASI_EV2_..., IASI_EV3_...)."
                )
            operator = np.asarray(file["ReconstructionOperator"][:], np.float64)
            holder = file.variables.get("FirstChannel")
            first = file.getncattr("FirstChannel") if holder is None else holder[...]
            return _Band(path, int(np.ravel(first)[0]), operator)
    except (OSError, AttributeError) as error:
        raise SceneError(f"{path} cannot be read as an eigenvector file: {error}.") from error
