"""Write files of IASI Level 1C in EUMETSAT's native format, for tests and benchmarks.

Fields are written one after another, as the tables of the format list them, each by its own number
of values; nothing here is shared with the reader. Fields that are not given are filled with random
bytes, so that a field read from the wrong place is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NAME = "IASI_xxx_1C_M01_20240819103856Z_20240819104152Z_N_C_20240819112911Z.nat"

FIRST, LAST, POWERS = (
    [2581, 5921, 9009, 9541, 10721],
    [5920, 9008, 9540, 10720, 11041],
    [7, 8, 9, 8, 9],
)
"""Ranges of channels and their scale factors, as files have them."""

CHANNELS, PLACES = 8461, 8700

HEADER_LINES = """
PRODUCT_NAME 67, PARENT_PRODUCT_NAME_1 67, PARENT_PRODUCT_NAME_2 67, PARENT_PRODUCT_NAME_3 67,
PARENT_PRODUCT_NAME_4 67, INSTRUMENT_ID 4, INSTRUMENT_MODEL 3, PRODUCT_TYPE 3, PROCESSING_LEVEL 2,
SPACECRAFT_ID 3, SENSING_START 15, SENSING_END 15, SENSING_START_THEORETICAL 15,
SENSING_END_THEORETICAL 15, PROCESSING_CENTRE 4, PROCESSOR_MAJOR_VERSION 5,
PROCESSOR_MINOR_VERSION 5, FORMAT_MAJOR_VERSION 5, FORMAT_MINOR_VERSION 5,
PROCESSING_TIME_START 15, PROCESSING_TIME_END 15, PROCESSING_MODE 1, DISPOSITION_MODE 1,
RECEIVING_GROUND_STATION 3, RECEIVE_TIME_START 15, RECEIVE_TIME_END 15, ORBIT_START 5,
ORBIT_END 5, ACTUAL_PRODUCT_SIZE 11, STATE_VECTOR_TIME 18, SEMI_MAJOR_AXIS 11, ECCENTRICITY 11,
INCLINATION 11, PERIGEE_ARGUMENT 11, RIGHT_ASCENSION 11, MEAN_ANOMALY 11, X_POSITION 11,
Y_POSITION 11, Z_POSITION 11, X_VELOCITY 11, Y_VELOCITY 11, Z_VELOCITY 11,
EARTH_SUN_DISTANCE_RATIO 11, LOCATION_TOLERANCE_RADIAL 11, LOCATION_TOLERANCE_CROSSTRACK 11,
LOCATION_TOLERANCE_ALONGTRACK 11, YAW_ERROR 11, ROLL_ERROR 11, PITCH_ERROR 11,
SUBSAT_LATITUDE_START 11, SUBSAT_LONGITUDE_START 11, SUBSAT_LATITUDE_END 11,
SUBSAT_LONGITUDE_END 11, LEAP_SECOND 2, LEAP_SECOND_UTC 15, TOTAL_RECORDS 6, TOTAL_MPHR 6,
TOTAL_SPHR 6, TOTAL_IPR 6, TOTAL_GEADR 6, TOTAL_GIADR 6, TOTAL_VEADR 6, TOTAL_VIADR 6,
TOTAL_MDR 6, COUNT_DEGRADED_INST_MDR 6, COUNT_DEGRADED_PROC_MDR 6,
COUNT_DEGRADED_INST_MDR_BLOCKS 6, COUNT_DEGRADED_PROC_MDR_BLOCKS 6, DURATION_OF_PRODUCT 8,
MILLISECONDS_OF_DATA_PRESENT 8, MILLISECONDS_OF_DATA_MISSING 8, SUBSETTED_PRODUCT 1
"""
"""Lines of the main product header and how many characters their values have."""

FIELDS = """
DEGRADED_INST_MDR u1 1, DEGRADED_PROC_MDR u1 1, GEPSIasiMode u1 4, GEPSOPSProcessingMode u1 4,
GEPSIdConf u1 32, GEPSLocIasiAvhrr_IASI v 240, GEPSLocIasiAvhrr_IIS v 1500, OBT u1 180,
OnboardUTC t 30, GEPSDatIasi t 30, GIsfLinOrigin i4 2, GIsfColOrigin i4 2, GIsfPds1 i4 2,
GIsfPds2 i4 2, GIsfPds3 i4 2, GIsfPds4 i4 2, GEPS_CCD u1 30, GEPS_SP i4 30, GIrcImage u2 122880,
GQisFlagQual u1 360, GQisFlagQualDetailed u2 120, GQisQualIndex v 1, GQisQualIndexIIS v 1,
GQisQualIndexLoc v 1, GQisQualIndexRad v 1, GQisQualIndexSpect v 1, GQisSysTecIISQual u4 1,
GQisSysTecSondQual u4 1, GGeoSondLoc i4 240, GGeoSondAnglesMETOP i4 240,
GGeoIISAnglesMETOP i4 1500, GGeoSondAnglesSUN i4 240, GGeoIISAnglesSUN i4 1500, GGeoIISLoc i4 1500,
EARTH_SATELLITE_DISTANCE u4 1, IDefSpectDWn1b v 1, IDefNsfirst1b i4 1, IDefNslast1b i4 1,
GS1cSpect i2 1044000, IDefCovarMatEigenVal1c v 200, IDefCcsChannelId i4 6,
GCcsRadAnalNbClass i4 120, GCcsRadAnalWgt v 840, GCcsRadAnalY i4 840, GCcsRadAnalZ i4 840,
GCcsRadAnalMean v 5040, GCcsRadAnalStd v 5040, GCcsImageClassified u1 300000, IDefCcsMode u4 1,
GCcsImageClassifiedNbLin i2 30, GCcsImageClassifiedNbCol i2 30, GCcsImageClassifiedFirstLin v 30,
GCcsImageClassifiedFirstCol v 30, GCcsRadAnalType u1 210, GIacVarImagIIS v 30, GIacAvgImagIIS v 30,
GEUMAvhrr1BCldFrac u1 120, GEUMAvhrr1BLandFrac u1 120, GEUMAvhrr1BQual u1 120
"""
"""Fields of a line of version 5: type and number of values.

