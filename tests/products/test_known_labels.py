"""Which labels a model has learned from, held out, or never seen."""

import copy
import json
import shutil

import geopandas
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.products import fit_image
from undulatus.products.image_pixels import image_names, open_images
from undulatus.products.image_scores import score_image
from undulatus.products.known_labels import (
    HELD_OUT,
    NEW,
    TRAINED,
    basis_of,
    known_pixels,
)
from undulatus.products.legend import Legend
from undulatus.products.new_labels import update_image
from undulatus.products.provenance import Provenance

QUICK = {"method": "rff", "n_frequencies": 20, "n_estimators": 1, "seed": 0}


@pytest.fixture(scope="module")
def model(image_files):
    return fit_image(
        image_files / "image.tif", image_files / "fields.gpkg", field="class", **QUICK
    )


def ask(model, images, labels, **options):
    """Return the labelled pixels that a model knows, and their basis."""
    opened = open_images(images)
    provenance = Provenance.of(model)
    pixels = known_pixels(opened, labels, Legend.of(model), provenance, **options)
    return pixels, basis_of(pixels, opened, provenance)


def test_polygons_of_the_fit_are_known_again_whatever_their_format_and_projection(
    model, image_files, small_image, tmp_path
):
    held = len(Provenance.of(model).held_out_groups)
    polygons = small_image.polygons()
    polygons.to_file(tmp_path / "fields.geojson", driver="GeoJSON")
    polygons.to_file(tmp_path / "fields.shp")
    polygons.to_crs("EPSG:4326").to_file(tmp_path / "degrees.gpkg")
    for path in (
        image_files / "fields.gpkg",
        tmp_path / "fields.geojson",
        tmp_path / "fields.shp",
        tmp_path / "degrees.gpkg",
    ):
        pixels, (basis, scored) = ask(model, image_files / "image.tif", path, field="class")
        assert basis.kind == "held out"
        assert basis.statement.startswith(
            f"Scored on {81 * held:,} pixels of {held} polygons held out of the fit"
        )
        assert set(pixels.known_as) == {HELD_OUT, TRAINED}
        assert (scored == (pixels.known_as == HELD_OUT)).all()


def test_polygons_that_a_model_has_under_other_names_are_known_by_their_bounds(
    model, image_files, small_image
):
    renamed = copy.deepcopy(model)
    for kind in ("held_out_groups", "training_groups"):
        groups = renamed.provenance_[kind]
        renamed.provenance_[kind] = {f"{kind} {i}": box for i, box in enumerate(groups.values())}
    asked = (image_files / "image.tif", small_image.polygons())
    pixels, (basis, _) = ask(renamed, *asked, field="class")
    before, (same, _) = ask(model, *asked, field="class")
    assert basis == same
    assert_array_equal(pixels.known_as, before.known_as)
    with pytest.raises(SceneError, match="learned from all of these polygons already"):
        update_image(renamed, *asked, field="class")


def test_new_polygons_that_overlap_training_polygons_are_left_out(model, image_files, small_image):
    taken = next(iter(Provenance.of(model).training_groups.values()))
    row = round((small_image.NORTH - taken[3]) / 10)
    column = round((taken[0] - small_image.WEST) / 10)
    # One shares a corner pixel with a training polygon, the other touches only its edge.
    new = geopandas.GeoDataFrame(
        {"class": ["water", "water"]},
        geometry=[small_image.box(row + 8, column + 8, 3, 3),
                  small_image.box(row + 9, column, 3, 3)],
        crs=small_image.CRS,
    )  # fmt: skip
    pixels, (basis, scored) = ask(model, image_files / "image.tif", new)
    assert basis.kind == "new"
    assert basis.statement == (
        "Scored on labels that the model has not seen: 9 pixels of 1 polygon (left out: 1 "
        "polygon overlapping training polygons)."
    )
    assert (pixels.known_as[scored] == NEW).all()


def test_training_polygons_alone_are_scored_with_a_warning(model, image_files, small_image):
    trained = small_image.polygons().iloc[[_first_trained(model, small_image)]]
    _, (basis, scored) = ask(model, image_files / "image.tif", trained, field="class")
    assert basis.kind == "training"
    assert basis.statement == (
        "Scored on data that the model was TRAINED on: 81 pixels of 1 polygon. These scores say "
        "nothing about other places."
    )
    assert scored.all()


def _first_trained(model, small_image):
    boxes = Provenance.of(model).training_groups.values()
    polygons = small_image.polygons()
    centres = [((w + e) / 2, (s + n) / 2) for w, s, e, n in boxes]
    return next(
        i for i, shape in enumerate(polygons.geometry)
        if (round(shape.centroid.x), round(shape.centroid.y)) in
        [(round(x), round(y)) for x, y in centres]
    )  # fmt: skip


def test_another_image_of_the_same_place_is_said_to_be_one(model, small_image, tmp_path):
    small_image.write(tmp_path / "june.tif")
    trained = small_image.polygons().iloc[[_first_trained(model, small_image)]]
    _, (basis, _) = ask(model, tmp_path / "june.tif", trained, field="class")
    assert basis.kind == "training"
    assert "in images of other names than those of the fit" in basis.statement


