"""Forged model files: changes of a file's header, its arrays or its bytes, with new checksums.

:func:`forge` takes the content of a file of undulatus and returns another content, changed by one
to three steps drawn at random, as an attacker would who knows the format: all checksums and
lengths are right afterwards, unless they are what was changed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

KEY = "undulatus"
TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "BOOL": "?"}
DEEP = "@deep@"
"""Stands for deeply nested lists until the header is written."""
HUGE = "@huge@"
"""Stands for a whole number of 400 digits."""
LETTERS = '0123456789eE+-.,:"[]{}nft \\u'
"""What JSON is made of."""
NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 2**31, 2**62, -(2**63), 10**15, 0.0, -0.0, 0.5, -0.5, 1e-320, 1e-300,
    1e-30, 1e12, 1e30, -1e30, 1e100, 1e154, -1e200, 1.7e308, float("nan"), float("inf"),
    float("-inf"),
)  # fmt: skip
OTHERS = (
    None, True, False, "", "junk", "1", "nan", "0.5", "inf", "-inf", "a" * 5000, "\ud800",
    "../../x", "\x1b[31m", "GPC", "VFFGPC", "Pipeline", "PCA", "passthrough", "rbf", "single",
    "double",
    "<f8", "<i8", "<U400000000", "<U9999", "object", "O", "<f2", "V8", "<M8[s]", ",i8", "C",
    "F", "-C",
    DEEP, HUGE, [], {}, [[]], [None], [0.5], [1, 2], ["a", "b"], {"array": [], "dtype": "<f8"},
    {"array": ["inf"], "dtype": "<f8", "scalar": True}, {"array": [1.5], "dtype": "<f8"},
    {"pairs": [[1, 2], [1, 3]]}, {"pairs": [[{}, 1]]}, {"junk": 1}, [{}] * 1000,
)  # fmt: skip


@dataclass(frozen=True)
class Array:
    """An array in a file: what is said of it, and its bytes."""

    dtype: str
    shape: list[Any]
    content: bytes

    @cached_property
    def digest(self) -> str:
        """The checksum of the bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def values(self) -> np.ndarray[Any, Any] | None:
        """Return the values, or None if the bytes are no such array."""
        try:
            flat = np.frombuffer(self.content, TYPES[self.dtype]).copy()
            return flat.reshape(self.shape)
        except (ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(cls, values: np.ndarray[Any, Any]) -> Array:
        """Return an array as a file holds it."""
        name = {np.dtype(own): key for key, own in TYPES.items()}[values.dtype]
        return cls(name, list(values.shape), np.ascontiguousarray(values).tobytes())


@dataclass
class Parts:
    """A file taken apart."""

    header: Any
    arrays: dict[str, Array]
    lies: dict[str, Any]
    """Changes of what is written at the end: ``offsets``, ``digests``, ``text``, ``length``."""


def take_apart(content: bytes) -> Parts:
    """Return the parts of a sound file, to be changed."""
    text, arrays = _read(content)
    return Parts(json.loads(text), dict(arrays), {})


@cache
def _read(content: bytes) -> tuple[str, dict[str, Array]]:
    """Return the header of a sound file as JSON, and its arrays."""
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    text = entries.pop("__metadata__")[KEY].partition(" ")[2]
    arrays = {
        name: Array(
            entry["dtype"],
            entry["shape"],
            content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in entries.items()
    }
    return json.dumps(json.loads(text)["header"]), arrays


def put_together(parts: Parts) -> bytes:
    """Return the content of a file, with checksums and lengths that are right."""
    digests = {name: array.digest for name, array in parts.arrays.items()}
    digests |= parts.lies.get("digests", {})
    text = json.dumps({"header": parts.header, "sha256": digests})
    text = text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000).replace(f'"{HUGE}"', "9" * 400)
    text = parts.lies.get("text", lambda own: own)(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    entries: dict[str, Any] = {"__metadata__": {KEY: f"{digest} {text}"}}
    end = 0
    for name, array in parts.arrays.items():
        offsets = [end, end + len(array.content)]
        entries[name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": offsets}
        end = offsets[1]
    parts.lies.get("entries", lambda own: None)(entries)
    outer = json.dumps(entries).encode("utf-8", "surrogatepass")
    outer = parts.lies.get("outer", lambda own: own)(outer)
    outer += b" " * (-len(outer) % 8)
    body = b"".join(array.content for array in parts.arrays.values())
    return len(outer).to_bytes(8, "little") + outer + body


def forge(content: bytes, rng: random.Random) -> bytes:
    """Return the content of another file: a sound one, changed by one to three steps."""
    if rng.random() < 0.03:
        return _spoil_bytes(content, rng)
    parts = take_apart(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        steps = HEADER_STEPS if rng.random() < 0.55 or not parts.arrays else ARRAY_STEPS
        rng.choice(steps)(parts, rng)
    return put_together(parts)


def _spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    spoiled = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(spoiled))
        spoiled[at] = rng.randrange(256)
    if rng.random() < 0.3:
        del spoiled[rng.randrange(len(spoiled)) :]
    return bytes(spoiled)


# The header


def _places(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield every object or list within a value, and a key of it."""
    if parent is not None:
        yield parent, key
    if isinstance(value, dict):
        for name in value:
            yield from _places(value[name], value, name)
    elif isinstance(value, list):
        # Long lists are all alike.
        for index in range(min(len(value), 12)):
            yield from _places(value[index], value, index)


def _pick(parts: Parts, rng: random.Random) -> tuple[Any, Any]:
    return rng.choice(list(_places(parts.header)) or [({"": None}, "")])


def _junk(rng: random.Random) -> Any:
    found = rng.choice(NUMBERS if rng.random() < 0.4 else OTHERS)
    # A copy: later steps may change it.
    return json.loads(json.dumps(found))


def replace_value(parts: Parts, rng: random.Random) -> None:
    """Put junk in the place of a value."""
    parent, key = _pick(parts, rng)
    parent[key] = _junk(rng)


def drop_value(parts: Parts, rng: random.Random) -> None:
    """Remove a field or an item of a list."""
    parent, key = _pick(parts, rng)
    del parent[key]


def repeat_value(parts: Parts, rng: random.Random) -> None:
    """Add an item once more, or a field under another name."""
    parent, key = _pick(parts, rng)
    again = json.loads(json.dumps(parent[key]))
    if isinstance(parent, list):
        parent.insert(rng.randint(0, len(parent)), again)
    else:
        parent[rng.choice(["extra", f"{key}_", "kind", "params", "array", "latents"])] = again


def swap_values(parts: Parts, rng: random.Random) -> None:
    """Exchange two values of the header."""
    (one, first), (other, second) = _pick(parts, rng), _pick(parts, rng)
    values = json.loads(json.dumps([one[first], other[second]]))
    one[first], other[second] = values[1], values[0]


def shuffle_list(parts: Parts, rng: random.Random) -> None:
    """Reverse a list of the header, or the order of what a field holds."""
    lists = [p[k] for p, k in _places(parts.header) if isinstance(p[k], list) and len(p[k]) > 1]
    if lists:
        chosen = rng.choice(lists)
        chosen.reverse() if rng.random() < 0.5 else rng.shuffle(chosen)


def retype_value(parts: Parts, rng: random.Random) -> None:
    """Write a value as one of another type."""
    parent, key = _pick(parts, rng)
    value = parent[key]
    changes: list[Callable[[Any], Any]] = [
        str,
        lambda own: [own],
        lambda own: {"0": own},
        bool,
        lambda own: {"array": [own], "dtype": "<f8", "scalar": True},
        lambda own: int(own) if isinstance(own, float) and abs(own) < 1e15 else own,
        lambda own: float(own) if isinstance(own, int) else own,
    ]
    parent[key] = rng.choice(changes)(value)


def scale_number(parts: Parts, rng: random.Random) -> None:
    """Make a number larger or smaller, or change its sign."""
    places = [
        (p, k) for p, k in _places(parts.header) if type(p[k]) in (int, float) and p[k] == p[k]
    ]
    if places:
        parent, key = rng.choice(places)
        factor = rng.choice([-1.0, 0.5, 2.0, 1e-3, 1e3, 1e-9, 1e9, 10.0 ** rng.uniform(-320, 308)])
        scaled = parent[key] * factor
        whole = isinstance(parent[key], int) and abs(scaled) < 1e18
        parent[key] = int(scaled) if whole else scaled


def repeat_key(parts: Parts, rng: random.Random) -> None:
    """Write a key of the JSON text twice."""
    places = [(p, k) for p, k in _places(parts.header) if isinstance(p, dict)]
    if places:
        key = rng.choice(places)[1]
        needle, junk = json.dumps(key) + ":", json.dumps(_junk(rng))
        parts.lies["text"] = lambda text: text.replace(needle, f"{needle} {junk}, {needle}", 1)


def spoil_text(parts: Parts, rng: random.Random) -> None:
    """Change a few characters of the JSON text."""
    seed = rng.random()

    def spoil(text: str) -> str:
        own = random.Random(seed)
        characters = list(text)
        for _ in range(own.randint(1, 4)):
            characters[own.randrange(len(characters))] = own.choice(LETTERS)
        return "".join(characters)

    parts.lies["text"] = spoil


HEADER_STEPS: tuple[Callable[[Parts, random.Random], None], ...] = (
    replace_value, replace_value, replace_value, drop_value, repeat_value, swap_values,
    shuffle_list, retype_value, scale_number, scale_number, repeat_key, spoil_text,
)  # fmt: skip


# The arrays


def _any_array(parts: Parts, rng: random.Random) -> tuple[str, Array]:
    name = rng.choice(list(parts.arrays))
    return name, parts.arrays[name]


def change_values(parts: Parts, rng: random.Random) -> None:
    """Put other numbers in the place of some, or scale all."""
    name, array = _any_array(parts, rng)
    values = array.values()
    if values is None or values.size == 0 or values.dtype.kind == "b":
        return
    flat, whole = values.reshape(-1), values.dtype.kind == "i"
    with np.errstate(all="ignore"):
        if not whole and rng.random() < 0.4:
            flat *= rng.choice([-1.0, 0.0, 1e-3, 1e3, 1e20, 10.0 ** rng.uniform(-320, 308)])
        else:
            for _ in range(rng.choice((1, 1, 2, flat.size))):
                number: Any = rng.choice(NUMBERS)
                if whole:
                    number = int(min(abs(np.nan_to_num(float(number))), 9e18))
                flat[rng.randrange(flat.size)] = number
    parts.arrays[name] = Array.of(values)


def move_values(parts: Parts, rng: random.Random) -> None:
    """Sort, reverse, turn or shuffle the values of an array."""
    name, array = _any_array(parts, rng)
    values = array.values()
    if values is None:
        return
    moves: list[Callable[[Any], Any]] = [
        lambda v: v[::-1],
        lambda v: v.T.reshape(v.shape),
        lambda v: np.sort(v.ravel()).reshape(v.shape),
        lambda v: np.random.default_rng(rng.randrange(99)).permutation(v.ravel()).reshape(v.shape),
    ]
    parts.arrays[name] = Array.of(np.ascontiguousarray(rng.choice(moves)(values)))


def reshape_array(parts: Parts, rng: random.Random) -> None:
    """Give an array another shape: of the same values, of fewer, or of more."""
    name, array = _any_array(parts, rng)
    values = array.values()
    if values is None:
        return
    shapes: list[Callable[[Any], Any]] = [
        lambda v: v[..., None],
        lambda v: v.ravel(),
        lambda v: v[:0],
        lambda v: v[1:],
        lambda v: v[..., :-1],
        lambda v: np.concatenate([v, v]),
        lambda v: v.ravel()[0].reshape(()),
        lambda v: v.T,
    ]
    try:
        parts.arrays[name] = Array.of(np.ascontiguousarray(rng.choice(shapes)(values)))
    except (IndexError, ValueError):
        parts.arrays[name] = replace(array, shape=[*array.shape, 1])


def retype_array(parts: Parts, rng: random.Random) -> None:
    """Write the values of an array in another type."""
    name, array = _any_array(parts, rng)
    values = array.values()
    if values is not None:
        with np.errstate(all="ignore"):
            parts.arrays[name] = Array.of(values.astype(rng.choice(list(TYPES.values()))))


def rename_array(parts: Parts, rng: random.Random) -> None:
    """Give an array another name, that of another or a new one."""
    name, array = _any_array(parts, rng)
    new = ("extra", "0/extra", "updates/0/rows", f"0/{name}", "a" * 999)
    other = rng.choice([*parts.arrays, *new])
    if other in parts.arrays:
        parts.arrays[name], parts.arrays[other] = parts.arrays[other], array
    else:
        parts.arrays[other] = parts.arrays.pop(name)


def drop_array(parts: Parts, rng: random.Random) -> None:
    """Remove an array, or add it under one more name."""
    name, array = _any_array(parts, rng)
    if rng.random() < 0.6:
        del parts.arrays[name]
    else:
        parts.arrays[f"{name}{rng.choice(['2', '/0', '/extra'])}"] = array


def flip_bits(parts: Parts, rng: random.Random) -> None:
    """Flip some bits of an array's bytes."""
    name, array = _any_array(parts, rng)
    content = bytearray(array.content)
    for _ in range(rng.randint(1, 6) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    parts.arrays[name] = Array(array.dtype, array.shape, bytes(content))


def lie_about_array(parts: Parts, rng: random.Random) -> None:
    """Say something untrue of an array: its type, shape, place or checksum."""
    name, _ = _any_array(parts, rng)
    way = rng.randrange(6)
    size = rng.choice([0, 1, -1, 2, 10**6, 2**40, 2**62, True, 1.5, "3", None, []])
    if way == 0:
        parts.lies["digests"] = {name: rng.choice(["", "0" * 64, None, 7, []])}
        return

    def lie(entries: dict[str, Any]) -> None:
        if name not in entries:
            # A later step took it away.
            return
        entry, others = entries[name], [own for own in entries if own != "__metadata__"]
        if way == 1:
            entry["data_offsets"] = entries[others[0]]["data_offsets"]
        elif way == 2:
            entry["data_offsets"] = [entry["data_offsets"][0], size]
        elif way == 3:
            entry["shape"] = [size, *entry["shape"][1:]]
        elif way == 4:
            entry["dtype"] = rng.choice(["F16", "BF16", "U8", "F128", "", None, 8, "I64", "F32"])
        else:
            entry["shape"] = [0, 2**62]
            entry["data_offsets"] = [0, 0]

    parts.lies["entries"] = lie


def spoil_outer_header(parts: Parts, rng: random.Random) -> None:
    """Change a few bytes of what safetensors says of the arrays."""
    seed = rng.random()

    def spoil(outer: bytes) -> bytes:
        own, content = random.Random(seed), bytearray(outer)
        # What it says of the arrays comes after our JSON.
        first = max(0, len(content) - 1500)
        for _ in range(own.randint(1, 4)):
            content[own.randrange(first, len(content))] = own.choice(b'0123456789,:"[]{}F\xff\x00')
        return bytes(content)

    parts.lies["outer"] = spoil


ARRAY_STEPS: tuple[Callable[[Parts, random.Random], None], ...] = (
    change_values, change_values, change_values, change_values, move_values, move_values,
    reshape_array, retype_array, rename_array, drop_array, flip_bits, flip_bits, lie_about_array,
    spoil_outer_header,
)  # fmt: skip
