"""Times as users write them, and as the names of files tell them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.times import TimeSpan, in_spans, parse_spans, span_text, time_in_name

HOURS = np.arange("2010-06-01T00", "2010-06-04T00", dtype="datetime64[h]").astype("datetime64[ns]")


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        ("2010-06-02", 24, 24),
        ("2010-06", 0, 72),
        ("2010-06-02T06", 30, 1),
        ("2010-06-02T06:00", 30, 1),
        ("2010-06-02T08:00+02:00/2010-06-02T09:00+02:00", 30, 2),
        ("2010-06-02/2010-06-03", 24, 48),
        ("2010-06-02T06:00/2010-06-02T09:00", 30, 4),
        ("/2010-06-01", 0, 24),
        ("2010-06-03/", 48, 24),
        ("2011", 0, 0),
    ],
)
def test_a_span_holds_the_times_that_its_text_names(text, first, count):
    inside = TimeSpan.parse(text).contains(HOURS)
    assert_array_equal(np.flatnonzero(inside), np.arange(first, first + count))


def test_several_spans_hold_what_any_of_them_does():
    texts = ["2010-06-01T01,2010-06-02T02", "2010-06-03T03:00/2010-06-03T04:00"]
    assert_array_equal(np.flatnonzero(in_spans(parse_spans(texts), HOURS)), [1, 26, 51, 52])
    assert in_spans(parse_spans(None), HOURS).all()


@pytest.mark.parametrize("text", ["soon", "/", "", "2010-13-01", "2010-06-01/then"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(SceneError, match="is not a"):
        TimeSpan.parse(text)


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("MSG2-SEVI-MSG15-0100-NA-20100601121241.123000000Z-NA.nat", "2010-06-01T12:12:41"),
        ("H-000-MSG2__-MSG2________-IR_108___-000001___-201006011200-__", "2010-06-01T12:00"),
        ("W_XX-EUMETSAT-Darmstadt,X,MSG2+SEVIRI_C_EUMG_20100601120000.nc", "2010-06-01T12:00"),
        ("Meteosat-9-seviri-20100601120000-20100601121500.nc", "2010-06-01T12:00"),
        ("MSG2-SEVI-MSGCLMK-0100-0100-20100601120000.000000000Z-NA.grb", "2010-06-01T12:00"),
        ("S_NWC_CMA_MSG3_Europe-VISIR_20150601T120000Z.nc", "2015-06-01T12:00"),
        ("day_20100601.zarr", None),
        ("orbit_201099999999.nc", None),
        ("scene.nc", None),
    ],
)
def test_the_time_in_a_name_is_found(name, time):
    assert time_in_name(name) == (None if time is None else np.datetime64(time, "ns"))


def test_times_are_told_by_the_first_and_the_last():
    assert span_text(HOURS[[2, 0]]) == "2010-06-01T00:00 to 2010-06-01T02:00"
    assert span_text(HOURS[0]) == "2010-06-01T00:00"
