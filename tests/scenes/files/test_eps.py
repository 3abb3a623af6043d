"""Records of EPS native files: where they are, and every way in which a file can be damaged."""

import struct

import numpy as np
import pytest
from benchmarks.iasi_writer import NAME, NativeFile
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.files import eps
from undulatus.scenes.files.eps import SCALED, TIME, Source, open_records


def records():
    """The records of a file with three lost lines and none else: small, and whole."""
    return list(NativeFile(np.zeros((0, 120, 8461), np.int16), lost=(0, 1, 2)).records())


@pytest.fixture
def path(tmp_path):
    (tmp_path / NAME).write_bytes(b"".join(records()))
    return tmp_path / NAME


def message(path):
    with pytest.raises(SceneError) as error:
        open_records(path)
    assert str(path) in str(error.value)
    return str(error.value)


def replace(path, offset, content):
    data = bytearray(path.read_bytes())
    data[offset : offset + len(content)] = content
    path.write_bytes(data)


def starts():
    return np.cumsum([0, *map(len, records())]).tolist()


def test_records_are_found_one_after_another_to_the_end_of_the_file(path):
    found = open_records(path)
    assert [record.offset for record in found.records] == starts()[:-1]
    assert [record.size for record in found.records] == [len(record) for record in records()]
    assert [record.record_class for record in found.records] == [1, 3, 3, 3, 4, 5, 5, 6, 8, 8, 8]
    assert [record.number for record in found.records] == list(range(1, 12))
    assert found.product == "IASI_xxx_1C"
    assert found.number("TOTAL_MDR") == 3


def test_a_file_cut_off_at_any_byte_around_a_record_is_an_error_that_says_where(path):
    whole = path.read_bytes()
    for number, start in enumerate(starts()[1:-1], 2):
        for cut in (start - 1, start, start + 1, start + 19, start + 20):
            path.write_bytes(whole[:cut])
            text = message(path)
            assert "Fetch the file again" in text or "does not begin" in text
            if cut == start + 20:
                assert f"record {number} (at byte {start:,})" in text
            elif cut == start:
                assert "3 lines of measurements, but it has" in text


@pytest.mark.parametrize("size", [0, 1, 19])
def test_a_record_that_says_it_is_shorter_than_its_header_is_an_error(path, size):
    replace(path, starts()[4] + 4, struct.pack(">I", size))
    text = message(path)
    assert f"record 5 (at byte {starts()[4]:,}): its header says that it has {size} bytes" in text


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_a_record_that_says_it_is_longer_than_the_file_is_an_error(path, size):
    replace(path, starts()[5] + 4, struct.pack(">I", size))
    text = message(path)
    assert f"record 6 (at byte {starts()[5]:,})" in text
    assert f"{size:,} bytes, but the file ends after" in text


def test_the_number_of_records_is_bounded_whatever_the_file_says(path, monkeypatch):
    monkeypatch.setattr(eps, "_MOST_RECORDS", 7)
    assert "more than 7 records" in message(path)


@pytest.mark.parametrize(
    ("beginning", "expected"),
    [
        (b"", "not in EUMETSAT's EPS native format"),
        (b"\x01\x00", "not in EUMETSAT's EPS native format"),
        (b"FormatName                  : NATIVE\n", "not in EUMETSAT's EPS native format"),
        (b"\x01\x00\x00\x02" + struct.pack(">I", 2**20), "but the file ends after"),
        (b"\x01\x00\x00\x02" + struct.pack(">I", 40) + b"\0" * 32, "EPS native format"),
        (b"PK\x03\x04" + b"\0" * 40, "a ZIP archive. Unpack it"),
        (b"\x1f\x8b" + b"\0" * 40, "packed by gzip. Unpack it"),
    ],
)
def test_another_kind_of_file_is_told_by_its_beginning(tmp_path, beginning, expected):
    path = tmp_path / NAME
    path.write_bytes(beginning.ljust(20, b"\0") if len(beginning) > 2 else beginning)
    assert expected in message(path)


@pytest.mark.parametrize("text", [b"    x3", b"   -1 ", b"    99"])
def test_a_main_header_that_lies_about_the_number_of_lines_is_an_error(path, text):
    place = path.read_bytes().index(b"TOTAL_MDR") + 32
    replace(path, place, text)
    assert "main product header" in message(path)


def test_a_header_without_a_line_that_is_needed_is_an_error(path):
    place = path.read_bytes().index(b"TOTAL_MDR")
    replace(path, place, b"TOTAL_XXX")
    assert "has no TOTAL_MDR" in message(path)


def test_a_number_of_thousands_of_digits_is_an_error_and_no_crash(path):
    first = records()[0]
    content = first[20:].replace(
        b"TOTAL_MDR                     =      3", b"TOTAL_MDR = " + b"9" * 6000
    )
    header = first[:4] + struct.pack(">I", 20 + len(content)) + first[8:20]
    path.write_bytes(header + content + b"".join(records()[1:]))
    assert "not a number" in message(path)


def test_a_file_that_was_replaced_since_it_was_opened_is_not_read(path):
    source = Source.of(path)
    path.write_bytes(path.read_bytes()[:-1])
    changed = r"has changed since it was opened\. Open it again"
    with pytest.raises(SceneError, match=changed), source.opened():
        pass


def test_a_file_that_ends_while_it_is_read_is_an_error(path):
    source = Source.of(path)
    with source.opened() as file, pytest.raises(SceneError, match="where more was expected"):
        source.read(file, source.size - 10, np.empty(11, np.uint8))


def test_a_file_that_was_deleted_is_an_error_that_names_it(path):
    source = Source.of(path)
    path.unlink()
    with pytest.raises(SceneError, match="cannot be read"), source.opened():
        pass


def test_scaled_numbers_are_integers_divided_by_a_power_of_ten():
    numbers = np.array([(0, 25), (2, -2501), (-3, 7), (5, 1), (1, -(2**31))], SCALED)
    expected = [25.0, -25.01, 7000.0, 1e-5, np.nan]
    assert_array_equal(eps.decode_scaled(numbers), expected)


def test_times_are_days_since_2000_and_milliseconds_and_impossible_ones_are_missing():
    times = np.array([(0, 1), (8997, 38_336_000), (60, 86_400_500), (65535, 2**32 - 1)], TIME)
    expected = ["2000-01-01T00:00:00.001", "2024-08-19T10:38:56", "2000-03-02T00:00:00.500", "NaT"]
    found = eps.decode_times(times)
    assert found.dtype == "datetime64[ns]"
    assert_array_equal(found, np.array(expected, "datetime64[ns]"))
