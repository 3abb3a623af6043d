"""Cloud by day from the infrared channels of a real orbit of HIRS. Prints tables.

python -m benchmarks.hirs_orbit [--figure PATH] [--explain PATH] [--seed N]

The label is the visible channel's, which no classifier sees. Stretches of five minutes of the
orbit, 2,000 km, are held out in turn. All classifiers run in the same process, with their
defaults; logistic regression on standardised channels. VFFGPC holds whole stretches back for its
early stopping (``groups``). ``--figure`` draws the orbit on globes, ``--explain`` what a model of
all labelled views looks at.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import VFFGPC
from undulatus.products.explain import draw_explanation, explain, summary_lines
from undulatus.products.orbit import (
    CLASSES,
    GlobePanel,
    LabelledViews,
    draw_globes,
    labelled_orbit,
)
from undulatus.products.sounder import fit_spectra
from undulatus.scenes.visible import KINDS

CENTRE = (-8.0, -42.0)
"""Latitude and longitude below which the globe is seen."""


def contenders(seed: int) -> dict[str, Any]:
    """Return a new classifier by name."""
    return {
        "VFFGPC": VFFGPC(random_state=seed),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
        "random forest": RandomForestClassifier(random_state=seed, n_jobs=-1),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    }


def main() -> None:
    """Compare, and draw what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--explain", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    orbit = labelled_orbit()
    views = LabelledViews.of(orbit)
    kinds = np.bincount(orbit["view_kind"].values, minlength=len(KINDS))
    print(f"{orbit.sizes['sample']:,} views:", end=" ")
    print(", ".join(f"{name} {count:,}" for name, count in zip(KINDS, kinds, strict=True)))
    print(f"{len(views.y):,} labelled and complete, {views.y.mean():.1%} cloudy")
    channels = orbit["brightness_temperature"].values
    complete = np.isfinite(channels).all(axis=1)
    everywhere = np.full(len(complete), np.nan)
    tables = {}
    for name in contenders(options.seed):
        probability, began = np.empty(len(views.y)), time.perf_counter()
        for stretch, learn, test in views.folds():
            model = contenders(options.seed)[name]
            groups = {"groups": views.stretch[learn]} if name == "VFFGPC" else {}
            model.fit(views.X[learn], views.y[learn], **groups)
            probability[test] = model.predict_proba(views.X[test])[:, 1]
            if name == "VFFGPC":
                own = complete & _is_in(orbit, stretch)
                everywhere[own] = model.predict_proba(channels[own])[:, 1]
        tables[name] = views.scores(probability)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    _print_tables(views, tables)
    if options.figure:
        _draw(options.figure, orbit, everywhere)
    if options.explain:
        _explain(options.explain, orbit, options.seed)


def _is_in(orbit: Any, stretch: str) -> np.ndarray:
    start = np.datetime64(stretch.replace(" ", "T"))
    since = orbit["time"].values - start
    return (since >= np.timedelta64(0)) & (since < np.timedelta64(5, "m"))


def _print_tables(views: LabelledViews, tables: dict[str, Any]) -> None:
    counts = {name: int(rows.sum()) for name, rows in views.parts().items()}
    for measure in ("accuracy", "nll", "ece"):
        print(f"\n| {measure} | " + " | ".join(f"{name} ({n:,})" for name, n in counts.items()))
        print("|---" * (len(counts) + 1) + "|")
        for name, scores in tables.items():
            values = " | ".join(f"{getattr(scores[part], measure):.3f}" for part in counts)
            print(f"| {name} | {values} |")


def _draw(path: Path, orbit: Any, probability: np.ndarray) -> None:
    lit = orbit["solar_zenith_angle"].values < 70.0
    label = orbit["cloudy"].values.astype(float)
    label[label > 1] = np.nan
    panels = [
        GlobePanel(
            "visible channel", np.where(lit, orbit["brightness"].values, np.nan), "gray", 0.0,
            75.0, "radiance / cosine of the sun's zenith angle", None, "missing", lit,
        ),
        GlobePanel(
            "label: dark or bright", label, CLASSES, 0.0, 1.0, "where it is unambiguous",
            {0.25: "clear", 0.75: "cloudy"}, "not labelled", lit,
        ),
        GlobePanel(
            "infrared alone", np.where(lit, probability, np.nan), "cividis", 0.0, 1.0,
            "probability of cloud, each stretch held out", None, "not classified", lit,
        ),
    ]  # fmt: skip
    draw_globes(path, orbit, panels, CENTRE)
    print(f"wrote {path}")


def _explain(path: Path, orbit: Any, seed: int) -> None:
    model = fit_spectra(orbit, components=19, n_frequencies=5, seed=seed)
    explanations = explain(model)
    print("\n" + "\n".join(summary_lines(explanations)))
    draw_explanation(explanations, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
