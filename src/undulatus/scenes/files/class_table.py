"""What the codes of a map are called and how they are coloured, as GIS programs read it.

A GeoTIFF has a colour table, but no place for names: GDAL keeps them in ``NAME.tif.aux.xml``, as
names of categories and as an attribute table; HFA and ENVI have places of their own. QGIS takes
the style of a layer from ``NAME.qml``, if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import xarray as xr

_COLUMNS = (("Value", 0, 5), ("Class", 2, 2), ("Red", 0, 6), ("Green", 0, 7), ("Blue", 0, 8))
"""Columns of an attribute table: names, GDAL's types (0 whole number, 2 text) and its usages."""


def class_rows(codes: xr.DataArray) -> Iterator[tuple[int, str, str]]:
    """Yield the code, the name and the colour ``"#rrggbb"`` of each class, by the attributes.

    Names are ``class_names``, a list in JSON, or else the words of ``flag_meanings``.
    """
    values = np.atleast_1d(codes.attrs["flag_values"]).tolist()
    words = str(codes.attrs.get("flag_meanings", "")).split() or map(str, values)
    named = codes.attrs.get("class_names")
    names = [word.replace("_", " ") for word in words] if named is None else json.loads(named)
    return zip(values, names, str(codes.attrs["flag_colors"]).split(), strict=True)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of ``"#rrggbb"``."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def auxiliary_xml(codes: xr.DataArray, *, every_code: bool = False) -> str:
    """Return the names of codes as GDAL's ``.aux.xml`` has them: categories and attributes.

    ``every_code`` gives the attribute table a row for each number up to the largest code: HFA
    takes the number of a row for the code that it is of.
    """
    rows = list(class_rows(codes))
    by_code = {code: name for code, name, _ in rows}
    if every_code:
        known = {row[0]: row for row in rows}
        rows = [known.get(code, (code, "", "#000000")) for code in range(max(by_code) + 1)]
    root = ElementTree.Element("PAMDataset")
    band = ElementTree.SubElement(root, "PAMRasterBand", band="1")
    categories = ElementTree.SubElement(band, "CategoryNames")
    for code in range(max(by_code) + 1):
        _add(categories, "Category", by_code.get(code, ""))
    table = ElementTree.SubElement(band, "GDALRasterAttributeTable", tableType="thematic")
    for index, (name, kind, usage) in enumerate(_COLUMNS):
        column = ElementTree.SubElement(table, "FieldDefn", index=str(index))
        for key, value in (("Name", name), ("Type", kind), ("Usage", usage)):
            _add(column, key, value)
    for index, (code, name, colour) in enumerate(rows):
        row = ElementTree.SubElement(table, "Row", index=str(index))
        for value in (code, name, *channels(colour)):
            _add(row, "F", value)
    return _as_text(root)


def qgis_style(codes: xr.DataArray) -> str:
    """Return a style of QGIS, ``.qml``, with the colour and the name of each code."""
    root = ElementTree.Element("qgis", styleCategories="Symbology", version="3.16")
    pipe = ElementTree.SubElement(root, "pipe")
    renderer = ElementTree.SubElement(
        pipe, "rasterrenderer", type="paletted", band="1", opacity="1", alphaBand="-1"
    )
    palette = ElementTree.SubElement(renderer, "colorPalette")
    for code, name, colour in class_rows(codes):
        ElementTree.SubElement(
            palette,
            "paletteEntry",
            value=str(code),
            color=colour,
            label=_without_controls(name),
            alpha="255",
        )
    return "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n" + _as_text(root)


def _add(parent: ElementTree.Element, name: str, value: Any) -> None:
    ElementTree.SubElement(parent, name).text = _without_controls(str(value))


def _without_controls(text: str) -> str:
    """Return a text as XML can hold it, which has no control characters, escaped or not."""
    return "".join(c if c.isprintable() else " " for c in text)


def _as_text(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
