"""Images to cloud-optimised GeoTIFF, HFA and ENVI, a few chunks at a time, and read back.

GDAL makes such a file only from another that is whole. So some chunks of a row are computed after
the others, by all workers, and one writer puts them into plain tiles beside the output. From
these tiles the file is made, and compared with what was computed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.shutil
import xarray as xr
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from undulatus._files import (
    WritingError,
    as_reading_errors,
    as_writing_errors,
    remove,
    require_absent,
    require_space,
)
from undulatus._system import count_cores
from undulatus.errors import SceneError
from undulatus.scenes.files.class_table import (
    auxiliary_xml,
    channels,
    class_rows,
    qgis_style,
)
from undulatus.scenes.files.writing import Progress, computing_in_threads
from undulatus.scenes.pixel_grid import PixelGrid

TILE = 512
"""Pixels along a side of a tile."""

OVERVIEWS_SHARE = 0.1
"""Of the whole time, as progress has it: tiles are compressed and checked after the last pixel."""

ROW_FACTOR, COLUMN_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Large odd numbers, so that factors of neighbouring pixels have nothing in common."""

GDAL_ERRORS = (RasterioError, CPLE_BaseError)
"""What rasterio raises, besides errors of the system."""


FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(
        (".tif", ".tiff", ".gtif"),
        (
            "COG",
            {
                "COMPRESS": "DEFLATE",
                "LEVEL": 1,
                "PREDICTOR": "YES",
                "BLOCKSIZE": TILE,
                "OVERVIEW_RESAMPLING": "NEAREST",
                "BIGTIFF": "IF_SAFER",
                "NUM_THREADS": "ALL_CPUS",
            },
        ),
    ),
    ".img": ("HFA", {}),
    # NAME.dat.hdr, so that no header of another file is replaced.
    ".dat": ("ENVI", {"SUFFIX": "ADD"}),
}
"""GDAL's driver and its options by the suffix of an output."""

LAYERS = "layers"
"""The word in the name of the file of floats, beside one of codes."""

MAP_FILES = (LAYERS, "quality_flag", "cloud_mask")
"""Words in the names of the files that a map may have beside its first."""

_AUXILIARY = (".aux.xml", ".hdr", ".ovr", ".msk")
"""What GDAL adds to the name of a file for others that belong to it."""


def geotiff_paths(dataset: xr.Dataset, path: Path) -> tuple[Path, ...]:
    """Return the files that a dataset is written to, since all bands of one have one type.

    Codes that have colours (the attribute ``flag_colors``) are bytes in the first file, with a
    colour table; floats are in ``NAME_layers.tif``, and bits (``flag_masks``) and further codes
    in a file for each variable, ``NAME_VARIABLE.tif``. What is alone is in the first file.
    """
    words = [group.word for group in _groups(dataset)]
    return (path, *(file_beside(path, word) for word in words[1:]))


def file_beside(path: Path, word: str) -> Path:
    """Return the file, beside the first of a map, with other layers."""
    return path.with_name(f"{path.stem}_{word}{path.suffix}")


def style_path(path: Path) -> Path:
    """Return the file with the style that QGIS shows the codes in."""
    return path.with_suffix(".qml")


def files_of_map(path: Path) -> tuple[Path, ...]:
    """Return all files that a map may have, the first of them first, but those of GDAL's own."""
    return (path, *(file_beside(path, word) for word in MAP_FILES), style_path(path))


