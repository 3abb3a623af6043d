"""Spectra from BUFR, the format in which sounders are sent around the world.

Instruments are known by what their messages hold, not by the number of a template: centres send
templates whole, written out, or with additions of their own.

=====  ==============================  =====================================================
IASI   3 40 001, 3 40 007 (all         scaled radiances, with the power of ten of each range of
       channels), 3 40 008 (some)      channels; or scores of principal components
CrIS   3 10 060                        radiances, with the wavenumbers of three bands
AIRS   3 10 050, or its parts          brightness temperatures
HIRS   3 10 008                        brightness temperatures; the visible channel's radiance
=====  ==============================  =====================================================

A message that is flagged as bad by its producer has no values here: IASI where a band's quality is
bad, CrIS where a band is invalid, HIRS and AIRS where a scan line was not calibrated or located,
and single channels of these without calibration. ``flagged`` says which views these are, and the
attribute ``flagged_spectra`` how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._daylight import NIGHT
from undulatus.scenes.channels import (
    CHANNEL_SPACING,
    CHANNELS,
    FIRST_WAVENUMBER,
    RADIANCE_UNITS,
    WAVENUMBER_ATTRIBUTES,
)
from undulatus.scenes.files.bufr_messages import Decoded, Message, decode, find_messages
from undulatus.scenes.spectra import (
    BRIGHTNESS_TEMPERATURE,
    CHANNEL_SET,
    FLAGGED_ATTRIBUTES,
    RADIANCE,
    SCORES,
)

Array = npt.NDArray[Any]

SPECTRA_PER_BLOCK = 480
"""Spectra that are read at a time, in whole messages: 16 MB of IASI's."""

INFRARED = (500.0, 3000.0)
"""Wavenumbers of infrared channels, cm⁻¹: in templates that hold microwaves too."""

UNITS = {RADIANCE: RADIANCE_UNITS, BRIGHTNESS_TEMPERATURE: "K", SCORES: "1"}

PER_VIEW = {
    "latitude": ((5001, 5002), {"standard_name": "latitude", "units": "degrees_north"}),
    "longitude": ((6001, 6002), {"standard_name": "longitude", "units": "degrees_east"}),
    "satellite_zenith_angle": ((7024,), {"units": "degree"}),
    "satellite_azimuth_angle": ((5021,), {"units": "degree"}),
    "solar_zenith_angle": ((7025,), {"units": "degree"}),
    "solar_azimuth_angle": ((5022,), {"units": "degree"}),
    "orbit": ((5040,), {}),
    "scan_line": ((5041,), {}),
    "field_of_view": ((5043,), {}),
    "surface_height": ((10001,), {"units": "m"}),
    "cloud_cover": ((20010,), {"units": "percent"}),
    "avhrr_cloud_fraction": ((20081,), {"units": "percent"}),
    "snow_or_ice_fraction": ((40021,), {"units": "percent"}),
    "visible_radiance": ((14045,), {"long_name": "visible channel, in whole numbers as sent"}),
}
"""Descriptors and attributes of what a view has one of; what a message lacks is left out."""

COORDINATES = (
    *("latitude", "longitude", "satellite_zenith_angle", "satellite_azimuth_angle"),
    *("solar_zenith_angle", "solar_azimuth_angle", "orbit", "scan_line", "field_of_view"),
)

_TIME = (4001, 4002, 4003, 4004, 4005, 4006)

SATELLITES = {
    3: "Metop-B", 4: "Metop-A", 5: "Metop-C", 206: "NOAA-15", 207: "NOAA-16", 208: "NOAA-17",
    209: "NOAA-18", 223: "NOAA-19", 224: "Suomi-NPP", 225: "NOAA-20", 226: "NOAA-21", 784: "Aqua",
}  # fmt: skip
"""By their number in common code table C-5."""


