"""Faults of scenes, images and masks that are mapped in Python."""

import dask
import dask.array as da
import numpy as np
import xarray as xr
from tests.faults.fault import BANDS, Fault, gives, missing, refused, same

from undulatus import scenes
from undulatus.errors import InputError, MissingBandsError, OutsideTrainingError, SceneError
from undulatus.products import map_scene
from undulatus.products.memory_budget import parse_size, plan_blocks
from undulatus.products.predict import MISSING
from undulatus.regimes import Regime, RegimeClassifier

ALL = [(row, column) for row in range(8) for column in range(10)]


def bands(shop, **changed):
    """Return the image as a Dataset of bands, some of them changed."""
    return shop.image.to_dataset("band").assign(changed)


def coarse(shop):
    """Return the last band at every second pixel, with dimensions of its own."""
    return bands(shop)["B08"][::2, ::2].drop_vars(["y", "x"]).rename(y="y20", x="x20")


def mask_of(shop, rows):
    """Return a mask of the image that leaves out the first rows."""
    mask = xr.zeros_like(shop.image[0], dtype=bool).drop_vars("band")
    mask[:rows] = True
    return mask


def in_many_regimes(shop, count=20):
    """Return how many regimes a map numbers that has a model for each of twenty."""
    edges = np.linspace(0.0, 100.0, count + 1)
    regimes = [Regime(f"r{i}", *edges[i : i + 2], BANDS) for i in range(count)]
    member = shop.fit()
    model = RegimeClassifier.from_fitted({own.name: member for own in regimes}, regimes)
    sun = shop.image[0] * 0.0 + np.linspace(0.0, 99.0, 80).reshape(8, 10)
    mapped = map_scene(model, bands(shop, solar_zenith_angle=sun), allow_outside=True)
    return len(np.unique(mapped["quality_flag"].values >> 4))


def days(shop):
    """Return four acquisitions of the synthetic scene, in memory; the sun is to be computed."""
    scene = scenes.open_data(shop.store / "days.zarr").drop_vars("solar_zenith_angle")
    return scene.isel(time=slice(40, 44)).load()


def map_days(shop, scene, **options):
    return map_scene(shop.load(shop.store / "clouds.undulatus"), scene, **options)


def missing_share(mapped):
    return float(np.mean((mapped["quality_flag"].values & MISSING) > 0))


def with_units(shop, name, factor, units):
    scene = days(shop)
    scene[name] = (scene[name] * factor).assign_attrs(units=units)
    return scene


def with_type(shop, name, dtype):
    scene = days(shop)
    scene[name] = scene[name].astype(dtype)
    return scene


def with_times(shop, written):
    """Return the map of acquisitions whose times are written otherwise, and that of the same."""
    scene = days(shop)
    other = scene.assign_coords(time=written(scene.indexes["time"]))
    return map_days(shop, other), map_days(shop, scene)


def from_netcdf_in_threads(shop):
    """Return the map of a netCDF file by eight threads, and that of the same scene in memory."""
    days(shop).to_netcdf("days.nc")
    opened = scenes.open_data("days.nc").chunk(time=1)
    with dask.config.set(scheduler="threads", num_workers=8):
        return map_days(shop, opened).compute(), map_days(shop, days(shop))


