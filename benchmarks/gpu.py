"""What a GPU brings: passes, fits and predictions on it, against double precision on processors.

    python -m benchmarks.gpu --write FOLDER [--year YEAR.zarr]    # where there is a network
    python -m benchmarks.gpu FOLDER [--only PART ...] [-o RESULTS.json]    # where there is a GPU

The first writes the data: the Sentinel-2 image's halves, and 300,000 training pixels of the
landmark simulator under a high sun, with pixels of other days to test on. The second measures on
the GPU that torch finds (``--device``), beside the GPU's own rates of products of matrices and of
copies. All times are wall time, after a warm-up of the same work unless said. ``--only processor``
makes the fits without a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undulatus import VFFGPC
from undulatus._system import count_cores, processor_name
from undulatus.gp.backends import make_backend
from undulatus.gp.data import Pixels
from undulatus.gp.inference import Gaussian, Sites, WeightSpace
from undulatus.gp.likelihood import QUADRATIC
from undulatus.gp.posterior import Posterior
from undulatus.gp.taper import frequency_deviations

Array = np.ndarray[Any, Any]
Record = dict[str, Any]

DISC = 3712
"""Pixels along each side of SEVIRI's disc."""

SEEDS = {1: 6, 2: 4, 8: 1}
"""Seeds of fits, by number of estimators."""

PASS_ROWS, PASS_FREQUENCIES = 300_000, 1000
PREDICTED_ROWS = 16_000_000


# Data


def write(folder: Path, year: Path | None) -> None:
    """Write the data of the benchmark to files that need no package to be read."""
    from benchmarks.tasks import load

    folder.mkdir(parents=True, exist_ok=True)
    task = load("sentinel2")
    np.savez_compressed(
        folder / "sentinel2.npz", X=task.X, y=task.y, X_test=task.X_test, y_test=task.y_test
    )
    np.savez_compressed(folder / "landmarks.npz", **_landmark_pixels(year))


