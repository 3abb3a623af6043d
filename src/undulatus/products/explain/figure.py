"""Explanations as pictures: cosines with absorption bands behind them, or bars of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from undulatus._files import atomic_write
from undulatus.errors import InputError
from undulatus.products.explain.cosines import (
    KELVIN,
    Explanation,
    by_regime,
    overall_importance,
)
from undulatus.products.explain.table import ALL_CLASSES
from undulatus.products.panels import place_axes
from undulatus.scenes.channels import ABSORPTION_BANDS, GASES
from undulatus.scenes.spectra import COMPONENTS, SCORES

Array = npt.NDArray[Any]

MOST_COSINES = 6
"""Cosines drawn one by one, at most."""

MOST_BARS = 20
"""Features drawn in a panel, at most."""

MOST_PANELS = 6
"""Panels of classes drawn side by side, at most."""

GAS_COLOURS = {
    "CO2": "#e69f00",
    "O3": "#56b4e9",
    "H2O": "#0072b2",
    "CH4": "#009e73",
    "N2O": "#d55e00",
    "CO": "#cc79a7",
}
"""Colours that people with colour-vision deficiency can distinguish (Okabe & Ito)."""

_PATTERN_COLOUR, _FILTER_COLOUR = "#1a1a1a", "#6a6a6a"

_LINE_COLOUR, _BAR_COLOUR = "#b0b0b0", "#3b6e8f"

_SUBSCRIPTS = str.maketrans("234", "₂₃₄")

_WAVELENGTH_TICKS = (15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4.5, 4)
"""Micrometres."""

_LEFT, _WIDTH, _RIGHT = 1.0, 12.0, 0.35
"""Left margin, curves, right margin, inches."""

_LANE, _CURVE, _STRIP, _GAP, _TITLE = 0.19, 1.3, 0.42, 0.06, 0.4
"""Heights of a gas's lane, a curve, a strip for the filter, a gap, a title, inches."""


_FEW_CHANNELS = 100
"""Up to so many channels of a spectrum are marked one by one."""


def draw_explanation(
    explanations: Sequence[Explanation],
    path: str | Path,
    *,
    title: str = "What the model looks at",
) -> None:
    """Write a PNG or PDF of what :func:`undulatus.products.explain.explain` found.

    For spectra: the mean spectrum with absorption bands, then the six cosines of the largest
    weight, each with its pattern and, in a strip below, its frequency, then all cosines together.
    For other features: bars of their importance, one panel per regime. With more than two
    classes: all cosines together, or bars, for all classes and for each of them.

    Parameters
    ----------
    path : path
        Ending in ``.png`` or ``.pdf``; written atomically.
    """
    path = Path(path)
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"The picture must be a .png or .pdf file, not {path}.")
    curves = all(e.wavenumbers is not None or e.measurement == SCORES for e in explanations)
    draw_curves = _draw_class_curves if explanations[0].of_class else _draw_curves
    figure = (draw_curves if curves else _draw_bars)(explanations, title)
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished)


# Curves over channels or components


class _Column:
    """Axes one below the other; ``top`` is where the next one goes, inches from the top."""

    def __init__(self, figure: Figure, top: float) -> None:
        self.figure = figure
        self.top = top

    def add(self, height: float, gap: float = _GAP) -> Axes:
        axis = place_axes(self.figure, _LEFT, self.top, _WIDTH, height)
        axis.tick_params(labelsize=9)
        self.top += height + gap
        return axis


def _spectrum_height(explanation: Explanation) -> float:
    if explanation.wavenumbers is None:
        return 0.0
    return 0.35 + len(GASES) * _LANE + _CURVE + 2 * _GAP


def _height(explanation: Explanation) -> float:
    cosines = min(len(explanation.weights), MOST_COSINES)
    above = _spectrum_height(explanation)
    strip = 0.0 if explanation.pattern is None else _STRIP + _GAP
    return above + cosines * (_TITLE + _CURVE + _GAP + strip) + _TITLE + _CURVE + 0.5


def _draw_curves(explanations: Sequence[Explanation], title: str) -> Figure:
    heights = [_height(explanation) for explanation in explanations]
    figure, tops = _tall_figure(heights, title, _footnote(explanations[0]))
    for explanation, top in zip(explanations, tops, strict=True):
        _draw_one(figure, explanation, top)
    return figure


