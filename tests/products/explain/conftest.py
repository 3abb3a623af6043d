"""Made-up explanations, of named features and of spectra."""

from dataclasses import replace

import numpy as np
import pytest

from undulatus.products.explain.cosines import Explanation
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS


def make_explanation(regime="", names=("R1", "BT9", "BT10"), cosines=4, seed=0, **changes):
    rng = np.random.default_rng(seed)
    frequency = rng.normal(size=(cosines, len(names)))
    values = {
        "regime": regime,
        "towards": "class 1",
        "measurement": "",
        "names": tuple(names),
        "wavenumbers": None,
        "mean_spectrum": None,
        "weights": np.sort(rng.uniform(0.1, 2.0, cosines))[::-1],
        "amplitudes": rng.uniform(1.0, 3.0, cosines),
        "phase_deviations": np.linalg.norm(frequency, axis=1),
        "frequency": frequency,
        "frequency_step": "standard deviations",
        "pattern": None,
        "unit": "standard deviations",
    }
    return Explanation(**{**values, **changes})


def make_spectral(cosines=3, seed=0, **changes):
    rng = np.random.default_rng(seed)
    values = {
        "measurement": "radiance",
        "wavenumbers": WAVENUMBERS,
        "mean_spectrum": np.full(CHANNELS, 250.0) + rng.normal(size=CHANNELS),
        "pattern": rng.normal(size=(cosines, CHANNELS)),
        "frequency_step": "noise",
        "unit": "K",
    }
    names = [f"{value:.2f}" for value in WAVENUMBERS]
    return make_explanation(names=names, cosines=cosines, seed=seed, **{**values, **changes})


def make_classes(make, classes, *arguments, **changes):
    """Return explanations of the same cosines for several classes with weights of their own."""
    return tuple(
        replace(
            make(*arguments, **changes),
            of_class=name,
            towards=f"class {name}",
            weights=np.random.default_rng(number).uniform(0.1, 2.0, changes.get("cosines", 4)),
        )
        for number, name in enumerate(classes)
    )


@pytest.fixture(scope="session")
def of_classes():
    """Return a function that makes up explanations of several classes."""
    return make_classes


@pytest.fixture(scope="session")
def explanation():
    """Return a function that makes up explanations of named features."""
    return make_explanation


@pytest.fixture(scope="session")
def spectral():
    """Return a function that makes up explanations of spectra."""
    return make_spectral
