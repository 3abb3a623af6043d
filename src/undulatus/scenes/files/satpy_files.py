"""SEVIRI files: finding them, choosing satpy's reader for them, and loading their bands."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from undulatus.errors import DamagedFileError, SceneError
from undulatus.scenes.files import NETCDF
from undulatus.scenes.files.damaged import Skipped, as_damaged, require_some, skipping
from undulatus.scenes.files.native_lines import copy_lines
from undulatus.scenes.files.netcdf import open_netcdf, require_whole
from undulatus.scenes.normalisation import is_from_satpy
from undulatus.scenes.scene import BANDS, REFLECTANCE
from undulatus.scenes.scene import CALIBRATIONS as MODES
from undulatus.scenes.times import NAME_MARGIN, TimeSpan, in_spans, span_text, time_in_name

HRIT = "seviri_l1b_hrit"
"""The reader of files of which an acquisition has many."""

SATPY_CF = "satpy_cf_nc"
"""The reader of what satpy's CF writer wrote, which is known by its content under any name."""

READERS = {
    "seviri_l1b_native": ("*.nat", "MSG?-SEVI-MSG15-*-NA-*Z"),
    HRIT: ("?-000-MSG*",),
    "seviri_l1b_nc": ("W_XX-EUMETSAT*SEVIRI*.nc", "MSG*SEVI*.nc"),
    SATPY_CF: ("*-??????????????-??????????????.nc",),
}
"""satpy's readers, and the names of files from which each is guessed."""

CALIBRATIONS = {
    "seviri_l1b_native": MODES,
    HRIT: MODES,
    "seviri_l1b_nc": MODES[:1],
}
"""The calibrations of each reader that calibrates."""


def find_files(source: Any, reader: str | None, skipped: Skipped | None = None) -> list[Path]:
    """Return the files that a source names, or raise a :class:`SceneError` if one is missing."""
    if reader is not None and reader not in READERS:
        raise SceneError(f"No reader {reader!r}. Choose from: {', '.join(READERS)}.")
    found: list[Path] = []
    for path in as_paths(source):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.is_file())
            guesses = {file: find_reader(file) for file in inside}
            known = [file for file, guess in guesses.items() if guess and reader in (None, guess)]
            if not known:
                raise SceneError(f"{path} is a folder without SEVIRI files.\n{_remedy()}")
            found.extend(known)
        elif not path.exists():
            raise SceneError(f"{path} does not exist. Check its name and folder.")
        elif not path.stat().st_size:
            with skipping(str(path), skipped):
                raise DamagedFileError(f"{path} is empty. Fetch it again.")
        else:
            found.append(path)
    require_some(found, skipped)
    return found


def as_paths(source: Any) -> list[Path]:
    """Return a path or a list of paths as a list."""
    paths = source if isinstance(source, (list, tuple)) else [source]
    if paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return [Path(path) for path in paths]
    raise SceneError(
        f"Nothing can be read from a {type(source).__name__}. Give a path, a list of paths, "
        f"a folder, or a satpy Scene or xarray DataArray."
    )


def guess_reader(file: Path) -> str | None:
    """Return the reader for a file, by its name, or None."""
    for reader, patterns in READERS.items():
        if any(fnmatchcase(file.name, pattern) for pattern in patterns):
            return reader
    return None


def find_reader(file: Path) -> str | None:
    """Return the reader for a file, by its name or, if satpy wrote it, by its content."""
    reader = guess_reader(file)
    if reader is None and file.suffix in NETCDF:
        with suppress(SceneError), open_netcdf(file) as opened:
            bands = [opened[band].attrs for band in BANDS if band in opened]
            return SATPY_CF if is_from_satpy(bands, opened.attrs) else None
    return reader


def common_reader(files: list[Path]) -> str:
    """Return the one reader for all files."""
    guesses = {find_reader(file): file for file in files}
    if None in guesses:
        raise SceneError(
            f"{guesses[None]} has a name from which no reader can be guessed.\n{_remedy()}"
        )
    if len(guesses) > 1:
        raise SceneError(
            f"The files need several readers: {', '.join(f.name for f in guesses.values())}.\n"
            f"Give those of each reader by themselves, or choose one (--reader, in Python "
            f"reader=...)."
        )
    return str(next(iter(guesses)))


def _remedy() -> str:
    known = "\n".join(f"  {name}: {', '.join(names)}" for name, names in READERS.items())
    return (
        f"Give files their original names; readers are guessed from these:\n{known}\n"
        f"netCDF that satpy wrote may have any name."
    )