``v`` is a power of ten and an integer, ``t`` a day and its milliseconds.
"""

NOT_IN_4 = ("GQisFlagQualDetailed", "GIacVarImagIIS", "GIacAvgImagIIS", "GEUMAvhrr1BCldFrac",
            "GEUMAvhrr1BLandFrac", "GEUMAvhrr1BQual")  # fmt: skip

LINE_BYTES = {3: 2_727_649, 4: 2_727_768, 5: 2_728_908}

FORMATS = {3: 2, 4: 10, 5: 11}
"""Major version of the format that has each version of lines."""

_BYTES = {"u1": 1, "u2": 2, "i2": 2, "i4": 4, "u4": 4, "v": 5, "t": 6}


@dataclass
class NativeFile:
    """What to write.

    ``fields`` has, by name, what every line has, or with another axis before it what each line
    has: numbers, pairs (power, integer) or pairs (day, millisecond).
    """

    counts: Any
    """Of each line: (line, 120, 8461 or 8700) of 16 bits."""
    fields: dict[str, Any] = field(default_factory=dict)
    version: int = 5
    lost: Collection[int] = ()
    """Places in the file, among lines, of lines that are lost."""
    header: Mapping[str, str] = field(default_factory=dict)
    scales: tuple[list[int], list[int], list[int]] = (FIRST, LAST, POWERS)
    first_channel: int = FIRST[0]
    seed: int = 0

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        with open(path, "wb") as file:
            for record in self.records():
                file.write(record)
        return path

    def records(self) -> Any:
        """Yield the bytes of every record."""
        rng = np.random.default_rng(self.seed)
        total = len(self.counts) + len(self.lost)
        before = [
            *(_record(3, 0, 0, 2, rng.bytes(7)) for _ in range(3)),
            _record(4, 0, 1, 1, rng.bytes(100)),
            _record(5, 8, 0, 2, rng.bytes(228_326)),
            _record(5, 8, 1, 2, self._scale_factors()),
            _record(6, 0, 1, 1, rng.bytes(100)),
        ]
        size = 3307 + sum(map(len, before)) + len(self.counts) * LINE_BYTES[self.version]
        counts = {"IPR": 3, "GEADR": 1, "GIADR": 2, "VEADR": 1, "MDR": total}
        yield self._main_header(counts, size + 21 * len(self.lost))
        yield from before
        background = rng.bytes(LINE_BYTES[self.version])
        kept = iter(range(len(self.counts)))
        for place in range(total):
            if place in self.lost:
                yield _record(8, 13, 1, 2, b"\0")
            else:
                yield _record(8, 8, 2, self.version, self._line(next(kept), background))

    def _main_header(self, counts: Mapping[str, int], size: int) -> bytes:
        values = {
            "PRODUCT_NAME": NAME[:-4],
            "INSTRUMENT_ID": "IASI",
            "PRODUCT_TYPE": "xxx",
            "PROCESSING_LEVEL": "1C",
            "SPACECRAFT_ID": "M01",
            "SENSING_START": "20240819103856Z",
            "SENSING_END": "20240819104152Z",
            "FORMAT_MAJOR_VERSION": str(FORMATS[self.version]),
            "FORMAT_MINOR_VERSION": "0",
            "ORBIT_START": "61734",
            "ORBIT_END": "61734",
            "ACTUAL_PRODUCT_SIZE": str(size),
            "TOTAL_RECORDS": str(1 + sum(counts.values())),
            "TOTAL_MPHR": "1",
            **{f"TOTAL_{name}": str(count) for name, count in counts.items()},
            "SUBSETTED_PRODUCT": "F",
            **self.header,
        }
        text = ""
        for item in HEADER_LINES.replace("\n", " ").split(","):
            name, width = item.split()
            is_text = name.endswith(
                ("NAME", "START", "END", "ID", "1", "2", "3", "4", "UTC", "TIME")
            )
            filler = "x" * int(width) if is_text else "0"
            text += f"{name:<30}= {values.get(name, filler):>{int(width)}}\n"
        return _record(1, 0, 0, 2, text.encode())

    def _scale_factors(self) -> bytes:
        ranges = [number for some in self.scales for number in [*some, *[0] * (10 - len(some))]]
        return struct.pack(">h10h10h10hh", len(self.scales[0]), *ranges, 7)

    def _line(self, line: int, background: bytes) -> bytes:
        parts, done = [], 0
        given: dict[str, Any] = {
            "IDefSpectDWn1b": [(0, 25)],
            "IDefNsfirst1b": [self.first_channel],
            "IDefNslast1b": [self.first_channel + CHANNELS - 1],
            "GQisFlagQual": np.zeros(360, int),
            "IDefCcsMode": [0],
            "DEGRADED_INST_MDR": [0],
            "DEGRADED_PROC_MDR": [0],
            **self.fields,
            "GS1cSpect": _widened(self.counts[line]),
        }
        for name, kind, count in self._table():
            size = count * _BYTES[kind]
            part = background[done : done + size]
            if name in given:
                part = _packed(kind, _of_line(given[name], line, count, kind))
            assert len(part) == size, name
            parts.append(part)
            done += size
        return b"".join(parts)

    def _table(self) -> list[tuple[str, str, int]]:
        rows = [item.split() for item in FIELDS.replace("\n", " ").split(",")]
        table = [(name, kind, int(count)) for name, kind, count in rows]
        if self.version == 5:
            return table
        flags = {"GQisFlagQual": 120 if self.version == 4 else 1}
        return [
            (
                name,
                kind if (self.version, name) != (3, "GS1cSpect") else "u2",
                flags.get(name, count),
            )
            for name, kind, count in table
            if name not in NOT_IN_4
        ]


def _of_line(values: Any, line: int, count: int, kind: str) -> Any:
    """Return the values of one line: of values for all lines, or for each."""
    array = np.asarray(values)
    pairs = 2 if kind in "vt" else 1
    if array.size > count * pairs:
        array = array[line]
    # Older versions have fewer flags.
    return array.reshape(-1, 2)[:count] if pairs == 2 else array.reshape(-1)[:count]


def _packed(kind: str, values: Any) -> bytes:
    if kind == "v":
        return b"".join(struct.pack(">bi", int(power), int(value)) for power, value in values)
    if kind == "t":
        return b"".join(struct.pack(">HI", int(day), int(ms)) for day, ms in values)
    return bytes(np.asarray(values).astype(">" + kind).tobytes())


def _widened(counts: Any) -> Any:
    if counts.shape[-1] == PLACES:
        return counts
    room = np.full((*counts.shape[:-1], PLACES - CHANNELS), -32768, counts.dtype)
    return np.concatenate([counts, room], axis=-1)


def _record(kind: int, group: int, subclass: int, version: int, content: bytes) -> bytes:
    size = 20 + len(content)
    start, stop = (8997, 38_336_000), (8997, 38_512_000)
    return struct.pack(">4BIHIHI", kind, group, subclass, version, size, *start, *stop) + content


def plausible_fields(lines: int, seed: int = 0) -> dict[str, Any]:
    """Return random values of every field that is read, each different from all others."""
    rng = np.random.default_rng(seed)

    def scaled(*shape: int) -> Any:
        power, value = rng.integers(0, 7, shape), rng.integers(-(10**6), 10**6, shape)
        return np.stack([power, value], -1)

    def degrees(*bounds: tuple[float, float]) -> Any:
        columns = [
            rng.integers(int(low * 1e6), int(high * 1e6), (lines, 120)) for low, high in bounds
        ]
        return np.stack(columns, -1)

    milliseconds = 38_336_000 + 8_000 * np.arange(lines)[:, None] + 213 * np.arange(30)
    times = np.stack([np.full_like(milliseconds, 8997), milliseconds], -1)
    return {
        "DEGRADED_INST_MDR": rng.integers(0, 2, (lines, 1)),
        "DEGRADED_PROC_MDR": rng.integers(0, 2, (lines, 1)),
        "OnboardUTC": times + np.array([0, 11]),
        "GEPSDatIasi": times,
        "GQisFlagQual": (rng.random((lines, 120, 3)) < 0.01).astype(int),
        "GQisFlagQualDetailed": rng.integers(0, 2**16, (lines, 120)),
        "GQisQualIndex": scaled(lines, 1),
        "GQisQualIndexLoc": scaled(lines, 1),
        "GQisQualIndexRad": scaled(lines, 1),
        "GQisQualIndexSpect": scaled(lines, 1),
        "GGeoSondLoc": degrees((-180, 180), (-90, 90)),
        "GGeoSondAnglesMETOP": degrees((0, 60), (0, 360)),
        "GGeoSondAnglesSUN": degrees((0, 180), (0, 360)),
        "GCcsRadAnalNbClass": rng.integers(1, 8, (lines, 120)),
        "GCcsRadAnalWgt": scaled(lines, 840),
        "GCcsRadAnalMean": scaled(lines, 5040),
        "GCcsRadAnalStd": scaled(lines, 5040),
        "GEUMAvhrr1BCldFrac": rng.integers(0, 101, (lines, 120)),
        "GEUMAvhrr1BLandFrac": rng.integers(0, 101, (lines, 120)),
        "GEUMAvhrr1BQual": rng.integers(0, 256, (lines, 120)),
    }


def counts_of(radiance: Any) -> Any:
    """Return the counts of radiances, (..., 8461) mW m⁻² sr⁻¹ (cm⁻¹)⁻¹."""
    widths = [last - first + 1 for first, last in zip(FIRST, LAST, strict=True)]
    steps = np.repeat(10.0 ** (5 - np.array(POWERS)), widths)
    return np.round(radiance / steps).astype(np.int16)
