"""``undulatus simulate``, ``fit``, ``score``, ``map``, ``info`` and ``explain``."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import rasterio
import rasterio.features
import xarray as xr
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC, SpectralPCA, load_model, products, save_model
from undulatus._files import JsonLines, remove
from undulatus.cli import main
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.scenes.files.writing import WRITERS, write_dataset
from undulatus.scenes.files.zarr_store import find_manifest, verify

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# simulator


def test_synthetic_spectra_are_written(runner, tmp_path):
    path = tmp_path / "iasi.zarr"
    result = runner.invoke(main, ["simulate", "sounder", "--samples", "20", "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert f"20 spectra: {path.resolve()}" in result.stdout
    with xr.open_zarr(path) as written:
        assert dict(written.sizes) == {"sample": 20, "channel": 8461}
        assert "Synthetic" in written.attrs["title"]


def test_another_seed_gives_another_year(runner, year, tmp_path):
    other = tmp_path / "other.zarr"
    runner.invoke(main, ["simulate", "landmarks", "--days", "2", "--seed", "5", "-o", str(other)])
    one, two = (xr.open_zarr(path) for path in (year, other))
    assert not np.array_equal(one["IR_108"].values, two["IR_108"].values)


# fit


FIT_AND_DIE = """
import os, signal, sys, time, warnings
from undulatus.cli import main
from undulatus.estimators.checkpoint import Checkpoint

warnings.simplefilter("ignore")
# Children of a shell's background job ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
save, left = Checkpoint.save, [{saves}]

def save_and_die(self, state):
    save(self, state)
    left[0] -= 1
    if not left[0]:
        {die}

