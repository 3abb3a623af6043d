"""Many classes: scores on real data beside other classifiers, the cost of a class, and updates.

    python -m benchmarks.classes [satimage] [covertype] [pines] [cost] [combine] [update]

satimage   Statlog Landsat, 6 classes, official split, defaults; beside a forest,
           HistGradientBoosting and scikit-learn's GPC
covertype  7 classes, 500,000 random rows; beside LightGBM with 300 rounds if it is installed
pines      Indian Pines, 16 classes, trained on patches that hold no test pixel; patches are the
           groups; beside a forest and an SVM with a grid search
cost       time of a fit of k classes over that of two
combine    ways to make probabilities of k latent functions, from one fit
update     50 and 400 more rows by ``update`` and by a new fit, and how long 50 rows take

Tables go to standard output.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from undulatus import VFFGPC, datasets

Array = np.ndarray[Any, Any]

FOREST = RandomForestClassifier(500, random_state=0, n_jobs=-1)
SVM_GRID = {"C": [1, 10, 100, 1000], "gamma": [1e-4, 1e-3, 1e-2, 1e-1]}


class ExactPeer(ClassifierMixin, BaseEstimator):
    """scikit-learn's GPC of two classes, with the kernel it finds on some of the rows."""

    def fit(self, X: Array, y: Array) -> ExactPeer:
        """Find the kernel on 600 rows, and the posterior on all."""
        some = np.random.default_rng(0).permutation(len(y))[:600]
        found = GaussianProcessClassifier(1.0 * RBF(4.0), random_state=0).fit(X[some], y[some])
        self.model_ = GaussianProcessClassifier(found.kernel_, optimizer=None).fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return the probability of each class, (n, 2)."""
        return np.asarray(self.model_.predict_proba(X))


def compare(title: str, data: Any, models: dict[str, Any], **ours: Any) -> None:
    """Fit each model on the training rows, and print its scores on the test rows."""
    X, y, train, test = data.X, data.y, data.train, data.test
    classes = np.unique(y[train])
    print(f"\n## {title}: {len(train):,} rows, {len(test):,} test rows, {len(classes)} classes")
    for name, model in models.items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X[train], y[train], **(ours if isinstance(model, VFFGPC) else {}))
        seconds = time.perf_counter() - began
        probability = model.predict_proba(X[test])
        accuracy = np.mean(classes[probability.argmax(axis=1)] == y[test])
        loss = log_loss(y[test], probability, labels=classes)
        print(f"{name:30} accuracy {accuracy:.4f}  NLL {loss:.4f}  {seconds:.0f} s", flush=True)


def satimage() -> None:
    """Compare on Statlog Landsat."""
    models = {f"VFF-GPC, seed {seed}": VFFGPC(random_state=seed) for seed in (0, 1)}
    models |= {
        "forest": FOREST,
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
        "scikit-learn's GPC": make_pipeline(StandardScaler(), OneVsRestClassifier(ExactPeer())),
    }
    compare("Statlog Landsat", datasets.load_satimage(), models)


def covertype() -> None:
    """Compare on Covertype; one member of D=200, which predicts at the cost of eight of D=71."""
    models: dict[str, Any] = {"VFF-GPC, 1 x D=200": VFFGPC(200, n_estimators=1, random_state=0)}
    try:
        from lightgbm import LGBMClassifier

        models["LightGBM 300"] = LGBMClassifier(n_estimators=300, verbose=-1, random_state=0)
    except ImportError:
        models["HistGradientBoosting 300"] = HistGradientBoostingClassifier(
            max_iter=300, early_stopping=False, random_state=0
        )
    compare("Covertype", datasets.load_covertype(), models)


def pines() -> None:
    """Compare on Indian Pines, over three choices of patches."""
    for seed in range(3):
        data = datasets.load_indian_pines(seed)
        models = {
            "VFF-GPC": VFFGPC(random_state=0),
            "forest": FOREST,
            "SVM, grid search": make_pipeline(
                StandardScaler(),
                GridSearchCV(SVC(probability=True, random_state=0), SVM_GRID, n_jobs=-1, cv=3),
            ),
        }
        title = f"Indian Pines, choice {seed} of patches"
        compare(title, data, models, groups=data.patch[data.train])


def cost() -> None:
    """Print the time of a fit of k classes over that of two."""
    data = datasets.load_covertype()
    rows = data.train[::10]
    print(f"\n## Time of a fit, {len(rows):,} rows of Covertype, D=100, one member")
    base = None
    for k in (2, 3, 5, 7):
        y = np.minimum(data.y[rows], k)
        began = time.perf_counter()
        VFFGPC(n_estimators=1, random_state=0).fit(data.X[rows], y)
        seconds = time.perf_counter() - began
        base = base or seconds
        print(f"{k} classes  {seconds:6.1f} s  {seconds / base / k:.2f} x k that of two")


def combine() -> None:
    """Print the NLL of ways to combine what k latent functions say."""
    loaders = {"satimage": datasets.load_satimage, "covertype": datasets.load_covertype}
    for name, load in loaders.items():
        data = load()
        rng = np.random.default_rng(0)
        train = rng.permutation(data.train)[:20_000]
        test = rng.permutation(data.test)[:20_000]
        model = VFFGPC(n_estimators=1, random_state=0).fit(data.X[train], data.y[train])
        mean, variance = model.latent_mean_and_variance(data.X[test])
        against_rest = expit(mean / np.sqrt(1.0 + np.pi / 8.0 * variance))
        print(f"\n## {name}, {len(train):,} rows: NLL of p ~ s / (1 - s)^a")
        for a in (0.0, 0.1, 0.3, 1.0):
            p = against_rest / np.maximum(1.0 - against_rest, 1e-12) ** a
            loss = log_loss(data.y[test], p / p.sum(axis=1, keepdims=True), labels=model.classes_)
            print(f"a = {a:.1f}  {loss:.4f}")


def update() -> None:
    """Print what an update brings, and how far it is from a new fit."""
    data = datasets.load_satimage()
    rows = np.random.default_rng(0).permutation(data.train)
    X, y, test = data.X, data.y, data.test

    def loss(model: VFFGPC) -> float:
        return float(log_loss(y[test], model.predict_proba(X[test]), labels=model.classes_))

    print("\n## Statlog Landsat: NLL after an update and after a new fit, D=100, one member")
    for old, new in ((1000, 50), (1000, 400), (3000, 400)):
        first, more = rows[:old], rows[old : old + new]
        model = VFFGPC(n_estimators=1, random_state=0).fit(X[first], y[first])
        before, seconds = loss(model), []
        for _ in range(5):
            began = time.perf_counter()
            model.update(X[more], y[more])
            seconds.append(time.perf_counter() - began)
            updated = loss(model)
            model.forget()
        both = rows[: old + new]
        fresh = VFFGPC(n_estimators=1, random_state=0).fit(X[both], y[both])
        print(
            f"{old} + {new} rows: before {before:.4f}, updated {updated:.4f} in "
            f"{1e3 * min(seconds):.0f} ms, new fit {loss(fresh):.4f}",
            flush=True,
        )
    update_times()


def update_times() -> None:
    """Print how long an update of 50 rows takes, and to forget it."""
    data = datasets.load_satimage()
    rows = np.random.default_rng(0).permutation(data.train)
    first, more = rows[:1000], rows[1000:1050]
    print("\n## Statlog Landsat: the fastest of seven updates of 50 rows, D=100")
    for k, y in ((2, data.y > 3), (6, data.y)):
        for members in (1, 8):
            model = VFFGPC(n_estimators=members, random_state=0, max_iter=5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(data.X[first], y[first])
            added, forgotten = [], []
            for _ in range(7):
                began = time.perf_counter()
                model.update(data.X[more], y[more])
                added.append(time.perf_counter() - began)
                model.forget()
                forgotten.append(time.perf_counter() - began - added[-1])
            print(
                f"{k} classes, {members} members: {1e3 * min(added):.0f} ms, "
                f"forgotten in {1e3 * min(forgotten):.0f} ms",
                flush=True,
            )


TASKS = {
    "satimage": satimage,
    "covertype": covertype,
    "pines": pines,
    "cost": cost,
    "combine": combine,
    "update": update,
}


def main() -> None:
    """Run the tasks named on the command line, or all."""
    names = sys.argv[1:] or list(TASKS)
    unknown = set(names) - set(TASKS)
    if unknown:
        sys.exit(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    for name in names:
        TASKS[name]()


if __name__ == "__main__":
    main()
