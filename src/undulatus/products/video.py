"""A video of a scene and its map: one acquisition a frame, drawn on one figure."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from undulatus._files import atomic_write
from undulatus.errors import InputError, SceneError
from undulatus.products.panels import (
    MASKS,
    Acquisition,
    ColourScale,
    PanelImage,
    box_ratio,
    caption_lines,
    draw_key,
    draw_legend,
    extra_key_lines,
    panel_names,
    panel_title,
    place_axes,
    read_acquisitions,
    scales_for,
)
from undulatus.products.views import MapView, acquisitions_between, view_scene

Array = npt.NDArray[Any]

Progress = Callable[[int, int], None]

WIDTH = 1280
"""Width of a frame, pixels."""

_DPI = 100

_GAP, _HEAD, _KEY, _KEY_LINE, _FOOT = 16, 30, 58, 17, 28
"""Space between panels, above and below a panel, and at the foot of the frame, pixels."""

_LINE, _DATE = 21, 143
"""Height of a line of text, and width of a date, pixels."""

_LEAST_HEIGHT = 176
"""Least height of a panel, pixels: the caption fills one panel's place."""

_LINES_KEPT = 1024
"""Lines of a caption that are kept as drawn."""

_BLOCK = 16
"""H.264 encodes blocks of 16 x 16 pixels: the size of a frame is a multiple of it."""

_ENCODING = [
    *("-preset", "veryfast"),
    # A key frame at least every 96 frames, or seeking would be slow.
    *("-g", "96"),
    # Browsers assume BT.709 for unmarked video; ffmpeg would write BT.601.
    *("-vf", "scale=out_color_matrix=bt709:out_range=tv"),
    *("-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"),
    # The index comes first, so that a browser can play while it loads.
    *("-movflags", "+faststart"),
]


