"""``undulatus score``: what it scores comes first, of images, scenes and spectra."""

import csv
import json

import geopandas
import pytest
import rasterio
import xarray as xr
from click.testing import CliRunner

from undulatus import load_model, save_model
from undulatus.cli import main
from undulatus.products.provenance import Provenance
from undulatus.scenes import write_dataset

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def fields(image_files, tmp_path_factory):
    """A model of the fields, made with the command."""
    path = tmp_path_factory.mktemp("models") / "fields.undulatus"
    command = ["fit", str(image_files / "image.tif"), "--label", str(image_files / "fields.gpkg")]
    command += ["--field", "class", "--method", "rff", "-D", "20", "--n-estimators", "1"]
    result = CliRunner().invoke(main, [*command, "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture
def score(runner, fields, image_files):
    def run(*options, image="image.tif"):
        return runner.invoke(main, ["score", str(fields), str(image_files / image), *options])

    return run


def first_line(result):
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


# Images


def test_held_out_polygons_are_scored_and_that_is_the_first_line(score):
    result = score()
    assert first_line(result) == (
        "Scored on 972 pixels of 12 polygons held out of the fit (left out: 36 polygons that it "
        "was trained on)."
    )
    for word in ("kappa", "user's accuracy", "true \\ predicted", "For the whole map:",
                 "No sampling design was given", "mapped, ha"):  # fmt: skip
        assert word in result.stdout


def test_labels_may_be_given_with_their_field(score, small_image, tmp_path):
    # Strips between the polygons of the fit.
    squares = range(0, 120, 15)
    new = geopandas.GeoDataFrame(
        {"cover": [small_image.CLASSES[small_image.truth[0, c]] for c in squares], "day": 1},
        geometry=[small_image.box(0, column, 3, 15) for column in squares],
        crs=small_image.CRS,
    )
    new.to_file(tmp_path / "new.gpkg")
    told = score("--label", str(tmp_path / "new.gpkg"), "--field", "cover", "--no-areas")
    assert first_line(told) == (
        "Scored on labels that the model has not seen: 360 pixels of 8 polygons."
    )
    asked = score("--label", str(tmp_path / "new.gpkg"))
    assert asked.exit_code == 1
    assert "Name it (--field NAME" in asked.stderr


def test_training_polygons_are_scored_with_a_warning(runner, score, fields, small_image, tmp_path):
    boxes = list(Provenance.of(load_model(fields)).training_groups.values())
    small_image.polygons().cx[
        boxes[0][0] + 1 : boxes[0][2] - 1, boxes[0][1] + 1 : boxes[0][3] - 1
    ].to_file(tmp_path / "seen.gpkg")
    result = score("--label", str(tmp_path / "seen.gpkg"), "--field", "class", "--no-areas")
    assert "that the model was TRAINED on: 81 pixels of 1 polygon" in first_line(result)
    assert "say nothing about other places" in first_line(result)


def test_reports_are_written_and_not_replaced_unless_told(score, tmp_path):
    reports = [tmp_path / f"scores.{ending}" for ending in ("json", "csv", "html")]
    options = [part for path in reports for part in ("-o", str(path))]
    result = score(*options)
    assert result.exit_code == 0, result.output
    for path in reports:
        assert f"report: {path.resolve()}" in result.stdout
    assert json.loads(reports[0].read_text())["basis"] == "held out"
    assert "Scores of fields.undulatus" in reports[2].read_text()
    before = reports[1].read_bytes()
    again = score(*options)
    assert again.exit_code == 1
    assert "exists" in again.stderr
    assert score(*options, "--design", "clusters", "--overwrite").exit_code == 0
    assert reports[1].read_bytes() != before
    other = score("-o", str(tmp_path / "scores.pdf"))
    assert other.exit_code == 1
    assert ".json, .csv, .html" in other.stderr


def test_json_alone_is_on_standard_output_and_the_basis_beside_it(score):
    result = score("--json", "--no-areas")
    parsed = json.loads(result.stdout)
    assert parsed["basis"] == "held out"
    assert parsed["areas"] is None
    assert parsed["statement"] in result.stderr


def test_areas_come_from_a_map_of_the_command(runner, score, fields, image_files, tmp_path):
    command = ["map", str(fields), str(image_files / "image.tif"), "-o", str(tmp_path / "map.tif")]
    assert runner.invoke(main, command).exit_code == 0
    made = json.loads(score("--json").stdout)["areas"]
    read = json.loads(score("--json", "--map", str(tmp_path / "map.tif")).stdout)["areas"]
    assert made == read
    with rasterio.open(tmp_path / "map.tif") as file:
        water = 0.01 * int((file.read(1) == 2).sum())
    assert read["by_class"][2]["mapped_area"] == pytest.approx(water)
    layers = score("--map", str(tmp_path / "map_layers.tif"))
    assert layers.exit_code == 1
    assert "without _layers" in layers.stderr


def test_classes_that_the_model_lacks_are_named(score, small_image, tmp_path):
    polygons = small_image.polygons()
    polygons.loc[:5, "class"] = "snow"
    polygons.to_file(tmp_path / "snow.gpkg")
    options = ["--label", str(tmp_path / "snow.gpkg"), "--field", "class", "--no-areas"]
    refused = score(*options)
    assert refused.exit_code == 1
    assert "does not have: snow" in refused.stderr
    assert "--leave-out snow" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "486 pixels of snow left out" in score(*options, "--leave-out", "snow").stdout


def test_labels_that_are_gone_must_be_given(runner, fields, image_files, tmp_path):
    model = load_model(fields)
    model.provenance_ = {**model.provenance_, "label": str(tmp_path / "gone.gpkg")}
    save_model(model, tmp_path / "m.undulatus")
    result = runner.invoke(
        main, ["score", str(tmp_path / "m.undulatus"), str(image_files / "image.tif")]
    )
    assert result.exit_code == 1
    assert "are not found" in result.stderr
    assert "--label FILE" in result.stderr


def test_a_variable_that_labels_an_image_is_found_again(runner, small_image, tmp_path):
    bands = dict(zip(small_image.BANDS, small_image.values, strict=True))
    image = xr.Dataset(
        {name: (("y", "x"), v) for name, v in (bands | {"cover": small_image.truth}).items()}
    )
    image.to_netcdf(tmp_path / "image.nc")
    model = str(tmp_path / "m.undulatus")
    fit = ["fit", str(tmp_path / "image.nc"), "--label", "cover", "-o", model]
    fit += ["--method", "rff", "-D", "20", "--n-estimators", "1", "--max-pixels", "2000"]
    assert runner.invoke(main, fit).exit_code == 0
    result = runner.invoke(main, ["score", model, str(tmp_path / "image.nc")])
    assert "squares held out of the fit" in first_line(result)
    assert "Areas are in pixels, since the image has no georeference" in result.stdout


def test_the_map_is_not_needed_twice(score, tmp_path):
    assert score("--no-areas", "--map", str(tmp_path)).exit_code == 2


# Two models, two maps


@pytest.fixture(scope="module")
def poorer(image_files, tmp_path_factory):
    """A model of one band, which two classes share."""
    path = tmp_path_factory.mktemp("others") / "poorer.undulatus"
    command = ["fit", str(image_files / "image.tif"), "--label", str(image_files / "fields.gpkg")]
    command += ["--field", "class", "--method", "rff", "-D", "20", "--n-estimators", "1"]
    result = CliRunner().invoke(main, [*command, "--bands", "B03", "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


def test_two_models_are_compared_and_the_last_lines_say_which_is_better(score, poorer, tmp_path):
    reports = [tmp_path / f"scores.{ending}" for ending in ("json", "csv", "html")]
    options = [part for path in reports for part in ("-o", str(path))]
    result = score("--against", str(poorer), "--no-areas", *options)
    assert first_line(result) == (
        "Scored on 972 pixels of 12 polygons that neither model has learned from (left out, as "
        "learned from: 36 polygons by the first, 36 polygons by the other)."
    )
    verdicts = [line for line in result.stdout.splitlines() if "is better by" in line]
    assert [verdict.split(" by ")[0] for verdict in verdicts] == [
        "Accuracy: fields.undulatus is better",
        "NLL: fields.undulatus is better",
    ]
    assert "differences are poorer.undulatus minus fields.undulatus" in result.stdout
    assert "NLL (nats, lower is better)" in result.stdout
    read = json.loads(reports[0].read_text())
    assert read["against"]["verdicts"] == verdicts
    assert read["origin"]["against"] == "poorer.undulatus"
    assert len(read["origin"]["against_sha256"]) == 64
    *by_class, last = csv.DictReader(reports[1].read_text().splitlines())
    low, value, high = (float(last[f"nll_difference{part}"]) for part in ("_low", "", "_high"))
    assert 0 < low < value < high
    assert last["verdict"] == " ".join(verdicts)
    assert {row["against"] for row in by_class} == {"poorer.undulatus"}
    assert float(by_class[1]["producers_accuracy_difference"]) < 0
    for verdict in verdicts:
        assert verdict in reports[2].read_text()
    parsed = json.loads(score("--against", str(poorer), "--no-areas", "--json").stdout)
    assert parsed["against"] == read["against"]


def test_what_cannot_be_compared_is_bad_usage(runner, score, fields, poorer, image_files):
    image = str(image_files / "image.tif")
    for other, said in ((image, "must be a model as MODEL is"), (fields, "is MODEL itself")):
        result = score("--against", str(other))
        assert result.exit_code == 2
        assert said in result.stderr
    strata = score("--against", str(poorer), "--design", "stratified")
    assert strata.exit_code == 1
    assert "Leave out the design" in strata.stderr
    options = ["--label", str(image_files / "fields.gpkg"), "--field", "class"]
    mixed = runner.invoke(main, ["score", image, image, "--against", str(poorer), *options])
    assert mixed.exit_code == 2
    assert "must be one too" in mixed.stderr


def test_two_maps_are_compared(runner, fields, poorer, image_files, tmp_path):
    image, maps = str(image_files / "image.tif"), []
    for model, folder in ((fields, "new"), (poorer, "old")):
        (tmp_path / folder).mkdir()
        maps.append(str(tmp_path / folder / "map.tif"))
        command = ["map", str(model), image, "-o", maps[-1]]
        assert runner.invoke(main, command).exit_code == 0
    command = ["score", maps[1], image, "--against", maps[0]]
    options = ["--label", str(image_files / "fields.gpkg"), "--field", "class"]
    result = runner.invoke(main, [*command, *options])
    assert "maps do not say" in first_line(result)
    # Two files of one name are told apart by their folders.
    assert result.stdout.splitlines()[-1].startswith(f"Accuracy: {maps[0]} is better by 0.")
    parsed = json.loads(runner.invoke(main, [*command, *options, "--json"]).stdout)
    assert parsed["against"]["names"] == maps[::-1]
    for wrong, said in (
        ([], "--label FILE"),
        ([*options, "--no-areas"], "--no-areas: for scores"),
    ):
        refused = runner.invoke(main, [*command, *wrong])
        assert refused.exit_code == 2
        assert said in refused.stderr


# Scenes and spectra


def test_scores_of_a_scene_say_first_what_they_are_of(runner, year, clouds_model, tmp_path):
    held = runner.invoke(main, ["score", str(clouds_model), str(year)])
    assert first_line(held) == "Scored on 96 acquisitions of 1 day held out of the fit."
    (day,) = Provenance.of(load_model(clouds_model)).training_days
    with xr.open_zarr(year) as scene:
        write_dataset(scene.sel(time=day).drop_encoding(), tmp_path / "day.zarr")
    trained = runner.invoke(main, ["score", str(clouds_model), str(tmp_path / "day.zarr")])
    assert first_line(trained).startswith("Scored on data that the model was TRAINED on: ")
    command = ["score", str(clouds_model), str(tmp_path / "day.zarr"), "--json"]
    rows = json.loads(runner.invoke(main, command).stdout)
    assert {row["basis"] for row in rows} == {"training"}
    assert rows[0]["statement"] == first_line(trained)


def test_scores_of_spectra_say_first_what_they_are_of(runner, spectra, sounder_model):
    result = runner.invoke(main, ["score", str(sounder_model), str(spectra)])
    assert "cells of strata held out of the fit." in first_line(result)


def test_options_of_images_are_refused_elsewhere(
    runner, year, clouds_model, sounder_model, tmp_path
):
    for option in (["--field", "class"], ["--against", str(sounder_model)],
                   ["--design", "simple"], ["--no-areas"],
                   ["-o", str(tmp_path / "s.html")]):  # fmt: skip
        result = runner.invoke(main, ["score", str(clouds_model), str(year), *option])
        assert result.exit_code == 2
        assert "for images with labels" in result.stderr
