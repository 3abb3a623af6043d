"""IASI's native files as CODA reads them, to compare with; Debian has CODA (python3-coda).

CODA reads what a definition describes. If ``CODA_DEFINITION`` names a folder with ``EPS.codadef``
(github.com/stcorp/codadef-eps), that is used; if not, the definition here, which says the same of
Level 1C: fields, types, numbers of values and the order of records, as CODA's own definition has
them. Places in the file, byte order, times and scaled integers are then CODA's doing.

CODA runs in Debian's own Python, in another process, which gives arrays back in files.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

PYTHON = "/usr/bin/python3"

_XML = 'xmlns:cd="http://www.stcorp.nl/coda/definition/2008/07" last-modified="2010-08-26"'

_TYPES = {
    **{
        f"{sign}int{bits}": f"<cd:Integer><cd:BitSize>{bits}</cd:BitSize>"
        f"<cd:NativeType>{sign}int{bits}</cd:NativeType></cd:Integer>"
        for sign in ("", "u")
        for bits in (8, 16, 32)
    },
    "micro": '<cd:Integer><cd:Conversion numerator="1.0" denominator="1000000.0"/>'
    "<cd:BitSize>32</cd:BitSize><cd:NativeType>int32</cd:NativeType></cd:Integer>",
    "vsf": "<cd:VSFInteger><cd:ScaleFactor><cd:Integer><cd:BitSize>8</cd:BitSize>"
    "<cd:NativeType>int8</cd:NativeType></cd:Integer></cd:ScaleFactor>"
    "<cd:Integer><cd:BitSize>32</cd:BitSize><cd:NativeType>int32</cd:NativeType></cd:Integer>"
    "</cd:VSFInteger>",
    "time": '<cd:Time timeformat="binary_eps_datetime"></cd:Time>',
    "header": '<cd:NamedType id="REC_HEAD"/>',
}

_RECORD_HEADER = [
    ("RECORD_CLASS", "uint8"), ("INSTRUMENT_GROUP", "uint8"), ("RECORD_SUBCLASS", "uint8"),
    ("RECORD_SUBCLASS_VERSION", "uint8"), ("RECORD_SIZE", "uint32"),
    ("RECORD_START_TIME", "time"), ("RECORD_STOP_TIME", "time"),
]  # fmt: skip

_SCALE_FACTORS = [
    ("RECORD_HEADER", "header"), ("IDefScaleSondNbScale", "int16"),
    ("IDefScaleSondNsfirst", "int16", 10), ("IDefScaleSondNslast", "int16", 10),
    ("IDefScaleSondScaleFactor", "int16", 10), ("IDefScaleIISScaleFactor", "int16"),
]  # fmt: skip


def _line(version: int) -> list[Any]:
    """Return name, type and dims of the fields of a line, last dim fastest."""
    flags: dict[int, list[Any]] = {
        3: [("GQisFlagQual", "uint8")],
        4: [("GQisFlagQual", "uint8", 30, 4)],
        5: [("GQisFlagQual", "uint8", 30, 4, 3), ("GQisFlagQualDetailed", "uint16", 30, 4)],
    }
    last = [
        ("GIacVarImagIIS", "vsf", 30), ("GIacAvgImagIIS", "vsf", 30),
        ("GEUMAvhrr1BCldFrac", "uint8", 30, 4), ("GEUMAvhrr1BLandFrac", "uint8", 30, 4),
        ("GEUMAvhrr1BQual", "uint8", 30, 4),
    ]  # fmt: skip
    return [
        ("RECORD_HEADER", "header"), ("DEGRADED_INST_MDR", "uint8"),
        ("DEGRADED_PROC_MDR", "uint8"), ("GEPSIasiMode", "uint32"),
        ("GEPSOPSProcessingMode", "uint32"), ("GEPSIdConf", "uint8", 32),
        ("GEPSLocIasiAvhrr_IASI", "vsf", 30, 4, 2), ("GEPSLocIasiAvhrr_IIS", "vsf", 30, 25, 2),
        ("OBT", "uint8", 30, 6), ("OnboardUTC", "time", 30), ("GEPSDatIasi", "time", 30),
        ("GIsfLinOrigin", "int32", 2), ("GIsfColOrigin", "int32", 2), ("GIsfPds1", "micro", 2),
        ("GIsfPds2", "micro", 2), ("GIsfPds3", "micro", 2), ("GIsfPds4", "micro", 2),
        ("GEPS_CCD", "uint8", 30), ("GEPS_SP", "int32", 30), ("GIrcImage", "uint16", 30, 64, 64),
        *flags[version],
        ("GQisQualIndex", "vsf"), ("GQisQualIndexIIS", "vsf"), ("GQisQualIndexLoc", "vsf"),
        ("GQisQualIndexRad", "vsf"), ("GQisQualIndexSpect", "vsf"),
        ("GQisSysTecIISQual", "uint32"), ("GQisSysTecSondQual", "uint32"),
        ("GGeoSondLoc", "micro", 30, 4, 2), ("GGeoSondAnglesMETOP", "micro", 30, 4, 2),
        ("GGeoIISAnglesMETOP", "micro", 30, 25, 2), ("GGeoSondAnglesSUN", "micro", 30, 4, 2),
        ("GGeoIISAnglesSUN", "micro", 30, 25, 2), ("GGeoIISLoc", "micro", 30, 25, 2),
        ("EARTH_SATELLITE_DISTANCE", "uint32"), ("IDefSpectDWn1b", "vsf"),
        ("IDefNsfirst1b", "int32"), ("IDefNslast1b", "int32"),
        ("GS1cSpect", "int16" if version > 3 else "uint16", 30, 4, 8700),
        ("IDefCovarMatEigenVal1c", "vsf", 100, 2), ("IDefCcsChannelId", "int32", 6),
        ("GCcsRadAnalNbClass", "int32", 30, 4), ("GCcsRadAnalWgt", "vsf", 30, 4, 7),
        ("GCcsRadAnalY", "micro", 30, 4, 7), ("GCcsRadAnalZ", "micro", 30, 4, 7),
        ("GCcsRadAnalMean", "vsf", 30, 4, 7, 6), ("GCcsRadAnalStd", "vsf", 30, 4, 7, 6),
        ("GCcsImageClassified", "uint8", 30, 100, 100), ("IDefCcsMode", "uint32"),
        ("GCcsImageClassifiedNbLin", "int16", 30), ("GCcsImageClassifiedNbCol", "int16", 30),
        ("GCcsImageClassifiedFirstLin", "vsf", 30), ("GCcsImageClassifiedFirstCol", "vsf", 30),
        ("GCcsRadAnalType", "uint8", 30, 7), *(last if version == 5 else []),
    ]  # fmt: skip


def _field(name: str, content: str) -> str:
    return f'<cd:Field name="{name}">{content}</cd:Field>'


def _array(content: str, *dims: Any) -> str:
    sizes = "".join(f"<cd:Dimension>{size}</cd:Dimension>" for size in dims)
    return f"<cd:Array>{sizes}{content}</cd:Array>" if dims else content


def _record(name: str, rows: list[Any]) -> str:
    fields = "".join(_field(row[0], _array(_TYPES[row[1]], *row[2:])) for row in rows)
    return _type("Record", name, fields)


def _type(kind: str, name: str, content: str) -> str:
    opening = f'<?xml version="1.0"?><cd:{kind} format="binary" name="{name}" {_XML}>'
    return f"{opening}{content}</cd:{kind}>"


def _named(name: str) -> str:
    return f'<cd:NamedType id="{name}"/>'


def _raw(count: Any) -> str:
    return f"<cd:Raw><cd:BitSize>{count}</cd:BitSize></cd:Raw>"


def _main_header() -> str:
    """Return the main product header: the counts of records at their places, all else raw."""
    digits = (
        '<cd:Integer format="ascii"><cd:ByteSize>6</cd:ByteSize>'
        "<cd:NativeType>uint32</cd:NativeType></cd:Integer>"
    )
    rows, done = _field("RECORD_HEADER", _TYPES["header"]), 20
    for name, place in {"IPR": 2792, "GEADR": 2831, "VEADR": 2909, "MDR": 2987}.items():
        rows += _field(f"before_{name}", _raw(8 * (place - done))) + _field(
            f"TOTAL_{name}", digits
        )
        done = place + 6
    rows += _field("rest", _raw(8 * (3307 - done)))
    return _type("Record", "MPHR_v2", rows)


def _product(version: int, name: str) -> str:
    def several(kind: str, type_name: str) -> str:
        return _field(kind, _array(_named(type_name), f"$num_{kind.lower()}"))

    variables = "".join(
        f'<cd:ProductVariable name="num_{kind.lower()}"><cd:Init>$num_{kind.lower()} = '
        f"int(/MPHR/TOTAL_{kind})</cd:Init></cd:ProductVariable>"
        for kind in ("IPR", "GEADR", "VEADR", "MDR")
    )
    sizes = (
        '<cd:ProductVariable name="mdr_bit_size"><cd:Dimension>$num_mdr</cd:Dimension>'
        "<cd:Init>for i = 0 to $num_mdr - 1 do $mdr_bit_size[i] = bitsize(/mdr[i])</cd:Init>"
        "</cd:ProductVariable>"
    )
    return (
        f'<?xml version="1.0"?><cd:ProductDefinition id="{name}" format="binary" {_XML}>'
        f'<cd:Record format="binary">{_field("MPHR", _named("MPHR_v2"))}'
        f"{several('IPR', 'ANY')}{several('GEADR', 'ANY')}"
        f"{_field('GIADR_Quality', _named('ANY'))}"
        f"{_field('GIADR_ScaleFactors', _named('SCALES'))}"
        f"{several('VEADR', 'ANY')}{several('MDR', f'LINE_{version}')}</cd:Record>"
        f"{variables}{sizes}</cd:ProductDefinition>"
    )


def _union(version: int) -> str:
    group, subclass = (
        f"int(:/RECORD_HEADER/{n})" for n in ("INSTRUMENT_GROUP", "RECORD_SUBCLASS")
    )
    which = f"if({group} == 8 &amp;&amp; {subclass} == 2, 0, 1)"
    fields = _field("MDR", _named(f"MDR_{version}")) + _field("Dummy", _named("ANY"))
    return _type(
        "Union",
        f"LINE_{version}",
        f"<cd:FieldExpression>{which}</cd:FieldExpression>"
        f"<cd:BitSize>$mdr_bit_size[index(.)]</cd:BitSize>{fields}",
    )


def _index() -> str:
    rules = ""
    for version, major in ((3, 2), (4, 10), (5, 11)):
        matches = {552: "IASI", 661: "1C", 1037: f"{major:5}"}
        data = "".join(
            f'<cd:MatchData offset="{o}">{t}</cd:MatchData>' for o, t in matches.items()
        )
        rules += (
            f'<cd:ProductDefinition id="IASI_1C_{version}" format="binary" version="{version}">'
            f"<cd:DetectionRule>{data}</cd:DetectionRule></cd:ProductDefinition>"
        )
    return (
        f'<?xml version="1.0"?><cd:ProductClass name="EPS" {_XML}>'
        f'<cd:ProductType name="IASI_xxx_1C">{rules}</cd:ProductType></cd:ProductClass>'
    )


def write_definition(folder: Path) -> Path:
    """Write the definition that CODA needs into a folder, and return the folder."""
    anything = _type(
        "Record",
        "ANY",
        _field("RECORD_HEADER", _TYPES["header"])
        + _field("data", _raw("(int(../RECORD_HEADER/RECORD_SIZE) - 20) * 8")),
    )
    files = {
        "index.xml": _index(),
        "types/REC_HEAD.xml": _record("REC_HEAD", _RECORD_HEADER),
        "types/MPHR_v2.xml": _main_header(),
        "types/SCALES.xml": _record("SCALES", _SCALE_FACTORS),
        "types/ANY.xml": anything,
    }
    for version in (3, 4, 5):
        files[f"types/MDR_{version}.xml"] = _record(f"MDR_{version}", _line(version))
        files[f"types/LINE_{version}.xml"] = _union(version)
        files[f"products/IASI_1C_{version}.xml"] = _product(version, f"IASI_1C_{version}")
    with zipfile.ZipFile(folder / "EPS.codadef", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return folder


_SCRIPT = """
import json, sys, time
import coda, numpy
order = json.loads(sys.argv[1])
with coda.open(order["path"]) as product:
    lines = [n for n in range(coda.get_size(product, "MDR")[0])
             if coda.get_field_available(product, "MDR", n, "MDR")][: order["lines"]]
    seconds = {}
    for name in order["names"]:
        began = time.process_time()
        values = [coda.fetch(product, "MDR", n, "MDR", name) for n in lines]
        seconds[name] = time.process_time() - began
        if order["folder"]:
            numpy.save(order["folder"] + "/" + name + ".npy", numpy.array(values))
    scales = coda.fetch(product, "GIADR_ScaleFactors")
    ranges = [numpy.asarray(getattr(scales, "IDefScaleSond" + n)).tolist()
              for n in ("NbScale", "Nsfirst", "Nslast", "ScaleFactor")]
