"""Writers of SEVIRI Level 1.5 in the native format and in HRIT, and of CLM in GRIB.

satpy only reads them.
Records are laid out as the dtypes of satpy's readers say, and filled with what they need.
"""

import datetime
import json
import subprocess
import sys

import numpy as np
from satpy.readers import seviri_l1b_hrit, seviri_l1b_native_hdr
from satpy.readers.core.hrit import (
    image_navigation,
    image_structure,
    primary_header,
    timestamp_record,
)

STEP = 3000.403165817
CHANNELS = (
    *("VIS006", "VIS008", "IR_016", "IR_039", "WV_062", "WV_073"),
    *("IR_087", "IR_097", "IR_108", "IR_120", "IR_134"),
)
SLOPES = np.array(
    [0.0231, 0.0297, 0.0236, 0.00366, 0.00832, 0.0386, 0.127, 0.104, 0.205, 0.223, 0.157, 0.03]
)
"""Radiance of a count, mW m-2 sr-1 (cm-1)-1, of all channels and HRV; 51 counts are dark."""
NOON = datetime.datetime(2010, 6, 1, 12, 0)


def native_name(start=NOON, satellite="MSG2"):
    """Return the name of a file whose scan ends 12 minutes and 41 seconds after its start."""
    end = start + datetime.timedelta(minutes=12, seconds=41)
    return f"{satellite}-SEVI-MSG15-0100-NA-{end:%Y%m%d%H%M%S}.123000000Z-NA.nat"


