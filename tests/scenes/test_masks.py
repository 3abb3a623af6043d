"""Cloud masks of several products, decoded to labels and encoded again."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.masks import ENCODINGS, decode, encode, guess_encoding

each_encoding = pytest.mark.parametrize("name", list(ENCODINGS))
label_images = arrays(np.uint8, (4, 5), elements=st.sampled_from([0, 1, 255]))

NOON = np.datetime64("2010-06-01T12:00", "ns")


def image(values, **attrs):
    return xr.DataArray(np.asarray(values), dims=("y", "x"), attrs=attrs)


LAND = image(np.indices((4, 5)).sum(0) % 2)


@each_encoding
@given(label_images)
def test_decoding_undoes_encoding_for_every_product(name, labels):
    written = encode(image(labels), name, land_mask=LAND)
    assert written.dtype == np.uint8
    assert_array_equal(decode(written, name), labels)


@each_encoding
def test_the_encoding_of_a_mask_we_wrote_is_recognised(name):
    written = encode(image(np.zeros((4, 5), "u1")), name, land_mask=LAND)
    assert guess_encoding(written) == name
    assert_array_equal(decode(written), 0)


@each_encoding
def test_every_code_has_exactly_one_label(name):
    encoding = ENCODINGS[name]
    codes = [*encoding.clear, *encoding.cloud, *encoding.missing]
    assert len(codes) == len(set(codes))
    expected = (
        [0] * len(encoding.clear) + [1] * len(encoding.cloud) + [255] * len(encoding.missing)
    )
    assert_array_equal(decode(image([codes]), name), [expected])


@pytest.mark.parametrize(
    ("name", "codes", "labels"),
    [
        ("eumetsat-clm", [0, 1, 2, 3], [0, 0, 1, 255]),
        ("pps", [0, 1, 2, 3, 255], [0, 1, 1, 0, 255]),
        ("nwcsaf-hdf5", [0, 1, 2, 3, 4, 5], [255, 0, 1, 1, 0, 255]),
        ("cf", [0, 1, 255], [0, 1, 255]),
    ],
)
def test_codes_are_decoded_as_the_products_document_them(name, codes, labels):
    assert_array_equal(decode(image([codes]), name), [labels])


def test_labels_have_the_flags_of_cf():
    labels = decode(image([[0, 1, 2, 3]]), "eumetsat-clm")
    assert labels.dtype == np.uint8
    assert labels.attrs["standard_name"] == "cloud_binary_mask"
    assert labels.attrs["flag_meanings"].split() == ["clear", "cloud"]
    assert_array_equal(labels.attrs["flag_values"], [0, 1])
    assert labels.attrs["_FillValue"] == 255


def test_masks_in_floats_may_have_missing_values():
    floats = image([[0.0, 1.0, 2.0, 3.0, np.nan, np.inf]])
    assert_array_equal(decode(floats, "eumetsat-clm"), [[0, 0, 1, 255, 255, 255]])


def test_fill_values_and_unknown_codes_become_missing():
    mask = image([[0, 1, 1, 0, -127, 7, 1, 0]], _FillValue=np.int16(-127))
    assert_array_equal(decode(mask, "cf"), [[0, 1, 1, 0, 255, 255, 1, 0]])


def test_a_mask_of_fill_values_alone_is_accepted():
    assert_array_equal(decode(image([[-127, -127]], _FillValue=-127), "cf"), 255)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_encoding_that_does_not_fit_is_refused(lazy):
    mask = image(np.full((4, 5), 5))
    with pytest.raises(SceneError, match="not codes of the encoding 'cf'") as caught:
        decode(mask.chunk() if lazy else mask, "cf").compute()
    assert "found: 5" in str(caught.value)
    assert "nwcsaf-hdf5" in str(caught.value)


@given(label_images, st.integers(1, 4), st.integers(1, 5))
def test_labels_do_not_depend_on_chunks(labels, rows, columns):
    mask = image(labels)
    lazy = decode(mask.chunk(y=rows, x=columns), "cf")
    assert isinstance(lazy.data, da.Array)
    assert_array_equal(lazy, decode(mask, "cf"))


def test_decoding_and_encoding_compute_nothing():
    def no_scheduler(*args, **kwargs):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=no_scheduler):
        labels = decode(image(np.zeros((4, 5), "u1")).chunk(y=2), "cf")
        encode(labels, "eumetsat-clm", land_mask=LAND)


def test_the_land_mask_separates_clear_land_from_clear_water():
    written = encode(image(np.zeros((4, 5))), "eumetsat-clm", land_mask=LAND)
    assert_array_equal(written, LAND)


def test_without_a_land_mask_eumetsats_codes_cannot_be_written():
    with pytest.raises(SceneError, match="Pass land_mask"):
        encode(image([[0]]), "eumetsat-clm")


def test_one_land_mask_is_used_for_every_acquisition():
    series = xr.concat([image(np.zeros((4, 5)))] * 3, "time")
    written = encode(series, "eumetsat-clm", land_mask=LAND)
    assert written.dims == ("time", "y", "x")
    assert_array_equal(written, np.stack([LAND] * 3))


@pytest.mark.parametrize(
    ("attrs", "name"),
    [
        (
            {  # as satpy reads EUMETSAT's GRIB
                "flag_values": [0, 1, 2, 3],
                "flag_meanings": [
                    "clear sky over water",
                    "clear sky over land",
                    "cloudy",
                    "no data",
                ],
            },
            "eumetsat-clm",
        ),
        ({"standard_name": "cloud_classification"}, "eumetsat-clm"),
        ({"flag_values": np.array([0, 1], "i1"), "flag_meanings": "Cloud-free Cloudy"}, "pps"),
        ({"flag_meanings": "cloud_free cloudy cloud_contaminated snow/ice"}, "pps"),
        ({"standard_name": "cloud_binary_mask"}, "cf"),
        ({"standard_name": "cloud_area_fraction"}, None),
        ({"flag_values": [0, 1], "flag_meanings": "cloudy clear"}, None),
        ({}, None),
    ],
)
def test_the_encoding_is_recognised_by_attributes(attrs, name):
    assert guess_encoding(image([[0]], **attrs)) == name


def test_a_mask_without_attributes_is_refused_with_the_list_of_encodings():
    with pytest.raises(SceneError, match="do not say how it is encoded") as caught:
        decode(image([[0, 1]]))
    assert all(name in str(caught.value) for name in ENCODINGS)


def test_an_encoding_that_does_not_exist_is_refused():
    with pytest.raises(SceneError, match="There is no encoding 'clm'"):
        decode(image([[0, 1]]), "clm")


def test_the_time_of_a_product_comes_from_its_attributes():
    labels = decode(image([[0, 1]], start_time="2010-06-01T12:00:00"), "cf")
    assert labels["time"].values == NOON
