"""Videos play, have every frame, and are written whole or not at all."""

import subprocess

import imageio_ffmpeg
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from numpy.testing import assert_array_equal

from undulatus.errors import InputError, SceneError
from undulatus.products.panels import GROUND, TITLES, read_acquisitions, scales_for
from undulatus.products.video import Caption, Screen, enlarge, write_video
from undulatus.products.views import view_scene

NIGHT, DAY = 0, 20


def ffmpeg(*arguments):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False)


def about(path):
    """Return ffmpeg's description of a video: codec, pixels, rate."""
    output = ffmpeg("-i", path).stderr.decode()
    return next(line.strip() for line in output.splitlines() if "Video:" in line)


def frames_of(path, size):
    """Return the frames of a video, (n, h, w, 3)."""
    decoded = ffmpeg("-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-").stdout
    return np.frombuffer(decoded, np.uint8).reshape(-1, size[1], size[0], 3)


def screen_and_frame(scene, result, number):
    view, chosen = view_scene(scene, result), np.array([number])
    scales = scales_for(view, chosen)
    screen = Screen(view, scales)
    acquisition = next(read_acquisitions(view, chosen, scales))
    return screen, acquisition, np.array(screen.frame(acquisition))


def part(screen, frame, name):
    """Return the part of a frame that a panel covers."""
    left, bottom, right, top = np.round(
        screen.panels[name].axis.get_window_extent().extents
    ).astype(int)
    return frame[len(frame) - top : len(frame) - bottom, left:right]


@pytest.fixture(scope="module")
def video(scene, result, tmp_path_factory):
    """A video of lazy data, and its progress reports."""
    path = tmp_path_factory.mktemp("video") / "day.mp4"
    reports = []
    write_video(
        path,
        scene.chunk(time=4),
        result.chunk(time=5),
        frames_per_second=10,
        progress=lambda *done: reports.append(done),
    )
    return path, reports


def test_a_video_plays_in_browsers(video):
    path, _ = video
    description = about(path)
    assert "h264" in description
    assert "yuv420p" in description
    assert "bt709" in description
    assert "10 fps" in description
    head = path.read_bytes()[:4096]
    assert head[4:8] == b"ftyp"
    # The index comes before the data: the video plays while it loads.
    assert b"moov" in head


def test_a_video_has_a_frame_for_each_acquisition_with_small_losses(video, scene, result):
    path, reports = video
    assert reports == [(done, 21) for done in range(1, 22)]
    view = view_scene(scene, result)
    scales = scales_for(view, np.arange(21))
    screen = Screen(view, scales)
    assert screen.size[0] == 1280
    assert f"{screen.size[0]}x{screen.size[1]}" in about(path)
    frames = frames_of(path, screen.size)
    for frame, acquisition in zip(
        frames, read_acquisitions(view, np.arange(21), scales), strict=True
    ):
        drawn = np.array(screen.frame(acquisition))[..., :3].astype(float)
        # The codec costs 1.4 to 2.4 levels of 255 here; another frame differs by more than 7.
        assert np.abs(frame - drawn).mean() < 4.0


def test_colours_are_those_of_the_bars(video, scene, result):
    path, _ = video
    screen, _, drawn = screen_and_frame(scene, result, DAY)
    found = part(screen, frames_of(path, screen.size)[DAY], "probability")
    expected = part(screen, drawn, "probability")[..., :3]
    for colour in (expected[0, 0], expected[-1, -1]):
        where = (expected == colour).all(axis=-1)
        # Rounding to BT.709 and back costs 2 levels; BT.601 would be off by 5 to 7.
        assert np.abs(np.median(found[where], axis=0) - colour).max() <= 3


def test_nothing_but_the_video_is_left(video):
    path, _ = video
    assert [each.name for each in path.parent.iterdir()] == ["day.mp4"]


def test_only_acquisitions_between_start_and_end_are_shown(tmp_path, scene, result):
    path = tmp_path / "part.mp4"
    write_video(path, scene, result, start="2010-01-01T10:30", end="2010-01-01T11:00")
    assert imageio_ffmpeg.count_frames_and_secs(path)[0] == 3


