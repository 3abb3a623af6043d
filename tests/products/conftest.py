"""Synthetic days, a small model of them, made-up maps and explanations."""

import warnings

import numpy as np
import pytest
import xarray as xr

from undulatus.products.explain.waves import Explanation
from undulatus.products.landmarks import fit_scene
from undulatus.scenes import synthetic_landmark
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS


@pytest.fixture(scope="session")
def days():
    """Four synthetic days, lazy, in two blocks of time."""
    return synthetic_landmark(4, seed=1, chunk_days=2)


@pytest.fixture(scope="session")
def model(days):
    """A small model of the four days, with one held out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_scene(days, method="rff", n_frequencies=10, pixels=2000, seed=0)


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


def make_explanation(regime="", names=("R1", "BT9", "BT10"), waves=4, seed=0, **changes):
    rng = np.random.default_rng(seed)
    frequency = rng.normal(size=(waves, len(names)))
    parts = {
        "regime": regime,
        "towards": "class 1",
        "measurement": "",
        "names": tuple(names),
        "wavenumbers": None,
        "mean_spectrum": None,
        "weights": np.sort(rng.uniform(0.1, 2.0, waves))[::-1],
        "amplitudes": rng.uniform(1.0, 3.0, waves),
        "phase_deviations": np.linalg.norm(frequency, axis=1),
        "frequency": frequency,
        "frequency_step": "standard deviations",
        "pattern": None,
        "unit": "standard deviations",
    }
    return Explanation(**{**parts, **changes})


def make_spectral(waves=3, seed=0, **changes):
    rng = np.random.default_rng(seed)
    parts = {
        "measurement": "radiance",
        "wavenumbers": WAVENUMBERS,
        "mean_spectrum": np.full(CHANNELS, 250.0) + rng.normal(size=CHANNELS),
        "pattern": rng.normal(size=(waves, CHANNELS)),
        "frequency_step": "noise",
        "unit": "K",
    }
    names = [f"{value:.2f}" for value in WAVENUMBERS]
    return make_explanation(names=names, waves=waves, seed=seed, **{**parts, **changes})


@pytest.fixture(scope="session")
def explanation():
    """Return a function that makes up explanations of named features."""
    return make_explanation


@pytest.fixture(scope="session")
def spectral():
    """Return a function that makes up explanations of spectra."""
    return make_spectral


@pytest.fixture(scope="session")
def seen(days):
    """Three days of a scene, with a gap of ten acquisitions on the first."""
    kept = np.delete(np.arange(3 * 96), slice(20, 30))
    return days.isel(time=kept).compute()


@pytest.fixture(scope="session")
def maps(seen):
    """A made-up map of the three days: the truth, less certain, with one pixel missing."""
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