@dataclass(frozen=True)
class Layout:
    """Where the channels of a message are, by increasing wavenumber."""

    measured: str
    """One of ``MEASUREMENTS``."""
    columns: Array
    number: Array
    """The instrument's numbers of its channels, or of components."""
    wavenumber: Array
    """cm⁻¹; empty for scores."""
    factor: Array
    """To multiply by, for ``UNITS``: (channels,), or (subsets, channels)."""
    bad_channels: Array | bool = False
    """Flagged channels of each view, (subsets, channels)."""

    def is_like(self, other: Layout) -> bool:
        """Return whether another message has the same channels."""
        return np.array_equal(self.number, other.number) and np.allclose(
            self.wavenumber, other.wavenumber, rtol=0.0, atol=0.01
        )


@dataclass(frozen=True)
class Instrument:
    """An instrument: how its messages are recognised and read.

    ``find`` returns the layout, or None if a message is not of the instrument; ``bad_views`` says
    which views its producer flagged as bad, (subsets,) bool.
    """

    name: str
    find: Callable[[Decoded], Layout | None]
    bad_views: Callable[[Decoded], Array]


def open_bufr(path: Path, *, measured: str | None = None) -> xr.Dataset:
    """Open a file as lazy spectra, in the form that ``check_spectra`` describes.

    Every message is decoded once to check it and to read what goes with a spectrum, and again when
    its spectra are computed. Channels are in the order of their wavenumbers.

    Parameters
    ----------
    path : path
    measured : {"radiance", "scores"}, optional
        What to take where messages of IASI hold both channels and principal components: by
        default the channels.
    """
    messages = find_messages(Path(path))
    instrument, parts = _read_views(messages, measured)
    layout = parts[0].layout
    variables: dict[str, Any] = {
        name: (
            ("sample",),
            np.concatenate([part.views[name] for part in parts]),
            PER_VIEW[name][1],
        )
        for name in PER_VIEW
        if all(name in part.views for part in parts)
    }
    flagged = np.concatenate([part.bad for part in parts])
    variables["flagged"] = ("sample", flagged.astype(np.uint8), dict(FLAGGED_ATTRIBUTES))
    second = "component" if layout.measured == SCORES else "channel"
    array = _lazily(messages, measured, len(layout.columns))
    variables[layout.measured] = (("sample", second), array, {"units": UNITS[layout.measured]})
    opened = xr.Dataset(variables, attrs=_attributes(path, instrument, parts, flagged))
    opened = opened.assign_coords(time=("sample", np.concatenate([part.time for part in parts])))
    if layout.measured != SCORES:
        opened = opened.assign_coords(
            wavenumber=("channel", layout.wavenumber, dict(WAVENUMBER_ATTRIBUTES)),
            channel_number=("channel", layout.number),
        )
    return _with_codes(opened.set_coords([name for name in COORDINATES if name in opened]))


def _with_codes(opened: xr.Dataset) -> xr.Dataset:
    """Add labels and strata that follow from what was read."""
    if "solar_zenith_angle" in opened:
        angle = opened["solar_zenith_angle"].values
        day = np.where(np.isfinite(angle), angle < NIGHT, 255).astype(np.uint8)
        opened["day"] = ("sample", day)
    if "avhrr_cloud_fraction" in opened:
        percent = opened["avhrr_cloud_fraction"].values
        cloudy = np.where(np.isfinite(percent), percent > 0.0, 255).astype(np.uint8)
        opened["cloudy"] = ("sample", cloudy)
    return opened


def _attributes(
    path: Path, instrument: Instrument, parts: Sequence[_Part], flagged: Array
) -> dict[str, Any]:
    layout = parts[0].layout
    attributes: dict[str, Any] = {"source": Path(path).name, "sensor": instrument.name.lower()}
    if layout.measured != SCORES and len(layout.columns) != CHANNELS:
        attributes[CHANNEL_SET] = f"{instrument.name}, {len(layout.columns)} channels"
    if parts[0].satellite in SATELLITES:
        attributes["platform_name"] = SATELLITES[parts[0].satellite]
    return {**attributes, "flagged_spectra": int(np.count_nonzero(flagged))}


@dataclass(frozen=True)
class _Part:
    """What is read of a message when its file is opened."""

    layout: Layout
    views: dict[str, Array]
    time: Array
    bad: Array
    satellite: int