def check_calibration(asked: str, reader: str) -> str:
    """Return a calibration as satpy spells it, or raise an error if the reader lacks it."""
    if reader not in CALIBRATIONS:
        return asked
    for mode in CALIBRATIONS[reader]:
        if mode.lower() == asked.lower():
            return mode
    raise SceneError(
        f"{reader} cannot calibrate by {asked!r}. Choose from (--calibration): "
        f"{', '.join(CALIBRATIONS[reader])}."
    )


def group_by_acquisition(
    files: list[Path], reader: str, bands: tuple[str, ...], skipped: Skipped | None = None
) -> list[list[Path]]:
    """Return the files in one list per acquisition; segments of other bands are left out."""
    if reader != HRIT:
        return [[file] for file in files]
    groups: dict[tuple[str, ...], dict[str, Path]] = {}
    for file in files:
        # H-000-MSG2__-MSG2________-IR_108___-000001___-201006011200-__: service and time.
        parts = file.name.split("-")
        band = parts[4].strip("_") if len(parts) > 6 else ""
        if band and band not in bands:
            continue
        group = groups.setdefault(tuple(parts[3:4] + parts[6:7]), {})
        if file.name in group:
            raise SceneError(f"{group[file.name]} and {file} are the same segment. Leave one out.")
        group[file.name] = file
        packed = file.name.endswith("-C_")
        if packed and importlib.util.find_spec("pyPublicDecompWT") is None:
            raise SceneError(
                f"{file} is compressed (-C_), and the library that unpacks it is not installed.\n"
                f"Install it (pip install pyPublicDecompWT), or unpack the files first."
            )
    whole = []
    for acquisition in (list(group.values()) for group in groups.values()):
        with skipping(group_name(acquisition), skipped):
            _require_segments(acquisition)
            whole.append(acquisition)
    require_some(whole, skipped)
    return whole


def group_name(files: list[Path]) -> str:
    """Return what to call the files of an acquisition."""
    return f"{files[0]} (and {len(files) - 1} more)" if len(files) > 1 else str(files[0])


def _require_segments(files: list[Path]) -> None:
    """Raise if an acquisition lacks its prologue, its epilogue, or segments of some bands."""
    kinds = {file.name.split("-")[5].strip("_") for file in files}
    lacking = [
        name for key, name in (("PRO", "prologue"), ("EPI", "epilogue")) if key not in kinds
    ]
    segments: dict[str, set[int]] = {}
    for file in files:
        _, _, _, _, band, part, *_ = file.name.split("-")
        if part.strip("_").isdigit():
            segments.setdefault(band.strip("_"), set()).add(int(part.strip("_")))
    every = set().union(*segments.values())
    expected = set(range(min(every, default=0), max(every, default=-1) + 1))
    for band, found in segments.items():
        if missing := sorted(expected - found):
            lacking.append(f"{band} segment {', '.join(map(str, missing))}")
    if lacking:
        raise DamagedFileError(
            f"{group_name(files)} are not a whole acquisition.\n"
            f"  missing: {'; '.join(lacking)}\n"
            f"Fetch these files, or leave the acquisition out (--time)."
        )


def groups_within(spans: tuple[TimeSpan, ...], groups: list[list[Path]]) -> list[list[Path]]:
    """Return the acquisitions whose names tell no time outside the spans."""
    told = [time_in_name(group[0].name) for group in groups]
    kept = [
        group
        for group, time in zip(groups, told, strict=True)
        if time is None or in_spans(spans, np.asarray(time), NAME_MARGIN)
    ]
    if not kept:
        known = np.array([time for time in told if time is not None])
        raise SceneError(
            f"No file was taken in the time that was asked for: their names tell "
            f"{span_text(known)}."
        )
    return kept


@contextmanager
def only_lines(files: list[Path], reader: str, first: int, last: int) -> Iterator[list[Path]]:
    """Give files that have the lines of an acquisition from ``first`` up to ``last``, at least.

    Lines count from the south, ``last`` not included. For native files, a short copy for as long
    as the context lasts; others are read in parts as they are.
    """
    if reader != "seviri_l1b_native":
        yield files
        return
    with TemporaryDirectory(prefix="undulatus-") as folder:
        with as_damaged(str(files[0])):
            short = copy_lines(files[0], Path(folder), first, last - 1)
        yield files if short is None else [short]


