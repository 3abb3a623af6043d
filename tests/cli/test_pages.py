"""``undulatus demo``, ``browse`` and ``reproduce``."""

import os
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import rasterio
from click.testing import CliRunner

from undulatus import RFFGPC, save_model
from undulatus.cli import main
from undulatus.errors import DatasetError, InputError
from undulatus.paper import experiments
from undulatus.paper.pool import RunProgress
from undulatus.paper.runs import RunFacts
from undulatus.products import demo
from undulatus.products.demo import generate_clouds
from undulatus.products.images import fit_image
from undulatus.scenes import open_scene, write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # rioxarray still multiplies with the old operator.
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
]


# demo


@pytest.fixture
def quick_demo(monkeypatch):
    def fail():
        raise DatasetError("s2cloudless could not be fetched with pip: no index")

    monkeypatch.setattr(demo, "load_sentinel2_clouds", fail)
    monkeypatch.setattr(demo, "generate_clouds", partial(generate_clouds, 64, 48))
    monkeypatch.setattr(demo, "CELL", 8)
    short = partial(fit_image, n_frequencies=8, n_estimators=1)
    monkeypatch.setattr(demo, "fit_image", short)
    monkeypatch.setattr(
        demo,
        "run_month_demo",
        lambda folder, *_, **__: demo.MonthDemo(
            30, [], {"picture": folder / "maps.png"}, folder / "site" / "index.html"
        ),
    )


@pytest.mark.usefixtures("quick_demo")
def test_the_demonstration_prints_a_table_and_the_files_it_wrote(runner, tmp_path):
    folder = tmp_path / "out"
    result = runner.invoke(main, ["demo", "-o", str(folder)])
    assert result.exit_code == 0, result.output
    for name in ("majority", "logistic regression", "VFF-GPC", "accuracy", "NLL", "ECE"):
        assert name in result.stdout
    for name, file in (("picture", "clouds.png"), ("model", "clouds.undulatus")):
        assert f"{name}: {(folder / 'image' / file).resolve()}" in result.stdout
        assert (folder / "image" / file).is_file()
    assert "GENERATED" in result.stdout
    assert f"open in a browser: {(folder / 'index.html').resolve()}" in result.stdout
    assert "GENERATED" in (folder / "index.html").read_text()


@pytest.mark.usefixtures("quick_demo", "every_line")
def test_progress_and_the_reason_for_a_generated_image_go_to_stderr(runner, tmp_path):
    result = runner.invoke(main, ["demo", "-o", str(tmp_path)])
    assert "training pixels" in result.stderr
    assert "learning: step 1" in result.stderr
    assert "making pages: " in result.stderr
    assert "no index" in result.stderr
    assert "training pixels" not in result.stdout


