"""Labels of an image: the right pixels, classes and groups; what cannot be used is said."""

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_array_equal
from shapely.geometry import Polygon, box

from undulatus.errors import SceneError
from undulatus.scenes import open_image
from undulatus.scenes.files.labels import is_label_file, read_labels
from undulatus.scenes.pixel_grid import reproject

geopandas = pytest.importorskip("geopandas")


@pytest.fixture(scope="module")
def image(image_files):
    return open_image(image_files / "image.tif")


def true_classes(small_image, found):
    return [small_image.CLASSES[code] for code in small_image.truth[found.row, found.column]]


def found_classes(found):
    return [found.classes[code] for code in found.codes]


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".shp", ".parquet"])
@pytest.mark.parametrize("crs", ["EPSG:32632", "EPSG:4326"])
def test_polygons_of_any_format_and_projection_give_their_pixels(
    small_image, image, tmp_path, suffix, crs
):
    polygons = small_image.polygons().to_crs(crs)
    path = tmp_path / f"fields{suffix}"
    if suffix == ".parquet":
        polygons.to_parquet(path)
    else:
        polygons.to_file(path)
    found = read_labels(path, image, field="class")
    assert found.unit == "polygon"
    assert len(found.group_names) == len(polygons)
    # GeoJSON rounds to 7 digits of a degree, which may move an edge past a centre.
    assert len(found.row) == pytest.approx(81 * len(polygons), rel=0.01)
    assert found_classes(found) == true_classes(small_image, found)


def test_each_polygon_is_a_group_and_its_pixels_lie_in_its_bounds(small_image, image):
    found = read_labels(small_image.polygons(), image, field="class")
    for number, (west, south, east, north) in enumerate(found.bounds):
        own = found.groups == number
        x = small_image.WEST + small_image.PIXEL * (found.column[own] + 0.5)
        y = small_image.NORTH - small_image.PIXEL * (found.row[own] + 0.5)
        assert np.count_nonzero(own) == 81
        assert (west <= x).all()
        assert (x <= east).all()
        assert (south <= y).all()
        assert (y <= north).all()


