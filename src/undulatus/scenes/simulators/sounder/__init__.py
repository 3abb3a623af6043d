"""The synthetic sounder: spectra in the paper's numbers and strata, with the truth known.

A simulator of the paper's IASI data, which are not public: 24,923 spectra of 8,461 channels with
the paper's counts of surface types, climate zones, seasons and classes of cloud. The modules of
this package say what is in it and why, in the order of the computation: ``strata``, ``surface``,
``atmosphere``, ``gases``, ``transfer``. How difficult it is, and how that was set, is in
:mod:`undulatus.scenes.simulators.sounder.atmosphere`. Any part can be computed alone, and equals
that part of the whole bit for bit: random numbers are drawn for 256 samples at a time, whatever
the chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError
from undulatus.scenes.channels import CHANNELS, RADIANCE_UNITS, WAVENUMBER_ATTRIBUTES, WAVENUMBERS
from undulatus.scenes.simulators.sounder.atmosphere import draw_air, draw_clouds
from undulatus.scenes.simulators.sounder.strata import (
    CLIMATE_ZONES,
    CLOUD_CLASSES,
    SAMPLES,
    SEASONS,
    SURFACE_TYPES,
    Strata,
    draw_strata,
)
from undulatus.scenes.simulators.sounder.surface import draw_surface, emissivities
from undulatus.scenes.simulators.sounder.transfer import (
    Soundings,
    add_noise,
    noise_radiance,
    radiances,
)
from undulatus.scenes.spectra import CLOUD_AMOUNT, CLOUD_CLASS, CLOUDY, NOISE, RADIANCE

Array = npt.NDArray[Any]

BLOCK = 256
"""Samples that are drawn and computed together."""

CHUNK = 512
"""Samples in a dask chunk."""

FARTHEST_VIEW = 58.0
"""Largest zenith angle of the satellite, degrees."""

_RADIANCE_ATTRIBUTES = {
    "standard_name": "toa_outgoing_radiance_per_unit_wavenumber",
    "units": RADIANCE_UNITS,
}

_NOISE_ATTRIBUTES = {"long_name": "noise-equivalent radiance", "units": RADIANCE_UNITS}

_LOWEST_SUN = 0.1
"""Lower limit of the sun's cosine: a plane-parallel path is too long, as the Earth is round."""

TRUTH_VARIABLES = {
    CLOUD_AMOUNT: ("1", "cloud fraction times emissivity"),
    "cloud_top_height": ("km", "height of the cloud's top, missing where there is none"),
    "surface_temperature": ("K", "temperature of the surface's skin"),
    "water_vapour": ("kg m-2", "column of water vapour"),
    "satellite_zenith_angle": ("degree", "zenith angle of the satellite"),
}
"""Units and meaning of what is true of a sample but not measured."""


def synthetic_sounder(samples: int = SAMPLES, *, seed: int = 0, chunk: int = CHUNK) -> xr.Dataset:
    """Return synthetic spectra (sample, channel).

    Radiances are in mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, with noise. Besides what
    :func:`undulatus.scenes.spectra.check_spectra` requires, there are ``TRUTH_VARIABLES``. Both
    are dask arrays; labels and strata are in memory.

    Parameters
    ----------
    samples : int
        How many. Strata and classes have the paper's proportions, and for 24,923 samples its
        counts. Another number gives entirely different samples.
    seed : int
        Each seed is another world with the same climate.
    chunk : int
        Samples in a dask chunk. The values do not depend on it; multiples of 256 waste no work.
    """
    if samples < 1 or chunk < 1 or seed < 0:
        raise InputError(
            f"Cannot make {samples} synthetic spectra, {chunk} per chunk, with seed {seed}. "
            f"Request at least one of each, and a seed of 0 or more."
        )
    strata = draw_strata(samples, seed)
    spectra = _lazily(_make_radiances, CHANNELS, samples, seed, chunk)
    truth = _lazily(_make_truth, len(TRUTH_VARIABLES), samples, seed, chunk)
    variables = {
        RADIANCE: (("sample", "channel"), spectra, _RADIANCE_ATTRIBUTES),
        NOISE: ("channel", noise_radiance().copy(), _NOISE_ATTRIBUTES),
        **_codes(strata),
    }
    for index, (name, (units, meaning)) in enumerate(TRUTH_VARIABLES.items()):
        variables[name] = ("sample", truth[:, index], {"long_name": meaning, "units": units})
    attributes = {
        "title": "Synthetic sounder (simulator): no satellite took these spectra",
        "source": f"undulatus synthetic sounder, seed {seed}",
        "sensor": "iasi (synthetic)",
        "Conventions": "CF-1.11",
    }
    return xr.Dataset(variables, _coordinates(strata), attributes)


