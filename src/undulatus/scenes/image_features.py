"""Features of an image's pixels: bands, spectral indices, means and deviations in windows.

A model keeps the recipe (:class:`ImageFeatures`) and makes the same features of every image that
it maps. Indices are those of the Awesome Spectral Indices catalogue by their names there (NDVI,
NDWI, NBR and some 280 others), computed by ``spyndex``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from typing import Any, Self

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import InputError, MissingBandsError, SceneError
from undulatus.scenes.features import window_sums, with_margins
from undulatus.scenes.files.images import OTHER_GRIDS
from undulatus.scenes.pixel_grid import PixelGrid, reproject

Array = npt.NDArray[Any]

SENTINEL2, LANDSAT89, LANDSAT457 = "sentinel2a", "landsat8", "landsat5"
"""Platforms as spyndex knows them: which letter of a formula is which band."""

COMMON_NAMES = {
    "coastal": "A", "blue": "B", "green": "G", "yellow": "Y", "red": "R", "nir": "N",
    "nir08": "N2", "nir09": "WV", "rededge": "RE1", "rededge1": "RE1", "rededge2": "RE2",
    "rededge3": "RE3",
    "rededge071": "RE1", "rededge075": "RE2", "rededge078": "RE3", "swir1": "S1", "swir16": "S1",
    "swir2": "S2", "swir22": "S2", "lwir": "T", "lwir11": "T1", "lwir12": "T2",
}  # fmt: skip
"""Letters of formulas by the common names of bands, in lower case and without - and _."""

NEVER_MEASURED = (-9999.0, -99999.0, -28672.0, -32767.0, -32768.0, -2147483648.0)
"""Values that mark missing data in any band, declared or not, ..."""

LARGEST_MEASURED = 1e15
"""... as do larger ones than this, such as 1e20 and 3.4e38."""

SAME_SIZE = 1.25
"""Pixels are of the size of training if they are not larger or smaller by more than this."""

BATCH_VALUES = 8_000_000
"""Values of blocks that are read at once, at most, if a block does not have more by itself."""

Window = tuple[slice, slice, Array]
"""Rows and columns of an image, and the numbers of the pixels in its middle."""


def choose_bands(words: Iterable[str], present: Sequence[str]) -> tuple[str, ...]:
    """Return the bands that words name: by their names, or by their numbers in the file.

    A word is a name, a number from 1, or a range of either (``2-4``, ``B2..B4``). A ``-`` before
    it takes these bands away again, from all bands if no others are named.

    >>> choose_bands(["1-2", "B5..B8", "-6"], ["B2", "B3", "B4", "B5", "B6", "B7", "B8"])
    ('B2', 'B3', 'B5', 'B6', 'B8')
    """
    taken: list[int] = []
    away: set[int] = set()
    unknown = []
    for word in words:
        minus = word.startswith("-") and word not in present
        places = _band_places(word.removeprefix("-") if minus else word, present)
        if places is None:
            unknown.append(word.removeprefix("-") if minus else word)
        elif minus:
            away |= set(places)
        else:
            taken += places
    if unknown:
        raise InputError(
            f"The image has other bands than are asked for.\n  missing: {', '.join(unknown)}\n"
            f"  found: {', '.join(present)}\nGive names, numbers from 1 to {len(present)}, "
            f"ranges such as 2-4 or {present[0]}..{present[-1]}, or any of these with a - before "
            f"it, to leave them out (--bands, in Python bands=...)."
        )
    # Words that take away alone take from all.
    kept = [i for i in (taken or range(len(present) if away else 0)) if i not in away]
    if not kept:
        raise InputError(f"No band is left of {', '.join(present)}. Ask for some (--bands).")
    return tuple(present[i] for i in dict.fromkeys(kept))


def _band_places(word: str, present: Sequence[str]) -> list[int] | None:
    """Return the places of the bands that a word names, or None if there are none of that name."""
    if word in present:
        return [present.index(word)]
    ends = re.fullmatch(r"(\d+)-(\d+)|(.+)\.\.(.+)", word)
    first, last = [end for end in ends.groups() if end] if ends else (word, word)
    places = [
        present.index(end) if end in present else int(end) - 1 if end.isdecimal() else -1
        for end in (first, last)
    ]
    if not 0 <= min(places) <= max(places) < len(present):
        return None
    if places[0] > places[1]:
        raise InputError(f"The bands {word} end before they begin: give {last} first.")
    return list(range(places[0], places[1] + 1))


@dataclass(frozen=True)
class ImageFeatures:
    """How to make the features of a pixel from the bands of an image.

    Parameters
    ----------
    bands : tuple of str
        Bands that are features by themselves, and whose windows are.
    indices : tuple of str
        Spectral indices by their names in the catalogue, in its spelling.
    windows : tuple of int
        Odd widths in pixels; each gives ``BAND_mean3`` and ``BAND_std3`` (of a width of 3) of
        every band, over the pixels of the window that are not missing.
    roles : mapping
        The band that stands for each letter of the formulas, such as ``{"N": "B08", "R": "B04"}``.
    nodata : tuple of float
        Values that mark missing pixels though no file says so: those that nothing measured has,
        such as -9999, in any band, others, such as 0, in all bands.
    pixel_size : tuple, optional
        Width and height of the pixels that were learned from, and their unit: ``"m"``, or
        nothing for the coordinates of images without a projection. Windows on pixels of another
        size are an error.
    """

    bands: tuple[str, ...]
    indices: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    nodata: tuple[float, ...] = ()
    pixel_size: tuple[float, float, str] | None = None

    @classmethod
    def choose(
        cls,
        bands: Iterable[str],
        *,
        indices: Iterable[str] = (),
        windows: Iterable[int] = (),
        roles: Mapping[str, str] | None = None,
        platform: str = "",
    ) -> Self:
        """Return a checked recipe: indices found in any case, and the bands that they need.

        Roles that are not given follow from the names of the bands (``blue``, ``nir``), and where
        these are numbers, from the platform, or from which numbers there are.
        """
        bands = tuple(bands)
        wide = tuple(dict.fromkeys(int(width) for width in windows))
        for width in wide:
            if width < 3 or width % 2 == 0:
                raise InputError(f"A window is 3, 5, 7, ... pixels wide, but {width} was given.")
        wanted = tuple(dict.fromkeys(map(_find_index, indices)))
        if not wanted:
            return cls(bands, (), wide)
        known = _find_roles(bands, platform) | dict(roles or {})
        strange = {role: band for role, band in known.items() if band not in bands}
        if strange:
            listed = ", ".join(f"{role}={band}" for role, band in strange.items())
            raise InputError(f"{listed}: the image has no such band.\n  found: {', '.join(bands)}")
        used: dict[str, str] = {}
        for name in wanted:
            used |= _roles_of(name, known, bands)
        return cls(bands, wanted, wide, used)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the columns."""
        filtered = (
            f"{band}_{statistic}{width}"
            for width in self.windows
            for statistic in ("mean", "std")
            for band in self.bands
        )
        return (*self.bands, *self.indices, *filtered)

    @property
    def margin(self) -> int:
        """Pixels around a pixel that its features depend on."""
        return max(self.windows, default=1) // 2

    def compute(self, image: Array) -> Array:
        """Return the features of all pixels, (y, x, feature) float32.

        Parameters
        ----------
        image : (bands, y, x) array
            The bands in the order of ``bands``, NaN where missing. A feature that cannot be
            computed, as an index that is 0/0, is NaN.
        """
        image = self._without_fill(image)
        columns = [*image]
        if self.indices:
            columns += self._indices_of(image)
        for width in self.windows:
            moments = [_window_moments(band, width) for band in image]
            columns += [mean for mean, _ in moments] + [deviation for _, deviation in moments]
        return np.stack(columns, axis=-1).astype(np.float32)

    def compute_rows(self, bands: Array) -> Array:
        """Return the features of pixels without their neighbours, (n, features) float32.

        Of bands (n, bands); a recipe with windows cannot do so.
        """
        return self.compute(bands.T[:, :, None])[:, 0]

    def _without_fill(self, image: Array) -> Array:
        """Return the bands with NaN in all of them where a pixel has a value of ``nodata``."""
        for value in self.nodata:
            marked = image == np.float32(value)
            gone = marked.any(axis=0) if is_never_measured(value) else marked.all(axis=0)
            image = np.where(gone, np.float32(np.nan), image)
        return image

    def _indices_of(self, image: Array) -> list[Array]:
        import spyndex

        letters = {
            role: image[self.bands.index(band)].astype(np.float64)
            for role, band in self.roles.items()
        }
        found = []
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for name in self.indices:
                params = {
                    letter: letters[letter] if letter in letters else _constant(letter)
                    for letter in spyndex.indices[name].bands
                }
                values = np.asarray(spyndex.computeIndex(name, params), np.float32)
                found.append(np.where(np.isfinite(values), values, np.float32(np.nan)))
        return found

    def of(self, image: xr.DataArray) -> xr.DataArray:
        """Return the features of all pixels of an image, (y, x, feature), lazy if it is.

        The result does not depend on the chunks: blocks are given their neighbours' margins.
        """
        bands = self._select(image)
        data = bands.data
        if isinstance(data, da.Array):
            values: Any = with_margins(
                lambda *planes: self.compute(np.stack(planes)),
                list(data.rechunk({0: -1})),
                self.margin,
                len(self.names),
            )
        else:
            values = self.compute(data)
        coords = {name: c for name, c in image.coords.items() if "band" not in c.dims}
        return xr.DataArray(
            values,
            dims=("y", "x", "feature"),
            coords=coords | {"feature": np.array(self.names, object)},
            attrs={key: v for key, v in image.attrs.items() if key != "long_name"},
        )

    def _select(self, image: xr.DataArray) -> xr.DataArray:
        present = [str(name) for name in image["band"].values]
        absent = [name for name in self.bands if name not in present]
        if absent:
            others = image.attrs.get(OTHER_GRIDS)
            found = [*present, *([f"on other grids {others}"] if others else [])]
            raise MissingBandsError("the image", "The model", absent, found)
        self._require_pixel_size(image)
        if present == list(self.bands):
            return image
        return image.isel(band=[present.index(name) for name in self.bands])

    def _require_pixel_size(self, image: xr.DataArray) -> None:
        found = pixel_size(image) if self.windows and self.pixel_size else None
        if found is None or self.pixel_size is None or found[2] != self.pixel_size[2]:
            return
        ratios = [max(a / b, b / a) for a, b in zip(found[:2], self.pixel_size[:2], strict=True)]
        if max(ratios) > SAME_SIZE:
            name = image.attrs.get("source", "The image")
            raise SceneError(
                f"{name} has pixels of {_size_text(found)}, but the model learned from windows of "
                f"pixels of {_size_text(self.pixel_size)}, whose means and deviations are "
                f"others.\nResample the image to that size (gdalwarp -tr), or fit a model on such "
                f"images or without windows."
            )

    def gather(
        self,
        image: xr.DataArray,
        row: Array,
        column: Array,
        progress: Callable[[int, int], None] | None = None,
    ) -> Array:
        """Return the features of some pixels of an image, (n, features) float32.

        Of a lazy image only windows around the pixels are read: each block of the image gives
        the smallest window that holds its pixels and their margins, cut where these are far
        apart. Memory is that of a few blocks and the result.
        """
        bands = self._select(image)
        found = np.empty((len(row), len(self.names)), np.float32)
        windows = _windows_around(bands, row, column, self.margin)
        done = 0
        for batch in _in_batches(bands, windows):
            lazy = [bands.isel(y=rows, x=columns).data for rows, columns, _ in batch]
            parts = dask.compute(*lazy)
            for values, (rows, columns, pixels) in zip(parts, batch, strict=True):
                features = self.compute(np.asarray(values))
                found[pixels] = features[row[pixels] - rows.start, column[pixels] - columns.start]
            done += len(batch)
            if progress is not None:
                progress(done, len(windows))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe in plain values, as a model file keeps it."""
        known = {
            name: list(value) if isinstance(value, tuple) else dict(value)
            for name, value in asdict(self).items()
            if value is not None
        }
        # Older versions know nothing of it, and need not where there is nothing to know.
        return known if self.nodata else {k: v for k, v in known.items() if k != "nodata"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the recipe that :meth:`as_dict` gave."""
        return cls(
            tuple(values["bands"]),
            tuple(values.get("indices", ())),
            tuple(values.get("windows", ())),
            dict(values.get("roles", {})),
            tuple(values.get("nodata", ())),
            tuple(values["pixel_size"]) if "pixel_size" in values else None,
        )


