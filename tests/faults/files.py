"""Faults of files, stores, paths and disks, and of commands that are stopped."""

import itertools
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import dask
import geopandas
import numpy as np
import pandas as pd
import rasterio
import xarray as xr
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.errors import NotGeoreferencedWarning
from safetensors import safe_open
from tests.faults.fault import Fault, exits, gives, refused, same

from undulatus import datasets, save_model, scenes
from undulatus._files import locked, read_tensors, write_tensors
from undulatus.errors import DatasetError, ModelFileError, SceneError
from undulatus.products import maps
from undulatus.scenes import write_dataset
from undulatus.scenes.files.images import with_band_names
from undulatus.scenes.files.zarr_store import find_manifest

GOLDEN = Path(__file__).parents[1] / "golden"

CHUNK = "days.zarr/IR_108/c/0/0/0"

MODEL = "clouds.undulatus"

MAP = ("map", MODEL, "days.zarr", "-o", "map.zarr")

FIT = (
    *("fit", "days.zarr", "--method", "rff", "-D", "3", "--n-estimators", "1"),
    *("--holdout", "0.5", "-o", "new.undulatus"),
)

SCORE = ("score", MODEL, "days.zarr")

COARSE_MAP = ("map", "cover.undulatus", "image.nc", "-o")

POINTS_FIT = (
    *("fit", "image.tif", "--label", "points.csv", "--method", "rff", "-D", "3"),
    *("--n-estimators", "1", "-o", "new.undulatus"),
)

COARSE_FIT = ("fit", "image.nc", *POINTS_FIT[2:])

COVER = ("map", "cover.undulatus", "image.tif", "--allow-outside", "-o")


# Damage


def flip(path, place=0.5):
    """Change one bit of a file."""
    content = bytearray(Path(path).read_bytes())
    content[int(place * len(content))] ^= 1
    Path(path).write_bytes(content)


def cut(path, share=0.5):
    """Keep the first part of a file."""
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(share * len(content))])


def forge(path, change):
    """Change tensors and header of a model, and mend all checksums."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(path, tensors, header)


def claim_gigabytes(path):
    """Make a model that consists of one sparse tensor, which takes no room on disk."""
    entry = {"dtype": "F64", "shape": [22_000, 22_000], "data_offsets": [0, 22_000**2 * 8]}
    with safe_open(path, framework="numpy") as file:
        header = json.dumps({"__metadata__": file.metadata(), "0/0/posterior_root": entry})
    start = struct.pack("<Q", len(header)) + header.encode()
    path.write_bytes(start)
    os.truncate(path, len(start) + entry["data_offsets"][1])


def swap_triangle(tensors, header):
    for name in tensors:
        if name.endswith("posterior_root"):
            # The square that files had up to schema 3, the wrong way round.
            k = int(np.sqrt(2 * len(tensors[name])))
            square = np.zeros((k, k))
            square[np.tril_indices(k)] = tensors[name]
            tensors[name] = np.ascontiguousarray(square.T)


def nest(tensors, header):
    value = []
    for _ in range(200):
        value = [value]
    header["provenance"]["nested"] = value


FORGERIES = {
    "classes in another order": (
        lambda tensors, header: header["classes"]["array"].reverse(), "classes"
    ),
    "a class twice": (lambda tensors, header: header["classes"].update(array=[0, 0]), "classes"),
    "one class": (lambda tensors, header: header["classes"].update(array=[0]), "classes"),
    "overlapping regimes": (
        lambda tensors, header: header["regimes"][1].__setitem__(1, "10.0"), "regime"
    ),
    "no regimes": (
        lambda tensors, header: (tensors.clear(), header.update(regimes=[], members=[])), "regimes"
    ),
    "no waves": (
        lambda tensors, header: tensors.update(
            {name: t[:0] for name, t in tensors.items() if name.endswith("frequencies")}
        ),
        "frequencies",
    ),
    "a factor that is not triangular": (swap_triangle, "posterior_root"),
    "a parameter of another type": (
        lambda tensors, header: header["members"][0]["params"].update(n_estimators="eight"),
        "n_estimators",
    ),
    "a variance that is not a number": (
        lambda tensors, header: header["members"][0]["estimators"][0].update(
            signal_variance="large"
        ),
        "signal_variance",
    ),
    "deep nesting": (nest, "nested"),
}  # fmt: skip
"""Changes of a model's tensors and header, and what the user is told about each."""


def with_data(shop, damage, command=MAP):
    """Spoil the synthetic days, and run a command on them."""
    shop.copy("days.zarr", MODEL)
    damage()
    return shop.run(*command)


def with_model(shop, damage, *command):
    """Spoil a model, and run a command with it."""
    path = shop.copy(MODEL)
    damage(path)
    return shop.run(*(command or ("info", MODEL)))


def with_image(shop, damage, command=(*COVER, "map.tif")):
    """Spoil an image, and run a command on it."""
    path = shop.copy("cover.undulatus", "image.tif")
    damage(path)
    return shop.run(*command)


def rewrite(path, change):
    """Change all bands of a GeoTIFF, whose type becomes that of the new values."""
    with rasterio.open(path) as file:
        profile, names, bands = file.profile, file.descriptions, change(file.read())
    with rasterio.open(path, "w", **profile | {"dtype": bands.dtype}) as file:
        file.write(bands)
        file.descriptions = names


