"""Tensors of parts, joined and split again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undulatus.storage.kinds import Misfit
from undulatus.storage.parts import join, split

names = st.text("ab/ ξ", min_size=1, max_size=6)
keys = st.text("xy_", min_size=1, max_size=3)


@given(st.dictionaries(names, st.dictionaries(keys, st.just(np.ones(1)), min_size=1)))
def test_what_is_joined_is_split_again_whatever_the_names(parts):
    assert split(join(parts), parts) == parts


def test_a_part_without_tensors_is_empty():
    assert split({"day/scale": np.ones(1)}, ["day", "night"])["night"] == {}


@pytest.mark.parametrize("key", ["scale", "dusk/scale", "daylight/scale", "day", "/scale"])
def test_a_tensor_of_no_part_is_named(key):
    with pytest.raises(Misfit, match=key):
        split({key: np.ones(1)}, ["day", "night"])