Checkpoint.save = save_and_die
main({command!r})
"""


@pytest.mark.parametrize(("kind", "members"), [("scene", 1), ("spectra", 1), ("spectra", 2)])
def test_a_killed_fit_continues_to_the_same_model(kind, members, request, tmp_path):
    data = request.getfixturevalue("year" if kind == "scene" else "spectra")
    common = ["-D", "3", "--method", "rff", "--n-estimators", str(members)]
    common += ["--components", "8"] if kind == "spectra" else ["--holdout", "0.5"]

    def run(name, saves=0, *options):
        command = ["fit", str(data), "-o", str(tmp_path / name), *common, *options]
        die = "os.kill(os.getpid(), signal.SIGKILL)"
        code = FIT_AND_DIE.format(saves=saves, command=command, die=die)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert run("whole.undulatus").returncode == 0
    assert run("killed.undulatus", 1 if kind == "spectra" else 4).returncode == -9
    assert not (tmp_path / "killed.undulatus").exists()
    left = {path.name for path in tmp_path.iterdir()} - {"whole.undulatus"}
    assert left
    # As if it had been killed in the middle of a save, too.
    (tmp_path / "..killed.undulatus.checkpoint.unfinished-0a1b2c3d.2").touch()
    resumed = run("killed.undulatus", 0, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming: " in resumed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "killed.undulatus",
        "whole.undulatus",
    ]
    whole, killed = (tmp_path / name for name in ("whole.undulatus", "killed.undulatus"))
    assert whole.read_bytes() == killed.read_bytes()
    model = load_model(whole)
    classifiers = model.estimators_.values() if kind == "scene" else [model[-1]]
    assert {len(classifier.estimators_) for classifier in classifiers} == {members}


@pytest.mark.parametrize(
    ("members", "number", "status"), [(1, signal.SIGINT, 130), (2, signal.SIGTERM, 143)]
)
def test_an_interrupted_fit_stops_keeps_all_there_was_and_continues_to_the_same_model(
    members, number, status, runner, year, tmp_path
):
    whole, path = tmp_path / "whole.undulatus", tmp_path / "clouds.undulatus"
    options = ["-D", "3", "--method", "rff", "--n-estimators", str(members), "--holdout", "0.5"]
    assert runner.invoke(main, ["fit", str(year), "-o", str(whole), *options]).exit_code == 0
    path.write_bytes(b"an older model")
    command = ["fit", str(year), "-o", str(path), *options, "--overwrite"]
    # One member is fitted in the main thread, where the signal ends the wait; several are not.
    signalled = tmp_path / "signalled"
    die = "print('saved', flush=True)\n"
    die += f"        while not os.path.exists({str(signalled)!r}): time.sleep(0.02)"
    code = FIT_AND_DIE.format(saves=3, command=command, die=die)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as fit:
        assert fit.stdout.readline() == "saved\n"
        second = runner.invoke(main, command)
        fit.send_signal(number)
        signalled.touch()
        said = fit.communicate(timeout=60)[1]
    assert second.exit_code == 1
    assert f"being written by process {fit.pid} on " in second.stderr
    assert fit.returncode == status, said
    _, _, end = said.partition("undulatus fit: interrupted.\n  high")
    assert end.endswith("\nRun the same command with --resume to continue.\n")
    assert "night" not in end
    assert "Traceback" not in said
    assert path.read_bytes() == b"an older model"
    again = runner.invoke(main, command)
    assert again.exit_code == 1
    assert "An unfinished fit lies beside" in again.stderr
    assert "--resume to continue it, or --restart to discard it" in again.stderr
    assert path.read_bytes() == b"an older model"
    resumed = runner.invoke(main, [*command, "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert "resuming: high" in resumed.stderr
    assert path.read_bytes() == whole.read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {path.name, whole.name, "signalled"}


def test_a_fit_is_restarted_only_if_told_to(runner, spectra, tmp_path):
    path = tmp_path / "m.undulatus"
    command = ["fit", str(spectra), "-o", str(path), "--components", "8", "--method", "rff"]
    command += ["-D", "3", "--n-estimators", "1"]
    new = runner.invoke(main, [*command, "--resume"])
    assert new.exit_code == 0, new.output
    assert "resuming: nothing, from the beginning" in new.stderr
    whole = path.read_bytes()
    left = tmp_path / ".m.undulatus.checkpoint"
    left.write_bytes(b"of a fit that is long forgotten")
    command.append("--overwrite")
    refused = runner.invoke(main, command)
    assert refused.exit_code == 1
    assert f"{left} cannot be read" in refused.stderr
    assert left.exists()
    assert runner.invoke(main, [*command, "--resume", "--restart"]).exit_code == 2
    assert runner.invoke(main, [*command, "--restart"]).exit_code == 0
    assert path.read_bytes() == whole
    assert not left.exists()


def test_a_fit_to_a_folder_that_does_not_exist_is_refused_at_once(runner, year, tmp_path):
    path = tmp_path / "nowhere" / "m.undulatus"
    result = runner.invoke(main, ["fit", str(year), "-o", str(path)])
    assert result.exit_code == 1
    assert "nowhere does not exist" in result.stderr
    assert not path.parent.exists()


@pytest.mark.parametrize("kind", ["year", "spectra"])
def test_too_little_memory_for_a_fit_is_an_error(runner, kind, request, tmp_path):
    data = request.getfixturevalue(kind)
    command = ["fit", str(data), "-o", str(tmp_path / "m.undulatus"), "--memory-limit", "420MB"]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "too little" in result.stderr


@pytest.mark.parametrize("option", [["--components", "5"], ["--picture", "2010-01-01"]])
def test_an_option_for_other_data_is_bad_usage(
    runner, year, spectra, sounder_model, tmp_path, option
):
    command = ["fit", str(year)] if "--components" in option else ["map", str(sounder_model)]
    command += [] if "--components" in option else [str(spectra)]
    result = runner.invoke(main, [*command, "-o", str(tmp_path / "out.zarr"), *option])
    assert result.exit_code == 2
    assert option[0] in result.stderr


# score


def test_scores_are_printed_as_a_table_and_as_json(runner, year, clouds_model):
    shown = runner.invoke(main, ["score", str(clouds_model), str(year)])
    assert shown.exit_code == 0, shown.output
    for word in ("cloud_truth", "night", "coast", "accuracy", "ECE"):
        assert word in shown.stdout
    parsed = runner.invoke(main, ["score", str(clouds_model), str(year), "--json"])
    rows = json.loads(parsed.stdout)
    assert {row["regime"] for row in rows} == {"high", "mid", "low", "night"}
    assert all(0.0 <= row["accuracy"] <= 1.0 and row["pixels"] > 0 for row in rows)


def test_spectra_are_scored_by_stratum(runner, spectra, sounder_model):
    shown = runner.invoke(main, ["score", str(sounder_model), str(spectra)])
    assert shown.exit_code == 0, shown.output
    for word in ("water", "winter", "polar", "night", "cloud_truth"):
        assert word in shown.stdout
    rows = json.loads(
        runner.invoke(main, ["score", str(sounder_model), str(spectra), "--json"]).stdout
    )
    assert {row["stratum"] for row in rows} == {
        "all", "surface_type", "climate_zone", "season", "day",
    }  # fmt: skip


@pytest.fixture(scope="module")
def cloud_types_model(spectra):
    """A model of the four cloud classes of the spectra."""
    path = spectra.with_name("types.undulatus")
    with xr.open_zarr(spectra) as opened:
        X, y = opened["radiance"].values, opened["cloud_class"].values
    model = make_pipeline(SpectralPCA(10), RFFGPC(6, n_estimators=1, max_iter=3, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    model.provenance_ = {"label": "cloud_class"}
    save_model(model, path)
    return path


def test_many_classes_are_scored_class_by_class(runner, spectra, cloud_types_model):
    shown = runner.invoke(main, ["score", str(cloud_types_model), str(spectra)])
    assert shown.exit_code == 0, shown.output
    first, head = shown.stdout.splitlines()[:2]
    assert "Whether the model was trained on them is unknown" in first
    assert head.split() == [
        "stratum", "value", "reference", "samples", "accuracy", "kappa", "NLL", "ECE",
    ]  # fmt: skip
    for word in ("winter", "user's accuracy", "true \\ predicted", "partly_cloudy_low"):
        assert word in shown.stdout
    command = ["score", str(cloud_types_model), str(spectra), "--json"]
    rows = json.loads(runner.invoke(main, command).stdout)
    assert rows[0]["stratum"] == "all"
    assert len(rows[0]["by_class"]) == 4
    assert np.sum(rows[0]["confusion"]) == rows[0]["samples"] == 500
    assert rows[0]["accuracy"]["low"] < rows[0]["accuracy"]["value"]


def test_a_label_that_does_not_hold_the_classes_is_an_error(runner, spectra, cloud_types_model):
    command = ["score", str(cloud_types_model), str(spectra), "--label", "season_"]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "no 'season_' to score against" in result.stderr


@pytest.fixture(scope="module")
def surface_year(year):
    """The two days with a label of three classes, in a file."""
    path = year.with_name("surfaces.zarr")
    with xr.open_zarr(year) as opened:
        codes = xr.where(opened["cloud_truth"] == 1, 7, opened["land_mask"].astype(int) + 2)
        codes = codes.transpose("time", "y", "x").astype(np.uint8)
        flags = {"flag_values": [2, 3, 7], "flag_meanings": "sea land cloud"}
        write_dataset(opened.assign(surface=codes.assign_attrs(flags)), path)
    return path


def test_a_label_of_three_classes_is_fitted_scored_mapped_and_browsed(
    runner, surface_year, tmp_path
):
    model, maps = tmp_path / "surfaces.undulatus", tmp_path / "map.nc"
    command = ["fit", str(surface_year), "-o", str(model), "--label", "surface"]
    quick = ["--method", "rff", "-D", "5", "--n-estimators", "1", "--holdout", "0.5"]
    assert runner.invoke(main, [*command, *quick]).exit_code == 0
    scored = runner.invoke(main, ["score", str(model), str(surface_year)])
    assert scored.exit_code == 0, scored.output
    assert "surface, regime night" in scored.stdout
    assert "true \\ predicted" in scored.stdout
    described = runner.invoke(main, ["info", str(model)]).stdout
    assert "legend: 2 sea #" in described
    assert "cloud: cloud" in described
    mapped = runner.invoke(
        main, ["map", str(model), str(surface_year), "-o", str(maps), "--encoding", "pps"]
    )
    assert mapped.exit_code == 0, mapped.output
    with xr.open_dataset(maps) as written:
        assert written["cloud_mask"].attrs["flag_meanings"].startswith("cloud_free cloudy")
        assert written["class"].attrs["flag_meanings"] == "sea land cloud"
    built = runner.invoke(main, ["browse", str(maps), "-o", str(tmp_path / "site")])
    assert built.exit_code == 0, built.output
    text = (tmp_path / "site" / "index.html").read_text()
    assert "Class maps" in text
    assert 'id="panel-label"' in text


# map


@pytest.mark.parametrize("name", ["maps.zarr", "maps.nc"])
def test_a_scene_is_mapped_to_zarr_and_netcdf(runner, year, clouds_model, tmp_path, name):
    path = tmp_path / name
    result = runner.invoke(main, ["map", str(clouds_model), str(year), "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert f"map: {path.resolve()}" in result.stdout
    # Two days of 96 images of 20 x 26 pixels.
    assert "99,840 pixels mapped, 0 missing (0.0%), " in result.stdout
    assert " outside what was learned (" in result.stdout
    engine = {".zarr": "zarr", ".nc": "netcdf4"}[path.suffix]
    with xr.open_dataset(path, engine=engine, mask_and_scale=False) as written:
        assert written["cloud_mask"].dtype == np.uint8
        assert set(np.unique(written["cloud_mask"])) <= {0, 1, 255}
        assert written["cloud_mask"].attrs["flag_meanings"].split()[:2] == ["clear", "cloud"]
        assert "Synthetic" in written.attrs["title"]
        assert written.attrs["scene"] == os.path.relpath(year, tmp_path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_spectra_are_mapped(runner, spectra, sounder_model, tmp_path):
    path = tmp_path / "clouds.nc"
    result = runner.invoke(main, ["map", str(sounder_model), str(spectra), "-o", str(path)])
    assert result.exit_code == 0, result.output
    with xr.open_dataset(path, mask_and_scale=False) as written:
        assert written["cloud_mask"].dims == ("sample",)
        assert set(np.unique(written["cloud_mask"])) <= {0, 1}
        assert {"latitude", "longitude", "time"} <= set(written.coords)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_a_geotiff_is_mapped_to_a_geotiff(runner, tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 60, 70)).astype(np.float32)
    transform = rasterio.transform.from_origin(500_000, 4_000_000, 20, 20)
    with rasterio.open(
        tmp_path / "image.tif", "w", driver="GTiff", count=2, height=60, width=70,
        dtype="float32", crs="EPSG:32629", transform=transform,
    ) as file:  # fmt: skip
        file.write(values)
        file.descriptions = ("B02", "B08")
    table = pd.DataFrame(values.reshape(2, -1).T, columns=["B02", "B08"])
    model = RFFGPC(10, n_estimators=1, random_state=0).fit(table, table["B02"] > table["B08"])
    save_model(model, tmp_path / "model.undulatus")
    command = ["map", str(tmp_path / "model.undulatus"), str(tmp_path / "image.tif")]
    result = runner.invoke(main, [*command, "-o", str(tmp_path / "map.tif")])
    assert result.exit_code == 0, result.output
    with rasterio.open(tmp_path / "map.tif") as written:
        assert written.crs.to_epsg() == 32629
        assert written.transform == transform
        assert written.descriptions == ("cloud_mask",)
        assert written.dtypes == ("uint8",)
    with rasterio.open(tmp_path / "map_layers.tif") as written:
        assert written.descriptions[0] == "cloud_probability"
        expected = model.predict_proba(table)[:, 1].reshape(60, 70)
        np.testing.assert_allclose(written.read(1), expected, atol=1e-5)
    assert "4,200 pixels mapped" in result.stdout


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_an_image_in_other_units_is_refused_unless_that_is_allowed(runner, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.gamma(4.0, 300.0, size=(500, 2)), columns=["B02", "B08"])
    save_model(
        RFFGPC(10, n_estimators=1, random_state=0).fit(table, table["B02"] > 1200),
        tmp_path / "model",
    )
    values = rng.gamma(4.0, 0.03, size=(2, 60, 70)).astype(np.float32)
    image = xr.Dataset(
        {name: (("y", "x"), band) for name, band in zip(table, values, strict=True)}
    )
    image.to_netcdf(tmp_path / "image.nc")
    output = tmp_path / "map.nc"
    command = ["map", str(tmp_path / "model"), str(tmp_path / "image.nc"), "-o", str(output)]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert result.stderr.startswith("undulatus map: 100% of 4,200 pixels")
    for words in ("B08: median 0.1", "in training ", "--allow-outside"):
        assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not output.exists()
    result = runner.invoke(main, [*command, "--allow-outside"])
    assert result.exit_code == 0, result.output
    assert "4,200 outside what was learned (100.0%)" in result.stdout
    assert output.exists()


@pytest.fixture
def surfaces(tmp_path):
    """A model of three classes and an image of its bands, both in files."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(500, 2)), columns=["B02", "B08"])
    y = np.digitize(table["B02"] + 0.3 * rng.normal(size=500), [-0.5, 0.5])
    save_model(RFFGPC(10, n_estimators=1, random_state=0).fit(table, y), tmp_path / "model")
    values = rng.normal(size=(2, 60, 70)).astype(np.float32)
    image = xr.Dataset(
        {name: (("y", "x"), band) for name, band in zip(table, values, strict=True)}
    )
    image.to_netcdf(tmp_path / "image.nc")
    return [str(tmp_path / "model"), str(tmp_path / "image.nc")]


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_map_of_classes_in_geotiff_says_which_file_holds_what(runner, surfaces, tmp_path):
    output = tmp_path / "map.tif"
    result = runner.invoke(main, ["map", *surfaces, "-o", str(output)])
    assert result.exit_code == 0, result.output
    layers = tmp_path / "map_layers.tif"
    quality = tmp_path / "map_quality_flag.tif"
    line = f"map: {output.resolve()}, {layers.resolve()}, {quality.resolve()}\n"
    assert line in result.stdout
    assert "4,200 pixels mapped" in result.stdout
    with rasterio.open(output) as written:
        assert written.dtypes == ("uint8",)
        counts = np.bincount(written.read(1).ravel())
    assert len(counts) == 3
    shares = ", ".join(f"class_{code} {n / 4200:.1%}" for code, n in enumerate(counts))
    assert result.stdout.rstrip().endswith(f"; {shares}")


