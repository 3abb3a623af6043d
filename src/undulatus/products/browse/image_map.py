"""The map of one image, and the image: what of them the pages show, as planes of bytes.

A plane holds, for every pixel, a class by its position, a probability, the standard deviation of
the latent function, whether the pixel is outside what was learned, or a colour of the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.products.browse.sprites import BYTE_OF_ONE, MISSING_BYTE, as_bytes
from undulatus.products.layers import (
    CLASS,
    CLASS_NAME,
    CLASS_PROBABILITY,
    CLASS_VARIANCE,
    MASK,
    PROBABILITY,
    QUALITY,
    VARIANCE,
)
from undulatus.products.legend import (
    CLEAR_COLOUR,
    CLOUD_COLOUR,
    PALETTE,
    MapClass,
    map_classes,
)
from undulatus.products.panels import GAMMA
from undulatus.products.predict import OUT_OF_RANGE
from undulatus.products.views import upright_order
from undulatus.scenes.files.geotiff import MAP_FILES, file_beside
from undulatus.scenes.files.inputs import Inputs
from undulatus.scenes.files.opening import is_image
from undulatus.scenes.files.windows import Bands, Grid, dataset_bands, on_one_grid, raster_bands
from undulatus.scenes.scene import ANGLE, BANDS, CLOUD_TRUTH, LEVEL2_MASK

Array = npt.NDArray[Any]

COLOUR_BANDS = (
    ("B04", "B03", "B02"),
    ("SR_B4", "SR_B3", "SR_B2"),
    ("B4", "B3", "B2"),
    ("red", "green", "blue"),
    ("IR_016", "VIS008", "VIS006"),
)
"""Bands shown as red, green and blue, by the names that sensors give them, in any case, ..."""

COLOUR_WAVELENGTHS = (665.0, 560.0, 490.0)
"""... or else those nearest to these wavelengths, nm, ..."""

FARTHEST_WAVELENGTH = 45.0
"""... if none is farther from its own than this, nm."""

WAVELENGTH_KEYS = ("CENTRAL_WAVELENGTH_UM", "wavelength", "central_wavelength",
                   "center_wavelength", "radiation_wavelength")  # fmt: skip
"""Attributes of a band with its wavelength: GDAL's (µm), ENVI's, those of netCDF files."""

LARGEST_MICROMETRES = 100.0
"""A wavelength without a unit is in µm up to this, and else in nm."""

STRETCH = (2.0, 98.0)
"""Percentiles of a band that are shown as black and as white."""

LEAST_DEVIATION, LARGEST_DEVIATION = 1e-3, 1e2
"""Standard deviations are bytes between these on a logarithmic scale: right to 2.3 %."""

_NOT_BANDS = (ANGLE, LEVEL2_MASK, CLOUD_TRUTH, "land_mask", "spatial_ref")
"""Variables of a scene that are not measured in a band."""

_SAMPLES, _SAMPLE_SIDE = 8, 128
"""Percentiles are those of 8 x 8 windows, of so many pixels a side, spread over the image."""


@dataclass(frozen=True)
class ImageMap:
    """The layers of a map of one image: north up, east to the right."""

    sources: tuple[Bands, ...]
    """Where the layers are, all on one grid."""
    classes: tuple[MapClass, ...]
    probabilities: tuple[str, ...]
    """Layers with the probability of each class, or of the second of two; none if they lack."""
    variances: tuple[str, ...]
    """Layers with the variance of the latent function of each class, or of two; or none."""
    of_clouds: bool = False
    """Whether it has ``cloud_`` layers, in which the class is that of the larger probability."""
    codes: str = CLASS
    """The layer with the codes of classes, unless it is of clouds."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.sources[0].shape

    @property
    def grid(self) -> Grid | None:
        """Where the pixels lie, if that is known."""
        return self.sources[0].grid

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the map: of which image by which model it was made."""
        return self.sources[0].attrs

    @cached_property
    def planes(self) -> tuple[str, ...]:
        """What they are: ``class``, one ``probability`` or more, ``deviation``, ``outside``."""
        names = [name for source in self.sources for name in source.names]
        return (
            "class",
            *("probability" for _ in self.probabilities),
            *(["deviation"] if self.variances else []),
            *(["outside"] if QUALITY in names else []),
        )

    def read_layers(self, rows: slice, columns: slice) -> dict[str, Array]:
        """Return the layers of a window by their names, (y, x) each."""
        return {
            name: layer
            for source in self.sources
            for name, layer in zip(source.names, source.read(rows, columns), strict=True)
        }

    def read(self, rows: slice, columns: slice) -> Array:
        """Return the planes of a window, (planes, y, x) bytes."""
        layers = self.read_layers(rows, columns)
        codes = self._positions(layers)
        found = [codes, *(as_bytes(layers[name]) for name in self.probabilities)]
        if self.variances:
            found.append(deviation_bytes(self._variance(layers, codes)))
        if "outside" in self.planes:
            quality = layers[QUALITY]
            bits = np.where(np.isfinite(quality), quality, 0.0).astype(np.uint16)
            outside = np.where(bits & OUT_OF_RANGE, np.uint8(BYTE_OF_ONE), np.uint8(0))
            found.append(np.where(codes == MISSING_BYTE, np.uint8(MISSING_BYTE), outside))
        return np.stack(found)

    def _positions(self, layers: dict[str, Array]) -> Array:
        """Return the position of each pixel's class among the classes."""
        if self.of_clouds:
            probability = layers[self.probabilities[0]]
            position = np.where(probability > 0.5, np.uint8(1), np.uint8(0))
            return np.where(np.isfinite(probability), position, np.uint8(MISSING_BYTE))
        table = np.full(257, MISSING_BYTE, np.uint8)
        for place, each in enumerate(self.classes):
            table[each.code] = place
        codes = layers[self.codes]
        if codes.dtype != np.uint8:
            # Where netCDF and Zarr have a fill value, xarray has left NaN.
            codes = np.where(np.isfinite(codes), codes, 256).astype(np.intp)
        return table[codes]

    def _variance(self, layers: dict[str, Array], codes: Array) -> Array:
        """Return the variance of the latent function, that of each pixel's class."""
        variance = layers[self.variances[0]]
        if len(self.variances) > 1:
            variance = variance.copy()
            for position, name in enumerate(self.variances[1:], 1):
                np.copyto(variance, layers[name], where=codes == position)
        return variance