def _tall_figure(heights: list[float], title: str, note: str) -> tuple[Figure, list[float]]:
    """Return a figure for parts one below the other, and where each begins, in inches."""
    head, foot = 0.6, 0.65
    size = (_LEFT + _WIDTH + _RIGHT, head + sum(heights) + foot)
    figure = Figure(figsize=size, dpi=120)
    figure.text(0.15 / size[0], 1 - 0.15 / size[1], title, fontsize=15, verticalalignment="top")
    figure.text(0.15 / size[0], 0.12 / size[1], note, fontsize=9, style="italic", linespacing=1.4)
    return figure, list(accumulate(heights, initial=head))[:-1]


def _draw_class_curves(explanations: Sequence[Explanation], title: str) -> Figure:
    """Draw all cosines together, for all classes and for each: these have the same cosines."""
    groups, first = by_regime(explanations), explanations[0]
    curve = _TITLE + _CURVE + _GAP
    heights = [_spectrum_height(group[0]) + (len(group) + 1) * curve + 0.5 for group in groups]
    how = "share of the cosines' phases that goes with each component"
    if first.wavenumbers is not None:
        how = "share of the cosines' phases that goes with each channel"
    if first.unit == KELVIN:
        how = "change of the spectrum that goes with one standard deviation of a cosine's phase"
    note = (
        f"{how[0].upper()}{how[1:]}, over all cosines, by their weight for a class.\n"
        f"Classes have the same cosines with weights of their own. Each curve has its own scale."
    )
    figure, tops = _tall_figure(heights, title, note)
    for group, top in zip(groups, tops, strict=True):
        column = _Column(figure, top)
        if group[0].wavenumbers is not None:
            _draw_spectrum(column, group[0])
        regime = f"regime {group[0].regime}, " if group[0].regime else ""
        axis = _draw_importance(
            column, group[0], overall_importance(group), f"{regime}{ALL_CLASSES}"
        )
        for explanation in group:
            axis = _draw_importance(
                column, explanation, explanation.importance, explanation.heading
            )
        _label_places(axis, group[0])
    return figure


def _draw_one(figure: Figure, explanation: Explanation, top: float) -> None:
    column = _Column(figure, top)
    if explanation.wavenumbers is not None:
        _draw_spectrum(column, explanation)
    shown = min(len(explanation.weights), MOST_COSINES)
    for cosine in range(shown):
        _draw_cosine(column, explanation, cosine)
    title = _all_cosines_title(explanation, shown)
    axis = _draw_importance(column, explanation, explanation.importance, title)
    _label_places(axis, explanation)


def _draw_importance(
    column: _Column, explanation: Explanation, importance: Array, title: str
) -> Axes:
    column.top += _TITLE
    axis = column.add(_CURVE)
    axis.set_title(title, fontsize=10.5, loc="left")
    _draw_values(axis, explanation, importance, _PATTERN_COLOUR)
    axis.set_ylim(0.0)
    _label(axis, "K" if explanation.unit == KELVIN else "share")
    return axis


def _label_places(axis: Axes, explanation: Explanation) -> None:
    axis.tick_params(labelbottom=True)
    what = "component" if explanation.wavenumbers is None else "wavenumber, cm⁻¹"
    axis.set_xlabel(what, fontsize=10)


def _draw_cosine(column: _Column, explanation: Explanation, cosine: int) -> None:
    column.top += _TITLE
    axis = column.add(_CURVE)
    axis.set_title(_cosine_title(explanation, cosine), fontsize=10.5, loc="left")
    axis.axhline(0.0, color=_LINE_COLOUR, linewidth=0.8)
    _draw_values(axis, explanation, explanation.profile[cosine], _PATTERN_COLOUR)
    if explanation.pattern is None:
        _label(axis, "direction")
        return
    _label(axis, "K" if explanation.unit == KELVIN else "correlation")
    strip = column.add(_STRIP)
    _draw_values(strip, explanation, explanation.frequency[cosine], _FILTER_COLOUR)
    limit = 1.08 * max(float(np.nanmax(np.abs(explanation.frequency[cosine]))), 1e-12)
    strip.set_ylim(-limit, limit)
    strip.set_yticks([0.0], ["filter"], fontsize=9, color=_FILTER_COLOUR)