# Pixels


def is_never_measured(value: float) -> bool:
    """Return whether nothing that is measured has a value: it marks what is missing."""
    return value in NEVER_MEASURED or abs(value) > LARGEST_MEASURED


def find_fill_values(values: Array) -> tuple[float, ...]:
    """Return values that look like marks of missing data among those of pixels, (n, bands).

    Beside those that nothing measured has, they are 0 and 65535 in all bands, and the smallest
    value if it is below 0 and in all of three bands or more: a fill value with scale and offset.

    >>> find_fill_values(np.array([[1.0, -9999.0], [0.0, 0.0], [2.0, 0.0]]))
    (-9999.0, 0.0)
    """
    values = values[np.isfinite(values).all(axis=1)]
    odd = (np.abs(values) > LARGEST_MEASURED) | np.isin(values, NEVER_MEASURED)
    found = np.unique(values[odd]).tolist()
    rest = values[~odd.any(axis=1)]
    if values.shape[1] > 1 and len(rest):
        alike = np.unique(rest[(rest == rest[:, :1]).all(axis=1), 0]).tolist()
        lowest = rest.min()
        found += [
            value
            for value in alike
            if value in (0.0, 65535.0) or (value == lowest < 0.0 and values.shape[1] > 2)
        ]
    return tuple(found)