def test_a_legend_in_json_names_the_classes(runner, surfaces, tmp_path):
    legend = tmp_path / "legend.json"
    facts = {"classes": [0, 1, 2], "names": ["dark sea", "land", "ice"], "codes": [5, 6, 7]}
    legend.write_text(json.dumps(facts))
    output = tmp_path / "map.nc"
    command = [
        "map",
        *surfaces,
        "-o",
        str(output),
        "--legend",
        str(legend),
        "--memory-limit",
        "1GB",
    ]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    with xr.open_dataset(output) as written:
        assert written["class"].attrs["flag_meanings"] == "dark_sea land ice"
        assert set(np.unique(written["class"])) <= {5.0, 6.0, 7.0}


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ('{"classes": [0, 1, 3]}', 1, "classes of the model that it lacks: 2"),
        ("[0, 1, 2]", 2, "must hold an object"),
        ("land, water", 2, "is not JSON"),
    ],
)
def test_a_legend_that_does_not_fit_is_an_error(runner, surfaces, tmp_path, text, status, words):
    (tmp_path / "legend.json").write_text(text)
    command = ["map", *surfaces, "-o", str(tmp_path / "map.nc")]
    result = runner.invoke(main, [*command, "--legend", str(tmp_path / "legend.json")])
    assert result.exit_code == status
    assert words in result.stderr
    assert not (tmp_path / "map.nc").exists()


