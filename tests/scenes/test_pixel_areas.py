"""How large pixels are on the Earth, against polygons of geodesics and the whole of it."""

import numpy as np
import pyproj
import pytest
import rasterio
from numpy.testing import assert_allclose
from rasterio import Affine

from undulatus.scenes import pixel_areas
from undulatus.scenes.pixel_areas import PixelAreas
from undulatus.scenes.pixel_grid import PixelGrid


def areas_of(crs, transform, shape):
    return PixelAreas.of(
        PixelGrid(rasterio.crs.CRS.from_user_input(crs), transform, shape, "image")
    )


ROTATED = Affine.translation(10, 50) * Affine.rotation(30) * Affine.scale(1e-3, -2e-3)


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:4326", ROTATED),
        ("EPSG:4326", Affine(0.01, 0.003, 179.9, 0, -0.01, 70)),
        ("EPSG:32633", Affine.translation(6e5, 5.4e6) * Affine.rotation(40) * Affine.scale(10)),
        ("EPSG:3413", Affine(25_000, 0, -5e5, 0, -25_000, 5e5)),
        ("+proj=geos +h=35785831 +lon_0=0 +units=m", Affine(3000, 0, 2e6, 0, -3000, 4e6)),
        (
            "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18",
            Affine(0.1, 0, -2, 0, -0.1, 2),
        ),
        ("EPSG:2263", Affine(30, 0, 9e5, 0, -30, 2e5)),
        ("+proj=longlat +R=6371000", Affine(0.1, 0, 0, 0, -0.1, 60)),
    ],
)
def test_a_pixel_has_the_area_of_its_geodesic_polygon(crs, transform):
    found = areas_of(crs, transform, (40, 40))
    row, column = np.mgrid[0:40:3, 0:40:3].reshape(2, -1)
    to_geographic = pyproj.Transformer.from_crs(found.crs, found.crs.geodetic_crs, always_xy=True)
    for area, i, j in zip(found.at(row, column), row, column, strict=True):
        corners = [transform * (j + x, i + y) for y, x in ((0, 0), (0, 1), (1, 1), (1, 0))]
        lon, lat = to_geographic.transform(*np.transpose(corners))
        polygon = abs(found.crs.get_geod().polygon_area_perimeter(lon, lat)[0])
        # Corners in double precision, 1e-9 of 10 m; edges of pixels of 25 km around the pole.
        assert_allclose(area, polygon, rtol=1e-5)


@pytest.mark.parametrize("step", [0.25, 1.0])
def test_the_pixels_of_the_whole_earth_have_its_area(step):
    n = round(180 / step)
    # Rows at the poles, as weather models have them: their pixels reach beyond, by half.
    grid = Affine(step, 0, -180 - step / 2, 0, -step, 90 + step / 2)
    found = areas_of("EPSG:4326", grid, (n + 1, 2 * n))
    # 510,065,621.724 km² (WGS 84); neighbours share their edges, whatever these are.
    row, column = np.ogrid[: n + 1, : 2 * n]
    assert_allclose(found.at(row, column).sum(), 510_065_621.724e6, rtol=1e-9)
    total = found.block(0, 0, (n + 1, 2 * n)).sum()
    assert_allclose(total, 510_065_621.724e6, rtol=pixel_areas.INTERPOLATED)


@pytest.mark.parametrize("shape", [(1, 1), (16, 17), (200, 333)])
@pytest.mark.parametrize("corner", [(0, 0), (1200, 3400), (1800, 1800)])
def test_blocks_have_the_areas_of_their_pixels(shape, corner):
    # From the limb, where areas are not interpolated, to the centre of a full disc.
    grid = Affine(3000.4, 0, -5568742, 0, -3000.4, 5568742)
    found = areas_of("+proj=geos +h=35785831 +lon_0=0 +units=m", grid, (3712, 3712))
    row, column = np.ogrid[: shape[0], : shape[1]]
    exact = found.at(corner[0] + row, corner[1] + column)
    block = found.block(*corner, shape)
    np.testing.assert_array_equal(np.isnan(block), np.isnan(exact))
    assert_allclose(block, exact, rtol=1.1 * pixel_areas.INTERPOLATED)


def test_what_is_nowhere_on_the_earth_has_no_areas():
    local = 'LOCAL_CS["plan",UNIT["metre",1]]'
    assert areas_of(local, Affine.identity(), (5, 5)) is None
    assert PixelAreas.of(PixelGrid(None, Affine.identity(), (5, 5), "image")) is None
