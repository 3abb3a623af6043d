"""What all tests share: a hypothesis profile, threads of BLAS, and small read-only problems."""

import os
import threading

# Before numpy: matrices here are small, and threads that wait for each other on a busy machine
# slow them thirtyfold. OMP_NUM_THREADS would do it too, but is ours to test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import make_moons
from threadpoolctl import ThreadpoolController, threadpool_limits

from undulatus._system import single_threaded_blas

# The same examples every time, and no deadline: a busy machine is not a broken identity.
hypothesis.settings.register_profile("undulatus", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("undulatus")


def _frozen(*arrays):
    for array in arrays:
        array.setflags(write=False)
    return arrays


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
    if "blas_threads" in request.fixturenames:
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
