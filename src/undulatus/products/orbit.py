"""A real orbit of a sounder: labelled by its visible channel, held out in stretches, on a globe.

The paper's second system on measurements that anyone can fetch: the infrared channels of HIRS
alone against clear and cloudy as its visible channel sees them by day
(:mod:`undulatus.scenes.visible`). ``python -m benchmarks.hirs_orbit`` compares classifiers on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contourpy
import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from undulatus import datasets
from undulatus._files import replacing
from undulatus.products.scores import Scores, score
from undulatus.scenes.files.opening import open_spectra
from undulatus.scenes.sampling import cell_names
from undulatus.scenes.spectra import CLOUDY, check_spectra
from undulatus.scenes.visible import label_by_brightness

Array = npt.NDArray[Any]

LATITUDE_BANDS = ((-60, -30), (-30, 0), (0, 30), (30, 60))
"""Degrees, for scores; labels reach no farther."""

SURFACE_COLOUR, COAST_COLOUR, NO_VALUE_COLOUR = "#eef1f4", "#3c4a57", "#e6a9bf"

CLASSES = ListedColormap(["#2b6ca3", "#f2c14e"])
"""Colours of clear and cloudy."""

_COAST_CELL = 5
"""Cells of the land's share, 0.1° wide, that are averaged for coastlines."""


def labelled_orbit() -> xr.Dataset:
    """Return the orbit of :func:`undulatus.datasets.load_hirs_orbit`, labelled by day.

    Spectra in standard form, with the variables of
    :func:`undulatus.scenes.visible.label_by_brightness`; fetched at first.
    """
    spectra = open_spectra(datasets.load_hirs_orbit().path)
    return check_spectra(label_by_brightness(spectra, datasets.load_land_share().share))


@dataclass(frozen=True)
class LabelledViews:
    """Views with a label and all their channels: what classifiers are compared on."""

    rows: Array
    """Their places in the orbit, (n,)."""
    X: Array
    """Brightness temperatures, K, (n, channels)."""
    y: Array
    """0 clear, 1 cloudy."""
    stretch: Array
    """Names of the stretches of five minutes, which are held out whole."""
    latitude: Array
    land: Array
    """Whether it is land."""

    @classmethod
    def of(cls, orbit: xr.Dataset) -> LabelledViews:
        """Return those of a labelled orbit."""
        values = orbit["brightness_temperature"].values
        rows = np.flatnonzero((orbit[CLOUDY].values < 2) & np.isfinite(values).all(axis=1))
        return cls(
            rows,
            values[rows],
            orbit[CLOUDY].values[rows].astype(np.int64),
            cell_names(orbit)[rows],
            orbit["latitude"].values[rows],
            orbit["land_share"].values[rows] == 100,
        )

    def folds(self) -> Iterator[tuple[str, Array, Array]]:
        """Yield each stretch with the rows to learn from and its own, to test on."""
        for name in np.unique(self.stretch):
            own = self.stretch == name
            yield str(name), np.flatnonzero(~own), np.flatnonzero(own)

    def parts(self) -> dict[str, Array]:
        """Return the rows of each latitude band and surface, (n,) bool, after all of them."""
        parts = {"all": np.ones(len(self.y), bool), "sea": ~self.land, "land": self.land}
        for low, high in LATITUDE_BANDS:
            inside = (self.latitude >= low) & (self.latitude < high)
            parts[f"{_degrees(low)} to {_degrees(high)}"] = inside
        return {name: rows for name, rows in parts.items() if rows.any()}

    def scores(self, probability: Array) -> dict[str, Scores]:
        """Return scores of the probability of cloud, (n,), over each part."""
        return {
            name: score(self.y[rows] == 1, probability[rows])
            for name, rows in self.parts().items()
        }


def _degrees(latitude: int) -> str:
    return f"{abs(latitude)}° {'S' if latitude < 0 else 'N'}" if latitude else "0°"


# The globe


@dataclass(frozen=True)
class GlobePanel:
    """What one globe shows: a value for each view, missing where it is not drawn."""

    title: str
    values: Array
    colours: Any
    low: float
    high: float
    label: str
    ticks: Mapping[float, str] | None = None
    """Texts of the ticks of the colour bar."""
    lacking: str = ""
    """What the views have in common that are drawn in ``NO_VALUE_COLOUR``."""
    belongs: Array | None = None
    """Which views are drawn so if they have no value, (n,) bool; none by default."""


