"""Single images of named bands, whatever they come in: lazy, in physical values, NaN if missing.

An image is a DataArray (band, y, x) in single precision. Scale and offset tags are applied, so
that the same reflectance is the same number in every file; a fill value is NaN. Its bands are
known by the names in its coordinate ``band``; without names they keep their numbers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import rasterio
import rioxarray
import xarray as xr
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window

from undulatus.errors import NotRealNumbersError, SceneError, unreadable
from undulatus.scenes.files import NETCDF, landsat, sentinel2
from undulatus.scenes.files.netcdf import open_netcdf, valid_limits
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.pixel_grid import PixelGrid, placed_by, quietly_opened
from undulatus.scenes.scene import require_directions

Array = npt.NDArray[Any]

RASTERS = (".tif", ".tiff", ".gtif", ".gtiff", ".vrt", ".jp2", ".img")
"""Suffixes that only images have; files of other names are images if GDAL opens them."""

OTHER_READERS = ("netCDF", "HDF5", "HDF5Image", "Zarr", "GRIB", "MSGN")
"""GDAL's drivers of formats that we read ourselves."""

RASTER_BLOCK = 512
"""Rows and columns of an image that are read at a time, at least; tiles are kept whole."""

BAND_DIMS = ("band", "bands", "feature", "variable")
"""Names of the dimension of an image that holds all its bands in one array."""

IMAGE_DIMS = {"latitude": "y", "longitude": "x", "lat": "y", "lon": "x"}
"""Other names of the dimensions y and x, as files in degrees have them."""

BASELINE_TAGS = ("PROCESSING_BASELINE", "processing_baseline", "s2:processing_baseline")
"""Tags in which files derived from Sentinel-2 products say how they were processed."""

FIRST_WITH_OFFSET = 4.0
"""The first baseline whose numbers have an offset."""

BASELINE = "processing_baseline"
"""The attribute of an image that says so, if it is known and its offset is not applied."""

ALPHA = "alpha_band"
"""The attribute of an image with the name of the band that marked missing pixels, if one did."""

OPAQUE = 0.9
"""Share of values of an alpha band above zero that are its largest possible one, at least."""

OTHER_GRIDS = "bands_on_other_grids"
"""The attribute of an image that lists the bands of its dataset with dimensions of their own."""


def open_image(path: str | os.PathLike[str]) -> xr.DataArray:
    """Open an image: any that GDAL reads, netCDF, Zarr, Sentinel-2 SAFE or a Landsat folder.

    Parameters
    ----------
    path : path
        A file or folder. Bands of a GeoTIFF have the names in their descriptions; those of
        netCDF and Zarr are its variables; those of SAFE and Landsat folders the producers' names.
        What a file marks as missing is NaN: by its nodata, its mask (inside it, or a ``.msk``
        beside it), an alpha band, and the valid range of a variable.

    Returns
    -------
    DataArray
        (band, y, x) float32, lazy. The attribute ``source`` is the path, and
        ``processing_baseline`` that of Sentinel-2 where its offset could not be applied.
    """
    path = Path(path)
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    folder = find_product_folder(path)
    if folder is not None:
        image = folder.open_folder(path)
    elif path.suffix in (".zarr", *NETCDF):
        image = as_image(_open_variables(path))
    elif is_raster(path):
        image = open_raster(path)
    else:
        raise SceneError(
            f"{path} has a name of no known format, and GDAL does not open it: images are read "
            f"from what GDAL opens ({', '.join(RASTERS)}, ENVI with its .hdr and others), "
            f"{', '.join(('.zarr', *NETCDF))}, Sentinel-2 .SAFE folders and Landsat folders with "
            f"their _MTL.txt."
        )
    return image.assign_attrs(source=str(path.absolute()))


def find_product_folder(path: Path) -> Any:
    """Return the module that opens a folder as a space agency delivers it, or None."""
    return next((kind for kind in (sentinel2, landsat) if kind.recognises(path)), None)


def is_raster(path: Path) -> bool:
    """Return whether a path is an image for GDAL: by its suffix, or because GDAL opens it."""
    suffix = path.suffix.lower()
    if suffix in RASTERS or suffix in (*NETCDF, ".zarr") or not path.exists():
        return suffix in RASTERS
    try:
        with quietly_opened(path) as file:
            return file.count > 0 and file.driver not in OTHER_READERS
    except rasterio.errors.RasterioError:
        return False