def _coordinates(strata: Strata) -> dict[str, Any]:
    north = {"standard_name": "latitude", "units": "degrees_north"}
    east = {"standard_name": "longitude", "units": "degrees_east"}
    return {
        "wavenumber": ("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES)),
        "latitude": ("sample", strata.latitude.copy(), north),
        "longitude": ("sample", strata.longitude.copy(), east),
        "time": ("sample", strata.time.copy(), {"standard_name": "time"}),
    }


def _codes(strata: Strata) -> dict[str, Any]:
    """Return labels and strata as variables, with the meanings of their codes."""
    meanings = {
        CLOUD_CLASS: (strata.cloud_class, 0, CLOUD_CLASSES),
        CLOUDY: (strata.cloud_class > 0, 0, ("clear", "cloudy")),
        "surface_type": (strata.surface_type, 1, SURFACE_TYPES),
        "climate_zone": (strata.climate_zone, 1, CLIMATE_ZONES),
        "season": (strata.season, 1, SEASONS),
        "day": (strata.day, 0, ("night", "day")),
    }
    return {
        name: (
            "sample",
            values.astype(np.uint8),
            {
                "long_name": name.replace("_", " "),
                "flag_values": np.arange(first, first + len(names), dtype=np.uint8),
                "flag_meanings": " ".join(names),
            },
        )
        for name, (values, first, names) in meanings.items()
    }


def _lazily(
    make: Callable[[int, int, int], Array], width: int, samples: int, seed: int, chunk: int
) -> da.Array:
    """Return a dask array (samples, width) whose chunks are cut from the blocks they overlap."""
    edges = [*range(0, samples, chunk), samples]
    return da.map_blocks(
        _make_chunk,
        da.from_array(np.array(edges[:-1]), chunks=1),
        da.from_array(np.array(edges[1:]), chunks=1),
        make=make,
        samples=samples,
        seed=seed,
        dtype=np.float32,
        new_axis=[1],
        chunks=(tuple(after - before for before, after in pairwise(edges)), (width,)),
        meta=np.empty((0, 0), np.float32),
    )


def _make_chunk(
    start: Array, stop: Array, make: Callable[[int, int, int], Array], samples: int, seed: int
) -> Array:
    first, last = int(start[0]), int(stop[0])
    parts = []
    for block in range(first // BLOCK, -(-last // BLOCK)):
        offset = block * BLOCK
        parts.append(make(block, samples, seed)[max(first - offset, 0) : last - offset])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class _State:
    soundings: Soundings
    truth: Array
    """(samples, truth variables) float32."""


def _draw_state(block: int, samples: int, seed: int) -> _State:
    strata = draw_strata(samples, seed).part(slice(block * BLOCK, (block + 1) * BLOCK))
    rng = np.random.default_rng([seed, block])
    surface = draw_surface(rng, strata)
    air = draw_air(rng, strata.climate_zone, surface.ground, surface.inversion)
    clouds = draw_clouds(rng, strata.cloud_class, strata.climate_zone, air)
    view = rng.uniform(0.0, FARTHEST_VIEW, len(strata.season))
    slant = 1.0 / np.cos(np.radians(view))
    cosine = np.maximum(np.cos(np.radians(strata.solar_zenith_angle.astype(np.float64))), 0.0)
    soundings = Soundings(
        columns=air.columns * slant[:, None, None],
        layers=air.temperature,
        skin=surface.skin,
        air=surface.ground - surface.inversion,
        materials=surface.materials,
        cloud_amount=clouds.amount,
        cloud_layer=clouds.layer,
        cloud_top=clouds.temperature,
        cloud_reflectance=clouds.reflectance,
        sun_cosine=cosine,
        sun_path=1.0 / np.maximum(cosine, _LOWEST_SUN) / slant,
    )
    height = np.where(clouds.amount > 0.0, clouds.height, np.nan)
    truth = np.column_stack([clouds.amount, height, surface.skin, air.vapour, view])
    return _State(soundings, truth.astype(np.float32))


def _make_truth(block: int, samples: int, seed: int) -> Array:
    return _draw_state(block, samples, seed).truth


def _make_radiances(block: int, samples: int, seed: int) -> Array:
    # The last digit of a product depends on how many threads share it.
    with single_threaded_blas():
        spectra = radiances(_draw_state(block, samples, seed).soundings, emissivities())
    # Noise has its own stream and the fastest generator, since most random numbers are noise.
    add_noise(spectra, np.random.Generator(np.random.SFC64([seed, block, 1])))
    return spectra
