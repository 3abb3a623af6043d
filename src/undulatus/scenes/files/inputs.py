"""Files that are read together and how, as a map records them and finds them again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import xarray as xr

from undulatus.scenes.files.opening import input_digest, open_data

SCENE = "scene"
"""Attribute of maps: the path or paths of the data."""

_SKIP = "skip_damaged"

OPTIONS = "scene_options"
"""Attribute of maps: how the data were read, in JSON; only if there is more than the paths."""


@dataclass(frozen=True)
class Inputs:
    """Files, and the options of :func:`undulatus.scenes.open_scene` that they are read with."""

    paths: tuple[Path, ...]
    reader: str | None = None
    calibration: str | None = None
    mask: tuple[Path, ...] = ()
    mask_encoding: str | None = None
    time: tuple[str, ...] = ()
    box: str | None = None
    sun_normalised: bool | None = None
    skip_damaged: bool = False

    @classmethod
    def of(cls, source: Self | Path | str) -> Self:
        """Return inputs as they are, or those of one path."""
        return source if isinstance(source, cls) else cls((Path(str(source)),))

    @classmethod
    def of_map(
        cls,
        attrs: Mapping[str, Any],
        moved: Path | Sequence[Path] | None = None,
        folder: Path | None = None,
    ) -> Self | None:
        """Return what a map was made of, or None if it does not say so.

        ``moved`` are the data, if they are not where the map says, and ``folder`` is that of the
        map, from which it says so.
        """
        listed: Any = moved or attrs.get(SCENE)
        if listed is None:
            return None
        paths = [listed] if isinstance(listed, (str, Path)) else list(listed)
        options = json.loads(attrs.get(OPTIONS, "{}"))
        masks = tuple(find_recorded(path, folder) for path in options.pop("mask", ()))
        times = tuple(options.pop("time", ()))
        found = [Path(path) if moved else find_recorded(str(path), folder) for path in paths]
        return cls(tuple(found), mask=masks, time=times, **options)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, by name."""
        values = {name: value for name, value in vars(self).items() if name != "paths"}
        unset = (None, ())
        told = {name: value for name, value in values.items() if value not in unset}
        return told if self.skip_damaged else {n: v for n, v in told.items() if n != _SKIP}

    @property
    def for_scenes(self) -> dict[str, Any]:
        """Those that no image and no spectra have."""
        return {name: value for name, value in self.options.items() if name != _SKIP}

    @property
    def name(self) -> str:
        """The first path, and how many more there are."""
        more = f" (and {len(self.paths) - 1:,} more)" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    @property
    def lost(self) -> Path | None:
        """The first file that does not exist, if there is one."""
        return next((path for path in (*self.paths, *self.mask) if not path.exists()), None)

    def open(
        self,
        say: Callable[[str], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> xr.Dataset:
        """Open the files as one scene, one image, or spectra, lazily."""
        reporting = {"say": say, "progress": progress, "warn": warn}
        options = self.options | {name: call for name, call in reporting.items() if call}
        if "mask" in options:
            options["mask"] = list(self.mask)
        source = self.paths[0] if len(self.paths) == 1 else list(self.paths)
        return open_data(source, **options)

    def digest(self) -> str:
        """Return a checksum of the files and the options: that of the one file without any."""
        content = input_digest(self.paths)
        if not self.options:
            return content
        told = _as_json(replace(self, mask=()).options)
        masks = input_digest(self.mask) if self.mask else ""
        return sha256(f"{content} {told} {masks}".encode()).hexdigest()

    def attributes(self, folder: Path | None = None) -> dict[str, Any]:
        """Return what a map in a folder records, from which :meth:`of_map` makes the same inputs.

        Without a folder, names alone.
        """
        paths = [recorded_path(path, folder) for path in self.paths]
        attrs: dict[str, Any] = {SCENE: paths[0] if len(paths) == 1 else paths}
        if self.options:
            masks = tuple(Path(recorded_path(path, folder)) for path in self.mask)
            attrs[OPTIONS] = _as_json(replace(self, mask=masks).options)
        return attrs


def recorded_path(path: Path, folder: Path | None) -> str:
    """Return how a file that is made in a folder names another: relative to it, or by its name.

    The path of the user's home is nobody's affair, and the same work elsewhere makes the same
    files. Without a common folder other than the root, it is the name alone.
    """
    if folder is None:
        return path.name
    whole, base = (Path(os.path.abspath(each)) for each in (path, folder))
    shared = os.path.commonpath([whole, base])
    return path.name if shared == os.sep else Path(os.path.relpath(whole, base)).as_posix()


def find_recorded(text: str, *folders: Path | None) -> Path:
    """Return the file of a recorded path: from one of the folders, by its name there, or here.

    If it is nowhere, where it was from the first of them. Files of earlier versions have absolute
    paths.
    """
    path = Path(text)
    known = [folder for folder in folders if folder is not None]
    places = [folder / each for each in (path, path.name) for folder in known] + [path]
    return next((place for place in places if place.exists()), places[0])


def _as_json(options: Mapping[str, Any]) -> str:
    return json.dumps(options, default=str, sort_keys=True)
