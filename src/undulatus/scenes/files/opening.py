"""Scenes, spectra, images and maps from disk: opened lazily, whatever their format.

Files as a sensor delivers them are recognised by their names and opened by a member of
:data:`SENSORS`; to add a sensor, list it there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import rasterio
import xarray as xr
from rasterio.errors import NotGeoreferencedWarning

from undulatus._files import content_digest
from undulatus.errors import SceneError
from undulatus.scenes.files import NETCDF, bufr, iasi_native, satpy_files, seviri
from undulatus.scenes.files.bufr_messages import BEGINNING
from undulatus.scenes.files.images import (
    RASTERS,
    band_names,
    find_product_folder,
    open_image,
    open_raster,
)
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.files.zarr_store import Manifest, find_manifest
from undulatus.scenes.scene import BANDS
from undulatus.scenes.spectra import is_spectra

CONTIGUOUS_BYTES = 16 * 2**20
"""Bytes that are read at a time from a variable without chunks in its file."""

BEGINNING_BYTES = 64
"""Bytes among which a file's format is looked for, if its name does not tell it."""

SPECTRA_ROWS = 512
"""Spectra in a block, where a file has no chunks: 17 MB."""


@dataclass(frozen=True)
class Sensor:
    """A sensor whose files are opened as they were delivered.

    Attributes
    ----------
    name : str
        What error messages call it.
    file_names : tuple of str
        Patterns of the names of its files, as in ``*.nat``.
    open : callable
        Takes a path, and options if it has any, and returns a lazy Dataset that
        :func:`undulatus.scenes.check_scene` accepts, or ``check_spectra``. A file that cannot be
        read is a :class:`SceneError` that names it.
    is_sounder : bool
        Whether its files hold spectra, not scenes.
    beginning : bytes, optional
        What its files begin with, whatever their names; the header of a bulletin may come before.
    """

    name: str
    file_names: tuple[str, ...]
    open: Callable[..., xr.Dataset]
    is_sounder: bool = False
    beginning: bytes = b""

    def recognises(self, path: Path) -> bool:
        """Return whether a file, or one in a folder, has the name of a file of this sensor."""
        if self.beginning and path.is_file():
            with suppress(OSError), open(path, "rb") as file:
                if self.beginning in file.read(BEGINNING_BYTES):
                    return True
        files = path.iterdir() if path.is_dir() else [path]
        return any(fnmatchcase(file.name, names) for file in files for names in self.file_names)


SEVIRI = Sensor(
    "SEVIRI",
    tuple(name for names in satpy_files.READERS.values() for name in names),
    seviri.open_scene,
)

IASI = Sensor("IASI", (f"{iasi_native.PREFIX}*",), iasi_native.open_native, is_sounder=True)

BUFR = Sensor(
    "BUFR of IASI, CrIS, AIRS and HIRS",
    ("*.bufr", "*.bfr", "*.BUFR"),
    bufr.open_bufr,
    is_sounder=True,
    beginning=BEGINNING,
)

SENSORS = (SEVIRI, IASI, BUFR)
"""Every sensor; ``tests/scenes/files/test_sensors.py`` holds each to the same contract."""


def open_scene(path: str | os.PathLike[str], **options: Any) -> xr.Dataset:
    """Open a scene: Zarr or netCDF in the form of a scene, or files of one of ``SENSORS``.

    Parameters
    ----------
    path : path
        A ``.zarr`` folder, a ``.nc`` file, or a file or folder of a sensor, by its original name.
    options
        Passed to the function that opens the sensor's files; for SEVIRI, also under any other
        name, :func:`undulatus.scenes.files.seviri.open_scene`.
    """
    path = _existing(path)
    if _is_zarr(path) or path.suffix in NETCDF:
        return _as_scene(_open(path), path, options)
    sensor = _find_sensor(path, is_sounder=False)
    if sensor is None and not options:
        raise SceneError(
            f"{path} has a name of no known format: scenes are read from .zarr, .nc, and files of "
            f"sensors under their original names.\n{_names_of_sensors(is_sounder=False)}"
        )
    return (sensor or SEVIRI).open(path, **options)