def _read_views(
    messages: Sequence[Message], measured: str | None
) -> tuple[Instrument, list[_Part]]:
    parts: list[_Part] = []
    instruments: list[Instrument] = []
    for message in messages:
        decoded = decode(message)
        instrument, layout = _recognise(decoded, measured)
        if parts and (instrument != instruments[0] or not layout.is_like(parts[0].layout)):
            raise message.failure(
                f"it holds {instrument.name} with {len(layout.columns):,} channels or others, but "
                f"message 1 {instruments[0].name} with {len(parts[0].layout.columns):,}: spectra "
                f"of one file must have the same channels.",
                "Sort the messages into files of their own (bufr_copy -w of eccodes).",
            )
        instruments.append(instrument)
        views = {
            name: column.astype(np.float32 if "tude" not in name else np.float64)
            for name, (codes, _) in PER_VIEW.items()
            if (column := decoded.first(*codes)) is not None
        }
        _require_on_earth(message, views)
        bad = instrument.bad_views(decoded)
        number = _satellite(decoded, parts[0].satellite if parts else None)
        parts.append(_Part(layout, views, _times(decoded), bad, number))
    return instruments[0], parts


def _satellite(decoded: Decoded, expected: int | None) -> int:
    """Return the number of the satellite of a message, -1 if it has none.

    Raise an error if it has several, or another than the file's first message.
    """
    column = decoded.first(1007)
    known = np.empty(0) if column is None else np.unique(column[np.isfinite(column)])
    found = [int(number) for number in known] or [-1]
    if len(found) > 1 or expected not in (None, found[0]):
        listed = sorted({*found, *([] if expected is None else [expected])})
        raise decoded.message.failure(
            f"the file has spectra of several satellites, whose instruments differ: "
            f"{', '.join(SATELLITES.get(one, f'number {one}') for one in listed)}.",
            "Sort the messages into files of their own (bufr_copy -w satelliteIdentifier=... of "
            "eccodes).",
        )
    return found[0]


def _require_on_earth(message: Message, views: dict[str, Array]) -> None:
    """Raise an error if places or angles are impossible: bits were lost before them."""
    for name, most in _LARGEST.items():
        wrong = np.abs(views.get(name, np.empty(0))) > most
        if wrong.any():
            raise message.failure(
                f"it has a {name.replace('_', ' ')} of {views[name][wrong][0]:g} degrees, so it "
                f"is damaged, or compressed otherwise than it says."
            )


_LARGEST = {
    "latitude": 90.0,
    "longitude": 360.0,
    "satellite_zenith_angle": 90.0,
    "solar_zenith_angle": 180.0,
}
"""Largest absolute values, degrees."""


def _recognise(decoded: Decoded, measured: str | None) -> tuple[Instrument, Layout]:
    if measured == SCORES:
        layout = _iasi_scores(decoded)
        if layout is None:
            raise decoded.message.failure(
                "it holds no principal components.", "Open it for its channels."
            )
        return IASI, layout
    for instrument in INSTRUMENTS:
        layout = instrument.find(decoded)
        if layout is not None:
            return instrument, layout
    names = ", ".join(instrument.name for instrument in INSTRUMENTS)
    template = ", ".join(f"{code:06d}" for code in decoded.codes[:6])
    raise decoded.message.failure(
        f"it is of another template than those of {names}, with the elements {template} ...",
        "Give files of one of these instruments.",
    )


def _times(decoded: Decoded) -> Array:
    fields = [decoded.first(code) for code in _TIME]
    times = np.full(decoded.values.shape[0], np.datetime64("NaT", "ns"))
    if any(field is None for field in fields):
        return times
    table = np.array(fields)
    lows, highs = np.array([1950, 1, 1, 0, 0, 0]), np.array([2200, 12, 31, 23, 59, 60.999])
    # Missing values compare as false.
    fine = np.all((table >= lows[:, None]) & (table <= highs[:, None]), axis=0)
    year, month, day, hour, minute, second = table[:, fine]
    months = ((year - 1970) * 12 + month - 1).astype(int).astype("datetime64[M]")
    seconds = np.round(((hour * 60 + minute) * 60 + second) * 1e3).astype("timedelta64[ms]")
    times[fine] = (months.astype("datetime64[D]") + (day.astype(int) - 1)).astype(
        "datetime64[ms]"
    ) + seconds
    return times


