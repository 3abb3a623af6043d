"""Fields of labels: the class of each feature or row, what belongs together, what is held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from undulatus._plain import plain_text
from undulatus.errors import SceneError
from undulatus.scenes.labelled_pixels import Class

Array = npt.NDArray[Any]

TRAINING = ("train", "training", "learn", "fit")
"""What a field that splits labels says of what is to be learned from, in any case, ..."""

HELD_OUT = ("test", "testing", "holdout", "held out", "validation", "val")
"""... and of what is held out for scores."""

FIELDS = ("class", "label")
"""Fields with the class, if none is named and there are several."""

NAMED = 5
"""Features that an error names, at most."""


@dataclass(frozen=True)
class Wanted:
    """What is read of labels: names of fields, and whether polygons take what they touch."""

    field: str | None
    group: str | None
    split: str | None
    all_touched: bool


def read_csv(path: Path) -> Any:
    """Return a table whose columns are numbers only if no text is lost by it.

    Whole numbers are, if they are written as such (``7``, not ``007``), and columns of real ones;
    an empty cell alone is missing, not ``NA`` or ``None``.
    """
    import pandas

    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise SceneError(f"{path} cannot be read as a table: {error}") from error
    # As undulatus suggest writes texts that a spreadsheet would take for formulas.
    table = table.map(plain_text).rename(columns=plain_text)
    for name in table.columns:
        present = table[name].str.strip().replace("", None).dropna()
        numbers = pandas.to_numeric(present, errors="coerce")
        # As other programs write whole numbers of which some are missing: all with .0.
        alike = present.str.removesuffix(".0") if present.str.endswith(".0").all() else present
        whole = alike.str.fullmatch(r"0|-?[1-9]\d{0,17}").all()
        if whole or (np.isfinite(numbers).all() and (numbers % 1 != 0).any()):
            table[name] = numbers.reindex(table.index).astype("Int64" if whole else float)
    return table


def held_flags(column: Any, where: str) -> Array:
    """Return which features a field says are held out, (n,) bool."""
    words = [str(value).strip().lower() for value in column.tolist()]
    strange = sorted({word for word in words if word not in (*TRAINING, *HELD_OUT)})
    if strange:
        raise SceneError(
            f"The field {column.name!r} of {where} holds {some(map(repr, strange))}, but a split "
            f"says of each feature with a class whether it is to be learned from "
            f"({', '.join(TRAINING)}) or held out ({', '.join(HELD_OUT)})."
        )
    return np.array([word in HELD_OUT for word in words])


def flags_of_groups(numbers: Array, names: list[str], flags: Array, where: str) -> Array:
    """Return which groups are held out, (g,) bool; one that is and is not is an error."""
    count = len(names)
    out = np.bincount(numbers, flags, count) > 0
    mixed = np.flatnonzero(out & (np.bincount(numbers, ~flags, count) > 0))
    if len(mixed):
        raise SceneError(
            f"{where} says of {some([names[i] for i in mixed])} both that it is to be learned "
            f"from and that it is held out. What belongs together is on one side."
        )
    return out


def find_field(fields: list[str], wanted: Wanted, where: str) -> str:
    """Return the field with the class; that and the others that were named must be there."""
    for name in (wanted.field, wanted.group, wanted.split):
        _require_field(fields, name, where)
    if wanted.field is not None:
        return wanted.field
    fields = [name for name in fields if name not in (wanted.group, wanted.split)]
    if len(fields) == 1:
        return fields[0]
    found = next((name for name in FIELDS if name in fields), None)
    if found is None:
        raise SceneError(
            f"Which field of {where} has the class? Found: {', '.join(fields) or 'none'}. Name it "
            f"(--field NAME, in Python field=...)."
        )
    return found


def _require_field(fields: list[str], field: str | None, where: str) -> None:
    if field is not None and field not in fields:
        raise SceneError(f"{where} has no field {field!r}. Found: {', '.join(fields) or 'none'}.")


def as_classes(column: Any, where: str, name: str) -> list[Class | None]:
    """Return the class of each feature: whole numbers or text, None where there is none."""
    raw = [None if _is_absent(value) else value for value in column.tolist()]
    present = [value for value in raw if value is not None]
    if not present:
        raise SceneError(f"The field {name!r} of {where} is empty: no feature has a class.")
    if all(isinstance(value, str) for value in present):
        return [None if value is None else value.strip() for value in raw]
    if any(isinstance(value, str) for value in present):
        raise SceneError(
            f"The field {name!r} of {where} holds both text and numbers: "
            f"{some(sorted({repr(value) for value in present}))}. Use one of them."
        )
    if not all(float(value).is_integer() for value in present):
        raise SceneError(
            f"The field {name!r} of {where} holds fractions or infinity: "
            f"{some(sorted(set(present)))}. Classes are whole numbers or text."
        )
    return [None if value is None else int(value) for value in raw]


def _is_absent(value: Any) -> bool:
    # NaN and NaT alone differ from themselves; pandas' NA cannot be compared.
    if value is None or type(value).__name__ == "NAType":
        return True
    return bool(value != value) or (isinstance(value, str) and not value.strip())


def notes_on_labels(labels: list[Class | None], what: str) -> list[str]:
    """Return how many features have no class, and which classes look like one."""
    absent = sum(label is None for label in labels)
    notes = [f"{absent:,} {what} without a class are left out"] if absent else []
    alike: dict[str, list[str]] = {}
    for label in sorted({label for label in labels if isinstance(label, str)}):
        alike.setdefault("".join(normalize("NFKC", label).casefold().split()), []).append(label)
    notes += [
        f"{' and '.join(map(repr, own))} are different classes, though they differ only in case "
        f"or white space: rename them if they are one"
        for own in alike.values()
        if len(own) > 1
    ]
    return notes


def some(values: Any) -> str:
    """Return the first few of some values as text."""
    listed = [str(value) for value in values]
    return ", ".join(listed[:NAMED]) + (", ..." if len(listed) > NAMED else "")
