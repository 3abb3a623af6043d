"""Synthetic days, a small model of them, made-up maps and explanations."""

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
    """A small model of the four days, with one held out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_scene(days, method="rff", n_frequencies=10, n_estimators=1, pixels=2000, seed=0)


@pytest.fixture(scope="module")
def scene(days):
    """Five hours of a day, 21 acquisitions: night, dawn about 08:00, and day."""
    return days.isel(time=slice(24, 45)).compute()


@pytest.fixture(scope="module")
def result(scene):
    """A made-up map: the truth with probabilities of 0.1 and 0.9."""
    probability = (0.1 + 0.8 * scene["cloud_truth"]).astype(np.float32)
    return xr.Dataset(
        {
            "cloud_mask": scene["cloud_truth"],
            "cloud_probability": probability,
            "cloud_latent_variance": probability,
        }
    )