print(json.dumps({"seconds": seconds, "lines": lines, "ranges": ranges}))
"""


def _environment(folder: Path) -> dict[str, str]:
    definition = os.environ.get("CODA_DEFINITION") or str(write_definition(folder))
    # Debian's module does not find the library by the name that Debian gives it.
    libraries = sorted(Path("/usr/lib").glob("*/libcoda.so.*"))
    preload = {"LD_PRELOAD": str(libraries[0])} if libraries else {}
    return {"PATH": os.environ.get("PATH", ""), "CODA_DEFINITION": definition, **preload}


def why_not(folder: Path) -> str:
    """Return why CODA cannot be used here, or an empty text if it can."""
    command = [PYTHON, "-c", "import coda, numpy; print(coda.version())"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=_environment(folder), timeout=60
        )
    except OSError as error:
        return f"no CODA: {error}"
    return "" if done.returncode == 0 else f"no CODA: {done.stderr.strip().splitlines()[-1:]}"


def fetch(
    path: Path, names: list[str], folder: Path, lines: int | None = None, keep: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fields of a file's lines as CODA gives them, by name, and what it says of itself.

    The second has the processor seconds of each field, the numbers of the lines, and the ranges of
    channels and their scale factors.
    """
    order = {
        "path": str(path),
        "names": names,
        "lines": lines,
        "folder": str(folder) if keep else "",
    }
    done = subprocess.run(
        [PYTHON, "-c", _SCRIPT, json.dumps(order)],
        capture_output=True,
        text=True,
        env=_environment(folder),
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    arrays = {name: np.load(folder / f"{name}.npy") for name in names} if keep else {}
    return arrays, json.loads(done.stdout)