def _landmark_pixels(year: Path | None) -> dict[str, Array]:
    """Return pixels of the landmark simulator under a high sun, balanced only where they train."""
    from undulatus import scenes
    from undulatus.products.landmarks import choose_pixels
    from undulatus.scenes.features import landmark_features
    from undulatus.scenes.sampling import balanced_sample, gather_pixels
    from undulatus.scenes.scene import check_scene
    from undulatus.scenes.simulators.landmark import synthetic_landmark

    scene = check_scene(synthetic_landmark() if year is None else scenes.open_scene(year))
    split = choose_pixels(scene, "cloud_mask_l2", 0.25, 0, 2)
    rng = np.random.default_rng(0)
    classes = split.legend.classes
    train = balanced_sample(split.labels, split.learnable, 300_000, rng, classes)["high"]
    held_out = split.regimes["high"] & split.held_out[:, None, None]
    test = np.sort(rng.choice(np.flatnonzero(held_out), 100_000, replace=False))
    features = landmark_features(scene, checked=True)
    acquisition = split.labels[0].size
    return {
        "X": gather_pixels(features, np.sort(train), lambda *_: None).astype(np.float32),
        "y": split.labels.ravel()[np.sort(train)].astype(np.int64),
        "groups": scene["time"]
        .values.astype("datetime64[D]")
        .astype(int)[np.sort(train) // acquisition],
        "X_test": gather_pixels(features, test, lambda *_: None).astype(np.float32),
        "y_test": split.labels.ravel()[test].astype(np.int64),
        "shares": np.array(split.shares["high"]),
    }


def nll(y: Array, p: Array) -> float:
    """Return the mean negative log likelihood (nats) of labels."""
    p = np.clip(np.asarray(p, dtype=np.float64), 1e-12, 1.0 - 1e-12)
    return float(-np.mean(np.where(y == 1, np.log(p), np.log1p(-p))))


# Time


def timed(function: Callable[[], Any], repeats: int = 5, warm_ups: int = 1) -> float:
    """Return the least wall time of a function (s) whose work on the GPU is waited for."""
    for _ in range(warm_ups):
        function()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def gpu_rates(device: str) -> Record:
    """Return what the GPU does at most: products of matrices (operations/s), copies (bytes/s)."""
    n = 8192
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    rates = {"single_matrix_rate": 2 * n**3 / timed(lambda: a @ b)}
    torch.backends.cuda.matmul.allow_tf32 = True
    rates["tf32_matrix_rate"] = 2 * n**3 / timed(lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = a[: n // 2, : n // 2].double(), b[: n // 2, : n // 2].double()
    rates["double_matrix_rate"] = 2 * (n // 2) ** 3 / timed(lambda: a @ b)
    big, other = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    rates["copy_rate"] = 2 * 2**30 / timed(lambda: other.copy_(big))
    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    rates["to_gpu_rate"] = 2**28 / timed(lambda: big[: 2**28].copy_(host, non_blocking=True))
    return rates


# Parts


def passes(device: str, folder: Path) -> Record:
    """Time one pass over many rows with many frequencies, in single precision."""
    rng, d, n, k = np.random.default_rng(0), 16, PASS_ROWS, 2 * PASS_FREQUENCIES
    x = rng.normal(size=(n, d)).astype(np.float32)
    pixels = Pixels(x, rng.random(n) < 0.5, None, None, make_backend(np.float32), 4096)
    there = pixels.on(device, False, PASS_FREQUENCIES)
    frequencies = rng.normal(size=(PASS_FREQUENCIES, d)) / 4.0
    root = np.tril(rng.normal(size=(k, k))) / k
    posterior = Posterior(rng.normal(size=k), root, 0.0, 0.0, 0.0)
    gaussian = Gaussian(1.0, posterior=posterior)
    deviations = frequency_deviations(frequencies, 0.02)

    def sites(rows: Pixels) -> Sites:
        space = WeightSpace(rows, frequencies, deviations)
        return space.evaluate(QUADRATIC, [0], [gaussian])[0][0]

    seconds = timed(lambda: sites(there), repeats=5, warm_ups=2)
    operations = 4.0 * n * k**2
    some = pixels.take(np.arange(4096))
    here, on_gpu = sites(some), sites(some.on(device, False, PASS_FREQUENCIES))
    double = sites(
        Pixels(x[:4096].astype(float), some.codes, None, None, make_backend(np.float64), 4096)
    )
    scale = np.abs(double.gram).max()
    return {
        "rows": n,
        "frequencies": PASS_FREQUENCIES,
        "seconds": seconds,
        "operations_per_second": operations / seconds,
        "gram_error_of_gpu": float(np.abs(on_gpu.gram - double.gram).max() / scale),
        "gram_error_of_processor": float(np.abs(here.gram - double.gram).max() / scale),
    }


def predictions(device: str, folder: Path) -> Record:
    """Time probability and variance of pixels on the GPU, and of a whole disc in memory."""
    data = np.load(folder / "landmarks.npz")
    model = _landmark_model(data, 1, device, max_iter=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data["X"], data["y"], groups=data["groups"])
    X_test = data["X_test"]
    reference = _double_on_processor(model, X_test)
    found: Record = {"features": X_test.shape[1], "frequencies": 200}
    rows = np.resize(X_test, (PREDICTED_ROWS, X_test.shape[1]))
    tensor = torch.as_tensor(rows, device=device)
    for precision in ("single", "tf32"):
        model.set_params(precision=precision)
        p, variance = model.predict_proba_and_variance(torch.as_tensor(X_test, device=device))
        p, variance = p[:, 1].cpu().numpy(), variance.cpu().numpy()
        labels = model.predict(torch.as_tensor(X_test, device=device)).cpu().numpy()
        clear_cut = np.abs(reference[0] - 0.5) > 1e-4
        found[precision] = {
            "million_rows_a_second": PREDICTED_ROWS
            / timed(lambda: model.predict_proba_and_variance(tensor))
            / 1e6,
            "million_labels_a_second": PREDICTED_ROWS / timed(lambda: model.predict(tensor)) / 1e6,
            "error_of_probability": float(np.abs(p - reference[0]).max()),
            "error_of_variance": float(np.abs(variance - reference[1]).max()),
            "labels_differ": int(np.sum((labels != (reference[0] > 0.5))[clear_cut])),
            "nll": nll(data["y_test"], p),
            "nll_in_double": nll(data["y_test"], reference[0]),
        }
    model.set_params(precision="single")
    disc = np.resize(X_test, (DISC * DISC, X_test.shape[1]))

    def mask_probability_variance() -> tuple[Array, Array, Array]:
        p, variance = model.predict_proba_and_variance(disc)
        return p[:, 1] > 0.5, p[:, 1], variance

    found["disc_seconds"] = timed(mask_probability_variance, repeats=3)
    model.set_params(device=None)
    small = disc[:1_000_000]
    found["processor_million_rows_a_second"] = 1.0 / timed(
        lambda: model.predict_proba_and_variance(small), repeats=2
    )
    return found


def _landmark_model(
    data: Any, n_estimators: int, device: str | None, seed: int = 0, **options: Any
) -> VFFGPC:
    """Return an unfitted model whose probabilities are those of the real shares of cloud."""
    return VFFGPC(
        200,
        n_estimators=n_estimators,
        random_state=seed,
        device=device,
        prior_correction=list(data["shares"]),
        **options,
    )


def _double_on_processor(model: Any, X: Array) -> tuple[Array, Array]:
    """Return probability and variance in double precision."""
    from sklearn.base import clone  # noqa: F401  (a fitted model is copied, not cloned)

    double = copy.copy(model)
    double.fit_report_ = model.fit_report_ | {"prediction_precision": "double"}
    double.device, double.precision = None, "double"
    p, variance = double.predict_proba_and_variance(X)
    return p[:, 1], variance


def fits(device: str | None, folder: Path) -> Record:
    """Time and score whole fits over several seeds, after a warm-up; see that they repeat."""
    data = np.load(folder / "landmarks.npz")

    def fitted(n_estimators: int, seed: int) -> VFFGPC:
        model = _landmark_model(data, n_estimators, device, seed)
        return model.fit(data["X"], data["y"], groups=data["groups"])

    found: Record = {"seeds": []}
    for n_estimators, seeds in SEEDS.items():
        warm_up = fitted(n_estimators, 0)
        for seed in range(seeds):
            began = time.perf_counter()
            model = fitted(n_estimators, seed)
            own: Record = {"n_estimators": n_estimators, "seed": seed}
            own["seconds"] = time.perf_counter() - began
            own["iterations"] = model.n_iter_
            p = model.predict_proba(data["X_test"])[:, 1]
            own["nll"] = nll(data["y_test"], p)
            if seed == 0:
                own["repeats_bit_for_bit"] = all(
                    np.array_equal(a.frequencies, b.frequencies)
                    and np.array_equal(a.posterior.root, b.posterior.root)
                    for a, b in zip(model.estimators_, warm_up.estimators_, strict=True)
                )
            found["seeds"].append(own)
            print(json.dumps(own), flush=True)
    return found


def processor_fits(device: str, folder: Path) -> Record:
    """Time and score the same fits on the processors of this machine, which needs no GPU."""
    return {"cpu": processor_name(), "cores": count_cores()} | fits(None, folder)


def against_svgp(device: str, folder: Path) -> Record:
    """Time GPyTorch's SVGP and our fit to its final NLL, on the same GPU and data."""
    from benchmarks.svgp import SVGP

    data = np.load(folder / "sentinel2.npz")
    X, y, X_test, y_test = (data[name] for name in ("X", "y", "X_test", "y_test"))
    torch.cuda.synchronize()
    SVGP(400, 20, 1024, device=device).fit(X[:5000], y[:5000])
    began = time.perf_counter()
    theirs = SVGP(400, 3000, 1024, device=device).fit(X, y)
    torch.cuda.synchronize()
    found: Record = {"svgp_seconds": time.perf_counter() - began}
    found["svgp_nll"] = nll(y_test, theirs.predict_proba(X_test)[:, 1])
    for d, n_estimators in ((50, 1), (100, 1), (200, 1), (50, 4), (100, 8)):
        model = VFFGPC(d, n_estimators=n_estimators, random_state=0, device=device).fit(X, y)
        began = time.perf_counter()
        model.fit(X, y)
        found[f"ours_{n_estimators}x{d}"] = {
            "seconds": time.perf_counter() - began,
            "nll": nll(y_test, model.predict_proba(X_test)[:, 1]),
        }
        print(json.dumps(found[f"ours_{n_estimators}x{d}"]), flush=True)
    return found


PARTS = {
    "passes": passes,
    "predictions": predictions,
    "fits": fits,
    "processor": processor_fits,
    "svgp": against_svgp,
}


def main() -> None:
    """Write the data, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the data to the folder")
    parser.add_argument("--year", type=Path, help="a landmark simulator that was made before")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.write:
        write(options.folder, options.year)
        return
    results: Record = {"torch": torch.__version__, "date": datetime.now(UTC).date().isoformat()}
    if torch.cuda.is_available():
        results |= {"gpu": torch.cuda.get_device_name(), "rates": gpu_rates(options.device)}
    print(json.dumps(results, indent=2), flush=True)
    for name in options.only:
        results[name] = PARTS[name](options.device, options.folder)
        print(json.dumps({name: results[name]}, indent=2), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
