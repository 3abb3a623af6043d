"""A few synthetic days and a small model of them, shared by the tests of products."""

import warnings

import numpy as np
import pytest
import xarray as xr

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


@pytest.fixture(scope="module")
def scene(days):
    """Five hours of a day, 21 acquisitions: night, dawn about 08:00, and day."""
    return days.isel(time=slice(24, 45)).compute()


@pytest.fixture(scope="module")
def result(scene):
    """A made-up map: the truth, not quite certain."""
    probability = (0.1 + 0.8 * scene["cloud_truth"]).astype(np.float32)
    return xr.Dataset(
        {
            "cloud_mask": scene["cloud_truth"],
            "cloud_probability": probability,
            "cloud_latent_variance": probability,
        }
    )


@pytest.fixture(scope="session")
def seen(days):
    """Three days of a scene, with a gap of ten acquisitions on the first."""
    kept = np.delete(np.arange(3 * 96), slice(20, 30))
    return days.isel(time=kept).compute()


@pytest.fixture(scope="session")
def maps(seen):
    """A made-up map of it: the truth, not quite certain, with a pixel missing."""
    probability = (0.1 + 0.8 * seen["cloud_truth"]).astype(np.float32)
    probability[:, 3, 4] = np.nan
    mask = (probability > 0.5).where(probability.notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "cloud_mask": mask,
            "cloud_probability": probability,
            "cloud_latent_variance": 0.5 * probability,
        },
        attrs=seen.attrs,
    )
