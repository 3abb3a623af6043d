"""A small part to fit: two classes in three features, two runs."""

import numpy as np
import pytest

from undulatus.products.reproduction.problems import write_part
from undulatus.products.reproduction.trials import Trial

ROWS, TEST = 4000, 500


def write_small_part(folder):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS + TEST, 3)).astype(np.float32)
    latent = np.sin(2.0 * features[:, 0]) + features[:, 1]
    truth = (latent > 0).astype(np.uint8)
    wrong = rng.random(len(truth)) < 0.1
    columns = {
        "features": features,
        "labels": np.where(wrong, 1 - truth, truth).astype(np.uint8),
        "truth": truth,
        "coast": features[:, 2] > 1.0,
        "groups": np.arange(len(truth)) // 50,
    }
    test = np.arange(ROWS, ROWS + TEST)
    runs = [(rng.permutation(ROWS), test) for _ in range(2)]
    write_part(folder, columns, runs, most_frequencies=20, seed=0, cloud_share=0.4)


def make_trial(method="rff", n=300, frequencies=5, run=0, **more):
    if method == "gpc":
        return Trial("landmarks", "gpc", "exact", n, 3, run, 0, None, "high", **more)
    more = {"solver": "stochastic", "regime": "high", **more}
    return Trial("landmarks", method, n=n, d=3, run=run, seed=0, frequencies=frequencies, **more)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction") / "data"
    write_small_part(folder / "high")
    return folder


@pytest.fixture(scope="session")
def trial():
    return make_trial


@pytest.fixture(scope="session")
def small_part():
    return write_small_part