def write_video(
    path: str | os.PathLike[str],
    scene: xr.Dataset,
    result: xr.Dataset,
    *,
    start: Any = None,
    end: Any = None,
    frames_per_second: float = 12,
    progress: Progress | None = None,
) -> None:
    """Write an MP4 (H.264, as browsers play it) of the acquisitions from ``start`` to ``end``.

    It shows the panels of :func:`undulatus.products.pictures.draw_acquisitions`. Data are read
    in blocks of time.

    Parameters
    ----------
    path : path
        Ending in ``.mp4``; written atomically.
    scene : Dataset
        (time, y, x) or (y, x).
    result : Dataset
        What :func:`undulatus.products.maps.map_scene` made of it; acquisitions that it lacks are
        not shown.
    start, end : times, optional
        UTC, both included; a date as text means the whole day.
    progress : callable, optional
        Called after each frame with the number of frames done and their total.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise SceneError(f"A video is written to an .mp4 file, not to {path}: rename it.")
    if not 0 < frames_per_second < math.inf:
        raise InputError(
            f"frames_per_second must be positive and finite, got {frames_per_second!r}."
        )
    view = view_scene(scene, result)
    chosen = acquisitions_between(view, start, end)
    with atomic_write(path) as unfinished:
        scales = scales_for(view, chosen)
        screen = Screen(view, scales)
        with _encoder(unfinished, screen.size, frames_per_second) as encode:
            for done, acquisition in enumerate(read_acquisitions(view, chosen, scales), start=1):
                encode(screen.frame(acquisition))
                if progress is not None:
                    progress(done, len(chosen))
        _require_whole(unfinished, len(chosen))


class Screen:
    """One figure whose images and caption change; everything else is drawn once."""

    def __init__(self, view: MapView, scales: dict[str, ColourScale]) -> None:
        # Masks are side by side in the lower row; the caption comes last.
        order = sorted(panel_names(view), key=lambda name: name in MASKS)
        columns = (len(order) + 2) // 2
        wide = _whole_pixels(WIDTH // columns - _GAP, view.shape[1])
        tall = max(round(wide * box_ratio(view.shape)), _LEAST_HEIGHT)
        gap = (WIDTH - columns * wide) // (columns + 1)
        down = _HEAD + tall + _KEY + _KEY_LINE * extra_key_lines(view)
        self.size = WIDTH, -(-(2 * down + _FOOT) // _BLOCK) * _BLOCK
        self.figure = Figure(figsize=(WIDTH / _DPI, self.size[1] / _DPI), dpi=_DPI)
        # Matplotlib's canvas has no types.
        self.canvas: Any = FigureCanvasAgg(self.figure)
        self.panels: dict[str, PanelImage] = {}
        corners = [
            (gap + column * (wide + gap), _HEAD + row * down)
            for row in range(2)
            for column in range(columns)
        ]
        for name, (left, top) in zip(order, corners, strict=False):
            self._add_panel(name, view, scales, (left, top, wide, tall))
        self.caption = Caption(self.canvas, *corners[len(order)], wide)
        bottom = self.size[1] - _FOOT
        draw_legend(self._axes(WIDTH // 2, bottom, WIDTH // 2 - gap, 20), view, "center right")
        self.figure.text(gap / WIDTH, 10 / self.size[1], view.footnote, style="italic")
        self._draw_once()

    def _axes(self, left: int, top: int, width: int, height: int) -> Axes:
        """Add axes; lengths are in pixels, from the upper left corner."""
        return place_axes(self.figure, left / _DPI, top / _DPI, width / _DPI, height / _DPI)

    def _add_panel(
        self,
        name: str,
        view: MapView,
        scales: dict[str, ColourScale],
        box: tuple[int, int, int, int],
    ) -> None:
        axis = self._axes(*box)
        axis.set_title(panel_title(name, view), fontsize=11)
        # The image covers the inner half of the line.
        axis.spines[:].set_linewidth(1.8)
        self.panels[name] = PanelImage(axis, view)
        left, top, wide, tall = box
        key = self._axes(left + 10, top + tall + 6, wide - 20, 12)
        draw_key(self.figure, key, name, view, scales)

    def _draw_once(self) -> None:
        """Draw everything that never changes, and keep it as the background."""
        for shown in self.panels.values():
            shown.image.set_visible(False)
            shown.coast.set_animated(True)
            shown.note.set_animated(True)
        self.canvas.draw()
        self._background = self.canvas.copy_from_bbox(self.figure.bbox)
        self._boxes = {
            name: np.round(shown.axis.get_window_extent().extents).astype(int)
            for name, shown in self.panels.items()
        }

    def frame(self, acquisition: Acquisition) -> memoryview:
        """Return the frame of an acquisition, RGBA bytes, valid until the next frame is drawn."""
        self.canvas.restore_region(self._background)
        renderer = self.canvas.get_renderer()
        context = renderer.new_gc()
        for name, shown in self.panels.items():
            left, bottom, right, top = self._boxes[name]
            # Enlarged here: matplotlib's resampling takes five times as long.
            image = enlarge(acquisition.images[name], top - bottom, right - left)
            renderer.draw_image(context, left, bottom, image[::-1])
            shown.annotate(acquisition, name)
            shown.coast.draw(renderer)
            shown.note.draw(renderer)
        self.caption.draw([*acquisition.time.split(" ", 1), *caption_lines(acquisition)])
        return self.canvas.buffer_rgba()


class Caption:
    """Lines of text on a plain background; each is drawn once and then copied."""

    def __init__(self, canvas: Any, left: int, top: int, width: int) -> None:
        self._canvas = canvas
        self._corner = left, top
        self._width = width
        self._drawn: dict[tuple[int, str], Any] = {}

    def draw(self, lines: list[str]) -> None:
        """Draw the date, the hour to its right, and all other lines below."""
        for number, line in enumerate(lines):
            if not line:
                continue
            if (number, line) not in self._drawn:
                if len(self._drawn) >= _LINES_KEPT:
                    self._drawn.clear()
                self._drawn[number, line] = self._draw(number, line)
            self._canvas.restore_region(self._drawn[number, line])

    def _draw(self, number: int, line: str) -> Any:
        """Draw a line, and return the part of the frame that it covers."""
        (left, top), height = self._corner, self._canvas.figure.bbox.height
        heading = number < 2
        if number == 1:
            left += _DATE
        top += 0 if heading else 16 + _LINE * (number - 1)
        text = self._canvas.figure.text(
            left / self._canvas.figure.bbox.width,
            1.0 - (top + _LINE / 2) / height,
            line,
            fontsize=15 if heading else 11,
            fontweight="bold" if heading else "normal",
            verticalalignment="center",
            animated=True,
        )
        text.draw(self._canvas.get_renderer())
        text.remove()
        right = left + _DATE if number == 0 else self._corner[0] + self._width
        return self._canvas.copy_from_bbox(
            Bbox.from_extents(left, height - top - _LINE, right, height - top)
        )


def enlarge(image: Array, height: int, width: int) -> Array:
    """Return an image (y, x, 4) of bytes at another size, by nearest neighbour."""
    rows, columns = (
        (2 * np.arange(size) + 1) * count // (2 * size)
        for size, count in zip((height, width), image.shape, strict=False)
    )
    # Four bytes as one number: one copy for each pixel, not four.
    packed = np.ascontiguousarray(image).view(np.uint32)
    return packed[:, columns][rows].view(np.uint8)


def _whole_pixels(width: int, columns: int) -> int:
    """Return the largest multiple of an image's columns that fits; the full width if large."""
    return width // columns * columns if width >= 4 * columns else width


@contextmanager
def _encoder(
    path: Path, size: tuple[int, int], frames_per_second: float
) -> Iterator[Callable[[memoryview], None]]:
    """Yield a function that adds a frame to a video; the video is finished at the end."""
    writer = imageio_ffmpeg.write_frames(
        path,
        size,
        pix_fmt_in="rgba",
        fps=frames_per_second,
        codec="libx264",
        quality=5,
        macro_block_size=_BLOCK,
        ffmpeg_log_level="error",
        output_params=_ENCODING,
    )
    with closing(writer):
        writer.send(None)
        yield writer.send


def _require_whole(path: Path, frames: int) -> None:
    """Raise an error if a video lacks frames: ffmpeg fails silently when the disk is full."""
    try:
        found, _ = imageio_ffmpeg.count_frames_and_secs(path)
    except RuntimeError as error:
        raise OSError(f"ffmpeg wrote no video. {error}") from error
    if found != frames:
        raise OSError(f"it has {found} of {frames} frames. Is the disk full?")
