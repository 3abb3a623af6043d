"""``undulatus fit`` on your own images and labels."""

import numpy as np
import pytest
import rasterio
import xarray as xr

from undulatus import load_model
from undulatus.cli import main
from undulatus.products.legend import Legend
from undulatus.products.provenance import Provenance

pytest.importorskip("geopandas")

QUICK = ["--method", "rff", "-D", "20", "--n-estimators", "2"]


@pytest.fixture
def fit(runner, image_files, tmp_path):
    """A function that fits a model to an image with options, and returns the result and path."""

    def run(*options, image=None, label=None):
        path = tmp_path / "fields.undulatus"
        command = ["fit", str(image or image_files / "image.tif"), "-o", str(path), *QUICK]
        command += ["--label", str(label or image_files / "fields.gpkg"), *options]
        return runner.invoke(main, command), path

    return run


def test_an_image_and_polygons_become_a_model_and_a_map(runner, fit, image_files, tmp_path):
    fitted, model = fit("--field", "class", "--indices", "ndvi", "--windows", "3")
    assert fitted.exit_code == 0, fitted.output
    assert "12 polygons held out for undulatus score" in fitted.stdout
    assert "training pixels: field" in fitted.stderr
    path = tmp_path / "map.tif"
    command = ["map", str(model), str(image_files / "image.tif"), "-o", str(path)]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    with rasterio.open(path) as file, rasterio.open(image_files / "truth.tif") as truth:
        assert file.tags(1)["flag_meanings"] == "field forest water"
        # Sorted by name, classes are the other way round than in the truth. A window across the
        # edge of a square, of which a third of the pixels have one, is like no training pixel.
        assert np.mean(file.read(1) == 2 - truth.read(1)) > 0.85


def test_a_map_comes_with_its_pages(runner, fit, image_files, year, clouds_model, tmp_path):
    _, model = fit("--field", "class")
    command = ["map", str(model), str(image_files / "image.tif"), "-o", str(tmp_path / "map.tif")]
    result = runner.invoke(main, [*command, "--pages", str(tmp_path / "pages")])
    assert result.exit_code == 0, result.output
    page = tmp_path / "pages" / "index.html"
    assert f"open in a browser: {page.resolve()}" in result.stdout
    assert "water" in page.read_text()
    assert "left out" not in result.stderr  # Image and model are found by their names in the map.
    again = runner.invoke(
        main, [*command[:-1], str(tmp_path / "b.tif"), "--pages", str(page.parent)]
    )
    assert again.exit_code == 1
    assert not (tmp_path / "b.tif").exists()
    command = ["map", str(clouds_model), str(year), "-o", str(tmp_path / "m.zarr"), "--pages", "p"]
    assert runner.invoke(main, command).exit_code == 2


def test_labels_is_an_alias_and_options_reach_the_fit(runner, image_files, tmp_path):
    path = tmp_path / "m.undulatus"
    command = ["fit", str(image_files / "image.tif"), "-o", str(path), *QUICK]
    command += ["--labels", str(image_files / "fields.gpkg"), "--field", "class"]
    command += ["--group", "site", "--bands", "B04,B08", "--max-pixels", "600", "--balance"]
    result = runner.invoke(main, [*command, "--seed", "3", "--holdout", "0.4"])
    assert result.exit_code == 0, result.output
    facts = Provenance.of(load_model(path))
    assert facts.group_unit == "site"
    assert facts.image_features["bands"] == ["B04", "B08"]
    assert facts.seed == 3
    assert len(set(facts.training_pixels.values())) == 1
    assert sum(facts.training_pixels.values()) <= 600


@pytest.mark.parametrize("bands", ["-B02,-B03", "3-4", "B04..B08"])
def test_bands_are_taken_and_left_out(fit, bands):
    result, path = fit("--field", "class", "--bands", bands)
    assert result.exit_code == 0, result.output
    assert load_model(path).feature_names_in_.tolist() == ["B04", "B08"]


