"""Splits that the labels say themselves, and held-out labels in a file of their own."""

import numpy as np
import pandas as pd
import pytest
import rasterio

from undulatus import load_model, save_model
from undulatus.errors import InputError, SceneError
from undulatus.products import fit_image, score_image
from undulatus.products.provenance import Provenance

geopandas = pytest.importorskip("geopandas")

QUICK = {"method": "rff", "n_frequencies": 10, "n_estimators": 1, "field": "class"}


@pytest.fixture
def polygons(small_image):
    """Polygons of which every fourth is held out, by a field."""
    made = small_image.polygons()
    made["set"] = np.where(np.arange(len(made)) % 4 == 1, "Test ", "train")
    return made


@pytest.fixture
def points(small_image):
    """Points, three in every polygon, of which the last one is held out."""
    boxes = small_image.polygons()
    places = [
        box.representative_point().buffer(30).exterior.interpolate(i / 3, normalized=True)
        for box in boxes.geometry
        for i in range(3)
    ]
    return geopandas.GeoDataFrame(
        {
            "class": np.repeat(boxes["class"], 3).to_numpy(),
            "set": ["train", "train", "test"] * len(boxes),
        },
        geometry=places,
        crs=boxes.crs,
    )


def table_of(points, image_files):
    """Return points as a table of rows and columns."""
    with rasterio.open(image_files / "image.tif") as file:
        rows, columns = rasterio.transform.rowcol(
            file.transform, points.geometry.x, points.geometry.y
        )
    return pd.DataFrame(points.drop(columns="geometry")).assign(row=rows, column=columns)


def test_a_field_says_which_polygons_are_held_out(image_files, polygons):
    model = fit_image(image_files / "image.tif", polygons, split="set", **QUICK)
    facts = Provenance.of(model)
    assert facts.split == "set"
    assert facts.group_unit == "polygon"
    assert len(facts.held_out_groups) == 12
    held = polygons[polygons["set"] == "Test "]
    left, _, right, _ = (held.bounds[side].to_numpy() for side in held.bounds)
    boxes = np.array(sorted(facts.held_out_groups.values()))
    np.testing.assert_allclose(np.sort(boxes[:, 0]), np.sort(left))
    np.testing.assert_allclose(np.sort(boxes[:, 2]), np.sort(right))
    found = score_image(model, image_files / "image.tif", polygons, areas=False)
    assert "12 polygons held out of the fit (left out: 36 polygons" in found.basis.statement


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".fgb", ".parquet"])
def test_polygons_that_are_held_out_are_written_with_their_fields(
    image_files, polygons, tmp_path, suffix
):
    path = tmp_path / f"held{suffix}"
    model = fit_image(image_files / "image.tif", polygons, held_out_file=path, **QUICK)
    read = geopandas.read_parquet if suffix == ".parquet" else geopandas.read_file
    held = read(path)
    assert len(held) == len(Provenance.of(model).held_out_groups) > 0
    assert {"class", "site", "set"} <= set(held.columns)
    found = score_image(model, image_files / "image.tif", path, areas=False, field="class")
    assert f"{len(held)} polygons held out of the fit." in found.basis.statement


def test_of_several_images_a_polygon_is_written_once(small_image, image_files, polygons, tmp_path):
    later = small_image.write(tmp_path / "later.tif", values=small_image.values + 0.002)
    part = small_image.write(tmp_path / "part.tif", values=small_image.values[:, :45], height=45)
    path = tmp_path / "held.gpkg"
    fit_image(
        [image_files / "image.tif", later, part],
        polygons,
        split="set",
        held_out_file=path,
        **QUICK,
    )
    assert len(geopandas.read_file(path)) == 12


@pytest.mark.parametrize("kind", ["points", "table"])
def test_points_and_rows_may_be_held_out_one_by_one(image_files, points, tmp_path, kind):
    labels = points if kind == "points" else table_of(points, image_files)
    labels = labels.assign(note="=1+1")
    path = tmp_path / ("held.gpkg" if kind == "points" else "held.csv")
    model = fit_image(image_files / "image.tif", labels, split="set", held_out_file=path, **QUICK)
    save_model(model, tmp_path / "m.undulatus")
    model = load_model(tmp_path / "m.undulatus")
    assert sum(Provenance.of(model).training_pixels.values()) == 2 * 48
    held = pd.read_csv(path) if kind == "table" else geopandas.read_file(path)
    assert held["set"].tolist() == ["test"] * 48
    # No program takes a cell of a CSV file for a formula.
    assert set(held["note"]) == {"'=1+1" if kind == "table" else "=1+1"}
    for source in (labels, path):
        found = score_image(model, image_files / "image.tif", source, field="class", areas=False)
        assert "Scored on 48 pixels of" in found.basis.statement
        assert "held out of the fit" in found.basis.statement


def test_points_without_a_split_are_written_with_the_squares_they_lie_in(
    image_files, points, tmp_path
):
    path = tmp_path / "held.gpkg"
    model = fit_image(image_files / "image.tif", points, held_out_file=path, **QUICK)
    held = geopandas.read_file(path)
    boxes = Provenance.of(model).held_out_groups.values()
    inside = [any(w < p.x < e and s < p.y < n for w, s, e, n in boxes) for p in points.geometry]
    assert len(held) == sum(inside) > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"set": "maybe"}, r"holds 'maybe', but a split says .* \(train, .* \(test, "),
        ({"set": "train"}, "say of all pixels of the image that they are to be learned from"),
        ({"set": "test"}, "say of all pixels of the image that they are held out"),
        ({"set": None}, "holds 'none'|holds 'nan'"),
    ],
)
def test_a_field_that_does_not_split_is_refused(image_files, polygons, change, said):
    with pytest.raises(SceneError, match=f"(?s){said}"):
        fit_image(image_files / "image.tif", polygons.assign(**change), split="set", **QUICK)


def test_a_split_that_parts_what_belongs_together_is_refused(image_files, polygons):
    with pytest.raises(SceneError, match=r"site=site 0, .* both that it is to be learned"):
        fit_image(image_files / "image.tif", polygons, split="set", group="site", **QUICK)
    twice = pd.concat([polygons, polygons[:1].assign(set="test")])
    with pytest.raises(SceneError, match=r"polygon .* both that it is to be learned"):
        fit_image(image_files / "image.tif", twice, split="set", **QUICK)


def test_a_class_that_is_held_out_whole_is_named(image_files, polygons):
    polygons.loc[polygons["class"] == "water", "set"] = "test"
    with pytest.raises(SceneError, match=r"water 0\. Label more of them to train on"):
        fit_image(image_files / "image.tif", polygons, split="set", **QUICK)


def test_where_held_out_labels_cannot_be_written_is_said_before_the_fit(
    image_files, polygons, points, tmp_path
):
    image = image_files / "image.tif"
    with pytest.raises(InputError, match=r"written to \.gpkg, .* but not to .*held\.shp"):
        fit_image(image, polygons, held_out_file=tmp_path / "held.shp", **QUICK)
    with pytest.raises(InputError, match=r"written to \.csv, \.parquet, but not"):
        fit_image(image, table_of(points, image_files), held_out_file="held.gpkg", **QUICK)
    truth = image_files / "truth.tif"
    options = QUICK | {"field": None}
    with pytest.raises(SceneError, match="held out in squares of the image"):
        fit_image(image, truth, held_out_file=tmp_path / "held.gpkg", **options)
    with pytest.raises(SceneError, match="is a raster, and has no field 'set'"):
        fit_image(image, truth, split="set", **options)
    assert not list(tmp_path.iterdir())
