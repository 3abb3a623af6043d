"""Legends: what the classes of a model are called, and the codes and colours that maps give them.

>>> from undulatus.products import Legend
>>> legend = Legend((0, 1, 2), names=("open water", "land", "cloud"), cloud="cloud")
>>> legend.codes, legend.flag_meanings
((0, 1, 2), 'open_water land cloud')
"""

from __future__ import annotations

import colorsys
import json
import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, SceneError
from undulatus.products.provenance import Provenance

Class = bool | int | float | str
"""A class as ``model.classes_.tolist()`` has it."""

MISSING_CODE = 255
"""The code of pixels without a class, unless a class has it."""

MOST_CLASSES = 255
"""Codes are bytes, and one of them marks pixels without a class."""

CLEAR, CLOUD = "clear", "cloud"
"""Names of the classes of a cloud mask."""

CLOUD_MEANINGS = ("cloud", "clouds", "cloudy")
"""What the ``flag_meanings`` of a label call cloud."""

CHAINS = ("landmarks", "sounder")
"""Chains of which every model that has no legend was fitted on cloud, 1, and clear, 0."""

CLEAR_COLOUR, CLOUD_COLOUR = "#3b6e8f", "#f7f7f7"
"""Default colours of the class that is known to be cloud, of the other of two, ..."""

PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#000000",
)
"""... and of all others in their order: those of Okabe and Ito, which differ without colour vision
too."""