@pytest.mark.parametrize("name", ["maps.zarr", "maps.nc"])
def test_a_map_can_be_drawn_and_filmed(runner, year, clouds_model, tmp_path, name):
    command = ["map", str(clouds_model), str(year), "-o", str(tmp_path / name)]
    command += ["--picture", "2010-01-01T12:00", "--video", "2010-01-01T12:00/2010-01-01T13:00"]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "maps.mp4").stat().st_size > 1000
    for line in ("picture: ", "video: "):
        assert line in result.stdout


@pytest.mark.parametrize("option", [["--picture", "2010-01-01"], ["--video", "2010-01-01/"]])
def test_a_geotiff_to_draw_or_film_is_refused_before_mapping(
    runner, year, clouds_model, tmp_path, option
):
    command = ["map", str(clouds_model), str(year), "-o", str(tmp_path / "x.tif"), *option]
    result = runner.invoke(main, command)
    assert result.exit_code == 2
    assert "x.tif" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_help_of_map_lists_every_format(runner):
    shown = runner.invoke(main, ["map", "--help"]).stdout
    assert all(suffix in shown for suffix in WRITERS)


def test_a_missing_band_is_named_with_its_remedy_and_no_traceback(
    runner, year, clouds_model, tmp_path
):
    path = tmp_path / "less.zarr"
    xr.open_zarr(year).drop_vars("IR_016").to_zarr(path, consolidated=False)
    output = tmp_path / "maps.zarr"
    result = runner.invoke(main, ["map", str(clouds_model), str(path), "-o", str(output)])
    assert result.exit_code == 1
    assert "undulatus map:" in result.stderr
    assert "missing: IR_016" in result.stderr
    assert "Traceback" not in result.stderr
    assert not output.exists()


def test_spectra_in_the_wrong_unit_are_an_error_that_names_it(
    runner, spectra, sounder_model, tmp_path
):
    path = tmp_path / "kelvin.zarr"
    with xr.open_zarr(spectra) as opened:
        wrong = opened.assign(radiance=opened["radiance"].assign_attrs(units="K"))
        wrong.to_zarr(path, consolidated=False)
    command = ["map", str(sounder_model), str(path), "-o", str(tmp_path / "out.zarr")]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "radiance is in 'K'" in result.stderr
    assert not (tmp_path / "out.zarr").exists()