def has_mask(file: Any) -> bool:
    """Return whether an open file has a mask of its own, beside nodata and alpha."""
    other = {MaskFlags.all_valid, MaskFlags.nodata, MaskFlags.alpha}
    return any(not other & set(flags) for flags in file.mask_flag_enums)


def alpha_band(file: Any) -> int | None:
    """Return the number of the band of an open file that marks missing pixels by 0, or None.

    GDAL calls the last of four bands of bytes alpha whatever it holds, near infrared too. So it
    must have no name of its own, and values of a mask: nothing, or nearly all full.
    """
    number = next((i + 1 for i, c in enumerate(file.colorinterp) if c is ColorInterp.alpha), None)
    if number is None or (file.descriptions[number - 1] or "alpha").lower() != "alpha":
        return None
    sample = np.concatenate([file.read(number, window=window).ravel() for window in _few(file)])
    shown = sample[sample > 0]
    full = np.iinfo(sample.dtype).max if sample.dtype.kind in "iu" else shown.max(initial=0)
    return number if np.count_nonzero(shown == full) >= OPAQUE * len(shown) else None


def _few(file: Any) -> Iterator[Window]:
    """Yield 16 windows all over an image, or one of all of a small one."""
    height, width = min(64, file.height), min(64, file.width)
    tops, lefts = (
        sorted({int(place * (size - side)) for place in (0.1, 0.4, 0.6, 0.9)})
        for size, side in ((file.height, height), (file.width, width))
    )
    yield from (Window(left, top, width, height) for top in tops for left in lefts)


