"""Points to label, and labels added to a model of an image."""

import geopandas
import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist

from undulatus import GPC, RFFGPC
from undulatus.errors import InputError, SceneError
from undulatus.products import new_labels, suggest
from undulatus.products.images import fit_image
from undulatus.products.new_labels import adapt_image, update_image
from undulatus.products.provenance import Provenance
from undulatus.products.suggest import (
    information,
    suggest_labels,
    write_points,
)
from undulatus.scenes.files.images import open_image
from undulatus.scenes.labelled_pixels import in_boxes

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

BANDS = ("B02", "B04", "B08")
CLASSES = ("water", "forest", "field")
SHAPE = (60, 80)


def truth():
    """The class of each pixel: squares of ten pixels."""
    row, column = np.divmod(np.arange(SHAPE[0] * SHAPE[1]), SHAPE[1])
    return ((row // 10 + column // 10) % 3).reshape(SHAPE)


def spectra():
    rng = np.random.default_rng(0)
    means = np.array([[0.06, 0.03, 0.02], [0.03, 0.03, 0.30], [0.08, 0.13, 0.24]])
    return (means[truth()] + rng.normal(scale=0.02, size=(*SHAPE, 3))).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A GeoTIFF of 10 m pixels in four tiles, with a corner that is missing."""
    path = tmp_path_factory.mktemp("image") / "image.tif"
    values = spectra().astype(np.float32)
    values[:, :5, :5] = np.nan
    with rasterio.open(
        path, "w", driver="GTiff", count=3, height=60, width=80, dtype="float32", nodata=np.nan,
        crs="EPSG:32632", transform=rasterio.Affine(10, 0, 5e5, 0, -10, 5.2e6),
        tiled=True, blockxsize=64, blockysize=32,
    ) as file:  # fmt: skip
        file.write(values)
        file.descriptions = BANDS
    return path


def labelled(points, column="class"):
    """Return points with the true class filled in."""
    codes = truth()[points["row"], points["column"]]
    return points.assign(**{column: np.array(CLASSES, object)[codes]})


def draw_points(count, seed):
    row, column = np.divmod(np.random.default_rng(seed).choice(4_800, count, False), 80)
    table = pd.DataFrame({"row": row, "column": column})
    return labelled(table[(row >= 5) | (column >= 5)])


@pytest.fixture(scope="module")
def model(path):
    return fit_image(
        path, draw_points(150, 1), field="class", method="rff", n_frequencies=15, n_estimators=2
    )


@pytest.fixture(scope="module")
def points(model, path):
    return suggest_labels(model, path, 20)


# suggest_labels


def test_points_are_pixel_centres_with_what_the_model_says_of_them(model, path, points):
    image = open_image(path)
    assert points.crs.to_epsg() == 32632
    assert list(points["rank"]) == list(range(1, 21))
    assert points["class"].isna().all()
    assert_allclose(points.geometry.x, image["x"].values[points["column"]])
    assert_allclose(points.geometry.y, image["y"].values[points["row"]])
    rows = pd.DataFrame(image.values[:, points["row"], points["column"]].T, columns=BANDS)
    found = model.predict_in_full(rows)
    assert_array_equal(points["suggested"], model.predict(rows))
    assert_allclose(points["probability"], found.probabilities.max(axis=1))
    assert_allclose(points["disagreement"], found.ensemble_std)
    assert_allclose(points["information"], information(found.mean, found.variance))
    assert (np.diff(points["information"]) <= 0.0).all()


def test_points_are_more_informative_than_pixels_at_random(model, path, points):
    image = open_image(path).values.reshape(3, -1).T
    rows = pd.DataFrame(image[np.isfinite(image).all(axis=1)], columns=BANDS)
    found = model.predict_in_full(rows)
    everywhere = information(found.mean, found.variance)
    assert points["information"].mean() > 1.2 * everywhere.mean()


def test_points_are_spread_out(points):
    places = points[["row", "column"]].to_numpy()
    # A cluster that lies near points chosen before, whole, gives its middle all the same.
    near = pdist(places) < suggest.SPACING * np.sqrt(4_800 / 20)
    assert np.count_nonzero(near) <= 1
    # In each quarter of the image, since squares of all classes are.
    quarters = (places[:, 0] >= 30) * 2 + (places[:, 1] >= 40)
    assert set(quarters) == {0, 1, 2, 3}


def test_a_seed_decides_and_blocks_do_not(model, path, points):
    image = open_image(path)
    for chunked in (image.chunk({"y": 7, "x": 80}), image.load()):
        pd.testing.assert_frame_equal(suggest_labels(model, chunked, 20), points)
    assert not suggest_labels(model, path, 20, seed=1)["row"].equals(points["row"])


def test_missing_pixels_and_groups_held_out_are_left_alone(model, points):
    held = Provenance.of(model).held_out_groups
    assert held
    for west, south, east, north in held.values():
        assert not points.geometry.intersects(
            geopandas.GeoSeries.from_xy([west, east], [south, north]).union_all().envelope
        ).any()
    assert not ((points["row"] < 5) & (points["column"] < 5)).any()


def test_no_point_is_near_a_label_that_there_is(model, path, points):
    again = suggest_labels(model, path, 20, labels=labelled(points))
    distance = np.hypot(
        np.subtract.outer(again["row"].to_numpy(), points["row"].to_numpy()),
        np.subtract.outer(again["column"].to_numpy(), points["column"].to_numpy()),
    )
    assert distance.min() >= suggest.SPACING * np.sqrt(4_800 / 20)


def test_an_image_of_few_different_pixels_has_as_few_points(model):
    values = np.zeros((3, 8, 8), np.float32)
    values[:, :4] = 0.1
    image = xr.DataArray(values, dims=("band", "y", "x"), coords={"band": list(BANDS)})
    found = suggest_labels(model, image, 10)
    assert len(found) == 2
    # Without a georeference, a table says where.
    assert not hasattr(found, "geometry")
    assert found["row"].min() < 4 <= found["row"].max()


def test_an_exact_classifier_is_asked_too(path):
    exact = fit_image(path, draw_points(60, 2), method="gpc", max_pixels=40)
    assert isinstance(exact, GPC)
    assert len(suggest_labels(exact, path, 7)) == 7


def test_classes_that_are_numbers_have_an_empty_field_of_numbers(path, tmp_path):
    table = draw_points(80, 3)
    table["code"] = [CLASSES.index(name) for name in table.pop("class")]
    numbered = fit_image(path, table, field="code", method="rff", n_frequencies=5, n_estimators=1)
    points = suggest_labels(numbered, path, 5)
    assert points.columns[0] == "code"
    write_points(points, tmp_path / "points.gpkg")
    read = geopandas.read_file(tmp_path / "points.gpkg")
    assert read["code"].isna().all()
    read["code"] = truth()[read["row"], read["column"]]
    assert update_image(numbered, path, read).provenance_["updates"]


def test_nothing_to_suggest_is_an_error(model):
    image = xr.DataArray(
        np.full((3, 4, 4), np.nan, np.float32),
        dims=("band", "y", "x"),
        coords={"band": list(BANDS)},
    )
    with pytest.raises(SceneError, match="all are missing"):
        suggest_labels(model, image)


def test_a_model_of_something_else_is_refused_with_a_remedy(moons, path):
    other = RFFGPC(3, random_state=0).fit(*moons)
    for call in (lambda: suggest_labels(other, path), lambda: update_image(other, path, "x.csv")):
        with pytest.raises(InputError, match="undulatus fit IMAGE --label"):
            call()


def test_points_without_a_place_are_for_tables(tmp_path):
    table = pd.DataFrame({"class": [None], "row": [1], "column": [2]})
    with pytest.raises(SceneError, match=r"rows and columns to a \.csv"):
        write_points(table, tmp_path / "points.gpkg")
    with pytest.raises(InputError, match=r"\.gpkg, \.geojson, \.csv"):
        write_points(table, tmp_path / "points.shp")


def test_a_table_of_points_has_no_formulas_and_its_field_is_known_again(path, tmp_path):
    table = draw_points(80, 3)
    table["=kind"] = "=" + table.pop("class")
    model = fit_image(path, table, field="=kind", method="rff", n_frequencies=5, n_estimators=1)
    points = suggest_labels(model, path, 5)
    points["=kind"] = [
        "=" + CLASSES[truth()[r, c]] for r, c in zip(points["row"], points["column"], strict=True)
    ]
    write_points(points, tmp_path / "points.csv")
    cells = ",".join((tmp_path / "points.csv").read_text().splitlines()).split(",")
    assert "'=kind" in cells
    assert not [cell for cell in cells if cell.startswith("=")]
    updated = update_image(model, path, tmp_path / "points.csv")
    counted = updated.provenance_["updates"][0]["pixels"]
    assert sum(counted.values()) == 5
    assert all(name.startswith("=") for name in counted)


# update_image


@pytest.mark.parametrize("suffix", suggest.SUFFIXES)
def test_points_filled_in_and_given_back_are_an_update_by_hand(
    model, path, points, tmp_path, suffix
):
    write_points(points, tmp_path / f"points{suffix}")
    if suffix == ".csv":
        read = labelled(pd.read_csv(tmp_path / "points.csv"))
        read.to_csv(tmp_path / "points.csv", index=False)
    else:
        read = labelled(geopandas.read_file(tmp_path / f"points{suffix}"))
        read.to_file(tmp_path / f"points{suffix}")
    updated = update_image(model, path, tmp_path / f"points{suffix}")
    order = np.lexsort((read["column"], read["row"]))
    row, column = read["row"].to_numpy()[order], read["column"].to_numpy()[order]
    rows = pd.DataFrame(open_image(path).values[:, row, column].T, columns=BANDS)
    by_hand = RFFGPC()
    vars(by_hand).update(vars(model))
    by_hand = by_hand.update(rows, read["class"].to_numpy()[order])
    some = pd.DataFrame(spectra().reshape(3, -1).T[::50].astype(np.float32), columns=BANDS)
    assert_allclose(updated.predict_proba(some), by_hand.predict_proba(some), rtol=1e-12)
    assert not hasattr(model, "updates_")
    assert "updates" not in model.provenance_


def test_provenance_lists_each_update_and_its_groups(model, path, points):
    once = update_image(model, path, labelled(points))
    one = labelled(points.iloc[:1])
    twice = update_image(once, path, one)
    facts, before = Provenance.of(twice), Provenance.of(model)
    assert [sum(own["pixels"].values()) for own in facts.updates] == [20, 1]
    assert facts.updates[1] == {"images": [path.name], "pixels": {one["class"].iloc[0]: 1}}
    assert facts.training_groups.keys() >= before.training_groups.keys()
    assert facts.held_out_groups == before.held_out_groups
    assert not facts.training_groups.keys() & facts.held_out_groups.keys()


def test_features_without_a_class_and_those_held_out_are_left_out_and_said(model, path, points):
    said = []
    west, south, east, north = next(iter(Provenance.of(model).held_out_groups.values()))
    inside = geopandas.GeoDataFrame(
        {"class": ["water"]},
        geometry=geopandas.points_from_xy([(west + east) / 2 + 1], [(south + north) / 2 + 1]),
        crs=points.crs,
    )
    mixed = pd.concat([labelled(points.iloc[:3]), points.iloc[3:5], inside])
    updated = update_image(model, path, mixed, progress=said.append)
    assert sum(updated.provenance_["updates"][0]["pixels"].values()) == 3
    assert "2 features without a class are left out" in said
    assert "1 labelled pixels in groups held out for scores are left out" in said
    with pytest.raises(SceneError, match="held out for scores"):
        update_image(model, path, inside)


def test_a_class_that_the_model_lacks_needs_a_new_fit(model, path, points):
    with pytest.raises(InputError, match="'snow', but the model knows 'field', 'forest', 'water'"):
        update_image(model, path, points.assign(**{"class": "snow"}))


def test_more_pixels_than_an_update_takes_are_drawn(model, path, monkeypatch):
    monkeypatch.setattr(new_labels, "MOST_ROWS", 60)
    said = []
    labels = open_image(path).isel(band=0, drop=True).copy(data=truth())
    labels.attrs = {"flag_values": [0, 1, 2], "flag_meanings": " ".join(CLASSES)}
    numbered = draw_points(80, 3)
    numbered["class"] = [CLASSES.index(name) for name in numbered["class"]]
    by_number = fit_image(path, numbered, method="rff", n_frequencies=5, n_estimators=1)
    updated = update_image(by_number, path, labels, progress=said.append)
    assert sum(updated.provenance_["updates"][0]["pixels"].values()) <= 60
    assert any("labelled pixels are drawn: fit again" in line for line in said)


def test_points_of_a_scene_adapt_the_model_by_hand(model, path, points):
    read = labelled(points)
    adapted = adapt_image(model, path, read)
    order = np.lexsort((read["column"], read["row"]))
    row, column = read["row"].to_numpy()[order], read["column"].to_numpy()[order]
    rows = pd.DataFrame(open_image(path).values[:, row, column].T, columns=BANDS)
    by_hand = model.adapt(rows, read["class"].to_numpy()[order])
    some = pd.DataFrame(spectra().reshape(3, -1).T[::50].astype(np.float32), columns=BANDS)
    assert_allclose(adapted.predict_proba(some), by_hand.predict_proba(some), rtol=1e-9)
    assert not hasattr(model, "adaptation_")
    assert "adaptations" not in model.provenance_
    twice = adapt_image(adapted, path, labelled(points.iloc[:3]))
    listed = Provenance.of(twice).adaptations
    assert [sum(own["pixels"].values()) for own in listed] == [20, 3]
    # Scores of an adapted model leave out what it was adapted by.
    learned = Provenance.of(adapted).training_groups
    assert learned == Provenance.of(twice).training_groups
    x, y = read.geometry.x, read.geometry.y
    assert in_boxes(learned.values(), x.to_numpy(), y.to_numpy()).all()
    assert learned.items() >= Provenance.of(model).training_groups.items()


def test_of_each_polygon_ten_pixels_at_most_adapt_a_model(model, path, points):
    said = []
    square = points.geometry.iloc[0].buffer(8 * 10.0, cap_style="square")
    polygons = geopandas.GeoDataFrame({"class": ["water"]}, geometry=[square], crs=points.crs)
    with pytest.warns(UserWarning, match="a scene of another kind"):
        adapted = adapt_image(model, path, polygons, progress=said.append)
    assert len(adapted.adaptation_.rows) == 10
    assert any("10 at most of each polygon" in line for line in said)