def hidden(bands, fill):
    """Return bands with a value in the first 40 columns."""
    bands = bands.copy()
    bands[:, :, :40] = fill
    return bands


def mask_columns(path):
    """Give an image a mask of its own that hides its first 40 columns."""
    with rasterio.open(path, "r+") as file:
        file.write_mask(np.broadcast_to(np.arange(file.width) >= 40, file.shape))


def widen(path):
    """Make the pixels of an image twice as wide."""
    with rasterio.open(path, "r+") as file:
        file.transform *= Affine.scale(2, 1)


def missing_in_map(result):
    """Return how many pixels of a map are missing, as the command says."""
    assert result.exit_code == 0, result.output
    with rasterio.open("map.tif") as file:
        return int((file.read_masks(1) == 0).sum())


def with_nothing_there(path):
    """Add a band without values and one that is the same everywhere to an image."""
    with rasterio.open(path) as file:
        profile, names, bands = file.profile, file.descriptions, file.read()
    more = np.full((2, *bands.shape[1:]), np.nan, np.float32)
    more[1] = 7.0
    with rasterio.open(path, "w", **profile | {"count": len(bands) + 2}) as file:
        file.write(np.concatenate([bands, more]))
        file.descriptions = (*names, None, None)


def cover_fit(shop, damage, *options):
    """Spoil an image, and fit a model to it and its polygons."""
    shop.copy("fields.gpkg")
    labels = ("--label", "fields.gpkg", "--field", "class", *options)
    return with_image(shop, damage, ("fit", "image.tif", *labels, *POINTS_FIT[4:]))


def with_a_huge_pixel(bands):
    """Return bands in double precision, with a value beyond single precision in one pixel."""
    bands = bands.astype(np.float64)
    bands[0, 3, 4] = 1e300
    return bands


def as_netcdf_with_a_coarse_band(path):
    """Write an image to netCDF, with its last band on a grid of half the width, and labels."""
    with rasterio.open(path) as file:
        bands = dict(zip(file.descriptions, file.read(), strict=True))
    names = [f"B0{number}" for number in (2, 3, 4)]
    image = xr.Dataset({name: (("y", "x"), bands[name]) for name in names})
    image["B08"] = ("y20", "x20"), bands["B08"][::2, ::2]
    image.to_netcdf("image.nc")
    write_points()


