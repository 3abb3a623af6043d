"""Files of SEVIRI: which are there, which reader they are for, and what satpy makes of them."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from undulatus.errors import SceneError
from undulatus.scenes.scene import BANDS, REFLECTANCE

READERS = {
    "seviri_l1b_native": ("*.nat", "MSG?-SEVI-MSG15-*-NA-*Z"),
    "seviri_l1b_hrit": ("?-000-MSG*",),
    "seviri_l1b_nc": ("W_XX-EUMETSAT*SEVIRI*.nc", "MSG*SEVI*.nc"),
    "satpy_cf_nc": ("*-??????????????-??????????????.nc",),
}
"""satpy's readers, and the names of the files each is guessed for."""

CALIBRATIONS = {
    "seviri_l1b_native": ("nominal", "GSICS", "meirink-2023"),
    "seviri_l1b_hrit": ("nominal", "GSICS", "meirink-2023"),
    "seviri_l1b_nc": ("nominal",),
}
"""The calibrations that readers of counts can make."""


def find_files(source: Any, reader: str | None) -> list[Path]:
    """Return the files a source names; one that is not there is a :class:`SceneError`."""
    if reader is not None and reader not in READERS:
        raise SceneError(f"No reader {reader!r}. Choose from: {', '.join(READERS)}.")
    found: list[Path] = []
    for path in paths_of(source):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.is_file())
            known = [file for file in inside if guess(file) and reader in (None, guess(file))]
            if not known:
                raise SceneError(f"{path} is a folder without a file of SEVIRI.\n{_remedy()}")
            found.extend(known)
        elif not path.exists():
            raise SceneError(f"{path} does not exist. Check its name and folder.")
        elif not path.stat().st_size:
            raise SceneError(f"{path} is empty. Fetch it again.")
        else:
            found.append(path)
    return found


def paths_of(source: Any) -> list[Path]:
    """Return a path, or a list of them, as a list of paths."""
    paths = source if isinstance(source, (list, tuple)) else [source]
    if paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return [Path(path) for path in paths]
    raise SceneError(
        f"Nothing can be read from a {type(source).__name__}. Give a path, a list of them, "
        f"a folder, or what satpy or xarray made of them."
    )


def guess(file: Path) -> str | None:
    """Return the reader that the name of a file tells, if it tells one."""
    for reader, patterns in READERS.items():
        if any(fnmatchcase(file.name, pattern) for pattern in patterns):
            return reader
    return None


def reader_of(files: list[Path]) -> str:
    """Return the reader that the names of files tell."""
    guesses = {guess(file): file for file in files}
    if None in guesses:
        raise SceneError(f"{guesses[None]} has a name that tells no reader.\n{_remedy()}")
    if len(guesses) > 1:
        raise SceneError(
            f"The files are of several kinds: {', '.join(f.name for f in guesses.values())}.\n"
            f"Open each kind by itself."
        )
    return str(next(iter(guesses)))


def _remedy() -> str:
    known = "\n".join(f"  {name}: {', '.join(names)}" for name, names in READERS.items())
    return f"Say which reader it is for (reader=...); these are guessed from names:\n{known}"


def calibration_of(asked: str, reader: str) -> str:
    """Return a calibration as satpy spells it, if the reader can make it."""
    if reader not in CALIBRATIONS:
        return asked
    for mode in CALIBRATIONS[reader]:
        if mode.lower() == asked.lower():
            return mode
    raise SceneError(
        f"{reader} cannot calibrate by {asked!r}. Choose from: {', '.join(CALIBRATIONS[reader])}."
    )