def write_native(
    path, counts, first_line=2676, first_column=2366, start=NOON, satellite=322, longitude=0.0
):
    """Write a native file: counts (line, band, column) of the first bands, or of all.

    The first line is the southernmost, the first column the easternmost, as scanned.
    """
    lines, bands, columns = counts.shape
    header = np.zeros(1, seviri_l1b_native_hdr.get_native_header(True))
    header["15_MAIN_PRODUCT_HEADER"]["FormatName"] = (b"FormatName                  : ", b"NATIVE")
    for key, value in {
        "SelectedBandIDs": ("X" * bands).ljust(12, "-"),
        "SouthLineSelectedRectangle": first_line,
        "NorthLineSelectedRectangle": first_line + lines - 1,
        "EastColumnSelectedRectangle": first_column,
        "WestColumnSelectedRectangle": first_column + columns - 1,
        "NumberLinesVISIR": lines,
        "NumberColumnsVISIR": columns,
        "NumberLinesHRV": 3 * lines,
        "NumberColumnsHRV": 3 * columns,
    }.items():
        header["15_SECONDARY_PRODUCT_HEADER"][key] = (key.encode(), str(value).encode())
    fill_header(header["15_DATA_HEADER"], start, satellite, longitude)
    day, milliseconds = _cds(start)
    moment = [("Days", ">u2"), ("Milliseconds", ">u4")]
    records = seviri_l1b_native_hdr.GSDTRecords
    line = [
        ("packet", [("header", records.gp_pk_header), ("more", records.gp_pk_sh1)]),
        *[("version", "u1"), ("satid", "u2"), ("time", "u2", 5), ("lineno", "u4")],
        *[("band", "u1"), ("acq_time", moment), ("quality", "u1", 3)],
        ("data", "u1", columns * 10 // 8),
    ]
    image = np.zeros((lines, bands), line)
    image["acq_time"]["Days"] = day
    image["acq_time"]["Milliseconds"] = (milliseconds + 400_000 + 600 * np.arange(lines))[:, None]
    image["data"] = _pack(counts)
    trailer = np.zeros(1, seviri_l1b_native_hdr.native_trailer)
    _fill_trailer(trailer["15TRAILER"], start)
    path.write_bytes(header.tobytes() + image.tobytes() + trailer.tobytes())
    return path


def write_hrit(folder, counts, start=NOON, segments=8, longitude=0.0):
    """Write segments of all bands, a prologue and an epilogue; counts are (line, band, column).

    The grid is SEVIRI's reduced so that the columns reach over the whole disc.
    """
    folder.mkdir(exist_ok=True)
    lines, _, columns = counts.shape
    name = f"H-000-MSG2__-MSG2________-{{}}-{{}}-{start:%Y%m%d%H%M}-__"
    prologue = np.zeros(1, seviri_l1b_hrit.hrit_prologue)
    fill_header(prologue, start, 322, longitude)
    _write_records(folder / name.format("_" * 9, "PRO______"), 128, [], prologue.tobytes())
    epilogue = np.zeros(1, seviri_l1b_hrit.hrit_epilogue)
    _fill_trailer(epilogue, start)
    _write_records(folder / name.format("_" * 9, "EPI______"), 129, [], epilogue.tobytes())
    each = lines // segments
    day, milliseconds = _cds(start)
    for index, band in enumerate(CHANNELS):
        for segment in range(segments):
            first = segment * each
            structure = np.array((10, columns, each, 0), image_structure)
            factor = -round(13_642_337 * columns / 3712)
            navigation = np.array(
                (b"geos(0)", factor, factor, columns // 2 + 1, lines // 2 + 1 + each - first),
                image_navigation,
            )
            identity = np.zeros((), seviri_l1b_hrit.segment_identification)
            identity["GP_SC_ID"], identity["spectral_channel_id"] = 322, index + 1
            identity["segment_sequence_number"] = segment + 1
            identity["planned_start_segment_number"] = 1
            identity["planned_end_segment_number"] = segments
            quality = np.zeros(each, seviri_l1b_hrit.image_segment_line_quality)
            quality["line_number_in_grid"] = first + np.arange(each) + 1
            quality["line_mean_acquisition"]["days"] = day
            taken = milliseconds + 400_000 + 600 * (first + np.arange(each))
            quality["line_mean_acquisition"]["milliseconds"] = taken
            stamp = np.zeros((), timestamp_record)
            data = _pack(counts[first : first + each, index]).tobytes()
            _write_records(
                folder / name.format(band.ljust(9, "_"), f"{segment + 1:06d}___"),
                0,
                [(1, structure), (2, navigation), (5, stamp), (128, identity), (129, quality)],
                data,
            )
    return folder


WRITE_GRIB = """
import json, sys
import eccodes
path, keys, values = json.load(sys.stdin)
message = eccodes.codes_grib_new_from_samples("GRIB2")
for key, value in keys.items():
    eccodes.codes_set(message, key, value)
eccodes.codes_set_values(message, values)
with open(path, "wb") as file:
    eccodes.codes_write(message, file)
"""


def write_clm(path, codes):
    """Write a cloud mask around the sub-satellite point: codes (y, x), north up, of even size."""
    rows, columns = codes.shape
    keys = {
        "gridType": "space_view",
        **{"discipline": 3, "parameterCategory": 0, "parameterNumber": 7},
        **{"Nx": columns, "Ny": rows, "shapeOfTheEarth": 3},
        **{"scaleFactorOfEarthMajorAxis": 2, "scaledValueOfEarthMajorAxis": 637_816_900},
        **{"scaleFactorOfEarthMinorAxis": 2, "scaledValueOfEarthMinorAxis": 635_658_380},
        **{"longitudeOfSubSatellitePointInDegrees": 0.0, "NrInRadiusOfEarth": 6.6107},
        **{"XpInGridLengths": columns / 2, "YpInGridLengths": rows / 2, "bitsPerValue": 8},
    }
    values = codes[::-1, ::-1].astype(float).ravel().tolist()
    # A process that writes GRIB and reads it as satpy does crashes at its end.
    subprocess.run(
        [sys.executable, "-c", WRITE_GRIB],
        input=json.dumps([str(path), keys, values]),
        text=True,
        check=True,
    )
    return path


def _write_records(path, file_type, records, data):
    """Write header records, each with its number and length, then data."""
    listed = [(number, record.tobytes()) for number, record in records]
    length = 3 + primary_header.itemsize + sum(3 + len(record) for _, record in listed)
    primary = np.array((file_type, length, 8 * len(data)), primary_header).tobytes()
    header = b"".join(
        bytes([number]) + (3 + len(record)).to_bytes(2, "big") + record
        for number, record in [(0, primary), *listed]
    )
    path.write_bytes(header + data)


def _cds(time):
    """Return days since 1958 and milliseconds of the day."""
    midnight = datetime.datetime.combine(time.date(), datetime.time())
    days = (time.date() - datetime.date(1958, 1, 1)).days
    return days, int((time - midnight).total_seconds() * 1000)


def _pack(counts):
    """Return counts in ten bits each, along the last axis."""
    bits = (counts[..., None] >> np.arange(9, -1, -1)) & 1
    return np.packbits(bits.reshape(*counts.shape[:-1], -1).astype("u1"), axis=-1)


def fill_header(data, start, satellite, longitude):
    """Fill in what both formats have of satellite, time, grid and calibration."""
    data["SatelliteStatus"]["SatelliteDefinition"]["SatelliteId"] = satellite
    data["GeometricProcessing"]["EarthModel"] = (2, 6378.169, 6356.5838, 6356.5838)
    day, milliseconds = _cds(start)
    planned = data["ImageAcquisition"]["PlannedAcquisitionTime"]
    planned["TrueRepeatCycleStart"] = (day, milliseconds, 0, 0)
    planned["PlannedRepeatCycleEnd"] = (day, milliseconds + 900_000, 0, 0)
    description = data["ImageDescription"]
    description["ProjectionDescription"]["LongitudeOfSSP"] = longitude
    grid = description["ReferenceGridVIS_IR"]
    grid["LineDirGridStep"] = grid["ColumnDirGridStep"] = STEP / 1000
    grid["GridOrigin"] = 2
    description["Level15ImageProduction"]["PlannedChanProcessing"] = 2
    radiometry = data["RadiometricProcessing"]
    radiometry["Level15ImageCalibration"]["CalSlope"] = SLOPES
    radiometry["Level15ImageCalibration"]["CalOffset"] = -51.0 * SLOPES
    radiometry["MPEFCalFeedback"]["GSICSCalCoeff"][0, 3:] = 1.05 * SLOPES[3:]
    radiometry["MPEFCalFeedback"]["GSICSOffsetCount"][0, 3:] = -51.0


def _fill_trailer(trailer, start):
    day, milliseconds = _cds(start)
    scan = trailer["ImageProductionStats"]["ActualScanningSummary"]
    scan["ForwardScanStart"] = (day, milliseconds + 10_000)
    scan["ForwardScanEnd"] = (day, milliseconds + 760_000)