def test_squares_of_a_raster_are_known_by_name_and_place(image_files, small_image, tmp_path):
    raster = fit_image(image_files / "image.tif", image_files / "truth.tif", **QUICK)
    _, (basis, _) = ask(raster, image_files / "image.tif", image_files / "truth.tif")
    assert basis.kind == "held out"
    assert "squares held out of the fit" in basis.statement
    # The same name, but another place.
    moved = small_image.transform @ small_image.transform.translation(500, 0)
    for name, values in (("image.tif", None), ("truth.tif", small_image.truth)):
        small_image.write(tmp_path / name, values=values, transform=moved,
                          **({} if values is None else {"names": None}))  # fmt: skip
    _, (basis, scored) = ask(raster, tmp_path / "image.tif", tmp_path / "truth.tif")
    assert basis.kind == "new"
    assert scored.all()


def test_images_are_groups_where_several_were_learned_from(small_image, tmp_path):
    # Each of another place, as far as is known.
    bare = {"crs": None, "transform": None}
    paths = []
    for i in range(4):
        paths.append(small_image.write(tmp_path / f"day{i}.tif", **bare))
    small_image.write(tmp_path / "truth.tif", values=small_image.truth, names=None, **bare)
    model = fit_image(paths, tmp_path / "truth.tif", max_pixels=2000, **QUICK)
    assert Provenance.of(model).group_unit == "image"
    (held,) = Provenance.of(model).held_out_groups
    trained = next(path for path in paths if str(path) != held)
    _, (basis, _) = ask(model, paths, tmp_path / "truth.tif")
    assert basis.kind == "held out"
    assert "of 1 image held out of the fit (left out: 3 images that it was" in basis.statement
    _, (basis, _) = ask(model, trained, tmp_path / "truth.tif")
    assert basis.kind == "training"
    new = small_image.write(tmp_path / "day9.tif", **bare)
    assert ask(model, new, tmp_path / "truth.tif")[1][0].kind == "new"
    # A folder that was moved does not make a training image new.
    (tmp_path / "moved").mkdir()
    trained = trained.rename(tmp_path / "moved" / trained.name)
    assert ask(model, trained, tmp_path / "truth.tif")[1][0].kind == "training"


def test_squares_held_out_of_one_date_are_held_out_of_all(small_image, tmp_path):
    paths = [small_image.write(tmp_path / f"day{i}.tif") for i in range(2)]
    small_image.write(tmp_path / "truth.tif", values=small_image.truth, names=None)
    model = fit_image(paths, tmp_path / "truth.tif", max_pixels=2000, **QUICK)
    facts = Provenance.of(model)
    assert facts.group_unit == "square"
    assert len(facts.training_groups) + len(facts.held_out_groups) == 80
    # Under another name, the same place is known again.
    third = small_image.write(tmp_path / "third.tif")
    pixels, (basis, scored) = ask(model, third, tmp_path / "truth.tif")
    assert basis.kind == "held out"
    assert 0 < np.count_nonzero(scored) < len(pixels.row)


def test_points_in_training_polygons_are_left_out_one_by_one(model, image_files, small_image):
    rng = np.random.default_rng(0)
    row, column = rng.integers(0, 90, 300), rng.integers(0, 120, 300)
    names = np.array(small_image.CLASSES)[small_image.truth[row, column]]
    points = pd.DataFrame({"row": row, "column": column, "class": names}).drop_duplicates()
    pixels, (basis, scored) = ask(model, image_files / "image.tif", points)
    x, y = (
        small_image.WEST + 10 * (pixels.column + 0.5),
        small_image.NORTH - 10 * (pixels.row + 0.5),
    )
    learned = np.zeros(len(x), bool)
    for west, south, east, north in Provenance.of(model).training_groups.values():
        learned |= (x > west) & (x < east) & (y > south) & (y < north)
    assert_array_equal(scored, ~learned)
    assert f"left out: {np.count_nonzero(learned)} pixels in training polygons" in basis.statement


def test_groups_by_a_field_are_known_by_its_values(image_files, small_image):
    polygons = small_image.polygons()
    model = fit_image(image_files / "image.tif", polygons, field="class", group="site", **QUICK)
    _, (basis, _) = ask(model, image_files / "image.tif", polygons, field="class")
    assert basis.kind == "held out"
    assert "groups by site" in basis.statement
    # Without the field nobody can tell, even if the polygons are the same.
    bare = polygons[["class", "geometry"]]
    _, (basis, scored) = ask(model, image_files / "image.tif", bare)
    assert basis.kind == "unknown"
    assert "by the field 'site'" in basis.statement
    assert scored.all()


