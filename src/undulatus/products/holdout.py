"""Which groups of labelled pixels are held out of a fit, so that scores are of unseen places.

A group, such as a polygon, is held out whole. Which ones is drawn at random, by the pixels of each
class, or said by the labels themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEAST_LEARNED = 2
"""Pixels of a class that are left to learn from, at least."""


def hold_out_groups(
    codes: Array, groups: Array, n_classes: int, share: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Return which groups are held out, (g,) bool: about a share of the pixels of each class.

    Groups are drawn for one class after the other, those in the fewest groups first, while the
    class lacks pixels; one is taken if it brings the shares of all classes closer to the wanted
    one together. A class in several groups of which none does so gives its smallest. No class
    loses more than the share and half of the rest, or all but :data:`LEAST_LEARNED` pixels: one
    in a single group stays in training.

    Parameters
    ----------
    codes, groups : (n,) int arrays
        Of each pixel.
    n_classes : int
    share : float
    rng : Generator
    """
    count = int(groups.max()) + 1
    pixels = np.zeros((count, n_classes), np.int64)
    np.add.at(pixels, (groups, codes), 1)
    total = pixels.sum(axis=0)
    wanted = share * total
    most = np.minimum((1.0 + share) / 2.0 * total, total - LEAST_LEARNED)
    held = np.zeros(count, bool)
    taken = np.zeros(n_classes, np.int64)

    def may_take(group: int) -> bool:
        own = pixels[group] > 0
        return bool((taken + pixels[group] <= most)[own].all())

    def distance(pixels_held: npt.NDArray[np.int64]) -> float:
        return float((np.abs(pixels_held - wanted) / np.maximum(total, 1)).sum())

    for code in np.argsort((pixels > 0).sum(axis=0), kind="stable").tolist():
        free = rng.permutation(np.flatnonzero((pixels[:, code] > 0) & ~held))
        for group in free.tolist():
            if taken[code] >= wanted[code]:
                break
            if distance(taken + pixels[group]) < distance(taken) and may_take(group):
                held[group] = True
                taken += pixels[group]
        smallest = free[np.argsort(pixels[free, code], kind="stable")].tolist()
        if not taken[code] and (fitting := [group for group in smallest if may_take(group)]):
            held[fitting[0]] = True
            taken += pixels[fitting[0]]
    return held