def deviation_bytes(variance: Array) -> Array:
    """Return standard deviations as bytes on a logarithmic scale; 255 where there is none."""
    known = np.isfinite(variance) & (variance >= 0.0)
    decades = np.log(LARGEST_DEVIATION / LEAST_DEVIATION)
    least = np.float32(LEAST_DEVIATION**2)
    logarithm = 0.5 * np.log(np.maximum(np.where(known, variance, least), least) / least)
    share = np.minimum(logarithm / np.float32(decades), 1.0)
    scaled = (share * BYTE_OF_ONE + 0.5).astype(np.uint8)
    return np.where(known, scaled, np.uint8(MISSING_BYTE))


# Opening maps


def raster_map(path: Path) -> ImageMap:
    """Return the map in a GeoTIFF as ``undulatus map`` writes it.

    A file of codes has its other layers in files beside it, such as ``NAME_layers.tif``; without
    them, only the classes are known.
    """
    sources = [raster_bands(path)]
    beside = [file_beside(path, word) for word in MAP_FILES]
    if sources[0].names in ((CLASS,), (MASK,)):
        for file in beside:
            if file.exists():
                sources.append(raster_bands(file))
                if not on_one_grid(sources):
                    raise SceneError(
                        f"{file} is not on the grid of {path}: they are of different maps. "
                        f"Map the image again (undulatus map)."
                    )
    return _as_map(sources, path)


def dataset_map(maps: xr.Dataset, path: Path) -> ImageMap:
    """Return the map in a dataset, (y, x) or with one time.

    ``path`` is where it was opened from, for errors.
    """
    image = maps.isel(time=0, drop=True) if "time" in maps.dims else maps
    if not {"y", "x"} <= set(image.sizes):
        raise SceneError(
            f"{path} is not a map of an image: it has the dimensions "
            f"{', '.join(map(str, maps.sizes))}. Pages show maps (time, y, x) or (y, x)."
        )
    image = image.isel(upright_order(image))
    arrays: dict[str, xr.DataArray] = {}
    for name, array in image.data_vars.items():
        if CLASS_NAME in array.dims:
            for index, label in enumerate(array[CLASS_NAME].values):
                arrays[f"{name}_{label}"] = array.isel({CLASS_NAME: index}, drop=True)
        elif set(array.dims) == {"y", "x"}:
            arrays[str(name)] = array
    return _as_map([dataset_bands(image, arrays)], path)