def load_bands(files: list[Path], reader: str, calibration: str, bands: tuple[str, ...]) -> Any:
    """Return a satpy Scene of one acquisition, north up, with all bands."""
    solar = tuple(name for name in bands if BANDS[name].quantity == REFLECTANCE)
    thermal = tuple(name for name in bands if name not in solar)
    if calibration == "meirink-2023" and solar and thermal:
        # These coefficients are for solar bands, and satpy fails on others, which stay nominal.
        scene = load_bands(files, reader, calibration, solar)
        others = load_bands(files, reader, "nominal", thermal)
        for name in thermal:
            scene[name] = others[name]
        return scene
    calibrated = len(CALIBRATIONS.get(reader, ())) > 1
    with (
        warnings.catch_warnings(),
        as_satpy_errors(f"{group_name(files)} cannot be read by satpy's {reader}") as complaints,
    ):
        for file in files:
            require_whole(file)
        # The satellite's own position is not used.
        warnings.filterwarnings("ignore", "No orbit polynomial valid")
        if reader == SATPY_CF:
            scene = _load_cf(files[0], bands)
        else:
            scene = import_satpy().Scene(
                filenames=[str(file) for file in files],
                reader=reader,
                reader_kwargs={"calib_mode": calibration} if calibrated else {},
            )
            there = set(scene.available_dataset_names())
            scene.load([name for name in bands if name in there], upper_right_corner="NE")
    if any(name not in scene for name in bands):
        raise missing_bands_error(str(files[0]), scene, bands, complaints)
    return scene


def _load_cf(file: Path, bands: tuple[str, ...]) -> Any:
    """Return a Scene of what satpy's CF writer wrote, with the attributes that are in the file.

    satpy's own reader wants a certain name, and adds empty ``modifiers`` where there are none.
    """
    scene = import_satpy().Scene()
    area: Any = importlib.import_module("pyresample").AreaDefinition
    decode_attrs: Any = importlib.import_module("satpy.cf.decoding").decode_attrs
    opened = open_netcdf(file, chunks={})
    for name in (name for name in bands if name in opened):
        array = opened[name]
        array.attrs = decode_attrs(opened.attrs | array.attrs)
        # Without a projection, longitude and latitude are coordinates.
        with suppress(ValueError, KeyError):
            array.attrs["area"] = area.from_cf(opened, variable=name)
        scene[name] = array
    return scene


def import_satpy() -> Any:
    """Return satpy, or raise an error that says how to install it."""
    try:
        import satpy
    except ImportError as error:
        raise SceneError(
            "SEVIRI files are read with satpy, which is not installed: "
            'pip install "undulatus[seviri]"'
        ) from error
    return satpy


_LOGS = ("satpy", "native_msg", "hrit_msg", "hrit_base", "nc_msg")
"""Where satpy and its readers of SEVIRI log."""


class _Complaints(logging.Handler):
    """Collects what satpy logs about bands it could not load, so that no traceback is printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and error.args:
            self.reasons.append(str(error.args[0]))


@contextmanager
def as_satpy_errors(what: str) -> Iterator[list[str]]:
    """Turn whatever satpy raises into a :class:`SceneError`; give its reasons for lost bands."""
    complaints, logs = _Complaints(), [logging.getLogger(name) for name in _LOGS]
    for log in logs:
        log.addHandler(complaints)
    try:
        yield complaints.reasons
    except SceneError:
        raise
    except Exception as error:  # satpy and the libraries below it raise many types
        by_system = isinstance(error, OSError) and (error.errno or 0) > 0
        kind = SceneError if by_system or isinstance(error, MemoryError) else DamagedFileError
        raise kind(
            f"{what}: {str(error).strip() or type(error).__name__}\n"
            f"Is it complete, and does it have its original name? If not, fetch it again."
        ) from error
    finally:
        for log in logs:
            log.removeHandler(complaints)


def missing_bands_error(
    name: str, scene: Any, bands: tuple[str, ...], complaints: Iterable[str] = ()
) -> SceneError:
    """Return an error that names the bands a Scene lacks, and satpy's reasons."""
    missing = ", ".join(band for band in bands if band not in scene)
    found = ", ".join(band for band in BANDS if band in scene) or "none"
    # satpy logs the reason, then a bare "Could not load ...", which is skipped.
    given = [reason for reason in complaints if not reason.startswith("Could not load")]
    reasons = "".join(f"\n  satpy: {reason}" for reason in dict.fromkeys(given))
    # A band that is there but cannot be loaded is damaged.
    return (DamagedFileError if reasons else SceneError)(
        f"{name} lacks bands.\n  missing: {missing}\n  found: {found}{reasons}\n"
        f"Use data with these bands (in Python, or ask for fewer: bands=...)."
    )


def load_missing_bands(scene: Any, bands: tuple[str, ...]) -> Any:
    """Load the bands that a Scene in memory has not loaded yet."""
    there = set(scene.available_dataset_names())
    if wanted := [name for name in bands if name not in scene and name in there]:
        with as_satpy_errors("the Scene cannot be loaded"):
            scene.load(wanted)
    return scene
