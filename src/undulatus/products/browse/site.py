"""Build the browser of a map: read in blocks of time, written atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._files import atomic_write
from undulatus.errors import SceneError
from undulatus.products.browse.calendar import (
    Calendar,
    class_pixel_shares,
    make_calendar,
    pixel_shares,
)
from undulatus.products.browse.page import Contents, write_page
from undulatus.products.browse.sprites import LONGEST_SIDE, SeriesWriter, Sheet, SpriteWriter
from undulatus.products.layers import CLASS_PROBABILITY, PROBABILITY
from undulatus.products.panels import Acquisition, panel_names, render_acquisitions, scales_for
from undulatus.products.views import (
    MapView,
    acquisitions_between,
    blocks_of_time,
    view_map,
    view_scene,
)

Array = npt.NDArray[Any]

Progress = Callable[[int, int], None]

MOST_PIXELS = 500_000_000
"""A site has at most this many pixels in all its panels, some 400 MB; a year of 20 x 26 pixels has
a quarter of that."""

MOST_CELLS = 4_000_000
"""Its table of days by times of day has at most this many cells."""


def build_site(
    maps: xr.Dataset,
    scene: xr.Dataset | None,
    output: str | os.PathLike[str],
    *,
    title: str = "",
    start: Any = None,
    end: Any = None,
    progress: Progress | None = None,
) -> Path:
    """Write a folder of pages to browse a map with, and return the page to open.

    The page shows the share of cloud in every acquisition in a table of days by times of day, the
    panels of the chosen acquisition, where model and Level-2 mask differ most, and the series of
    a pixel. Of a map of classes it shows the share of any class, the probabilities of all, and
    where model and label differ, if the scene has a label of the same classes. It opens from disk
    and needs neither a server nor a network.

    Parameters
    ----------
    maps : Dataset
        The result of :func:`undulatus.products.maps.map_scene`, (time, y, x).
    scene : Dataset, optional
        The scene that was mapped. Without it there are no RGB, infrared and Level-2 panels.
    output : path
        A new folder; it appears only when everything is written.
    title : str
        What the page calls the map, such as the name of its file.
    start, end : times, optional
        First and last acquisition, UTC, both included; a date as text means the whole day.
    progress : callable, optional
        Called with the number of acquisitions done and their total.
    """
    output = Path(output)
    view = view_map(maps) if scene is None else view_scene(scene, maps)
    chosen = _choose_acquisitions(view, start, end)
    calendar = make_calendar(view.times[chosen])
    sheet = Sheet(view.shape, int(np.bincount(calendar.day).max()))
    _require_room(view, calendar, sheet)
    with atomic_write(output) as unfinished:
        for folder in ("days", "rows"):
            (unfinished / folder).mkdir(parents=True)
        contents = Contents(view, calendar, sheet, scales_for(view, chosen), title)
        _write_acquisitions(unfinished, contents, chosen, progress or (lambda done, total: None))
        write_page(unfinished, contents, ({} if scene is None else scene.attrs) | maps.attrs)
    return output / "index.html"


def _choose_acquisitions(view: MapView, start: Any, end: Any) -> Array:
    """Return the indices of the acquisitions from start to end, in order, one for each time."""
    if np.isnat(view.times).any():
        raise SceneError(
            "The map has acquisitions without a time. Map a scene that has times, in UTC (in "
            "Python, give the map some by maps.assign_coords(time=...))."
        )
    inside = acquisitions_between(view, start, end)
    _, first = np.unique(view.times[inside].astype("datetime64[s]"), return_index=True)
    return inside[first]


def _require_room(view: MapView, calendar: Calendar, sheet: Sheet) -> None:
    height, width = view.shape
    # The probabilities of each class are stored beside the panels.
    each = height * width * (len(panel_names(view)) + len(view.classes))
    count, days = len(calendar.seconds), len(np.unique(calendar.day))
    if count * each > MOST_PIXELS:
        fits = int(MOST_PIXELS / each / (count / days))
        remedy = f"at most {fits} of {days} days" if fits else "a smaller window of the image"
        raise SceneError(
            f"{count:,} acquisitions of {height} x {width} pixels are too many for a browser: "
            f"{count * each:,} pixels in all panels, {MOST_PIXELS:,} at most.\n"
            f"Take {remedy} (undulatus browse --span START/END; undulatus map --box; in Python "
            f"maps.isel(y=..., x=...))."
        )
    if max(sheet.size) > LONGEST_SIDE:
        raise SceneError(
            f"A day has {sheet.count:,} acquisitions of {height} x {width} pixels, more than fit "
            f"into one image. Map a smaller part (--box), or take every other one (in Python "
            f"maps.isel(time=slice(None, None, 2)))."
        )
    if np.prod(calendar.shape) > MOST_CELLS:
        raise SceneError(
            f"The map covers {calendar.shape[0]:,} days in steps of {calendar.step // 60} "
            f"minutes, too many for one table. Take fewer (undulatus browse --span START/END)."
        )


def _write_acquisitions(
    folder: Path, contents: Contents, chosen: Array, progress: Progress
) -> None:
    view, done = contents.view, 0
    dates = contents.calendar.dates
    with (
        SpriteWriter(folder / "days", contents.sheet) as sprites,
        SeriesWriter(folder / "rows", view.shape[0]) as series,
    ):
        for indices in blocks_of_time(view, chosen):
            block = view.read(indices)
            series.add(block[CLASS_PROBABILITY if view.classes else PROBABILITY].values)
            acquisitions: list[Acquisition] = []
            for acquisition in render_acquisitions(view, block, contents.scales):
                sprites.add(dates[done], acquisition)
                acquisitions.append(acquisition)
                done += 1
            shares = (
                class_pixel_shares(block, view.classes) if view.classes else pixel_shares(block)
            )
            contents.add(acquisitions, shares)
            progress(done, len(chosen))