def by_acquisition(files: list[Path], reader: str) -> list[list[Path]]:
    """Return the files of each acquisition together."""
    if reader != "seviri_l1b_hrit":
        return [[file] for file in files]
    groups: dict[tuple[str, ...], list[Path]] = {}
    for file in files:
        # H-000-MSG2__-MSG2________-IR_108___-000001___-201006011200-__: service and time.
        parts = file.name.split("-")
        groups.setdefault(tuple(parts[3:4] + parts[6:7]), []).append(file)
        packed = file.name.endswith("-C_")
        if packed and importlib.util.find_spec("pyPublicDecompWT") is None:
            raise SceneError(
                f"{file} is compressed (-C_), and the library that unpacks it is not there.\n"
                f"Install it (pip install pyPublicDecompWT), or unpack the files beforehand."
            )
    return list(groups.values())


def load(files: list[Path], reader: str, calibration: str, bands: tuple[str, ...]) -> Any:
    """Return a satpy Scene of one acquisition, north up, with the bands there are."""
    solar = tuple(name for name in bands if BANDS[name].quantity == REFLECTANCE)
    thermal = tuple(name for name in bands if name not in solar)
    if calibration == "meirink-2023" and solar and thermal:
        # These coefficients are for the solar bands, and satpy fails on others: nominal there.
        scene = load(files, reader, calibration, solar)
        others = load(files, reader, "nominal", thermal)
        for name in thermal:
            scene[name] = others[name]
        return scene
    calibrated = len(CALIBRATIONS.get(reader, ())) > 1
    upright = {"upper_right_corner": "NE"} if reader != "satpy_cf_nc" else {}
    more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
    with reading(f"{files[0]}{more} cannot be read by satpy's {reader}") as complaints:
        scene = import_satpy().Scene(
            filenames=[str(file) for file in files],
            reader=reader,
            reader_kwargs={"calib_mode": calibration} if calibrated else {},
        )
        there = set(scene.available_dataset_names())
        scene.load([name for name in bands if name in there], **upright)
    if any(name not in scene for name in bands):
        raise lacking(str(files[0]), scene, bands, complaints)
    return scene


def import_satpy() -> Any:
    """Return satpy, or say how to get it."""
    try:
        import satpy
    except ImportError as error:
        raise SceneError(
            "Files of SEVIRI are read with satpy, which is not installed: "
            'pip install "undulatus[seviri]"'
        ) from error
    return satpy


class _Complaints(logging.Handler):
    """Hears what satpy logs of bands it could not load, so that no traceback is printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and error.args:
            self.heard.append(str(error.args[0]))


@contextmanager
def reading(what: str) -> Iterator[list[str]]:
    """Turn whatever satpy raises into a :class:`SceneError`; give what it logs of lost bands."""
    complaints, log = _Complaints(), logging.getLogger("satpy")
    log.addHandler(complaints)
    try:
        yield complaints.heard
    except SceneError:
        raise
    except Exception as error:  # satpy, and what it stands on, raise all kinds
        raise SceneError(
            f"{what}: {str(error).strip() or type(error).__name__}\n"
            f"Is it whole, and under the name it was delivered with? If not, fetch it again."
        ) from error
    finally:
        log.removeHandler(complaints)


def lacking(
    name: str, scene: Any, bands: tuple[str, ...], complaints: Iterable[str] = ()
) -> SceneError:
    """Return the error that names the bands a Scene does not have, and satpy's reasons."""
    missing = ", ".join(band for band in bands if band not in scene)
    found = ", ".join(band for band in BANDS if band in scene) or "none"
    # "Could not load" comes after the reason, and gives none.
    heard = [reason for reason in complaints if not reason.startswith("Could not load")]
    reasons = "".join(f"\n  satpy: {reason}" for reason in dict.fromkeys(heard))
    return SceneError(
        f"{name} lacks bands.\n  missing: {missing}\n  found: {found}{reasons}\n"
        f"Use data with these bands, or ask for fewer (bands=...)."
    )


def load_more(scene: Any, bands: tuple[str, ...]) -> Any:
    """Load the bands that a Scene in memory could have, and has not yet."""
    there = set(scene.available_dataset_names())
    if wanted := [name for name in bands if name not in scene and name in there]:
        with reading("the Scene cannot be loaded"):
            scene.load(wanted)
    return scene