def _lazily(messages: Sequence[Message], measured: str | None, width: int) -> da.Array:
    """Return the spectra of all messages, (samples, width) float32, in blocks of whole ones."""
    counts = np.array([message.subsets for message in messages])
    block = (np.cumsum(counts) - counts) // SPECTRA_PER_BLOCK
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    chunks = tuple(np.diff([*starts, len(messages)]).tolist())
    rows = tuple(np.add.reduceat(counts, starts).tolist())
    numbers = da.from_array(np.arange(len(messages)), chunks=(chunks,))
    return numbers.map_blocks(
        partial(_spectra, list(messages), measured),
        new_axis=1,
        chunks=(rows, (width,)),
        meta=np.empty((0, 0), np.float32),
    )


def _spectra(messages: list[Message], measured: str | None, numbers: Array) -> Array:
    parts = []
    for number in numbers:
        decoded = decode(messages[int(number)])
        instrument, layout = _recognise(decoded, measured)
        values = decoded.values[:, layout.columns] * layout.factor
        bad = instrument.bad_views(decoded)[:, None] | layout.bad_channels
        parts.append(np.where(bad, np.nan, values).astype(np.float32))
    return np.concatenate(parts)


# IASI


def _iasi(decoded: Decoded) -> Layout | None:
    places = decoded.find(5042, 14046)
    if not len(places):
        return _iasi_scores(decoded)
    numbers = decoded.constant(places, "numbers of channels")
    # Templates have room for 8,700.
    real = (numbers >= 1) & (numbers <= CHANNELS)
    places, numbers = places[real], numbers[real]
    if not len(places):
        return _iasi_scores(decoded)
    ranges = decoded.constant(
        (decoded.find(25140, 25141, 25142)[:, None] + np.arange(3)).ravel(), "scale factors"
    ).reshape(-1, 3)
    ranges = ranges[np.isfinite(ranges).all(axis=1)]
    within = (numbers[:, None] >= ranges[:, 0]) & (numbers[:, None] <= ranges[:, 1])
    if not within.any(axis=1).all():
        lost = numbers[~within.any(axis=1)]
        raise decoded.message.failure(
            f"it has no scale factor for channel {lost[0]:.0f} and {len(lost) - 1} others."
        )
    power = ranges[within.argmax(axis=1), 2]
    wavenumber = FIRST_WAVENUMBER + CHANNEL_SPACING * (numbers - 1)
    # From W m-2 sr-1 (m-1)-1.
    return _sorted_layout(decoded, RADIANCE, places + 1, numbers, wavenumber, 10.0 ** (5 - power))


def _iasi_scores(decoded: Decoded) -> Layout | None:
    """Return the scores of all bands; each has a factor that they were divided by."""
    places = np.flatnonzero(decoded.codes == 40017)
    steps = np.flatnonzero(decoded.codes == 40026)
    if not len(places) or not len(steps):
        return None
    band = np.searchsorted(steps, places) - 1
    return Layout(
        SCORES, places, np.arange(len(places)), np.empty(0), decoded.values[:, steps[band]]
    )


def _iasi_bad(decoded: Decoded) -> Array:
    flags = decoded.values[:, decoded.codes == 33060]
    return np.asarray((flags == 1.0).any(axis=1))


# CrIS


def _cris(decoded: Decoded) -> Layout | None:
    places = decoded.find(5042, 14044)
    bands = decoded.find(8076, 6029, 6029, 25140, 25141)
    if not len(places) or not len(bands):
        return None
    numbers = decoded.constant(places, "numbers of channels")
    places, numbers = places[np.isfinite(numbers)], numbers[np.isfinite(numbers)]
    wavenumber = np.full(len(numbers), np.nan)
    for place in bands:
        low, high, first, last = decoded.constant(place + np.arange(1, 5), "bands")
        inside = (numbers >= first) & (numbers <= last)
        share = (numbers[inside] - first) / max(last - first, 1.0)
        wavenumber[inside] = (low + (high - low) * share) / 100.0
    # From W m-2 sr-1 (cm-1)-1.
    factor = np.full(len(numbers), 1e3)
    return _sorted_layout(decoded, RADIANCE, places + 1, numbers, wavenumber, factor)