def open_raster(path: Path) -> xr.DataArray:
    """Open a file that rasterio reads, with scales, offsets and what marks missing applied."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            # Scales that differ from band to band are applied below.
            warnings.filterwarnings("ignore", "(Scales|Offsets) differ across bands")
            with rasterio.open(path) as file:
                scales, offsets, marks = file.scales, file.offsets, file.nodatavals
                tags = file.tags()
                grid = PixelGrid.of_raster(file, str(path))
                chunks = {"band": -1, **_whole_tiles(file)}
                alpha, masked = alpha_band(file), has_mask(file)
            opened = rioxarray.open_rasterio(path, chunks=chunks, masked=masked)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not isinstance(opened, xr.DataArray):
        raise SceneError(
            f"{path} holds several images of different sizes. Give a file of one of them, as "
            f"gdal_translate writes it (in Python, open it with rioxarray)."
        )
    grid.require_regular()
    image = placed_by(grid, _in_physical_values(opened, scales, offsets, marks, alpha))
    scaled = any(scale != 1.0 for scale in scales) or any(offset != 0.0 for offset in offsets)
    baseline = next((tags[name] for name in BASELINE_TAGS if name in tags), None)
    if baseline is not None and not scaled:
        image.attrs[BASELINE] = str(baseline)
    return image


def _whole_tiles(file: Any) -> dict[str, int]:
    """Return rows and columns to read at a time: a tile is decoded whole for any of its pixels."""
    tile = file.block_shapes[0] if file.block_shapes else (1, 1)
    # Strips are as wide as the image: whole ones would take too much memory.
    rows, columns = tile if tile[1] < file.width else (1, 1)
    return {"y": -(-RASTER_BLOCK // rows) * rows, "x": -(-RASTER_BLOCK // columns) * columns}


def _in_physical_values(
    image: xr.DataArray, scales: Any, offsets: Any, marks: Any, alpha: int | None = None
) -> xr.DataArray:
    """Return scale * value + offset of each band in float32, NaN where a band has its nodata.

    Nor has a value that is not in the valid range of the variable, or a pixel where band number
    ``alpha``, which is left out then, is 0.
    """
    if image.dtype.kind not in "fiub":
        raise NotRealNumbersError(image.name or "The image", image.dtype)
    low, high = valid_limits(image) or (-np.inf, np.inf)
    shape = (-1, *([1] * (image.ndim - 1)))
    scale, offset = (np.asarray(values, np.float64).reshape(shape) for values in (scales, offsets))
    mark = np.array([np.nan if m is None else m for m in marks], np.float64).reshape(shape)

    def convert(values: Array) -> Array:
        converted = np.empty(values.shape, np.float32)
        # Band by band, as the values are in double precision on the way.
        for band, own in enumerate(values):
            # A value beyond single precision is infinite there, and missing.
            with np.errstate(over="ignore"):
                converted[band] = own * scale[band] + offset[band]
            converted[band][(own == mark[band]) | (own < low) | (own > high)] = np.nan
        if alpha is not None:
            converted[:, values[alpha - 1] == 0] = np.nan
        return converted

    dropped = ("_FillValue", "nodata", "missing_value", "scale_factor", "add_offset", "scales",
               "offsets", "valid_range", "valid_min", "valid_max")  # fmt: skip
    attrs = {key: value for key, value in image.attrs.items() if key not in dropped}
    if image.chunks is None:
        values: Any = convert(image.values)
    else:
        whole = image.chunk({image.dims[0]: -1}).data
        meta = np.empty((0,) * image.ndim, np.float32)
        values = da.map_blocks(convert, whole, dtype=np.float32, meta=meta)
    converted = image.copy(data=values)
    converted.attrs, converted.encoding = attrs, {}
    return converted if alpha is None else _without_band(converted, alpha)


def _without_band(image: xr.DataArray, alpha: int) -> xr.DataArray:
    names = with_band_names(image)["band"].values.tolist()
    kept = [i for i in range(len(names)) if i != alpha - 1]
    left = image.isel({image.dims[0]: kept})
    described = image.attrs.get("long_name")
    if isinstance(described, tuple):
        left.attrs["long_name"] = tuple(described[i] for i in kept)
    return left.assign_attrs({ALPHA: names[alpha - 1]})


def _open_variables(path: Path) -> xr.Dataset:
    if path.suffix == ".zarr":
        opened = open_zarr(path, chunks={}, decode_coords="all")
        # A Zarr group has no order of its own: that of a folder differs between machines.
        return opened[sorted(opened.data_vars)]  # type: ignore[type-var]
    return open_netcdf(path, chunks={}, decode_coords="all")


# What is already open


def as_image(source: xr.Dataset | xr.DataArray) -> xr.DataArray:
    """Return a Dataset of bands, or an array that holds them, as an image (band, y, x).

    Takes what rioxarray, odc-stac and stackstac give: variables or a dimension of bands,
    dimensions called y and x or latitude and longitude (in WGS 84, unless another reference is
    given), at most one time. Fill values, scales
    and offsets that are still attributes are applied.
    """
    array = with_image_dims(_stacked(source))
    names = [dim for dim in BAND_DIMS if dim in array.dims]
    if len(names) != 1 or not {"y", "x"} <= set(array.dims):
        raise SceneError(
            f"An image has the dimensions y and x, and its bands along one named "
            f"{', '.join(map(repr, BAND_DIMS))} or in variables, but this has {array.dims}: "
            f"rename them (ncrename -d of a netCDF file; in Python image.rename(...))."
        )
    if array.sizes.get("time", 1) > 1:
        raise SceneError(
            f"An image has one time, but this has {array.sizes['time']:,}. Give a file of one (in "
            f"Python image.isel(time=0))."
        )
    array = array.squeeze("time") if "time" in array.dims else array
    extra = set(array.dims) - {names[0], "y", "x"}
    if extra:
        raise SceneError(
            f"An image has no dimension {', '.join(map(repr, sorted(map(str, extra))))}."
        )
    array = array.rename({names[0]: "band"}) if names[0] != "band" else array
    return _decoded(array.transpose("band", "y", "x"))


def with_image_dims(array: xr.DataArray) -> xr.DataArray:
    """Return an array whose latitudes are y and longitudes x, unless their attributes object."""
    require_directions(array.coords)
    names = {dim: IMAGE_DIMS[str(dim)] for dim in array.dims if str(dim) in IMAGE_DIMS}
    in_degrees = len(names) == 2 and set(names) <= set(array.coords) and array.rio.crs is None
    renamed = array.rename(names)
    return renamed.rio.write_crs("EPSG:4326") if in_degrees else renamed


def each_time(source: xr.Dataset | xr.DataArray) -> Iterator[xr.DataArray]:
    """Yield the images of a source with several times, or the one it is."""
    if source.sizes.get("time", 1) == 1:
        yield as_image(source)
        return
    for index in range(source.sizes["time"]):
        yield as_image(source.isel(time=index))


def band_names(image: xr.DataArray) -> list[str] | None:
    """Return the names of the bands along an image's last or ``band`` dimension, if it has any."""
    dim = next(dim for dim in BAND_DIMS if dim in image.dims)
    if dim in image.coords and image[dim].dtype.kind in "UOTS":
        names = image[dim].values.tolist()
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    # Where rioxarray puts the descriptions of bands.
    descriptions = image.attrs.get("long_name")
    if isinstance(descriptions, str):
        descriptions = (descriptions,)
    if isinstance(descriptions, (tuple, list)) and len(descriptions) == image.sizes[dim]:
        return [str(name) if name else f"band_{i}" for i, name in enumerate(descriptions, 1)]
    return None


