"""The posterior handed out against Markov chains, and what it changes in a fit. Prints tables.

python -m benchmarks.posterior

First table: latent variances and means at new pixels, for random frequencies and a signal variance
that stay fixed, against a Markov chain over the 12 weights. Second: one VFF-GPC of D=50 on 20,000
pixels of the Sentinel-2 image, with each posterior for the same frequencies. Third: how rare two
positives among 20,000 rows are, by RFF-GPC of D=20.
"""

from __future__ import annotations

import time
import warnings
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.special import log_expit

from undulatus import RFFGPC, VFFGPC, datasets
from undulatus.gp import learning
from undulatus.gp.backends import HOST
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.features import fourier_features
from undulatus.gp.inference import AscentConfig, WeightSpace, ascend, fit_quadratic
from undulatus.gp.kernels import mean_distance
from undulatus.gp.likelihood import EXPECTED, QUADRATIC, expected_log_sigmoid
from undulatus.gp.posterior import Posterior
from undulatus.gp.search import choose_start

Array = np.ndarray[Any, Any]

PROBLEMS = {"sentinel2_clouds": 400, "covertype": 600, "satimage": 500}
"""Training rows by data set; as many more are new."""

DRAWS = 60_000
"""Steps of the Markov chain."""


def draw_problem(name: str, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return 2n standardised pixels and whether each is of the chosen class."""
    data = getattr(datasets, f"load_{name}")()
    chosen = rng.choice(data.train if "train" in data else len(data.X), 2 * n, replace=False)
    X, y = data.X[chosen].astype(float), data.y[chosen]
    classes, counts = np.unique(y, return_counts=True)
    wanted = classes[1] if len(classes) == 2 else classes[np.argmax(counts)]
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), y == wanted


def sample_weights(z: Array, sign: Array, posterior: Posterior, rng: np.random.Generator) -> Array:
    """Return draws (DRAWS / 10, k) of a Markov chain shaped by an approximate posterior."""

    def log_density(w: Array) -> float:
        return float(np.sum(log_expit(sign * (z @ w))) - 0.5 * w @ w)

    jumps = 2.38 / np.sqrt(len(posterior.mean)) * posterior.root.T
    w, kept = posterior.mean, []
    density = log_density(w)
    for i in range(DRAWS):
        proposed = w + jumps @ rng.normal(size=len(w))
        new_density = log_density(proposed)
        if np.log(rng.random()) < new_density - density:
            w, density = proposed, new_density
        if i % 10 == 0:
            kept.append(w)
    return np.array(kept)


def compare(name: str, n: int, seed: int) -> None:
    """Print the two posteriors of one small problem against the Markov chain."""
    rng = np.random.default_rng(seed)
    x, positive = draw_problem(name, n, rng)
    d = x.shape[1]
    plain = Standardisation(np.zeros(d), np.ones(d))
    pixels = Pixels(x[:n], positive[:n], None, plain, HOST, 256)
    start = choose_start(pixels, rng.normal(size=(6, d)), mean_distance(np.ones(d)), rng)
    frequencies = start.frequencies
    space = WeightSpace(pixels, frequencies)
    (first,) = fit_quadratic(space, start.signal_variance, AscentConfig(max_passes=30))
    (best,) = ascend(space, EXPECTED, [first.gaussian], AscentConfig(max_passes=100, tol=1e-7))
    gamma = best.gaussian.signal_variance
    # At a signal variance that stays fixed.
    quadratic = space.solve(0, first.gaussian.sites, gamma)
    for _ in range(300):
        ((sites, _),) = space.evaluate(QUADRATIC, [0], [quadratic])
        quadratic = space.solve(0, sites, gamma)
    best, quadratic = best.gaussian.posterior, quadratic.posterior
    z, new = (fourier_features(rows, frequencies, gamma) for rows in (x[:n], x[n:]))
    latent = new @ sample_weights(z, np.where(positive[:n], 1, -1), best, rng).T
    columns = [f"{name:17}", f"{seed:4}", f"{gamma:8.3g}"]
    for posterior in (quadratic, best):
        mean, variance = HOST.moments(new, posterior.mean, posterior.root.T)
        off = np.abs(mean - latent.mean(axis=1)) / latent.std(axis=1)
        columns += [f"{np.median(variance / latent.var(axis=1)):5.2f}", f"{np.median(off):5.2f}"]
    print("  ".join(columns))


def time_final_passes(seed: int = 0) -> None:
    """Print test NLL, γ and the time of the final passes with each posterior."""
    data = datasets.load_sentinel2_clouds()
    rng = np.random.default_rng(seed)
    rows, test = rng.choice(data.train, 20_000, replace=False), data.test
    final, optimise = learning.fit_posteriors, learning.optimise
    seconds, ends = [], []

    def timed(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        fit = final(*args, **options)
        seconds.append(time.perf_counter() - began)
        return fit

    def optimise_once(*args: Any, **options: Any) -> Any:
        ends.extend([] if ends else [optimise(*args, **options)])
        return ends[0]

    for posterior in ("bound", "variational"):
        with (
            warnings.catch_warnings(),
            patch.object(learning, "fit_posteriors", timed),
            patch.object(learning, "optimise", optimise_once),
        ):
            warnings.simplefilter("ignore")
            model = VFFGPC(50, n_estimators=1, posterior=posterior, random_state=seed)
            model.fit(data.X[rows], data.y[rows])
        probability = model.predict_proba(data.X[test])
        of_label = probability[
            np.arange(len(test)), (data.y[test] == model.classes_[1]).astype(int)
        ]
        columns = [f"{posterior:11}", f"{-np.mean(np.log(of_label)):.4f}"]
        columns += [f"{model.signal_variance_:6.1f}", f"{len(model.lower_bounds_):6}"]
        print("  ".join([*columns, f"{seconds[-1]:.2f} s"]))


def rare_class() -> None:
    """Print the mean probability of a class with two rows among 20,000: 0.0001 is true."""
    X, y = np.random.default_rng(0).normal(size=(20_000, 2)), np.zeros(20_000, dtype=int)
    y[[5, 777]] = 1
    for posterior in ("bound", "variational"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = RFFGPC(
                20, n_estimators=1, solver="stochastic", posterior=posterior, random_state=0
            ).fit(X, y)
        mean, variance = model.latent_mean_and_variance(X)
        under_posterior = expected_log_sigmoid(-mean, variance)[1].mean()
        predicted = model.predict_proba(X)[:, 1].mean()
        print(f"{posterior:11}  {under_posterior:.6f}  {predicted:.6f}")


def main() -> None:
    """Print all tables."""
    print("data set           seed  gamma    bound: variance, mean   variational: variance, mean")
    for name, n in PROBLEMS.items():
        for seed in range(2):
            compare(name, n, seed)
    print("\nposterior       NLL   gamma  passes  time of the final passes")
    time_final_passes()
    print("\nposterior    mean of the sigmoid  mean of predict_proba")
    rare_class()


if __name__ == "__main__":
    main()
