"""``undulatus suggest``, ``adapt`` and ``update``."""

import geopandas
import numpy as np
import pytest
import rasterio

from undulatus import load_model
from undulatus.cli import main

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.fixture
def files(runner, tmp_path):
    """An image, its labels in points.csv, and a model of them."""
    rng = np.random.default_rng(0)
    bright = np.arange(40) // 10 % 2
    values = 0.1 + 0.3 * bright + rng.normal(scale=0.05, size=(2, 40, 40))
    with rasterio.open(
        tmp_path / "image.tif", "w", driver="GTiff", count=2, height=40, width=40,
        dtype="float32", crs="EPSG:32632",
        transform=rasterio.Affine(10, 0, 5e5, 0, -10, 5.2e6),
    ) as file:  # fmt: skip
        file.write(values.astype(np.float32))
        file.descriptions = ("B02", "B03")
    row, column = np.divmod(rng.choice(1_600, 80, replace=False), 40)
    names = np.array(["dark", "bright"])[bright[column]]
    lines = [f"{r},{c},{name}" for r, c, name in zip(row, column, names, strict=True)]
    (tmp_path / "points.csv").write_text("\n".join(["row,column,class", *lines]))
    command = ["fit", str(tmp_path / "image.tif"), "--label", str(tmp_path / "points.csv")]
    command += ["--method", "rff", "-D", "10", "--n-estimators", "2"]
    result = runner.invoke(main, [*command, "-o", str(tmp_path / "m.undulatus")])
    assert result.exit_code == 0, result.output
    return tmp_path


def test_points_are_suggested_filled_in_and_added(runner, files):
    model, image, output = files / "m.undulatus", files / "image.tif", files / "new.gpkg"
    command = ["suggest", str(model), str(image), "-n", "6", "-o", str(output)]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert f"6 points: {output.resolve()} (field class to fill in)" in result.stdout
    again = runner.invoke(main, command)
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr
    points = geopandas.read_file(output)
    points["class"] = np.where(points["column"] // 10 % 2, "bright", "dark")
    points.loc[0, "class"] = None
    points.to_file(output)
    before = model.read_bytes()
    command = ["update", str(model), str(image), "--label", str(output)]
    result = runner.invoke(main, [*command, "-o", str(files / "m2.undulatus")])
    assert result.exit_code == 0, result.output
    assert f"model: {(files / 'm2.undulatus').resolve()} (update 1)" in result.stdout
    assert "1 features without a class are left out" in result.stderr
    assert len(load_model(files / "m2.undulatus").updates_[0].rows) == 5
    assert model.read_bytes() == before
    shown = runner.invoke(main, ["info", str(files / "m2.undulatus")]).stdout
    assert f"updates: label {output.name}, images" in shown


def test_the_model_itself_is_replaced_only_if_asked_for(runner, files):
    model = str(files / "m.undulatus")
    command = ["update", model, str(files / "image.tif"), "-o", model]
    command += ["--label", str(files / "points.csv")]
    refused = runner.invoke(main, command)
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert runner.invoke(main, [*command, "--overwrite"]).exit_code == 0
    assert len(load_model(model).updates_) == 1


def test_a_format_that_points_are_not_written_in_is_bad_usage(runner, files):
    command = ["suggest", str(files / "m.undulatus"), str(files / "image.tif")]
    result = runner.invoke(main, [*command, "-o", str(files / "points.shp")])
    assert result.exit_code == 2
    assert ".gpkg, .geojson, .csv" in result.stderr


def test_a_model_of_scenes_is_refused(runner, clouds_model, files):
    command = ["suggest", str(clouds_model), str(files / "image.tif")]
    result = runner.invoke(main, [*command, "-o", str(files / "points.gpkg")])
    assert result.exit_code == 1
    assert "undulatus fit IMAGE --label" in result.stderr


def test_labels_make_the_model_of_a_scene(runner, files):
    model, image = str(files / "m.undulatus"), str(files / "image.tif")
    here, few = files / "here.undulatus", files / "few.csv"
    few.write_text("row,column,class\n3,5,dark\n4,15,bright\n20,25,dark\n")
    result = runner.invoke(main, ["adapt", model, image, "--label", str(few), "-o", str(here)])
    assert result.exit_code == 0, result.output
    assert f"model of this scene: {here.resolve()}" in result.stdout
    assert len(load_model(here).adaptation_.rows) == 3
    shown = runner.invoke(main, ["info", str(here)]).stdout
    assert "adapted to a scene by 3 labelled rows: bright 1, dark 2" in shown
    assert f"adaptations: label {few.name}, images" in shown
    result = runner.invoke(main, ["map", str(here), image, "-o", str(files / "here.tif")])
    assert result.exit_code == 0, result.output