_CRIS_INVALID = (2, 3, 5, 7, 10, 12)
"""Of flag table 0 33 077: data, geolocation, calibrations, raw data, and bits trimmed."""


def _cris_bad(decoded: Decoded) -> Array:
    return _has_bits(decoded.values[:, decoded.codes == 33077], _CRIS_INVALID, 19)


# AIRS and HIRS


def _airs(decoded: Decoded) -> Layout | None:
    return _temperatures(decoded, decoded.find(5042, 25076, 33032, 12163), 3)


def _hirs(decoded: Decoded) -> Layout | None:
    places = [decoded.find(2150, 25076, 25077, 25078, 33032, code) for code in (12063, 12163)]
    layout = _temperatures(decoded, np.sort(np.concatenate(places)), 5)
    if layout is None and any(map(len, places)):
        raise decoded.message.failure(
            "its channels are microwaves (AMSU or MHS).", "Give the infrared sounder's files."
        )
    return layout


def _temperatures(decoded: Decoded, places: Array, value: int) -> Layout | None:
    """Return the infrared channels of a template of brightness temperatures.

    Each channel begins with its number and the logarithm of its wavenumber in m⁻¹; its flags come
    just before its value, ``value`` columns after the number.
    """
    if not len(places):
        return None
    numbers = decoded.constant(places, "numbers of channels")
    wavenumber = 10.0 ** (decoded.constant(places + 1, "wavenumbers of channels") - 2.0)
    infrared = (wavenumber > INFRARED[0]) & (wavenumber < INFRARED[1]) & np.isfinite(numbers)
    if not infrared.any():
        return None
    places = places[infrared]
    flags = decoded.values[:, places + value - 1]
    bad = np.stack([_has_bits(flags[:, i : i + 1], _UNCALIBRATED, 24) for i in range(len(places))])
    one = np.ones(len(places))
    return _sorted_layout(
        decoded, BRIGHTNESS_TEMPERATURE, places + value, numbers[infrared], wavenumber[infrared],
        one, bad.T,
    )  # fmt: skip


_UNCALIBRATED = (1, 2, 3)
"""Of flag table 0 33 032: no good counts of the black body, of space, no good temperatures."""

_LINE_UNUSABLE = (1, 4, 5)
"""Of flag table 0 33 030: not for products, no calibration, no location."""

_LINE_BAD = (2, 5, 7, 10, 13, 16)
"""Of flag table 0 33 031: no time, not calibrated for three reasons, not or wrongly located."""


def _line_bad(decoded: Decoded) -> Array:
    bad = _has_bits(decoded.values[:, decoded.codes == 33030], _LINE_UNUSABLE, 24)
    bad |= _has_bits(decoded.values[:, decoded.codes == 33031], _LINE_BAD, 24)
    # Suspect, or all channels missing.
    return bad | _has_bits(decoded.values[:, decoded.codes == 33033], (22, 23), 24)


def _has_bits(flags: Array, bits: Sequence[int], width: int) -> Array:
    """Return which rows of flags, (n, k), have one of some bits; bit 1 is the highest."""
    mask = sum(1 << (width - bit) for bit in bits)
    known = np.where(np.isfinite(flags), flags, 0.0).astype(np.int64)
    return np.asarray(((known & mask) != 0).any(axis=1))


def _sorted_layout(
    decoded: Decoded,
    measured: str,
    columns: Array,
    numbers: Array,
    wavenumber: Array,
    factor: Array,
    bad: Array | None = None,
) -> Layout:
    order = np.argsort(wavenumber, kind="stable")
    ordered = wavenumber[order]
    if not np.isfinite(ordered).all() or not (np.diff(ordered) > 0.0).all():
        raise decoded.message.failure("its channels have no wavenumbers, or several the same.")
    return Layout(
        measured, columns[order], numbers[order].astype(np.int64), ordered, factor[order],
        False if bad is None else bad[:, order],
    )  # fmt: skip


IASI = Instrument("IASI", _iasi, _iasi_bad)

INSTRUMENTS = (
    IASI,
    Instrument("CrIS", _cris, _cris_bad),
    Instrument("AIRS", _airs, _line_bad),
    Instrument("HIRS", _hirs, _line_bad),
)