@pytest.mark.usefixtures("quick_demo")
def test_the_demonstration_writes_to_the_folder_demo_by_default(runner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(main, ["demo"]).exit_code == 0
    assert Path("demo/image/clouds.png").is_file()


@pytest.mark.usefixtures("quick_demo")
def test_info_describes_the_model_of_the_demonstration(runner, tmp_path):
    runner.invoke(main, ["demo", "-o", str(tmp_path)])
    result = runner.invoke(main, ["info", str(tmp_path / "image" / "clouds.undulatus")])
    assert result.exit_code == 0
    assert "VFFGPC" in result.stdout


# browse


@pytest.mark.parametrize("name", ["maps.zarr", "maps.nc"])
def test_pages_show_a_map_with_the_scene_it_names(runner, year, clouds_model, tmp_path, name):
    path, site = tmp_path / name, tmp_path / "site"
    runner.invoke(main, ["map", str(clouds_model), str(year), "-o", str(path)])
    command = ["browse", str(path), "-o", str(site), "--span", "2010-01-01/2010-01-01"]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert f"open in a browser: {(site / 'index.html').resolve()}" in result.stdout
    text = (site / "index.html").read_text()
    assert "Synthetic data." in text
    assert "Made without the scene" not in text
    scene = os.path.relpath(year, tmp_path)
    command_line = f"undulatus map {clouds_model.name} {year.name} -o {name}"
    assert f"{command_line} (scene {scene}, model" in text
    assert f"undulatus simulate landmarks --days 2 -o {year.name}" in text
    assert str(tmp_path) not in text
    again = runner.invoke(main, command)
    assert again.exit_code == 1
    assert "exists already. Remove it" in again.stderr


def test_pages_of_a_map_whose_scene_is_gone_say_what_is_missing(
    runner, year, clouds_model, tmp_path
):
    path, moved = tmp_path / "maps.zarr", tmp_path / "moved.zarr"
    shutil.copytree(year, moved)
    runner.invoke(main, ["map", str(clouds_model), str(moved), "-o", str(path)])
    shutil.rmtree(moved)
    command = ["browse", str(path), "--span", "2010-01-01", "-o"]
    result = runner.invoke(main, [*command, str(tmp_path / "bare")])
    assert result.exit_code == 0, result.output
    assert "moved.zarr, which does not exist" in result.stderr
    assert "--scene" in result.stderr
    assert "Made without the scene" in (tmp_path / "bare" / "index.html").read_text()
    result = runner.invoke(main, [*command, str(tmp_path / "whole"), "--scene", str(year)])
    assert "Made without the scene" not in (tmp_path / "whole" / "index.html").read_text()


@pytest.fixture(scope="module")
def mapped_image(tmp_path_factory):
    """An image in a GeoTIFF, and its map with three classes, made with the command."""
    folder = tmp_path_factory.mktemp("mapped")
    rng = np.random.default_rng(0)
    bands = rng.uniform(100.0, 3000.0, (2, 300, 270)).astype(np.float32)
    place = rasterio.Affine(10.0, 0.0, 5e5, 0.0, -10.0, 4.5e6)
    profile = {"driver": "GTiff", "count": 2, "height": 300, "width": 270, "dtype": "float32"}
    with rasterio.open(
        folder / "image.tif", "w", **profile, crs="EPSG:32630", transform=place
    ) as file:
        file.write(bands)
        file.descriptions = ("B04", "B08")
    table = pd.DataFrame(bands.reshape(2, -1).T[:300], columns=["B04", "B08"])
    names = np.select([table["B04"] < 1000, table["B08"] < 1500], ["water", "soil"], "forest")
    model = RFFGPC(5, n_estimators=1, random_state=0).fit(table, names)
    values = np.quantile(table, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0).tolist()
    model.provenance_ = {
        "class_profiles": {
            "features": ["B04", "B08"],
            "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95],
            "values": dict.fromkeys(model.classes_.tolist(), values),
        }
    }
    save_model(model, folder / "model.undulatus")
    command = ["map", str(folder / "model.undulatus"), str(folder / "image.tif"), "-o"]
    result = CliRunner().invoke(main, [*command, str(folder / "map.tif")])
    assert result.exit_code == 0, result.output
    return folder / "map.tif"


def test_the_map_of_an_image_is_shown_with_the_image_and_the_model_it_names(
    runner, mapped_image, tmp_path
):
    site = tmp_path / "site"
    result = runner.invoke(main, ["browse", str(mapped_image), "-o", str(site)])
    assert result.exit_code == 0, result.output
    assert f"open in a browser: {(site / 'index.html').resolve()}" in result.stdout
    assert "left out" not in result.stderr
    text = (site / "index.html").read_text()
    assert "How the map was made" in text
    assert "Made without" not in text
    assert "Training spectra of the class are not shown" not in text
    assert '"quantiles"' in (site / "data.js").read_text()
    again = runner.invoke(main, ["browse", str(mapped_image), "-o", str(site)])
    assert again.exit_code == 1
    assert "exists already. Remove it" in again.stderr


def test_pages_of_an_image_say_what_was_not_found_and_take_it_by_option(
    runner, mapped_image, tmp_path
):
    image, model = (mapped_image.with_name(name) for name in ("image.tif", "model.undulatus"))
    moved = [path.rename(tmp_path / path.name) for path in (image, model)]
    try:
        bare = runner.invoke(main, ["browse", str(mapped_image), "-o", str(tmp_path / "bare")])
        options = ["--scene", str(moved[0]), "--model", str(moved[1]), "--spectra-step", "2"]
        command = ["browse", str(mapped_image), "-o", str(tmp_path / "whole"), *options]
        whole = runner.invoke(main, command)
    finally:
        for path, home in zip(moved, (image, model), strict=True):
            path.rename(home)
    assert bare.exit_code == 0, bare.output
    assert "image.tif, which does not exist: image and spectra are left out" in bare.stderr
    assert "model.undulatus, which does not exist: training spectra are left out" in bare.stderr
    assert "Made without the image" in (tmp_path / "bare" / "index.html").read_text()
    assert whole.exit_code == 0, whole.output
    text = (tmp_path / "whole" / "index.html").read_text()
    assert "Made without" not in text
    assert "every 2nd pixel" in text


def test_a_span_of_an_image_is_bad_usage(runner, mapped_image, tmp_path):
    command = ["browse", str(mapped_image), "-o", str(tmp_path / "site"), "--span", "2010-01-01"]
    result = runner.invoke(main, command)
    assert result.exit_code == 2
    assert "--span is for maps of several times" in result.stderr


def test_a_map_of_one_time_is_shown_as_an_image(runner, year, clouds_model, tmp_path):
    one, path = tmp_path / "one.nc", tmp_path / "map.nc"
    write_dataset(open_scene(year).isel(time=[48]), one)
    made = runner.invoke(main, ["map", str(clouds_model), str(one), "-o", str(path)])
    assert made.exit_code == 0, made.output
    result = runner.invoke(main, ["browse", str(path), "-o", str(tmp_path / "site")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "site" / "index.html").read_text()
    assert "red IR_016, green VIS008, blue VIS006" in text
    assert "Synthetic data" in text


# reproduce


@pytest.fixture
def asked(monkeypatch):
    """Replace the run and its report; return what the run was called with."""
    seen = {"counts": {"done": 3}}

    def reproduce(experiment, out, *, say, progress, **options):
        seen.update(options, experiment=experiment, out=out)
        say("making data")
        if "raises" in seen:
            raise seen["raises"]
        record = {"id": "high-gpc-exact-n9-run0", "status": "over time budget", "reason": "slow"}
        progress(RunProgress(0, 3, 7200.0))
        progress(RunProgress(3, 3, 0.0, record))
        RunFacts(experiment, "quick", 0, {}, {}, {}, "2024-05-01T12:00:00+00:00").write(out)
        return seen["counts"]

    report = ModuleType("undulatus.paper.report")
    report.write_report = lambda out, run, findings: out / "report" / "index.html"
    monkeypatch.setitem(sys.modules, "undulatus.paper.report", report)
    monkeypatch.setattr(experiments, "reproduce", reproduce)
    return seen


@pytest.mark.usefixtures("every_line")
@pytest.mark.parametrize("experiment", ["landmarks", "iavisa"])
def test_results_go_to_stdout_and_progress_to_stderr(runner, asked, tmp_path, experiment):
    result = runner.invoke(main, ["reproduce", experiment, "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    # A claim of each experiment; without trials none is tested.
    claim = {"landmarks": "VFF-GPC is more accurate than RFF-GPC.",
             "iavisa": "VFF-GPC is at its best with about five frequencies."}  # fmt: skip
    assert claim[experiment] in lines
    assert "holds 0, does not hold 0, not tested" in lines[-3]
    assert lines[-2:] == [
        f"trials: {tmp_path / 'trials.jsonl'} (3 done)",
        f"report: {tmp_path / 'report' / 'index.html'}",
    ]
    assert "making data" in result.stderr
    assert "over time budget: slow" in result.stderr
    assert "trials: 0 of 3, starting (0 %), about 2.0 h left" in result.stderr
    assert asked["experiment"] == experiment
    assert asked["scale"] == "quick"
    assert asked["data"] is asked["workers"] is asked["seconds"] is asked["memory"] is None


def test_every_option_reaches_the_run(runner, asked, tmp_path):
    options = ["--scale", "paper", "--seed", "3", "--workers", "4", "--time-budget", "60"]
    more = ["--memory-budget", "1.5GB", "--data", str(tmp_path), "-o", str(tmp_path)]
    assert runner.invoke(main, ["reproduce", "landmarks", *options, *more]).exit_code == 0
    expected = {"scale": "paper", "seed": 3, "workers": 4, "seconds": 60.0}
    assert asked.items() >= (expected | {"memory": 1.5e9, "data": tmp_path}).items()


def test_ctrl_c_prints_how_to_continue_and_ends_with_130(runner, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("an out").mkdir()
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", "an out"])
    assert result.exit_code == 0
    asked["raises"] = KeyboardInterrupt()
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", "an out"])
    assert result.exit_code == 130
    assert "undulatus reproduce iavisa -o 'an out'" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_failed_trials_end_with_1_after_the_report(runner, asked, tmp_path):
    asked["counts"] = {"done": 2, "failed": 1}
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert "(2 done, 1 failed)" in result.stdout
    assert "report:" in result.stdout
    assert "1 trials failed" in result.stderr


def test_an_error_of_the_run_has_no_traceback(runner, asked, tmp_path):
    asked["raises"] = InputError("holds another run")
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds another run" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("size", ["many", "0", "1.2.3G", "-1G", "8 parsecs"])
def test_a_memory_budget_that_is_no_size_is_an_error(runner, asked, tmp_path, size):
    options = ["--memory-budget", size, "-o", str(tmp_path)]
    result = runner.invoke(main, ["reproduce", "iavisa", *options])
    assert result.exit_code == 1
    assert "is not a size" in result.stderr