def open_spectra(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> xr.Dataset:
    """Open spectra: Zarr, netCDF, IASI Level 1C as EUMETSAT sends it, or BUFR of a sounder.

    Parameters
    ----------
    source : path or list of paths
        ``.zarr`` folders and ``.nc`` files in the form that
        :func:`undulatus.scenes.check_spectra` describes, or native files (``IASI_xxx_1C_...``),
        which are read through CODA if it is installed; or BUFR of IASI, CrIS, AIRS and HIRS
        (:func:`undulatus.scenes.files.bufr.open_bufr`). Several are concatenated.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_spectra_file(_existing(source))
    paths = [_existing(path) for path in source]
    if not paths:
        raise SceneError("No file was given to read spectra from. Give a path, or a list of them.")
    parts = [_open_spectra_file(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    try:
        return xr.concat(
            parts, "sample", data_vars="minimal", coords="minimal", compat="equals", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except (ValueError, KeyError) as error:
        names = ", ".join(path.name for path in paths)
        raise SceneError(
            f"{names} do not fit together: {error}. Open each by itself, and correct what differs."
        ) from error


def open_data(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open spectra, a scene, or an image (as ``image``), whichever a path holds.

    Images are what :func:`undulatus.scenes.open_image` opens but for netCDF and Zarr, whose
    variables stay as they are.
    """
    path = Path(path)
    if path.suffix.lower() in RASTERS or find_product_folder(path) is not None:
        return open_image(path).to_dataset(name="image")
    if _find_sensor(path, is_sounder=True):
        return open_spectra(path)
    if not (_is_zarr(path) or path.suffix in NETCDF):
        return open_scene(path)
    opened = _open(_existing(path))
    return _as_spectra(opened) if is_spectra(opened) else _as_scene(opened, path, {})


def open_map(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a map that :func:`undulatus.scenes.write_dataset` wrote as ``.zarr`` or ``.nc``."""
    path = _existing(path)
    if path.suffix not in NETCDF and not _is_zarr(path):
        raise SceneError(
            f"{path} is not a map: give the .zarr folder or .nc file that undulatus map wrote."
        )
    return _in_blocks(_open(path))


def open_raster_map(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a map that was written as ``.tif``: layers of floats, with north up in any case."""
    path = _existing(path)
    bands = open_raster(path)
    names = band_names(bands)
    if names is None:
        raise SceneError(f"{path} is not a map: its bands have no names as undulatus map writes.")
    return bands.assign_coords(band=names).to_dataset("band")


def input_digest(path: Path) -> str:
    """Return a checksum of what a path holds, which changes when it is replaced.

    Of Zarr that undulatus wrote it is that of all values. Of other files and folders see
    :func:`undulatus._files.content_digest`; the files that a VRT refers to are included.
    """
    if _is_zarr(path) and find_manifest(path) is not None:
        return Manifest.of(path).digest()
    if path.suffix.lower() not in RASTERS:
        return content_digest([path])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path) as file:
            return content_digest(found for name in file.files if (found := Path(name)).exists())


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    return path


def _find_sensor(path: Path, *, is_sounder: bool) -> Sensor | None:
    """Return the sensor that recognises a path, or None."""
    candidates = (sensor for sensor in SENSORS if sensor.is_sounder == is_sounder)
    return next((sensor for sensor in candidates if sensor.recognises(path)), None)


def _names_of_sensors(*, is_sounder: bool) -> str:
    """Return, for an error, a line for each sensor: its names, and what opens files of others."""
    return "\n".join(
        f"  {sensor.name}: {', '.join(sensor.file_names)} "
        f"(for other names: {sensor.open.__module__}.{sensor.open.__name__})"
        for sensor in SENSORS
        if sensor.is_sounder == is_sounder
    )


def _is_zarr(path: Path) -> bool:
    return path.suffix == ".zarr" or (path / "zarr.json").exists()


def _as_scene(opened: xr.Dataset, path: Path, options: dict[str, Any]) -> xr.Dataset:
    """Return a scene in blocks; files of a sensor, or that satpy wrote, are opened as such."""
    if not _is_zarr(path):
        sensor = _find_sensor(path, is_sounder=False)
        from_satpy = _is_from_satpy(opened)
        has_bands = bool(set(BANDS) & set(opened.variables))
        if from_satpy or ((options or sensor) and not has_bands):
            opened.close()
            return (sensor or SEVIRI).open(path, **options)
    return _in_blocks(opened)


def _is_from_satpy(scene: xr.Dataset) -> bool:
    """Return whether satpy wrote the file: its reflectances still depend on the sun's height."""
    bands = [scene[name].attrs for name in BANDS if name in scene]
    return any("modifiers" in attrs and "sun_normalised" not in attrs for attrs in bands)


def _open(path: Path) -> xr.Dataset:
    """Open a Zarr or netCDF file whose variables are not in blocks yet."""
    if _is_zarr(path):
        opened = open_zarr(path, chunks=None, decode_coords="all")
    else:
        try:
            opened = xr.open_dataset(path, chunks=None, decode_coords="all", engine="netcdf4")
        except (OSError, ValueError, KeyError) as error:
            raise SceneError(f"{path} cannot be read: {error}") from error
    if not opened.variables:
        raise SceneError(f"{path} is empty or truncated. Fetch or write it again.")
    return opened


def _in_blocks(opened: xr.Dataset) -> xr.Dataset:
    """Return a dataset in dask blocks, as its file is chunked, or of some rows."""
    return opened.assign(
        {
            name: array.chunk(_block(array))
            for name, array in opened.variables.items()
            if array.ndim and name not in opened.indexes
        }
    )


def _block(array: xr.Variable) -> dict[Any, int]:
    preferred = array.encoding.get("preferred_chunks")
    if preferred:
        return dict(preferred)
    row = max(array.nbytes // max(array.shape[0], 1), 1)
    return {array.dims[0]: max(1, CONTIGUOUS_BYTES // row)}


def _open_spectra_file(path: Path) -> xr.Dataset:
    sensor = _find_sensor(path, is_sounder=True)
    if sensor or path.suffix == ".nat":
        return (sensor or IASI).open(path)
    if not _is_zarr(path) and path.suffix not in NETCDF:
        raise SceneError(
            f"{path} has a name of no known format: spectra are read from .zarr, .nc, and files "
            f"of sensors under their original names.\n{_names_of_sensors(is_sounder=True)}"
        )
    return _as_spectra(_open(path))


def _as_spectra(opened: xr.Dataset) -> xr.Dataset:
    """Return spectra in blocks of rows: those of a chunk of the largest variable, or 512."""
    if not opened.data_vars:
        return opened.chunk()
    largest = max(opened.data_vars.values(), key=lambda array: array.size)
    rows = largest.dims[0] if largest.dims else "sample"
    return opened.chunk(
        {rows: largest.encoding.get("preferred_chunks", {}).get(rows, SPECTRA_ROWS)}
    )
