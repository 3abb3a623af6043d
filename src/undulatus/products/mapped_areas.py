"""How much of images is mapped as each class: from maps, or by classifying them block by block."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import rasterio
import xarray as xr
from rasterio.errors import NotGeoreferencedWarning

from undulatus.errors import SceneError
from undulatus.products.layers import CLASS, MASK
from undulatus.products.legend import CLEAR, CLOUD, Legend, map_classes
from undulatus.products.maps import map_scene
from undulatus.scenes.files import NETCDF
from undulatus.scenes.files.opening import open_map, open_raster_map
from undulatus.scenes.files.writing import GEOTIFF, computing_in_threads
from undulatus.scenes.pixel_areas import PixelAreas
from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]

SQUARE_METRES = 10_000.0
"""Of a hectare."""

HECTARES, PIXELS = "ha", "pixels"
"""Units of areas."""

LEAST_AGREEMENT = 0.99
"""Of a map with what the model says of labelled pixels, if the model made the map."""


@dataclass(frozen=True)
class MappedAreas:
    """The area that is mapped as each class, (k,), in a unit, and what to mind about it."""

    areas: Array
    unit: str
    notes: tuple[str, ...] = ()
    of_pixels: tuple[PixelAreas, ...] = ()
    """The areas of the pixels of each map, if they have any."""


@dataclass(frozen=True)
class ClassMap:
    """The class of each pixel as its place in a model's classes, NaN for none, (y, x), lazy."""

    places: xr.DataArray
    name: str

    def sum(
        self,
        classes: int,
        areas: PixelAreas | None,
        progress: Callable[[float, float], None] | None = None,
    ) -> Array:
        """Return the area of each class, and last that of pixels without one, (k + 1,).

        It is in hectares, block by block; without areas of pixels it is their number. Pixels
        without an area are counted.
        """
        blocks = da.asarray(self.places.data)

        def add(block: Array, block_info: Any) -> Array:
            place = np.where(np.isfinite(block), block, classes + 1).astype(np.intp).ravel()
            (top, _), (left, _) = block_info[0]["array-location"]
            found: Array
            if areas is None or areas.everywhere is not None:
                size = 1.0 if areas is None else float(areas.everywhere or 0.0) / SQUARE_METRES
                found = np.bincount(place, minlength=classes + 2) * size
            else:
                each = areas.block(top, left, block.shape).ravel() / SQUARE_METRES
                place = np.where(np.isnan(each) & (place < classes), classes, place)
                each = np.where(np.isnan(each), 1.0, each)
                found = np.bincount(place, weights=each, minlength=classes + 2)
            return found[None, None, : classes + 1]

        summed = da.map_blocks(
            add,
            blocks,
            dtype=np.float64,
            new_axis=2,
            chunks=(*((1,) * n for n in blocks.numblocks), (classes + 1,)),
            meta=np.empty((0, 0, 0), np.float64),
        )
        with computing_in_threads(progress):
            return np.asarray(summed.sum(axis=(0, 1)).compute())

    def require_made_by(self, image: xr.DataArray, row: Array, column: Array, said: Array) -> None:
        """Raise if the map is of another place, or differs from what a model says of pixels."""
        own, its = PixelGrid.of(self.places), PixelGrid.of(image)
        pixel = np.ptp(np.array(its.bounds).reshape(2, 2), axis=0).max() / max(its.shape)
        if own.shape != its.shape or not np.allclose(
            own.bounds, its.bounds, rtol=0, atol=pixel / 10
        ):
            raise SceneError(
                f"{self.name} is not a map of this image: it has {own.shape[0]} x {own.shape[1]} "
                f"pixels at {own.bounds_text()}, the image has {its.shape[0]} x {its.shape[1]} at "
                f"{its.bounds_text()}. Give the map of this image, or leave it out (--map)."
            )
        if own.transform != its.transform or not len(row):
            return
        mapped = self.places.data.vindex[row, column].compute()
        known = np.isfinite(mapped)
        agreeing = float(np.mean(mapped[known] == said[known])) if known.any() else 1.0
        if agreeing < LEAST_AGREEMENT:
            raise SceneError(
                f"{self.name} is not a map of this image by this model: they agree in "
                f"{agreeing:.1%} of {len(row):,} labelled pixels. Map the image again (undulatus "
                f"map), or leave the map out (--map), and the image is classified."
            )


def classify_image(model: Any, image: xr.DataArray, name: str) -> ClassMap:
    """Return the map that a model makes of an image, still to be computed."""
    legend = Legend.of(model)
    lazy = image if image.chunks is not None else image.chunk()
    return ClassMap(
        _places(map_scene(model, lazy, legend=legend, allow_outside=True), legend), name
    )


def open_class_map(path: Path, model: Any) -> ClassMap:
    """Open a map that ``undulatus map`` wrote with the classes of a model."""
    return ClassMap(_places(_open_layers(path), Legend.of(model), str(path)), str(path))


