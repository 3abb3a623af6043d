"""Load forged model files and checkpoints, and predict with those that are accepted.

python -m benchmarks.forged_models N [--seed S] [--first I] [--keep FOLDER]

Files of every kind are changed by ``benchmarks.forgery``, which mends their checksums. Each must
be refused with a ModelFileError, or give a model with valid predictions: finite probabilities in
[0, 1] that sum to one, variances of 0 or more, labels as the probabilities say. Anything else is
lost; a lost file is kept in FOLDER. Works on all cores; the same N and S try the same files.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.forgery import forge, put_together, take_apart
from undulatus import GPC, RFFGPC, VFFGPC, load_model, save_model
from undulatus._files import read_tensors
from undulatus._system import count_cores, single_threaded_blas
from undulatus.errors import InputError, ModelFileError, PhaseTooLargeError
from undulatus.estimators.checkpoint import Checkpoint, count_iterations
from undulatus.estimators.pca import SpectralPCA
from undulatus.gp.batch import BatchState
from undulatus.gp.minibatch import State
from undulatus.regimes import Regime, RegimeClassifier

ANGLE = "angle"
BANDS = ["R1", "BT9"]
REFUSED, IDENTICAL, ANOTHER, TOO_FAR, LOST = OUTCOMES = (
    "refused with ModelFileError",
    "accepted, bit-identical predictions",
    "accepted, another model with valid predictions",
    "accepted, another model that names the row too far from its training data",
    "LOST",
)
CHUNK = 500
"""Inputs that a process tries at a time."""
PROVENANCE = {
    "chain": "image",
    "seed": 0,
    "legend": {"classes": [0, 1], "names": ["land", "cloud"], "codes": [0, 1], "cloud": "cloud"},
    "image_features": {"bands": BANDS, "indices": [], "windows": [3], "roles": {}},
    "training_groups": {"1": [0.0, 0.0, 1.0, 1.0]},
    "note": None,
}


# Sound files


@cache
def make_rows(n: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return rows of two features, and one of three classes of each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * [0.2, 15.0] + [0.4, 280.0]
    latent = np.sin(5.0 * X[:, 0]) + (X[:, 1] - 280.0) / 15.0 + 0.3 * rng.normal(size=n)
    return X, np.digitize(latent, [0.5, 1.5])


@cache
def sound_files() -> dict[str, bytes]:
    """Return the content of a small file of every kind, by name."""
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        single_threaded_blas(),
    ):
        # Whether a model is the best there is does not matter here.
        warnings.simplefilter("ignore")
        path = Path(folder) / "file"
        for name, model in _models():
            save_model(model, path)
            found[name] = path.read_bytes()
        for solver in ("batch", "stochastic"):
            X, y = make_rows(60, 0)
            state = Path(folder) / solver
            options = {"max_iter": 2, "n_estimators": 1, "random_state": 0, "solver": solver}
            VFFGPC(2, checkpoint=state, **options).fit(X, y > 0)
            found[f"checkpoint-{solver}"] = state.read_bytes()
    found["regimes-by-name"] = _with_named_regimes(found["regimes"])
    return found


def _models() -> Iterator[tuple[str, Any]]:
    X, y = make_rows(80, 0)
    more, labels = make_rows(3, 1)
    few = {"max_iter": 1, "random_state": 0}
    one, two = {**few, "n_estimators": 1}, {**few, "n_estimators": 2}
    words = np.array(["clear", "cloud", "haze"])
    cloudy = y > 0
    yield "gpc", GPC(max_iter=1).fit(X[:9], cloudy[:9])
    yield "gpc-classes", GPC(max_iter=1, kernel="matern32").fit(X[:12], y[:12])
    updated = GPC(max_iter=1).fit(X[:9], cloudy[:9])
    yield "gpc-updated", updated.update(more, labels > 0)
    named = RFFGPC(2, **one).fit(pd.DataFrame(X, columns=BANDS), cloudy.astype(int))
    named.provenance_ = PROVENANCE
    yield "rff", named
    yield "rff-single", RFFGPC(2, precision="single", **two).fit(X, cloudy)
    tolerant = {"variance_tolerance": 1e-2, "warp": False, "class_weight": "balanced"}
    yield "vff-tolerant", VFFGPC(3, **one, **tolerant).fit(X, words[y.clip(0, 1)])
    shares = {"prior_correction": [0.7, 0.3], "init_frequencies": np.ones((4, 2))}
    yield "vff-ensemble", VFFGPC(2, **two, **shares).fit(X, cloudy)
    classes = {"prior_correction": {0: 0.5, 1: 0.3, 2: 0.2}}
    yield "vff-classes", VFFGPC(2, **two, **classes).fit(X, y)
    changed = VFFGPC(2, **two).fit(X, words[y])
    yield "vff-updated", changed.update(more, words[labels]).update(more[:2], words[labels[:2]])
    yield (
        "pipeline-scaler-pca",
        make_pipeline(StandardScaler(), PCA(2, whiten=True), RFFGPC(2, **one)).fit(X, cloudy),
    )
    noise = np.array([0.1, 3.0])
    spectral = make_pipeline(SpectralPCA(2, noise=noise), "passthrough", VFFGPC(2, **one))
    yield "pipeline-spectral", spectral.fit(X, y)
    yield (
        "pipeline-incremental",
        make_pipeline(IncrementalPCA(1), GPC(max_iter=1)).fit(X[:9], cloudy[:9]),
    )
    kinds = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    filled = make_pipeline(SimpleImputer(), StandardScaler())
    columns = ColumnTransformer([("kinds", kinds, [1])], remainder=filled)
    yield "pipeline-columns", make_pipeline(columns, RFFGPC(2, **one)).fit(X.round(), cloudy)
    yield from _regimes(X, y, one)


def _regimes(X: Any, y: Any, one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    table = pd.DataFrame(X, columns=BANDS).assign(**{ANGLE: np.linspace(0.0, 100.0, len(X))})
    two = (Regime("day", 0.0, 60.0), Regime("day/1", 60.0, np.inf, ("BT9",)))
    blended = RegimeClassifier(RFFGPC(2, **one), two, by=ANGLE, blend=5.0).fit(table, y > 0)
    yield "regimes", blended.update(table[::30], y[::30] > 0)
    yield (
        "regimes-classes",
        RegimeClassifier(make_pipeline(StandardScaler(), VFFGPC(2, **one)), two[:1], by=ANGLE).fit(
            table[table[ANGLE] < 60.0], y[table[ANGLE] < 60.0]
        ),
    )


def _with_named_regimes(content: bytes) -> bytes:
    """Return a file as schema 2 had it: members and tensors by the name of their regime."""
    parts = take_apart(content)
    # Names that an ensemble's numbers cannot be taken for.
    names = ["day", "night"]
    for regime, name in zip(parts.header["regimes"], names, strict=True):
        regime[0] = name
    parts.header["schema"] = 2
    parts.header["members"] = dict(zip(names, parts.header["members"], strict=True))
    parts.header["updates"] = [["day", "night"][: len(own)] for own in parts.header["updates"]]
    parts.arrays = {
        f"{names[int(key.split('/')[0])]}/{key.partition('/')[2]}": array
        for key, array in parts.arrays.items()
    }
    return put_together(parts)


# Trying one


def _rows_for(model: Any) -> Any:
    """Return rows that a model of the sound files' features can be asked about."""
    X, d = make_rows(6, 5)[0], model.n_features_in_
    rows = np.column_stack([X[:, column % 2] for column in range(d)])
    names = getattr(model, "feature_names_in_", None)
    if isinstance(model, RegimeClassifier):
        low, high = model.regimes_[0].low, model.regimes_[-1].high
        inside = np.linspace(max(low, -1e6), min(high, 1e6), len(X), endpoint=False)
        columns = {name: X[:, int("BT9" in name)] for name in names}
        return {**columns, model.by: inside}
    return rows if names is None else pd.DataFrame(rows, columns=names)


