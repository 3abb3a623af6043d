"""Maps from files to files: a model on disk, data on disk, and the map that is written of them.

:func:`map_of_file` gives the lazy map, with what it was made from in its attributes;
:meth:`FileMap.write` writes it atomically, and counts its pixels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import xarray as xr

from undulatus.estimators import compute_on
from undulatus.products.layers import choose_layers
from undulatus.products.legend import Legend
from undulatus.products.maps import COUNTED, MapSummary, map_scene, summarise_map
from undulatus.products.memory_budget import within_memory
from undulatus.products.sieve import Sieve, sieve_map
from undulatus.scenes.files.geotiff import companions, geotiff_paths
from undulatus.scenes.files.inputs import SCENE, Inputs, recorded_path
from undulatus.scenes.files.opening import open_map, open_raster_map
from undulatus.scenes.files.writing import GEOTIFF, Progress, add_history, write_dataset
from undulatus.scenes.files.zarr_store import discard_unfinished
from undulatus.storage import load_model


@dataclass(frozen=True)
class ModelFile:
    """A fitted model, the file it was loaded from, and the SHA-256 of that file."""

    path: Path
    fitted: Any
    sha256: str

    @classmethod
    def load(cls, path: Path, device: str | None = None) -> Self:
        """Load a model to predict on a device of torch, by default on the processor.

        Raises a :class:`~undulatus.errors.ModelFileError` if the file is no model.
        """
        fitted = load_model(path)
        compute_on(fitted, device)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path, fitted, digest)


@dataclass(frozen=True)
class WrittenMap:
    """The files of a map, that of the classes first, those that belong to them, and its pixels."""

    paths: tuple[Path, ...]
    summary: MapSummary
    beside: tuple[Path, ...] = ()
    """What GIS programs read with ``paths``: names of classes, and a style of QGIS."""


@dataclass(frozen=True)
class FileMap:
    """A lazy map of data on disk.

    Attributes
    ----------
    data : Inputs
        What it is a map of, and how it was read.
    scene, maps : Dataset
        The data as they were opened, and their map.
    fingerprint : str
        Checksums of the model and the data, and options: writing is resumed with the same alone.
    earlier_fingerprint : str
        What version 0.1.0 had in its place, with the path of the data and not their content.
    """

    data: Inputs
    scene: xr.Dataset
    maps: xr.Dataset
    fingerprint: str
    earlier_fingerprint: str

    def write(
        self,
        output: Path,
        progress: Progress = lambda done, total: None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> WrittenMap:
        """Write the map in a format of ``WRITERS`` and count its pixels.

        ``resume`` continues a ``.zarr`` that was interrupted; ``say`` is told if it must be begun
        anew, because the data may have been replaced since. ``overwrite`` replaces a map that
        exists, once the new one is whole.
        """
        if resume and discard_unfinished(output, self.earlier_fingerprint):
            say(
                f"{output} was begun by an earlier version, which did not record the content of "
                f"{self.data.name}: it is begun anew."
            )
        write_dataset(
            self.maps,
            output,
            progress,
            resume=resume,
            fingerprint=self.fingerprint,
            overwrite=overwrite,
        )
        return self._count_pixels(output)

    def _count_pixels(self, output: Path) -> WrittenMap:
        if output.suffix not in GEOTIFF:
            with open_map(output) as written:
                return WrittenMap((output,), summarise_map(written))
        paths = geotiff_paths(self.maps, output)
        counted = {
            name: layer.drop_attrs().assign_attrs(self.maps[name].attrs)
            for path in paths
            for name, layer in open_raster_map(path).data_vars.items()
            if name in COUNTED
        }
        return WrittenMap(paths, summarise_map(xr.Dataset(counted)), companions(paths))


@contextmanager
def map_of_file(
    model: ModelFile,
    data: Path | Inputs,
    *,
    scene: xr.Dataset | None = None,
    encoding: str = "cf",
    legend: Legend | None = None,
    allow_outside: bool = False,
    layers: Sequence[str] = (),
    sieve: Sieve | None = None,
    memory_limit: str | None = None,
    command: str = "",
    folder: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[FileMap]:
    """Give the map of ``data`` by a model, to be written within the memory ``memory_limit``.

    Parameters
    ----------
    model : ModelFile
        The model, and the file it came from.
    data : path or Inputs
        A scene, an image or spectra; several files, or options to read them with, as ``Inputs``.
    scene : Dataset, optional
        ``data`` as they were opened already.
    encoding, legend, allow_outside
        As of :func:`undulatus.products.maps.map_scene`.
    layers : sequence of str
        Layers to keep, by their names; all by default.
    sieve : Sieve, optional
        The smallest patch of a class; the codes of the whole map are then computed here.
    memory_limit : str, optional
        A size such as ``2GB`` to stay below.
    command : str
        What was asked for, for the ``history`` of the map.
    folder : path, optional
        Where the map will be: the paths of the data and the model are recorded from there, or
        else by their names.
    warn : callable, optional
        Is told what is assumed of data that are opened; by default a warning of Python's.
    """
    inputs = Inputs.of(data)
    opened = inputs.open(warn=warn) if scene is None else scene
    named = Legend.of(model.fitted) if legend is None else legend
    options = encoding if legend is None else f"{encoding} {_legend_digest(legend)}"
    options += "".join(f" {option}" for option in (" ".join(layers), sieve) if option)
    with ExitStack() as held:
        if scene is None:
            # Who opened it closes it: one that is left to the garbage collector stays open.
            held.callback(opened.close)
        chunked = held.enter_context(within_memory(memory_limit, opened, len(named.classes)))
        maps = map_scene(
            model.fitted, chunked, encoding=encoding, legend=named, allow_outside=allow_outside
        )
        if layers:
            maps = choose_layers(maps, layers)
        if sieve is not None:
            maps = sieve_map(maps, sieve)
        maps.attrs |= _origin(model, inputs, opened, command or "map", folder)
        yield FileMap(
            data=inputs,
            scene=opened,
            maps=maps,
            fingerprint=f"{model.sha256} {inputs.digest()} {options}",
            earlier_fingerprint=f"{model.sha256} {inputs.paths[0].resolve()} {options}",
        )


def _origin(
    model: ModelFile, inputs: Inputs, scene: xr.Dataset, made: str, folder: Path | None
) -> dict[str, Any]:
    """Return the attributes that say what a map was made from, and how."""
    own = inputs.attributes(folder)
    of_model = {"model": recorded_path(model.path, folder), "model_sha256": model.sha256}
    listed = ", ".join(f"{name} {value}" for name, value in of_model.items())
    first, more = inputs.paths[0], len(inputs.paths) - 1
    title = f"Map of {first.name}{f' and {more:,} more' if more else ''} by {model.path.name}"
    if "source" in scene.attrs:
        # A simulator is named as such.
        title += f" ({scene.attrs['source']})"
    named = {"title": str(scene.attrs.get("title", title))}
    history = add_history(scene.attrs, f"{made} ({_scene_text(own)}, {listed})")
    return named | own | of_model | history


def _scene_text(recorded: Mapping[str, Any]) -> str:
    scene = recorded[SCENE]
    if isinstance(scene, str):
        return f"scene {scene}"
    return f"scene {scene[0]} and {len(scene) - 1:,} more"


def _legend_digest(legend: Legend) -> str:
    return hashlib.sha256(json.dumps(legend.as_dict()).encode()).hexdigest()