def test_a_corrupt_scene_is_an_error_that_names_the_file(runner, clouds_model, tmp_path):
    path = tmp_path / "scene.nc"
    path.write_bytes(b"CDF\x05 but no more")
    result = runner.invoke(main, ["map", str(clouds_model), str(path), "-o", "out.zarr"])
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_an_existing_output_is_not_overwritten(runner, year, clouds_model, tmp_path):
    path = tmp_path / "maps.zarr"
    path.mkdir()
    result = runner.invoke(main, ["map", str(clouds_model), str(year), "-o", str(path)])
    assert result.exit_code == 1
    assert "exists. Give another name, or --overwrite to replace it" in result.stderr
    command = ["map", str(clouds_model), str(year), "-o", str(path), "--overwrite"]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "a folder that undulatus did not write, so it is not replaced" in result.stderr
    assert not list(path.iterdir())


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("name", ["map.zarr", "map.nc", "map.tif", "map.img", "map.dat"])
def test_an_existing_map_is_replaced_if_that_is_asked_for(runner, surfaces, tmp_path, name):
    output = tmp_path / "out" / name
    output.parent.mkdir()
    command = ["map", *surfaces, "-o", str(output)]
    assert runner.invoke(main, command).exit_code == 0
    files = sorted(path.name for path in output.parent.iterdir())
    again = runner.invoke(main, command)
    assert again.exit_code == 1
    assert "--overwrite to replace it" in again.stderr
    chosen = [*command, "--layers", "class,quality_flag", "--overwrite"]
    result = runner.invoke(main, chosen)
    assert result.exit_code == 0, result.output
    assert "of low confidence" in result.stdout
    left = sorted(path.name for path in output.parent.iterdir())
    # Nothing of the first map is left that the second does not have.
    assert left == [each for each in files if "_layers" not in each]
    result = runner.invoke(main, [*command, "--resume", "--overwrite"])
    assert result.exit_code == 2


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_layers_are_chosen_by_name_and_a_map_of_classes_alone_is_counted(
    runner, surfaces, tmp_path
):
    output = tmp_path / "map.nc"
    result = runner.invoke(main, ["map", *surfaces, "-o", str(output), "--layers", "class"])
    assert result.exit_code == 0, result.output
    assert "4,200 pixels mapped, 0 missing (0.0%); class_0 " in result.stdout
    with xr.open_dataset(output) as written:
        assert list(written.data_vars) == ["class"]
        assert "ancillary_variables" not in written["class"].attrs
    command = ["map", *surfaces, "-o", str(tmp_path / "b.nc"), "--layers", "class,beauty"]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "The map has no layer beauty" in result.stderr
    assert "class_entropy" in result.stderr


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_small_patches_are_removed_as_gdal_does(runner, surfaces, tmp_path):
    for name, more in (("plain.nc", []), ("sieved.nc", ["--sieve", "5", "--connected", "8"])):
        result = runner.invoke(main, ["map", *surfaces, "-o", str(tmp_path / name), *more])
        assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "plain.nc") as a, xr.open_dataset(tmp_path / "sieved.nc") as b:
        expected = rasterio.features.sieve(a["class"].values.astype(np.uint8), 5, connectivity=8)
        np.testing.assert_array_equal(b["class"].values, expected)
        assert (a["class"].values != b["class"].values).any()
        xr.testing.assert_equal(a["class_probability"], b["class_probability"])
        assert "smallest patch of a class: 5 pixels, 8-connected" in b["class"].attrs["comment"]


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_one_sentence_says_that_most_of_a_map_is_doubtful(runner, surfaces, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 2)), columns=["B02", "B08"])
    # Labels by chance: nothing can be learned.
    guess = RFFGPC(5, n_estimators=1, random_state=0).fit(table, rng.integers(3, size=300))
    save_model(guess, tmp_path / "guess")
    command = ["map", str(tmp_path / "guess"), surfaces[1], "-o"]
    result = runner.invoke(main, [*command, str(tmp_path / "map.nc")])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Most of the map is doubtful: the class of 100% of its pixels") == 1
    result = runner.invoke(main, ["map", *surfaces, "-o", str(tmp_path / "sure.nc")])
    assert "doubtful" not in result.stderr


def test_an_interrupted_map_continues_and_equals_an_uninterrupted_one(
    runner, year, clouds_model, tmp_path
):
    command = ["map", str(clouds_model), str(year), "-o"]
    whole, path = tmp_path / "whole.zarr", tmp_path / "maps.zarr"
    assert runner.invoke(main, [*command, str(whole)]).exit_code == 0
    assert runner.invoke(main, [*command, str(path)]).exit_code == 0
    chunk = sorted((path / "cloud_probability" / "c").rglob("*"))[-1]
    chunk.unlink()
    assert verify(path)
    again = runner.invoke(main, [*command, str(path), "--resume"])
    assert again.exit_code == 0, again.output
    assert not verify(path)
    with xr.open_zarr(whole) as expected, xr.open_zarr(path) as found:
        xr.testing.assert_equal(found, expected)


def test_a_map_of_another_model_is_not_continued(runner, spectra, sounder_model, tmp_path):
    path = tmp_path / "maps.zarr"
    command = ["map", str(sounder_model), str(spectra), "-o", str(path)]
    assert runner.invoke(main, command).exit_code == 0
    other = load_model(sounder_model)
    other.provenance_["seed"] = 99
    save_model(other, tmp_path / "other.undulatus")
    command[1] = str(tmp_path / "other.undulatus")
    result = runner.invoke(main, [*command, "--resume"])
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr


# Inputs that are damaged, or replaced


def truncated(chunk):
    chunk.write_bytes(chunk.read_bytes()[:-1])