def _label(axis: Axes, text: str) -> None:
    axis.set_ylabel(text, fontsize=10)
    axis.yaxis.set_label_coords(-0.055, 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _draw_spectrum(column: _Column, explanation: Explanation) -> None:
    """Draw a scale of wavelengths, a lane for each gas's bands, and the mean spectrum."""
    column.top += 0.35
    lanes = column.add(len(GASES) * _LANE)
    for row, gas in enumerate(GASES):
        for band in (band for band in ABSORPTION_BANDS if band.gas == gas):
            lanes.barh(row, band.high - band.low, 0.7, band.low, color=GAS_COLOURS[gas])
    names = [gas.translate(_SUBSCRIPTS) for gas in GASES]
    lanes.set_yticks(range(len(GASES)), names, fontsize=9)
    lanes.set_ylim(len(GASES) - 0.5, -0.5)
    _set_axis(lanes, explanation, shaded=False)
    above = lanes.secondary_xaxis("top", functions=(_reciprocal, _reciprocal))
    above.set_xticks(
        _WAVELENGTH_TICKS, [f"{length:g}" for length in _WAVELENGTH_TICKS], fontsize=9
    )
    above.set_xlabel("wavelength, µm", fontsize=10)
    axis = column.add(_CURVE)
    _draw_values(axis, explanation, explanation.mean_spectrum, _PATTERN_COLOUR)
    _label(axis, "mean\nspectrum, K")


def _reciprocal(values: npt.ArrayLike) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(1e4 / np.asarray(values, dtype=np.float64))


def _draw_values(axis: Axes, explanation: Explanation, values: Array | None, colour: str) -> None:
    assert values is not None
    if explanation.wavenumbers is None:
        axis.vlines(np.arange(len(values)), 0.0, values, color=colour, linewidth=1.4)
    else:
        marker = "o" if len(values) <= _FEW_CHANNELS else ""
        places = explanation.wavenumbers
        axis.plot(places, values, color=colour, linewidth=0.5, marker=marker, markersize=3)
    _set_axis(axis, explanation)


def _set_axis(axis: Axes, explanation: Explanation, shaded: bool = True) -> None:
    """Set the horizontal axis; behind the curve shade the gases' bands, if ``shaded``."""
    axis.tick_params(labelbottom=False)
    if explanation.wavenumbers is None:
        _set_component_axis(axis)
        return
    first, last = explanation.wavenumbers[0], explanation.wavenumbers[-1]
    # Markers of the outermost channels are not cut.
    margin = 0.01 * (last - first) if len(explanation.wavenumbers) <= _FEW_CHANNELS else 0.0
    axis.set_xlim(first - margin, last + margin)
    axis.set_xticks(range(700, 2800, 100))
    for band in ABSORPTION_BANDS if shaded else ():
        axis.axvspan(band.low, band.high, color=GAS_COLOURS[band.gas], alpha=0.16, linewidth=0)


def _set_component_axis(axis: Axes) -> None:
    starts = list(accumulate(COMPONENTS, initial=0))
    ticks: dict[int, str] = {}
    for band, (start, count) in enumerate(zip(starts, COMPONENTS, strict=False), 1):
        if start:
            axis.axvline(start - 0.5, color=_LINE_COLOUR, linewidth=0.8)
        ticks[start] = f"1\nband {band}"
        ticks |= {start + number - 1: str(number) for number in range(30, count, 30)}
    axis.set_xlim(-1.0, starts[-1])
    axis.set_xticks(list(ticks), list(ticks.values()))


def _cosine_title(explanation: Explanation, cosine: int) -> str:
    regime = f"{explanation.regime}, " if explanation.regime else ""
    title = f"{regime}cosine {cosine + 1}: {100 * explanation.shares[cosine]:.0f} % of the weight"
    if explanation.pattern is None:
        return title
    return f"{title}, phase varies by {explanation.phase_deviations[cosine]:.1f} rad"


def _all_cosines_title(explanation: Explanation, shown: int) -> str:
    regime = f"{explanation.regime}, " if explanation.regime else ""
    count = len(explanation.weights)
    mean = "root mean square" if explanation.unit == KELVIN else "mean square"
    title = f"{regime}all cosines together: {mean} of {count}, by weight"
    if shown < count:
        title += f"; those above have {100 * explanation.shares[:shown].sum():.0f} % of it"
    return title


def _footnote(explanation: Explanation) -> str:
    sign = f"the sign points towards {explanation.towards} on average"
    part = "component" if explanation.wavenumbers is None else "channel"
    if explanation.pattern is None:
        return (
            f"Share of each {part} in a cosine's phase, with {part}s taken as uncorrelated; "
            f"squares sum to one; {sign}.\n"
            f"This cannot show what {part}s have in common: fit with SpectralPCA before the "
            f"classifier to see patterns."
        )
    what = "correlation with a cosine's phase"
    if explanation.unit == KELVIN:
        what = "change of the spectrum that goes with one standard deviation of a cosine's phase"
    return (
        f"Black: {what}; {sign}, which means little if the phase varies by more than 2 rad.\n"
        f"Grey: the filter, by how much the phase turns when one {part} alone changes by "
        f"its {explanation.frequency_step.rstrip('s')}. Each curve has its own scale."
    )


# Bars of features


@dataclass(frozen=True)
class _Bars:
    """What a panel of bars shows: the importance of features, under a title."""

    title: str
    names: tuple[str, ...]
    importance: Array


def _rows_of_bars(explanations: Sequence[Explanation]) -> list[list[_Bars]]:
    """Return rows of panels: regimes side by side, or for each regime all classes and each."""
    if not explanations[0].of_class:
        return [[_Bars(e.heading, e.names, e.importance) for e in explanations]]
    rows = []
    for group in by_regime(explanations):
        regime = f"regime {group[0].regime}, " if group[0].regime else ""
        together = _Bars(f"{regime}{ALL_CLASSES}", group[0].names, overall_importance(group))
        panels = [together, *(_Bars(e.heading, e.names, e.importance) for e in group)]
        rows += [panels[i : i + MOST_PANELS] for i in range(0, len(panels), MOST_PANELS)]
    return rows


def _draw_bars(explanations: Sequence[Explanation], title: str) -> Figure:
    # Lengths are in inches, from the upper left corner.
    rows = _rows_of_bars(explanations)
    every = [bars for row in rows for bars in row]
    most = max(min(len(bars.names), MOST_BARS) for bars in every)
    longest = max(len(name) for bars in every for name in bars.names)
    shortened = any(len(bars.names) > most for bars in every)
    head = 0.7 + 0.2 * (any(bars.title for bars in every) + shortened)
    height, labels, below = 0.24 * most + 0.1, 0.085 * longest + 0.4, 0.6
    # A title is as wide as its panel at least: about 0.085 inches a letter.
    width = max(2.7, 0.085 * max(len(bars.title) for bars in every) - labels)
    step = height + below + head - 0.5
    across = max(map(len, rows))
    size = (max(across * (labels + width) + 0.3, 7.0), len(rows) * step + 1.05)
    figure = Figure(figsize=size, dpi=120)
    figure.text(0.15 / size[0], 1 - 0.15 / size[1], title, fontsize=15, verticalalignment="top")
    highest = 100.0 * max(float(bars.importance.max()) for bars in every)
    if across == 1:
        width = size[0] - labels - 0.3
    for down, row in enumerate(rows):
        for number, bars in enumerate(row):
            left, top = labels + number * (labels + width), head + down * step
            _draw_ranking(place_axes(figure, left, top, width, height), bars, most, highest)
    note = (
        "Importance: share in the phases of the cosines, by weight. Features are taken as "
        "uncorrelated, so the difference of two that vary together counts for too much."
    )
    if explanations[0].pattern is not None:
        note = "Importance: share of the variance of the cosines' phases that goes with a feature."
    note = "\n".join(wrap(note, int(13 * size[0])))
    figure.text(0.15 / size[0], 0.12 / size[1], note, fontsize=9, style="italic")
    return figure


def _draw_ranking(axis: Axes, bars: _Bars, most: int, highest: float) -> None:
    percent = 100.0 * bars.importance
    order = np.argsort(-percent, kind="stable")[:most]
    axis.barh(range(len(order)), percent[order], 0.7, color=_BAR_COLOUR)
    for row, value in enumerate(percent[order]):
        axis.text(value + 0.015 * highest, row, f"{value:.1f}", fontsize=9, va="center")
    axis.set_yticks(range(len(order)), [bars.names[index] for index in order], fontsize=9.5)
    axis.set_ylim(most - 0.5, -0.5)
    axis.set_xlim(0.0, 1.18 * max(highest, 1e-12))
    axis.set_xlabel("importance, %", fontsize=10)
    axis.tick_params(axis="x", labelsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    lines = [bars.title] if bars.title else []
    if len(order) < len(bars.names):
        lines.append(f"the first {len(order)} of {len(bars.names)} features")
    axis.set_title("\n".join(lines), fontsize=11, loc="left")