def companions(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return what was written beside the files of a map for GIS programs to read with them."""
    possible = [style_path(paths[0])]
    possible += [path.with_name(path.name + ending) for path in paths for ending in _AUXILIARY]
    return tuple(path for path in possible if path.exists())


def require_new_map(dataset: xr.Dataset, path: Path) -> None:
    """Raise an error if a file of a map exists: GIS programs and pages would mix two maps."""
    *others, style = files_of_map(path)
    for each in others:
        require_absent(each)
    coded = next((group.names[0] for group in _groups(dataset) if group.palette), None)
    # The same style may belong to x.tif and x.img.
    own = None if coded is None else qgis_style(dataset[coded])
    if own and style.exists() and style.read_text("utf-8", errors="replace") != own:
        require_absent(style)


def write_geotiff(
    dataset: xr.Dataset, paths: tuple[Path, ...], unfinished: list[Path], progress: Progress
) -> None:
    """Write the variables of a dataset as bands of cloud-optimised GeoTIFFs, HFA or ENVI.

    Bands are float32, with NaN for what is missing: fill values of codes become NaN too. Codes
    with colours (``flag_colors``) are bytes with a colour table, whose fill value is their
    nodata, and with their names in ``.aux.xml`` and ``.qml``; bits (``flag_masks``) keep
    their type. A band's description is the variable's name, and its tags are the attributes:
    units, long name, values and meanings of flags. A variable with one dimension more, whose
    coordinate has names, gives a band for each of them, ``VARIABLE_NAME``. North is up and west is
    left, whatever the order of the coordinates ``y`` and ``x``, which must be regular; a rotated
    image keeps its transform. Without places, or without a projection in ``spatial_ref``, the file
    has none either. Of the other coordinates only ``time`` is kept, as a tag. Overviews hold
    nearest pixels, since codes have no mean. Memory holds the results of two chunks for each
    worker, and GDAL's cache, a twentieth of the machine's memory unless ``GDAL_CACHEMAX`` is set.

    Parameters
    ----------
    dataset : Dataset
        Variables (y, x), or (time, y, x) with one time: integers of up to 16 bits, or floats,
        which are rounded to single precision.
    paths : tuple of paths
        As :func:`geotiff_paths` names the outputs.
    unfinished : list of paths
        The names to write to.
    progress : callable
        Called with the number of pixels that are computed, and of all, with the overviews' share.
    """
    image = _as_image(dataset, paths[0])
    profile = {
        "driver": "GTiff",
        "height": image.sizes["y"],
        "width": image.sizes["x"],
        "tiled": True,
        "blockxsize": TILE,
        "blockysize": TILE,
        "BIGTIFF": "IF_SAFER",
        **_georeference(image, paths[0]),
    }
    files = _files(image, unfinished)
    pixels = image.sizes["y"] * image.sizes["x"]
    # The plain tiles, the files, and their overviews, which are a third of them.
    require_space(paths[0], sum(file.pixel_bytes for file in files) * pixels * 7 // 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            for file in files:
                remove(file.scratch)
                file.scratch.mkdir()
            checks = _write_tiles(image, files, profile, progress)
            for path, file, expected in zip(paths, files, checks, strict=True):
                made = file.scratch / "made" / path.name
                made.parent.mkdir()
                _make_final(file.tiles, made, expected)
                made.rename(file.unfinished)
            if files[0].palette:
                style = files[0].scratch / "made" / style_path(paths[0]).name
                style.write_text(qgis_style(image[files[0].bands[0]]), encoding="utf-8")
            _remove_earlier(paths)
            for path, file in zip(paths, files, strict=True):
                for beside in list((file.scratch / "made").iterdir()):
                    beside.replace(path.with_name(beside.name))
        finally:
            for file in files:
                remove(file.scratch)


def _remove_earlier(paths: tuple[Path, ...]) -> None:
    """Remove what there is of an earlier map, now that the new one is made but for its names."""
    if len(paths) > 1:
        # Where the first file is, the others are those of the same map.
        remove(paths[0])
    *others, style = files_of_map(paths[0])[1:]
    for path in (*others, style):
        remove(path)
    # GDAL would read these with the new files.
    for path in (*paths, *others):
        for ending in _AUXILIARY:
            remove(path.with_name(path.name + ending))


@dataclass(frozen=True)
class _Group:
    """Variables that can be bands of one file, for they have one type."""

    word: str
    """What the name of the file has, unless it is the first."""
    names: tuple[str, ...]
    dtype: str = "float32"
    palette: bool = False


def _groups(dataset: xr.Dataset) -> list[_Group]:
    """Return the variables by files: codes with colours, floats and all else, then bits."""
    floats, singles = [], []
    for name, array in dataset.data_vars.items():
        coded = "flag_colors" in array.attrs and array.dtype == np.uint8
        bits = "flag_masks" in array.attrs and array.dtype in (np.uint8, np.uint16)
        if coded or bits:
            singles.append(_Group(str(name), (str(name),), str(array.dtype), coded))
        else:
            floats.append(str(name))
    found = [_Group(LAYERS, tuple(floats))] if floats else []
    codes = [group for group in singles if group.palette][:1]
    return codes + found + [group for group in singles if group not in codes]


@dataclass(frozen=True)
class _File:
    """A file and the variables that are its bands."""

    unfinished: Path
    group: _Group
    fill: int | None
    """The nodata of codes; none for bits."""

    @property
    def bands(self) -> tuple[str, ...]:
        return self.group.names

    @property
    def palette(self) -> bool:
        return self.group.palette

    @property
    def floats(self) -> bool:
        return self.group.dtype == "float32"

    @property
    def scratch(self) -> Path:
        return self.unfinished.with_suffix(".scratch")

    @property
    def tiles(self) -> Path:
        return self.scratch / "tiles.tif"

    @property
    def profile(self) -> dict[str, Any]:
        nodata = np.nan if self.floats else self.fill
        look = {"photometric": "palette"} if self.palette else {}
        return {"dtype": self.group.dtype, "nodata": nodata, "count": len(self.bands), **look}

    @property
    def pixel_bytes(self) -> int:
        return len(self.bands) * np.dtype(self.group.dtype).itemsize


def _files(image: xr.Dataset, unfinished: list[Path]) -> list[_File]:
    return [
        _File(
            path,
            group,
            int(image[group.names[0]].encoding.get("_FillValue", 255)) if group.palette else None,
        )
        for path, group in zip(unfinished, _groups(image), strict=True)
    ]


def _as_image(dataset: xr.Dataset, path: Path) -> xr.Dataset:
    """Return the dataset as bands (y, x) whose first pixel is the north-western one."""
    if dataset.sizes.get("time", 1) > 1:
        raise SceneError(
            f"{path} can hold one time, but the dataset has {dataset.sizes['time']}. "
            f"Choose one (--time, in Python dataset.isel(time=0)), or write a .zarr or a .nc."
        )
    image = dataset.isel(time=0) if "time" in dataset.dims else dataset
    image = _one_band_each(image.set_coords({"spatial_ref"} & set(image.data_vars)))
    for name, variable in image.data_vars.items():
        if set(variable.dims) != {"y", "x"} or not variable.size:
            raise SceneError(
                f"{name} is not an image (y, x): it has {dict(variable.sizes)}. "
                f"Drop it, or write a .zarr or a .nc."
            )
        kind, size = variable.dtype.kind, variable.dtype.itemsize
        if kind not in "buif" or (kind in "ui" and size > 2):
            raise SceneError(
                f"{name} is of type {variable.dtype}, which bands of float32 cannot hold. "
                f"Drop or convert it, or write a .zarr or a .nc."
            )
    if not image.data_vars:
        raise SceneError(
            f"There is no image to write to {path}: the dataset has only coordinates."
        )
    image = image.transpose("y", "x", ...)
    for dim, goes_up in (("y", False), ("x", True)):
        if dim in image.coords and (image[dim].values[-1] > image[dim].values[0]) != goes_up:
            image = image.isel({dim: slice(None, None, -1)})
    return image


def _one_band_each(image: xr.Dataset) -> xr.Dataset:
    """Return the image with a variable for each name along dimensions beside y and x."""
    bands: dict[str, xr.DataArray] = {}
    for name, array in image.data_vars.items():
        others = [dim for dim in array.dims if dim not in ("y", "x")]
        if len(others) == 1 and others[0] in image.coords:
            for index, label in enumerate(image[others[0]].values.tolist()):
                word = "_".join(str(label).split())
                bands[f"{name}_{word}"] = array.isel({others[0]: index}, drop=True)
        else:
            bands[str(name)] = array
    coords = {name: c for name, c in image.coords.items() if set(c.dims) <= {"y", "x"}}
    return xr.Dataset(bands, coords=coords, attrs=image.attrs)


def _georeference(image: xr.Dataset, path: Path) -> dict[str, Any]:
    grid = PixelGrid.of(image)
    if grid.problem:
        raise SceneError(
            f"{path} cannot say where its pixels are: the image {grid.problem}\n"
            f"A .zarr or a .nc keeps the coordinates as they are."
        )
    return {"crs": grid.crs, "transform": grid.transform} if grid.placed else {}


def _windows(image: xr.Dataset) -> list[tuple[slice, slice]]:
    """Return rows and columns to compute together, so that no chunk is computed twice.

    In a window are two chunks for each worker, one beside the other.
    """
    workers = int(dask.config.get("num_workers", None) or count_cores())
    edges = _edges(image, "x")
    columns = [0, *edges[2 * workers - 1 : -1 : 2 * workers], edges[-1]]
    return [
        (slice(*rows), slice(*own))
        for rows in itertools.pairwise([0, *_edges(image, "y")])
        for own in itertools.pairwise(columns)
    ]


def _edges(image: xr.Dataset, dim: str) -> list[int]:
    """Return where chunks of all variables end; where tiles do, if there are no chunks."""
    size = image.sizes[dim]
    ends = [
        set(itertools.accumulate(array.chunksizes[dim]))
        for array in image.data_vars.values()
        if array.chunks is not None
    ]
    return sorted(set.intersection(*ends)) if ends else [*range(TILE, size, TILE), size]


def _write_tiles(
    image: xr.Dataset, files: list[_File], profile: dict[str, Any], progress: Progress
) -> list[list[int]]:
    """Compute and write all bands of all files; return the checksums of the bands of each."""
    checks = [[0] * len(file.bands) for file in files]
    windows = _windows(image)
    sizes = [(y.stop - y.start) * (x.stop - x.start) for y, x in windows]
    done, whole = 0, sum(sizes) / (1.0 - OVERVIEWS_SHARE)
    with ExitStack() as targets:
        opened = [targets.enter_context(_open_tiles(file, image, profile)) for file in files]
        targets.enter_context(
            computing_in_threads(lambda part, parts: progress(done + size * part / parts, whole))
        )
        for (rows, columns), size in zip(windows, sizes, strict=True):
            with as_reading_errors():
                part = image.isel(y=rows, x=columns).compute()
            window = Window.from_slices(rows, columns)
            for file, target, check in zip(files, opened, checks, strict=True):
                for index, name in enumerate(file.bands):
                    values = _band_values(part[name], file)
                    check[index] += _checksum(values, rows.start, columns.start)
                    with as_writing_errors(*GDAL_ERRORS):
                        target.write(values, index + 1, window=window)
            done += size
            progress(done, whole)
    return [[check % 2**64 for check in own] for own in checks]


@contextmanager
def _open_tiles(file: _File, image: xr.Dataset, profile: dict[str, Any]) -> Iterator[Any]:
    """Give the plain tiles of a file, open for writing, with all but their values."""
    with as_writing_errors(*GDAL_ERRORS):
        target = rasterio.open(file.tiles, "w", **profile, **file.profile)
    try:
        if file.palette:
            rows = class_rows(image[file.bands[0]])
            target.write_colormap(1, {n: (*channels(colour), 255) for n, _, colour in rows})
        _label(target, image[list(file.bands)])
        yield target
    finally:
        with as_writing_errors(*GDAL_ERRORS):
            target.close()
    if file.palette:
        # Every driver takes names from here, and writes them where its format has them.
        names = auxiliary_xml(image[file.bands[0]], every_code=file.unfinished.suffix == ".img")
        file.tiles.with_name(f"{file.tiles.name}.aux.xml").write_text(names, encoding="utf-8")


def _band_values(array: xr.DataArray, file: _File) -> npt.NDArray[Any]:
    return _floats(array) if file.floats else np.ascontiguousarray(array.values)


def _floats(array: xr.DataArray) -> npt.NDArray[np.float32]:
    values = array.values.astype(np.float32)
    fill = array.encoding.get("_FillValue")
    if fill is not None:
        values[array.values == fill] = np.nan
    return np.ascontiguousarray(values)


def _label(target: Any, image: xr.Dataset) -> None:
    arrays = image.data_vars
    target.descriptions = tuple(str(name) for name in arrays)
    target.units = tuple(str(array.attrs.get("units", "")) for array in arrays.values())
    for band, array in enumerate(arrays.values(), 1):
        target.update_tags(band, **{key: _text(value) for key, value in array.attrs.items()})
    tags = {str(key): _text(value) for key, value in image.attrs.items()}
    if "time" in image.coords and image["time"].dtype.kind == "M":
        tags["time"] = str(image["time"].values.astype("datetime64[s]"))
        tags["TIFFTAG_DATETIME"] = tags["time"].replace("-", ":").replace("T", " ")
    target.update_tags(**tags)


def _text(value: Any) -> str:
    """Return an attribute as text; a list as CF writes flag meanings, with spaces."""
    return " ".join(map(str, value)) if isinstance(value, (list, np.ndarray)) else str(value)


def _make_final(tiles: Path, result: Path, checks: list[int]) -> None:
    """Make the final file from tiles, and read it back: GDAL does not report every failure."""
    driver, options = FORMATS[result.suffix]
    with as_writing_errors(*GDAL_ERRORS):
        rasterio.shutil.copy(tiles, result, driver=driver, **options)
        with rasterio.open(result) as written:
            if _checksums(written) != checks:
                raise WritingError("it reads back differently")


def _checksums(image: Any) -> list[int]:
    checks = [0] * image.count
    for _, window in image.block_windows(1):
        for index, values in enumerate(image.read(window=window)):
            checks[index] += _checksum(values, window.row_off, window.col_off)
    return [check % 2**64 for check in checks]


def _checksum(values: npt.NDArray[Any], row: int, column: int) -> int:
    """Return a number that tells any other value or place of the values of a window.

    Modulo 2^64, those of the windows of a band add up to the same, however it is cut.
    """
    rows = np.arange(row, row + len(values), dtype=np.uint64)[:, None] * ROW_FACTOR
    columns = np.arange(column, column + values.shape[1], dtype=np.uint64) * COLUMN_FACTOR
    bits = values.view(f"u{values.itemsize}")
    # An odd factor: no other value has the same product.
    return int((((rows + columns) | np.uint64(1)) * bits).sum())