def pixel_size(image: xr.DataArray) -> tuple[float, float, str] | None:
    """Return width and height of the pixel in the middle of an image, and their unit.

    In metres on the ground, or, without a projection, in the image's own coordinates; None if it
    has none.
    """
    from pyproj import Geod

    grid = PixelGrid.of(image)
    if not grid.placed:
        return None
    row, column = np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])
    x, y = grid.centre_of(row + grid.shape[0] // 2, column + grid.shape[1] // 2)
    if grid.crs is None:
        size, unit = np.hypot(x[1:] - x[0], y[1:] - y[0]), ""
    else:
        x, y = reproject(x, y, grid.crs, "EPSG:4326")
        if not np.isfinite([x, y]).all():
            return None
        _, _, size = Geod(ellps="WGS84").inv(x[[0, 0]], y[[0, 0]], x[1:], y[1:])
        unit = "m"
    return (float(size[0]), float(size[1]), unit) if np.all(size > 0) else None


def _size_text(size: tuple[float, float, str]) -> str:
    return f"{size[0]:.3g} x {size[1]:.3g} {size[2]}".strip()


# Windows of pixels


CELL = 128
"""Pixels are read together if they lie in one square of so many rows and columns."""


def _windows_around(image: xr.DataArray, row: Array, column: Array, margin: int) -> list[Window]:
    """Return windows (rows, columns) of an image, and the pixels in the middle of each."""
    height, width = image.sizes["y"], image.sizes["x"]
    cell = (row // CELL) * (-(-width // CELL)) + column // CELL
    order = np.argsort(cell, kind="stable")
    cuts = np.flatnonzero(np.diff(cell[order])) + 1
    windows = []
    for pixels in np.split(order, cuts) if len(order) else []:
        rows = slice(
            int(max(0, row[pixels].min() - margin)),
            int(min(height, row[pixels].max() + margin + 1)),
        )
        columns = slice(
            int(max(0, column[pixels].min() - margin)),
            int(min(width, column[pixels].max() + margin + 1)),
        )
        windows.append((rows, columns, pixels))
    return windows


def _in_batches(image: xr.DataArray, windows: list[Window]) -> Iterator[list[Window]]:
    """Yield windows to read together: those of a block of a lazy image, and of a few such blocks.

    A block is read whole for any of its pixels, and stays in memory until its batch is done.
    """
    if image.chunks is None:
        yield from ([window] for window in windows)
        return
    ends = [np.cumsum(image.chunksizes[dim]) for dim in ("y", "x")]

    def block(window: Window) -> tuple[int, ...]:
        starts = (own.start for own in window[:2])
        return tuple(
            int(np.searchsorted(end, start, side="right"))
            for end, start in zip(ends, starts, strict=True)
        )

    largest = image.sizes["band"] * math.prod(max(image.chunksizes[dim]) for dim in ("y", "x"))
    together = max(1, BATCH_VALUES // largest)
    by_block = [list(own) for _, own in groupby(sorted(windows, key=block), key=block)]
    for first in range(0, len(by_block), together):
        yield list(chain.from_iterable(by_block[first : first + together]))


def _window_moments(image: Array, width: int) -> tuple[Array, Array]:
    """Return mean and standard deviation in windows; missing where the pixel itself is."""
    present = np.isfinite(image)
    count = np.maximum(window_sums(present.astype(np.float64), width), 1.0)
    values = np.where(present, image, 0.0).astype(np.float64)
    mean = window_sums(values, width) / count
    square = window_sums(values**2, width) / count
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    missing = np.where(present, 0.0, np.nan)
    return mean + missing, deviation + missing


# Indices and the bands they need


def _find_index(name: str) -> str:
    import spyndex

    spelled = {known.lower(): known for known in spyndex.indices}
    found = spelled.get(name.strip().lower())
    if found is None:
        near = sorted(k for low, k in spelled.items() if name.strip().lower()[:4] in low)[:8]
        hint = f" Similar names: {', '.join(near)}." if near else ""
        raise InputError(
            f"There is no spectral index {name!r} in the catalogue of spyndex.{hint} "
            f"NDVI, NDWI, MNDWI, NDSI, NBR, EVI and SAVI are some of the {len(spelled)} it has."
        )
    return found


def _roles_of(index: str, known: Mapping[str, str], bands: tuple[str, ...]) -> dict[str, str]:
    """Return the bands that an index needs, by their letters; constants are not bands."""
    import spyndex

    # Sensors with one near infrared band have it as either of the two letters.
    other = {"N": "N2", "N2": "N"}
    needed = [letter for letter in spyndex.indices[index].bands if letter in spyndex.bands]
    roles = {}
    for letter in needed:
        band = known.get(letter) or known.get(other.get(letter, ""))
        if band is None:
            what = spyndex.bands[letter].long_name
            raise InputError(
                f"{index} needs the band {letter} ({what}), but which one that is cannot be told "
                f"from the names of the bands.\n  found: {', '.join(bands)}\n"
                f"Say which it is: --role {letter}=BAND (in Python roles={{{letter!r}: ...}})."
            )
        roles[letter] = band
    return roles


def _constant(letter: str) -> float:
    import spyndex

    value = spyndex.constants[letter].default if letter in spyndex.constants else None
    if value is None:
        raise InputError(
            f"The index needs {letter}, which is neither a band nor a constant with a default."
        )
    return float(value)


def _find_roles(bands: tuple[str, ...], platform: str) -> dict[str, str]:
    """Return the bands that stand for letters of formulas, as far as their names tell."""
    import spyndex

    roles = {}
    numbers: dict[str, str] = {}
    for band in bands:
        plain = re.sub("[-_ ]", "", band.lower())
        if plain in COMMON_NAMES:
            roles[COMMON_NAMES[plain]] = band
        match = re.search(r"(?:^|_)B0?(\d{1,2}A?)$", band.upper())
        if match:
            numbers[f"B{match[1]}"] = band
    sensor = _sensor(platform, bands, numbers)
    if sensor is None:
        return roles
    for letter in spyndex.bands:
        on_board = getattr(spyndex.bands[letter], sensor, None)
        if on_board is not None and on_board.band in numbers:
            roles.setdefault(letter, numbers[on_board.band])
    return roles


def _sensor(platform: str, bands: tuple[str, ...], numbers: Mapping[str, str]) -> str | None:
    """Return whose numbers the bands have: as the platform says, or as only one sensor can."""
    said = re.sub("[-_ ]", "", platform.lower())
    if said.startswith("sentinel2"):
        return SENTINEL2
    if said.startswith("landsat"):
        return LANDSAT89 if said.endswith(("8", "9")) else LANDSAT457
    if "B8A" in numbers or any(re.fullmatch(r"B0\d", band) for band in bands):
        return SENTINEL2
    if any(band.startswith("SR_B") for band in bands):
        return LANDSAT89 if "B6" in numbers else LANDSAT457
    return None
