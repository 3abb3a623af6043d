"""Values as JSON and back, tensors of parts, feature names, and the memory order of matrices."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.errors import InputError
from undulatus.storage.codec import (
    MEMORY_ORDERS,
    InvalidModelError,
    decode_value,
    encode_value,
    join_tensors,
    list_feature_names,
    memory_order,
    restore_feature_names,
    split_tensors,
    with_memory_order,
)

finite = st.floats(allow_nan=False, allow_infinity=False)

plain = st.none() | st.booleans() | st.integers() | finite | st.text()

numpy_numbers = st.one_of(
    finite.map(np.float64),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
)

# numpy drops trailing NULs of its own strings.
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


def through_json(value):
    return decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))


def assert_same(found, expected):
    assert type(found) is type(expected)
    assert found == expected


@given(plain | numpy_numbers | strings.map(np.str_))
def test_a_value_comes_back_with_its_type(value):
    assert_same(through_json(value), value)


@given(st.dictionaries(st.integers() | strings | numpy_numbers, plain | numpy_numbers))
def test_a_mapping_comes_back_with_keys_of_their_types(mapping):
    found = through_json(mapping)
    assert found == mapping
    assert sorted(map(repr, found)) == sorted(map(repr, mapping))
    for key, value in mapping.items():
        assert_same(found[key], value)


@given(st.lists(finite), st.sampled_from(["f8", "i8", "U", "?", "O"]))
def test_an_array_comes_back_with_its_dtype(numbers, dtype):
    values = [str(number) for number in numbers] if dtype in "UO" else np.array(numbers) > 0
    array = np.array(values, dtype=dtype)
    found = through_json(array)
    assert found.dtype == array.dtype
    assert_array_equal(found, array)


def test_a_random_generator_is_not_written():
    assert encode_value(np.random.RandomState(0)) is None


@pytest.mark.parametrize(
    "value",
    [np.array([1j]), object(), np.array(["2010"], "M8[Y]")],
    ids=["complex", "object", "date"],
)
def test_a_value_that_json_cannot_hold_is_refused(value):
    with pytest.raises(InputError, match="numbers, booleans and strings"):
        encode_value(value)


class Model:
    n_features_in_ = 2


def test_feature_names_are_restored_as_scikit_learn_stores_them():
    model, again = Model(), Model()
    model.feature_names_in_ = np.array(["IR_108", "Größe"], dtype=object)
    restore_feature_names(again, list_feature_names(model))
    assert again.feature_names_in_.dtype == object
    assert_array_equal(again.feature_names_in_, model.feature_names_in_)


def test_a_model_without_names_gets_none():
    again = Model()
    restore_feature_names(again, list_feature_names(Model()))
    assert not hasattr(again, "feature_names_in_")


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], [1, 2], ["a", None], "ab", {"a": 1}])
def test_feature_names_of_the_wrong_number_or_type_are_refused(names):
    with pytest.raises(InvalidModelError, match="names"):
        restore_feature_names(Model(), names)


names = st.text("ab/ ξ", min_size=1, max_size=6)

keys = st.text("xy_", min_size=1, max_size=3)


@given(st.dictionaries(names, st.dictionaries(keys, st.just(np.ones(1)), min_size=1)))
def test_joined_tensors_are_split_again_whatever_the_names(parts):
    assert split_tensors(join_tensors(parts), parts) == parts


def test_a_part_without_tensors_gets_an_empty_mapping():
    assert split_tensors({"day/scale": np.ones(1)}, ["day", "night"])["night"] == {}


@pytest.mark.parametrize("key", ["scale", "dusk/scale", "daylight/scale", "day", "/scale"])
def test_a_tensor_that_belongs_to_no_part_is_named(key):
    with pytest.raises(InvalidModelError, match=key):
        split_tensors({key: np.ones(1)}, ["day", "night"])


VALUES = np.arange(12.0).reshape(4, 3)

BY_ORDER = {
    "C": VALUES,
    "F": np.asfortranarray(VALUES),
    "-C": VALUES[::-1].copy()[::-1],
    "-F": np.asfortranarray(VALUES[::-1])[::-1],
}


def test_every_memory_order_is_recognised():
    assert {order: memory_order(array) for order, array in BY_ORDER.items()} == {
        o: o for o in MEMORY_ORDERS
    }


def test_a_slice_of_a_matrix_has_the_memory_order_of_the_whole():
    for order, array in BY_ORDER.items():
        assert memory_order(array[:2, :2]) == order


@pytest.mark.parametrize("order", MEMORY_ORDERS)
@pytest.mark.parametrize("given", BY_ORDER.values(), ids=BY_ORDER)
def test_changing_the_memory_order_changes_strides_and_no_values(order, given):
    found = with_memory_order(given, order)
    assert_array_equal(found, VALUES)
    assert found.strides == BY_ORDER[order].strides


@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(MEMORY_ORDERS))
def test_products_with_a_matrix_in_the_restored_order_are_the_same_bits(rows, columns, order):
    rng = np.random.default_rng(rows)
    matrix = with_memory_order(rng.normal(size=(rows, columns)), order)
    again = with_memory_order(np.ascontiguousarray(matrix), memory_order(matrix))
    x = rng.normal(size=(7, columns))
    assert_array_equal(x @ again.T, x @ matrix.T)


@pytest.mark.parametrize("order", ["", "c", "--C", "A", None, 7])
def test_an_unknown_memory_order_is_named(order):
    with pytest.raises(InvalidModelError, match=repr(order)):
        with_memory_order(VALUES, order)
