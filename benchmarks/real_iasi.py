"""How real the simulator is: 120 spectra of IASI over Antarctica beside 3,000 of the simulator.

python -m benchmarks.real_iasi [SIMULATOR] [--figure PATH]

A model of the sounder chain learns from the simulator (SIMULATOR is a file of it, made if absent;
three quarters of its cells train). Printed, for the real spectra and for the simulator's held-out
ones: the residual of their reconstruction from the model's components, in units of the noise; how
far they lie outside what was learned; the latent variance as a share of the prior's, and how
certain the model is. Then the noise of the real spectra, from what their own components leave
over, beside the simulator's.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.ndimage import median_filter

from undulatus import datasets
from undulatus.errors import OutsideTrainingError
from undulatus.products.maps import map_scene
from undulatus.products.provenance import Provenance
from undulatus.products.sounder import fit_spectra
from undulatus.products.training_range import TrainingRange
from undulatus.scenes import check_spectra, open_spectra, synthetic_sounder
from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.sampling import cell_names

SAMPLES, COMPONENTS, OWN_COMPONENTS = 3_000, 100, 10
"""Simulator spectra, components of the model, components of the real spectra alone."""

RANGES = (645, 770, 980, 1080, 1210, 1500, 2000, 2250, 2400, 2760)
"""Edges of ranges of wavenumbers in the tables, cm⁻¹."""


def reconstruction(model: Any, radiance: np.ndarray) -> np.ndarray:
    """Return what the model's components leave of spectra, in units of the noise."""
    reduce = model[0]
    scaled = (radiance - reduce.mean_) / reduce.noise_
    return scaled - scaled @ reduce.components_.T @ reduce.components_


def noise_of(radiance: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the noise of spectra in units of ``noise``, (channels,): what components leave."""
    scaled = radiance / noise
    centred = scaled - scaled.mean(axis=0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    kept = slice(0, OWN_COMPONENTS)
    rest = centred - (left[:, kept] * values[kept]) @ right[kept]
    return np.sqrt(np.sum(rest**2, axis=0) / (len(radiance) - 1 - OWN_COMPONENTS))


def by_range(values: np.ndarray) -> list[float]:
    """Return the root mean square of values over the channels of each range."""
    edges = np.searchsorted(WAVENUMBERS, RANGES)
    return [float(np.sqrt(np.mean(values[..., a:b] ** 2))) for a, b in pairwise(edges)]


def describe(name: str, model: Any, radiance: np.ndarray) -> None:
    """Print what a model says of spectra."""
    reduced = model[0].transform(radiance)
    distance = TrainingRange.of(model[-1]).distance(reduced)
    probability = model.predict_proba(radiance)[:, 1]
    _, variance = model[-1].latent_mean_and_variance(reduced)
    certain = np.maximum(probability, 1.0 - probability)
    prior = np.mean(np.atleast_1d(model[-1].signal_variance_))
    print(
        f"| {name} | {len(radiance):,} | {np.mean(distance > 0):.0%} | {np.median(distance):.2g} "
        f"| {np.median(variance) / prior:.2f} | {np.median(certain):.2f} | "
        f"{np.mean(certain > 0.95):.0%} |"
    )


def main() -> None:
    """Fit, compare, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", nargs="?", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    simulator = (
        open_spectra(options.simulator) if options.simulator else synthetic_sounder(SAMPLES)
    )
    simulator = check_spectra(simulator).compute()
    real = check_spectra(open_spectra(datasets.load_iasi_spectra().iasi)).compute()
    model = fit_spectra(simulator.chunk(sample=500), components=COMPONENTS)
    held_out = np.isin(cell_names(simulator), Provenance.of(model).held_out_cells)
    spectra = {
        "simulator, held out": simulator["radiance"].values[held_out],
        "real, Antarctica": real["radiance"].values,
    }
    print("| spectra | | outside | distance | latent variance / prior | certainty | above 95 % |")
    print("|---" * 7 + "|")
    for name, radiance in spectra.items():
        describe(name, model, radiance)
    _try_map(model, real)
    residuals = {name: reconstruction(model, values) for name, values in spectra.items()}
    noise = noise_of(spectra["real, Antarctica"], simulator["noise"].values)
    names = [f"{low} to {high}" for low, high in pairwise(RANGES)]
    print("\n| cm⁻¹ | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    rows = {
        **{f"residual of {name}": values for name, values in residuals.items()},
        "real noise / simulator's": noise,
    }
    for name, values in rows.items():
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in by_range(values)) + " |")
    if options.figure:
        draw(options.figure, simulator, real, residuals, noise)
        print(f"wrote {options.figure}")


def _try_map(model: Any, real: xr.Dataset) -> None:
    try:
        clouds = map_scene(model, real)["cloud_mask"].values
    except OutsideTrainingError as error:
        print(f"\na map of the real spectra is refused:\n{error}")
    else:
        print(f"\na map of the real spectra: {np.mean(clouds == 1):.0%} cloudy")


def draw(
    path: Path,
    simulator: xr.Dataset,
    real: xr.Dataset,
    residuals: dict[str, Any],
    noise: np.ndarray,
) -> None:
    """Draw spectra, residuals and noise over the wavenumber."""
    figure = Figure(figsize=(10, 8), dpi=90, layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    snow = (simulator["surface_type"] == 15) & (simulator["effective_cloud_amount"] == 0)
    shown = {
        "simulator, clear over snow and ice": (
            simulator["radiance"].values[snow.values],
            "#e08a1e",
        ),
        "real, Antarctic plateau": (real["radiance"].values, "#1f5f99"),
    }
    for name, (values, colour) in shown.items():
        kelvins = brightness_temperature(WAVENUMBERS, np.median(values, axis=0).astype(float))
        top.plot(WAVENUMBERS, kelvins, color=colour, linewidth=0.5, label=name)
    top.set(ylabel="median spectrum, K", ylim=(195, 290))
    for (name, values), colour in zip(residuals.items(), ("#e08a1e", "#1f5f99"), strict=True):
        size = median_filter(np.sqrt(np.mean(values**2, axis=0)), 9)
        middle.semilogy(WAVENUMBERS, size, color=colour, linewidth=0.7, label=name)
    middle.axhline(1.0, color="black", linewidth=0.6)
    middle.set(ylabel="residual of 100 components\nof the simulator, in noise")
    bottom.plot(WAVENUMBERS, median_filter(noise, 21), color="#1f5f99", linewidth=0.8)
    bottom.axhline(1.0, color="black", linewidth=0.6)
    bottom.set(ylabel="noise of the real spectra\nover the simulator's", ylim=(0, 1.5))
    bottom.set(xlabel="wavenumber, cm⁻¹", xlim=(645, 2760))
    for axis in (top, middle):
        legend = axis.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
        for line in legend.get_lines():
            line.set_linewidth(2.0)
    figure.savefig(path)


if __name__ == "__main__":
    main()