def flipped(chunk):
    changed = bytearray(chunk.read_bytes())
    changed[len(changed) // 2] ^= 1
    chunk.write_bytes(changed)


DAMAGE = {"truncated": truncated, "flipped": flipped, "deleted": Path.unlink}


def assert_names_the_chunk(result, store):
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "chunk c/0/0/0 of IR_108" in result.stderr
    assert str(store / "IR_108/c/0/0/0") in result.stderr
    assert "Restore it from a copy, or make the store again." in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("command", ["fit", "score", "map"])
def test_a_damaged_chunk_of_the_input_is_an_error_that_names_it(
    runner, year, clouds_model, tmp_path, command, damage
):
    store = shutil.copytree(year, tmp_path / "year.zarr")
    DAMAGE[damage](store / "IR_108/c/0/0/0")
    output = tmp_path / ("new.undulatus" if command == "fit" else "maps.zarr")
    arguments = {
        "fit": [store, "--method", "rff", "-D", "5", "--n-estimators", "1", "-o", output],
        "score": [clouds_model, store],
        "map": [clouds_model, store, "-o", output],
    }
    result = runner.invoke(main, [command, *map(str, arguments[command])])
    assert_names_the_chunk(result, store)
    assert not output.exists()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_chunk_of_a_map_is_an_error_of_its_pages(
    runner, year, clouds_model, tmp_path, damage
):
    path = tmp_path / "maps.zarr"
    assert (
        runner.invoke(main, ["map", str(clouds_model), str(year), "-o", str(path)]).exit_code == 0
    )
    DAMAGE[damage](path / "cloud_mask/c/0/0/0")
    result = runner.invoke(main, ["browse", str(path), "-o", str(tmp_path / "pages")])
    assert result.exit_code == 1, result.output
    assert "chunk c/0/0/0 of cloud_mask" in result.stderr
    assert "Traceback" not in result.stderr


def without_list(year, path):
    """Write a scene as another program would."""
    with xr.open_zarr(year) as opened:
        opened.to_zarr(path, consolidated=False)
    return path


def test_a_torn_chunk_of_another_program_is_an_error_that_names_it(
    runner, year, clouds_model, tmp_path
):
    store = without_list(year, tmp_path / "year.zarr")
    truncated(store / "IR_108/c/0/0/0")
    command = ["map", str(clouds_model), str(store), "-o", str(tmp_path / "maps.zarr")]
    assert_names_the_chunk(runner.invoke(main, command), store)


@pytest.mark.parametrize("writer", [shutil.copytree, without_list], ids=["ours", "foreign"])
def test_a_chunk_that_is_deleted_while_it_is_mapped_is_an_error(
    runner, year, clouds_model, tmp_path, monkeypatch, writer
):
    store = writer(year, tmp_path / "year.zarr")
    map_scene = products.map_scene

    def map_and_delete(*args, **options):
        maps = map_scene(*args, **options)
        (store / "IR_108/c/0/0/0").unlink()
        return maps

    monkeypatch.setattr("undulatus.products.map_files.map_scene", map_and_delete)
    output = tmp_path / "maps.zarr"
    command = ["map", str(clouds_model), str(store), "-o", str(output)]
    assert_names_the_chunk(runner.invoke(main, command), store)
    assert not output.exists()


def interrupted(path):
    """Turn a map into one whose last chunk was not written yet."""
    unfinished = path.rename(path.with_name(f".{path.stem}.unfinished.zarr"))
    sorted((unfinished / "cloud_probability" / "c").rglob("*"))[-1].unlink()
    return unfinished


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_a_map_is_not_continued_when_its_input_was_replaced(
    runner, clouds_model, tmp_path, suffix, state
):
    scene, path = tmp_path / f"scene{suffix}", tmp_path / "maps.zarr"
    make = ["simulate", "landmarks", "--days", "1", "-o", str(scene)]
    assert runner.invoke(main, make).exit_code == 0
    command = ["map", str(clouds_model), str(scene), "-o", str(path)]
    assert runner.invoke(main, command).exit_code == 0
    store = path if state == "finished" else interrupted(path)
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    shutil.move(scene, tmp_path / f"first{suffix}")
    assert runner.invoke(main, [*make, "--seed", "5"]).exit_code == 0
    refused = runner.invoke(main, [*command, "--resume"])
    assert refused.exit_code == 1, refused.output
    assert "the input" in refused.stderr
    assert f"{store} holds another dataset" in refused.stderr
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before
    # The first one is back, to the bit.
    remove(scene)
    shutil.move(tmp_path / f"first{suffix}", scene)
    resumed = runner.invoke(main, [*command, "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert not verify(path)


def test_an_interrupted_map_of_an_earlier_version_is_begun_anew_with_a_message(
    runner, year, clouds_model, tmp_path
):
    path = tmp_path / "maps.zarr"
    command = ["map", str(clouds_model), str(year), "-o", str(path)]
    assert runner.invoke(main, command).exit_code == 0
    unfinished = interrupted(path)
    flipped(unfinished / "cloud_mask/c/0/0/0")
    digest = hashlib.sha256(clouds_model.read_bytes()).hexdigest()
    by_path = {"fingerprint": f"{digest} {year.resolve()} cf"}
    JsonLines(find_manifest(unfinished)).append({"description": by_path})
    result = runner.invoke(main, [*command, "--resume"])
    assert result.exit_code == 0, result.output
    assert f"{path} was begun by an earlier version" in result.stderr
    assert not verify(path)


def read_peak(command):
    """Run a command and return its peak memory in bytes."""
    # getrusage would count what the parent holds when the child starts.
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from undulatus.cli import main\n"
        f"main({command!r}, standalone_mode=False)\n"
        "status = Path('/proc/self/status').read_text()\n"
        "peak = status.partition('VmHWM:')[2].split()[0]\n"
        "print(int(peak) * 1024, file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return int(run.stderr.split()[-1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_map_stays_below_its_memory_limit(tmp_path):
    # 60 million values in chunks of 2 MB; mapped at once, they would take 700 MB.
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 10)), columns=[f"B{i:02}" for i in range(10)])
    model = tmp_path / "model.undulatus"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_model(RFFGPC(10, n_estimators=1, random_state=0).fit(table, table["B00"] > 0), model)
    lazy = da.ones((2500, 2400), chunks=(700, 700), dtype=np.float32)
    image = xr.Dataset({name: (("y", "x"), lazy * (0.1 * i)) for i, name in enumerate(table)})
    image.to_zarr(tmp_path / "image.zarr", consolidated=False)
    memory_limit = 700 * 10**6
    command = ["map", str(model), str(tmp_path / "image.zarr"), "--memory-limit", "700MB"]
    assert read_peak([*command, "-o", str(tmp_path / "map.zarr")]) < memory_limit
    with xr.open_zarr(tmp_path / "map.zarr") as written:
        assert written["cloud_probability"].notnull().all()


# info