def open_own_map(path: Path) -> tuple[ClassMap, Legend]:
    """Open a map that ``undulatus map`` wrote, and its own classes; a mask has clear and cloud."""
    layers = _open_layers(path)
    legend = Legend((CLEAR, CLOUD), cloud=CLOUD)
    if CLASS in layers:
        attrs = dict(layers[CLASS].attrs)
        if isinstance(attrs.get("flag_values"), str):
            attrs["flag_values"] = np.array(attrs["flag_values"].split(), float).astype(int)
        classes = map_classes(attrs, str(path))
        codes = tuple(one.code for one in classes)
        legend = Legend(codes, names=tuple(one.name for one in classes), codes=codes)
    return ClassMap(_places(layers, legend, str(path)), str(path)), legend


def _open_layers(path: Path) -> xr.Dataset:
    if path.suffix.lower() in GEOTIFF:
        layers = open_raster_map(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path) as file:
                tags = {name: file.tags(i) for i, name in enumerate(file.descriptions, 1)}
        for name in set(layers.data_vars) & {CLASS, MASK}:
            layers[name].attrs = tags[str(name)]
    elif path.suffix == ".zarr" or path.suffix in NETCDF:
        layers = open_map(path)
    else:
        raise SceneError(
            f"{path} is no map: give the .tif, .nc or .zarr that undulatus map wrote."
        )
    if not {CLASS, MASK} & set(layers.data_vars):
        raise SceneError(
            f"{path} is no map of classes: it has {', '.join(map(str, layers.data_vars))}. Give "
            f"the file that undulatus map names first, without _layers."
        )
    return layers


def _places(layers: xr.Dataset, legend: Legend, name: str = "the map") -> xr.DataArray:
    """Return the place of each pixel's class in the legend, NaN for none."""
    codes = layers[CLASS if CLASS in layers else MASK].squeeze(drop=True)
    meanings = str(codes.attrs.get("flag_meanings", "")).split()
    listed = codes.attrs.get("flag_values", "")
    values = listed.split() if isinstance(listed, str) else np.atleast_1d(listed).tolist()
    tokens = legend.flag_meanings.split()
    table = np.full(256, np.nan, np.float32)
    for value, meaning in zip(values, meanings, strict=False):
        place = tokens.index(meaning) if meaning in tokens else _place_in_mask(meaning, legend)
        if place is None and meaning != "no_data":
            raise SceneError(
                f"{name} has the classes {', '.join(meanings)}, but those of the model are "
                f"{', '.join(tokens)}. Give a map by this model."
            )
        table[int(float(value))] = np.nan if place is None else place

    def look_up(block: Array) -> Array:
        known = np.isfinite(block)
        return np.where(known, table[np.where(known, block, 0).astype(np.uint8)], np.nan)

    places = da.map_blocks(look_up, da.asarray(codes.data), dtype=np.float32)
    return codes.copy(data=places).transpose("y", "x")


def _place_in_mask(meaning: str, legend: Legend) -> int | None:
    """Return the place of a meaning of a cloud mask, such as ``clear_sky_over_land``."""
    if legend.cloud_index is None or len(legend.classes) != 2 or meaning == "no_data":
        return None
    cloudy = meaning.startswith("cloud") and meaning != "cloud_free"
    return legend.cloud_index if cloudy else 1 - legend.cloud_index


# Areas


def mapped_areas(
    maps: list[ClassMap], classes: int, progress: Callable[[float, float], None] | None = None
) -> MappedAreas:
    """Return the area that maps have of each class: in hectares, or in pixels if they must be.

    Hectares are of the ellipsoid, pixel by pixel, unless the projection keeps areas.
    """
    found = [PixelAreas.of(PixelGrid.of(one.places)) for one in maps]
    known = tuple(areas for areas in found if areas is not None)
    notes = []
    if len(known) < len(maps):
        known = ()
        notes.append("Areas are in pixels, since the image has no georeference.")
    elif any(areas.everywhere is None for areas in known):
        notes.append(
            "Areas are those of each pixel on the Earth's ellipsoid: its pixels differ in area, "
            "or have another than in the coordinates of the image."
        )
    if len(maps) > 1:
        notes.append("Areas are sums over all images: what several of them show counts again.")
    total = np.sum(
        [one.sum(classes, areas, progress)
         for one, areas in zip(maps, known or [None] * len(maps), strict=True)], axis=0,
    )  # fmt: skip
    if total[-1]:
        notes.append(
            f"{total[-1]:,.0f} mapped pixels reach over the edge of the Earth, or of what the "
            f"projection shows, and have no area."
        )
    unit = HECTARES if known else PIXELS
    return MappedAreas(total[:-1], unit, tuple(notes), known)