def predict_all(model: Any) -> list[np.ndarray[Any, Any]]:
    """Return what a model says of some rows; raise an AssertionError if it is not valid."""
    # Each is asked about rows of its own: a scaler with copy=False changes those it is given.
    labels, probability = model.predict(_rows_for(model)), model.predict_proba(_rows_for(model))
    score = model.decision_function(_rows_for(model))
    mean, variance = _moments(model, _rows_for(model))
    assert np.isfinite(probability).all(), "a probability is not finite"
    assert ((probability >= 0.0) & (probability <= 1.0)).all(), "a probability outside of [0, 1]"
    # Probabilities are computed in double precision from latent moments of either.
    assert np.abs(probability.sum(axis=1) - 1.0).max() < 1e-9, "probabilities do not sum to one"
    assert np.isfinite(mean).all(), "a latent mean is not finite"
    assert np.isfinite(score).all(), "a score is not finite"
    assert np.isfinite(variance).all(), "a variance is not finite"
    assert (variance >= 0.0).all(), "a variance is negative"
    ordered = np.sort(probability, axis=1)
    # Single precision, or a tolerance on the variance, may decide a tie either way.
    sure = ordered[:, -1] - ordered[:, -2] > 1e-4
    likeliest = model.classes_[probability.argmax(axis=1)]
    assert (labels == likeliest)[sure].all(), "a label is not the likeliest"
    return [labels, probability, score, mean, variance]


