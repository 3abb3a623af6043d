"""A few synthetic days and a small model of them, shared by the tests of products."""

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


def make_explanation(regime="", names=("R1", "BT9", "BT10"), waves=4, seed=0, **changes):
    rng = np.random.default_rng(seed)
    frequency = rng.normal(size=(waves, len(names)))
    parts = {
        "regime": regime,
        "towards": "class 1",
        "measurement": "",
        "names": tuple(names),
        "wavenumbers": None,
        "mean": None,
        "weights": np.sort(rng.uniform(0.1, 2.0, waves))[::-1],
        "amplitudes": rng.uniform(1.0, 3.0, waves),
        "turns": np.linalg.norm(frequency, axis=1),
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
        "mean": np.full(CHANNELS, 250.0) + rng.normal(size=CHANNELS),
        "pattern": rng.normal(size=(waves, CHANNELS)),
        "frequency_step": "noise",
        "unit": "K",
    }
    names = [f"{value:.2f}" for value in WAVENUMBERS]
    return make_explanation(names=names, waves=waves, seed=seed, **{**parts, **changes})


@pytest.fixture(scope="session")
def explanation():
    """Return a maker of made-up explanations of named features."""
    return make_explanation


@pytest.fixture(scope="session")
def spectral():
    """Return a maker of made-up explanations of spectra."""
    return make_spectral


ENVIRONMENT = {
    "undulatus": "0.1.0",
    "python": "3.11.2",
    "numpy": "2.3.0",
    "cpu": "made up",
    "cores": 2,
    "platform": "Linux",
}


def run_facts(experiment, **changes):
    """What run.json says of a made-up run."""
    data = {"source": "a twin", "synthetic": True, "path": None, "test_rows": 1000, "d": 16}
    return {
        "experiment": experiment,
        "scale": "quick",
        "data": data,
        "environment": ENVIRONMENT,
        "seed": 7,
        "grid": {"D": [10, 50, 200]},
        "built_in": [],
        "started": "2024-05-01T12:00:00+00:00",
        "seconds": 754.2,
    } | changes


def _record(**told):
    waves, regime = f"-D{told['D']}" if told["D"] else "", told.get("regime", "spectra")
    name = f"{regime}-{told['method']}-{told['solver']}-n{told['n']}{waves}-run{told['run']}"
    scores = {"nll": 0.3, "ece": 0.02, "auc": 0.95}
    return {"id": name, "seed": told["run"], "status": "done", **scores, **told}


def landmark_records(solvers=("batch",), runs=3):
    """Trials over landmarks of which all that the paper claims is true, by closed forms.

    Errors add up: one that falls with n, one with D (twice and a half as large for rff as for
    vff), one that grows from regime to regime. GPC has the first alone.
    """
    records = []
    for place, regime in enumerate(("high", "mid", "low", "night")):
        for run in range(runs):
            best = 0.97 - 0.03 * place + 0.0002 * run
            told = {
                "experiment": "landmarks",
                "regime": regime,
                "d": 6 if regime == "night" else 16,
                "run": run,
                "test_rows": 1000,
                "coast_accuracy": best - 0.05,
                "coast_label_accuracy": best - 0.08 + 0.001 * run,
            }
            for n in (5_000, 10_000, 15_000):
                accuracy = best - 0.02 * 10_000 / n
                records.append(
                    _record(
                        method="gpc",
                        solver="exact",
                        n=n,
                        D=None,
                        accuracy=accuracy,
                        train_accuracy=accuracy + 0.01,
                        fit_cpu_seconds=1e-8 * n**3,
                        predict_cpu_seconds=1e-8 * n**2,
                        **told,
                    )
                )
            for method, loss, cost in (("vff", 0.02, 1e-5), ("rff", 0.03 + 1e-4 * run, 1e-6)):
                for solver in solvers:
                    for n in (10_000, 50_000, 300_000):
                        for D in (10, 50, 200):
                            accuracy = best - 0.02 * 10_000 / n - loss * 10 / D
                            records.append(
                                _record(
                                    method=method,
                                    solver=solver,
                                    n=n,
                                    D=D,
                                    accuracy=accuracy,
                                    train_accuracy=accuracy + 0.01,
                                    fit_cpu_seconds=cost * n * D,
                                    predict_cpu_seconds=1e-4 + 1e-7 * D**2,
                                    **told,
                                )
                            )
    return records


def sounder_records(solvers=("batch",), runs=3):
    """Trials on spectra of which all that the paper claims is true, by closed forms."""
    records = []
    for run in range(runs):
        told = {"experiment": "iavisa", "d": 100, "run": run, "test_rows": 5000}
        whole = 19_938 + run % 2
        for n in (1_000, 5_000, 10_000, whole):
            records.append(
                _record(
                    method="gpc",
                    solver="exact",
                    n=n,
                    D=None,
                    all=n == whole,
                    accuracy=0.81 - 20 / n + 0.001 * run,
                    train_accuracy=0.9,
                    fit_cpu_seconds=1e-8 * n**3,
                    predict_cpu_seconds=5e-8 * n**2,
                    **told,
                )
            )
        for solver in solvers:
            for D in (1, 2, 5, 10, 25, 50, 100, 150):
                vff = 0.85 - 0.01 * abs(np.log2(D / 5)) + 0.0005 * run
                rff = 0.70 + 0.02 * np.log10(D)
                for method, accuracy, learned, cost in (
                    ("vff", vff, min(1.0, 0.84 + 0.03 * np.log2(D)), 8e-3),
                    ("rff", rff, rff + 0.01, 1e-4),
                ):
                    records.append(
                        _record(
                            method=method,
                            solver=solver,
                            n=whole,
                            D=D,
                            accuracy=accuracy,
                            train_accuracy=learned,
                            fit_cpu_seconds=cost * whole * D,
                            predict_cpu_seconds=5e-3 + 5e-4 * D,
                            **told,
                        )
                    )
    return records


MADE_UP = {"landmarks": landmark_records, "iavisa": sounder_records}


@pytest.fixture
def made_up():
    """Make a run's facts and records: ``made_up(experiment, change)``.

    ``change`` takes a record and returns what it is to be instead, or None for no record.
    """

    def make(experiment, change=lambda record: record, facts=None, **how):
        changed = (change(dict(record)) for record in MADE_UP[experiment](**how))
        records = [record for record in changed if record is not None]
        return run_facts(experiment, **(facts or {})), records

    return make


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
