"""Commands on files of SEVIRI, from native files, HRIT and satpy's own CF to models and maps."""

import datetime
import shutil

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from numpy.testing import assert_array_equal

from undulatus.cli import main
from undulatus.products.provenance import Provenance
from undulatus.scenes import write_dataset
from undulatus.scenes.files.opening import open_map, open_scene
from undulatus.storage import load_model

satpy = pytest.importorskip("satpy")

pytestmark = [
    pytest.mark.filterwarnings("ignore:No orbit polynomial valid:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # satpy writes bounds of times as fractions of days, and xarray warns about them.
    pytest.mark.filterwarnings("ignore:Times can't be serialized:UserWarning"),
]

SHAPE = (16, 20)
BOX = "--box=-16.2,23.5,-15.7,23.9"
LIGHT = {0: 0.0, 7: 0.1, 13: 1.0, 16: 0.7}
"""Hours of a day with the sun at every height over the place of the images: about its cosine."""


def run(*command):
    return CliRunner().invoke(main, [str(part) for part in command])


def succeed(*command):
    result = run(*command)
    assert result.exit_code == 0, result.output
    return result


def cloudy_counts(rng, light=1.0):
    """Return which pixels have cloud, north up, and counts (line, band, column) as scanned."""
    cloud = rng.random(SHAPE) < 0.5
    seen = np.where(cloud, 450, 100) + rng.integers(-40, 40, (3, *SHAPE))
    solar = 51 + (light * seen).astype(int)
    thermal = np.where(cloud, 250, 420) + rng.integers(-40, 40, (8, *SHAPE))
    counts = np.concatenate([solar, thermal])[:, ::-1, ::-1]
    return cloud, counts.transpose(1, 0, 2)


def write_mask(path, cloud, grid, **attrs):
    codes = np.where(cloud, 2, 1).astype("u1")
    mask = xr.DataArray(codes, dims=("y", "x"), coords={"y": grid["y"], "x": grid["x"]})
    mask.attrs = {"standard_name": "cloud_classification"} | attrs
    mask.to_dataset(name="cloud_mask").to_netcdf(path)


@pytest.fixture(scope="module")
def archive(tmp_path_factory, seviri_files):
    """Native files of two days, their masks but for one, and the mask of another time."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "native").mkdir()
    (folder / "masks").mkdir()
    rng = np.random.default_rng(2)
    starts = [
        datetime.datetime(2010, 6, day) + datetime.timedelta(hours=hour)
        for day in (1, 2)
        for hour in LIGHT
    ]
    grid = None
    for start in starts:
        cloud, counts = cloudy_counts(rng, LIGHT[start.hour])
        path = folder / "native" / seviri_files.native_name(start)
        seviri_files.write_native(path, counts, start=start)
        grid = open_scene(path).coords if grid is None else grid
        if start != starts[-1]:
            write_mask(folder / "masks" / f"clm_{start:%Y%m%d%H%M%S}.nc", cloud, grid)
    write_mask(folder / "masks" / "clm_20100701120000.nc", cloud, grid)
    return folder


@pytest.fixture(scope="module")
def model(archive):
    """A model of the part of the native files in the box."""
    path = archive / "clouds.undulatus"
    result = succeed(
        *("fit", archive / "native", "--mask", archive / "masks", BOX, "-o", path),
        *("--method", "rff", "-D", "5", "--n-estimators", "1", "--holdout", "0.5"),
    )
    assert "masks: 7 of 8 acquisitions have one, 1 masks belong to none" in result.stderr
    return path


@pytest.fixture(scope="module")
def chip(archive):
    """The same part of the native files of a day, with their masks, in a Zarr store."""
    path = archive / "chip.zarr"
    command = ["subset", archive / "native", "--mask", archive / "masks" / "*.nc", BOX, "-o", path]
    said = succeed(*command, "--time", "2010-06-02").stdout
    assert "4 acquisitions of 13 x 14 pixels" in said
    return path


def test_a_model_learns_from_native_files_and_is_scored_on_their_held_out_days(archive, model):
    known = Provenance.of(load_model(model))
    assert known.calibration_mode == "nominal"
    assert known.platform_name == "Meteosat-9"
    (day,) = known.held_out_days
    afternoon = ["--time", f"{day}T13/{day}T17"]
    masks = ["--mask", archive / "masks"]
    scored = succeed("score", model, archive / "native", *masks, BOX, *afternoon)
    assert "2 acquisitions of 1 day held out of the fit." in scored.stdout
    # Bright and cold pixels are clouds, and nothing else is.
    high = next(line for line in scored.stdout.splitlines() if line.startswith("high"))
    assert float(high.split()[4]) > 0.9


def test_maps_of_files_name_them_and_hold_what_maps_of_their_cut_do(archive, model, chip):
    maps, of_chip = archive / "maps.zarr", archive / "chip_maps.zarr"
    day = ["--time", "2010-06-02T13/2010-06-02T17"]
    succeed("map", model, *sorted((archive / "native").iterdir()), BOX, *day, "-o", maps)
    succeed("map", model, chip, *day, "-o", of_chip)
    with open_map(maps) as ours, open_map(of_chip) as theirs:
        assert ours.sizes["time"] == 2
        assert_array_equal(ours["cloud_mask"], theirs["cloud_mask"])
        assert len(ours.attrs["scene"]) == 8
        assert '"time": ["2010-06-02T13/' in ours.attrs["scene_options"]
    result = succeed("browse", maps, "-o", archive / "site")
    assert "left out" not in result.stderr


def test_a_finished_map_is_known_by_its_files_and_options(archive, model):
    maps = archive / "known.zarr"
    files = sorted((archive / "native").iterdir())[2:4]
    command = ["map", model, *files, "-o", maps]
    succeed(*command)
    assert succeed(*command, "--resume").exit_code == 0
    for other in (["--calibration", "GSICS"], ["--time", "2010-06-01T13"]):
        assert run(*command, "--resume", *other).exit_code == 1


def test_what_satpy_itself_wrote_maps_as_the_file_it_was_read_from(archive, model, tmp_path):
    native = sorted((archive / "native").iterdir())[2:4]
    written = []
    for path in native:
        scene = satpy.Scene(filenames=[str(path)], reader="seviri_l1b_native")
        scene.load(["VIS006", "VIS008", "IR_016", "IR_039", "IR_087", "IR_108", "IR_120"])
        start = scene.start_time
        end = start + datetime.timedelta(minutes=15)
        name = f"Meteosat-9-seviri-{start:%Y%m%d%H%M%S}-{end:%Y%m%d%H%M%S}.nc"
        # The second under a name of its own, which satpy's reader would refuse.
        name = name if not written else "second.nc"
        scene.save_datasets(writer="cf", filename=str(tmp_path / name))
        written.append(tmp_path / name)
    succeed("map", model, *native, "-o", tmp_path / "native.nc")
    succeed("map", model, *written, "-o", tmp_path / "cf.nc")
    with open_map(tmp_path / "native.nc") as ours, open_map(tmp_path / "cf.nc") as theirs:
        upright = theirs.sortby("y", ascending=False).sortby("x")
        assert_array_equal(ours["cloud_mask"], upright["cloud_mask"])


def test_segments_are_mapped(model, seviri_files, tmp_path):
    _, counts = cloudy_counts(np.random.default_rng(4))
    noon = np.tile(counts, (4, 1, 4))[:64, :, :64]
    folder = seviri_files.write_hrit(tmp_path / "hrit", noon)
    command = ["map", model, folder, "--box=-25,-25,25,25", "--allow-outside"]
    succeed(*command, "-o", tmp_path / "map.nc")
    with open_map(tmp_path / "map.nc") as maps:
        assert maps["cloud_mask"].notnull().all()


# What cannot be read


def one(archive):
    return min((archive / "native").glob("*0601131241*"))


def mixed(archive, tmp_path, seviri_files):
    return [archive / "native", archive / "chip.zarr"], "is a scene of SEVIRI"


def truncated(archive, tmp_path, seviri_files):
    path = tmp_path / one(archive).name
    whole = one(archive).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return [path], "cannot be read by satpy's seviri_l1b_native"


def doubled(archive, tmp_path, seviri_files):
    path = one(archive)
    return [path, shutil.copy(path, tmp_path)], "Two acquisitions have the time"


def odd_name(archive, tmp_path, seviri_files):
    (tmp_path / "scene.dat").write_bytes(b"anything")
    return [tmp_path / "scene.dat"], "has a name of no known format"


@pytest.fixture
def damaged(archive, tmp_path):
    """Two native files and a mask that are cut short, among sound ones; the names of the bad."""
    shutil.copytree(archive / "native", tmp_path / "native")
    shutil.copytree(archive / "masks", tmp_path / "masks")
    files = sorted((tmp_path / "native").iterdir())
    bad = [files[0], files[5], tmp_path / "masks" / "clm_20100601130000.nc"]
    for path in bad[1:]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    bad[0].write_bytes(b"")
    return tmp_path, [path.name for path in bad]


@pytest.mark.parametrize("box", [True, False])
def test_a_month_is_cut_though_files_are_damaged_if_that_is_asked_for(damaged, archive, box):
    folder, bad = damaged
    where = [BOX] if box else []
    command = ["subset", folder / "native", "--mask", folder / "masks", *where]
    refused = run(*command, "-o", folder / "all.zarr")
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
    result = run(*command, "-o", folder / "some.zarr", "--skip-damaged")
    assert result.exit_code == 3, result.output
    assert result.stdout.startswith("6 acquisitions of ")
    assert "warning: 3 damaged files were left out:\n" in result.stderr
    assert all(name in result.stderr for name in bad)
    assert "masks: 4 of 6 acquisitions have one" in result.stderr
    sound = sorted((archive / "native").iterdir())
    whole = folder / "sound.zarr"
    succeed("subset", *sound[1:5], *sound[6:], *where, "-o", whole)
    with open_scene(folder / "some.zarr") as some, open_scene(whole) as expected:
        assert some.attrs["skipped_files"].count("\n") == 2
        for name in expected.data_vars:
            assert_array_equal(some[name], expected[name])


def test_all_files_may_not_be_damaged(tmp_path, archive):
    names = [path.name for path in sorted((archive / "native").iterdir())[:2]]
    for name in names:
        (tmp_path / name).write_bytes(b"nothing")
    paths = [tmp_path / name for name in names]
    result = run("subset", *paths, "-o", tmp_path / "some.zarr", "--skip-damaged")
    assert result.exit_code == 1
    assert "All 2 files are damaged, the first of which is" in result.stderr


def test_damage_is_found_in_values_that_are_read_late(tmp_path, chip):
    for index in range(3):
        with open_scene(chip) as opened:
            one = opened.isel(time=[index]).drop_encoding().compute()
        write_dataset(one, tmp_path / f"{index}.zarr")
    chunk = next(p for p in (tmp_path / "1.zarr" / "VIS006" / "c").rglob("*") if p.is_file())
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-4] + bytes(4))
    paths = [tmp_path / f"{index}.zarr" for index in range(3)]
    assert run("subset", *paths, "-o", tmp_path / "all.nc").exit_code == 1
    result = run("subset", *paths, "-o", tmp_path / "some.nc", "--skip-damaged")
    assert result.exit_code == 3, result.output
    assert "1 damaged file was left out:" in result.stderr
    with open_scene(tmp_path / "some.nc") as some:
        assert some.sizes["time"] == 2


def test_a_fit_and_its_scores_leave_out_damaged_files_too(archive, tmp_path, seviri_files):
    bad = tmp_path / seviri_files.native_name(datetime.datetime(2010, 6, 3))
    bad.write_bytes(one(archive).read_bytes()[:-1000])
    data = [archive / "native", bad, "--mask", archive / "masks", BOX]
    small = ["--method", "rff", "-D", "5", "--n-estimators", "1", "--holdout", "0.5"]
    model = tmp_path / "m.undulatus"
    for words in (["fit", *data, *small, "-o", model], ["score", model, *data]):
        refused = run(*words)
        assert refused.exit_code == 1
        assert "is cut short: it has" in refused.stderr
        result = run(*words, "--skip-damaged")
        assert result.exit_code == 3, result.output
        assert f"1 damaged file was left out:\n  {bad}: is cut short" in result.stderr
    assert "accuracy" in result.stdout


def test_what_is_not_damaged_is_never_left_out(damaged, tmp_path):
    folder, _ = damaged
    result = run("subset", folder / "native", "--calibration", "GSICS", "--mask", folder / "masks",
                 "--box", "10,40,12,42", "-o", tmp_path / "x.zarr", "--skip-damaged")  # fmt: skip
    assert result.exit_code == 1
    assert "No pixel lies in the box" in result.stderr


def another_time(archive, tmp_path, seviri_files):
    return [archive / "native", "--time", "2012"], "their names tell 2010-06-01T00:12"


def another_place(archive, tmp_path, seviri_files):
    return [one(archive), "--box", "10,40,12,42"], "No pixel lies in the box"


def other_calibration(archive, tmp_path, seviri_files):
    return [one(archive), "--calibration", "GSICS"], "(--calibration nominal, in Python"


def calibrated_otherwise(archive, tmp_path, seviri_files):
    return [archive / "chip.zarr", "--calibration", "GSICS"], "leave --calibration out"


def masks_of_another_time(archive, tmp_path, seviri_files):
    mask = archive / "masks" / "clm_20100701120000.nc"
    return [one(archive), "--mask", mask], "mask: 2010-07-01T12:00"


def masks_of_another_grid(archive, tmp_path, seviri_files):
    grid = {"y": np.arange(4.0), "x": np.arange(5.0)}
    mask = tmp_path / "clm_20100601130000.nc"
    write_mask(mask, np.ones((4, 5), bool), grid)
    return [one(archive), "--mask", mask], "no pixel in common"


def silent_about_the_sun(archive, tmp_path, seviri_files):
    with open_scene(archive / "chip.zarr") as opened:
        chip = opened.isel(time=0).load()
    for name in ("VIS006", "VIS008", "IR_016"):
        del chip[name].attrs["sun_normalised"]
    chip.attrs["history"] = "2026-01-01 Created by pytroll/satpy"
    chip.drop_encoding().to_netcdf(tmp_path / "chip.nc")
    return [tmp_path / "chip.nc"], "history names satpy, whose reflectances are not divided"


FAULTS = (
    *(mixed, truncated, doubled, odd_name, another_time, another_place, other_calibration),
    silent_about_the_sun,
    *(calibrated_otherwise, masks_of_another_time, masks_of_another_grid),
)


@pytest.mark.usefixtures("chip")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_cannot_be_read_is_an_error_that_says_why(
    fault, archive, model, tmp_path, seviri_files
):
    data, message = fault(archive, tmp_path, seviri_files)
    result = run("map", model, *data, "-o", tmp_path / "map.zarr")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "map.zarr").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "soon"], "'soon' is not a time"),
        (["--box", "1,2,3"], "WEST,SOUTH,EAST,NORTH"),
        (["--box=10,50,5"], "is not a box"),
        (["--mask", "nowhere/*.grb"], "names no file"),
        (["--calibration", "best"], "'best' is not one of"),
    ],
)
def test_options_that_cannot_be_understood_are_bad_usage(archive, tmp_path, options, message):
    result = run("subset", archive / "native", *options, "-o", tmp_path / "chip.zarr")
    assert result.exit_code == 2
    assert message in result.stderr


def test_masks_that_a_shell_spread_over_data_are_recognised(archive, tmp_path):
    (tmp_path / "clm.grb").write_bytes(b"GRIB")
    result = run("fit", archive / "native", tmp_path / "clm.grb", "-o", tmp_path / "m.undulatus")
    assert result.exit_code == 2
    assert f"--mask '{tmp_path}/*.grb'" in result.stderr


def test_options_of_scenes_are_refused_for_images_and_spectra(image_files, spectra, tmp_path):
    labels = ["--label", image_files / "fields.gpkg", "-o", tmp_path / "m.undulatus"]
    result = run("fit", image_files / "image.tif", "--time", "2010", *labels)
    assert result.exit_code == 2
    assert "--time: for scenes, but DATA are images" in result.stderr
    result = run("fit", spectra, "--box", "0,0,1,1", "-o", tmp_path / "m.undulatus")
    assert result.exit_code == 1
    assert "--box: for scenes, but" in result.stderr


def test_images_and_files_of_a_sensor_are_not_mixed(archive, image_files, tmp_path):
    data = [image_files / "image.tif", next((archive / "native").iterdir())]
    labels = ["--label", image_files / "fields.gpkg", "-o", tmp_path / "m.undulatus"]
    result = run("fit", *data, *labels)
    assert result.exit_code == 2
    assert "is an image" in result.stderr
    assert "of SEVIRI" in result.stderr