def write_points(**columns):
    """Write a table of labelled pixels; a column is a value, or made from the table."""
    row, column = np.indices((30, 40)).reshape(2, -1)
    table = pd.DataFrame({"row": row, "column": column, "class": (row // 15 + column // 15) % 2})
    table.assign(**columns).to_csv("points.csv", index=False)


def with_table(shop, **columns):
    """Fit an image to a table with columns of another kind."""
    shop.copy("image.tif")
    write_points(**columns)
    return shop.run(*POINTS_FIT)


def misplaced(shop, spoil, label="fields.gpkg", image="image.tif"):
    """Spoil what says where an image or its labels lie, and fit."""
    shop.copy("image.tif", "fields.gpkg")
    spoil()
    options = ("--field", "class") if label.endswith(".gpkg") else ()
    return shop.run("fit", image, "--label", label, *options, *POINTS_FIT[4:])


def lose_reference(**changes):
    """Write labels as the image's first band, with its transform moved and without its CRS."""
    with rasterio.open("image.tif") as file:
        profile, values = file.profile, file.read(1)
    own = {"crs": None, "count": 1, "dtype": "uint8", "transform": profile["transform"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open("labels.tif", "w", **profile | own | changes) as file:
            file.write((values > 0.05).astype("uint8"), 1)


def keep_control_points_alone():
    """Take the transform of the image from it, and leave it where its corners are."""
    with rasterio.open("image.tif") as file:
        profile, values, transform = file.profile, file.read(), file.transform
    corners = itertools.product((0, profile["height"]), (0, profile["width"]))
    points = [GroundControlPoint(r, c, *(transform * (c, r))) for r, c in corners]
    with rasterio.open("image.tif", "w", **profile | {"transform": None, "gcps": points}) as file:
        file.write(values)


def change_image(change):
    """Write the image to netCDF after a change."""

    def make():
        image = with_band_names(scenes.open_image("image.tif"))
        change(image.to_dataset("band").drop_attrs(deep=False)).to_netcdf("image.nc")

    return make


def call_metres_degrees():
    """Say of polygons in metres that they are in degrees."""
    polygons = geopandas.read_file("fields.gpkg").set_crs(4326, allow_override=True)
    Path("fields.gpkg").unlink()
    polygons.to_file("fields.gpkg")


def foreign(**damage):
    """Return a function that makes the days a store of another program, and cuts a chunk."""

    def make():
        scene = scenes.open_data("days.zarr").load().drop_encoding()
        shutil.rmtree("days.zarr")
        scene.to_zarr("days.zarr", zarr_format=2, consolidated=False)
        cut("days.zarr/IR_108/0.0.0", **damage)

    return make


def lose_line_of_manifest():
    """Lose a chunk, and the line that says that it was written."""
    manifest = find_manifest(Path("days.zarr"))
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if "IR_108/c/0/0/0" not in line))
    os.unlink(CHUNK)


def replace_days(shop):
    """Put other days in the place of those that were there."""
    other = scenes.open_data(shop.store / "days.zarr").load()
    other["IR_108"] = (other["IR_108"] + 0.5).assign_attrs(other["IR_108"].attrs)
    shutil.rmtree("days.zarr")
    write_dataset(other.chunk(time=96), "days.zarr")


def map_deleted(shop):
    """Delete a scene after it was opened, and write its map."""
    shop.copy("days.zarr", MODEL)
    mapped = maps.map_scene(shop.load(MODEL), scenes.open_data("days.zarr"), allow_outside=True)
    shutil.rmtree("days.zarr")
    write_dataset(mapped, "map.zarr")


# Stops


@contextmanager
def interrupt_map():
    """Press Ctrl-C while the second block of a map is classified."""
    classify, calls = maps._classify_block, []

    def classify_or_stop(*blocks, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return classify(*blocks, **options)

    with (
        patch.object(maps, "_classify_block", classify_or_stop),
        dask.config.set(num_workers=1),
    ):
        yield


def stop_map(shop, command=MAP):
    """Stop a map by Ctrl-C when one block is done, and return the status of the command."""
    shop.copy(*(name for name in ("days.zarr", MODEL) if not os.path.exists(name)))
    with interrupt_map():
        return shop.run(*command).exit_code


def bytes_of(path):
    """Return a model's bytes, or those of all chunks of a store."""
    path = Path(path)
    if path.is_file():
        return path.read_bytes()
    chunks = sorted(file for file in path.rglob("c/**/*") if file.is_file())
    return b"".join(str(file.relative_to(path)).encode() + file.read_bytes() for file in chunks)


def resumed(shop, command, stop):
    """Stop a command, resume it, and compare what it wrote with that of an undisturbed run."""
    shop.copy("days.zarr", MODEL)
    output = command[-1]
    undisturbed = shop.run(*command)
    assert undisturbed.exit_code == 0, undisturbed.output
    whole = bytes_of(output)
    (shutil.rmtree if os.path.isdir(output) else os.unlink)(output)
    there = shop.listing()
    stop(shop, command)
    assert not os.path.exists(output)
    again = shop.run(*command, "--resume")
    assert again.exit_code == 0, again.output
    left = {*shop.listing()} - {*there}
    assert {Path(name).parts[len(shop.folder.parts)] for name in left} == {output}
    return bytes_of(output), whole


def killed(at, when):
    """Return a function that runs a command which kills itself after a call of ``at``.

    ``when`` is an expression of ``calls``, a list of the arguments of each.
    """

    def stop(shop, command):
        program = f"""
import os, signal, sys, warnings
from undulatus.cli import main
import undulatus.scenes.files.zarr_store, undulatus.estimators.checkpoint as checkpoint
warnings.simplefilter("ignore")
usual, calls = {at}, []
def die(*given):
    usual(*given)
    calls.append(given)
    if {when}:
        os.kill(os.getpid(), signal.SIGKILL)
{at} = die
main({list(command)!r})
"""
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        assert run.returncode == -signal.SIGKILL, run.stderr

    return stop


def interrupted(shop, command):
    """Press Ctrl-C in a fit of all regimes."""
    with shop.interrupt(1):
        result = shop.run(*command)
    assert result.exit_code == 130, result.output


def refit_after_interrupt(shop):
    shop.copy("days.zarr")
    interrupted(shop, FIT)
    return shop.run(*FIT)


def said_when_interrupted(shop):
    """Interrupt a fit that would replace a model; return what it said if the model is there."""
    shop.copy("days.zarr", MODEL)
    shutil.copy(MODEL, "new.undulatus")
    with shop.interrupt(1):
        result = shop.run(*FIT, "--overwrite")
    assert bytes_of("new.undulatus") == bytes_of(MODEL)
    return result.exit_code, result.output.splitlines()[-1]


def while_another_writes(shop, command):
    """Run a command while another process writes its output."""
    shop.copy("days.zarr", MODEL)
    with locked(Path(command[-1])):
        result = shop.run(*command)
    shop.before = [name for name in shop.before if not name.endswith(".lock")]
    return result


# Disks and paths


def on_a_small_disk(shop, output, room=20_000):
    """Map to a disk on which no file can be larger than so many bytes."""
    shop.copy("days.zarr", "cover.undulatus", "image.tif", MODEL)
    command = COVER if output.endswith(".tif") else MAP[:-1]
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        return shop.run(*command, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))


def on_a_full_disk(shop):
    """Map to a disk that has no room left."""
    shop.copy("days.zarr", MODEL)
    usage = shutil.disk_usage(".")._replace(free=100)
    with patch.object(shutil, "disk_usage", lambda path: usage):
        return shop.run(*MAP)


ODD_PATHS = {
    "a pipe": ("pipe", lambda: os.mkfifo("pipe"), 2, "neither a file nor a folder"),
    "a link to nowhere": (
        *("link.zarr", lambda: os.symlink("nowhere", "link.zarr")),
        *(2, "link to nowhere, which does not exist"),
    ),
    "/dev/full": ("/dev/full", lambda: None, 2, "a pipe or a device"),
    "a name of 5,000 characters": ("x" * 5000, lambda: None, 2, "x...x.*File name too long"),
    "an empty name": ("", lambda: None, 2, "the path is empty"),
    "a folder that exists": ("folder", lambda: os.mkdir("folder"), 1, "folder (exists|cannot)"),
    "a name in a folder that does not exist": (
        *("nowhere/map.zarr", lambda: None, 1, "folder nowhere does not exist"),
    ),
}
"""Paths by what they are: name, how to make it, and what a command must say."""


def written_to(shop, path, make, command):
    """Run a command whose output is an odd path."""
    shop.copy("days.zarr", MODEL)
    make()
    return shop.run(*command[:-1], path)


def through_a_link(shop):
    """Replace a model through a link; return whether it is a link still, and its target new."""
    shop.copy("days.zarr", MODEL)
    os.symlink(MODEL, "new.undulatus")
    before = bytes_of(MODEL)
    result = shop.run(*FIT, "--overwrite")
    assert result.exit_code == 0, result.output
    return os.path.islink("new.undulatus"), bytes_of(MODEL) != before


def beside_each_other(shop):
    """Map to x.tif, then to x.tiff; return the files there are."""
    shop.copy("cover.undulatus", "image.tif")
    for output in ("x.tif", "x.tiff"):
        result = shop.run(*COVER, output)
        assert result.exit_code == 0, result.output
    return sorted(path.name for path in Path().glob("x*"))


def with_forged_colours(shop):
    """Map to x.tif, put an address into its colours, and make pages of it."""
    shop.copy("cover.undulatus", "image.tif")
    assert shop.run(*COVER, "x.tif").exit_code == 0
    with rasterio.open("x.tif", "r+", IGNORE_COG_LAYOUT_BREAK="YES") as file:
        colours = file.tags(1)["flag_colors"].split()
        forged = ["#000;background:url(https://example.org/a.png)", *colours[1:]]
        file.update_tags(1, flag_colors=" ".join(forged))
    return shop.run("browse", "x.tif", "-o", "site")


def beside_layers_of_another(shop):
    """Map to x.tif, where there are layers of another map."""
    shop.copy("cover.undulatus", "image.tif")
    Path("x_layers.tif").write_text("another's")
    return shop.run(*COVER, "x.tif")


def over_a_folder_of_someone(shop):
    """Replace a folder that is no map."""
    shop.copy("cover.undulatus", "image.tif")
    Path("x.zarr").mkdir()
    Path("x.zarr/thesis.txt").write_text("mine")
    return shop.run(*COVER, "x.zarr", "--overwrite")


def in_odd_folders(shop):
    """Map with names of spaces and letters of many alphabets."""
    shop.copy("days.zarr", MODEL)
    os.mkdir("été 日本")
    os.rename("days.zarr", "été 日本/días ☁.zarr")
    return shop.run("map", MODEL, "été 日本/días ☁.zarr", "-o", "été 日本/карта.nc")


def escapes_in(shop, *command):
    """Return the control characters that a command prints about a model full of them."""
    labels = np.array(["\x1b[31mred", "\x1b]0;owned\x07"])[shop.y]
    columns = ["a\x1b[2J", "b\r\x9b", "c\u202e"]
    save_model(shop.fit(shop.table.set_axis(columns, axis=1), labels), "odd.undulatus")
    result = shop.run(*command)
    assert result.exit_code == 0, result.output
    return re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", result.output)


# Models and downloads


def write_pickle(path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, ("harm",)

    Path(path).write_bytes(pickle.dumps(Harmful()))


def older_model(shop):
    scene = xr.open_dataset(GOLDEN / "0.1.0" / "image-single.scene.nc")
    with scene:
        model = shop.load(GOLDEN / "0.1.0" / "image-single.undulatus")
        return len(maps.map_scene(model, scene.load(), allow_outside=True).data_vars)


def fetched(shop, content, expected, cached=None):
    """Fetch ``table.csv`` of a package that pip answers with ``content``."""
    package = replace(
        datasets._S2CLOUDLESS,
        archive="package-1.0.tar.gz",
        sha256=sha256(expected).hexdigest(),
        files={"table.csv": sha256(b"1,2\n").hexdigest()},
    )
    home = shop.folder / "data" / package.archive
    if cached is not None:
        home.mkdir(parents=True)
        (home / "table.csv").write_bytes(cached)

    def answer(command, **options):
        Path(command[-1]).write_bytes(content)

    with (
        patch.dict(os.environ, {"UNDULATUS_DATA": str(shop.folder / "data")}),
        patch.object(subprocess, "run", answer),
    ):
        (path,) = datasets._fetch(package, "table.csv")
        return path.read_bytes()


def scored(shop, days):
    """Score the model of the synthetic days on some of them; return the first line."""
    shop.copy(MODEL)
    held_out = shop.load(MODEL).provenance_["held_out_days"]
    scene = scenes.open_data(shop.store / "days.zarr").load()
    is_held_out = np.isin(scene["time"].values.astype("M8[D]").astype(str), held_out)
    chosen = {"both": slice(None), "training": ~is_held_out, "later": slice(None)}[days]
    part = scene.isel(time=chosen)
    if days == "later":
        part = part.assign_coords(time=part["time"] + np.timedelta64(5, "D"))
    write_dataset(part.chunk(time=96), "part.zarr")
    result = shop.run("score", MODEL, "part.zarr")
    assert result.exit_code == 0, result.output
    return next(line for line in result.output.splitlines() if line.startswith("Scored"))


FAULTS = (
    # Zarr
    *(
        Fault(
            f"a lost chunk of Zarr in undulatus {command[0]}",
            lambda shop, command=command: with_data(shop, lambda: os.unlink(CHUNK), command),
            exits(1, "chunk c/0/0/0 of IR_108 is missing"),
        )
        for command in (MAP, FIT, SCORE)
    ),
    *(
        Fault(
            f"a changed bit of a chunk of Zarr in undulatus {command[0]}",
            lambda shop, command=command: with_data(shop, lambda: flip(CHUNK), command),
            exits(1, "chunk c/0/0/0 of IR_108 is damaged.*another SHA-256"),
        )
        for command in (MAP, FIT, SCORE)
    ),
    Fault(
        "a chunk of Zarr cut short",
        lambda shop: with_data(shop, lambda: cut(CHUNK)),
        exits(1, "chunk c/0/0/0 of IR_108 is damaged"),
    ),
    Fault(
        "changed metadata of Zarr",
        lambda shop: with_data(shop, lambda: flip("days.zarr/IR_108/zarr.json")),
        exits(1, "the metadata IR_108/zarr.json is damaged"),
    ),
    Fault(
        "a chunk of Zarr and its line of the manifest lost",
        lambda shop: with_data(shop, lose_line_of_manifest),
        exits(1, "chunk c/0/0/0 of IR_108 is missing"),
    ),
    Fault(
        "a torn chunk in a store of another program",
        lambda shop: with_data(shop, foreign(share=0.5)),
        exits(1, "chunk 0.0.0 of IR_108 cannot be decoded"),
    ),
    Fault(
        "a store that is deleted while it is mapped",
        map_deleted,
        refused(SceneError, "chunk .* is missing"),
    ),
    Fault(
        "an empty folder in place of a store",
        lambda shop: with_data(shop, lambda: (shutil.rmtree("days.zarr"), os.mkdir("days.zarr"))),
        exits(1, "days.zarr"),
    ),
    # Other files
    Fault(
        "a GeoTIFF cut short",
        lambda shop: with_image(shop, cut),
        exits(1, "image.tif"),
    ),
    Fault(
        "a GeoTIFF of no bytes",
        lambda shop: with_image(shop, lambda path: path.write_bytes(b"")),
        exits(1, "image.tif cannot be read"),
    ),
    Fault(
        "a netCDF file cut short",
        lambda shop: (
            scenes.open_data(shop.store / "days.zarr").load().to_netcdf("days.nc"),
            cut("days.nc"),
            shop.copy(MODEL),
            shop.run("map", MODEL, "days.nc", "-o", "map.zarr"),
        )[-1],
        exits(1, "days.nc"),
    ),
    Fault(
        "a classic netCDF file cut short, which its library reads as zeros",
        lambda shop: (
            scenes.open_data(shop.store / "days.zarr")
            .load()
            .drop_encoding()
            .to_netcdf("days.nc", format="NETCDF3_64BIT"),
            cut("days.nc", 0.9),
            shop.copy(MODEL),
            shop.run("map", MODEL, "days.nc", "-o", "map.zarr"),
        )[-1],
        exits(1, "days.nc is cut short"),
    ),
    # Maps that exist, are resumed, or have another writer
    Fault(
        "a map that exists",
        lambda shop: (shop.copy("days.zarr", MODEL), shop.run(*MAP), shop.run(*MAP))[-1],
        exits(1, "map.zarr exists"),
    ),
    Fault("a map stopped by Ctrl-C", stop_map, gives(130)),
    Fault(
        "a map stopped by Ctrl-C and resumed",
        lambda shop: resumed(shop, MAP, stop_map),
        same(),
    ),
    Fault(
        "a map stopped by kill -9 and resumed",
        lambda shop: resumed(
            shop,
            MAP,
            killed(
                "undulatus.scenes.files.zarr_store.RecordingStore._record",
                "calls[-1][1].startswith('cloud_mask/c/')",
            ),
        ),
        same(),
    ),
    Fault(
        "a map resumed after its input was replaced",
        lambda shop: (stop_map(shop), replace_days(shop), shop.run(*MAP, "--resume"))[-1],
        exits(1, "fingerprint: the model, the input or the options .* have changed"),
    ),
    Fault(
        "a finished map resumed after its input was replaced",
        lambda shop: (
            shop.copy("days.zarr", MODEL),
            shop.run(*MAP),
            replace_days(shop),
            shop.run(*MAP, "--resume"),
        )[-1],
        exits(1, "fingerprint: the model, the input or the options .* have changed"),
    ),
    Fault(
        "two writers of a map",
        lambda shop: while_another_writes(shop, MAP),
        exits(1, r"map.zarr is being written by process \d+"),
    ),
    Fault(
        "two fits to one model",
        lambda shop: while_another_writes(shop, FIT),
        exits(1, r"new.undulatus is being written by process \d+"),
    ),
    # What is given
    Fault(
        "DATA given twice",
        lambda shop: with_data(
            shop, lambda: None, ("map", MODEL, *["days.zarr"] * 2, "-o", "m.nc")
        ),
        exits(2, "days.zarr is given twice"),
    ),
    Fault(
        "a model in place of DATA",
        lambda shop: with_model(shop, lambda path: None, "fit", MODEL, "-o", "new.undulatus"),
        exits(1, "clouds.undulatus is a model or a checkpoint of undulatus, not data"),
    ),
    Fault(
        "complex numbers in a GeoTIFF",
        lambda shop: with_image(shop, lambda path: rewrite(path, lambda bands: bands * 1j)),
        exits(1, "complex.* are not real numbers"),
    ),
    Fault(
        "1e300 in a GeoTIFF of double precision",
        lambda shop: with_image(shop, lambda path: rewrite(path, with_a_huge_pixel)),
        exits(0, "mapped, 1 missing"),
    ),
    Fault(
        "a band on a coarser grid in netCDF, mapped",
        lambda shop: with_image(shop, as_netcdf_with_a_coarse_band, (*COARSE_MAP, "map.nc")),
        exits(1, r"missing: B08.*on other grids B08 \(45 x 60 pixels"),
    ),
    Fault(
        "a band on a coarser grid in netCDF, learned from",
        lambda shop: with_image(shop, as_netcdf_with_a_coarse_band, COARSE_FIT),
        exits(0, r"left out of .*image.nc, for their grids: B08 \(45 x 60 pixels"),
    ),
    Fault(
        "an image with a mask of its own, mapped",
        lambda shop: missing_in_map(with_image(shop, mask_columns)),
        gives(90 * 40),
    ),
    Fault(
        "an image with a mask of its own, learned from",
        lambda shop: cover_fit(shop, mask_columns),
        exits(0, r"1,350 labelled pixels are missing in the image"),
    ),
    Fault(
        "a fill value that nobody declared, learned from",
        lambda shop: cover_fit(
            shop, lambda path: rewrite(path, lambda bands: hidden(bands, -9999.0))
        ),
        exits(0, r"1,350 labelled pixels \(35%\) hold -9999 in .*no file declares as nodata"),
    ),
    Fault(
        "zeros that nobody declared, in all bands",
        lambda shop: cover_fit(shop, lambda path: rewrite(path, lambda bands: hidden(bands, 0.0))),
        exits(0, r"1,350 labelled pixels \(35%\) hold 0 in all bands"),
    ),
    Fault(
        "an empty band and a constant one",
        lambda shop: cover_fit(shop, with_nothing_there),
        exits(0, r"any labelled pixel: band_5.*same value at all labelled pixels: band_6 \(7\)"),
    ),
    Fault(
        "windows on an image of pixels twice as wide",
        lambda shop: (
            cover_fit(shop, lambda path: None, "--windows", "3"),
            with_image(shop, widen, ("map", "new.undulatus", "image.tif", "-o", "map.tif")),
        )[1],
        exits(1, "pixels of 20 x 10 m, but the model learned from windows of pixels of 10 x 10 m"),
    ),
    Fault(
        "a raster of labels beside the image, without a reference system",
        lambda shop: misplaced(
            shop, lambda: lose_reference(transform=Affine(10, 0, 5e5, 0, -10, 0)), "labels.tif"
        ),
        exits(1, "labels.tif has no coordinate.*their bounds are not the same"),
    ),
    Fault(
        "a raster of labels on the image, without a reference system",
        lambda shop: misplaced(shop, lose_reference, "labels.tif"),
        exits(0, "labels.tif has no coordinate.*is taken to be in EPSG:32632"),
    ),
    Fault(
        "a raster of labels without any georeference",
        lambda shop: misplaced(shop, lambda: lose_reference(transform=None), "labels.tif"),
        exits(1, "labels.tif has no georeference, but .*image.tif has one"),
    ),
    Fault(
        "an image with ground control points alone, learned from",
        lambda shop: misplaced(shop, keep_control_points_alone),
        exits(1, "ground control points only.*gdalwarp -tps"),
    ),
    Fault(
        "an image with ground control points alone, mapped",
        lambda shop: with_image(shop, lambda path: keep_control_points_alone()),
        exits(1, "ground control points only.*gdalwarp -tps"),
    ),
    Fault(
        "an image that lacks rows in its middle",
        lambda shop: misplaced(
            shop, change_image(lambda image: image.isel(y=np.r_[:40, 60:90])), image="image.nc"
        ),
        exits(1, "y is not regular: the steps are from -210 to -10"),
    ),
    Fault(
        "an image whose latitudes say that they are longitudes",
        lambda shop: misplaced(
            shop,
            change_image(
                lambda image: image.assign_coords(
                    y=image["y"].assign_attrs(standard_name="projection_x_coordinate")
                )
            ),
            image="image.nc",
        ),
        exits(1, "y grows to the north by its name, but its attribute standard_name"),
    ),
    Fault(
        "polygons in metres that say they are in degrees",
        lambda shop: misplaced(shop, call_metres_degrees),
        exits(1, "in EPSG:4326, which are no degrees"),
    ),
    Fault(
        "rows of pixels that are fractions",
        lambda shop: with_table(shop, row=lambda table: table["row"] + 0.5),
        exits(1, "The row of a pixel is a whole number, but points.csv has"),
    ),
    Fault(
        "rows of pixels that are words",
        lambda shop: with_table(shop, row="third"),
        exits(1, "'row' of points.csv.*'third' there. Give a number"),
    ),
    # Fits that are stopped, or would replace a model
    Fault(
        "a model that exists",
        lambda shop: (
            shop.copy("days.zarr", MODEL),
            shop.run(*FIT[:-1], MODEL),
        )[-1],
        exits(1, "clouds.undulatus exists.*--overwrite"),
    ),
    Fault(
        "Ctrl-C in undulatus fit",
        said_when_interrupted,
        gives((130, "Run the same command with --resume to continue.")),
    ),
    Fault(
        "a fit stopped by Ctrl-C and resumed",
        lambda shop: resumed(shop, FIT, interrupted),
        same(),
    ),
    Fault(
        "a fit stopped by kill -9 and resumed",
        lambda shop: resumed(shop, FIT, killed("checkpoint.Checkpoint.save", "len(calls) == 3")),
        same(),
    ),
    Fault(
        "a fit begun anew beside one that was stopped",
        refit_after_interrupt,
        exits(1, "An unfinished fit lies beside new.undulatus.*--resume .*--restart"),
    ),
    # Scores
    Fault(
        "scores of days that were held out",
        lambda shop: scored(shop, "both"),
        gives(lambda line: "1 day held out of the fit" in line),
    ),
    Fault(
        "scores against a label that is not there",
        lambda shop: with_data(shop, lambda: None, (*SCORE, "--label", "cloud")),
        exits(1, "no 'cloud' to score against.*Found: .*--label"),
    ),
    Fault(
        "scores against temperatures",
        lambda shop: with_data(shop, lambda: None, (*SCORE, "--label", "IR_108")),
        exits(1, "'IR_108' has the values .*a mask has 0 .clear. and 1"),
    ),
    Fault(
        "scores of days that the model learned from",
        lambda shop: scored(shop, "training"),
        gives(lambda line: "TRAINED on" in line),
    ),
    Fault(
        "scores of new days",
        lambda shop: scored(shop, "later"),
        gives(lambda line: "2 days that the model has not seen" in line),
    ),
    # Disks
    *(
        Fault(
            f"a disk that fills while {output} is written",
            lambda shop, output=output: on_a_small_disk(shop, output),
            exits(1, r"map\S* could not be written: .*Is the disk full"),
        )
        for output in ("map.nc", "map.tif")
    ),
    Fault(
        "a disk that fills while map.zarr is written",
        lambda shop: on_a_small_disk(shop, "map.zarr"),
        exits(
            1, "could not be written: .*Is the disk full.*--resume", keeps=".map.unfinished.zarr"
        ),
    ),
    Fault(
        "a disk that is full", on_a_full_disk, exits(1, "map.zarr does not fit on its disk.*free")
    ),
    Fault(
        "an output where nothing can be written",
        lambda shop: (shop.copy("days.zarr", MODEL), shop.run(*MAP[:-1], "/proc/map.zarr"))[-1],
        exits(1, "/proc/.*could not be written"),
    ),
    # Paths
    *(
        Fault(
            f"{what} as the output of undulatus {command[0]}",
            lambda shop, path=path, make=make, command=command: written_to(
                shop, path, make, command
            ),
            exits(code, words),
        )
        for what, (path, make, code, words) in ODD_PATHS.items()
        for command in (MAP, FIT)
    ),
    *(
        Fault(
            f"{what} as a model",
            lambda shop, path=path, make=make: (make(), shop.run("info", path))[-1],
            exits(2, ""),
        )
        for what, (path, make, _, _) in ODD_PATHS.items()
    ),
    Fault("a model replaced through a link", through_a_link, gives((True, True))),
    Fault(
        "x.tif beside x.tiff",
        beside_each_other,
        gives(
            [
                "x.qml",
                "x.tif",
                "x.tif.aux.xml",
                "x.tiff",
                "x.tiff.aux.xml",
                "x_layers.tif",
                "x_layers.tiff",
                "x_quality_flag.tif",
                "x_quality_flag.tiff",
            ]
        ),
    ),
    Fault(
        "an address in the colours of a map",
        with_forged_colours,
        exits(1, "x.tif has classes that cannot be shown"),
    ),
    Fault(
        "a map beside the layers of another",
        beside_layers_of_another,
        exits(1, "x_layers.tif exists. Give another name, or --overwrite"),
    ),
    Fault(
        "a folder of someone in the place of a map",
        over_a_folder_of_someone,
        exits(1, "x.zarr is a folder that undulatus did not write"),
    ),
    Fault("names with spaces and letters of many alphabets", in_odd_folders, exits(0, "mapped")),
    # Mistakes on the command line
    *(
        Fault(
            f"swapped arguments of undulatus {name}",
            lambda shop, name=name, more=more: (
                shop.copy("days.zarr", MODEL, "image.tif"),
                shop.run(name, "days.zarr", MODEL, *more),
            )[-1],
            exits(2, "clouds.undulatus is a model, and days.zarr is not: MODEL comes first"),
        )
        for name, more in (
            ("map", ("-o", "map.zarr")),
            ("score", ()),
            ("suggest", ("-o", "points.csv")),
        )
    ),
    Fault(
        "a picture of a time that the scene does not have",
        lambda shop: with_data(shop, lambda: None, (*MAP, "--picture", "2031-01-01T12:00")),
        exits(1, "No acquisition was taken at 2031-01-01.*covers 2010-01-01"),
    ),
    Fault(
        "a video of a span that is none",
        lambda shop: with_data(shop, lambda: None, (*MAP, "--video", "noon")),
        exits(1, "'noon' is not a time"),
    ),
    Fault(
        "a video of a GeoTIFF",
        lambda shop: with_data(
            shop, lambda: None, (*MAP[:-1], "map.tif", "--video", "2010-01-01/2010-01-02")
        ),
        exits(2, "need a map in .zarr or .nc"),
    ),
    Fault(
        "an output of no known format",
        lambda shop: with_data(shop, lambda: None, (*MAP[:-1], "map.xyz")),
        exits(1, "map.xyz cannot be written: the name must end in one of .zarr"),
    ),
    Fault(
        "a model of other bands",
        lambda shop: (
            shop.copy(MODEL, "image.tif"),
            shop.run("map", MODEL, "image.tif", "-o", "map.tif"),
        )[-1],
        exits(1, "missing: .*BT9"),
    ),
    # Models
    Fault("a model cut short", lambda shop: with_model(shop, cut), exits(1, "truncated")),
    Fault(
        "a changed bit in a model",
        lambda shop: with_model(shop, lambda path: flip(path, 0.99)),
        exits(1, "damaged: the checksum of"),
    ),
    Fault(
        "a changed bit in the header of a model",
        lambda shop: with_model(shop, lambda path: flip(path, 0.05)),
        exits(1, "clouds.undulatus: (is damaged|is truncated|has a broken)"),
    ),
    Fault(
        "a model of no bytes",
        lambda shop: with_model(shop, lambda path: path.write_bytes(b"")),
        exits(1, "clouds.undulatus: is truncated, or not a file of undulatus"),
    ),
    Fault(
        "a header that says it is enormous",
        lambda shop: with_model(shop, lambda path: path.write_bytes(b"\xff" * 8 + b"{}")),
        exits(1, "clouds.undulatus: is truncated, or not a file of undulatus"),
    ),
    Fault(
        "a pickle in place of a model",
        lambda shop: with_model(shop, write_pickle),
        exits(1, "not a file of undulatus"),
    ),
    Fault(
        "a model of a later version",
        lambda shop: with_model(
            shop, lambda path: forge(path, lambda tensors, header: header.update(schema=99))
        ),
        exits(1, "has schema 99, but this version"),
    ),
    Fault(
        "a forged model with NaN among its numbers",
        lambda shop: with_model(
            shop,
            lambda path: forge(
                path, lambda tensors, header: max(tensors.values(), key=np.size).fill(np.nan)
            ),
        ),
        exits(1, "holds NaN or infinity"),
    ),
    *(
        Fault(
            f"a forged model: {name}",
            lambda shop, change=change: with_model(shop, lambda path: forge(path, change)),
            exits(1, f"clouds.undulatus: .*{words}"),
        )
        for name, (change, words) in FORGERIES.items()
    ),
    Fault(
        "a forged model of an image: a feature twice",
        lambda shop: with_image(
            shop,
            lambda path: forge(
                "cover.undulatus",
                lambda tensors, header: header["feature_names"].__setitem__(0, "B03"),
            ),
        ),
        exits(1, "cover.undulatus: names a feature twice"),
    ),
    Fault(
        "a forged model whose header claims a label of 400 million characters",
        lambda shop: with_model(
            shop,
            lambda path: forge(
                path,
                lambda tensors, header: header["classes"].update(
                    array=["a", "b"], dtype="<U400000000"
                ),
            ),
        ),
        exits(1, "clouds.undulatus: .*U400000000"),
    ),
    Fault(
        "a forged model of 4 GB, nearly all of it a hole",
        lambda shop: with_model(shop, claim_gigabytes),
        exits(1, "clouds.undulatus: "),
    ),
    Fault("a model of an earlier version", older_model, gives(lambda layers: layers >= 5)),
    Fault(
        "a model that is not there",
        lambda shop: shop.load("nowhere.undulatus"),
        refused(ModelFileError, "there is no such file"),
    ),
    *(
        Fault(
            f"commands to the terminal in a model, in undulatus {command[0]}",
            lambda shop, command=command: escapes_in(shop, *command),
            gives([]),
        )
        for command in (
            ("info", "odd.undulatus"),
            ("explain", "odd.undulatus", "-o", "odd.png"),
        )
    ),
    # Downloads
    Fault(
        "another archive than the one that is pinned",
        lambda shop: fetched(shop, content=b"other", expected=b"pinned"),
        refused(DatasetError, "is not the expected file"),
    ),
    Fault(
        "a changed file in the cache of data sets",
        lambda shop: fetched(shop, content=b"other", expected=b"pinned", cached=b"6,6\n"),
        refused(DatasetError, "is not the expected file"),
    ),
    Fault(
        "a sound file in the cache of data sets",
        lambda shop: fetched(shop, content=b"other", expected=b"pinned", cached=b"1,2\n"),
        gives(b"1,2\n"),
    ),
)
