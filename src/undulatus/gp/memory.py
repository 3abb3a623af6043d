"""Arrays used over and over: fresh pages take longer to get than BLAS takes to fill them.

Two kinds, both uninitialised. A :func:`scratch` belongs to its thread and name, until the next
call for that name. A :func:`spare` belongs to its caller, until :func:`give_back`, from
any thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_thread = threading.local()
_holders: list[None] = []
_spares: dict[tuple[int, ...], deque[Array]] = defaultdict(lambda: deque(maxlen=16))


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return this thread's array called ``name``, with whatever it last held."""
    buffers = _thread.__dict__
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    held = buffers.get(name)
    if held is None or len(held) < size:
        held = buffers[name] = np.empty(size, dtype=np.uint8)
    return held[:size].view(dtype).reshape(shape)


def spare(shape: tuple[int, ...]) -> Array:
    """Return a double-precision array, one that was given back if there is one."""
    try:
        return _spares[shape].pop()
    except IndexError:
        return np.empty(shape)


def give_back(array: Array) -> None:
    """Let another caller have an array that :func:`spare` returned."""
    if _holders:
        _spares[array.shape].append(array)


@contextmanager
def recycling() -> Iterator[None]:
    """Keep what is given back for as long as this lasts; outside, it is freed at once."""
    _holders.append(None)
    try:
        yield
    finally:
        _holders.pop()
        if not _holders:
            _spares.clear()