def _moments(model: Any, rows: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if isinstance(model, Pipeline):
        return model[-1].latent_mean_and_variance(model[:-1].transform(rows))
    parts = model.estimators_.values() if hasattr(model, "regimes_") else ()
    if any(isinstance(own, Pipeline) for own in parts):
        # A Pipeline hides the latent function of its last step.
        return np.zeros(1), np.zeros(1)
    return model.latent_mean_and_variance(rows)


@cache
def _sound_predictions() -> dict[str, list[np.ndarray[Any, Any]]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for name, content in sound_files().items():
            if not name.startswith("checkpoint"):
                path.write_bytes(content)
                found[name] = predict_all(load_model(path))
    return found


def judge(name: str, path: Path) -> str:
    """Return what became of a file that was forged from the sound one called ``name``."""
    try:
        if name.startswith("checkpoint"):
            return _judge_checkpoint(name, path)
        model = load_model(path)
    except ModelFileError as error:
        return REFUSED if str(path) in str(error) else LOST
    try:
        found = predict_all(model)
    except PhaseTooLargeError:
        return TOO_FAR
    same = zip(found, _sound_predictions()[name], strict=True)
    alike = all(one.dtype == own.dtype and np.array_equal(one, own) for one, own in same)
    return IDENTICAL if alike else ANOTHER


def _judge_checkpoint(name: str, path: Path) -> str:
    kind = BatchState if name.endswith("batch") else State
    fingerprint = _fingerprint(name)
    counted = count_iterations(path)
    try:
        state = Checkpoint(path, fingerprint, kind).load()
    except InputError:
        # Another fit's, which must be left alone.
        return REFUSED
    assert state is not None
    assert state.n_iter == counted
    return ANOTHER


@cache
def _fingerprint(name: str) -> dict[str, str]:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(sound_files()[name])
        header = read_tensors(file.name)[1]
    found: dict[str, str] = header["fingerprint"]
    return found


# Trying many


@dataclass
class Tally:
    """What became of inputs, and the most that one of them took."""

    outcomes: Counter[str] = field(default_factory=Counter)
    by_name: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: str = ""
    megabytes: float = 0.0
    lost: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another's counts."""
        self.outcomes += other.outcomes
        self.by_name += other.by_name
        self.lost += other.lost
        self.megabytes = max(self.megabytes, other.megabytes)
        if other.seconds > self.seconds:
            self.seconds, self.slowest = other.seconds, other.slowest


@cache
def _names() -> list[str]:
    return sorted(sound_files())


def forged_file(index: int, seed: int) -> tuple[str, bytes]:
    """Return the name of the sound file that an input is made from, and its content."""
    names = _names()
    name = names[index % len(names)]
    return name, forge(sound_files()[name], random.Random(f"{seed}/{index}"))


def try_files(first: int, count: int, seed: int, keep: str | None = None) -> Tally:
    """Try some inputs in this process; the memory counted is that beyond what it had before."""
    _sound_predictions()
    tally, before = Tally(), _peak_megabytes()
    with (
        tempfile.TemporaryDirectory(dir=_memory_folder()) as folder,
        warnings.catch_warnings(),
        single_threaded_blas(),
    ):
        warnings.simplefilter("error")
        # A step with names after one that gives none: scikit-learn says so, and goes on.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        path = Path(folder) / "forged.undulatus"
        for index in range(first, first + count):
            name, content = forged_file(index, seed)
            path.write_bytes(content)
            began = time.process_time()
            try:
                outcome = judge(name, path)
            except Exception:
                outcome = LOST
                tally.lost.append(f"input {index} ({name}): {traceback.format_exc(limit=-3)}")
                if keep is not None:
                    (Path(keep) / f"{index}-{name}.undulatus").write_bytes(content)
            took = time.process_time() - began
            if took > tally.seconds:
                tally.seconds, tally.slowest = took, f"input {index} ({name})"
            tally.outcomes[outcome] += 1
            tally.by_name[name, outcome] += 1
    tally.megabytes = _peak_megabytes() - before
    return tally


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    """Try files on all cores and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", default=None)
    asked = parser.parse_args()
    if asked.keep is not None:
        Path(asked.keep).mkdir(parents=True, exist_ok=True)
    # Before processes are forked, so that all of them have the same files.
    sound_files()
    began, told, total = time.monotonic(), 0.0, Tally()
    starts = range(asked.first, asked.first + asked.count, CHUNK)
    with ProcessPoolExecutor(count_cores()) as pool:
        ends = [min(start + CHUNK, asked.first + asked.count) for start in starts]
        jobs = [
            pool.submit(try_files, start, end - start, asked.seed, asked.keep)
            for start, end in zip(starts, ends, strict=True)
        ]
        try:
            for job in as_completed(jobs):
                part = job.result()
                total.add(part)
                for text in part.lost:
                    print(text, file=sys.stderr, flush=True)
                elapsed = time.monotonic() - began
                if elapsed - told > 10.0:
                    told, done = elapsed, total.outcomes.total()
                    print(
                        f"{done:,} of {asked.count:,}, {done / elapsed:.0f} a second, "
                        f"{total.outcomes[LOST]} lost",
                        file=sys.stderr,
                        flush=True,
                    )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print_tally(total)
    raise SystemExit(1 if total.outcomes[LOST] else 0)


def print_tally(total: Tally) -> None:
    """Print what became of inputs: all together, and by the file they were made from."""
    print(f"tried: {total.outcomes.total():,}")
    for outcome in OUTCOMES:
        print(f"{outcome}: {total.outcomes[outcome]:,}")
    print(f"most memory beyond what a process had before: {total.megabytes:.0f} MB")
    print(f"longest: {1000.0 * total.seconds:.0f} ms of CPU, {total.slowest}")
    for name in sorted(sound_files()):
        counts = ", ".join(f"{total.by_name[name, outcome]:,}" for outcome in OUTCOMES)
        print(f"  {name}: {counts}")


if __name__ == "__main__":
    main()
