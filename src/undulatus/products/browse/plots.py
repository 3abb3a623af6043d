"""The plots of the page, by Bokeh: the heat map of all acquisitions, and the series of a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    DatetimeTickFormatter,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
)
from bokeh.models.annotations import ColorBar, Span
from bokeh.plotting import figure
from matplotlib import colormaps
from matplotlib.colors import to_hex

from undulatus.products.browse.calendar import DAY, Calendar
from undulatus.products.legend import MapClass
from undulatus.products.panels import COLOUR_SCALES, GROUND, HATCH

Array = npt.NDArray[Any]

MILLISECONDS = 1000.0
"""In a second: Bokeh's times are in milliseconds."""

FEW_DAYS = 31
"""Up to so many days, the heat map is low and labels days; beyond, it labels months."""

_MOST_DAY_LABELS = 10

_TOOLS = "box_zoom,wheel_zoom,pan,reset"

_INK, _ACCENT, _DOTS = "#1b1b2f", "#b3361b", "#6f93b3"


def plot_items(
    calendar: Calendar, share: Array, classes: tuple[MapClass, ...] = ()
) -> dict[str, Any]:
    """Return the plots as BokehJS embeds them, by the ids of their elements in the page.

    Parameters
    ----------
    share : (n,) array
        Share of cloud, or of the class that is shown first, in each acquisition.
    classes : tuple of MapClass
        The classes of the map; none for a map of clouds.
    """
    plots = {
        "heatmap": _heat_map(calendar, share, "the class" if classes else "cloud"),
        "series-day": _day_series(calendar, classes),
        "series-all": _all_days_series(calendar, classes),
    }
    return {name: json_item(plot, ID(name)) for name, plot in plots.items()}


def _figure(**options: Any) -> Any:
    plot = figure(
        sizing_mode="stretch_both",
        min_height=150,
        toolbar_location="above",
        # Dragging and the wheel scroll the page until a tool is chosen.
        active_drag=None,
        active_scroll=None,
        output_backend="canvas",
        **options,
    )
    plot.toolbar.logo = None
    plot.xaxis.axis_label_text_font_style = plot.yaxis.axis_label_text_font_style = "normal"
    return plot


def _call_on_tap(plot: Any, function: str) -> None:
    plot.js_on_event("tap", CustomJS(code=f"undulatus.{function}(cb_obj.x, cb_obj.y)"))