def _as_map(sources: list[Bands], path: Path) -> ImageMap:
    bands = {
        name: attrs
        for source in sources
        for name, attrs in zip(source.names, source.band_attrs, strict=True)
    }
    of_classes = any(name == CLASS or name.startswith(CLASS_PROBABILITY) for name in bands)
    # A map of many classes, of which one is cloud, may have the layers of a mask too.
    if PROBABILITY in bands and not of_classes:
        variances = tuple(name for name in (VARIANCE,) if name in bands)
        classes = _cloud_classes(str(bands[PROBABILITY].get("long_name", "")))
        return ImageMap(tuple(sources), classes, (PROBABILITY,), variances, of_clouds=True)
    codes = CLASS if CLASS in bands else MASK
    if "flag_colors" not in bands.get(codes, {}):
        raise SceneError(
            f"{path} is not a map: it has neither {PROBABILITY} nor {CLASS} with flags and "
            f"colours. Give what undulatus map wrote (of a .tif, the first file that it named)."
        )
    classes = map_classes(bands[codes], str(path))
    needed = 1 if len(classes) == 2 else len(classes)
    found = []
    for stem in (CLASS_PROBABILITY, CLASS_VARIANCE):
        # The bands of classes are in the order of the classes.
        names = tuple(name for name in bands if name == stem or name.startswith(f"{stem}_"))
        if len(names) not in (0, needed):
            raise SceneError(
                f"{path} has {len(classes)} classes, but {len(names)} layers {stem}. "
                f"Map the image again (undulatus map)."
            )
        found.append(names)
    probabilities, variances = found
    return ImageMap(tuple(sources), classes, probabilities, variances, codes=codes)


def _cloud_classes(long_name: str) -> tuple[MapClass, ...]:
    if long_name.startswith("probability of class"):
        return tuple(MapClass(i, f"class {i}", PALETTE[i]) for i in (0, 1))
    return MapClass(0, "clear", CLEAR_COLOUR), MapClass(1, "cloud", CLOUD_COLOUR)


# The image


@dataclass(frozen=True)
class Picture:
    """The mapped image, and how its bands become colours."""

    bands: Bands
    shown: tuple[int, ...]
    """Bands that are red, green and blue, or the one that is grey."""
    darkest: Array
    """Of each band shown, as it is stored; ..."""
    brightest: Array
    """... what lies between is stretched."""

    def colours(self, values: Array) -> Array:
        """Return the colours of a window's bands (band, y, x), (3 or 1, y, x) bytes.

        A pixel that lacks one of them is missing in all.
        """
        found = np.empty((len(self.shown), *values.shape[1:]), np.uint8)
        known = np.ones(values.shape[1:], bool)
        for band in self.shown:
            known &= known_pixels(values[band], self.bands.fills[band])
        for plane, band in enumerate(self.shown):
            low, high = np.float32(self.darkest[plane]), np.float32(self.brightest[plane])
            share = (np.where(known, values[band], low).astype(np.float32) - low) / (high - low)
            bright = np.clip(share, 0.0, 1.0) ** np.float32(1.0 / GAMMA)
            found[plane] = np.where(known, bright * BYTE_OF_ONE + 0.5, MISSING_BYTE)
        return found


def known_pixels(values: Array, fill: float) -> Array:
    """Return where a band has a value."""
    known: Array = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
    if np.isfinite(fill):
        known &= values != fill
    return known


def scene_bands(scene: xr.Dataset, path: Path) -> Bands:
    """Return the bands of an image in a dataset, (y, x) or with one time."""
    image = scene.isel(time=0, drop=True) if "time" in scene.dims else scene
    image = image.isel(upright_order(image))
    arrays = {
        name: array
        for variable in image.data_vars.values()
        if variable.dtype.kind in "uif"
        and variable.name not in _NOT_BANDS
        and "flag_values" not in variable.attrs
        for name, array in _images_in(variable)
    }
    if set(arrays) & set(BANDS):
        arrays = {name: array for name, array in arrays.items() if name in BANDS}
    if not arrays:
        raise SceneError(
            f"{path} has no bands (y, x) to show: it has {', '.join(map(str, scene.data_vars))}. "
            f"Give an image with a variable for each band, or a .tif."
        )
    return dataset_bands(image, arrays)


def _images_in(variable: xr.DataArray) -> Iterator[tuple[str, xr.DataArray]]:
    """Yield the images (y, x) of a variable by their names: itself, or all along its bands."""
    others = [dim for dim in variable.dims if dim not in ("y", "x")]
    if not {"y", "x"} <= set(variable.dims) or len(others) > 1:
        return
    if not others:
        yield str(variable.name), variable
        return
    labels = variable[others[0]].values
    for index, label in enumerate(labels):
        name = str(label) if labels.dtype.kind in "UOT" else f"band_{label}"
        band = variable.isel({others[0]: index})
        along = {
            str(key): band.coords[key].values.item()
            for key, coordinate in variable.coords.items()
            if coordinate.dims == (others[0],) and key != others[0]
        }
        yield name, band.reset_coords(drop=True).assign_attrs(along | dict(band.attrs))


