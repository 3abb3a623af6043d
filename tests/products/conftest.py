"""A few synthetic days and a small model of them, shared by the tests of products."""

import warnings

import pytest

from undulatus.products.landmarks import fit_scene
from undulatus.scenes import synthetic_landmark


@pytest.fixture(scope="session")
def days():
    """Four synthetic days, lazy, in two blocks of time."""
    return synthetic_landmark(4, seed=1, chunk_days=2)


@pytest.fixture(scope="session")
def model(days):
    """A small model of them, one day held out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_scene(days, method="rff", n_frequencies=10, pixels=2000, seed=0)