@dataclass(frozen=True)
class Legend:
    """The names, codes and colours of a model's classes, in one order.

    Parameters
    ----------
    classes : tuple
        The classes as the model knows them: the values of ``model.classes_``, in any order.
    names : tuple of str, optional
        What to call them; by default the classes themselves.
    codes : tuple of int, optional
        Their codes in a map, 0 to 255: by default the classes, if these are such numbers, or else
        0, 1, 2 and so on.
    colours : tuple of str, optional
        ``"#rrggbb"`` each.
    cloud : str, optional
        The name of the class that is cloud. A map of two classes is then a cloud mask, and one of
        more classes has a cloud mask too.

    Examples
    --------
    >>> Legend(("cloud", "land"), cloud="cloud").colours
    ('#f7f7f7', '#3b6e8f')
    """

    classes: tuple[Class, ...]
    names: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    colours: tuple[str, ...] = ()
    cloud: str | None = None

    def __post_init__(self) -> None:
        classes = tuple(self.classes)
        if not 2 <= len(classes) <= MOST_CLASSES or len(set(classes)) < len(classes):
            raise InputError(
                f"A legend has 2 to {MOST_CLASSES} classes, each once, but was given "
                f"{len(classes)}: {_listed(classes)}."
            )
        names = tuple(self.names) or tuple(map(str, classes))
        if not all(isinstance(name, str) for name in names):
            raise InputError(f"The names of a legend are texts, but {_listed(names)} were given.")
        found = {
            "classes": classes,
            "names": names,
            "codes": tuple(self.codes) or _default_codes(classes),
            "colours": tuple(self.colours) or _default_colours(names, self.cloud),
        }
        for field, values in found.items():
            if len(values) != len(classes):
                raise InputError(
                    f"A legend of {len(classes)} classes has {len(values)} {field}: "
                    f"{_listed(values)}. Give one for each class."
                )
            object.__setattr__(self, field, values)
        self._require_values()

    def _require_values(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise InputError(
                f"The names {_listed(self.names)} are not distinct. Give each class its own."
            )
        if len(set(self.codes)) < len(self.codes) or not set(self.codes) <= set(range(256)):
            raise InputError(
                f"The codes of a legend are distinct numbers from 0 to 255, but "
                f"{_listed(self.codes)} were given."
            )
        for colour in self.colours:
            if not is_colour(colour):
                raise InputError(f'A colour is given as "#rrggbb", but {colour!r} was found.')
        if self.cloud is not None and self.cloud not in self.names:
            raise InputError(
                f"The legend says that {self.cloud!r} is cloud, but its names are "
                f"{_listed(self.names)}. Name one of them as cloud."
            )

    # What a map says of the classes

    @property
    def missing(self) -> int:
        """The code of pixels without a class: 255, or the largest that no class has."""
        return next(code for code in range(MISSING_CODE, -1, -1) if code not in self.codes)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The names as words of CF's attribute: letters, digits and ``_-.+@``.

        Names that would be one word, or none (those without a Latin letter), have their code too.
        """
        words = [_as_token(name) for name in self.names]
        coded = [f"{word or 'class'}_{code}" for word, code in zip(words, self.codes, strict=True)]
        some = [
            word if word and words.count(word) == 1 else own
            for word, own in zip(words, coded, strict=True)
        ]
        return tuple(some if len(set(some)) == len(some) else coded)

    @property
    def flag_meanings(self) -> str:
        """The words of the classes in one text, separated by spaces."""
        return " ".join(self.tokens)

    @property
    def class_names(self) -> str:
        """The names as they are, a list in JSON."""
        return json.dumps(self.names, ensure_ascii=False)

    @property
    def flag_colors(self) -> str:
        """The colours in one text, separated by spaces."""
        return " ".join(self.colours)

    @property
    def cloud_index(self) -> int | None:
        """The position of cloud among the classes, if it is known."""
        return None if self.cloud is None else self.names.index(self.cloud)

    @property
    def is_unnamed_pair(self) -> bool:
        """Whether all that is known of two classes is that they are 0 and 1."""
        plain = self.names == tuple(map(str, self.classes))
        return self.cloud is None and plain and self.classes == (0, 1)

    # The legend of a model

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the legend of a fitted model: the one stored with it, or what else is known.

        A model that a chain of this package fitted on clouds, before it stored legends, has clear
        and cloud. Classes of any other are called by their own names, and it is not known which
        of them is cloud, whatever they are called.
        """
        check_is_fitted(model)
        classes = tuple(model.classes_.tolist())
        provenance = Provenance.of(model)
        if provenance.legend is not None:
            return cls.from_dict(provenance.legend).for_model(model)
        if provenance.chain in CHAINS and classes == (0, 1):
            return cls(classes, names=(CLEAR, CLOUD), cloud=CLOUD)
        return cls(classes)

    def for_model(self, model: Any) -> Self:
        """Return the legend in the order of the model's classes, which must be its own."""
        wanted = tuple(model.classes_.tolist())
        lacking = [value for value in wanted if value not in self.classes]
        unknown = [value for value in self.classes if value not in wanted]
        if lacking or unknown:
            lines = [
                f"\n  {what}: {_listed(values)}"
                for what, values in (
                    ("classes of the model that it lacks", lacking),
                    ("classes that the model does not have", unknown),
                )
                if values
            ]
            raise InputError(
                f"The legend does not fit the model.{''.join(lines)}\n"
                f"Give a legend of the model's own classes: {_listed(wanted)}."
            )
        order = [self.classes.index(value) for value in wanted]
        return replace(
            self,
            classes=wanted,
            names=tuple(self.names[i] for i in order),
            codes=tuple(self.codes[i] for i in order),
            colours=tuple(self.colours[i] for i in order),
        )

    def attach_to(self, model: Any) -> None:
        """Store the legend with a fitted model, so that ``save_model`` writes it to the file."""
        check_is_fitted(model)
        stored = dict(getattr(model, "provenance_", {}))
        model.provenance_ = stored | {"legend": self.for_model(model).as_dict()}

    def as_dict(self) -> dict[str, Any]:
        """Return the legend in plain values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the legend that :meth:`as_dict` gave."""
        known = ("classes", "names", "codes", "colours", "cloud")
        odd = [str(name) for name in values if name not in known]
        if odd or "classes" not in values:
            raise InputError(
                f"A legend has classes and may have {', '.join(known[1:])}, but these were found: "
                f"{', '.join(map(str, values)) or 'none'}."
            )
        columns = {name: values[name] for name in known[:-1] if name in values}
        for name, column in columns.items():
            if not isinstance(column, list | tuple) or not _are_plain(column):
                raise InputError(
                    f"The {name} of a legend are a list of numbers or texts, but {column!r} was "
                    f"found."
                )
        return cls(**columns, cloud=values.get("cloud"))


@dataclass(frozen=True)
class MapClass:
    """A class of a map: its code, its name, and its colour as ``"#rrggbb"``."""

    code: int
    name: str
    colour: str


def is_colour(value: Any) -> bool:
    """Return whether a value is ``"#rrggbb"``."""
    return isinstance(value, str) and re.fullmatch("#[0-9a-fA-F]{6}", value) is not None


def map_classes(attrs: Mapping[Any, Any], where: str = "The map") -> tuple[MapClass, ...]:
    """Return the classes of a map by the attributes of its codes.

    The file may come from elsewhere: what is not a code, a colour or a name is refused, since
    colours go into the styles of pages, where a text could make the reader's browser fetch an
    address.
    """
    codes = np.atleast_1d(attrs.get("flag_values", ()))
    words = str(attrs.get("flag_meanings", "")).split()
    colours = str(attrs.get("flag_colors", "")).split()
    try:
        names = json.loads(attrs.get("class_names", "null"))
    except (ValueError, TypeError, RecursionError):
        names = ()
    if names is None:
        # Maps of earlier versions have no other names.
        names = [word.replace("_", " ") for word in words]
    fine = (
        codes.dtype.kind in "iu"
        and set(codes.tolist()) <= set(range(256))
        and all(map(is_colour, colours))
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and 2 <= len(codes) == len(words) == len(colours) == len(names)
    )
    if not fine:
        shown = {key: attrs.get(key) for key in ("flag_values", "flag_meanings", "flag_colors")}
        listed = "".join(f"\n  {key}: {reprlib.repr(value)}" for key, value in shown.items())
        raise SceneError(
            f"{where} has classes that cannot be shown: a code from 0 to 255, a name and a colour "
            f'"#rrggbb" are needed of each.{listed}\nMap the data again (undulatus map).'
        )
    return tuple(map(MapClass, codes.tolist(), names, colours))


def legend_of_label(name: str, attrs: Mapping[Any, Any], classes: tuple[int, ...]) -> Legend:
    """Return the legend of a variable that is learned from.

    Parameters
    ----------
    name : str
        The variable's name.
    attrs : mapping
        Its attributes: ``flag_values`` and ``flag_meanings`` name the classes, if it has them. A
        class that they call cloud or cloudy is cloud, if no other of more than two classes
        mentions cloud. Of 0 and 1 it is 1, if the name or another attribute mentions cloud.
    classes : tuple of int
        The values of the variable, missing ones left out.
    """
    meanings = flag_names(attrs)
    names = [meanings.get(value, str(value)) for value in classes]
    clouds = [value for value in names if value.lower() in CLOUD_MEANINGS]
    mentions = [value for value in names if "cloud" in value.lower()]
    cloud = None
    if len(clouds) == 1 and (len(names) == 2 or mentions == clouds):
        cloud = names.index(clouds[0])
    elif classes == (0, 1):
        said = (name, attrs.get("standard_name"), attrs.get("long_name"), *meanings.values())
        cloud = 1 if any("cloud" in str(text).lower() for text in said) else None
    if cloud is not None and len(names) == 2:
        names = [CLOUD if place == cloud else CLEAR for place in range(2)]
    return Legend(classes, tuple(names), cloud=None if cloud is None else names[cloud])


def flag_names(attrs: Mapping[Any, Any]) -> dict[Any, str]:
    """Return the names of values by CF's flags; without ``flag_values``, those of 0, 1, 2, ..."""
    names = str(attrs.get("flag_meanings", "")).split()
    values = np.atleast_1d(attrs.get("flag_values", range(len(names)))).tolist()
    return dict(zip(values, names, strict=False))


def _default_codes(classes: tuple[Class, ...]) -> tuple[int, ...]:
    if all(type(value) is int and 0 <= value <= 255 for value in classes):
        return tuple(int(value) for value in classes)
    return tuple(range(len(classes)))


def _default_colours(names: tuple[str, ...], cloud: str | None) -> tuple[str, ...]:
    if cloud is not None and len(names) == 2:
        return tuple(CLOUD_COLOUR if name == cloud else CLEAR_COLOUR for name in names)
    left = map(_nth_colour, count())
    return tuple(CLOUD_COLOUR if name == cloud else next(left) for name in names)


def _nth_colour(number: int) -> str:
    if number < len(PALETTE):
        return PALETTE[number]
    # Multiples of the golden ratio spread hues evenly, however many there are.
    hue = number * 0.618034 % 1.0
    parts = colorsys.hls_to_rgb(hue, (0.35, 0.5, 0.65)[number % 3], 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _as_token(name: str) -> str:
    """Return a name as a word of ``flag_meanings``, which begins with a letter; perhaps none."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    token = re.sub(r"[^A-Za-z0-9_.+@-]+", "_", letters).strip("_")
    return token if token[:1].isalpha() or not token else f"class_{token}"


def _are_plain(values: Any) -> bool:
    return all(isinstance(value, bool | int | float | str) for value in values)


def _listed(values: Any) -> str:
    return ", ".join(map(repr, values))