def open_picture(
    source: Path | Inputs, maps: ImageMap, rgb: Sequence[str] | None = None
) -> Picture:
    """Return the picture of an image or a scene in files, which must be on the grid of its map.

    ``rgb`` are the names of the bands that are red, green and blue, or the one that is grey; by
    default :func:`colour_bands` chooses.
    """
    inputs = Inputs.of(source)
    path = inputs.paths[0]
    if is_image(path) and not path.is_dir():
        return make_picture(raster_bands(path), maps, path, rgb)
    return make_picture(scene_bands(inputs.open(), path), maps, path, rgb)


def make_picture(
    bands: Bands, maps: ImageMap, path: Path, rgb: Sequence[str] | None = None
) -> Picture:
    """Return the picture of a map's image; an image on another grid is an error."""
    if not on_one_grid([maps.sources[0], bands]):
        sizes = [" x ".join(map(str, each.shape)) for each in (bands, maps)]
        reason = (
            f"has {sizes[0]} pixels, but the map {sizes[1]}"
            if bands.shape != maps.shape
            else "lies elsewhere than the map, or has pixels of another size"
        )
        raise SceneError(f"{path} {reason}: the map was made of another image (--scene).")
    shown = (
        colour_bands(bands.names, bands.band_attrs)
        if rgb is None
        else _named_bands(bands.names, rgb, path)
    )
    darkest, brightest = [], []
    sample = sample_windows(bands.shape)
    parts = [bands.read(*window)[list(shown)] for window in sample]
    for plane, band in enumerate(shown):
        values = np.concatenate([part[plane].ravel() for part in parts])
        values = values[known_pixels(values, bands.fills[band])]
        low, high = np.percentile(values, STRETCH) if values.size else (0.0, 1.0)
        darkest.append(low)
        brightest.append(high if high > low else low + 1.0)
    return Picture(bands, shown, np.array(darkest), np.array(brightest))


def _named_bands(names: tuple[str, ...], rgb: Sequence[str], path: Path) -> tuple[int, ...]:
    absent = [name for name in rgb if name not in names]
    if absent or len(rgb) not in (1, 3):
        what = f"has no band {', '.join(absent)}" if absent else "cannot be shown so"
        raise SceneError(
            f"{path} {what}.\n  bands: {', '.join(names)}\nName three of these for red, green and "
            f"blue, or one for grey (--rgb)."
        )
    return tuple(names.index(name) for name in rgb)


def colour_bands(
    names: tuple[str, ...], attrs: Sequence[Mapping[str, Any]] = ()
) -> tuple[int, ...]:
    """Return the bands to show as red, green and blue, or one to show in grey.

    They are chosen by their names, or by the wavelengths in their attributes, or are the first.
    """
    lower = [name.lower() for name in names]
    for wanted in COLOUR_BANDS:
        if all(name.lower() in lower for name in wanted):
            return tuple(lower.index(name.lower()) for name in wanted)
    given = attrs or ({},) * len(names)
    found = np.array([band_wavelength(own, name) for own, name in zip(given, names, strict=True)])
    away = np.abs(found - np.array(COLOUR_WAVELENGTHS)[:, None])
    away[np.isnan(away)] = np.inf
    nearest = tuple(away.argmin(axis=1).tolist())
    if (away.min(axis=1) <= FARTHEST_WAVELENGTH).all() and len(set(nearest)) == 3:
        return nearest
    return (0, 1, 2) if len(lower) >= 3 else (0,)


def band_wavelength(attrs: Mapping[str, Any], name: str = "") -> float:
    """Return the wavelength of a band by its attributes or its name, nm; NaN if none tells it.

    A name tells it with its unit alone, as ENVI's do: ``Band 1 (418.2 Nanometers)``.
    """
    lower = {str(key).lower(): value for key, value in attrs.items()}
    for key in WAVELENGTH_KEYS:
        number = re.match(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(.*)", str(lower.get(key.lower(), "")))
        if number is None:
            continue
        try:
            value = float(number[1])
        except ValueError:
            continue
        unit = number[2] or str(lower.get(f"{key.lower()}_units", ""))
        short = unit.lower().startswith("n")
        return value if short or (not unit and value > LARGEST_MICROMETRES) else 1000.0 * value
    named = re.search(r"(\d+(?:\.\d+)?) ?(nm|nanomet|[µu]m|micromet)", name.lower())
    if named is None:
        return np.nan
    return float(named[1]) * (1.0 if named[2].startswith("n") else 1000.0)


def sample_windows(shape: tuple[int, int]) -> list[tuple[slice, slice]]:
    """Return windows that are spread over an image, or all of a small one."""
    sides = []
    for size in shape:
        count = min(_SAMPLES, -(-size // _SAMPLE_SIDE))
        starts = np.linspace(0, max(0, size - _SAMPLE_SIDE), count).astype(int).tolist()
        sides.append([slice(start, min(start + _SAMPLE_SIDE, size)) for start in starts])
    return [(rows, columns) for rows in sides[0] for columns in sides[1]]
