"""IASI Level 1C in EUMETSAT's native format, read a few scan lines at a time.

A line of measurements has 30 steps of the mirror with 4 pixels each, 120 spectra. Spectra are
counts of 16 bits, which powers of ten for five ranges of channels turn into radiances; the powers
are in a record of their own. Samples are in the order of the file: lines, steps, pixels.

Facts about the format: EUMETSAT, *IASI Level 1 Product Format Specification*
(EUM.EPS.SYS.SPE.990003). Versions 3, 4 and 5 of the measurements are read; the third is the one
before launch. Only the fifth, sent since 2010, has what AVHRR saw of clouds, land and snow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._daylight import NIGHT
from undulatus.errors import SceneError
from undulatus.scenes.channels import (
    CHANNEL_SPACING,
    CHANNELS,
    FIRST_WAVENUMBER,
    LAST_WAVENUMBER,
    RADIANCE_UNITS,
    WAVENUMBER_ATTRIBUTES,
    WAVENUMBERS,
)
from undulatus.scenes.files.eps import (
    DUMMY,
    GLOBAL_DATA,
    MEASUREMENT,
    MISSING,
    SCALED,
    TIME,
    EpsFile,
    Record,
    Source,
    decode_scaled,
    decode_times,
    open_records,
)
from undulatus.scenes.scene import MISSING_CODE
from undulatus.scenes.spectra import FLAGGED_ATTRIBUTES, PIXELS, STEPS

Array = npt.NDArray[Any]

PREFIX = "IASI_xxx_1C"
"""How the names of such files begin; also the product that is read."""

LINES_PER_BLOCK = 4
"""Lines of 120 spectra that are read at a time: 16 MB."""

SPECTRA_PER_LINE = STEPS * PIXELS

COUNTS = ("lines_lost", "flagged_spectra")
"""Attributes that count what a file lacks."""

AVHRR_CHANNELS = ("1", "2", "3A", "3B", "4", "5")

_PLATFORMS = {"M01": "Metop-B", "M02": "Metop-A", "M03": "Metop-C"}

_IASI, _SPECTRA, _SCALES = 8, 2, 1
"""The instrument group of IASI, and the subclasses of spectra and of their scale factors."""

_NUMBERS = round(FIRST_WAVENUMBER / CHANNEL_SPACING) + 1 + np.arange(CHANNELS)
"""Channels as the format counts them."""

_PLACES = 8700
"""Counts that a spectrum has room for."""

_POWERS = range(5, 16)
"""Scale factors that are possible: others give no radiance of the Earth in 16 bits."""

_ROWS = 40
"""Spectra that are converted at a time, to stay in the cache of the processor."""

_SCALE_FACTORS = np.dtype(
    [
        ("header", "V20"),
        ("ranges", ">i2"),
        ("first", ">i2", 10),
        ("last", ">i2", 10),
        ("power", ">i2", 10),
        ("imager", ">i2"),
    ]
)


def _layout(version: int) -> np.dtype[Any]:
    """Return the fields of a line of measurements, as a version of the format has them."""
    view = (STEPS, PIXELS)
    clusters = (*view, 7)
    flags: dict[int, list[Any]] = {
        3: [("GQisFlagQual", "u1")],
        4: [("GQisFlagQual", "u1", view)],
        5: [("GQisFlagQual", "u1", (*view, 3)), ("GQisFlagQualDetailed", ">u2", view)],
    }
    avhrr = [
        ("imager_variance_and_mean", SCALED, (2, STEPS)),
        ("GEUMAvhrr1BCldFrac", "u1", view),
        ("GEUMAvhrr1BLandFrac", "u1", view),
        ("GEUMAvhrr1BQual", "u1", view),
    ]
    return np.dtype(
        [
            ("header", "V20"),
            ("DEGRADED_INST_MDR", "u1"),
            ("DEGRADED_PROC_MDR", "u1"),
            ("modes", "V40"),
            ("positions_in_avhrr", "V8700"),
            ("on_board_time", "V6", STEPS),
            ("OnboardUTC", TIME, STEPS),
            ("GEPSDatIasi", TIME, STEPS),
            ("spectral_database", ">i4", (6, 2)),
            ("mirror", "V150"),
            ("imager", ">u2", (STEPS, 64, 64)),
            *flags[version],
            ("GQisQualIndex", SCALED),
            ("GQisQualIndexIIS", SCALED),
            ("GQisQualIndexLoc", SCALED),
            ("GQisQualIndexRad", SCALED),
            ("GQisQualIndexSpect", SCALED),
            ("system_quality", ">u4", 2),
            ("GGeoSondLoc", ">i4", (*view, 2)),
            ("GGeoSondAnglesMETOP", ">i4", (*view, 2)),
            ("imager_satellite_angles", ">i4", (STEPS, 25, 2)),
            ("GGeoSondAnglesSUN", ">i4", (*view, 2)),
            ("imager_solar_angles_and_places", ">i4", (2, STEPS, 25, 2)),
            ("EARTH_SATELLITE_DISTANCE", ">u4"),
            ("IDefSpectDWn1b", SCALED),
            ("IDefNsfirst1b", ">i4"),
            ("IDefNslast1b", ">i4"),
            ("GS1cSpect", ">i2" if version > 3 else ">u2", (*view, _PLACES)),
            ("noise_covariance", SCALED, (100, 2)),
            ("IDefCcsChannelId", ">i4", 6),
            ("GCcsRadAnalNbClass", ">i4", view),
            ("GCcsRadAnalWgt", SCALED, clusters),
            ("cluster_centres", ">i4", (2, *clusters)),
            ("GCcsRadAnalMean", SCALED, (*clusters, 6)),
            ("GCcsRadAnalStd", SCALED, (*clusters, 6)),
            ("cluster_image", "u1", (STEPS, 100, 100)),
            ("IDefCcsMode", ">u4"),
            ("cluster_image_extent", "V420"),
            ("GCcsRadAnalType", "u1", (STEPS, 7)),
            *(avhrr if version == 5 else []),
        ]
    )


LAYOUTS = {version: _layout(version) for version in (3, 4, 5)}
"""The fields of a line of measurements, by version of its record."""


@dataclass(frozen=True)
class Lines:
    """The lines of a file that have measurements: all that is needed to read a field of them."""

    source: Source
    version: int
    first_channel: int
    """The number of the first count of a spectrum."""
    powers: tuple[tuple[int, int], ...]
    """How many channels there are, one after another, whose counts are divided by a power of ten,
    and which power."""

    def read(self, starts: Array, name: str) -> Array:
        """Return a field of the lines whose records start at some bytes, (line, ...)."""
        field, offset = LAYOUTS[self.version].fields[name][:2]  # type: ignore[index]
        values = np.empty((len(starts), *field.shape), field.base)
        with self.source.opened() as file:
            for start, line in zip(starts, values.reshape(len(starts), -1), strict=True):
                self.source.read(file, int(start) + offset, line)
        return values


def open_native(path: Path) -> xr.Dataset:
    """Open a file as lazy spectra.

    Places, times, angles of the sun, flags and AVHRR's cloud fractions are read at once, all else
    when it is computed. Lost lines are left out, and spectra that are flagged as bad are missing:
    the attributes ``lines_lost`` and ``flagged_spectra`` count them. ``cloudy`` says whether AVHRR
    saw any cloud in a spectrum. ``docs/howto/soundings.md`` lists the variables.

    Parameters
    ----------
    path : path
        A file; :func:`undulatus.scenes.open_spectra` takes folders and lists of files too.
    """
    opened = open_records(path)
    if opened.product != PREFIX:
        raise SceneError(
            f"{path} holds the product {opened.product}, not {PREFIX}: "
            f"{opened.text('PRODUCT_NAME')}. Use the spectra of Level 1C in the native format."
        )
    measured = opened.of_class(MEASUREMENT)
    kept = [record for record in measured if record.group != DUMMY]
    if not kept:
        raise SceneError(
            f"{path} has no line with spectra: {len(measured)} are lost. Use another file."
        )
    lines, starts = _check_lines(opened, kept), np.array([record.offset for record in kept])
    numbers = np.array([record.number - measured[0].number for record in kept], np.int32)
    dataset = _dataset(lines, starts, numbers)
    dataset.coords["orbit"] = (
        "sample",
        np.full(dataset.sizes["sample"], opened.number("ORBIT_START"), np.int32),
    )
    craft = opened.text("SPACECRAFT_ID")
    return dataset.assign_attrs(
        source=opened.source.path.name,
        sensor="iasi",
        platform_name=_PLATFORMS.get(craft, craft),
        format_version=f"{opened.number('FORMAT_MAJOR_VERSION')}."
        f"{opened.number('FORMAT_MINOR_VERSION')}",
        lines_lost=len(measured) - len(kept),
        flagged_spectra=int(dataset["flagged"].sum()),
    )


# What must be so before anything is read


def _check_lines(opened: EpsFile, kept: list[Record]) -> Lines:
    """Return how lines are read, once all are known to be of one known form."""
    version = kept[0].version
    for record in kept:
        _check_record(opened, record, version)
    starts = np.array([record.offset for record in kept])
    lines = Lines(opened.source, version, 0, ())
    spacing = decode_scaled(lines.read(starts, "IDefSpectDWn1b"))
    first = lines.read(starts, "IDefNsfirst1b").astype(np.int64)
    last = lines.read(starts, "IDefNslast1b").astype(np.int64)
    # Spacing is per metre; it is written with few digits.
    good = np.abs(spacing / (100.0 * CHANNEL_SPACING) - 1.0) < 1e-9
    good &= (first <= _NUMBERS[0]) & (last >= _NUMBERS[-1]) & (first == first[0])
    good &= _NUMBERS[-1] - first < _PLACES
    if not good.all():
        bad = int(np.argmin(good))
        raise opened.damage(
            f"its spectra have the channels {first[bad]} to {last[bad]}, {spacing[bad]:g} per m "
            f"apart; expected {_NUMBERS[0]} to {_NUMBERS[-1]}, {100 * CHANNEL_SPACING:g} per m "
            f"apart ({FIRST_WAVENUMBER:g} to {LAST_WAVENUMBER:g} per cm), in the same places in "
            f"all lines",
            kept[bad],
        )
    return Lines(opened.source, version, int(first[0]), _powers(opened))


def _check_record(opened: EpsFile, record: Record, version: int) -> None:
    if (record.group, record.subclass) != (_IASI, _SPECTRA):
        raise opened.damage(
            f"it is of group {record.group} and subclass {record.subclass}; expected {_IASI} and "
            f"{_SPECTRA}, IASI's spectra of Level 1C",
            record,
        )
    if record.version not in LAYOUTS:
        form = f"{opened.number('FORMAT_MAJOR_VERSION')}.{opened.number('FORMAT_MINOR_VERSION')}"
        raise SceneError(
            f"{opened.source.path}, {record.place}: its measurements are of version "
            f"{record.version} (format {form}), which is not known. Versions "
            f"{', '.join(map(str, LAYOUTS))} are: fetch the file in one of these, or use a newer "
            f"undulatus."
        )
    if record.version != version:
        raise opened.damage(
            f"its measurements are of version {record.version}, others of version {version}",
            record,
        )
    if record.size != LAYOUTS[version].itemsize:
        raise opened.damage(
            f"it has {record.size:,} bytes; a line of version {version} has "
            f"{LAYOUTS[version].itemsize:,}",
            record,
        )


def _scale_factors(opened: EpsFile) -> tuple[Record, Array]:
    """Return the record of scale factors and what it says, of type ``_SCALE_FACTORS``."""
    found = [
        record
        for record in opened.of_class(GLOBAL_DATA)
        if (record.group, record.subclass) == (_IASI, _SCALES)
    ]
    if len(found) != 1:
        raise opened.damage(f"it has {len(found)} records of scale factors; expected one")
    record = found[0]
    if record.size != _SCALE_FACTORS.itemsize:
        raise opened.damage(
            f"it has {record.size:,} bytes; scale factors have {_SCALE_FACTORS.itemsize}", record
        )
    scales = np.empty(1, _SCALE_FACTORS)
    with opened.source.opened() as file:
        opened.source.read(file, record.offset, scales)
    return record, scales


def _powers(opened: EpsFile) -> tuple[tuple[int, int], ...]:
    """Return :attr:`Lines.powers`: 5 less than the scale factors, which are for W per m⁻¹."""
    record, scales = _scale_factors(opened)
    count = int(scales["ranges"][0])
    if not 1 <= count <= 10:
        raise opened.damage(f"it has scale factors for {count} ranges of channels", record)
    powers = np.zeros(CHANNELS, int)
    covered = np.zeros(CHANNELS, int)
    for first, last, power in zip(
        *(scales[name][0, :count] for name in ("first", "last", "power")), strict=True
    ):
        inside = (first <= _NUMBERS) & (last >= _NUMBERS)
        if inside.any() and power not in _POWERS:
            raise opened.damage(
                f"channels {first} to {last} have the scale factor {power}; expected "
                f"{_POWERS[0]} to {_POWERS[-1]}",
                record,
            )
        powers[inside] = power - 5
        covered += inside
    if (covered != 1).any():
        bad = int(np.argmax(covered != 1))
        raise opened.damage(
            f"channel {_NUMBERS[bad]} has {covered[bad]} scale factors; expected one", record
        )
    edges = [0, *(np.flatnonzero(np.diff(powers)) + 1).tolist(), CHANNELS]
    return tuple((last - first, int(powers[first])) for first, last in pairwise(edges))


# The dataset


def _dataset(lines: Lines, starts: Array, numbers: Array) -> xr.Dataset:
    place = _degrees(lines.read(starts, "GGeoSondLoc"))
    longitude = np.where(np.abs(place[:, 0]) <= 180.0, place[:, 0], np.nan)
    latitude = np.where(np.abs(place[:, 1]) <= 90.0, place[:, 1], np.nan)
    zenith = _degrees(lines.read(starts, "GGeoSondAnglesSUN"))[:, 0]
    bad_bands = _flags(lines, starts)
    blocks = da.from_array(starts, chunks=LINES_PER_BLOCK)
    dataset = xr.Dataset(
        {
            "radiance": (
                ("sample", "channel"),
                _lazy(blocks, partial(_radiances, lines), "f4", CHANNELS),
                {"units": RADIANCE_UNITS},
            ),
            "day": (
                "sample",
                np.where(np.isnan(zenith), MISSING_CODE, zenith < NIGHT).astype(np.uint8),
            ),
            "solar_zenith_angle": ("sample", zenith, {"units": "degree"}),
            "bad_bands": (
                ("sample", "spectral_band"),
                bad_bands,
                {"long_name": "1 where a band of the spectrum is bad"},
            ),
            "flagged": (
                "sample",
                bad_bands.any(axis=1).astype(np.uint8),
                dict(FLAGGED_ATTRIBUTES),
            ),
            **_lazy_variables(lines, blocks),
        },
        {
            "longitude": ("sample", longitude, {"units": "degrees_east"}),
            "latitude": ("sample", latitude, {"units": "degrees_north"}),
            "time": ("sample", _times(lines, starts)),
            "line": ("sample", np.repeat(numbers, SPECTRA_PER_LINE)),
            "step": (
                "sample",
                np.tile(np.repeat(np.arange(STEPS, dtype="u1"), PIXELS), len(starts)),
            ),
            "pixel": ("sample", np.tile(np.arange(PIXELS, dtype="u1"), STEPS * len(starts))),
            "wavenumber": ("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES)),
        },
    )
    if "GEUMAvhrr1BCldFrac" not in LAYOUTS[lines.version].names:  # type: ignore[operator]
        return dataset
    percent = lines.read(starts, "GEUMAvhrr1BCldFrac").reshape(-1)
    cloudy = np.where(percent > 100, MISSING_CODE, percent > 0).astype(np.uint8)
    return dataset.assign(
        cloudy=("sample", cloudy, {"flag_values": [0, 1], "flag_meanings": "clear cloudy"}),
        avhrr_cloud_fraction=("sample", percent, {"units": "percent"}),
    )


def _lazy(blocks: da.Array, read: Any, dtype: str, *shape: int) -> da.Array:
    """Return what a function reads of blocks of lines, (sample, *shape)."""
    rows = tuple(SPECTRA_PER_LINE * count for count in blocks.chunks[0])
    return da.map_blocks(
        read,
        blocks,
        new_axis=list(range(1, 1 + len(shape))),
        chunks=(rows, *shape),
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


def _lazy_variables(lines: Lines, blocks: da.Array) -> dict[str, tuple[Any, ...]]:
    """Return the variables that nothing here needs, with dims and attributes."""
    sizes = {"cluster": 7, "avhrr_channel": len(AVHRR_CHANNELS)}
    view, line, clusters = (partial(read, lines) for read in (_of_view, _of_line, _clusters))
    degrees, percent = {"units": "degree"}, {"units": "percent"}
    radiances = {
        "units": "W m-2 sr-1 in 1, 2, 3A; W m-2 sr-1 (m-1)-1 in 3B, 4, 5",
        "avhrr_channels": " ".join(AVHRR_CHANNELS),
    }
    by_channel = ("cluster", "avhrr_channel")
    rows: list[tuple[Any, ...]] = [
        ("solar_azimuth_angle", partial(_angle, lines, 1), "GGeoSondAnglesSUN", "f8", (), degrees),
        (
            "satellite_zenith_angle",
            partial(_angle, lines, 0),
            "GGeoSondAnglesMETOP",
            "f8",
            (),
            degrees,
        ),
        (
            "satellite_azimuth_angle",
            partial(_angle, lines, 1),
            "GGeoSondAnglesMETOP",
            "f8",
            (),
            degrees,
        ),
        ("quality_index", line, "GQisQualIndex", "f8", (), {}),
        ("quality_index_place", line, "GQisQualIndexLoc", "f8", (), {}),
        ("quality_index_radiance", line, "GQisQualIndexRad", "f8", (), {}),
        ("quality_index_spectrum", line, "GQisQualIndexSpect", "f8", (), {}),
        ("degraded_instrument", line, "DEGRADED_INST_MDR", "u1", (), {}),
        ("degraded_processing", line, "DEGRADED_PROC_MDR", "u1", (), {}),
        ("quality_detail", view, "GQisFlagQualDetailed", "u2", (), {}),
        ("avhrr_land_fraction", view, "GEUMAvhrr1BLandFrac", "u1", (), percent),
        ("avhrr_quality", view, "GEUMAvhrr1BQual", "u1", (), {}),
        ("avhrr_clusters", view, "GCcsRadAnalNbClass", "i4", (), {}),
        ("avhrr_cluster_fraction", clusters, "GCcsRadAnalWgt", "f8", ("cluster",), percent),
        ("avhrr_cluster_radiance", clusters, "GCcsRadAnalMean", "f8", by_channel, radiances),
        ("avhrr_cluster_deviation", clusters, "GCcsRadAnalStd", "f8", by_channel, radiances),
    ]
    return {
        name: (
            ("sample", *dims),
            _lazy(blocks, partial(read, field), dtype, *(sizes[dim] for dim in dims)),
            {"long_name": field, **attributes},
        )
        for name, read, field, dtype, dims, attributes in rows
        if field in LAYOUTS[lines.version].names  # type: ignore[operator]
    }


# Fields of some lines, one row a sample


def _radiances(lines: Lines, starts: Array) -> Array:
    """Return the radiances of some lines in ``RADIANCE_UNITS``, (sample, channel) float32.

    A count and a power of ten are exact in single precision, so that their quotient is the
    nearest number to the radiance.
    """
    field, offset = LAYOUTS[lines.version].fields["GS1cSpect"][:2]  # type: ignore[index]
    skipped = int(_NUMBERS[0]) - lines.first_channel
    sent = np.empty((_ROWS, _PLACES), field.base)
    counts = np.empty((_ROWS, CHANNELS), field.base.newbyteorder("="))
    widths, powers = np.array(lines.powers).T
    divisors = np.repeat(10.0**powers, widths).astype(np.float32)
    radiances = np.empty((SPECTRA_PER_LINE * len(starts), CHANNELS), np.float32)
    with lines.source.opened() as file:
        for number, first in enumerate(range(0, len(radiances), _ROWS)):
            line, part = divmod(number, SPECTRA_PER_LINE // _ROWS)
            lines.source.read(file, int(starts[line]) + offset + part * sent.nbytes, sent)
            np.copyto(counts, sent[:, skipped : skipped + CHANNELS])
            rows = radiances[first : first + _ROWS]
            np.copyto(rows, counts)
            np.divide(rows, divisors, out=rows)
            if counts.min() == np.iinfo(np.int16).min:
                rows[counts == np.iinfo(np.int16).min] = np.nan
    radiances[_flags(lines, starts).any(axis=1)] = np.nan
    return radiances


def _flags(lines: Lines, starts: Array) -> Array:
    """Return whether each band of spectra is bad, (sample, 3); older versions know it of all."""
    flags = lines.read(starts, "GQisFlagQual")
    while flags.ndim < 4:
        flags = flags[..., None]
    shape = (len(starts), STEPS, PIXELS, 3)
    return np.ascontiguousarray(np.broadcast_to(flags, shape)).reshape(-1, 3)


def _times(lines: Lines, starts: Array) -> Array:
    return np.repeat(decode_times(lines.read(starts, "GEPSDatIasi")).reshape(-1), PIXELS)


def _degrees(millionths: Array) -> Array:
    """Return pairs of angles as (sample, 2), NaN where they are missing."""
    values = millionths.reshape(-1, 2)
    return np.where(values == MISSING, np.nan, values / 1e6)


def _angle(lines: Lines, column: int, name: str, starts: Array) -> Array:
    return _degrees(lines.read(starts, name))[:, column]


def _of_line(lines: Lines, name: str, starts: Array) -> Array:
    values = lines.read(starts, name)
    return np.repeat(decode_scaled(values) if values.dtype == SCALED else values, SPECTRA_PER_LINE)


def _of_view(lines: Lines, name: str, starts: Array) -> Array:
    values = lines.read(starts, name)
    return values.reshape(-1).astype(values.dtype.newbyteorder("="))


def _clusters(lines: Lines, name: str, starts: Array) -> Array:
    """Return what AVHRR saw of the clusters; NaN where IASI's own imager stood in for it."""
    values = decode_scaled(lines.read(starts, name))
    stand_in = lines.read(starts, "IDefCcsMode") & 1 == 1
    values[stand_in] = np.nan
    return values.reshape(-1, *values.shape[3:])