def test_a_span_without_acquisitions_is_refused(tmp_path, scene, result):
    with pytest.raises(SceneError, match="covers 2010-01-01 06:00 UTC to 2010-01-01 11:00 UTC"):
        write_video(tmp_path / "none.mp4", scene, result, start="2012-01-01")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_video_leaves_no_file(tmp_path, scene, result):
    def interrupt(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "day.mp4", scene, result, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_lacks_frames_is_refused_and_leaves_no_file(
    tmp_path, scene, result, monkeypatch
):
    monkeypatch.setattr(imageio_ffmpeg, "count_frames_and_secs", lambda path: (2, 0.2))
    with pytest.raises(SceneError, match="2 of 3 frames"):
        write_video(tmp_path / "day.mp4", scene, result, end="2010-01-01T06:30")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept(tmp_path, scene, result):
    path = tmp_path / "day.mp4"
    path.write_bytes(b"precious")
    with pytest.raises(SceneError, match="exists already"):
        write_video(path, scene, result)
    assert path.read_bytes() == b"precious"


def test_another_file_type_is_refused(tmp_path, scene, result):
    with pytest.raises(SceneError, match=r"\.mp4"):
        write_video(tmp_path / "day.gif", scene, result)


@pytest.mark.parametrize("rate", [0, -1, np.nan, np.inf])
def test_a_frame_rate_that_is_not_positive_and_finite_is_refused(tmp_path, scene, result, rate):
    with pytest.raises(InputError, match="frames_per_second"):
        write_video(tmp_path / "day.mp4", scene, result, frames_per_second=rate)


@pytest.mark.parametrize(
    ("absent", "panels"),
    [
        (["cloud_truth"], 6),
        (["cloud_mask_l2", "cloud_truth", "land_mask"], 5),
    ],
)
def test_a_scene_without_masks_has_fewer_panels(scene, result, absent, panels):
    screen, _, frame = screen_and_frame(scene.drop_vars(absent), result, DAY)
    assert len(screen.panels) == panels
    assert frame.shape == (*screen.size[::-1], 4)
    assert all(side % 16 == 0 for side in screen.size)


def test_one_acquisition_without_a_dimension_of_time_is_one_frame(tmp_path, scene, result):
    path = tmp_path / "one.mp4"
    write_video(path, scene.isel(time=DAY), result.isel(time=DAY))
    assert imageio_ffmpeg.count_frames_and_secs(path)[0] == 1


@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (200, 250)])
def test_images_of_any_shape_fit_on_a_screen(scene, result, shape):
    rows, columns = (np.arange(size) % count for size, count in zip(shape, (20, 26), strict=True))
    window = {"time": [DAY], "y": rows, "x": columns}
    screen, _, frame = screen_and_frame(
        scene.isel(window).drop_vars(["y", "x"]),
        result.isel(window).drop_vars(["y", "x"]),
        0,
    )
    assert screen.size[0] == 1280
    assert 300 < screen.size[1] < 1200
    height, width = part(screen, frame, "ir").shape[:2]
    # Each side is rounded to a pixel.
    assert abs(height * shape[1] - width * shape[0]) <= shape[0] + shape[1]


def test_every_panel_shows_its_image(scene, result):
    bare = scene.drop_vars("land_mask")
    screen, acquisition, frame = screen_and_frame(bare, result, DAY)
    for name in TITLES:
        found = part(screen, frame, name)
        assert_array_equal(found, enlarge(acquisition.images[name], *found.shape[:2]))


def test_a_night_has_a_note_and_the_next_day_has_none(scene, result):
    screen, _, frame = screen_and_frame(scene, result, NIGHT)
    assert screen.panels["rgb"].note.get_text() == "night: no sunlight"
    assert (part(screen, frame, "rgb")[..., :3].min(axis=-1) > 200).any()
    view = view_scene(scene, result)
    day = next(read_acquisitions(view, np.array([DAY]), scales_for(view, np.array([DAY]))))
    screen.frame(day)
    assert screen.panels["rgb"].note.get_text() == ""


def test_the_ground_shows_where_pixels_are_missing(scene, result):
    gone = xr.zeros_like(scene["IR_108"], dtype=bool)
    gone[:, 5:10] = True
    screen, _, frame = screen_and_frame(scene, result.where(~gone), DAY)
    panel = part(screen, frame, "probability")[..., :3] / 255.0
    ground = np.abs(panel - to_rgb(GROUND)).max(axis=-1) < 0.01
    quarter = len(panel) // 4
    # A quarter of the panel is missing; hatches and the coastline cover less than half of it.
    assert ground[quarter + 2 : 2 * quarter - 2].mean() > 0.5
    assert ground[2 * quarter + 2 :].mean() < 0.01


def test_a_frame_does_not_depend_on_earlier_frames(scene, result):
    _, _, alone = screen_and_frame(scene, result, DAY)
    view = view_scene(scene, result)
    scales = scales_for(view, np.array([DAY]))
    screen = Screen(view, scales)
    for acquisition in read_acquisitions(view, np.arange(DAY + 1), scales):
        frame = np.array(screen.frame(acquisition))
    assert_array_equal(frame, alone)


def test_a_line_of_the_caption_is_drawn_once_and_then_copied(scene, result, monkeypatch):
    drawn = []
    draw = Caption._draw
    monkeypatch.setattr(Caption, "_draw", lambda *args: (drawn.append(args[1:]), draw(*args))[1])
    screen, acquisition, first = screen_and_frame(scene, result, DAY)
    once = len(drawn)
    assert_array_equal(np.array(screen.frame(acquisition)), first)
    assert len(drawn) == once > 0


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
def test_an_enlarged_image_repeats_the_nearest_pixels(rows, columns, height, width):
    image = np.random.default_rng(0).integers(0, 256, (rows, columns, 4), dtype=np.uint8)
    found = enlarge(image, height, width)
    for i in range(height):
        for j in range(width):
            row, column = int((i + 0.5) * rows / height), int((j + 0.5) * columns / width)
            assert_array_equal(found[i, j], image[row, column])