@pytest.mark.parametrize(
    "model",
    [
        GPC(max_iter=2),
        RFFGPC(4, n_estimators=1, max_iter=2),
        VFFGPC(4, n_estimators=1, max_iter=2),
        VFFGPC(4, n_estimators=3, max_iter=2),
    ],
)
def test_a_model_file_is_described(runner, tmp_path, moons, model):
    X, y = moons
    path = tmp_path / "day.undulatus"
    table = pd.DataFrame(X, columns=["IR_108", "VIS006"])
    save_model(model.fit(table, np.array(["clear", "cloud"])[y]), path)
    result = runner.invoke(main, ["info", str(path)])
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"{path}: {type(model).__name__}"
    assert "classes: clear, cloud" in lines
    assert "features: 2 (IR_108, VIS006)" in lines
    assert f"lower bound on the log evidence: {load_model(path).lower_bound_:.6g}" in lines
    assert any(line.startswith("precision: double") for line in lines)
    assert ("estimators of the ensemble: 3" in lines) == (getattr(model, "n_estimators", 1) == 3)


@pytest.mark.parametrize(
    "model", [GPC(max_iter=2), VFFGPC(4, n_estimators=2, max_iter=2)], ids=["GPC", "VFFGPC"]
)
def test_classes_with_their_shares_and_latent_functions_are_listed(runner, tmp_path, model):
    X = np.random.default_rng(0).normal(size=(120, 2))
    y = np.repeat(["cloud", "land", "sea"], [60, 36, 24])
    path = tmp_path / "cover.undulatus"
    save_model(model.fit(X, y), path)
    result = runner.invoke(main, ["info", str(path)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "classes: cloud, land, sea" in lines
    assert "latent functions: 3" in lines
    assert "shares of classes in training: cloud 50.0%, land 30.0%, sea 20.0%" in lines


def test_info_says_how_a_fit_went_beside_chance_level(runner, tmp_path, moons):
    path = tmp_path / "moons.undulatus"
    options = {"n_estimators": 2, "solver": "stochastic", "random_state": 0}
    model = VFFGPC(4, **options).fit(*moons)
    save_model(model, path)
    lines = runner.invoke(main, ["info", str(path)]).stdout.splitlines()
    report = model.fit_report_
    steps, rows = report["steps"], report["rows"]
    assert (
        f"fit: converged after {steps} minibatches, of {rows} rows, by the stochastic solver"
        in lines
    )
    (said,) = [line for line in lines if line.startswith("validation NLL: ")]
    smoothed = (
        pd.Series(own).rolling(3, min_periods=1).mean() for own in report["validation_nll"]
    )
    lowest = [own.min() for own in smoothed]
    assert f"{np.mean(lowest):.3g} nats a row" in said
    assert f"the mean of 2 estimators ({min(lowest):.3g} to {max(lowest):.3g})" in said
    assert said.endswith("the class shares alone give 0.693")
    for unexplained in ("held back", "stopped", "starting lengthscale", "jitter"):
        assert unexplained not in "".join(lines)


def test_info_says_so_if_nothing_was_learned(runner, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)), rng.permutation(np.arange(400) % 2)
    path = tmp_path / "noise.undulatus"
    save_model(VFFGPC(4, n_estimators=1, solver="stochastic", random_state=0).fit(X, y), path)
    assert "chance level" in runner.invoke(main, ["info", str(path)]).stdout


def test_features_without_names_are_counted(runner, tmp_path, moons):
    path = tmp_path / "day.undulatus"
    save_model(RFFGPC(4, n_estimators=1, max_iter=2).fit(*moons), path)
    result = runner.invoke(main, ["info", str(path)])
    assert "features: 2" in result.stdout.splitlines()


def test_info_prints_the_regimes_and_what_they_learned_from(runner, clouds_model):
    result = runner.invoke(main, ["info", str(clouds_model)])
    assert result.exit_code == 0, result.output
    for word in ("RegimeClassifier", "night: solar_zenith_angle from 90 to inf", "held out days"):
        assert word in result.stdout
    assert "calibration mode: synthetic" in result.stdout
    assert f"version: {version('undulatus')}\ncommand: undulatus fit " in result.stdout
    assert "--holdout 0.5\n" in result.stdout
    assert "legend: 0 clear #3b6e8f, 1 cloud #f7f7f7\ncloud: cloud\n" in result.stdout


def test_info_prints_the_codes_and_colours_of_classes(runner, surfaces):
    lines = runner.invoke(main, ["info", surfaces[0]]).stdout.splitlines()
    assert "legend: 0 0 #0072b2, 1 1 #e69f00, 2 2 #009e73" in lines
    assert "cloud: not known" in lines


def test_info_prints_the_steps_of_pipelines_in_regimes(runner, tmp_path):
    rng = np.random.default_rng(0)
    table = {name: rng.normal(size=200) for name in ("a", "b")}
    table["solar_zenith_angle"] = rng.uniform(0.0, 180.0, 200)
    steps = make_pipeline(StandardScaler(), RFFGPC(4, n_estimators=1, max_iter=2))
    parts = (Regime("day", 0.0, 90.0), Regime("night", 90.0, 180.0))
    model = RegimeClassifier(steps, parts).fit(table, np.arange(200) % 3)
    save_model(model, tmp_path / "cover.undulatus")
    result = runner.invoke(main, ["info", str(tmp_path / "cover.undulatus")])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("standardscaler: StandardScaler") == 2
    assert result.stdout.count("latent functions: 3") == 2


def test_info_prints_the_steps_of_a_model_of_spectra(runner, sounder_model):
    result = runner.invoke(main, ["info", str(sounder_model)])
    assert result.exit_code == 0, result.output
    for line in ("reduce: SpectralPCA", "n components: 15", "classify: RFFGPC", "radiance"):
        assert line in result.stdout


# explain


def test_a_model_of_spectra_is_explained_in_a_picture_and_a_table(runner, sounder_model, tmp_path):
    picture = tmp_path / "waves.png"
    result = runner.invoke(main, ["explain", str(sounder_model), "-o", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(picture.with_suffix(".csv"), comment="#")
    assert len(table) == 8461
    for word in ("wave", "window", str(picture), ".csv"):
        assert word in result.stdout


def test_many_classes_are_explained_one_by_one_and_together(runner, cloud_types_model, tmp_path):
    picture = tmp_path / "types.png"
    result = runner.invoke(main, ["explain", str(cloud_types_model), "-o", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("class ")] == [
        f"class {number}" for number in range(4)
    ]
    assert "all classes" in lines
    table = pd.read_csv(picture.with_suffix(".csv"), comment="#")
    assert table.groupby("class").size().tolist() == [8461] * 4


def test_pictures_of_an_image_are_bad_usage_and_pages_are_named(
    runner, clouds_model, image_files, tmp_path
):
    command = [
        "map",
        str(clouds_model),
        str(image_files / "image.tif"),
        "-o",
        str(tmp_path / "map.nc"),
        "--picture",
        "2010-01-01",
    ]
    result = runner.invoke(main, command)
    assert result.exit_code == 2
    assert "DATA are an image, of which --pages shows the map" in result.stderr


def test_a_picture_with_another_ending_is_bad_usage(runner, sounder_model):
    result = runner.invoke(main, ["explain", str(sounder_model), "-o", "waves.txt"])
    assert result.exit_code == 2
    assert ".png or .pdf file, not waves.txt" in result.stderr


# Mistakes


@pytest.mark.parametrize("option", ["--picture", "--video"])
@pytest.mark.parametrize("time", ["noon", "2010-99-99", "2031-01-01T12:00/", "/2010-99-99"])
def test_times_are_checked_before_anything_is_mapped(
    runner, year, clouds_model, tmp_path, option, time
):
    command = ["map", str(clouds_model), str(year), "-o", str(tmp_path / "maps.zarr")]
    result = runner.invoke(main, [*command, option, time])
    assert result.exit_code == 1
    assert "not a time" in result.stderr or "No acquisition" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("map", ["-o", "x.nc"]),
        ("score", []),
        ("suggest", ["-o", "x.gpkg"]),
        ("update", None),
        ("adapt", None),
    ],
)
def test_swapped_arguments_are_recognised(
    runner, year, clouds_model, tmp_path, monkeypatch, command, options
):
    monkeypatch.chdir(tmp_path)
    if options is None:
        (tmp_path / "labels.csv").write_text("row,column,class\n")
        options = ["-o", "x.undulatus", "--label", "labels.csv"]
    before = sorted(tmp_path.iterdir())
    result = runner.invoke(main, [command, str(year), str(clouds_model), *options])
    assert result.exit_code == 2
    assert "is a model, and" in result.stderr
    assert f"{command} {clouds_model} {year} ..." in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_in_the_place_of_maps_is_recognised(runner, clouds_model, tmp_path):
    result = runner.invoke(main, ["browse", str(clouds_model), "-o", str(tmp_path / "site")])
    assert result.exit_code == 2
    assert "is a model, but undulatus browse takes MAPS" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["info", "explain", "score"])
def test_a_folder_is_no_model(runner, year, tmp_path, command):
    others = [str(year)] if command == "score" else []
    result = runner.invoke(main, [command, str(tmp_path), *others])
    assert result.exit_code == 2
    assert f"{tmp_path} is a folder" in result.stderr


def test_info_prints_no_commands_to_the_terminal(runner, tmp_path, moons):
    X, y = moons
    odd = "\x1b]0;owned\x07cloud\u202e"
    table = pd.DataFrame(X, columns=["IR_108", "VIS\x1b[2J"])
    model = RFFGPC(4, n_estimators=1, max_iter=2).fit(table, np.array(["clear", odd])[y])
    model.provenance_ = {"data": f"\x1b[31m{odd}", "note\x9b": ["a\rb"]}
    path = tmp_path / "odd.undulatus"
    save_model(model, path)
    result = runner.invoke(main, ["info", str(path)])
    assert result.exit_code == 0, result.output
    assert all(c.isprintable() or c == "\n" for c in result.output)
    assert r"\x1b]0;owned\x07cloud\u202e" in result.stdout


def odd_path(kind, folder, suffix):
    """A path that no command can read or write."""
    path = folder / f"odd{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to(folder / "nowhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "long name":
        path = folder / ("x" * 5000 + suffix)
    elif kind == "device":
        path = Path("/dev/full")
    return path


@pytest.mark.parametrize("kind", ["pipe", "dangling link", "folder", "long name", "device"])
@pytest.mark.parametrize("place", ["MODEL", "DATA", "OUTPUT"])
@pytest.mark.parametrize("suffix", [".nc", ".tif"])
def test_an_odd_path_is_refused_in_one_line_and_nothing_is_written(
    runner, year, clouds_model, tmp_path, kind, place, suffix
):
    odd = odd_path(kind, tmp_path, suffix)
    model, data, output = (
        str(odd if place == own else usual)
        for own, usual in (
            ("MODEL", clouds_model),
            ("DATA", year),
            ("OUTPUT", tmp_path / "new.nc"),
        )
    )
    before = sorted(tmp_path.iterdir())
    result = runner.invoke(main, ["map", model, data, "-o", output])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    (*_, said) = result.stderr.strip().splitlines()
    assert any(name in said for name in ("odd", "x" * 20, "/dev/full"))
    assert len(said) < 600
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["nowhere/new.undulatus", "folder"])
def test_where_a_model_goes_is_checked_before_it_is_fitted(
    runner, year, tmp_path, monkeypatch, name
):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("undulatus.products.landmarks.fit_scene", None)
    command = ["fit", str(year), "-o", str(tmp_path / name), "--overwrite"]
    result = runner.invoke(main, command)
    assert result.exit_code == 1
    assert "folder" in result.stderr
    assert "Traceback" not in result.stderr