def with_band_names(image: xr.DataArray) -> xr.DataArray:
    """Return an image whose bands have names: their own, or ``band_1``, ``band_2`` and so on."""
    names = band_names(image) or [f"band_{i}" for i in range(1, image.sizes["band"] + 1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SceneError(
            f"The image has several bands with the same name ({', '.join(twice)}).\n"
            f"  found: {', '.join(names)}\nGive each band its own name "
            f"(the band descriptions of a GeoTIFF; in Python "
            f'image.assign_coords(band=["...", ...])).'
        )
    kept = {key: value for key, value in image.attrs.items() if key != "long_name"}
    named = image.assign_coords(band=np.array(names, object))
    named.attrs = kept
    return named


def _stacked(source: xr.Dataset | xr.DataArray) -> xr.DataArray:
    if isinstance(source, xr.DataArray):
        return source
    arrays = {
        name: array
        for name, array in source.data_vars.items()
        if {"y", "x"} <= {IMAGE_DIMS.get(str(dim), dim) for dim in array.dims}
    }
    if not arrays:
        raise SceneError(
            f"The dataset holds no image (y, x): its variables are "
            f"{', '.join(f'{name} {array.dims}' for name, array in source.data_vars.items())}."
        )
    if len(arrays) == 1:
        (only,) = arrays.values()
        if set(BAND_DIMS) & set(only.dims):
            return only
    others = [
        f"{name} ({' x '.join(str(size) for size in array.shape)} pixels)"
        for name, array in source.data_vars.items()
        # Bounds of coordinates are no bands.
        if name not in arrays and array.ndim > 1 and min(array.shape) > 2
    ]
    bands = [_decoded(array.expand_dims("band")) for array in arrays.values()]
    joined = xr.concat(
        bands, "band", coords="minimal", compat="override", join="exact",
        combine_attrs="drop_conflicts",
    )  # fmt: skip
    attrs = {key: source.attrs[key] for key in (BASELINE, "platform_name") if key in source.attrs}
    if others:
        attrs[OTHER_GRIDS] = ", ".join(others)
    return joined.assign_coords(band=_as_objects(arrays)).assign_attrs(attrs)


def _as_objects(names: Any) -> Array:
    return np.array([str(name) for name in names], object)


def _decoded(array: xr.DataArray) -> xr.DataArray:
    marks = [array.attrs.get(name) for name in ("_FillValue", "missing_value", "nodata")]
    mark = next((value for value in marks if value is not None), None)
    scale, offset = array.attrs.get("scale_factor", 1.0), array.attrs.get("add_offset", 0.0)
    count = array.sizes["band"]
    return _in_physical_values(array, [scale] * count, [offset] * count, [mark] * count)


# The offset of Sentinel-2's numbers


def has_offset(baseline: str) -> bool:
    """Return whether numbers of a processing baseline of Sentinel-2 have an offset of -1000."""
    try:
        return float(baseline) >= FIRST_WITH_OFFSET
    except ValueError:
        raise SceneError(
            f"The image says that its processing baseline is {baseline!r}, which is no number "
            f"such as 05.09."
        ) from None


def require_same_offset(image: xr.DataArray, fitted_on: str | None) -> None:
    """Raise if an image's numbers have another offset than those a model was fitted on.

    Products in their SAFE folders are on one scale, whatever their baseline: only images whose
    offset could not be applied say their baseline.
    """
    found = image.attrs.get(BASELINE)
    if fitted_on is None or found is None or has_offset(found) == has_offset(fitted_on):
        return
    raise SceneError(
        f"The image is of Sentinel-2's processing baseline {found}, but the model was fitted on "
        f"{fitted_on}: from 04.00 on, numbers are larger by 1000.\n"
        f"Give reflectances: open the SAFE folder itself, or set scale and offset of the bands "
        f"(gdal_edit.py -scale 0.0001 -offset -0.1, or -offset 0 before 04.00) in both."
    )
