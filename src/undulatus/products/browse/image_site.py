"""Build the pages of a map of one image: read in blocks, written atomically."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt

from undulatus._files import atomic_write, require_folder, require_space
from undulatus._system import count_cores
from undulatus.products.browse.image_map import (
    LARGEST_DEVIATION,
    LEAST_DEVIATION,
    STRETCH,
    ImageMap,
    Picture,
    dataset_map,
    open_picture,
    raster_map,
    sample_windows,
)
from undulatus.products.browse.pyramid import TILE, Pyramid, build_pyramid
from undulatus.products.browse.sprites import BYTE_OF_ONE, MISSING_BYTE, to_base64
from undulatus.products.browse.tiles import MISSING_NUMBER, SpectraWriter, TileWriter
from undulatus.products.legend import Legend
from undulatus.products.panels import COLOUR_SCALES, GROUND, HATCH, ColourScale, uncertainty_scale
from undulatus.products.provenance import Provenance
from undulatus.products.templates import render_template
from undulatus.scenes.files.images import RASTERS
from undulatus.scenes.files.inputs import Inputs, find_recorded
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.writing import GEOTIFF
from undulatus.storage import load_model

Array = npt.NDArray[Any]

Progress = Callable[[int, int], None]

PACKAGE = "undulatus.products.browse"

ASSETS = ("loading.js", "panes.js", "spectrum.js", "inspect.js", "image.css")
"""Files that are copied beside the page as they are."""


def browse_image(
    path: Path,
    output: str | os.PathLike[str],
    *,
    scene: Path | Sequence[Path] | None = None,
    model: Path | None = None,
    rgb: Sequence[str] | None = None,
    spectra_step: int = 1,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> Path:
    """Write pages for the map of one image in a file, and return the page to open.

    Image and model are those that the map names, unless others are given; what is not found is
    left out, and said. ``rgb`` are the bands shown as red, green and blue. See
    :func:`build_image_site` for the rest.
    """
    is_raster = path.suffix.lower() in (*RASTERS, *GEOTIFF)
    maps = raster_map(path) if is_raster else dataset_map(open_map(path), path)
    image = Inputs.of_map(maps.attrs, scene, path.parent)
    if image is None or image.lost is not None:
        lost = None if image is None else image.lost
        _say_absent(lost, "scene", "image and spectra are", say)
    recorded = maps.attrs.get("model")
    fitted = model or (None if recorded is None else find_recorded(str(recorded), path.parent))
    if fitted is None or not fitted.exists():
        _say_absent(fitted, "model", "training spectra are", say)
        fitted = None
    if not maps.probabilities:
        say(f"{path} has no other layers beside it: probabilities and uncertainty are left out.")
    return build_image_site(
        maps,
        None if image is None or image.lost is not None else open_picture(image, maps, rgb),
        output,
        title=path.name,
        model=None if fitted is None else load_model(fitted),
        spectra_step=spectra_step,
        progress=progress,
    )


def _say_absent(path: Path | None, what: str, absent: str, say: Callable[[str], None]) -> None:
    """Say that a map names no such file, or one that does not exist."""
    reason = f"does not name its {what}" if path is None else f"names {path}, which does not exist"
    say(f"The map {reason}: {absent} left out. Give --{what} to show them.")


def build_image_site(
    maps: ImageMap,
    picture: Picture | None,
    output: str | os.PathLike[str],
    *,
    title: str = "",
    model: Any = None,
    spectra_step: int = 1,
    progress: Progress | None = None,
) -> Path:
    """Write a folder of pages to look through a map of one image, and return the page to open.

    The page shows the image, the classes, the probability of a class and the uncertainty side by
    side at every zoom, and for a pixel that is clicked its class, probabilities and spectrum, over
    the training spectra of its class. It opens from disk, without a server or a network.

    Parameters
    ----------
    maps : ImageMap
    picture : Picture, optional
        The mapped image. Without it there are no image and no spectra.
    output : path
        A new folder; it appears only when everything is written.
    title : str
        What the page calls the map, such as the name of its file.
    model : classifier, optional
        The model that made the map; its ``class_profiles``
        (:class:`~undulatus.products.provenance.Provenance`) are shown.
    spectra_step : int
        Spectra are kept of every so many pixels along rows and columns:
        1, 2, 4, 8 or 16; 0 for none.
    progress : callable, optional
        Called with the number of blocks that are done, and of all blocks.
    """
    output = Path(output)
    pyramid = Pyramid(maps.shape)
    counts = _Counts(len(maps.classes))
    bands = len(picture.bands.names) if picture is not None else 0
    require_folder(output)
    require_space(output, _most_bytes(maps, bands, spectra_step))
    with atomic_write(output) as unfinished:
        tiles = TileWriter(unfinished / "tiles", len(maps.planes))
        tiles.make_folders(pyramid)
        spectra: SpectraWriter | None = None
        if picture is not None and spectra_step:
            spectra = SpectraWriter(unfinished / "spectra", picture.bands, spectra_step)
            spectra.folder.mkdir()

        def read(rows: slice, columns: slice) -> Array:
            planes = maps.read(rows, columns)
            counts.add(planes[0])
            if picture is None:
                return planes
            values = picture.bands.read(rows, columns)
            if spectra is not None:
                spectra.write(rows, columns, values)
            return np.concatenate([planes, picture.colours(values)])

        build_pyramid(
            pyramid,
            read,
            tiles.write,
            workers=count_cores(),
            progress=progress or (lambda done, total: None),
        )
        page = _Page(maps, picture, title, counts, spectra, *class_profiles(model, maps, picture))
        page.write(unfinished)
    return output / "index.html"


def _most_bytes(maps: ImageMap, bands: int, step: int) -> int:
    """Return the size of the files if nothing could be compressed."""
    height, width = maps.shape
    # Smaller levels add a third to the first, and base64 a third to what is packed.
    tiles = 4 / 3 * (4 / 3 * len(maps.planes) + (3 if bands else 0))
    spectra = 4 / 3 * 2 * bands / step**2 if step else 0.0
    return int(height * width * (tiles + spectra))


@dataclass
class _Counts:
    """How many pixels have each class; blocks are added from several threads."""

    classes: int
    _each: list[Array] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, positions: Array) -> None:
        found = np.bincount(positions.ravel(), minlength=256)
        with self._lock:
            self._each.append(found)

    @property
    def pixels(self) -> list[int]:
        """Of each class."""
        total: Array = np.sum(self._each, axis=0)
        return [int(n) for n in total[: self.classes]]


# Training spectra of classes


def class_profiles(
    model: Any, maps: ImageMap, picture: Picture | None
) -> tuple[dict[str, Any] | None, str]:
    """Return quantiles of the training values of each class at the bands of the image.

    The result has ``quantiles``, and ``values``: for each class of the map a list over quantiles
    of lists over bands, None at a band that is not a feature of the model; or None for a class
    without values. If there are none at all it is None, and the text says why.
    """
    if model is None:
        return None, "The model of the map was not found (undulatus browse --model)."
    if picture is None:
        return None, ""
    profiles = Provenance.of(model).class_profiles
    if profiles is None:
        return None, "The model does not know the training spectra of its classes."
    legend = Legend.of(model)
    order = list(range(len(legend.classes)))
    if maps.of_clouds and legend.cloud_index is not None:
        # A mask of clouds has cloud last, whatever the order of the model's classes.
        order.sort(key=lambda position: position == legend.cloud_index)
    place = {str(name): i for i, name in enumerate(profiles["features"])}
    bands = [place.get(name) for name in picture.bands.names]
    if len(order) != len(maps.classes) or all(band is None for band in bands):
        return None, "The model's classes or features are not those of the map and its image."

    def at_bands(position: int) -> list[list[float | None]] | None:
        names = (legend.names[position], str(legend.classes[position]))
        found = next((profiles["values"][n] for n in names if n in profiles["values"]), None)
        if found is None:
            return None
        return [[None if b is None else float(row[b]) for b in bands] for row in found]

    values = [at_bands(position) for position in order]
    return {"quantiles": list(profiles["quantiles"]), "values": values}, ""


# The page


@dataclass(frozen=True)
class _Page:
    """What the page shows besides tiles."""

    maps: ImageMap
    picture: Picture | None
    title: str
    counts: _Counts
    spectra: SpectraWriter | None
    profiles: dict[str, Any] | None
    no_profiles: str
    """Why there are no profiles."""

    def write(self, folder: Path) -> None:
        """Write ``index.html`` and what it loads."""
        for name in ASSETS:
            text = files(PACKAGE).joinpath(name).read_text(encoding="utf-8")
            (folder / name).write_text(text, encoding="utf-8")
        data = json.dumps(self._script_data(), allow_nan=False)
        (folder / "data.js").write_text(f"window.undulatusMap = {data};\n", encoding="utf-8")
        page = render_template(PACKAGE, "image.html.jinja", **self._template_values())
        (folder / "index.html").write_text(page, encoding="utf-8")

    def _script_data(self) -> dict[str, Any]:
        maps, grid = self.maps, self.maps.grid
        scale = self._uncertainty()
        return {
            "shape": maps.shape,
            "tile": TILE,
            "top": Pyramid(maps.shape).top,
            "planes": maps.planes,
            "image": self.picture is not None,
            "one": BYTE_OF_ONE,
            "missing": MISSING_BYTE,
            "classes": [{"name": each.name, "colour": each.colour} for each in maps.classes],
            "ground": [GROUND, HATCH],
            "deviation": None
            if scale is None
            else {
                "range": [LEAST_DEVIATION, LARGEST_DEVIATION],
                "low": scale.low,
                "high": scale.high,
            },
            "colours": {
                pane: to_base64(
                    matplotlib.colormaps[COLOUR_SCALES[pane].colours](np.arange(256), bytes=True)
                )
                for pane in ("probability", "uncertainty")
            },
            "grid": None if grid is None else {"transform": [*grid.transform][:6]},
            "spectra": self._spectra(),
            "profiles": self.profiles,
        }

    def _spectra(self) -> dict[str, Any] | None:
        if self.spectra is None:
            return None
        bands = self.spectra.bands
        units = {str(attrs.get("units", "")) for attrs in bands.band_attrs}
        return {
            "step": self.spectra.step,
            "bands": bands.names,
            "units": units.pop() if len(units) == 1 else "",
            "missing": MISSING_NUMBER,
        }

    def _uncertainty(self) -> ColourScale | None:
        """Return the colour scale of standard deviations, or None if there are none."""
        if "deviation" not in self.maps.planes:
            return None
        plane = self.maps.planes.index("deviation")
        found = [self.maps.read(*w)[plane].ravel() for w in sample_windows(self.maps.shape)]
        known = np.concatenate(found)
        known = known[known != MISSING_BYTE]
        if not known.size:
            return None
        ratio = np.log(LARGEST_DEVIATION / LEAST_DEVIATION)
        deviation = LEAST_DEVIATION * np.exp(ratio * known / BYTE_OF_ONE)
        return uncertainty_scale(deviation**2)

    def _template_values(self) -> dict[str, Any]:
        maps, (height, width) = self.maps, self.maps.shape
        pixels = self.counts.pixels
        mapped = max(sum(pixels), 1)
        absent = height * width - sum(pixels)
        return {
            "title": self.title or "Map",
            "summary": self._summary(absent),
            "statements": list(self._statements()),
            "classes": [
                {"name": each.name, "colour": each.colour, "share": f"{100 * n / mapped:.1f} %"}
                for each, n in zip(maps.classes, pixels, strict=True)
            ],
            "panes": self._panes(),
            "picture": self._picture_text(),
            "has_outside": "outside" in maps.planes,
            "has_probability": bool(maps.probabilities),
            "height": height,
            "width": width,
            "crs": maps.grid.crs_name if maps.grid else "",
            "spectra_step": self.spectra.step if self.spectra else 0,
            "no_profiles": self.no_profiles,
            "history": maps.attrs.get("history", ""),
        }

    def _summary(self, absent: int) -> str:
        height, width = self.maps.shape
        text = f"{height:,} x {width:,} pixels"
        if absent:
            text += f", {absent:,} of them without a class"
        return f"{text}."

    def _panes(self) -> list[tuple[str, str]]:
        """Return the names and the titles of the panes."""
        panes = [("image", "Image")] if self.picture is not None else []
        panes.append(("class", "Classes"))
        if self.maps.probabilities:
            panes += [("probability", "Probability"), ("uncertainty", "Uncertainty")]
        return panes

    def _picture_text(self) -> str:
        if self.picture is None:
            return ""
        names = [self.picture.bands.names[band] for band in self.picture.shown]
        low, high = STRETCH
        stretched = f"{low:g} to {high:g} % of the values"
        if len(names) == 1:
            return f"{names[0]}, {stretched}"
        return f"red {names[0]}, green {names[1]}, blue {names[2]}; {stretched}"

    def _statements(self) -> Iterator[str]:
        """Give what a reader must know of the map."""
        if self.picture is None:
            yield (
                "Made without the image of the map, so the image and spectra are not shown "
                "(undulatus browse --scene)."
            )
        if not self.maps.probabilities:
            yield (
                "Made without probabilities (in a .tif, those of NAME_layers.tif beside it), so "
                "these and uncertainty are not shown."
            )
        described = _text_of(self.maps.attrs)
        if "synthetic" in described.lower():
            yield f"Synthetic data: {described}."


def _text_of(attrs: Mapping[str, Any]) -> str:
    return str(attrs.get("title") or attrs.get("source", ""))