FAULTS = (
    # Missing pixels
    Fault("NaN in a pixel", lambda shop: shop.map(shop.spoilt((2, 3))), missing([(2, 3)])),
    Fault(
        "infinity in a pixel",
        lambda shop: shop.map(shop.spoilt((2, 3), value=np.inf)),
        missing([(2, 3)]),
    ),
    Fault(
        "1e30 in a pixel",
        lambda shop: shop.map(shop.spoilt((2, 3), value=1e30)),
        missing([(2, 3)]),
    ),
    Fault(
        "a fill value that is an attribute",
        lambda shop: shop.map(shop.spoilt((2, 3), value=-9.0).assign_attrs(_FillValue=-9.0)),
        missing([(2, 3)]),
    ),
    Fault(
        "a masked pixel",
        lambda shop: shop.map(
            shop.image.copy(data=np.ma.masked_equal(shop.spoilt((2, 3), value=-9.0), -9.0))
        ),
        missing([(2, 3)]),
    ),
    Fault("NaN in all pixels", lambda shop: shop.map(shop.image * np.nan), missing(ALL)),
    Fault(
        "NaN in all pixels of a chunk",
        lambda shop: shop.map(
            shop.spoilt(*[p for p in ALL if p[0] < 4]).chunk(y=4, x=5)
        ).compute(),
        missing([p for p in ALL if p[0] < 4]),
    ),
    Fault("an image without rows", lambda shop: shop.map(shop.image[:, :0]), missing([])),
    Fault(
        "NaN elsewhere",
        lambda shop: (
            shop.map(shop.spoilt((2, 3))).isel(y=slice(3, None)),
            shop.map().isel(y=slice(3, None)),
        ),
        same(),
    ),
    # Bands
    Fault(
        "an image that lacks a band",
        lambda shop: shop.map(shop.image[1:]),
        refused(MissingBandsError, "missing: B02"),
    ),
    Fault(
        "bands in another order",
        lambda shop: (shop.map(shop.image[[2, 0, 1]]), shop.map()),
        same(),
    ),
    Fault(
        "two bands of one name",
        lambda shop: shop.map(shop.image.isel(band=[0, 0, 1, 2])),
        refused(SceneError, r"several bands with the same name \(B02\)"),
    ),
    Fault(
        "bands without names",
        lambda shop: shop.map(shop.image.drop_vars("band")),
        refused(SceneError, "knows its bands by name.*assign_coords"),
    ),
    Fault(
        "names of bands in numpy's own text",
        lambda shop: (
            shop.map(shop.image.assign_coords(band=np.array(BANDS, np.dtypes.StringDType()))),
            shop.map(),
        ),
        same(),
    ),
    Fault(
        "names of bands in bytes",
        lambda shop: (
            shop.map(shop.image.assign_coords(band=np.array(BANDS, "S"))).drop_vars(
                "band", errors="ignore"
            ),
            shop.map(),
        ),
        same(),
    ),
    Fault(
        "a band on a coarser grid",
        lambda shop: shop.map(bands(shop, B08=coarse(shop))),
        refused(SceneError, "B08 and B02 are on different grids.*interp"),
    ),
    Fault(
        "bands of two grids, joined",
        lambda shop: shop.map(
            xr.merge(
                [
                    bands(shop).drop_vars("B08"),
                    bands(shop)[["B08"]].assign_coords(x=lambda d: d.x + 0.5),
                ],
                join="outer",
            )
        ),
        refused(SceneError, "No pixel has a value of every band"),
    ),
    Fault(
        "complex numbers",
        lambda shop: shop.map(bands(shop).astype(complex)),
        refused(SceneError, "B02 holds complex128"),
    ),
    Fault(
        "text in place of numbers",
        lambda shop: shop.map(bands(shop).astype(str)),
        refused(SceneError, "B02 holds text"),
    ),
    # Masks, regimes, chunks, memory
    Fault(
        "a mask",
        lambda shop: shop.map(mask=mask_of(shop, 2)),
        missing([p for p in ALL if p[0] < 2]),
    ),
    Fault(
        "a mask of part of the image",
        lambda shop: shop.map(mask=mask_of(shop, 2)[:3, 4:6]),
        missing([(row, column) for row in (0, 1) for column in (4, 5)]),
    ),
    Fault(
        "a mask of other pixels",
        lambda shop: shop.map(mask=mask_of(shop, 2).assign_coords(x=np.arange(10) + 0.5)),
        refused(SceneError, "other coordinates along x"),
    ),
    Fault(
        "a mask without dimensions",
        lambda shop: shop.map(mask=mask_of(shop, 2).values),
        refused(SceneError, "xarray.DataArray"),
    ),
    Fault("twenty regimes", in_many_regimes, gives(20)),
    Fault(
        "uneven chunks",
        lambda shop: (shop.map(shop.image.chunk(y=3, x=7, band=2)).compute(), shop.map()),
        same(),
    ),
    Fault(
        "less memory than one chunk needs",
        lambda shop: plan_blocks(bands(shop).chunk(), parse_size("100MB")),
        refused(SceneError, "95.37 MiB of memory are too little.*Allow"),
    ),
    Fault(
        "600 MB for an image of 1,024 squared and 13 bands",
        lambda shop: (
            plan_blocks(
                xr.Dataset(
                    {
                        "image": (
                            ("band", "y", "x"),
                            da.zeros((13, 1024, 1024), chunks=(13, 512, 512), dtype="f4"),
                        )
                    }
                ),
                parse_size("600MB"),
            ).workers
        ),
        gives(lambda workers: workers >= 1),
    ),
    Fault(
        "a size that is none",
        lambda shop: parse_size("much"),
        refused(InputError, "'much' is not a size"),
    ),
    Fault(
        "a size beyond all numbers",
        lambda shop: parse_size("1e999GB"),
        refused(InputError, "'1e999GB' is not a size"),
    ),
    Fault("no text for a size", lambda shop: parse_size(""), refused(InputError, "'' is not a")),
    # Units, calibration, sun and time
    Fault(
        "a band of objects",
        lambda shop: map_days(shop, with_type(shop, "IR_108", object)),
        refused(SceneError, "IR_108 holds object, which are not real numbers"),
    ),
    Fault(
        "times that are names",
        lambda shop: map_days(shop, days(shop).assign_coords(time=["a", "b", "c", "d"])),
        refused(SceneError, "'a' is not a time"),
    ),
    Fault(
        "digital numbers in place of reflectances",
        lambda shop: shop.map(10_000.0 + 5_000.0 * shop.image),
        refused(OutsideTrainingError, "100% of 80 pixels.*B0[238]: median"),
    ),
    Fault(
        "reflectances as fractions that are said to be percent",
        lambda shop: map_days(shop, with_units(shop, "VIS006", 0.01, "%")),
        refused(SceneError, "VIS006 says %.*look like fractions"),
    ),
    Fault(
        "temperatures in degrees Celsius",
        lambda shop: map_days(shop, with_units(shop, "IR_108", 1.0, "degC")),
        refused(SceneError, "IR_108 is in 'degC'; expected K.*Add 273.15"),
    ),
    Fault(
        "another calibration",
        lambda shop: scenes.scene.check_calibration(
            days(shop).assign_attrs(calibration_mode="GSICS"), "nominal"
        ),
        refused(SceneError, "'GSICS', but the model was fitted on 'nominal'"),
    ),
    Fault(
        "no sun where there is no Earth",
        lambda shop: missing_share(
            map_days(shop, days(shop).assign(longitude=lambda d: d["longitude"] * np.nan))
        ),
        gives(1.0),
    ),
    Fault(
        "coordinates that are infinite off the disk",
        lambda shop: missing_share(
            map_days(
                shop,
                days(shop).assign(
                    longitude=lambda d: d["longitude"].where(d["y"] > d["y"].mean(), np.inf)
                ),
            )
        ),
        gives(lambda share: 0.3 < share < 0.7),
    ),
    Fault(
        "longitudes from 0 to 360",
        lambda shop: (
            map_days(shop, days(shop).assign(longitude=lambda d: d["longitude"] + 360.0))[
                "cloud_mask"
            ].values,
            map_days(shop, days(shop))["cloud_mask"].values,
        ),
        same(),
    ),
    Fault(
        "times that are text", lambda shop: with_times(shop, lambda t: t.strftime("%FT%T")), same()
    ),
    Fault(
        "times with a zone",
        lambda shop: with_times(shop, lambda t: t.tz_localize("UTC").tz_convert("Europe/Madrid")),
        same(),
    ),
    Fault("netCDF read by eight threads", from_netcdf_in_threads, same()),
)
