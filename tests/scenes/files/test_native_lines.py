"""Some scan lines of a native file, as a native file."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.files.native_lines import copy_lines
from undulatus.scenes.files.satpy_files import only_lines

COUNTS = np.random.default_rng(6).integers(300, 700, (12, 11, 18))

pytestmark = pytest.mark.filterwarnings("ignore:No orbit polynomial valid:UserWarning")


@pytest.fixture
def native(tmp_path, seviri_files):
    # 18 columns are padded to 20 in the file.
    padded = np.pad(COUNTS, ((0, 0), (0, 0), (0, 2)))
    return seviri_files.write_native(tmp_path / seviri_files.native_name(), padded)


def test_a_copy_holds_the_lines_as_satpy_reads_them(native, tmp_path):
    import satpy

    (tmp_path / "copy").mkdir()
    copy = copy_lines(native, tmp_path / "copy", 3, 7)
    assert copy.stat().st_size < native.stat().st_size
    read = []
    for path in (native, copy):
        scene = satpy.Scene(filenames=[str(path)], reader="seviri_l1b_native")
        scene.load(["IR_108"])
        read.append(scene["IR_108"])
    whole, part = read
    assert_array_equal(part, whole[3:8])
    assert_array_equal(part["acq_time"], whole["acq_time"][3:8])
    # Coordinates are computed from the corner of each file, in float32 metres.
    np.testing.assert_allclose(part["y"], whole["y"][3:8], atol=1.0)
    assert part.attrs["start_time"] == whole.attrs["start_time"]


def test_a_file_that_is_cut_short_is_named_with_its_length(native, tmp_path):
    content = native.read_bytes()
    native.write_bytes(content[:-1])
    with pytest.raises(SceneError, match=rf"cut short: .* of {len(content):,}\. Fetch it again"):
        copy_lines(native, tmp_path, 0, 3)


def test_a_file_without_the_header_of_the_archive_is_read_whole(tmp_path):
    (tmp_path / "bare.nat").write_bytes(b"\0" * 500_000)
    with only_lines([tmp_path / "bare.nat"], "seviri_l1b_native", 0, 3) as files:
        assert files == [tmp_path / "bare.nat"]


def test_copies_are_removed(native):
    with only_lines([native], "seviri_l1b_native", 2, 5) as (copy,):
        assert copy.name == native.name
        assert copy != native
    assert not copy.parent.exists()
    assert native.exists()
