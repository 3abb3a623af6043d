"""``undulatus watch``: as a person, cron and a service manager use it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from undulatus._files import JsonLines
from undulatus.cli import main
from undulatus.scenes import open_scene, write_dataset
from undulatus.scenes.files.opening import open_map

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = ["--settle", "0", "--every", "0.1"]


@pytest.fixture(scope="module")
def images(year, tmp_path_factory):
    """Five acquisitions in files of their own."""
    folder = tmp_path_factory.mktemp("images")
    scene = open_scene(year)
    for index in range(5):
        one = scene.isel(time=slice(40 + index, 41 + index)).compute()
        write_dataset(one, folder / f"image-{index}.nc")
    return folder


@pytest.fixture
def folder(images, tmp_path):
    path = tmp_path / "in"
    shutil.copytree(images, path)
    return path


def watch(*words):
    return ["watch", *map(str, words), *QUICK]


def start(*words):
    # Children of a shell's background job ignore interrupts.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from undulatus.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *watch(*words)], stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def inputs(output):
    return [r["input"] for r in JsonLines(output / "watch.jsonl").read() if "input" in r]


def values(path):
    with open_map(path) as found:
        return {name: np.asarray(array.values) for name, array in found.variables.items()}


def test_once_maps_what_is_there_and_says_what_became_of_it(
    runner, folder, clouds_model, tmp_path
):
    output = tmp_path / "deep" / "out"
    result = runner.invoke(main, watch(folder, clouds_model, "-o", output, "--once"))
    assert result.exit_code == 0, result.output
    assert f"5 mapped, 0 set aside: {output.resolve()}" in result.stdout
    assert "mapped image-3.nc: " in result.stderr
    assert "520 pixels mapped" in result.stderr
    (folder / "image-9.nc").write_bytes((folder / "image-0.nc").read_bytes()[:3000])
    shutil.copy(folder / "image-0.nc", folder / "\x1b[31mred.nc")
    result = runner.invoke(
        main, watch(folder, clouds_model, "-o", output, "--once", "--pattern", "[!q]*.nc")
    )
    assert result.exit_code == 1
    assert "1 mapped, 1 set aside: " in result.stdout
    assert "set aside image-9.nc (see " in result.stderr
    assert "not everything is mapped: 1 set aside: image-9.nc (" in result.stderr
    assert "--retry" in result.stderr
    again = runner.invoke(
        main, watch(folder, clouds_model, "-o", output, "--once", "--pattern", "[!q]*.nc")
    )
    assert again.exit_code == 1
    assert "0 mapped, 0 set aside (1 more still set aside from before): " in again.stdout
    assert "not everything is mapped: 1 set aside: image-9.nc (" in again.stderr
    assert "\x1b" not in result.stderr
    assert "Traceback" not in result.output


def test_what_was_asked_for_wrongly_is_said(runner, folder, clouds_model, tmp_path):
    cases = [
        ([clouds_model, folder, "-o", tmp_path / "out"], 2, "IN must be a folder"),
        ([folder, folder, "-o", tmp_path / "out"], 2, "MODEL must be a file"),
        ([folder, clouds_model, "-o", folder / "out"], 1, "is in "),
        ([folder, clouds_model], 2, "--output"),
        ([folder, clouds_model, "-o", tmp_path / "out", "--suffix", ".png"], 2, ".zarr"),
    ]
    for words, status, said in cases:
        result = runner.invoke(main, watch(*words, "--once"))
        assert (result.exit_code, said in result.stderr) == (status, True), result.output
        assert "Traceback" not in result.stderr


def test_a_service_is_refused_a_second_time_watched_and_stopped(
    runner, folder, clouds_model, tmp_path
):
    output = tmp_path / "out"
    first = start(folder, clouds_model, "-o", output)
    try:
        wait_for(lambda: (output / "watch.jsonl").exists() and len(inputs(output)) == 5)
        second = runner.invoke(main, watch(folder, clouds_model, "-o", output))
        assert second.exit_code == 1
        assert f"process {first.pid} on" in second.stderr
        status = runner.invoke(main, ["watch", "--status", str(output)])
        assert status.exit_code == 0, status.output
        assert "mapped: 5\n" in status.stdout
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 0
    assert said.endswith("stopped.\n")
    status = runner.invoke(main, ["watch", "--status", str(output)])
    assert status.exit_code == 1
    assert "not well: it is stopped" in status.stderr
    assert not [path.name for path in output.iterdir() if path.name.startswith(".")]


def test_watchers_that_are_killed_and_interrupted_are_continued_by_the_next(
    runner, folder, clouds_model, tmp_path
):
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    runner.invoke(main, watch(folder, clouds_model, "-o", calm, "--once"))
    for number, status, count in ((signal.SIGKILL, -9, 1), (signal.SIGINT, 130, 3)):
        process = start(folder, clouds_model, "-o", rough)
        wait_for(lambda n=count: (rough / "watch.jsonl").exists() and len(inputs(rough)) >= n)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == status, said
        assert "Traceback" not in said
    result = runner.invoke(main, watch(folder, clouds_model, "-o", rough, "--once"))
    assert result.exit_code == 0, result.output
    assert sorted(inputs(rough)) == sorted(os.listdir(folder))
    assert sorted(os.listdir(rough)) == sorted(os.listdir(calm))
    for path in calm.glob("*.nc"):
        one, two = values(path), values(rough / path.name)
        assert one.keys() == two.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_a_log_has_one_line_for_each_item(runner, folder, clouds_model, tmp_path):
    output, log = tmp_path / "out", tmp_path / "watch.log"
    command = [*watch(folder, clouds_model, "-o", output, "--once"), "--log", str(log)]
    assert runner.invoke(main, command).exit_code == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 3 + 5
    assert [line.split()[4:6] for line in lines if " mapped " in line][1:] == [
        ["mapped", f"image-{index}.nc:"] for index in range(5)
    ]
    assert not [line for line in lines if " PROGRESS " in line]


def test_status_and_report_tell_of_silence_rot_and_drift(runner, folder, clouds_model, tmp_path):
    output, told = tmp_path / "out", tmp_path / "told"
    (folder / "bad.nc").write_bytes(b"no netCDF")
    script = tmp_path / "tell.sh"
    script.write_text(f'#!/bin/sh\nprintf "%s|" "$1" "$UNDULATUS_REASON" > "{told}"\n')
    script.chmod(0o755)
    metrics = tmp_path / "watch.prom"
    result = runner.invoke(
        main,
        watch(folder, clouds_model, "-o", output, "--once", "--on-set-aside", f"{script} more",
              "--metrics", metrics),
    )  # fmt: skip
    assert result.exit_code == 1
    assert told.read_text().startswith("more|")
    assert "cannot be read" in told.read_text()
    assert "undulatus_watch_set_aside 1\n" in metrics.read_text()

    def status(*options):
        found = runner.invoke(main, ["watch", "--status", str(output), *options])
        return found.exit_code, found

    assert status()[0] == 0
    assert status("--max-age", "1h", "--max-set-aside", "1")[0] == 0
    assert status("--max-set-aside", "0")[0] == 5
    time.sleep(1.1)
    code, found = status("--max-age", "1s", "--max-set-aside", "0", "--json")
    assert code == 4
    assert "not well: it mapped nothing since" in found.stderr
    assert "1 items are set aside, more than 0" in found.stderr
    facts = json.loads(found.stdout)
    assert (facts["well"], facts["status"], facts["mapped"]) == (False, 4, 5)
    assert facts["latency_seconds"] > 0.0
    assert "undulatus_watch_well 1\n" in status("--prometheus")[1].stdout
    picture = tmp_path / "drift.png"
    report = runner.invoke(main, ["watch", "--report", str(output), "--picture", str(picture)])
    assert report.exit_code == 0, report.output
    head, day = report.stdout.splitlines()[:2]
    assert "out of domain %" in head
    assert day.split()[1:4] == ["5", "1", "2,600"]
    assert picture.exists()
    as_json = runner.invoke(main, ["watch", "--report", str(output), "--json", "--by", "hour"])
    assert json.loads(as_json.stdout)["periods"][0]["set_aside"] == 1


def test_old_maps_are_removed_and_their_items_not_mapped_again(
    runner, folder, clouds_model, tmp_path
):
    output = tmp_path / "out"
    assert runner.invoke(main, watch(folder, clouds_model, "-o", output, "--once")).exit_code == 0
    (output / "mine.nc").write_text("mine")
    time.sleep(2.1)
    result = runner.invoke(
        main, watch(folder, clouds_model, "-o", output, "--once", "--keep", "1s")
    )
    assert result.exit_code == 0, result.output
    assert "5 old maps removed, 0 items that are gone forgotten." in result.stderr
    assert [path.name for path in output.glob("*.nc")] == ["mine.nc"]
    again = runner.invoke(main, watch(folder, clouds_model, "-o", output, "--once"))
    assert "0 mapped, 0 set aside: " in again.stdout


def test_how_data_are_read_is_said_once_and_may_not_change(runner, images, clouds_model, tmp_path):
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for path in sorted(images.iterdir())[:2]:
        with open_scene(path) as opened:
            scene = opened.load()
        for name in ("VIS006", "VIS008", "IR_016"):
            del scene[name].attrs["sun_normalised"]
        write_dataset(scene, folder / path.name)
    box = ["--box=-16.1,23.5,-15.7,23.9"]
    first = runner.invoke(main, [*watch(folder, clouds_model, "-o", output, "--once"), *box])
    assert first.exit_code == 0, first.output
    assert first.stderr.count("taken as divided by the cosine") == 1
    assert values(output / "image-0.nc")["cloud_mask"].size < 520
    other = runner.invoke(main, watch(folder, clouds_model, "-o", output, "--once"))
    assert other.exit_code == 1
    assert "reading: None, but {'box': " in other.stderr
    told = runner.invoke(
        main,
        [*watch(folder, clouds_model, "-o", tmp_path / "told", "--once"), "--sun-normalised"],
    )
    assert told.exit_code == 0, told.output
    assert "taken as" not in told.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-age", "1h"], "--max-age: --status takes --max-age"),
        (["--status", ".", "--picture", "a.png"], "--picture: --status takes"),
        (["--status", ".", "--report", "."], "ask one at a time"),
        (["--status", ".", "--max-age", "soon"], "'soon' is not a time such as 90s, 30min"),
        (["--json"], "--json: --status takes"),
        (["in", "m", "-o", "out", "--on-set-aside", "/no/such/program x"], "names no program"),
        (["in", "m", "-o", "out", "--on-set-aside", "'"], "cannot be read"),
        (["--report", ".", "--picture", "a.bmp"], ".png, .svg or .pdf"),
    ],
)
def test_questions_that_make_no_sense_are_bad_usage(runner, words, said):
    result = runner.invoke(main, ["watch", *words])
    assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_there_is_no_status_where_nothing_watches(runner, tmp_path):
    result = runner.invoke(main, ["watch", "--status", str(tmp_path)])
    assert result.exit_code == 1
    assert "health.txt cannot be read" in result.stderr


def test_the_example_of_a_service_uses_options_that_exist():
    unit = (Path(__file__).parents[2] / "docs" / "howto" / "undulatus-watch.service").read_text()
    (line,) = [
        line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart=")
    ]
    words = line.split()[1:]
    known = {option for param in main.commands["watch"].params for option in param.opts}
    assert words[0] == "watch"
    assert {word for word in words if word.startswith("-")} <= known


def test_a_folder_or_a_model_that_is_not_there_yet_is_no_bad_usage(runner, folder, tmp_path):
    for words in ((tmp_path / "nowhere", "m.undulatus"), (folder, tmp_path / "no.undulatus")):
        result = runner.invoke(main, watch(*words, "-o", tmp_path / "out"))
        assert result.exit_code == 1
        assert "Traceback" not in result.output
