"""How a matrix lies in memory: products with it round differently when it lies otherwise.

An order is ``"C"``, row after row, or ``"F"``, column after column; with ``"-"`` before it when
the last row comes first.
"""

from __future__ import annotations

from undulatus.storage.kinds import Array, Misfit

ORDERS = ("C", "F", "-C", "-F")


def order_of(array: Array) -> str:
    """Return the order of an array; that of one without rows and columns is ``"C"``.

    >>> import numpy as np
    >>> order_of(np.ones((3, 2)).T), order_of(np.ones((3, 2))[::-1])
    ('F', '-C')
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return "C"
    row, column = array.strides
    return ("-" if row < 0 else "") + ("F" if abs(row) < abs(column) else "C")


def in_order(array: Array, order: str) -> Array:
    """Return an array of the same values that lies in memory in an order."""
    if order not in ORDERS:
        raise Misfit(f"holds a matrix in the order {order!r}, which is unknown.")
    if order.startswith("-"):
        return in_order(array[::-1], order[1:])[::-1]
    return array.copy(order="F" if order == "F" else "C")
