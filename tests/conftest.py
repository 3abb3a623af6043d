"""What all tests share: a hypothesis profile, and small problems that nobody may write to."""

import os

# Before numpy: matrices here are small, and threads that wait for each other on a busy machine
# slow them thirtyfold. OMP_NUM_THREADS would do it too, but is ours to test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import make_moons

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
