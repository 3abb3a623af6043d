"""DATA and the options that say how they are read, which several commands share."""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import EXISTING_PATH, progress_bar, say

CALIBRATIONS = ("nominal", "GSICS", "meirink-2023")

READERS = ("seviri_l1b_native", "seviri_l1b_hrit", "seviri_l1b_nc", "satpy_cf_nc")

MASK_ENCODINGS = ("eumetsat-clm", "pps", "nwcsaf-hdf5", "cf")

GRIB = (".grb", ".grb2", ".grib", ".grib2")

FEW_FILES = 8
"""Files that are opened without showing progress."""


def _find_masks(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[Path, ...]:
    """Return the files that paths, folders and patterns name."""
    found: list[Path] = []
    for value in values:
        path = Path(value)
        if path.is_dir() and path.suffix != ".zarr" and not (path / "zarr.json").exists():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
        elif path.exists():
            inside = [path]
        else:
            inside = sorted(map(Path, glob.glob(value)))
        if not inside:
            raise click.BadParameter(f"{value} names no file.")
        found.extend(inside)
    return tuple(found)


def _check_times(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    from undulatus.errors import SceneError
    from undulatus.scenes.times import parse_spans

    try:
        parse_spans(values)
    except SceneError as error:
        raise click.BadParameter(str(error)) from None
    return values


def _check_box(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    from undulatus.errors import SceneError
    from undulatus.scenes.box import Box

    try:
        return None if value is None else str(Box.of(value))
    except SceneError as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS = (
    click.argument("data", type=EXISTING_PATH, nargs=-1, required=True),
    click.option(
        "--mask",
        multiple=True,
        callback=_find_masks,
        metavar="PATH",
        help="Level-2 cloud mask of scenes, as cloud_mask_l2: a GRIB (CLM), netCDF, HDF5 or Zarr "
        "file, a folder of them, or a pattern in quotes; may be given several times. Masks and "
        "acquisitions are matched by time.",
    ),
    click.option(
        "--mask-encoding",
        type=click.Choice(MASK_ENCODINGS),
        show_default="told by the mask",
        help="Codes of --mask.",
    ),
    click.option(
        "--calibration",
        type=click.Choice(CALIBRATIONS, case_sensitive=False),
        show_default="nominal",
        help="How counts of SEVIRI become radiances; of scenes that have been calibrated, how "
        "that was done.",
    ),
    click.option(
        "--time",
        multiple=True,
        callback=_check_times,
        metavar="START/END",
        show_default="all",
        help="Read only acquisitions of this span (UTC), or of one month, day, hour or minute; "
        "may be given several times, or with commas.",
    ),
    click.option(
        "--box",
        callback=_check_box,
        metavar="WEST,SOUTH,EAST,NORTH",
        show_default="everything",
        help="Read only the pixels of scenes in this box of degrees, such as "
        "--box=-16.3,23.3,-15.5,24.1.",
    ),
    click.option(
        "--reader",
        type=click.Choice(READERS),
        show_default="told by the names of files",
        help="satpy's reader of SEVIRI files: chooses those to read from a folder of several "
        "formats.",
    ),
)


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add DATA and its options to a command, which gets them as ``inputs``."""

    @functools.wraps(command)
    def with_inputs(*args: Any, data: tuple[Path, ...], **values: Any) -> Any:
        from undulatus.scenes.files.inputs import Inputs

        names = ("mask", "mask_encoding", "calibration", "time", "box", "reader")
        inputs = Inputs(data, **{name: values.pop(name) for name in names})
        _refuse_masks(inputs)
        _refuse_simulators(inputs)
        return command(*args, inputs=inputs, **values)

    decorated: Callable[..., Any] = with_inputs
    # The option added last is listed first.
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _refuse_masks(inputs: Any) -> None:
    """Raise if a shell spread a pattern of masks over DATA."""
    stray = [path for path in inputs.paths if path.suffix.lower() in GRIB]
    if stray:
        raise click.UsageError(
            f"{stray[0]} is a mask among DATA. Give masks as a folder or a pattern in quotes: "
            f"--mask '{stray[0].parent / '*'}{stray[0].suffix}'."
        )


def _refuse_simulators(inputs: Any) -> None:
    """Raise if a path is given twice: its pixels would count twice."""
    seen = set()
    for path in inputs.paths:
        real = path.resolve()
        if real in seen:
            raise click.UsageError(f"{path} is given twice in DATA. Give it once.")
        seen.add(real)


def open_inputs(inputs: Any) -> Any:
    """Open DATA, and show progress if they are many files."""
    from undulatus.scenes.files.opening import SENSORS

    folders = [path for path in inputs.paths if path.is_dir()]
    delivered = any(sensor.recognises(path) for sensor in SENSORS for path in folders)
    if len(inputs.paths) <= FEW_FILES and not delivered:
        return inputs.open(say)
    with progress_bar("opening files") as progress:
        return inputs.open(say, progress)


def flags_text(names: Any) -> str:
    """Return options as they are written, with commas."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