def _heat_map(calendar: Calendar, share: Array, of_what: str) -> Any:
    days, slots = calendar.shape
    first = float(calendar.seconds[0] // DAY * DAY) * MILLISECONDS
    last = first + days * DAY * MILLISECONDS
    plot = _figure(
        name="heatmap",
        tools=_TOOLS,
        x_range=(0.0, 24.0),
        # Days run down, as the arrow keys do.
        y_range=(last, first),
        y_axis_type="datetime",
        x_axis_label="time of day, UTC",
    )
    _draw_ground(plot, first, last)
    palette = [to_hex(c) for c in colormaps[COLOUR_SCALES["probability"].colours](np.arange(256))]
    colours = LinearColorMapper(
        name="share-colours", palette=palette, low=0.0, high=1.0, nan_color="rgba(0,0,0,0)"
    )
    cells = plot.image(
        image=[calendar.table(share)],
        x=0.0,
        y=first,
        dw=slots * calendar.step / 3600.0,
        dh=last - first,
        color_mapper=colours,
    )
    cells.data_source.name = "cells"
    _draw_chosen(plot)
    _label_hours(plot, 6, minor=2)
    _label_days(plot, first, days)
    plot.grid.visible = False
    _describe_on_hover(plot, cells)
    bar = ColorBar(
        color_mapper=colours,
        title=f"share of {of_what} in the image (model)",
        height=10,
        padding=4,
        title_text_font_style="normal",
    )
    plot.add_layout(bar, "below")
    _call_on_tap(plot, "chooseCell")
    return plot


def _describe_on_hover(plot: Any, cells: Any) -> None:
    describe = CustomJSHover(code="return undulatus.describeCell(special_vars.x, special_vars.y)")
    hover = HoverTool(tooltips="$y{custom}", formatters={"$y": describe}, renderers=[cells])
    plot.add_tools(hover)


def _draw_ground(plot: Any, first: float, last: float) -> None:
    """Draw the hatching that shows through where there is no acquisition."""
    plot.quad(
        left=0.0,
        right=24.0,
        top=last,
        bottom=first,
        fill_color=GROUND,
        hatch_pattern="right_diagonal_line",
        hatch_color=HATCH,
        hatch_weight=0.6,
        hatch_scale=8,
        line_color=None,
    )


def _draw_chosen(plot: Any) -> None:
    """Draw a ring around the chosen acquisition, which the page moves."""
    chosen = ColumnDataSource({"x": [], "y": []}, name="chosen")
    for colour, width in (("white", 5), (_ACCENT, 2.5)):
        plot.scatter(
            "x",
            "y",
            source=chosen,
            marker="circle",
            size=16,
            fill_alpha=0.0,
            line_color=colour,
            line_width=width,
        )


def _label_hours(plot: Any, step: int, minor: int | None = None) -> None:
    hours = list(range(0, 25, step))
    between = [] if minor is None else list(range(0, 25, minor))
    plot.xaxis.ticker = FixedTicker(ticks=hours, minor_ticks=between)
    plot.xaxis.major_label_overrides = {hour: f"{hour:02}:00" for hour in hours}


def _label_days(plot: Any, first: float, days: int) -> None:
    """Label some of a few days at their middle, but the months of many."""
    plot.yaxis.formatter = _date_labels()
    if days > FEW_DAYS:
        return
    middles = [first + (day + 0.5) * DAY * MILLISECONDS for day in range(days)]
    dates = [np.datetime64(int(middle), "ms").item().strftime("%d %b %Y") for middle in middles]
    kept = slice(None, None, -(-days // _MOST_DAY_LABELS))
    plot.yaxis.ticker = FixedTicker(ticks=middles[kept])
    plot.yaxis.major_label_overrides = dict(zip(middles[kept], dates[kept], strict=True))


def _date_labels(months: str = "%b %Y") -> DatetimeTickFormatter:
    return DatetimeTickFormatter(days="%d %b", months=months, years="%Y", hours="%d %b %H:00")


def _day_series(calendar: Calendar, classes: tuple[MapClass, ...]) -> Any:
    options = {"name": "series-day", "x_range": (0.0, 24.0), "x_axis_label": "time of day, UTC"}
    if classes:
        plot = _stack_figure(classes, calendar.step / 3600.0, **options)
    else:
        plot = _series_figure(**options)
        source = ColumnDataSource({"x": [], "y": []}, name="series-day-values")
        plot.line("x", "y", source=source, color=_INK, line_width=1.2)
        plot.scatter("x", "y", source=source, color=_INK, size=5)
    _label_hours(plot, 3)
    plot.add_layout(_now_line("series-day"))
    _call_on_tap(plot, "chooseHour")
    return plot


def _all_days_series(calendar: Calendar, classes: tuple[MapClass, ...]) -> Any:
    first, last = (float(s) * MILLISECONDS for s in calendar.seconds[[0, -1]])
    margin = max(0.01 * (last - first), 3600.0 * MILLISECONDS)
    options: dict[str, Any] = {
        "name": "series-all",
        "x_range": (first - margin, last + margin),
        "x_axis_type": "datetime",
    }
    few = calendar.shape[0] <= FEW_DAYS
    if classes:
        width = (calendar.step if few else DAY) * MILLISECONDS
        plot = _stack_figure(classes, width, **options)
    else:
        plot = _series_figure(**options)
        _draw_values_and_means(plot, few)
    years = np.unique(calendar.seconds[[0, -1]].astype("datetime64[s]").astype("datetime64[Y]"))
    plot.xaxis.axis_label = " to ".join(str(each) for each in years)
    plot.xaxis.formatter = _date_labels(months="%b")
    plot.add_layout(_now_line("series-all"))
    _call_on_tap(plot, "chooseDate")
    return plot


def _draw_values_and_means(plot: Any, few: bool) -> None:
    values = ColumnDataSource({"x": [], "y": []}, name="series-all-values")
    means = ColumnDataSource({"x": [], "y": []}, name="series-all-means")
    dots: dict[str, Any] = {"size": 5, "alpha": 0.8} if few else {"size": 3, "alpha": 0.3}
    plot.scatter("x", "y", source=values, color=_DOTS, line_color=None, **dots)
    plot.line("x", "y", source=means, color=_INK, line_width=1.2)
    if few:
        plot.scatter("x", "y", source=means, color=_INK, size=7, marker="square")


def _series_figure(**options: Any) -> Any:
    plot = _figure(tools=_TOOLS, y_range=(-0.03, 1.03), **options)
    plot.yaxis.axis_label = "probability of cloud"
    plot.add_layout(
        Span(
            location=0.5,
            dimension="width",
            line_dash="dashed",
            line_color="#555555",
            line_width=1,
        )
    )
    return plot


def _stack_figure(classes: tuple[MapClass, ...], width: float, **options: Any) -> Any:
    """Return a plot of probabilities stacked from 0 to 1, a bar for each time.

    The page fills the source ``NAME-values``: ``x``, and the edges ``edge0``, ``edge1``, ... of
    the classes from 0 to 1.
    """
    plot = _figure(tools=_TOOLS, y_range=(0.0, 1.0), background_fill_color=GROUND, **options)
    plot.yaxis.axis_label = "probability, stacked"
    plot.grid.visible = False
    edges = [f"edge{number}" for number in range(len(classes) + 1)]
    columns: dict[str, list[float]] = {name: [] for name in ("x", *edges)}
    source = ColumnDataSource(columns, name=f"{options['name']}-values")
    for number, shown in enumerate(classes):
        plot.vbar(
            x="x",
            bottom=edges[number],
            top=edges[number + 1],
            # A little wider than the step, or rounding to pixels would leave gaps.
            width=1.05 * width,
            source=source,
            color=shown.colour,
            line_color=None,
        )
    return plot


def _now_line(name: str) -> Span:
    """Return the line at the acquisition shown, which the page moves."""
    return Span(
        location=None, dimension="height", line_color=_ACCENT, line_width=2, name=f"{name}-now"
    )
