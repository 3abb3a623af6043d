"""Groups that are held out: the wanted share of the pixels of each class, and enough left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undulatus.products.holdout import LEAST_LEARNED, hold_out_groups


def held_pixels(sizes, share, seed=0):
    """Return the pixels of each class that are held out of groups (g, k) of so many pixels."""
    sizes = np.asarray(sizes)
    group, code = (place.repeat(sizes.ravel()) for place in np.indices(sizes.shape).reshape(2, -1))
    held = hold_out_groups(code, group, sizes.shape[1], share, np.random.default_rng(seed))
    return sizes[: len(held)][held].sum(axis=0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 30), st.floats(0.01, 0.95))
def test_a_class_always_keeps_enough_to_learn_from(seed, k, g, share):
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(rng.uniform(0.01, 1.0), (g, k)) * (rng.uniform(size=(g, k)) < 0.5)
    sizes[0, 0] += 1
    held, total = held_pixels(sizes, share, seed), sizes.sum(axis=0)
    assert (total - held >= np.minimum(total, LEAST_LEARNED)).all()
    assert (held <= (1.0 + share) / 2.0 * total).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0.05, 0.9))
def test_the_share_of_the_pixels_is_met_to_half_of_the_largest_group(seed, k, share):
    """Of groups of one class each, as polygons are."""
    rng = np.random.default_rng(seed)
    sizes = np.zeros((20 * k, k), np.int64)
    sizes[np.arange(20 * k), np.arange(20 * k) % k] = rng.integers(1, 200, 20 * k)
    held, total = held_pixels(sizes, share, seed), sizes.sum(axis=0)
    # The last group that is not taken would bring the class no closer, and none is larger.
    assert (np.abs(held - share * total) <= sizes.max(axis=0)).all()
    assert (held > 0).all()


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ([[57], [8]], 8),  # The larger one would leave an eighth of the class.
        ([[50], [50]], 50),
        ([[65]], 0),
        ([[1], [1]], 0),  # One pixel is too few to learn a class.
        ([[2], [1]], 1),
        ([[10], [10], [10], [10]], 10),
        ([[97], [1], [1], [1]], 3),
    ],
)
def test_groups_of_a_class_of_very_unequal_sizes(sizes, held):
    for seed in range(20):
        assert held_pixels(sizes, 0.25, seed) == [held]


def test_a_group_of_several_classes_is_held_out_only_if_all_can_spare_it():
    # The second class is nowhere but in the first group.
    for seed in range(20):
        assert held_pixels([[10, 30], [10, 0], [10, 0]], 0.25, seed).tolist() == [10, 0]
