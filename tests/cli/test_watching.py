"""``undulatus watch``: as a person, cron and a service manager use it."""

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
    assert "1 mapped, 1 set aside" in result.stdout
    assert "set aside image-9.nc (see " in result.stderr
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
