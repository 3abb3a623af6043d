"""Times of acquisitions (UTC): as a user writes them, and as the names of files tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from undulatus.errors import SceneError

Array = npt.NDArray[Any]

NAME_MARGIN = np.timedelta64(30, "m")
"""The time in a file's name may be any of its scan, the nominal one, or that of its end."""

_IN_NAMES = re.compile(r"(?<!\d)((?:19|20)\d{6})T?(\d{4})(\d{2})?(?!\d)")


def parse_time(time: Any) -> np.datetime64:
    """Return a time given as text, a datetime or a datetime64, in UTC."""
    try:
        stamp = pd.Timestamp(time)
    except (TypeError, ValueError) as error:
        raise SceneError(f"{time!r} is not a time. Write it as 2010-07-14T12:00 (UTC).") from error
    if stamp.tzinfo is not None:
        stamp = stamp.tz_convert("UTC").tz_localize(None)
    return np.datetime64(stamp.to_datetime64(), "ns")


def with_parsed_times(scene: xr.Dataset) -> xr.Dataset:
    """Return a scene whose coordinate ``time`` is datetime64 (UTC), if it was text or datetimes.

    Times with a zone are brought to UTC. Numbers stay, since what they count is not known.
    """
    stored = scene.coords.get("time")
    # pandas' times with a zone have a type of their own, which is none of numpy's.
    if stored is None or (isinstance(stored.dtype, np.dtype) and stored.dtype.kind in "Mmiufb"):
        return scene
    try:
        parsed = [parse_time(moment) for moment in stored.to_numpy().ravel().tolist()]
    except SceneError as error:
        raise SceneError(f"The scene cannot be used:\n- the coordinate time: {error}") from error
    times = np.array(parsed, "datetime64[ns]").reshape(stored.shape)
    return scene.assign_coords(time=(stored.dims, times, stored.attrs))


@dataclass(frozen=True)
class TimeSpan:
    """The time from ``start`` to ``end``, both included; None is open.

    An ``end`` that is text without an hour, such as ``2010-07-14``, includes that whole day (or
    month).
    """

    start: Any = None
    end: Any = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the span of ``START/END``, or of one month, day, hour or minute."""
        start, slash, end = (part.strip() for part in text.partition("/"))
        if not start and not end:
            raise SceneError(
                f"{text!r} is not a span of time. Write it as 2010-07-14/2010-07-20 (UTC), or as "
                f"one day or time."
            )
        if not slash:
            first = parse_time(start)
            return cls(first, _end_of(start, first))
        span = cls(start or None, end or None)
        span.contains(np.array([], "datetime64[ns]"))
        return span

    def contains(self, times: Array, margin: np.timedelta64 | None = None) -> Array:
        """Return which times lie in the span, or within ``margin`` of it, bool."""
        inside = np.ones(np.shape(times), bool)
        room = np.timedelta64(0, "ns") if margin is None else margin
        if self.start is not None:
            inside &= times >= parse_time(self.start) - room
        if self.end is not None:
            last = parse_time(self.end)
            if isinstance(self.end, str) and len(self.end) <= len("2010-07-14"):
                last = _end_of(self.end, last)
            inside &= times <= last + room
        return inside


def _end_of(text: str, moment: np.datetime64) -> np.datetime64:
    """Return the end of the month, day, hour or minute that a text names."""
    try:
        period = pd.Period(text)
    except ValueError:
        return moment
    return np.datetime64(period.end_time.to_datetime64(), "ns")


def parse_spans(texts: str | Iterable[str] | None) -> tuple[TimeSpan, ...]:
    """Return the spans of some text, or of a list; several in one text have commas between."""
    listed = [texts] if isinstance(texts, str) else list(texts or ())
    return tuple(TimeSpan.parse(part) for text in listed for part in text.split(","))


def in_spans(
    spans: Iterable[TimeSpan], times: Array, margin: np.timedelta64 | None = None
) -> Array:
    """Return which times lie in any of the spans, bool; without spans, all do."""
    each = [span.contains(times, margin) for span in spans]
    return np.any(each, axis=0) if each else np.ones(np.shape(times), bool)


def time_in_name(name: str) -> np.datetime64 | None:
    """Return the first time in a file's name, such as ``20100601121241``, or None."""
    for day, minutes, seconds in _IN_NAMES.findall(name):
        try:
            moment = pd.to_datetime(f"{day}{minutes}{seconds or '00'}", format="%Y%m%d%H%M%S")
        except ValueError:
            continue
        return np.datetime64(moment.to_datetime64(), "ns")
    return None


def span_text(times: Array) -> str:
    """Return the first and the last time, to the minute."""
    ordered = np.sort(np.atleast_1d(times))
    first, last = (np.datetime_as_string(ordered[i], unit="m") for i in (0, -1))
    return str(first) if first == last else f"{first} to {last}"