def test_a_split_of_ones_own_and_what_it_holds_out(runner, small_image, image_files, tmp_path):
    polygons = small_image.polygons()
    polygons["set"] = np.where(np.arange(len(polygons)) % 3, "train", "test")
    polygons.to_file(tmp_path / "split.gpkg")
    command = ["fit", str(image_files / "image.tif"), "--label", str(tmp_path / "split.gpkg")]
    command += ["--field", "class", "-o", str(tmp_path / "m.undulatus"), *QUICK, "--split", "set"]
    held = tmp_path / "held.gpkg"
    both = runner.invoke(main, [*command, "--holdout", "0.3"])
    assert both.exit_code == 2
    assert "--split says what is held out, and so does --holdout" in both.stderr
    result = runner.invoke(main, [*command, "--write-held-out", str(held)])
    assert result.exit_code == 0, result.output
    assert "(16 polygons held out for undulatus score)" in result.stdout
    assert f"held out: {held.resolve()}" in result.stdout
    assert "write-held-out" not in Provenance.of(load_model(tmp_path / "m.undulatus")).command
    again = runner.invoke(main, [*command, "--overwrite", "--write-held-out", str(held)])
    assert again.exit_code == 0, again.output
    assert runner.invoke(main, [*command, "--write-held-out", str(held)]).exit_code == 1


def test_nothing_is_held_out_if_one_says_so(fit):
    result, path = fit("--field", "class", "--holdout", "0")
    assert result.exit_code == 0, result.output
    assert "held out for undulatus score: nothing" in result.stderr
    assert Provenance.of(load_model(path)).held_out_groups == {}


def test_a_variable_of_a_dataset_is_still_a_label(clouds_model):
    assert Provenance.of(load_model(clouds_model)).label == "cloud_mask_l2"


def test_a_variable_of_an_image_is_a_label_too(runner, small_image, tmp_path):
    bands = dict(zip(small_image.BANDS, small_image.values, strict=True)) | {
        "cover": small_image.truth
    }
    image = xr.Dataset({name: (("y", "x"), values) for name, values in bands.items()})
    image["cover"].attrs = {"flag_values": [0, 1, 2], "flag_meanings": "water forest field"}
    image.to_netcdf(tmp_path / "image.nc")
    path = tmp_path / "cover.undulatus"
    command = ["fit", str(tmp_path / "image.nc"), "--label", "cover", "-o", str(path), *QUICK]
    result = runner.invoke(main, [*command, "--max-pixels", "900"])
    assert result.exit_code == 0, result.output
    model = load_model(path)
    assert list(model.feature_names_in_) == list(small_image.BANDS)
    assert Legend.of(model).names == ("water", "forest", "field")
    assert Provenance.of(model).label == "cover"


def test_an_output_that_exists_stays_unless_told_otherwise(fit):
    assert fit("--field", "class")[0].exit_code == 0
    again, path = fit("--field", "class")
    before = path.read_bytes()
    assert again.exit_code == 1
    assert "exists" in again.stderr
    assert path.read_bytes() == before
    assert fit("--field", "class", "--overwrite", "--seed", "1")[0].exit_code == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--field", "crop"], "has no field 'crop'"),
        (["--field", "class", "--bands", "B99"], "missing: B99"),
        (["--field", "class", "--indices", "evy"], "no spectral index 'evy'"),
        (["--field", "class", "--windows", "2"], "3, 5, 7"),
    ],
)
def test_what_cannot_be_used_is_said_and_nothing_written(fit, options, said):
    result, path = fit(*options)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(path.parent.glob("*undulatus*"))


def test_options_are_refused_where_they_have_no_meaning(runner, fit, year, image_files, tmp_path):
    for options in (
        ["--components", "3"],
        ["--memory-limit", "1GB"],
        ["--windows", "a"],
        ["--role", "N"],
    ):
        assert fit("--field", "class", *options)[0].exit_code == 2
    path = str(tmp_path / "m.undulatus")
    unlabelled = runner.invoke(main, ["fit", str(image_files / "image.tif"), "-o", path])
    assert unlabelled.exit_code == 2
    assert "an image needs labels: --label FILE" in unlabelled.stderr
    scene = runner.invoke(main, ["fit", str(year), "-o", path, "--max-pixels", "100"])
    assert scene.exit_code == 2
    assert "--max-pixels: for images with labels" in scene.stderr


def test_a_damaged_image_is_left_out_of_a_fit_and_its_scores_if_that_is_asked_for(
    runner, image_files, tmp_path
):
    sound, bad = image_files / "image.tif", tmp_path / "bad.tif"
    content = bytearray(sound.read_bytes())
    content = content[: len(content) // 2]
    bad.write_bytes(content)
    model = tmp_path / "m.undulatus"
    labels = ["--label", str(image_files / "fields.gpkg")]
    for words in (
        ["fit", str(sound), str(bad), *labels, "-o", str(model), *QUICK],
        ["score", str(model), str(sound), str(bad), *labels],
    ):
        refused = runner.invoke(main, words)
        assert refused.exit_code == 1
        result = runner.invoke(main, [*words, "--skip-damaged"])
        assert result.exit_code == 3, result.output
        assert f"1 damaged file was left out:\n  {bad}: " in result.stderr