def test_a_field_may_say_what_belongs_together(small_image, image):
    found = read_labels(small_image.polygons(), image, field="class", group="site")
    assert found.group_names == ("site=site 0", "site=site 1", "site=site 2")
    assert found.unit == "site"
    assert_array_equal(found.groups, found.row // 30)


def test_points_label_the_pixel_they_lie_in(small_image, image):
    row, column = np.array([3, 40, 89]), np.array([5, 70, 119])
    points = geopandas.GeoDataFrame(
        {"class": ["a", "b", "a"]},
        geometry=geopandas.points_from_xy(
            small_image.WEST + 10 * (column + 0.3), small_image.NORTH - 10 * (row + 0.7)
        ),
        crs=small_image.CRS,
    )
    found = read_labels(points.to_crs(4326), image)
    assert_array_equal(found.row, row)
    assert_array_equal(found.column, column)
    assert found_classes(found) == ["a", "b", "a"]
    assert found.unit == "square"


def test_a_raster_on_the_same_grid_labels_every_pixel(small_image, image, image_files):
    found = read_labels(image_files / "truth.tif", image)
    assert_array_equal(found.codes.reshape(small_image.truth.shape), small_image.truth)
    assert len(found.group_names) == 80  # Squares of 12 pixels: 8 x 10.


def test_a_raster_on_another_grid_is_laid_on_the_image(small_image, image, tmp_path):
    coarse = small_image.truth[7::15, 7::15]  # One pixel of 150 m for each square.
    path = tmp_path / "coarse.tif"
    with rasterio.open(
        path, "w", driver="GTiff", height=6, width=8, count=1, dtype="uint8", nodata=255,
        crs=small_image.CRS,
        transform=rasterio.Affine(150, 0, small_image.WEST, 0, -150, small_image.NORTH),
    ) as file:  # fmt: skip
        file.write(coarse, 1)
        file.update_tags(flag_values="0 1 2", flag_meanings="water forest field")
    found = read_labels(path, image)
    assert_array_equal(found.codes.reshape(small_image.truth.shape), small_image.truth)
    assert found.names == {0: "water", 1: "forest", 2: "field"}


def test_where_a_raster_of_labels_ends_there_are_no_labels(small_image, image, tmp_path):
    path = tmp_path / "part.tif"
    small_image.write(path, values=small_image.truth[:30, :40], names=None)  # No nodata.
    found = read_labels(path, image)
    assert len(found.row) == 30 * 40
    assert found_classes(found) == small_image.truth[:30, :40].ravel().tolist()


@pytest.mark.parametrize(("name", "driver"), [("a.tif", "GTiff"), ("a.img", "HFA"), ("a", "ENVI")])
def test_a_raster_of_labels_may_be_of_real_numbers_and_of_any_name(
    small_image, image, tmp_path, name, driver
):
    values = small_image.truth.astype(np.float32)
    values[0, :5] = np.nan
    path = small_image.write(tmp_path / name, values=values, names=None, driver=driver)
    assert is_label_file(path)
    found = read_labels(path, image)
    assert found.classes == (0, 1, 2)
    assert len(found.row) == small_image.truth.size - 5
    assert_array_equal(found.codes, small_image.truth[found.row, found.column])


def test_an_open_array_is_read_too(small_image, image):
    labels = image.isel(band=0, drop=True).copy(data=small_image.truth.astype(float))
    labels[0, 0] = np.nan
    found = read_labels(labels, image)
    assert len(found.row) == small_image.truth.size - 1
    assert found.classes == (0, 1, 2)


@pytest.mark.parametrize("place", [("row", "column"), ("x", "y"), ("longitude", "latitude")])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_says_where_its_pixels_are(small_image, image, tmp_path, place, suffix):
    row, column = np.array([3, 40, 89, 7]), np.array([5, 70, 119, 7])
    points = geopandas.points_from_xy(
        small_image.WEST + 10 * (column + 0.5), small_image.NORTH - 10 * (row + 0.5),
        crs=small_image.CRS,
    )  # fmt: skip
    degrees = points.to_crs(4326)
    columns = {
        "row": row, "column": column, "x": points.x, "y": points.y,
        "longitude": degrees.x, "latitude": degrees.y,
    }  # fmt: skip
    table = pd.DataFrame({name: columns[name] for name in place} | {"label": [4, 9, 4, None]})
    path = tmp_path / f"pixels{suffix}"
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    found = read_labels(path, image)
    assert_array_equal(found.row, row[:3])
    assert_array_equal(found.column, column[:3])
    assert found_classes(found) == [4, 9, 4]
    assert found.notes == ("1 rows without a class are left out",)


def test_a_draw_keeps_so_many_of_each_class_whatever_the_order(small_image, image):
    polygons = small_image.polygons()
    drawn = read_labels(polygons, image, field="class", most=50, seed=3)
    assert np.bincount(drawn.codes).tolist() == [50, 50, 50]
    assert sum(drawn.counts.values()) == 81 * len(polygons)
    turned = read_labels(polygons.iloc[::-1], image, field="class", most=50, seed=3)
    assert_array_equal(drawn.row, turned.row)
    assert_array_equal(drawn.column, turned.column)
    other = read_labels(polygons, image, field="class", most=50, seed=4)
    assert not np.array_equal(drawn.row, other.row)


def test_pixels_in_polygons_of_two_classes_are_left_out(small_image, image):
    polygons = geopandas.GeoDataFrame(
        {"class": ["a", "b", "a"]},
        geometry=[
            small_image.box(0, 0, 10, 10),
            small_image.box(5, 0, 10, 10),  # Half of the first.
            small_image.box(0, 5, 5, 10),  # Of the same class: its pixels count once.
        ],
        crs=small_image.CRS,
    )
    found = read_labels(polygons, image)
    assert found.notes == ("50 pixels in polygons of several classes are left out",)
    assert np.bincount(found.codes).tolist() == [75, 50]


def test_all_touched_takes_the_pixels_that_a_thin_polygon_crosses(small_image, image):
    thin = small_image.polygons().iloc[:2]
    thin = thin.set_geometry([small_image.box(10.2, 10.2, 0.2, 4), small_image.box(30, 30)])
    with pytest.raises(SceneError, match=r"hold no centre of a pixel.*smaller than a pixel"):
        read_labels(thin, image, field="class")
    found = read_labels(thin, image, field="class", all_touched=True)
    assert np.count_nonzero(found.row == 10) == 5


# What cannot be used


def test_labels_elsewhere_do_not_overlap(small_image, image):
    moved = small_image.polygons().translate(xoff=1e6)
    away = small_image.polygons().set_geometry(moved)
    with pytest.raises(SceneError, match="do not overlap the image") as caught:
        read_labels(away, image, field="class")
    assert "EPSG:32632" in str(caught.value)


def test_labels_without_crs_and_images_without_georeference(small_image, image, tmp_path):
    polygons = small_image.polygons()
    with pytest.raises(SceneError, match="has no coordinate reference system"):
        read_labels(polygons.set_crs(None, allow_override=True), image, field="class")
    bare = xr.DataArray(small_image.values, dims=("band", "y", "x"))
    with pytest.raises(SceneError, match="has no georeference"):
        read_labels(polygons, bare, field="class")


def test_a_polygon_of_the_whole_earth_labels_all_of_an_image(image):
    for bounds in ((-180, -90, 180, 90), (-20, 20, 40, 80)):
        earth = geopandas.GeoDataFrame({"class": ["land"]}, geometry=[box(*bounds)], crs=4326)
        assert len(read_labels(earth, image).row) == 90 * 120


def test_a_large_polygon_ends_where_its_edge_is_in_its_own_projection(small_image, image):
    # 9 degrees east is the middle of the zone: 500 km, where the image begins.
    east = geopandas.GeoDataFrame(
        {"class": ["east"]}, geometry=[box(9.008, -80, 60, 80)], crs=4326
    )
    found = read_labels(east, image)
    x, y = small_image.transform * (found.column + 0.5, found.row + 0.5)
    degrees, _ = reproject(x, y, small_image.CRS, "EPSG:4326")
    rows, columns = np.mgrid[:90, :120] + 0.5
    every, _ = reproject(*(small_image.transform * (columns, rows)), small_image.CRS, "EPSG:4326")
    assert degrees.min() > 9.008
    # Of pixels within a tenth of their size of the edge, it cannot be said.
    assert len(found.row) == pytest.approx(np.count_nonzero(every > 9.008), abs=9)


def test_a_wrong_reference_system_is_shown_by_bounds_that_cannot_be(small_image, image, tmp_path):
    metres = small_image.polygons().set_crs(4326, allow_override=True)
    with pytest.raises(SceneError, match=r"500,030 to 501,170 .*which are no degrees") as found:
        read_labels(metres, image, field="class")
    assert "inf" not in str(found.value)
    wrong = open_image(small_image.write(tmp_path / "wrong.tif", crs="EPSG:4326"))
    with pytest.raises(SceneError, match=r"wrong\.tif: 500,000 to .*which are no degrees"):
        read_labels(small_image.polygons(), wrong, field="class")


def test_polygons_that_reach_beyond_the_horizon_are_refused(small_image, tmp_path):
    disk = "+proj=geos +h=35785831 +lon_0=0 +sweep=y"
    full = rasterio.Affine(100_000, 0, -6e6, 0, -133_333, 6e6)
    image = open_image(small_image.write(tmp_path / "disk.tif", crs=disk, transform=full))
    shapes = [box(0, 40, 10, 50), box(160, 40, 170, 50), box(70, 0, 100, 10)]
    labels = geopandas.GeoDataFrame({"class": [1, 2, 3]}, geometry=shapes, crs=4326)
    with pytest.raises(SceneError, match=r"Feature 2 of labels .* has no coordinates\. Cut it"):
        read_labels(labels, image)
    found = read_labels(labels.iloc[:2], image)
    assert found.classes == (1,)
    assert found.notes == ("1 features outside the image are left out",)


def test_parts_of_a_polygon_are_groups_of_their_own_and_that_is_said(small_image, image):
    polygons = small_image.polygons()
    whole = read_labels(polygons, image, field="class")
    parts = polygons.dissolve("class", as_index=False)[["class", "geometry"]]
    found = read_labels(parts, image)
    assert set(found.group_names) == set(whole.group_names)
    assert_array_equal(found.row, whole.row)
    assert found.notes == (
        "3 features of several parts are split into 48 polygons, each a group of its own",
    )
    # A field that says what belongs together stands above it.
    assert read_labels(parts.assign(site="all"), image, field="class", group="site").notes == ()


def test_a_part_smaller_than_a_pixel_is_no_error_where_others_are_larger(small_image, image):
    from shapely.geometry import MultiPolygon

    sliver = small_image.box(50, 50, 0.3, 0.3)
    both = MultiPolygon([small_image.box(3, 3), sliver])
    labels = geopandas.GeoDataFrame({"class": ["a"]}, geometry=[both], crs=small_image.CRS)
    assert len(read_labels(labels, image).row) == 81
    with pytest.raises(SceneError, match="hold no centre of a pixel, such as feature 0"):
        read_labels(labels.set_geometry([sliver]), image)


def test_polygons_have_the_same_names_in_any_projection(small_image, image):
    polygons = small_image.polygons()
    names = read_labels(polygons, image, field="class").group_names
    for crs in ("EPSG:4326", "EPSG:3857", "EPSG:32633"):
        again = read_labels(polygons.to_crs(crs), image, field="class")
        assert set(again.group_names) == set(names)
    # Two halves of a square have the same bounds, and are not the same.
    halves = polygons.iloc[[0, 0]].set_geometry([Polygon(c) for c in _triangles(polygons)])
    assert len(read_labels(halves, image, field="class").group_names) == 2


def _triangles(polygons):
    west, south, east, north = polygons.geometry.iloc[0].bounds
    corners = (west, north), (east, south)
    return [(*corners, (west, south)), (*corners, (east, north))]


def test_fields_that_are_missing_empty_or_mixed(small_image, image):
    polygons = small_image.polygons()
    with pytest.raises(SceneError, match=r"no field 'crop'\. Found: class, site"):
        read_labels(polygons, image, field="crop")
    with pytest.raises(SceneError, match="is empty: no feature has a class"):
        read_labels(polygons.assign(empty=None), image, field="empty")
    with pytest.raises(SceneError, match="Which field of labels has the class"):
        read_labels(polygons.rename(columns={"class": "kind"}), image)
    with pytest.raises(SceneError, match="fractions"):
        read_labels(polygons.assign(share=0.5), image, field="share")
    with pytest.raises(SceneError, match="holds fractions or infinity: inf"):
        read_labels(polygons.assign(share=np.inf), image, field="share")
    mixed = polygons.assign(mixed=pd.Series([1, "a"] * (len(polygons) // 2), dtype=object))
    with pytest.raises(SceneError, match="both text and numbers"):
        read_labels(mixed, image, field="mixed")


def test_geometries_that_are_invalid_empty_or_lines(small_image, image):
    from shapely.geometry import LineString, Polygon

    polygons = small_image.polygons()
    west, north = small_image.WEST, small_image.NORTH
    bow = Polygon([(west, north), (west + 90, north - 90), (west + 90, north), (west, north - 90)])
    broken = polygons.set_geometry([bow, *polygons.geometry.iloc[1:]])
    with pytest.raises(SceneError, match=r"invalid geometries: 1 of 48(.|\n)*feature 0: Self"):
        read_labels(broken, image, field="class")
    empty = polygons.set_geometry([None, *polygons.geometry.iloc[1:]])
    with pytest.raises(SceneError, match="1 features without geometry, such as feature 0"):
        read_labels(empty, image, field="class")
    line = LineString([(west, north), (west + 90, north - 90)])
    lines = polygons.set_geometry([line, *polygons.geometry.iloc[1:]])
    with pytest.raises(SceneError, match="LineString features"):
        read_labels(lines, image, field="class")
    with pytest.raises(SceneError, match="has no features"):
        read_labels(polygons.iloc[:0], image, field="class")


def test_rasters_that_are_no_labels(small_image, image, image_files, tmp_path):
    with pytest.raises(SceneError, match=r"has 4 bands.*Is it the image\?"):
        read_labels(image_files / "image.tif", image)
    path = small_image.write(tmp_path / "real.tif", values=small_image.values[0], names=None)
    with pytest.raises(SceneError, match=r"holds fractions, such as .*map of probabilities"):
        read_labels(path, image)
    nothing = np.full((90, 120), 7, np.uint8)
    path = small_image.write(tmp_path / "nothing.tif", values=nothing, names=None, nodata=7)
    with pytest.raises(SceneError, match="its nodata, 7, marks pixels without a label"):
        read_labels(path, image)


def test_tables_that_say_no_place_or_another(small_image, image):
    with pytest.raises(SceneError, match=r"does not say where its pixels are\. Found: a, class"):
        read_labels(pd.DataFrame({"a": [1], "class": ["x"]}), image)
    with pytest.raises(SceneError, match="No row of labels lies in"):
        read_labels(pd.DataFrame({"row": [900], "column": [1], "class": ["x"]}), image)


@pytest.mark.parametrize(
    ("written", "classes"),
    [
        (["007", "7"], ("007", "7")),
        (["7", "12"], (7, 12)),
        (["7.0", "12.0"], (7, 12)),
        (["7.0", "12"], ("12", "7.0")),
        (["NA", "None"], ("NA", "None")),
        (["nan", "inf"], ("inf", "nan")),
        (["1e3", "true"], ("1e3", "true")),
        (["-1", "0"], (-1, 0)),
        (["+1", "1"], ("+1", "1")),
        ([" bare soil ", "bare soil"], ("bare soil",)),
    ],
)
def test_classes_of_a_csv_file_are_as_they_are_written(image, tmp_path, written, classes):
    lines = [f"{i},{i},{name}" for i, name in enumerate(written)]
    (tmp_path / "t.csv").write_text("\n".join(["row,column,class", *lines, "8,8,", "9,9,  "]))
    found = read_labels(tmp_path / "t.csv", image)
    assert found.classes == classes
    assert len(found.row) == len(written)
    assert "2 rows without a class are left out" in found.notes


def test_places_of_a_csv_file_may_be_written_in_any_way(image, tmp_path):
    (tmp_path / "t.csv").write_text("row,column,class\n007,1e1,a\n8.0, 9,b")
    found = read_labels(tmp_path / "t.csv", image)
    assert (found.row.tolist(), found.column.tolist()) == ([7, 8], [10, 9])


def test_classes_that_differ_in_case_and_white_space_are_said_to_be_two(
    small_image, image, tmp_path
):
    polygons = small_image.polygons()
    polygons.loc[:1, "class"] = ["Forest ", "dry  grass"]
    polygons.loc[2, "class"] = "Dry grass"
    polygons.to_file(tmp_path / "l.gpkg")
    found = read_labels(tmp_path / "l.gpkg", image, field="class")
    assert set(found.classes) >= {"Forest", "forest", "dry  grass", "Dry grass"}
    said = [note for note in found.notes if "differ only in case" in note]
    assert [note.split(" are ")[0] for note in said] == [
        "'Dry grass' and 'dry  grass'", "'Forest' and 'forest'",
    ]  # fmt: skip


def test_files_that_do_not_exist_or_are_no_labels(image, tmp_path):
    with pytest.raises(SceneError, match="does not exist"):
        read_labels(tmp_path / "absent.gpkg", image)
    (tmp_path / "torn.gpkg").write_bytes(b"not a database")
    with pytest.raises(SceneError, match=r"torn\.gpkg cannot be read"):
        read_labels(tmp_path / "torn.gpkg", image)
    (tmp_path / "notes.txt").write_text("water")
    with pytest.raises(SceneError, match="no known format"):
        read_labels(tmp_path / "notes.txt", image)