def test_strange_classes_are_named_and_left_out_if_told(model, image_files, small_image):
    polygons = small_image.polygons()
    polygons.loc[:3, "class"] = "snow"
    with pytest.raises(SceneError, match=r"snow.\n.*classes of the model: field, forest, water"):
        ask(model, image_files / "image.tif", polygons, field="class")
    pixels, _ = ask(model, image_files / "image.tif", polygons, field="class", leave_out=["snow"])
    assert len(pixels.codes) == 44 * 81
    assert pixels.notes == ("324 pixels of snow left out",)
    with pytest.raises(SceneError, match="No labelled pixel is left"):
        ask(model, image_files / "image.tif", polygons, field="class",
            leave_out=["snow", "field", "forest", "water"])  # fmt: skip


def test_a_class_that_the_labels_do_not_have_cannot_be_left_out(model, image_files):
    with pytest.raises(SceneError, match="snow cannot be left out: the labels have field, forest"):
        ask(
            model,
            image_files / "image.tif",
            image_files / "fields.gpkg",
            field="class",
            leave_out=["snow"],
        )


def test_polygons_outside_the_image_do_not_matter(model, image_files, small_image):
    polygons = small_image.polygons()
    outside = polygons.iloc[:2].set_geometry(polygons.geometry[:2].translate(9000.0))
    more = geopandas.GeoDataFrame(pd.concat([polygons, outside], ignore_index=True))
    _, (basis, _) = ask(model, image_files / "image.tif", more, field="class")
    _, (plain, _) = ask(model, image_files / "image.tif", polygons, field="class")
    assert basis == plain


def test_without_a_georeference_nobody_can_tell_places(model, small_image):
    bare = xr.DataArray(
        small_image.values, dims=("band", "y", "x"), coords={"band": list(small_image.BANDS)}
    )
    table = pd.DataFrame({"row": [5, 50], "column": [5, 50], "class": ["water", "field"]})
    _, (basis, _) = ask(model, bare, table)
    assert basis.kind == "unknown"
    assert "no georeference" in basis.statement


def test_names_of_the_legend_stand_for_numbers(image_files, small_image):
    raster = fit_image(image_files / "image.tif", image_files / "truth.tif", **QUICK)
    Legend((0, 1, 2), names=small_image.CLASSES).attach_to(raster)
    pixels, _ = ask(raster, image_files / "image.tif", image_files / "fields.gpkg", field="class")
    assert (pixels.codes == small_image.truth[pixels.row, pixels.column]).all()


def test_pixels_that_were_drawn_stand_for_the_others(model, image_files, monkeypatch):
    monkeypatch.setattr("undulatus.products.known_labels.MOST_PIXELS", 500)
    pixels, _ = ask(model, image_files / "image.tif", image_files / "fields.gpkg", field="class")
    counts = np.bincount(pixels.codes)
    assert counts.max() == 500
    assert pixels.weight.mean() == pytest.approx(1.0)
    whole, _ = ask(model, image_files / "image.tif", image_files / "fields.gpkg",
                   field="class", seed=1)  # fmt: skip
    shares = np.bincount(pixels.codes, weights=pixels.weight) / len(pixels.codes)
    assert shares == pytest.approx(
        np.bincount(whole.codes, weights=whole.weight) / len(whole.codes)
    )


def test_images_of_one_name_are_told_apart_wherever_they_lie(small_image, tmp_path):
    bare = {"crs": None, "transform": None}
    images = []
    for year in ("2020", "2021", "2022"):
        (tmp_path / "a" / year).mkdir(parents=True)
        images.append(small_image.write(tmp_path / "a" / year / "image.tif", **bare))
    truth = small_image.write(tmp_path / "truth.tif", values=small_image.truth, names=None, **bare)
    assert image_names(open_images(images)) == [f"{y}/image.tif" for y in (2020, 2021, 2022)]
    assert image_names(open_images(images[:1])) == ["image.tif"]
    model = fit_image(images, truth, **QUICK, max_pixels=900)
    facts = Provenance.of(model)
    assert facts.group_unit == "image"
    assert str(tmp_path) not in json.dumps(facts.as_dict())
    moved = tmp_path / "elsewhere"
    (tmp_path / "a").rename(moved)
    for year in ("2020", "2021", "2022"):
        pixels, _ = ask(model, moved / year / "image.tif", truth)
        expected = HELD_OUT if f"{year}/image.tif" in facts.held_out_groups else TRAINED
        assert set(pixels.known_as) == {expected}
    # Which of them this was cannot be told, and one of them was learned from.
    lost = small_image.write(tmp_path / "image.tif", **bare)
    pixels, _ = ask(model, lost, truth)
    assert set(pixels.known_as) == {TRAINED}


def test_the_labels_of_a_fit_are_found_beside_the_image(image_files, tmp_path, monkeypatch):
    for name in ("image.tif", "fields.gpkg"):
        shutil.copy(image_files / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    model = fit_image("image.tif", "fields.gpkg", field="class", **QUICK)
    assert Provenance.of(model).label == "fields.gpkg"
    monkeypatch.chdir("/")
    found = score_image(model, tmp_path / "image.tif", areas=False)
    assert found.basis.kind == "held out"