def project(
    latitude: Array, longitude: Array, centre: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """Return places on a globe seen from afar above ``centre`` (latitude, longitude; degrees).

    The globe has radius one; third comes whether a place is on the side that is seen.
    """
    phi, turn = np.radians(latitude), np.radians(np.asarray(longitude) - centre[1])
    tilt = np.radians(centre[0])
    x = np.cos(phi) * np.sin(turn)
    y = np.cos(tilt) * np.sin(phi) - np.sin(tilt) * np.cos(phi) * np.cos(turn)
    towards = np.sin(tilt) * np.sin(phi) + np.cos(tilt) * np.cos(phi) * np.cos(turn)
    return x, y, towards > 0.0


def draw_globes(
    path: Path, orbit: xr.Dataset, panels: Sequence[GlobePanel], centre: tuple[float, float]
) -> None:
    """Draw views of an orbit on globes side by side, with coastlines, and write the picture."""
    figure = Figure(figsize=(4.8 * len(panels), 5.8), dpi=110, layout="constrained")
    coasts = list(_coastlines(datasets.load_land_share()))
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_globe(axis, coasts, centre)
        x, y, seen = project(orbit["latitude"].values, orbit["longitude"].values, centre)
        drawn = seen & np.isfinite(panel.values)
        if panel.belongs is not None:
            without = seen & panel.belongs & ~np.isfinite(panel.values)
            axis.scatter(
                x[without], y[without], color=NO_VALUE_COLOUR, s=2.7, linewidths=0, zorder=2
            )
        points = axis.scatter(
            x[drawn], y[drawn], c=panel.values[drawn], cmap=panel.colours, vmin=panel.low,
            vmax=panel.high, s=2.7, linewidths=0, zorder=2,
        )  # fmt: skip
        axis.set_title(panel.title, fontsize=11)
        bar = figure.colorbar(points, ax=axis, orientation="horizontal", shrink=0.6, pad=0.02)
        lacking = f"\n({panel.lacking} in pink)" if panel.lacking else "\n"
        bar.set_label(panel.label + lacking, fontsize=9)
        if panel.ticks:
            bar.set_ticks(list(panel.ticks), labels=list(panel.ticks.values()))
        bar.ax.tick_params(labelsize=8)
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:])


def _draw_globe(axis: Axes, coasts: list[Array], centre: tuple[float, float]) -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 361)
    axis.fill(np.cos(angle), np.sin(angle), color=SURFACE_COLOUR, zorder=0)
    axis.plot(np.cos(angle), np.sin(angle), color=COAST_COLOUR, linewidth=0.8, zorder=4)
    lines = [(np.linspace(-90, 90, 181), np.full(181, place)) for place in range(-180, 180, 30)]
    lines += [(np.full(361, place), np.linspace(-180, 180, 361)) for place in range(-60, 61, 30)]
    for latitude, longitude in lines:
        x, y, seen = project(latitude, longitude, centre)
        axis.plot(np.where(seen, x, np.nan), y, color="#c9d1d9", linewidth=0.4, zorder=1)
    for coast in coasts:
        x, y, seen = project(coast[:, 1], coast[:, 0], centre)
        axis.plot(np.where(seen, x, np.nan), y, color=COAST_COLOUR, linewidth=0.6, zorder=3)
    axis.set(aspect="equal", xlim=(-1.02, 1.02), ylim=(-1.02, 1.02))
    axis.set_axis_off()


def _coastlines(land: Any) -> Iterator[Array]:
    """Yield lines of longitudes and latitudes, (n, 2), where the share of land passes a half."""
    rows, columns = (size // _COAST_CELL for size in land.share.shape)
    blocks = land.share.reshape(rows, _COAST_CELL, columns, _COAST_CELL).mean(axis=(1, 3))
    latitude = land.latitude.reshape(rows, -1).mean(axis=1)
    longitude = land.longitude.reshape(columns, -1).mean(axis=1)
    lines: Any = contourpy.contour_generator(longitude, latitude, blocks).lines(50.0)
    yield from lines
