"""Scenes, spectra, images and maps from disk: opened lazily, whatever their format.

Files as a sensor delivers them are recognised by their names and opened by an entry of
:data:`SENSORS`; to add a sensor, list it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

import xarray as xr

from undulatus._files import content_digest, is_tensor_file
from undulatus.errors import DamagedFileError, SceneError
from undulatus.scenes.files import NETCDF, bufr, iasi_native, satpy_files, seviri
from undulatus.scenes.files.bufr_messages import BEGINNING
from undulatus.scenes.files.damaged import (
    Skipped,
    as_damaged,
    each_sound,
    note_skipped,
    read_through,
)
from undulatus.scenes.files.images import (
    RASTERS,
    band_names,
    find_product_folder,
    is_raster,
    open_image,
    open_raster,
)
from undulatus.scenes.files.netcdf import open_netcdf, within_valid_range
from undulatus.scenes.files.series import join_stored
from undulatus.scenes.files.writing import with_named_labels
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.files.zarr_store import Manifest, find_manifest
from undulatus.scenes.normalisation import is_from_satpy
from undulatus.scenes.pixel_grid import quietly_opened
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
        Takes a path, or a list of them, and options if it has any, and returns a lazy Dataset that
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

IASI = Sensor(
    "IASI",
    (f"{iasi_native.PREFIX}*",),
    iasi_native.open_native,
    is_sounder=True,
    # Of all products in the EPS native format: open_native names those that are not IASI's.
    beginning=b"PRODUCT_NAME",
)

BUFR = Sensor(
    "BUFR of IASI, CrIS, AIRS and HIRS",
    ("*.bufr", "*.bfr", "*.BUFR"),
    bufr.open_bufr,
    is_sounder=True,
    beginning=BEGINNING,
)

SENSORS = (SEVIRI, IASI, BUFR)
"""Every sensor; ``tests/scenes/files/test_sensors.py`` holds each to the same contract."""


def open_scene(source: Any, *, skip_damaged: bool = False, **options: Any) -> xr.Dataset:
    """Open a scene: Zarr or netCDF in the form of a scene, or the files of a sensor.

    Parameters
    ----------
    source : path or list of paths
        ``.zarr`` folders, ``.nc`` files, or files or folders of a sensor, by their original
        names. Several of one place, grid and platform are joined along time.
    skip_damaged : bool
        Leave out files and masks that cannot be read, and list them in the attribute
        ``skipped_files``. All are read through for it.
    options
        Those of :func:`undulatus.scenes.files.seviri.open_scene`: ``reader``, ``calibration``,
        ``mask``, ``mask_encoding``, ``time``, ``box``, ``sun_normalised``, ``say``, ``warn``,
        ``progress``. With a ``reader``, files of SEVIRI may have any name that it accepts. Of
        scenes in Zarr and netCDF, ``calibration`` says how they were calibrated.
    """
    paths = [_existing(path) for path in satpy_files.as_paths(source)]
    skipped: Skipped | None = {} if skip_damaged else None
    found = each_sound(paths, lambda path: _find_scene(path, options), skipped)
    return _open_scenes(found, options, skipped)


def open_spectra(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    skip_damaged: bool = False,
) -> xr.Dataset:
    """Open spectra: Zarr, netCDF, IASI Level 1C as EUMETSAT sends it, or BUFR of a sounder.

    Parameters
    ----------
    source : path or list of paths
        ``.zarr`` folders and ``.nc`` files in the form that
        :func:`undulatus.scenes.check_spectra` describes, or native files (``IASI_xxx_1C_...``),
        whose variables ``docs/howto/soundings.md`` lists; or BUFR of IASI, CrIS, AIRS and HIRS
        (:func:`undulatus.scenes.files.bufr.open_bufr`). A folder stands for the native files
        or BUFR in it, by name. Several files are concatenated; those of several satellites are an
        error.
    skip_damaged : bool
        As of :func:`open_scene`.
    """
    given = [source] if isinstance(source, (str, os.PathLike)) else source
    paths = [file for path in given for file in _files_of(_existing(path))]
    if not paths:
        raise SceneError("No file was given to read spectra from. Give a path, or a list of them.")
    skipped: Skipped | None = {} if skip_damaged else None

    def open_one(path: Path) -> tuple[Path, xr.Dataset]:
        opened = _open_spectra_file(path)
        if skip_damaged:
            with as_damaged(str(path)):
                read_through(opened)
        return path, opened

    sound = each_sound(paths, open_one, skipped)
    paths, parts = [path for path, _ in sound], [part for _, part in sound]
    if len(parts) == 1:
        return note_skipped(parts[0], skipped)
    _require_one_satellite(paths, parts)
    try:
        joined = xr.concat(
            parts, "sample", data_vars="minimal", coords="minimal", compat="equals", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except (ValueError, KeyError) as error:
        names = ", ".join(path.name for path in paths)
        raise SceneError(
            f"{names} do not fit together: {error}. Open each by itself, and correct what differs."
        ) from error
    counts = [name for name in iasi_native.COUNTS if all(name in part.attrs for part in parts)]
    summed = {name: sum(part.attrs[name] for part in parts) for name in counts}
    named = joined.assign_attrs(summed, source=f"{paths[0].name} to {paths[-1].name}")
    return note_skipped(named, skipped)


def open_data(source: Any, *, skip_damaged: bool = False, **options: Any) -> xr.Dataset:
    """Open spectra, a scene, or an image (as ``image``), whichever a path or several hold.

    Images are what :func:`undulatus.scenes.open_image` opens but for netCDF and Zarr, whose
    variables stay as they are.

    Parameters
    ----------
    source : path or list of paths
        One image, spectra as for :func:`open_spectra`, or scenes as for :func:`open_scene`.
    skip_damaged, options
        Those of :func:`open_scene`, the latter for scenes only.
    """
    skipped: Skipped | None = {} if skip_damaged else None
    paths = satpy_files.as_paths(source)
    found = each_sound(paths, lambda path: _find_data(Path(path), options), skipped)
    kinds = {each.kind: each for each in found}
    if len(kinds) > 1:
        raise _mixed(kinds.values())
    if _SCENE in kinds:
        return _open_scenes(found, options, skipped)
    given = [n for n, v in options.items() if v not in (None, ()) and n not in _REPORTING]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SceneError(f"{flags}: for scenes, but {found[0].path} holds {found[0].kind}.")
    if _IMAGES in kinds:
        if len(found) > 1:
            raise SceneError(
                f"{found[0].path} and {len(found) - 1} more are images: give one at a time."
            )
        return open_image(found[0].path).to_dataset(name="image")
    if len(found) == 1 and found[0].stored is not None and not skip_damaged:
        return _as_spectra(found[0].stored)
    opened = open_spectra([each.path for each in found], skip_damaged=skip_damaged)
    return note_skipped(opened, skipped)


def is_data(path: Path) -> bool:
    """Return whether :func:`open_data` reads what a path names, judged by names alone.

    A segment of HRIT is not: the folder of its acquisition is. Nor is a header of ENVI's format:
    the file that it describes is.
    """
    if path.suffix == ".zarr" or path.suffix in NETCDF or path.suffix.lower() in RASTERS:
        return True
    if path.suffix != ".hdr" and any(
        header.exists() for header in (path.with_suffix(".hdr"), Path(f"{path}.hdr"))
    ):
        return True
    if is_hrit_segment(path):
        return False
    is_folder = _is_zarr(path) or find_product_folder(path) is not None
    return is_folder or any(sensor.recognises(path) for sensor in SENSORS)


def is_image(path: Path) -> bool:
    """Return whether a path is an image: no file of a sensor, netCDF or Zarr, but for GDAL one."""
    if path.suffix.lower() in RASTERS or find_product_folder(path) is not None:
        return True
    if _is_zarr(path) or not path.exists():
        return False
    return not any(sensor.recognises(path) for sensor in SENSORS) and is_raster(path)


def is_hrit_segment(path: Path) -> bool:
    """Return whether a path is one of the many files of an acquisition of SEVIRI in HRIT."""
    return satpy_files.guess_reader(path) == satpy_files.HRIT and not path.is_dir()


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


def input_digest(path: Path | Sequence[Path]) -> str:
    """Return a checksum of what a path, or several, hold, which changes when it is replaced.

    Of Zarr that undulatus wrote it is that of all values. Of other files and folders see
    :func:`undulatus._files.content_digest`; of an image, those beside it that belong to it are
    included, and the files that a VRT refers to.
    """
    if not isinstance(path, Path):
        each = [input_digest(one) for one in path]
        return each[0] if len(each) == 1 else sha256(" ".join(each).encode()).hexdigest()
    if _is_zarr(path) and find_manifest(path) is not None:
        return Manifest.of(path).digest()
    if not is_image(path) or path.is_dir():
        return content_digest([path])
    with quietly_opened(path) as file:
        return content_digest(found for name in file.files if (found := Path(name)).exists())


# What a path holds

_IMAGES, _SPECTRA, _SCENE = "an image", "spectra", "a scene"

_REPORTING = ("say", "warn", "progress")


@dataclass(frozen=True)
class _Found:
    """What a path holds: the sensor that opens it, or what was opened already."""

    path: Path
    kind: str
    sensor: Sensor | None = None
    stored: xr.Dataset | None = None

    def __str__(self) -> str:
        what = self.kind if self.sensor is None else f"{self.kind} of {self.sensor.name}"
        return f"{self.path} is {what}"


def _find_data(path: Path, options: dict[str, Any]) -> _Found:
    named = path.suffix.lower() in RASTERS
    # A reader of SEVIRI's files may be given any of them, whatever GDAL says.
    if named or (is_image(_existing(path)) and not options.get("reader")):
        return _Found(path, _IMAGES)
    if sensor := _find_sensor(path, is_sounder=True):
        return _Found(path, _SPECTRA, sensor)
    return _find_scene(path, options)


def _find_scene(path: Path, options: dict[str, Any]) -> _Found:
    """Return how a path is opened; spectra in Zarr and netCDF are told from scenes."""
    sensor = _find_sensor(path, is_sounder=False)
    if _is_zarr(path) or path.suffix in NETCDF:
        stored = _open(path)
        if is_spectra(stored):
            return _Found(path, _SPECTRA, stored=stored)
        has_bands = bool(set(BANDS) & set(stored.variables))
        foreign = sensor or {"reader", "calibration"} & options.keys()
        by_satpy = is_from_satpy(
            (stored[band].attrs for band in BANDS if band in stored), stored.attrs
        )
        if _is_zarr(path) or not (by_satpy or (foreign and not has_bands)):
            return _Found(path, _SCENE, stored=stored)
        stored.close()
    elif sensor is None and not options.get("reader"):
        if is_tensor_file(path):
            raise SceneError(f"{path} is a model or a checkpoint of undulatus, not data.")
        raise SceneError(
            f"{path} has a name of no known format, and GDAL does not open it: images are read as "
            f"GDAL does, from .zarr, .nc and the folders of Sentinel-2 and Landsat, scenes from "
            f".zarr, .nc, and files of sensors under their original names.\n"
            f"{_names_of_sensors(is_sounder=False)}"
        )
    return _Found(path, _SCENE, sensor or SEVIRI)


def _open_scenes(
    found: list[_Found], options: dict[str, Any], skipped: Skipped | None
) -> xr.Dataset:
    """Open files of one sensor, or scenes that are stored in Zarr and netCDF."""
    by_sensor = {None if each.sensor is None else each.sensor.name: each for each in found}
    if len(by_sensor) > 1:
        raise _mixed(by_sensor.values())
    sensor = found[0].sensor
    if sensor is not None:
        paths = [each.path for each in found]
        more = {} if skipped is None else {"skip_damaged": True}
        opened = sensor.open(paths[0] if len(paths) == 1 else paths, **options, **more)
        return note_skipped(opened, skipped)

    def read(each: _Found) -> tuple[str, xr.Dataset]:
        assert each.stored is not None
        blocks = _in_blocks(each.stored)
        if skipped is not None:
            with as_damaged(str(each.path)):
                read_through(blocks)
        return str(each.path), blocks

    return note_skipped(
        join_stored(each_sound(found, read, skipped), skipped=skipped, **options), skipped
    )


def _mixed(found: Iterable[_Found]) -> SceneError:
    listed = "\n".join(f"  {each}" for each in found)
    return SceneError(f"DATA are of several kinds:\n{listed}\nGive those of one kind together.")


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


def _open(path: Path) -> xr.Dataset:
    """Open a Zarr or netCDF file whose variables are not in blocks yet."""
    if _is_zarr(path):
        opened = open_zarr(path, chunks=None, decode_coords="all")
    else:
        opened = with_named_labels(open_netcdf(path, chunks=None, decode_coords="all"))
    if not opened.variables:
        raise DamagedFileError(f"{path} is empty or truncated. Fetch or write it again.")
    return opened


def _in_blocks(opened: xr.Dataset) -> xr.Dataset:
    """Return a dataset in dask blocks, as its file is chunked, or of some rows."""
    blocks = {
        name: array.chunk(_block(array))
        for name, array in opened.variables.items()
        if array.ndim and name not in opened.indexes
    }
    return within_valid_range(opened.assign(blocks))


def _block(array: xr.Variable) -> dict[Any, int]:
    preferred = array.encoding.get("preferred_chunks")
    if preferred:
        return dict(preferred)
    row = max(array.nbytes // max(array.shape[0], 1), 1)
    return {array.dims[0]: max(1, CONTIGUOUS_BYTES // row)}


def _files_of(path: Path) -> list[Path]:
    """Return the files of sounders in a folder; of anything else, itself."""
    if not path.is_dir() or _is_zarr(path):
        return [path]
    files = (file for file in path.iterdir() if file.is_file())
    return sorted(file for file in files if _find_sensor(file, is_sounder=True)) or [path]


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


def _require_one_satellite(paths: Sequence[Path], parts: Sequence[xr.Dataset]) -> None:
    satellites: dict[str, list[str]] = {}
    for path, part in zip(paths, parts, strict=True):
        if "platform_name" in part.attrs:
            satellites.setdefault(str(part.attrs["platform_name"]), []).append(path.name)
    if len(satellites) > 1:
        listed = "\n".join(f"  {name}: {', '.join(files)}" for name, files in satellites.items())
        raise SceneError(
            f"The spectra are of several satellites, whose instruments differ:\n{listed}\n"
            f"Open the files of each by themselves."
        )


def _as_spectra(opened: xr.Dataset) -> xr.Dataset:
    """Return spectra in blocks of rows: those of a chunk of the largest variable, or 512."""
    if not opened.data_vars:
        return opened.chunk()
    largest = max(opened.data_vars.values(), key=lambda array: array.size)
    rows = largest.dims[0] if largest.dims else "sample"
    chunk = largest.encoding.get("preferred_chunks", {}).get(rows, SPECTRA_ROWS)
    return within_valid_range(opened.chunk({rows: chunk}))
